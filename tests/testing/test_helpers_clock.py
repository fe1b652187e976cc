"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio

import interlock
from interlock import sync as il
from interlock import testing
from interlock.ports import Waiter
from interlock.testing import Clock
from interlock.testing import sync as in_sync
from interlock.testing.clock import START_SECONDS

DAY_SECONDS = 86_400.0


async def bump(session: interlock.AgentSession[int], key: str) -> int:
    return await session.update(key, lambda count: count + 1, 0)


def bump_now(session: il.AgentSession[int], key: str) -> int:
    return session.update(key, lambda count: count + 1, 0)


async def until(condition: Callable[[], bool], give_way: Callable[[], Awaitable[object]]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await give_way()
    raise AssertionError("it does not come to pass")


# --- what a store does with it ----------------------------------------------------------------------------------------


def test_time_is_the_engines_and_stands_still() -> None:
    clock = Clock()
    with in_sync.open_store(clock=clock) as store:
        counts = store.resource("counts", int)
        for seconds in (0, 0, 90):
            clock.advance(seconds)
            counts.run(bump_now, "a")
        begin = datetime.fromtimestamp(START_SECONDS, UTC)
        assert [change.at - begin for change in in_sync.commits(store)] == [timedelta(seconds=s) for s in (0, 0, 90)]


def test_idempotency_records_expire() -> None:
    clock = Clock()
    with in_sync.open_store(clock=clock) as store:
        counts = store.resource("counts", int)
        assert counts.run(bump_now, "a", idempotency_key="order-42") == 1
        clock.advance(29 * DAY_SECONDS)
        assert counts.run_detailed(bump_now, "a", idempotency_key="order-42").replayed
        clock.advance(2 * DAY_SECONDS)
        assert counts.run(bump_now, "a", idempotency_key="order-42") == 2


def test_history_grows_old() -> None:
    clock = Clock()
    with in_sync.open_store(clock=clock) as store:
        counts = store.resource("counts", int)
        counts.run(bump_now, "a")
        cursor = store.log.head()
        counts.run(bump_now, "a")
        clock.advance(2 * DAY_SECONDS)
        counts.run(bump_now, "a")
        assert store.compact() > 0
        with pytest.raises(interlock.SnapshotTooOldError):
            list(store.log.changes(cursor))


def test_deadlines() -> None:
    clock = Clock()

    def think(session: il.AgentSession[int]) -> None:
        session.write("a", 1)
        clock.advance(6)

    with in_sync.open_store(clock=clock) as store:
        counts = store.resource("counts", int)
        with pytest.raises(interlock.DeadlineExceededError):
            counts.run(think, timeout_seconds=5)
        counts.run(think, timeout_seconds=7)


def test_ids_replay() -> None:
    def ids(seed: int) -> list[str]:
        with in_sync.open_store(clock=Clock(seed=seed)) as store:
            counts = store.resource("counts", int)
            with testing.conflicts(store, times=2):
                counts.run(bump_now, "a")
            return [change.transaction_id for change in store.log.changes()]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_two_stores_of_one_name_share_a_clock() -> None:
    clock = Clock()
    url = "memory://two-stores-of-one-clock"
    with in_sync.open_store(url, clock=clock) as one, in_sync.open_store(url, clock=clock) as other:
        one.resource("counts", int).run(bump_now, "a")
        assert other.resource("counts", int).run(bump_now, "a") == 2
        with pytest.raises(interlock.UsageError, match="another clock"):
            in_sync.open_store(url, clock=Clock())


def test_sleeping_between_attempts_moves_a_blocking_clock() -> None:
    clock = Clock()
    policy = interlock.RetryPolicy(base_seconds=10, cap_seconds=10)
    with in_sync.open_store(clock=clock, retry=policy) as store, testing.conflicts(store, times=4):
        store.resource("counts", int).run(bump_now, "a")
    assert 0 < clock.time() - START_SECONDS < 40


def test_sleeping_between_attempts_waits_for_a_suspending_clock() -> None:
    clock = Clock()
    policy = interlock.RetryPolicy(base_seconds=10, cap_seconds=10)

    async def main() -> None:
        async with testing.open_store(clock=clock, retry=policy) as store:
            with testing.conflicts(store, times=2):
                task = asyncio.create_task(store.resource("counts", int).run(bump, "a"))
                await until(lambda: clock.sleeping == 1, lambda: asyncio.sleep(0))
                assert not task.done()
                clock.advance(10)
                assert await task == 1
        assert clock.sleeping == 0

    asyncio.run(main())


@pytest.mark.parametrize("url", ["sqlite:///x.db", "memory://name/path", "nosuch://"])
def test_only_memory_stores_live_by_a_clock(url: str) -> None:
    for opener in (testing.open_store, in_sync.open_store):
        with pytest.raises(interlock.UsageError, match="Clock"):
            opener(url, clock=Clock())


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", True])
def test_steps_are_checked(seconds: Any) -> None:
    with pytest.raises(interlock.UsageError, match="advanced"):
        Clock().advance(seconds)


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_log_wait_times_out_by_the_clock() -> None:
    clock = Clock()

    async def main() -> None:
        async with testing.open_store(clock=clock) as store:
            head = await store.log.head()
            waiting = asyncio.create_task(store.log.wait(head, timeout_seconds=5))
            await until(lambda: clock.sleeping == 1, lambda: asyncio.sleep(0))
            clock.advance(4.5)
            await asyncio.sleep(0)
            assert not waiting.done()
            clock.advance(0.5)
            assert await waiting is False

            waiting = asyncio.create_task(store.log.wait(head, timeout_seconds=5))
            await until(lambda: clock.sleeping == 1, lambda: asyncio.sleep(0))
            await store.resource("counts", int).run(bump, "a")
            assert await waiting is True
            assert clock.sleeping == 0

    asyncio.run(main())


def test_sleepers_wake_in_their_time_on_both_loops() -> None:
    async def on_asyncio() -> None:
        clock = Clock()
        runtime = clock.runtime(suspends=True)
        woken: list[int] = []

        async def sleeper(seconds: int) -> None:
            await runtime.sleep(seconds)
            woken.append(seconds)

        tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
        await until(lambda: clock.sleeping == 3, lambda: asyncio.sleep(0))
        for seconds in (1, 2, 3):
            clock.advance(1)
            await until(lambda seconds=seconds: len(woken) == seconds, lambda: asyncio.sleep(0))  # type: ignore[misc]
        assert woken == [1, 2, 3]
        await asyncio.gather(*tasks)

    async def on_trio() -> None:
        clock = Clock()
        runtime = clock.runtime(suspends=True)
        woken: list[int] = []

        async def sleeper(seconds: int) -> None:
            await runtime.sleep(seconds)
            woken.append(seconds)

        async with trio.open_nursery() as nursery:
            for seconds in (3, 1, 2):
                nursery.start_soon(sleeper, seconds)
            await until(lambda: clock.sleeping == 3, trio.lowlevel.checkpoint)
            for seconds in (1, 2, 3):
                clock.advance(1)
                await until(lambda seconds=seconds: len(woken) == seconds, trio.lowlevel.checkpoint)  # type: ignore[misc]
        assert woken == [1, 2, 3]

    asyncio.run(on_asyncio())
    trio.run(on_trio)


def test_a_cancelled_sleeper_is_forgotten() -> None:
    async def main() -> None:
        clock = Clock()
        task = asyncio.create_task(clock.runtime(suspends=True).sleep(10))  # type: ignore[arg-type]
        await until(lambda: clock.sleeping == 1, lambda: asyncio.sleep(0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert clock.sleeping == 0
        clock.advance(10)

    asyncio.run(main())


def test_waiters_keep_what_ports_promise() -> None:
    """Woken before waiting is remembered, twice is once, a time-out may be followed by another wait, from any
    thread."""

    async def main() -> None:
        clock = Clock()
        waiter: Waiter = clock.runtime(suspends=True).waiter()
        assert await waiter.wait(0) is False
        waiter.wake()
        waiter.wake()
        assert await waiter.wait(0) is True
        assert await waiter.wait() is True
        await waiter.wait_out()

        other = clock.runtime(suspends=True).waiter()
        threading.Timer(0.01, other.wake).start()
        assert await other.wait(shielded=True) is True

    asyncio.run(main())


def test_a_blocked_thread_waits_for_the_clock() -> None:
    clock = Clock()
    with in_sync.open_store(clock=clock) as store:
        head = store.log.head()
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(store.log.wait(head, timeout_seconds=5)))
        thread.start()
        while not clock.sleeping:
            thread.join(0.001)
        clock.advance(5)
        thread.join(30)
        assert answers == [False]
