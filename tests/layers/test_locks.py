"""Locks: who waits for whom, rings, upgrades, ranges, lost locks; pessimistic sessions and writers of other modes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cases.faults import Counted, Hooked
from cases.support import PATIENCE_SECONDS, World, awaited, everywhere, in_worlds, increment, put, put_all, rows
from interlock import (
    ConflictError,
    DeadlineExceededError,
    DeadlockError,
    FencedError,
    IsolationError,
    LockTimeoutError,
    UsageError,
)
from interlock.core.space import Space
from interlock.keys import resource_space
from interlock.layers.locks import LOCKS
from interlock.model import CommitRefused
from layers.support import records, silence
from layers.test_leases import SHORT, take
from soak import usual

PESSIMISTIC: Any = {"isolation": "pessimistic"}
AT_ONCE: Any = {"isolation": "pessimistic", "lock_timeout_seconds": 0}


async def leave(lock: Any) -> None:
    await lock.__aexit__(None, None, None)


async def try_once(resource: Any, key: Any, value: Any) -> None:
    """Write without waiting and without a second attempt."""
    async with resource.session(lock_timeout_seconds=0) as session:
        await session.write(key, value)


async def a_millisecond() -> None:
    """Owners are ordered by the milliseconds of their ids."""
    now = time.time()
    while time.time() < now + 0.002:
        await asyncio.sleep(0)


@everywhere
async def test_the_core_and_the_layer_mean_the_same_key(world: World) -> None:
    space: Space = world.open().resource("stock")._resource.space
    assert space.locks_key == LOCKS.key("stock")


@everywhere
async def test_shared_locks_go_together_and_exclusive_ones_do_not(world: World) -> None:
    stock = world.open().resource("stock")
    one, two = stock.lock("a", shared=True), stock.lock("a", shared=True)
    await take(one)
    await take(two)
    with pytest.raises(LockTimeoutError) as caught:
        await take(stock.lock("a", wait_seconds=0))
    assert caught.value.holders == ("tester",)
    await leave(one)
    await leave(two)
    async with stock.lock("a", "b"):
        for shared in (True, False):
            with pytest.raises(LockTimeoutError):
                await take(stock.lock("b", "c", shared=shared, wait_seconds=0))
        async with stock.lock("c"):
            pass
    async with stock.lock():
        with pytest.raises(LockTimeoutError):
            await take(stock.lock(("any", 1), wait_seconds=0))
    assert await records(world.open(), LOCKS) == [], "nothing is left over"


@everywhere
async def test_who_waits_for_everything_is_not_overtaken_by_readers(world: World) -> None:
    stock = world.open().resource("stock")
    first = stock.lock("a", shared=True)
    await take(first)
    writer = world.thread(functools.partial(hold, world, ("a",), False))
    while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
        await world.look_again()
    with pytest.raises(LockTimeoutError):
        await take(stock.lock("a", shared=True, wait_seconds=0))
    await leave(first)
    writer.result()


async def hold(world: World, keys: tuple[str, ...], shared: bool) -> None:
    async with world.open().resource("stock").lock(*keys, shared=shared, wait_seconds=60):
        pass


@everywhere
async def test_writers_of_every_mode_wait_for_a_lock(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    await stock.run(put, "a", 0)
    for mode in ("none", "snapshot", "optimistic", "serializable", "pessimistic"):
        lock = await elsewhere(take, stock.lock("a", agent="holder"))
        await stock.run(put, "free", mode, isolation=mode)
        session = await stock.begin(isolation=mode, lock_timeout_seconds=0)
        with pytest.raises(LockTimeoutError) as caught:
            await session.write("a", mode)
            await session.commit()
        assert caught.value.holders == ("holder",)
        await session.rollback() if mode == "pessimistic" else None
        waiting = world.thread(functools.partial(write_elsewhere, world, mode))
        await leave(lock)
        waiting.result()
        assert await stock.read("a") == f"in {mode}"


async def elsewhere(call: Any, *args: Any) -> Any:
    """As another task or thread would: in a context that knows nothing of it."""
    coroutine = call(*args)
    context = contextvars.Context()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return context.run(run_now, coroutine)
    return await asyncio.get_running_loop().create_task(coroutine, context=context)


def run_now(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("suspended")


async def write_elsewhere(world: World, mode: str) -> None:
    await world.open().resource("stock").run(put, "a", f"in {mode}", isolation=mode, lock_timeout_seconds=60)


@everywhere
async def test_a_clear_and_a_merge_wait_as_well(world: World) -> None:
    stock = world.open().resource("stock")
    await stock.run(put, ("n", 1), 1)
    await elsewhere(take, stock.lock(("n", 1), shared=True))
    for call in ("clear", "add", "delete", "update_where"):
        for mode in ("serializable", "pessimistic"):
            session = await stock.begin(isolation=mode, lock_timeout_seconds=0)
            with pytest.raises(LockTimeoutError):
                if call == "clear":
                    await session.clear(("n",))
                elif call == "add":
                    await session.add(("n", 1), 1)
                elif call == "delete":
                    await session.delete(("n", 1))
                else:
                    await session.update_where(lambda key, value: value + 1, ("n",))
                await session.commit()
            if mode == "pessimistic":
                await session.rollback()


@everywhere
async def test_sessions_around_which_a_lock_is_held_are_fenced_with_it(world: World) -> None:
    stock = world.open().resource("stock")
    lock = stock.lock("a", ttl_seconds=SHORT)
    await take(lock)
    await stock.run(put, "a", 1)
    await stock.run(put, "a", 2, fence=lock)
    silence(lock)
    await elsewhere(take, world.open().resource("stock").lock("a", wait_seconds=30))
    with pytest.raises((FencedError, LockTimeoutError)):
        await try_once(stock, "a", 3)
    with pytest.raises(FencedError):
        await stock.run(put, "a", 3, fence=lock)
    assert await stock.read("a") == 2


@everywhere
async def test_a_lock_that_was_taken_over_is_no_longer_ones_own(world: World) -> None:
    """A pessimistic session whose owner was believed dead cannot commit, though nothing that it read has changed."""
    store, other = world.open(), world.open()
    stock = store.resource("stock")
    session = await stock.begin(**PESSIMISTIC)
    await session.write("a", 1)
    transaction = getattr(session, "inner", session)._txn
    store._engine.locking.keeper.remove(transaction.held.tenure)
    await kill(store, transaction.held.tenure)
    async with other.resource("stock").session(**AT_ONCE) as second:
        await second.write("b", 2)
    async with other.resource("stock").session(**AT_ONCE) as second:
        assert await second.read("a") is None
    with pytest.raises(ConflictError):
        await session.commit()
    assert await stock.read("a") is None


async def kill(store: Any, tenure: Any) -> None:
    """End an owner, as one who believes it to be dead does."""
    from interlock.layers.ledger import Ledger
    from interlock.layers.tenures import takeover

    reading = await store._engine.backend.read((tenure.key, tenure.pulse_key))
    writes, expectations = takeover(tenure.owner, *reading.entries)
    await Ledger(store._engine).commit(writes, expectations, agent="other", quiet=True)


@everywhere
async def test_crossed_locks_end_with_a_victim(world: World) -> None:
    """Two that lock a and b in opposite orders, in threads of their own; every time both get through."""
    rounds = 10 if world.is_server else 50
    await world.open().resource("stock").run(put, "a", 0)
    await world.open().resource("stock").run(put, "b", 0)
    attempts = itertools.count()

    async def cross(session: Any, first: str, second: str) -> None:
        next(attempts)
        one = await session.read(first)
        await world.give_way()
        two = await session.read(second)
        await session.write(first, one + 1)
        await session.write(second, two + 1)

    async def work(number: int) -> None:
        stock = world.open(agent=f"agent {number}").resource("stock")
        order = ("a", "b") if number else ("b", "a")
        for _ in range(rounds):
            await stock.run(cross, *order, **PESSIMISTIC, lock_timeout_seconds=60)

    world.together(2, work)
    stock = world.open().resource("stock")
    assert (await stock.read("a"), await stock.read("b")) == (2 * rounds, 2 * rounds)
    assert await records(world.open(), LOCKS) == []


@in_worlds("memory-async", "memory-sync")
async def test_a_thousand_crossed_locks_have_a_thousand_victims(world: World) -> None:
    """Each of the two holds one key before either asks for the other's, so every round is a deadlock, and ends."""
    rounds = usual(1000, 250)
    await world.open().resource("stock").run(put_all, {"a": 0, "b": 0})
    crossed = threading.Barrier(2)
    attempts = itertools.count()

    async def work(number: int) -> None:
        stock = world.open(agent=f"agent {number}").resource("stock")
        first, second = ("a", "b") if number else ("b", "a")
        for _ in range(rounds):
            tries = itertools.count()

            async def cross(session: Any, tries: Iterator[int] = tries) -> None:
                next(attempts)
                await session.add(first, 1)
                if not next(tries):
                    crossed.wait(PATIENCE_SECONDS)
                await session.add(second, 1)

            await stock.run(cross, **PESSIMISTIC, lock_timeout_seconds=PATIENCE_SECONDS)
            crossed.wait(PATIENCE_SECONDS)  # nobody holds anything when the next round begins

    world.together(2, work)
    stock = world.open().resource("stock")
    assert (await stock.read("a"), await stock.read("b")) == (2 * rounds, 2 * rounds)
    assert next(attempts) >= 3 * rounds
    assert await records(world.open(), LOCKS) == []


