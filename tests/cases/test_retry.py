"""Cases of kind retry: what is run again, what never is, how often, and what the caller gets to see in the end."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from typing import Any

import pytest

from cases.faults import Broken
from cases.support import World, awaited, everywhere, increment, put, rows, step, stepped
from interlock import (
    BackendUnavailableError,
    ConflictError,
    DeadlineExceededError,
    ReadConflict,
    RetriesExhaustedError,
    RetryPolicy,
)
from interlock.core.retry import backoff_seconds
from interlock.gates import HOLD_SECONDS


@stepped
async def test_R027_signals_end_the_call_at_once(world: World) -> None:
    stock = world.open().resource("stock")
    for signal in (KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError()):
        attempts: list[int] = []

        async def body(session: Any, signal: BaseException = signal, attempts: list[int] = attempts) -> None:
            attempts.append(session.attempt)
            await session.write("k", "of an interrupted body")
            raise signal

        with pytest.raises(type(signal)) as caught:
            await stock.run(body)
        assert caught.value is signal
        assert attempts == [1]
        assert await stock.read("k") is None
        await stock.run(put, "next", repr(signal))
    assert len(await rows(stock.scan())) == 1


def test_R027_signals_end_an_async_call_at_once() -> None:
    import interlock

    store = interlock.open("memory://", agent="tester")  # never suspends, so it can be driven without a loop
    stock = store.resource("stock")
    for signal in (KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()):
        attempts: list[int] = []

        async def body(session: Any, signal: BaseException = signal, attempts: list[int] = attempts) -> None:
            attempts.append(session.attempt)
            await session.write("k", "of an interrupted body")
            raise signal

        with pytest.raises(type(signal)):
            step(stock.run(body))
        assert attempts == [1]
        assert step(stock.read("k")) is None
    step(store.close())


@awaited
async def test_R027_a_cancelled_task_is_not_run_again(world: World) -> None:
    stock = world.open().resource("stock")
    inside = asyncio.Event()
    attempts: list[int] = []

    async def body(session: Any) -> None:
        attempts.append(session.attempt)
        await session.write("k", "of a cancelled body")
        inside.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(stock.run(body))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert attempts == [1]
    assert await stock.read("k") is None


@awaited
async def test_R027_a_cancellation_that_comes_with_a_conflict_is_not_run_again(world: World) -> None:
    stock = world.open().resource("stock")
    await stock.run(put, "k", 1)
    attempts: list[int] = []

    async def body(session: Any) -> None:
        attempts.append(session.attempt)
        await session.read("k")
        await stock.run(put, "k", 2, detached=True)
        group = BaseExceptionGroup("both", [ReadConflict("stale"), asyncio.CancelledError()])
        raise group

    with pytest.raises(BaseExceptionGroup):
        await stock.run(body)
    assert attempts == [1]


@everywhere
async def test_R028_what_losing_attempts_stage_is_dropped(world: World) -> None:
    store, rival = world.open(), world.open()
    state = store.resource("state")
    sent: list[int] = []

    async def send(payload: int) -> None:
        sent.append(payload)

    async def body(session: Any) -> None:
        await session.stage("mail", session.attempt, key=f"attempt {session.attempt}")
        value = await session.read("hot", 0)
        if session.attempt < 3:
            await rival.resource("state").run(increment, "hot", detached=True)
        await session.write("hot", value + 1)

    store.effects.handler("mail", send)
    await state.run(body)
    await store.effects.dispatch()
    assert sent == [3]


@everywhere
async def test_R028_only_the_winning_attempt_counts(world: World) -> None:
    state = world.open().resource("state")
    outer: list[int] = []
    paid: list[int] = []

    async def pay(amount: int) -> int:
        paid.append(amount)
        return 7 * amount

    async def body(session: Any) -> int:
        outer.append(session.attempt)  # a captured list is the caller's own business
        await session.append("log", "once")
        await session.add("total", 1)
        answer: int = await session.memo(pay, 6)
        await increment(session, "hot")
        if session.attempt < 3:
            await state.run(put, "hot", session.attempt, detached=True)
        return answer

    done = await state.run_detailed(body)
    assert (done.value, done.attempts) == (42, 3)
    assert paid == [6], "a call that was paid for is not paid again"
    assert outer == [1, 2, 3]
    assert await rows(state.scan()) == [("hot", 3), ("log", ["once"]), ("total", 1)]


@everywhere
async def test_R030_a_failing_roll_back_does_not_hide_the_error(world: World) -> None:
    broken = Broken(world.backend())
    stock = world.over(broken).resource("stock")

    async def body(session: Any, error: Exception) -> None:
        await session.write("k", await session.read("k", 0) + 1)
        broken.broken.append(BackendUnavailableError("the connection is gone"))
        raise error

    for error in (ValueError("the body's own"), TimeoutError("the body's own")):
        with pytest.raises(type(error)) as caught:
            await stock.run(body, error)
        assert caught.value is error
        broken.broken.clear()
        with pytest.raises(type(error)) as caught:
            async with stock.session() as session:
                await body(session, error)
        assert caught.value is error
        broken.broken.clear()
    assert await stock.read("k") is None


@everywhere
async def test_R030_an_error_after_a_swallowed_one_is_the_body_s_own(world: World) -> None:
    stock = world.open().resource("stock")

    async def body(session: Any) -> None:
        try:
            await session.write("k", object())
        except Exception:
            raise ValueError("the body's own") from None

    with pytest.raises(ValueError, match="the body's own"):
        await stock.run(body)


@awaited
async def test_R030_a_time_out_in_the_body_stays_a_time_out(world: World) -> None:
    broken = Broken(world.backend())
    stock = world.over(broken).resource("stock")

    async def body(session: Any) -> None:
        await session.write("k", 1)
        broken.broken.append(BackendUnavailableError("the connection is gone"))
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await stock.run(body)


@awaited
async def test_R031_fifty_writers_of_one_hot_key_all_finish(world: World) -> None:
    stock = world.open().resource("stock")

    async def think_and_add(session: Any) -> None:
        value = await session.read("hot", 0)
        await asyncio.sleep(0)
        await session.write("hot", value + 1)

    async def writer(number: int) -> int:
        return (await stock.run_detailed(think_and_add, agent=f"writer {number}")).attempts

    attempts = await asyncio.gather(*map(writer, range(50)))
    assert await stock.read("hot") == 50
    assert max(attempts) <= RetryPolicy().max_attempts
    assert sum(attempts) <= 4 * 50, "the losers queue for the key instead of meeting again and again"


@stepped
async def test_R031_fifty_threads_on_one_hot_key_all_finish(world: World) -> None:
    stock = world.open().resource("stock")
    attempts = world.together(50, lambda number: stock.run_detailed(increment, "hot", agent=f"writer {number}"))
    assert await stock.read("hot") == 50
    assert max(done.attempts for done in attempts) <= RetryPolicy().max_attempts


@everywhere
async def test_R031_a_detached_transaction_does_not_queue_behind_its_own_caller(world: World) -> None:
    stock = world.open().resource("stock")
    held: list[float] = []

    async def body(session: Any) -> None:
        await session.read("hot")
        if session.attempt == 1:
            await stock.run(put, "hot", 1, detached=True)
        else:  # this attempt has its turn at the hot key
            begun = time.monotonic()
            await stock.run(increment, "hot", detached=True)
            held.append(time.monotonic() - begun)
            return
        await session.write("hot", -1)

    await stock.run(body)
    assert held[0] < HOLD_SECONDS / 2
    assert await stock.read("hot") == 2


def test_R031_waits_grow_are_random_and_capped() -> None:
    policy = RetryPolicy(base_seconds=0.01, cap_seconds=1)
    longest = [backoff_seconds(policy, failures, lambda low, high: high) for failures in range(1, 40)]
    assert longest[:5] == [0.0, 0.01, 0.02, 0.04, 0.08]
    assert longest == sorted(longest)
    assert max(longest) == policy.cap_seconds
    dice = random.Random(1)
    waits = [backoff_seconds(policy, 8, dice.uniform) for _ in range(200)]
    assert len(set(waits)) == 200
    assert 0 <= min(waits) < 0.1 < 0.5 < max(waits) <= 0.64, "full jitter: from nothing up to the present limit"


@everywhere
async def test_R031_the_total_time_is_bounded(world: World) -> None:
    stock = world.open().resource("stock")

    async def always_late(session: Any) -> None:
        await session.read("hot")
        await stock.run(put, "hot", session.attempt, detached=True)
        await session.write("hot", -1)

    await stock.run(put, "hot", 0)  # connecting is not what is bounded here
    seconds = 1.0 if world.is_server else 0.2
    policy = RetryPolicy(max_attempts=1_000_000, max_seconds=seconds, base_seconds=0.01, cap_seconds=0.01)
    with pytest.raises(RetriesExhaustedError) as caught:
        await stock.run(always_late, retry=policy)
    assert 1 < caught.value.attempts < 10_000
    with pytest.raises(DeadlineExceededError):
        await stock.run(always_late, timeout_seconds=0.2, retry=RetryPolicy(max_attempts=1_000_000, base_seconds=0.01))


@everywhere
async def test_R032_a_conflict_that_only_the_commit_finds_is_retried(world: World) -> None:
    """On a context's exit, too: nothing in the body has failed."""
    stock = world.open().resource("stock")
    reached: list[str] = []

    async def body(session: Any) -> str:
        await session.write("copy", await session.read("k", 0))
        if session.attempt == 1:
            await stock.run(put, "k", 1, detached=True)
        reached.append("end of the body")
        return "done"

    assert await stock.run(body) == "done"
    assert len(reached) == 2
    assert await stock.read("copy") == 1

    numbers = []
    async for attempt in stock.attempts():
        async with attempt, attempt.session() as session:
            numbers.append(session.attempt)
            await session.write("copy", await session.read("k", 0))
            if session.attempt == 1:
                await stock.run(put, "k", 2, detached=True)
    assert numbers == [1, 2]
    assert await stock.read("copy") == 2

    if world.awaits:

        @stock.transactional()
        async def copy(session: Any) -> int:
            await session.write("copy", await session.read("k", 0))
            if session.attempt == 1:
                await stock.run(put, "k", 3, detached=True)
            return int(session.attempt)

    else:

        @stock.inner.transactional()
        def copy(session: Any) -> int:
            session.write("copy", session.read("k", 0))
            if session.attempt == 1:
                stock.inner.run(lambda other: other.write("k", 3), detached=True)
            return int(session.attempt)

    answer = copy()
    assert (await answer if world.awaits else answer) == 2
    assert await stock.read("copy") == 3


