"""Work that goes on in the background, and cancelling a body from outside: for asyncio, for trio, for threads.

A part of the runtimes (`interlock.runtime`). Work begins in an empty context, so that it never believes to be inside
the session of whoever happened to start it. It is no reason for anything to go on: a task ends with its loop, a system
task with trio's main task, a daemon thread with the interpreter.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

Work = Callable[[], Coroutine[Any, Any, None]]


class AsyncioJob:
    """A task of an asyncio loop."""

    __slots__ = ("_loop", "_process", "_task")

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, work: Work) -> None:
        self._loop = loop
        self._process = os.getpid()
        self._task = loop.create_task(work(), name=name, context=contextvars.Context())

    def alive(self) -> bool:
        """Whether the task may still do something."""
        return not (self._task.done() or self._loop.is_closed() or self._process != os.getpid())

    def cancel(self) -> None:
        """Cancel the task."""
        try:
            self._loop.call_soon_threadsafe(self._task.cancel)
        except RuntimeError:  # the loop is closed, and the task with it
            pass


class TrioJob:
    """A system task of a trio run."""

    __slots__ = ("_done", "_process", "_scope", "_token", "_trio")

    def __init__(self, trio: Any, name: str, work: Work) -> None:
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._scope = trio.CancelScope()
        self._done = False
        self._process = os.getpid()
        trio.lowlevel.spawn_system_task(self._run, work, name=name, context=contextvars.Context())

    async def _run(self, work: Work) -> None:
        try:
            with self._scope:
                await work()
        finally:
            self._done = True

    def alive(self) -> bool:
        """Whether the task may still do something."""
        return not self._done and self._process == os.getpid()

    def cancel(self) -> None:
        """Cancel the task."""
        try:
            self._token.run_sync_soon(self._scope.cancel)
        except self._trio.RunFinishedError:
            pass


class ThreadJob:
    """A daemon thread."""

    __slots__ = ("_process", "_thread")

    def __init__(self, name: str, work: Work) -> None:
        self._process = os.getpid()
        self._thread = threading.Thread(target=_step, args=(work,), name=name, daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive() and self._process == os.getpid()

    def cancel(self) -> None:
        """No effect: a thread ends by itself."""


def _step(work: Work) -> None:
    coroutine = work()
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()


class AsyncioCanceller:
    """Cancels the task that enters, the way of `asyncio.timeout`: a cancellation of somebody else's is never taken for
    this one."""

    __slots__ = ("_asked", "_count", "_left", "_loop", "_task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._asked = self._left = False
        self._count = 0

    def enter(self) -> None:
        """In the task of the body."""
        self._task = asyncio.current_task()
        self._count = 0 if self._task is None else self._task.cancelling()

    def cancel(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed
            pass

    def _cancel(self) -> None:
        if self._task is not None and not self._left and not self._asked:
            self._asked = True
            self._task.cancel()

    def leave(self, error: BaseException | None) -> bool:
        """True if the body was ended by this cancellation alone."""
        self._left = True
        if not self._asked or self._task is None:
            return False
        return self._task.uncancel() <= self._count and isinstance(error, asyncio.CancelledError)


class TrioCanceller:
    """A cancel scope around the body."""

    __slots__ = ("_scope", "_token", "_trio")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._scope = trio.CancelScope()

    def enter(self) -> None:
        """In the task of the body."""
        self._scope.__enter__()

    def cancel(self) -> None:
        """From any thread."""
        try:
            self._token.run_sync_soon(self._scope.cancel)
        except self._trio.RunFinishedError:
            pass

    def leave(self, error: BaseException | None) -> bool:
        """True if the scope has caught its own cancellation."""
        kind = None if error is None else type(error)
        trace = None if error is None else error.__traceback__
        return bool(self._scope.__exit__(kind, error, trace))