@awaited
async def test_of_a_ring_the_youngest_gives_way_and_keeps_its_age(world: World) -> None:
    stock = world.open().resource("stock")
    old, young = await stock.begin(agent="old", **PESSIMISTIC), await stock.begin(agent="young", **PESSIMISTIC)
    await old.write("a", 1)
    await a_millisecond()
    await young.write("b", 2)
    waiting = asyncio.ensure_future(old.write("b", 1))
    while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
        await asyncio.sleep(0)
    with pytest.raises(DeadlockError) as caught:
        await young.write("a", 2)
    assert set(caught.value.holders) == {"old", "young"}
    await young.rollback()
    await waiting
    await old.commit()
    assert (await stock.read("a"), await stock.read("b")) == (1, 1)


@awaited
async def test_the_last_to_queue_condemns_a_younger_one(world: World) -> None:
    """The old one closes the ring; the young one, which waits already, is told to give way."""
    stock = world.open().resource("stock")
    old, young = await stock.begin(agent="old", **PESSIMISTIC), await stock.begin(agent="young", **PESSIMISTIC)
    await old.write("a", 1)
    await a_millisecond()
    await young.write("b", 2)
    waiting = asyncio.ensure_future(young.write("a", 2))
    while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(old.write("b", 1))
    with pytest.raises(DeadlockError) as caught:
        await waiting
    assert set(caught.value.holders) == {"old", "young"}, "of the whole ring"
    await young.rollback()
    await closing
    await old.commit()