@awaited
async def test_R034_conflicts_in_an_exception_group(world: World) -> None:
    stock = world.open().resource("stock")
    attempts: list[int] = []

    async def overtaken(session: Any) -> None:
        await session.read("k")
        if session.attempt == 1:
            await stock.run(put, "k", "changed", detached=True)
        await session.check()

    async def in_groups(session: Any) -> str:
        attempts.append(session.attempt)
        async with asyncio.TaskGroup() as outer:
            outer.create_task(in_group(session))
        return "done"

    async def in_group(session: Any) -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(overtaken(session))

    assert await stock.run(in_groups) == "done"
    assert attempts == [1, 2]

    async def with_another_error(session: Any) -> None:
        attempts.append(session.attempt)
        errors: list[Exception] = [LookupError("not a conflict")]
        try:
            await overtaken(session)
        except ConflictError as error:
            errors.append(error)
        raise ExceptionGroup("of a task group", errors)

    attempts.clear()
    with pytest.raises(ExceptionGroup) as caught:
        await stock.run(with_another_error)
    assert attempts == [1]
    assert caught.group_contains(LookupError)
    assert caught.group_contains(ReadConflict)


@everywhere
async def test_R035_a_key_that_always_conflicts(world: World) -> None:
    stock = world.open(retry=RetryPolicy(max_attempts=4, base_seconds=0.001)).resource("stock")
    attempts: list[int] = []

    async def always_late(session: Any) -> None:
        attempts.append(session.attempt)
        await session.read("hot")
        await stock.run(put, "hot", session.attempt, detached=True, agent="rival")
        await session.write("hot", -1)

    with pytest.raises(RetriesExhaustedError) as caught:
        await stock.run(always_late)
    error = caught.value
    assert attempts == [1, 2, 3, 4]
    assert error.attempts == 4
    assert isinstance(error.last, ReadConflict)
    assert error.last.conflicts[0].key == "hot"
    assert error.last.conflicts[0].committed_by == "rival"
    assert error.__cause__ is error.last
    assert not error.retryable
    assert "4 attempts" in str(error)
    assert "'hot'" in str(error)
    assert "rival" in error.explain()
    assert "hot" in "".join(traceback.format_exception(error))
    assert await stock.read("hot") == 4
