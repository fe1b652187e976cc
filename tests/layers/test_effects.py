"""Acts that are executed at most once for their keys: results, failures, the unknown, other payloads, concurrency."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

from cases.faults import LostReplies
from cases.support import World, awaited, everywhere, stepped
from interlock import (
    CANNOT_TELL,
    NOT_HAPPENED,
    EffectFailedError,
    EffectInProgressError,
    EffectStatus,
    EffectUnknownError,
    Happened,
    IdempotencyMismatchError,
    LimitExceededError,
    NotFoundError,
    UsageError,
    ValueRefusedError,
)
from layers.effects_support import Acts, abandon, say


@everywhere
async def test_an_act_is_executed_once_and_everyone_gets_its_result(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    assert await executor.execute("k", acts.charge, 5) == {"charged": 5, "key": "k"}
    assert await executor.execute("k", acts.charge, 5) == {"charged": 5, "key": "k"}
    other = world.executor(world.open().effects)
    assert await other.execute("k", acts.charge, 5) == {"charged": 5, "key": "k"}
    assert acts.calls == [5]
    effect = await store.effects.get("k")
    assert effect.status is EffectStatus.SUCCEEDED
    assert (effect.result, effect.error, effect.attempts, effect.effect) == ({"charged": 5, "key": "k"}, None, 1, "")
    assert effect.agent == effect.claimed_by == "tester"
    assert effect.seconds_left is None
    assert "charge" in effect.operation
    assert [each.key for each in await store.effects.list()] == ["k"]
    assert await store.effects.get("other") is None


@everywhere
async def test_a_replay_says_so_and_is_a_copy(world: World) -> None:
    executor, acts = world.executor(world.open()), Acts()
    first = await executor.execute_detailed("k", acts.charge, 5)
    again = await executor.execute_detailed("k", acts.charge, 5)
    assert (first.replayed, again.replayed) == (False, True)
    again.value["charged"] = 6
    assert (await executor.execute("k", acts.charge, 5))["charged"] == 5


@everywhere
async def test_another_payload_under_a_used_key_is_refused(world: World) -> None:
    executor, acts = world.executor(world.open()), Acts()
    await executor.execute("k", acts.charge, 5)
    with pytest.raises(IdempotencyMismatchError) as caught:
        await executor.execute("k", acts.charge, 6)
    assert caught.value.idempotency_key == "k"
    with pytest.raises(IdempotencyMismatchError):
        await executor.execute("k", acts.refund, 5)
    await executor.execute("p", acts.charge, 5, payload={"order": 1})
    await executor.execute("p", acts.charge, 7, payload={"order": 1})
    with pytest.raises(IdempotencyMismatchError):
        await executor.execute("p", acts.charge, 5, payload={"order": 2})
    assert acts.calls == [5, 5]


@everywhere
async def test_a_failure_is_recorded_and_the_next_call_executes_again(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    acts.raises = [ValueError("declined")]
    with pytest.raises(ValueError, match="declined"):
        await executor.execute("k", acts.charge, 5)
    effect = await store.effects.get("k")
    assert (effect.status, effect.error, effect.attempts) == (EffectStatus.FAILED, "ValueError: declined", 1)
    assert (await executor.execute("k", acts.charge, 5))["charged"] == 5
    assert (await store.effects.get("k")).attempts == 2


@everywhere
async def test_after_a_failure_a_probe_is_asked_first(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    for key, answer in (("a", Happened(7)), ("b", NOT_HAPPENED), ("c", CANNOT_TELL)):
        acts.raises = [ValueError("declined")]
        with pytest.raises(ValueError):
            await executor.execute(key, acts.charge, 5)
        if answer is CANNOT_TELL:
            with pytest.raises(EffectUnknownError):
                await executor.execute(key, acts.charge, 5, verify=say(answer))
        else:
            result = await executor.execute(key, acts.charge, 5, verify=say(answer))
            assert result == (7 if isinstance(answer, Happened) else {"charged": 5, "key": key})
    assert len(acts.calls) == 4


@everywhere
async def test_an_error_without_an_answer_is_unknown_and_not_repeated(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    acts.raises = [TimeoutError("no answer")]
    with pytest.raises(TimeoutError) as caught:
        await executor.execute("k", acts.charge, 5)
    assert any("unknown" in note for note in caught.value.__notes__)
    with pytest.raises(EffectUnknownError) as unknown:
        await executor.execute("k", acts.charge, 5)
    assert (unknown.value.key, unknown.value.cause, unknown.value.maybe_committed) == (
        "k",
        "TimeoutError: no answer",
        True,
    )
    assert "verify" in unknown.value.explain()
    assert [each.key for each in await store.effects.list(EffectStatus.UNKNOWN)] == ["k"]
    assert len(acts.calls) == 1


@everywhere
async def test_a_probe_settles_what_is_unknown(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    for key in "abcde":
        acts.raises = [TimeoutError()]
        with pytest.raises(TimeoutError):
            await executor.execute(key, acts.charge, 5)
    acts.calls.clear()
    assert await executor.execute("a", acts.charge, 5, verify=say(Happened([1]))) == [1]
    assert await executor.execute("a", acts.charge, 5) == [1]
    assert acts.calls == []
    with pytest.raises(EffectUnknownError):
        await executor.execute("b", acts.charge, 5, verify=say(CANNOT_TELL))
    with pytest.raises(EffectUnknownError):
        await executor.execute("c", acts.charge, 5, verify=say("sure"))
    assert acts.calls == []
    assert (await executor.execute("d", acts.charge, 5, verify=say(NOT_HAPPENED)))["charged"] == 5
    assert acts.calls == [5]

    async def broken(key: str) -> Any:
        raise RuntimeError(f"cannot ask for {key}")

    with pytest.raises(EffectUnknownError) as caught:
        await executor.execute("e", acts.charge, 5, verify=broken)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert acts.calls == [5]


@everywhere
async def test_a_result_that_cannot_be_stored_is_a_success_without_result(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    acts.returns = {"socket": object()}
    with pytest.raises(ValueRefusedError, match="has been done") as caught:
        await executor.execute("k", acts.charge, 5)
    assert caught.value.path == "$.socket"
    with pytest.raises(ValueRefusedError, match="has been done"):
        await executor.execute("k", acts.charge, 5)
    effect = await store.effects.get("k")
    assert effect.status is EffectStatus.SUCCEEDED
    assert "could not be stored" in effect.error
    with pytest.raises(ValueRefusedError):
        await executor.execute("k", acts.charge, 5, verify=say(NOT_HAPPENED))
    assert await executor.execute("k", acts.charge, 5, verify=say(Happened("socket"))) == "socket"
    assert await executor.execute("k", acts.charge, 5) == "socket"
    assert acts.calls == [5]


@everywhere
async def test_an_empty_result_is_a_result(world: World) -> None:
    executor, acts = world.executor(world.open()), Acts()
    acts.returns = None
    assert await executor.execute("k", acts.charge, 5) is None
    assert await executor.execute("k", acts.charge, 5) is None
    assert acts.calls == [5]


@everywhere
async def test_bad_calls_are_refused_before_anything_is_written(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    for key in ("", " ", 5, None):
        with pytest.raises(UsageError):
            await executor.execute(key, acts.charge, 5)
    with pytest.raises(LimitExceededError):
        await executor.execute("k" * 256, acts.charge, 5)
    with pytest.raises(UsageError, match="cannot be called"):
        await executor.execute("k", acts.charge)
    with pytest.raises(UsageError, match="payload="):
        await executor.execute("k", acts.charge, object())
    with pytest.raises(UsageError, match="is a function"):
        await executor.execute("k", "charge", 5)
    with pytest.raises(ValueRefusedError):
        await executor.execute("k", acts.charge, 5, payload=object())
    for name in ("claim_seconds", "wait_seconds"):
        with pytest.raises(UsageError, match=name):
            world.executor(store, **{name: 0})
    with pytest.raises(UsageError, match="its own module"):
        world.executor("store")
    assert await store.effects.list() == []
    assert acts.calls == []


@everywhere
async def test_the_key_is_handed_to_the_act_if_it_takes_one(world: World) -> None:
    executor = world.executor(world.open())
    got: list[Any] = []

    async def last(amount: int, idempotency_key: str) -> None:
        got.append((amount, idempotency_key))

    async def first(idempotency_key: str, amount: int) -> None:
        got.append((amount, idempotency_key))

    async def only(amount: int, *, currency: str = "EUR", idempotency_key: str = "") -> None:
        got.append((amount, currency, idempotency_key))

    async def without(amount: int) -> None:
        got.append(amount)

    await executor.execute("a", last, 1)
    await executor.execute("b", first, 2)
    await executor.execute("c", functools.partial(only, currency="CHF"), 3)
    await executor.execute("d", without, 4)
    assert got == [(1, "a"), (2, "b"), (3, "CHF", "c"), 4]


@everywhere
async def test_an_act_that_asks_for_its_own_key_is_told_at_once(world: World) -> None:
    executor = world.executor(world.open())
    seen: list[BaseException] = []

    async def act() -> int:
        try:
            await executor.execute("k", act)
        except EffectInProgressError as error:
            seen.append(error)
        return 1

    assert await executor.execute("k", act) == 1
    assert len(seen) == 1


@awaited
async def test_fifty_tasks_one_execution(world: World) -> None:
    executor, acts = world.executor(world.open()), Acts()
    acts.gate = asyncio.Event()
    calls = [asyncio.create_task(executor.execute("k", acts.charge, 5)) for _ in range(50)]
    while not acts.calls:
        await asyncio.sleep(0)
    acts.gate.set()
    results = await asyncio.gather(*calls)
    assert results == [{"charged": 5, "key": "k"}] * 50
    assert len({id(result) for result in results}) == 50
    assert acts.calls == [5]


@everywhere
async def test_threads_and_store_objects_one_execution(world: World) -> None:
    acts = Acts()
    stores = [world.open() for _ in range(3)]

    async def job(number: int) -> Any:
        return await world.executor(stores[number % 3]).execute("k", acts.charge, 5)

    results = world.together(12, job)
    assert results == [{"charged": 5, "key": "k"}] * 12
    assert acts.calls == [5]


@everywhere
async def test_another_payload_is_refused_while_the_key_is_in_use(world: World) -> None:
    executor, acts = world.executor(world.open()), Acts()
    other = world.executor(world.open())
    refused: list[Exception] = []

    async def act(amount: int) -> int:
        for each in (executor, other):
            with pytest.raises(IdempotencyMismatchError) as caught:
                await each.execute("k", acts.charge, 5)
            refused.append(caught.value)
        return amount

    assert await executor.execute("k", act, 5) == 5
    assert len(refused) == 2
    assert acts.calls == []


@awaited
async def test_whoever_waits_for_a_failure_is_told_and_nobody_executes_again(world: World) -> None:
    store, beside, acts = world.open(), world.open(), Acts()
    await beside.effects.get("k")
    beside_backend = beside._engine.backend
    executor, other = world.executor(store), world.executor(beside)
    acts.gate = asyncio.Event()
    acts.raises = [ValueError("declined")]
    first = asyncio.create_task(executor.execute("k", acts.charge, 5))
    while not acts.calls:
        await asyncio.sleep(0)
    waits = asyncio.Event()
    waiting_for = beside_backend.wait

    async def wait(*args: Any) -> bool:
        waits.set()
        return bool(await waiting_for(*args))

    beside_backend.wait = wait
    waiting = [asyncio.create_task(each.execute("k", acts.charge, 5)) for each in (executor, other) * 3]
    await waits.wait()
    acts.gate.set()
    with pytest.raises(ValueError):
        await first
    for call in waiting:
        with pytest.raises(EffectFailedError, match="declined") as caught:
            await call
        assert caught.value.cause == "ValueError: declined"
    assert acts.calls == [5]


@everywhere
async def test_a_claim_that_ended_without_a_word_is_unknown(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    await abandon(store, "k", Acts.charge, claim_seconds=0.05)
    with pytest.raises(EffectUnknownError, match="neither recorded its end"):
        await executor.execute("k", acts.charge, 5, payload=0)
    assert (await store.effects.get("k")).status is EffectStatus.UNKNOWN
    assert acts.calls == []
    result = await executor.execute("k", acts.charge, 5, payload=0, verify=say(NOT_HAPPENED))
    assert result == {"charged": 5, "key": "k"}


@everywhere
async def test_waiting_ends_in_time(world: World) -> None:
    store, acts = world.open(), Acts()
    await abandon(store, "k", Acts.charge, claim_seconds=600)
    with pytest.raises(EffectInProgressError) as caught:
        await world.executor(store, wait_seconds=0.05).execute("k", acts.charge, 5, payload=0)
    assert 500 < caught.value.seconds_left <= 600
    assert (caught.value.key, caught.value.retryable) == ("k", False)
    assert (await store.effects.get("k")).seconds_left > 500
    assert [each.key for each in await store.effects.list(EffectStatus.EXECUTING)] == ["k"]
    assert acts.calls == []


@everywhere
async def test_a_slow_worker_cannot_settle(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    claim = await abandon(store, "k", Acts.charge, claim_seconds=0.05)
    assert (await executor.execute("k", acts.charge, 5, payload=0, verify=say(NOT_HAPPENED)))["charged"] == 5
    journal = getattr(store, "inner", store)._journal
    for status in (EffectStatus.SUCCEEDED, EffectStatus.FAILED, EffectStatus.UNKNOWN):
        assert await journal.settle(claim, status, error="late") is None
    await journal.free(claim)
    effect = await store.effects.get("k")
    assert (effect.status, effect.result) == (EffectStatus.SUCCEEDED, {"charged": 5, "key": "k"})


@everywhere
async def test_lost_replies_are_settled(world: World) -> None:
    for number in (1, 2):
        for when in ("before", "after"):
            faulty = LostReplies(world.backend(), {number: when})
            store, acts = world.over(faulty), Acts()
            key = f"{number} {when}"
            assert (await world.executor(store).execute(key, acts.charge, 5))["key"] == key
            assert acts.calls == [5]
            assert (await store.effects.get(key)).status is EffectStatus.SUCCEEDED


@everywhere
async def test_reconcile_asks_about_all_that_is_unknown(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    await executor.execute("done", acts.charge, 1)
    for key in ("a", "b", "c", "d"):
        acts.raises = [TimeoutError()]
        with pytest.raises(TimeoutError):
            await executor.execute(key, acts.charge, 5)
    await abandon(store, "ended", Acts.charge, claim_seconds=0.001)
    await abandon(store, "live", Acts.charge, claim_seconds=600)

    async def verify(key: str) -> Any:
        if key == "d":
            raise RuntimeError("no network")
        return {"a": Happened(1), "b": NOT_HAPPENED, "c": CANNOT_TELL, "ended": CANNOT_TELL}[key]

    while (await store.effects.get("ended")).status is EffectStatus.EXECUTING:
        await world.look_again()
    report = await store.effects.reconcile(verify=verify)
    assert report.happened == [("a", "")]
    assert report.not_happened == [("b", "")]
    assert report.unknown == [("c", ""), ("d", ""), ("ended", "")]
    assert report.live == [("live", "")]
    assert report.errors == {("d", ""): "RuntimeError: no network"}
    status = {each.key: each.status for each in await store.effects.list()}
    assert status == {
        "a": EffectStatus.SUCCEEDED,
        "b": EffectStatus.PENDING,
        "c": EffectStatus.UNKNOWN,
        "d": EffectStatus.UNKNOWN,
        "done": EffectStatus.SUCCEEDED,
        "ended": EffectStatus.UNKNOWN,
        "live": EffectStatus.EXECUTING,
    }
    calls = len(acts.calls)
    assert (await executor.execute("b", acts.charge, 5))["key"] == "b"
    assert len(acts.calls) == calls + 1
    assert (await store.effects.reconcile("c", verify=say(Happened(2)))).happened == [("c", "")]
    assert (await store.effects.reconcile()).unknown == [("d", ""), ("ended", "")]
    with pytest.raises(NotFoundError):
        await store.effects.reconcile("nothing")


@everywhere
async def test_resolve_says_what_became_of_it(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    for key in ("a", "b", "c"):
        acts.raises = [TimeoutError()]
        with pytest.raises(TimeoutError):
            await executor.execute(key, acts.charge, 5)
    acts.calls.clear()
    assert (await store.effects.resolve("a", EffectStatus.SUCCEEDED, {"by": "hand"})).result == {"by": "hand"}
    assert await executor.execute("a", acts.charge, 5) == {"by": "hand"}
    assert (await store.effects.resolve("b", EffectStatus.PENDING)).status is EffectStatus.PENDING
    assert (await executor.execute("b", acts.charge, 5))["key"] == "b"
    assert (await store.effects.resolve("c", EffectStatus.FAILED)).error == "TimeoutError"
    assert acts.calls == [5]
    await abandon(store, "live", Acts.charge, claim_seconds=600)
    for key, status, result in (
        ("a", EffectStatus.FAILED, None),
        ("live", EffectStatus.SUCCEEDED, 1),
        ("c", EffectStatus.UNKNOWN, None),
        ("c", "succeeded", None),
        ("c", EffectStatus.FAILED, 1),
    ):
        with pytest.raises(UsageError):
            await store.effects.resolve(key, status, result)
    with pytest.raises(NotFoundError):
        await store.effects.resolve("nothing", EffectStatus.FAILED)
    with pytest.raises(ValueRefusedError):
        await store.effects.resolve("c", EffectStatus.SUCCEEDED, object())
    with pytest.raises(UsageError):
        await store.effects.list("unknown")


@stepped
async def test_async_functions_are_refused_in_synchronous_code(world: World) -> None:
    store = world.open().inner
    executor = world.executor(store).inner
    acts = Acts()
    with pytest.raises(UsageError, match="async function"):
        executor.execute("k", acts.charge, 5)
    with pytest.raises(UsageError, match="is asynchronous"):
        executor.execute("k", lambda: acts.charge(5, "k"))
    assert store.effects.get("k") is None
    with pytest.raises(UsageError, match="async function"):
        executor.execute("k", threading.get_ident, verify=say(CANNOT_TELL))
    with pytest.raises(UsageError, match="async function"):
        store.effects.handler("email", acts.charge)
    assert acts.calls == []


@awaited
async def test_plain_functions_may_be_executed_in_asynchronous_code(world: World) -> None:
    executor = world.executor(world.open())
    assert await executor.execute("k", lambda: 5) == 5
    assert await executor.execute("k", lambda: 5) == 5