@in_worlds("memory-async", "sqlite-async", "postgresql-async", "redis-async")
async def test_who_reads_a_key_and_then_writes_it_meets_the_others_once(world: World) -> None:
    """All hold the key shared before any wants to write it: only one can go on. The others ask for more at once."""
    stock = world.open().resource("stock")
    await stock.run(put, "k", 0)
    count, reading, all_read = 6, 0, asyncio.Event()

    async def read_then_write(session: Any) -> None:
        nonlocal reading
        value = await session.read("k")
        reading += 1
        if reading == count:
            all_read.set()
        await all_read.wait()
        await session.write("k", value + 1)

    done = await asyncio.gather(*[stock.run_detailed(read_then_write, **PESSIMISTIC) for _ in range(count)])
    assert await stock.read("k") == count
    assert max(each.attempts for each in done) == 2


@awaited
async def test_a_ring_over_several_resources_and_owners(world: World) -> None:
    store = world.open()
    places = [store.resource(f"place {number}") for number in range(4)]

    async def walk(session: Any, number: int) -> None:
        for step in range(2):
            await session.on(places[(number + step) % 4]).update("k", lambda value: value + 1, 0)
            await asyncio.sleep(0)

    runs = [store.run(walk, number, **PESSIMISTIC, lock_timeout_seconds=60) for number in range(4)] * 1
    await asyncio.gather(*[asyncio.wait_for(run, 60) for run in runs])
    assert [await place.read("k") for place in places] == [2, 2, 2, 2]


