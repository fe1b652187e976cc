"""Two bridges, so that the author of a backend writes it for one world only.

`Threaded` makes a backend that blocks usable by asynchronous callers: each call is stepped in a worker thread.
`Bridged` makes a backend that suspends usable by stepped callers: its calls run on an event loop in one background
thread. Both cost a change of threads for each call (tens of microseconds); a backend that can do better offers both
leaves itself.

Neither abandons a call half-way. When the caller is cancelled or interrupted, a call that nobody has begun is
withdrawn and never happens. One that has begun is waited for, and only then the cancellation goes on, with a note
that says how the call ended: a caller who is cancelled in the middle of a commit can still know whether it happened.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from interlock.errors import CommitUnknownError, UsageError
from interlock.model import (
    Author,
    Change,
    CommitRequest,
    Entry,
    Key,
    Page,
    Reading,
    Reply,
    Settled,
    Span,
    Token,
    TransactionId,
)
from interlock.ports import Backend, Runtime, Waiter
from interlock.runtime import AsyncRuntime, BlockingRuntime

T = TypeVar("T")

WORKERS: Final = 8
"""Threads of one `Threaded` backend for calls other than `wait`."""
WAITERS: Final = 64
"""Threads of one `Threaded` backend for `wait`; more waiting callers queue."""
GRACE_SECONDS: Final = 5.0
"""How long `Bridged` waits for a call that has begun, when its caller is interrupted."""
_SLICE_SECONDS: Final = 0.05


def _step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise UsageError("a backend that says it does not suspend has suspended")


def _ending(name: str, future: Future[Any]) -> str:
    """How a call ended that was not abandoned, for a note."""
    if not future.done():
        return f"{name} had begun and has not ended yet; it may or may not happen"
    error = None if future.cancelled() else future.exception()
    return f"{name} had begun and was not abandoned: it {'returned' if error is None else f'raised {error!r}'}"


class Delegate(ABC):
    """The methods of a backend, each handed to ``_call`` as a coroutine of the inner backend that has not begun."""

    def __init__(self, backend: Backend) -> None:
        self.inner = backend
        self.capabilities = backend.capabilities
        self.limits = backend.limits

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def __reduce__(self) -> Any:
        return type(self), (self.inner,)

    @abstractmethod
    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T: ...

    async def snapshot(self) -> Token:
        """See `interlock.ports.Backend`, as for the other methods."""
        return await self._call("snapshot", self.inner.snapshot())

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys."""
        return await self._call("read", self.inner.read(keys, at))

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Entries of a range."""
        return await self._call("scan", self.inner.scan(span, at, limit=limit, reverse=reverse))

    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply."""
        return await self._call("commit", self.inner.commit(request))

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction."""
        return await self._call("outcome", self.inner.outcome(transaction, fence=fence))

    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records."""
        return await self._call("changes", self.inner.changes(since, limit=limit))

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key."""
        return await self._call("history", self.inner.history(key, limit=limit))

    async def now(self) -> float:
        """The engine's clock."""
        return await self._call("now", self.inner.now())

    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop what is old."""
        return await self._call("compact", self.inner.compact(before, limit=limit))


class Threaded(Delegate):
    """A backend that blocks, for asynchronous callers on asyncio or trio.

    ``backend`` must not suspend. Safe to share between event loops; in a forked child it starts threads of its own.
    """

    suspends = True
    blocks = False

    def __init__(self, backend: Backend, *, runtime: Runtime | None = None) -> None:
        if backend.suspends:
            raise UsageError(f"{backend!r} suspends already and needs no threads")
        super().__init__(backend)
        self._runtime: Runtime = AsyncRuntime() if runtime is None else runtime
        self._closed = False
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._process = os.getpid()

    def _pool(self, kind: str, workers: int) -> ThreadPoolExecutor:
        if self._process != os.getpid():  # a forked child has none of its parent's threads
            self._process, self._pools = os.getpid(), {}
        pools = self._pools
        pool = pools.get(kind)
        return pools.setdefault(kind, ThreadPoolExecutor(workers, f"interlock-{kind}")) if pool is None else pool

    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            coroutine.close()
            raise UsageError("this store is closed")
        return await self._in_thread(name, "worker", WORKERS, coroutine)

    async def _in_thread(self, name: str, kind: str, workers: int, coroutine: Coroutine[Any, Any, T]) -> T:
        waiter = self._runtime.waiter()
        future = self._pool(kind, workers).submit(_step, coroutine)
        future.add_done_callback(lambda _: waiter.wake())
        try:
            await waiter.wait()
        except GeneratorExit:  # nobody will ever look at the answer, and nothing may be awaited here
            if future.cancel():
                coroutine.close()
            raise
        except BaseException as interrupt:
            if future.cancel():
                coroutine.close()
                raise
            try:
                await waiter.wait_out()
            except BaseException:  # cancelled once more; the first cancellation is the one that goes on
                pass
            interrupt.add_note(_ending(name, future))
            raise
        return future.result()

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait until something newer is committed; in short slices, so that a cancelled caller goes on soon."""
        deadline = self._runtime.monotonic() + timeout_seconds
        while True:
            if self._closed:
                raise UsageError("this store is closed")
            left = deadline - self._runtime.monotonic()
            slice_seconds = max(0.0, min(left, _SLICE_SECONDS))
            if await self._in_thread("wait", "waiter", WAITERS, self.inner.wait(since, slice_seconds, keys)):
                return True
            if left <= _SLICE_SECONDS:
                return False

    async def close(self) -> None:
        """Close the inner backend and let the threads go."""
        if not self._closed:
            await self._in_thread("close", "worker", WORKERS, self.inner.close())
            self._closed = True
            pools, self._pools = self._pools, {}
            for pool in pools.values():
                pool.shutdown(wait=False)

    def blocking(self) -> Backend:
        """The inner backend's own leaf."""
        return self.inner.blocking()


