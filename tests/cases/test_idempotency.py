"""Cases of kind idempotency, the half about commits: one key, one commit, whatever is lost, repeated or raced."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import interlock
from cases.cancelling import at_every_suspension
from cases.faults import Pausing
from cases.support import PATIENCE_SECONDS, World, awaited, between_processes, everywhere, increment, put, rows
from cases.workers import Worker
from interlock import (
    EffectStatus,
    EffectUnknownError,
    IdempotencyMismatchError,
    LimitExceededError,
    Outcome,
    UsageError,
)
from interlock.backends.memory import MemoryBackend
from layers.effects_support import Acts


async def charge(session: Any, amount: int, note: str = "") -> int:
    """The operation that must not happen twice."""
    total: int = await session.read("total", 0) + amount
    await session.write("total", total)
    return total


async def refund(session: Any, amount: int, note: str = "") -> int:
    """Another operation with the same arguments."""
    return await charge(session, -amount)


async def charge_order(session: Any, order: dict[str, Any], agreed: bool = True) -> int:
    """Takes what comes as JSON."""
    return await charge(session, order["price"]["amount"])


@everywhere
async def test_R036_another_payload_is_refused_while_the_first_runs_and_after(world: World) -> None:
    account = world.open().resource("account")
    inside, go_on = threading.Event(), threading.Event()
    ran: list[int] = []

    async def slow(session: Any, amount: int) -> int:
        ran.append(amount)
        inside.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return await charge(session, amount)

    slow_charge = functools.partial(account.run, slow, idempotency_key="K")
    running = world.thread(lambda: slow_charge(1, idempotency_fingerprint="P1"))
    assert inside.wait(PATIENCE_SECONDS)
    try:
        with pytest.raises(IdempotencyMismatchError) as caught:
            await slow_charge(2, idempotency_fingerprint="P2")
        assert caught.value.idempotency_key == "K"
    finally:
        go_on.set()
    assert running.result() == 1
    with pytest.raises(IdempotencyMismatchError):
        await slow_charge(2, idempotency_fingerprint="P2")
    assert ran == [1]
    assert await account.read("total") == 1


@everywhere
async def test_R036_between_two_stores_the_first_commit_decides(world: World) -> None:
    here, there = world.open().resource("account"), world.open().resource("account")

    async def overtaken(session: Any, amount: int) -> int:
        await there.run(charge, 2, idempotency_key="K", idempotency_fingerprint="P2", detached=True)
        return await charge(session, amount)

    overtaken.__qualname__ = charge.__qualname__  # the same operation
    with pytest.raises(IdempotencyMismatchError):
        await here.run(overtaken, 1, idempotency_key="K", idempotency_fingerprint="P1")
    assert await here.read("total") == 2


@everywhere
async def test_R037_fifty_equal_calls_at_once_are_one(world: World) -> None:
    account = world.open().resource("account")
    done = world.together(50, lambda _: account.run_detailed(charge, 5, idempotency_key="K"))
    assert [one.value for one in done] == [5] * 50
    assert [one.replayed for one in done].count(False) == 1
    assert await account.read("total") == 5
    assert len(await rows(account.history("total"))) == 1


@awaited
async def test_R037_fifty_equal_tasks_are_one(world: World) -> None:
    account = world.over(Pausing(world.backend())).resource("account")
    done = await asyncio.gather(*[account.run_detailed(charge, 5, idempotency_key="K") for _ in range(50)])
    assert [one.value for one in done] == [5] * 50
    assert [one.replayed for one in done].count(False) == 1
    assert await account.read("total") == 5


@between_processes
async def test_R037_equal_calls_of_two_processes_are_one(world: World) -> None:
    workers = [Worker("charge", url=world.place, calls=25, keys=8) for _ in range(2)]
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.go()
    done = [call for worker in workers for call in worker.result()]
    assert len(done) == 2 * 25 * 8
    values: dict[str, set[int]] = {}
    fresh: dict[str, int] = {}
    for key, value, replayed in done:
        values.setdefault(key, set()).add(value)
        fresh[key] = fresh.get(key, 0) + (not replayed)
    assert set(fresh.values()) == {1}
    assert all(len(found) == 1 for found in values.values())
    assert await world.open().resource("account").read("total") == 8


@everywhere
async def test_R041_the_order_and_way_of_arguments_do_not_matter(world: World) -> None:
    account = world.open().resource("account")
    one = {"id": 7, "price": {"currency": "EUR", "amount": 3}, "lines": [{"a": 1, "b": 2}]}
    other = {"lines": [{"b": 2, "a": 1}], "price": {"amount": 3, "currency": "EUR"}, "id": 7}
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (charge_order, (one,)),
        (charge_order, (other,)),
        (charge_order, (other, True)),
        (functools.partial(charge_order, agreed=True), (one,)),
        (functools.partial(charge_order, order=other), ()),
        (functools.partial(functools.partial(charge_order, agreed=True), other), ()),
    ]
    replays = []
    for fn, args in calls:
        done = await account.run_detailed(fn, *args, idempotency_key="K")
        assert done.value == 3
        replays.append(done.replayed)
    assert replays == [False, True, True, True, True, True]

    different: list[Any] = [{**one, "id": 8}, {**one, "lines": [{"a": 1}, {"b": 2}]}, {**one, "id": "7"}]
    for order in different:
        with pytest.raises(IdempotencyMismatchError):
            await account.run(charge_order, order, idempotency_key="K")
    with pytest.raises(IdempotencyMismatchError):
        await account.run(charge_order, one, False, idempotency_key="K")
    with pytest.raises(IdempotencyMismatchError):
        await account.run(charge_order, one, idempotency_key="K", agent="somebody else")
    assert await account.read("total") == 3


@everywhere
async def test_R045_a_failure_is_not_kept_under_the_key(world: World) -> None:
    account = world.open().resource("account")
    runs: list[str] = []

    async def flaky(session: Any) -> int:
        runs.append("run")
        total = await charge(session, 4)
        if len(runs) < 3:
            raise ConnectionError("the model did not answer")
        return total

    call = functools.partial(account.run_detailed, flaky, idempotency_key="K", idempotency_fingerprint=4)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await call()
        assert await account.read("total") is None
    done = await call()
    assert (done.value, done.replayed, done.attempts) == (4, False, 1)
    again = await call()
    assert (again.value, again.replayed, again.attempts) == (4, True, 0)
    assert len(runs) == 3

    replayed = []
    for _ in range(2):
        async with account.session(idempotency_key="bare") as session:
            await session.write("note", "written")
        replayed.append(session.replayed)
    assert replayed == [False, True]
    assert len(await rows(account.history("note"))) == 1


@awaited
async def test_R046_a_cancelled_call_leaves_the_key_free_or_used(world: World) -> None:
    account = world.over(Pausing(world.backend())).resource("account")
    ends = {False: 0, True: 0}
    async for number, cancelled in at_every_suspension(
        lambda number: account.run_detailed(charge, 1, idempotency_key=f"K{number}")
    ):
        used = await account.read("total", 0) == number
        assert used or cancelled
        again = await account.run_detailed(charge, 1, idempotency_key=f"K{number}")
        assert (again.value, again.replayed) == (number, used), "the key is neither free nor used"
        ends[used] += 1
    assert min(ends.values()) >= 2, "cancelled before and after the commit"
    assert ends[False] >= 4


@everywhere
async def test_R045_an_effect_that_fails_before_or_after_it_began(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    acts.raises = [ValueError("declined"), TimeoutError("sent, and no answer")]
    with pytest.raises(ValueError):
        await executor.execute("before", acts.charge, 5)
    with pytest.raises(TimeoutError):
        await executor.execute("after", acts.charge, 5)
    again = await executor.execute_detailed("before", acts.charge, 5)
    assert (again.value["charged"], again.replayed) == (5, False)
    assert (await executor.execute_detailed("before", acts.charge, 5)).replayed
    with pytest.raises(EffectUnknownError):
        await executor.execute("after", acts.charge, 5)
    assert (await store.effects.get("after")).status is EffectStatus.UNKNOWN
    assert len(acts.calls) == 3


@awaited
async def test_R046_an_effect_that_is_cancelled_is_free_or_unknown(world: World) -> None:
    store = world.over(Pausing(world.backend()))
    executor = world.executor(store, claim_seconds=600)
    await store.effects.get("to open the store")
    begun: list[str] = []
    ends: list[EffectStatus | None] = []

    async def act(key: str) -> str:
        begun.append(key)
        for _ in range(5):
            await world.give_way()
        return key

    async for number, cancelled in at_every_suspension(lambda at: executor.execute(f"K{at}", act, f"K{at}")):
        effect = await store.effects.get(f"K{number}")
        ends.append(None if effect is None else effect.status)
        assert (ends[-1] is None) == (f"K{number}" not in begun)
        assert cancelled or ends[-1] is EffectStatus.SUCCEEDED
    if not world.is_server:  # where each cancelled call costs a connection, the next one suspends at other places
        assert set(ends) == {None, EffectStatus.UNKNOWN, EffectStatus.SUCCEEDED}
    call = asyncio.create_task(executor.execute("K", act, "K"))
    while "K" not in begun:
        await world.give_way()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await store.effects.get("K")).status is EffectStatus.UNKNOWN


@everywhere
async def test_R047_a_key_belongs_to_one_operation_of_one_tenant(world: World) -> None:
    store = world.open()
    tenants = [store.resource("tenant one"), store.resource("tenant two")]
    for account in tenants:
        for fn, value in ((charge, 5), (refund, 0)):
            done = await account.run_detailed(fn, 5, idempotency_key="k1")
            assert (done.value, done.replayed) == (value, False)
        async with account.session(idempotency_key="k1") as session:
            await session.add("total", 100)
        assert not session.replayed
        for fn, value in ((charge, 5), (refund, 0)):
            done = await account.run_detailed(fn, 5, idempotency_key="k1")
            assert (done.value, done.replayed) == (value, True)
        assert await account.read("total") == 100
    for first, second in (("a:b", "c"), ("a", "b:c"), ("a/b", "c"), ("ab", "c"), ("a", "bc")):
        done = await store.resource(first).run_detailed(charge, 1, idempotency_key=second)
        assert not done.replayed


def test_R048_a_record_lives_exactly_as_long_as_promised() -> None:
    now = [1_000_000.0]
    backend = MemoryBackend(clock=lambda: now[0])
    with interlock.sync.Store(backend, agent="tester", idempotency_ttl_seconds=60) as store:
        account = store.resource("account")

        def charge_once(session: Any) -> int:
            return int(session.update("total", lambda total: total + 1, 0))

        def call() -> tuple[int, bool]:
            done = account.run_detailed(charge_once, idempotency_key="K", idempotency_fingerprint=1)
            return done.value, done.replayed

        assert call() == (1, False)
        now[0] += 59.999
        store.compact()
        assert call() == (1, True)
        now[0] += 0.001
        assert call() == (2, False), "its life is over: a new run, cleaned up or not"
        now[0] += 60
        store.compact()
        assert call() == (3, False)
        now[0] += 59
        assert call() == (3, True)
        assert account.read("total") == 3


@everywhere
async def test_R048_no_call_meets_a_half_expired_record(world: World) -> None:
    """Callers hammer one key while its record expires again and again and a clean-up runs all the time."""
    store = world.open(idempotency_ttl_seconds=0.02, history_seconds=0.05)
    account = store.resource("account")
    stop = threading.Event()

    async def clean_up() -> int:
        count = 0
        while not stop.is_set():
            await store.compact()
            count += 1
        return count

    async def call_often(number: int) -> list[tuple[int, bool]]:
        found = []
        while len({value for value, replayed in found if replayed}) < 4:
            done = await account.run_detailed(charge, 1, idempotency_key="K")
            found.append((done.value, done.replayed))
        return found

    cleaner = world.thread(clean_up)
    try:
        calls = world.together(3, call_often)
    finally:
        stop.set()
    assert cleaner.result() > 0
    for found in calls:
        values = [value for value, _ in found]
        assert values == sorted(values)
    runs = [value for found in calls for value, replayed in found if not replayed]
    assert sorted(runs) == list(range(1, len(runs) + 1)), "each run that was not a replay charged once"
    assert await account.read("total") == len(runs)


@everywhere
async def test_R049_empty_blank_and_over_long_ids_are_refused_at_entry(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")

    async def through_attempts(options: dict[str, Any]) -> None:
        async for attempt in stock.attempts(**options):
            async with attempt, attempt.session() as session:
                await increment(session)

    async def through_session(options: dict[str, Any]) -> None:
        async with stock.session(**options) as session:
            await increment(session)

    async def through_store(options: dict[str, Any]) -> None:
        async with store.session(**options) as session:
            await increment(session.on(stock))

    async def through_nested(options: dict[str, Any]) -> None:
        async with stock.session():
            await stock.run(increment, **options)

    entries: list[Callable[[dict[str, Any]], Awaitable[Any]]] = [
        lambda options: stock.run(increment, **options),
        lambda options: stock.run_detailed(increment, **options),
        lambda options: stock.begin(**options),
        through_attempts,
        through_session,
        through_store,
        through_nested,
    ]
    bad: list[tuple[Any, type[Exception]]] = [
        ("", UsageError),
        (" ", UsageError),
        ("\t\n\u3000", UsageError),
        (0, UsageError),
        (b"bytes", UsageError),
        ("x" * 256, LimitExceededError),
        ("é" * 128, LimitExceededError),
    ]
    for value, error in bad:
        for option in ("idempotency_key", "agent", "run_id"):
            for enter in entries:
                with pytest.raises(error, match=option):
                    await enter({option: value})
        with pytest.raises(error):
            store.resource(value)
        with pytest.raises(error):
            world.open(agent=value)
        with pytest.raises(UsageError):
            await store.outcome(value)
        with pytest.raises(UsageError):
            await store.log.get(value)
    assert await rows(stock.scan()) == []
    assert await rows(store.log.changes()) == []
    await stock.run(put, "k", 1, idempotency_key="x" * 255, agent="y" * 255)
    assert await store.outcome("0" * 32) in (Outcome.NOT_COMMITTED, Outcome.UNKNOWN)


@everywhere
async def test_R050_a_retried_append_appends_once(world: World) -> None:
    lists = world.open().resource("lists")

    async def step(session: Any, item: str) -> None:
        await session.append("merged", item)
        await session.write("rewritten", [*await session.read("rewritten", []), item])
        if session.attempt < 3:
            await lists.run(put, "rewritten", [f"rival {session.attempt}"], detached=True)

    done = await lists.run_detailed(step, "x", idempotency_key="K", idempotency_fingerprint="x")
    assert done.attempts == 3
    assert (await lists.run_detailed(step, "x", idempotency_key="K", idempotency_fingerprint="x")).replayed
    assert await rows(lists.scan()) == [("merged", ["x"]), ("rewritten", ["rival 2", "x"])]
