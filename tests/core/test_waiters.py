"""Waiters of an event loop: woken once and for all, whoever wakes them and whatever ends a wait before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from interlock.runtime import AsyncioWaiter, wake_all


def in_loop(body: Callable[[AsyncioWaiter], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await body(AsyncioWaiter(asyncio.get_running_loop()))

    asyncio.run(run())


def test_a_task_of_the_same_loop_wakes_at_once() -> None:
    async def body(waiter: AsyncioWaiter) -> None:
        task = asyncio.ensure_future(waiter.wait(30.0))
        await asyncio.sleep(0)
        waiter.wake()
        await asyncio.sleep(0)
        assert task.done()
        assert await task

    in_loop(body)


@pytest.mark.parametrize("wake", [AsyncioWaiter.wake, lambda waiter: wake_all([waiter])], ids=["one", "many"])
def test_between_tasks_the_loop_itself_is_woken(
    wake: Callable[[AsyncioWaiter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler of a signal runs there while the loop sleeps: what it resolves would be seen by nobody."""

    async def body(waiter: AsyncioWaiter) -> None:
        loop, entered = waiter.loop, []
        enter = loop.call_soon_threadsafe

        def note(*call: Any, **named: Any) -> asyncio.Handle:
            entered.append(call)
            return enter(*call, **named)

        monkeypatch.setattr(loop, "call_soon_threadsafe", note)
        wake(waiter)
        assert await waiter.wait(30.0)
        assert not entered
        other = AsyncioWaiter(loop)
        loop.call_soon(wake, other)
        assert await other.wait(30.0)
        assert len(entered) == 1

    in_loop(body)


def test_another_thread_wakes() -> None:
    async def body(waiter: AsyncioWaiter) -> None:
        thread = threading.Thread(target=waiter.wake)
        thread.start()
        assert await waiter.wait(30.0)
        thread.join()

    in_loop(body)


def test_a_wait_that_ran_out_may_be_tried_again() -> None:
    async def body(waiter: AsyncioWaiter) -> None:
        assert not await waiter.wait(0.0)
        assert not await waiter.wait(0.001)
        waiter.wake()
        assert await waiter.wait(0.0)
        assert await waiter.wait()

    in_loop(body)


@pytest.mark.parametrize("seconds", [None, 30.0])
@pytest.mark.parametrize("woken", ["before", "after"])
def test_a_cancelled_wait_may_be_tried_again(seconds: float | None, woken: str) -> None:
    async def body(waiter: AsyncioWaiter) -> None:
        task = asyncio.ensure_future(waiter.wait(seconds))
        await asyncio.sleep(0)
        if woken == "before":
            waiter.wake()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if woken == "after":
            assert not await waiter.wait(0.0)
            waiter.wake()
        assert await waiter.wait(seconds)

    in_loop(body)


def test_a_shielded_wait_ends_by_being_woken_or_by_the_time() -> None:
    async def body(waiter: AsyncioWaiter) -> None:
        task = asyncio.ensure_future(waiter.wait(30.0, shielded=True))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        waiter.wake()
        assert await task
        other = AsyncioWaiter(waiter.loop)
        task = asyncio.ensure_future(other.wait(0.001, shielded=True))
        await asyncio.sleep(0)
        task.cancel()
        assert not await task

    in_loop(body)