class _Call:
    """A call on its way to the loop and back."""

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any], waiter: Waiter) -> None:
        self.name = name
        self.coroutine = coroutine
        self.future: Future[Any] = Future()
        self.future.add_done_callback(lambda _: waiter.wake())
        self.task: asyncio.Task[Any] | None = None

    def end(self, task: asyncio.Task[Any]) -> None:
        """On the loop's thread: hand the result over."""
        if not task.cancelled():
            error = task.exception()
            if error is None:
                self.future.set_result(task.result())
            else:
                self.future.set_exception(error)
        elif self.name == "commit":
            self.future.set_exception(CommitUnknownError("the store was closed while the commit was under way"))
        else:
            self.future.set_exception(UsageError(f"the store was closed during {self.name}"))

    def cancel(self) -> None:
        """On the loop's thread: end it before its time."""
        if self.task is not None:
            self.task.cancel()


class _Loop:
    """An event loop in a background thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process = os.getpid()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.thread = threading.Thread(target=self._run, name="interlock-loop", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def begin(self, call: _Call) -> None:
        """On the loop's thread: begin a call, unless its caller has withdrawn it."""
        if not call.future.set_running_or_notify_cancel():
            call.coroutine.close()
            return
        call.task = task = self.loop.create_task(call.coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(call.end)

    def stop(self) -> None:
        """End the thread; what still goes on is cancelled."""
        try:
            self.loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # closed already
            pass

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        ending = asyncio.gather(*self._tasks, return_exceptions=True)
        ending.add_done_callback(lambda _: self.loop.stop())


class Bridged(Delegate):
    """A backend that suspends, for stepped callers: one background thread runs an event loop for it.

    ``backend`` must not be used by anybody else: what belongs to an event loop belongs to that one loop. Refuses in a
    forked child, which has no such thread.
    """

    suspends = False
    blocks = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._runtime = BlockingRuntime()
        self._closed = False
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def _begin(self, call: _Call) -> None:
        """Have the loop begin a call. Under the lock, so that closing comes before or after."""
        with self._lock:
            if self._closed:
                raise UsageError("this store is closed")
            if self._loop is None:
                self._loop = _Loop()
                weakref.finalize(self, self._loop.stop)
            if self._loop.process != os.getpid():
                raise UsageError("this store was opened before os.fork(); open one in the child")
            self._loop.loop.call_soon_threadsafe(self._loop.begin, call)

    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        waiter = self._runtime.waiter()
        call = _Call(name, coroutine, waiter)
        try:
            self._begin(call)
            await waiter.wait()
        except BaseException as interrupt:
            if call.future.cancel():
                coroutine.close()
                raise
            loop = self._loop
            if name == "wait" and loop is not None:
                loop.loop.call_soon_threadsafe(call.cancel)
            await waiter.wait(GRACE_SECONDS)
            interrupt.add_note(_ending(name, call.future))
            raise
        result: T = call.future.result()
        return result

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait until something newer is committed."""
        return await self._call("wait", self.inner.wait(since, timeout_seconds, keys))

    async def close(self) -> None:
        """Close the inner backend, then end the loop and its thread."""
        if not self._closed:
            await self._call("close", self.inner.close())
            with self._lock:
                self._closed = True
                loop, self._loop = self._loop, None
            if loop is not None:
                loop.stop()
                loop.thread.join()

    def blocking(self) -> Bridged:
        """Itself."""
        return self