@awaited
async def test_two_that_make_a_shared_lock_exclusive(world: World) -> None:
    stock = world.open().resource("stock")
    await stock.run(put, "n", 0)
    await asyncio.gather(*[stock.run(increment, **PESSIMISTIC, lock_timeout_seconds=60) for _ in range(6)])
    assert await stock.read("n") == 6


class Refusals(Counted):
    """Counts commits that were refused."""

    refused = 0

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        try:
            return await super().around(name, args, call)
        except CommitRefused:
            self.refused += 1
            raise


@in_worlds("sqlite-async", "postgresql-async")
async def test_different_keys_of_one_resource_are_not_in_each_other_s_way(world: World) -> None:
    """All locks of a resource are one record, yet inside a process its changes never refuse each other."""
    counted = Refusals(world.backend())
    stock = world.over(counted).resource("stock")
    keys = [f"k{number}" for number in range(8)]
    await asyncio.gather(*[stock.run(increment, key, **PESSIMISTIC) for key in keys])
    await asyncio.gather(*[stock.run(increment, key, **PESSIMISTIC) for key in keys])
    assert [await stock.read(key) for key in keys] == [2] * len(keys)
    assert counted.refused == 0


@everywhere
async def test_ranges_are_locked(world: World) -> None:
    """What was scanned stays as it was: no key of the range appears, changes or goes."""
    stock = world.open().resource("stock")
    await stock.run(put, ("n", 1), 1)
    session = await stock.begin(**PESSIMISTIC)
    assert await rows(session.scan(("n",))) == [(("n", 1), 1)]
    other = world.open().resource("stock")
    for key in (("n", 1), ("n", 2)):
        with pytest.raises(LockTimeoutError):
            await try_once(other, key, 2)
    await other.run(put, ("m", 2), 2, lock_timeout_seconds=0)
    await session.write("count", 1)
    await session.commit()
    await other.run(put, ("n", 2), 2, lock_timeout_seconds=0)


@everywhere
async def test_a_pessimistic_transaction_costs_one_durable_write(world: World) -> None:
    counted = Counted(world.backend())
    stock = world.over(counted).resource("stock")

    async def work(session: Any) -> None:
        for key in ("a", "b", "c"):
            await session.write(key, await session.read(key, 0) + 1)
        await session.add("d", 1)
        assert len(await rows(session.scan())) == 4

    for _ in range(3):
        await stock.run(work, **PESSIMISTIC)
        durable = [request for request in counted.commits if request.durable]
        assert len(durable) == 1
        assert not durable[0].quiet
        assert all(request.quiet for request in counted.commits if not request.durable)
        counted.commits.clear()
    changes = await rows(world.open().log.changes())
    assert len(changes) == 3, "locks are not in the feed"
    assert all(change.isolation == "pessimistic" for change in changes)


@everywhere
async def test_what_is_read_again_is_the_same_and_reads_move_forward(world: World) -> None:
    stock = world.open().resource("stock")
    await stock.run(put, "a", 1)
    session = await stock.begin(**PESSIMISTIC)
    assert await session.read("a") == 1
    await stock.run(put, "b", "new")
    assert await session.read("b") == "new", "the newest, under a lock"
    assert await session.read("a") == 1
    assert await session.read_many(["a", "b", "c"]) == {"a": 1, "b": "new"}
    await session.check()
    await session.write("c", 3)
    with session.savepoint():
        await session.write("d", 4)
    await session.commit()
    assert (await stock.read("c"), await stock.read("d")) == (3, 4)


@everywhere
async def test_every_way_to_a_session_has_the_mode(world: World) -> None:
    stock = world.open().resource("stock")
    await stock.run(increment, **PESSIMISTIC)
    async with stock.session(**PESSIMISTIC) as session:
        await increment(session)
        await stock.run(increment)
        async with stock.session(isolation="serializable") as inside:
            await increment(inside)
    session = await stock.begin(**PESSIMISTIC)
    await increment(session)
    await session.commit()
    async for attempt in stock.attempts(**PESSIMISTIC):
        async with attempt, attempt.session() as session:
            await increment(session)
    store = world.open(isolation="pessimistic")
    await store.resource("stock").run(increment)
    assert await stock.read("n") == 7
    with pytest.raises(UsageError):
        async with stock.session() as session, stock.session(**PESSIMISTIC):
            pass
    other = world.open().resource("strict")
    other.require(isolation="pessimistic")
    with pytest.raises(IsolationError):
        await other.run(increment)
    await other.run(increment, **PESSIMISTIC)
    for bad in (-1, "10", None):
        with pytest.raises(UsageError):
            await stock.run(increment, lock_timeout_seconds=bad)


