"""The two worlds: waiting by suspending (asyncio, trio) and waiting by blocking.

Each is a `interlock.ports.Runtime`. Nothing else in the library knows about event loops. `wake_all` wakes many
waiters with one call into each event loop, which is what makes group commit cheap: waking a loop costs a system call,
and a batch of 32 commits pays it once.

A waiter is made and waited for by one caller and woken by any thread. Waking before waiting is remembered, waking
twice is the same as once, and waking after the caller has gone (cancelled, its loop closed) does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from interlock.background import AsyncioCanceller, AsyncioJob, ThreadJob, TrioCanceller, TrioJob
from interlock.errors import UsageError
from interlock.ports import Canceller, Job, Runtime, Waiter

_SLICE_SECONDS = 0.05
_NOTHING: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


class _Randomness:
    """A generator of its own, seeded again in a forked child so that parent and child never share ids."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(os.urandom(32) if seed is None else seed)
        self.random_bits = self._random.getrandbits
        self.uniform = self._random.uniform

    def reseed(self) -> None:
        self._random.seed(os.urandom(32))


_shared = _Randomness()
os.register_at_fork(after_in_child=_shared.reseed)


class BlockingWaiter:
    """Blocks the calling thread on a lock of its own.

    A new lock for each waiter: one that is used again could be released late, for a job that was given up before. The
    flag is for a caller who is interrupted between getting the lock and knowing it: the next wait ends at once."""

    __slots__ = ("_lock", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Let the waiting thread go on."""
        self._woken = True
        try:
            self._lock.release()
        except RuntimeError:  # woken before
            pass

    async def wait(self, timeout_seconds: float | None = None, *, shielded: bool = False) -> bool:
        """Block until woken; a signal handler may raise out of it at any time."""
        if not self._woken:
            self._lock.acquire(timeout=-1 if timeout_seconds is None else max(0.0, timeout_seconds))
        return self._woken

    async def wait_out(self) -> None:
        """Block until woken; an interrupt is raised only then."""
        interrupt: BaseException | None = None
        while True:
            try:
                await self.wait()
                break
            except BaseException as error:
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt


class BlockingRuntime:
    """Synchronous programs: waiting blocks the thread, in slices where it cannot be interrupted."""

    suspends = False

    def __init__(self, seed: int | None = None) -> None:
        randomness = _shared if seed is None else _Randomness(seed)
        self.random_bits = randomness.random_bits
        self.uniform = randomness.uniform

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def shield(self) -> contextlib.AbstractContextManager[object]:
        """Nothing: an interrupt is raised once."""
        return _NOTHING

    async def sleep(self, seconds: float) -> None:
        """Block the thread, in slices of 50 ms so that Ctrl-C is prompt."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_SECONDS))

    def waiter(self) -> Waiter:
        """A waiter that blocks."""
        return BlockingWaiter()

    def wake_all(self, waiters: Iterable[Waiter]) -> None:
        """One after another."""
        wake_all(waiters)

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Job:
        """A daemon thread that steps the work."""
        return ThreadJob(name, work)

    def blocking(self) -> Runtime:
        """Itself."""
        return self

    def canceller(self) -> Canceller | None:
        """None: a thread cannot be cancelled."""
        return None


class AsyncioWaiter:
    """Suspends a task of an asyncio loop."""

    __slots__ = ("_future", "_woken", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._future: asyncio.Future[None] = loop.create_future()
        self._woken = False

    def resolve(self) -> None:
        """On the loop's own thread."""
        self._woken = True
        if not self._future.done():
            self._future.set_result(None)

    def wake(self) -> None:
        """Let the waiting task go on; from a task of the same loop that is one call."""
        loop = self.loop
        try:
            if loop is _busy_loop():
                self.resolve()
            else:
                loop.call_soon_threadsafe(self.resolve)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    async def wait(self, timeout_seconds: float | None = None, *, shielded: bool = False) -> bool:
        """Suspend until woken. The future that is waited for ends by being woken, by the time, or by the caller's
        cancellation; in the last two cases it is replaced, so that the waiter can be used once more. (`asyncio.wait`
        and `asyncio.shield` would do the same for several microseconds of every wait, and another turn of the loop.)"""
        if self._woken and self._future.done():
            return True
        timer = None if timeout_seconds is None else self.loop.call_later(max(0.0, timeout_seconds), self._expire)
        try:
            while True:
                try:
                    await self._future
                    return self._woken
                except asyncio.CancelledError:
                    if not shielded or timer is None:
                        raise
                    # Counted by the task all the same; what goes on is the cancellation that came first.
                    self._renew()
        finally:
            if timer is not None:
                timer.cancel()
            if not self._woken or self._future.cancelled():  # else there is nothing to renew
                self._renew()

    def _expire(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def _renew(self) -> None:
        """Have a future again that only being woken ends, or has ended."""
        future = self._future
        if future.cancelled() or (future.done() and not self._woken):
            self._future = self.loop.create_future()
            if self._woken:
                self._future.set_result(None)

    async def wait_out(self) -> None:
        """Suspend until woken; a cancellation is raised only then."""
        cancelled: asyncio.CancelledError | None = None
        while not self._future.done():
            try:
                await asyncio.shield(self._future)
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is not None:
            raise cancelled


class TrioWaiter:
    """Suspends a task of a trio run."""

    __slots__ = ("_event", "_token", "_trio")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._event = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def wake(self) -> None:
        """Let the waiting task go on."""
        try:
            self._token.run_sync_soon(self._event.set, idempotent=True)
        except self._trio.RunFinishedError:  # nobody waits any more
            pass

    async def wait(self, timeout_seconds: float | None = None, *, shielded: bool = False) -> bool:
        """Suspend until woken."""
        if timeout_seconds is None and not shielded:
            await self._event.wait()
            return True
        seconds = float("inf") if timeout_seconds is None else timeout_seconds
        with self._trio.CancelScope(deadline=self._trio.current_time() + seconds, shield=shielded):
            await self._event.wait()
        return bool(self._event.is_set())

    async def wait_out(self) -> None:
        """Suspend until woken; a cancellation is raised at the next checkpoint."""
        with self._trio.CancelScope(shield=True):
            await self._event.wait()


class AsyncRuntime:
    """Asynchronous programs, on asyncio or trio: whichever runs in the calling thread."""

    suspends = True

    def __init__(self, seed: int | None = None) -> None:
        randomness = _shared if seed is None else _Randomness(seed)
        self.random_bits = randomness.random_bits
        self.uniform = randomness.uniform

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def shield(self) -> contextlib.AbstractContextManager[object]:
        """With trio, where a cancelled scope ends every wait inside it, a shielded one; with asyncio, where a
        cancellation is raised once, nothing."""
        if _asyncio_loop() is not None:
            return _NOTHING
        scope: contextlib.AbstractContextManager[object] = _running_trio().CancelScope(shield=True)
        return scope

    async def sleep(self, seconds: float) -> None:
        """Suspend the task."""
        if _asyncio_loop() is not None:
            await asyncio.sleep(seconds)
        else:
            await _running_trio().sleep(seconds)

    def waiter(self) -> Waiter:
        """A waiter of the loop that runs in this thread. Raises `UsageError` where none does."""
        loop = _asyncio_loop()
        return TrioWaiter(_running_trio()) if loop is None else AsyncioWaiter(loop)

    def wake_all(self, waiters: Iterable[Waiter]) -> None:
        """Entering each asyncio loop once."""
        wake_all(waiters)

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Job:
        """A task of this thread's loop; with trio, a system task. Raises `UsageError` where no loop runs."""
        loop = _asyncio_loop()
        return TrioJob(_running_trio(), name, work) if loop is None else AsyncioJob(loop, name, work)

    def blocking(self) -> Runtime:
        """The runtime of threads."""
        return BlockingRuntime()

    def canceller(self) -> Canceller | None:
        """For the task that runs in this thread."""
        loop = _asyncio_loop()
        return TrioCanceller(_running_trio()) if loop is None else AsyncioCanceller(loop)


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    return asyncio._get_running_loop()


def _busy_loop() -> asyncio.AbstractEventLoop | None:
    """The asyncio loop of the task that calls. Between tasks the handler of a signal may run, which has interrupted
    the loop in its sleep: from there, as from other threads, the loop has to be woken."""
    loop = asyncio._get_running_loop()
    return loop if loop is not None and asyncio.current_task(loop) is not None else None


def _running_trio() -> Any:
    try:
        import trio

        trio.lowlevel.current_trio_token()
    except (ImportError, RuntimeError):
        raise UsageError("no event loop runs in this thread; plain synchronous code uses interlock.sync") from None
    return trio


def wake_all(waiters: Iterable[Waiter]) -> None:
    """Wake many waiters, entering each asyncio loop once; that of the task that calls needs no entering."""
    loops: dict[asyncio.AbstractEventLoop, list[AsyncioWaiter]] = {}
    for waiter in waiters:
        if type(waiter) is AsyncioWaiter:
            loops.setdefault(waiter.loop, []).append(waiter)
        else:
            waiter.wake()
    own = _busy_loop() if loops else None
    for loop, group in loops.items():
        if loop is own:
            _resolve_all(group)
            continue
        try:
            loop.call_soon_threadsafe(_resolve_all, group)
        except RuntimeError:  # closed meanwhile
            pass


def _resolve_all(group: list[AsyncioWaiter]) -> None:
    for waiter in group:
        waiter.resolve()
