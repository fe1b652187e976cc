"""Calls of a blocking driver, made in threads for callers that suspend: for event loops that an asynchronous driver
cannot run on (trio).

A call that no thread has begun is withdrawn when its caller is cancelled, and never happens. One that has begun is
waited for, and only then the cancellation goes on; if it was a commit, with a note that says how it ended.
"""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from interlock.errors import UsageError
from interlock.runtime import AsyncRuntime

T = TypeVar("T")


def stepped(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend. Raises what it raises, `UsageError` if it suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise UsageError("the blocking driver has suspended")


class Threads:
    """Up to ``count`` threads, made as they are needed."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, name)
        self._runtime = AsyncRuntime()

    async def run(self, coroutine: Coroutine[Any, Any, T], *, commits: bool) -> T:
        """The result of a coroutine that blocks, stepped in a thread. ``commits``: it may commit something."""
        waiter = self._runtime.waiter()
        future = self._pool.submit(stepped, coroutine)
        future.add_done_callback(lambda _: waiter.wake())
        try:
            await waiter.wait()
        except BaseException as interrupt:
            if future.cancel():
                coroutine.close()
                raise
            await waiter.wait_out()
            if commits:
                error = future.exception()
                ended = "returned" if error is None else f"raised {error!r}"
                interrupt.add_note(f"the commit had begun and was not abandoned: it {ended}")
            raise
        return future.result()

    def end(self) -> None:
        """Let the threads go, each after what it has begun."""
        self._pool.shutdown(wait=False)