@everywhere
async def test_an_idempotency_key_and_an_invariant_work_under_locks(world: World) -> None:
    stock = world.open().resource("stock")

    async def positive(view: Any) -> bool:
        return bool(await view.read("n", 0) >= 0)

    stock.invariant("positive", positive)
    for _ in range(2):
        assert await stock.run(increment, idempotency_key="once", **PESSIMISTIC) == 1
    assert await stock.read("n") == 1
    assert await records(world.open(), LOCKS) == []


@everywhere
async def test_many_locks_become_one(world: World) -> None:
    stock = world.open().resource("stock")
    session = await stock.begin(**PESSIMISTIC)
    await session.read_many([("n", number) for number in range(300)])
    (_, seats), *_ = await records(world.open(), LOCKS)
    assert len(seats[0][4]) == 1
    other = world.open().resource("stock")
    with pytest.raises(LockTimeoutError):
        await try_once(other, "elsewhere", 1)
    await session.rollback()
    await other.run(put, "elsewhere", 1, lock_timeout_seconds=0)


@awaited
async def test_whoever_is_cancelled_while_waiting_leaves_no_trace(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    lock = await elsewhere(take, stock.lock("a"))
    for _ in range(10):
        task = asyncio.ensure_future(elsewhere(take, stock.lock("a", wait_seconds=60)))
        while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
            await asyncio.sleep(0)
    await leave(lock)
    assert await records(store, LOCKS) == []


@everywhere
async def test_nobody_waits_for_the_transaction_that_it_was_called_in(world: World) -> None:
    """A detached writer inside a transaction that holds the lock: the outer one is refused, nobody hangs."""
    stock = world.open().resource("stock")
    await stock.run(put, "a", 0)
    session = stock.session(isolation="pessimistic")
    with pytest.raises(ConflictError):
        async with session as outer:
            await outer.write("b", await outer.read("a"))
            await stock.run(put, "a", 1, detached=True)
    assert (await stock.read("a"), await stock.read("b")) == (1, None)
    with pytest.raises(LockTimeoutError):
        async with stock.session(isolation="pessimistic") as outer:
            await outer.write("b", await outer.read("a"))
            async with stock.session(isolation="pessimistic", detached=True) as inside:
                await inside.write("a", 2)


class Interrupt(BaseException):
    """Comes out of nowhere, as Ctrl-C does."""


@pytest.mark.parametrize("commits", [True, False])
@in_worlds("memory-async", "memory-sync")
async def test_an_interrupt_of_the_release_says_whether_the_commit_has_happened(world: World, commits: bool) -> None:
    seen: list[str] = []

    def interrupt(name: str, args: tuple[Any, ...]) -> None:
        if name != "commit" or len(seen) == 2:
            return
        if seen:
            seen.append("release")
            raise Interrupt
        if any(key.startswith(resource_space("stock")) for key in args[0].writes):
            seen.append("commit")

    stock = world.over(Hooked(world.backend(), interrupt)).resource("stock")
    with pytest.raises(Interrupt) as caught:
        async with stock.session(**PESSIMISTIC) as session:
            await session.write("a", 1)
            if not commits:
                seen.append("failure")
                raise ValueError
    assert ["COMMITTED" in note for note in getattr(caught.value, "__notes__", ())] == [True] * commits
    assert await stock.read("a") == (1 if commits else None)
    await stock.run(put, "a", 2, **PESSIMISTIC)  # what was interrupted is done in the background
    assert await stock.read("a") == 2


@in_worlds("memory-async", "memory-sync")
async def test_whose_time_has_run_out_locks_nothing(world: World) -> None:
    store = world.open()
    session = await store.resource("stock").begin(isolation="pessimistic", timeout_seconds=0.001)
    over = time.monotonic() + 0.002
    while time.monotonic() < over:
        await world.give_way()
    with pytest.raises(DeadlineExceededError):
        await session.write("a", 1)
    await session.rollback()
    assert await records(store, LOCKS) == []
