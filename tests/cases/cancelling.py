"""Cancelling a coroutine at a chosen point: at its first suspension, its second, and so on until there is none left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any


class Stepped:
    """An awaitable that runs a coroutine and cancels its task when that suspends for the ``at``-th time."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, times: int = 1) -> None:
        self._coroutine = coroutine
        self._at = at
        self._times = times
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._coroutine.__await__()
        task = asyncio.current_task()
        assert task is not None
        send: Callable[[], Any] = lambda: next(inner)  # noqa: E731
        while True:
            try:
                waited_for = send()
            except StopIteration as end:
                return end.value
            self.suspensions += 1
            if self._at <= self.suspensions < self._at + self._times:
                task.cancel()
            try:
                yield waited_for
            except BaseException as error:
                thrown = error
                send = lambda: inner.throw(thrown)  # noqa: E731, B023
            else:
                send = lambda: next(inner)  # noqa: E731


async def cancelled_at(
    at: int, coroutine: Coroutine[Any, Any, Any], times: int = 1
) -> tuple[Stepped, asyncio.Task[Any]]:
    """Run a coroutine as a task that is cancelled at its ``at``-th suspension (and the ``times - 1`` next ones)."""
    stepped = Stepped(coroutine, at, times)

    async def run() -> Any:
        return await stepped

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    return stepped, task


async def at_every_suspension(make: Callable[[int], Coroutine[Any, Any, Any]]) -> AsyncIterator[tuple[int, bool]]:
    """Run ``make(n)`` cancelled at its n-th suspension for n = 1, 2 ...; yields n and whether it was cancelled.

    Ends with the first run that needed no more than n - 1 suspensions, and so came to its end."""
    at = 0
    while True:
        at += 1
        stepped, task = await cancelled_at(at, make(at))
        if not task.cancelled():
            task.result()
        assert task.cancelled() or stepped.suspensions < at, "a cancellation was swallowed"
        yield at, task.cancelled()
        if stepped.suspensions < at:
            return
