"""How a saga waits in each world: awaitables, time limits, side by side, and the shield around a rollback.

The engine of sagas is written once, as coroutines. It asks one of these two objects for what an event loop (asyncio or
trio) and a plain thread do differently. The promise that matters is `shielded`: once a rollback has begun it comes to
its end, whatever happens to the caller meanwhile.

- asyncio: the rollback is a task of its own, which the caller waits for without passing its cancellations on. Their
  number in ``Task.cancelling()`` stays as it is, so `asyncio.timeout` and task groups count right; the first of them is
  raised at the end if the caller does not have a cancellation to go on with already.
- trio: a shielded scope; the cancellation shows at the next checkpoint, as trio has it.
- a plain thread: Ctrl-C is held back while the rollback runs in the main thread, and raised behind it. An undo that
  has used up its time limit can be interrupted, so a hanging undo does not make a program that cannot be stopped.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from interlock.errors import UsageError
from interlock.ports import Runtime
from interlock.runtime import AsyncRuntime, BlockingRuntime
from interlock.stepping import step

T = TypeVar("T")

Outcome = tuple[Any, BaseException | None]
"""A result, or an error."""


class World(Protocol):
    """What the engine asks for."""

    runtime: Runtime

    async def settle(self, value: Any, what: str) -> Any:
        """The result behind an awaitable that a function returned. Raises `UsageError` where it cannot be awaited."""

    async def limited(self, act: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Run ``act()``; `TimeoutError` when the time is over."""

    async def shielded(self, work: Coroutine[Any, Any, T]) -> tuple[T, BaseException | None]:
        """Run ``work`` to its end whatever happens to the caller; its result, and the cancellation or interrupt that
        came meanwhile and has still to be raised."""

    async def together(self, acts: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Outcome]:
        """Run all, each in a context of its own, and wait for all of them, also if the caller is cancelled."""


def _trio() -> Any:
    """The trio that runs in this thread, or None."""
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return trio


def loop_runs() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _trio() is not None
    return True


async def _awaited(value: Any) -> Any:
    return await value


async def _outcome(act: Callable[[], Coroutine[Any, Any, Any]]) -> Outcome:
    try:
        return await act(), None
    except BaseException as error:
        return None, error


class Awaiting:
    """Asynchronous programs, on asyncio or trio."""

    def __init__(self) -> None:
        self.runtime: Runtime = AsyncRuntime()

    async def settle(self, value: Any, what: str) -> Any:
        """Await it."""
        return await value

    async def limited(self, act: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """A timeout of the loop that runs."""
        trio = _trio()
        if not loop_runs():  # a coroutine is closed behind its loop's end
            return await act()
        if trio is None:
            async with asyncio.timeout(seconds):
                return await act()
        try:
            with trio.fail_after(seconds):
                return await act()
        except trio.TooSlowError as slow:
            raise TimeoutError(f"not done in {seconds} seconds") from slow

    async def shielded(self, work: Coroutine[Any, Any, T]) -> tuple[T, BaseException | None]:
        """See the module."""
        trio = _trio()
        if trio is not None:
            with trio.CancelScope(shield=True):
                return await work, None
        if not loop_runs():  # a coroutine is closed behind its loop's end; what needs no loop is still done
            return await work, None
        task = asyncio.create_task(work)
        cancelled = await _wait_out_one(task)
        return task.result(), cancelled

    async def together(self, acts: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Outcome]:
        """Tasks; a cancellation of the caller is passed on to them once, and they are awaited."""
        trio = _trio()
        if trio is not None:
            return await _together_on_trio(trio, acts)
        tasks = [asyncio.create_task(_outcome(act)) for act in acts]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await _wait_out(set(tasks))
            raise
        return [task.result() for task in tasks]


async def _wait_out(tasks: set[asyncio.Task[Any]]) -> asyncio.CancelledError | None:
    """Wait until all are done; the first cancellation that came meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return cancelled


async def _wait_out_one(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """The same for one task, without the bookkeeping that `asyncio.wait` needs for many."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        ended = task.get_loop().create_future()

        def note(_: object, ended: asyncio.Future[None] = ended) -> None:
            if not ended.done():
                ended.set_result(None)

        task.add_done_callback(note)
        try:
            await ended
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            task.remove_done_callback(note)
    return cancelled


async def _together_on_trio(trio: Any, acts: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Outcome]:
    outcomes: list[Outcome] = [(None, None)] * len(acts)

    async def run(place: int, act: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        outcomes[place] = await _outcome(act)

    async with trio.open_nursery() as nursery:
        for place, act in enumerate(acts):
            nursery.start_soon(run, place, act)
    await trio.lowlevel.checkpoint_if_cancelled()
    return outcomes


class Blocking:
    """Plain synchronous programs."""

    def __init__(self) -> None:
        self.runtime: Runtime = BlockingRuntime()
        self._hold: _Hold | None = None

    async def settle(self, value: Any, what: str) -> Any:
        """Run an event loop for it, if none runs in this thread; nothing is ever left un-awaited in silence."""
        if not loop_runs():
            return asyncio.run(_awaited(value))
        if inspect.iscoroutine(value):
            value.close()
        raise UsageError(f"{what} is asynchronous and cannot be awaited in a plain `with`; use `async with`")

    async def limited(self, act: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """A plain call cannot be stopped; behind the limit Ctrl-C is let through to it."""
        hold = self._hold
        if hold is None:
            return await act()
        hold.until = self.runtime.monotonic() + seconds
        try:
            return await act()
        finally:
            hold.until = float("inf")

    async def shielded(self, work: Coroutine[Any, Any, T]) -> tuple[T, BaseException | None]:
        """Hold Ctrl-C back."""
        if threading.current_thread() is not threading.main_thread():
            return await work, None
        self._hold = hold = _Hold(self.runtime.monotonic)
        try:
            with hold:
                result = await work
        finally:
            self._hold = None
        return result, hold.interrupt

    async def together(self, acts: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Outcome]:
        """Threads, each with a copy of the caller's context. An interrupt is raised when all have ended."""
        outcomes: list[Outcome] = [(None, None)] * len(acts)

        def run(place: int) -> None:
            outcomes[place] = step(_outcome(acts[place]))

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(run, place), name=f"interlock step {place}")
            for place in range(len(acts))
        ]
        for thread in threads:
            thread.start()
        interrupt = _join(threads)
        if interrupt is not None:
            raise interrupt
        return outcomes


def _join(threads: Iterable[threading.Thread]) -> BaseException | None:
    interrupt: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                interrupt = interrupt or error
    return interrupt


class _Hold:
    """Holds SIGINT back in the main thread; what came meanwhile is delivered at the exit."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.until = float("inf")
        self.interrupt: BaseException | None = None
        self._monotonic = monotonic
        self._before: Any = None
        self._came = False

    def _arrived(self, number: int, frame: Any) -> None:
        if self._monotonic() > self.until and callable(self._before):
            self._before(number, frame)
        else:
            self._came = True

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)
        if callable(self._before):
            signal.signal(signal.SIGINT, self._arrived)

    def __exit__(self, *error: object) -> None:
        if not callable(self._before):
            return
        signal.signal(signal.SIGINT, self._before)
        if self._came:
            try:
                self._before(signal.SIGINT, None)
            except BaseException as interrupt:
                self.interrupt = interrupt


AWAITING = Awaiting()
"""Has no state of its own, so one is enough."""
