"""The blocking leaf: plain sockets with hiredis, in a pool for any number of threads, last in first out.

A thread that is interrupted while a commit is under way (Ctrl-C) does not learn how the commit ended; the connection is
then cut, and the interrupt carries a note that says that it may have happened. A forked child has connections of its
own; those of its parent are left alone.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import hiredis

from interlock.backends.redis import failures
from interlock.backends.redis.address import address_of, connect, moved_to
from interlock.backends.redis.greeting import greet
from interlock.backends.redis.home import REPEATS, Driver, Known, Moved, Options
from interlock.backends.redis.scripts import Calls, Command, packed
from interlock.errors import BackendUnavailableError, InterlockError, UsageError
from interlock.runtime import BlockingRuntime

_MOVES: Final = 5
_CLOSED: Final = "this store is closed"
_SLICE_SECONDS: Final = 0.25
"""How long a thread that waits for news asks before it looks whether the store was closed."""
_BROKEN: Final = (OSError, EOFError, hiredis.HiredisError)

_inherited: Final[list[Any]] = []
"""Connections of the parent process, which a child must neither use nor close."""


class Wire:
    """A connection. One on which nothing comes for ``patience_seconds`` raises `TimeoutError`."""

    def __init__(self, raw: Any, patience_seconds: float) -> None:
        raw.settimeout(patience_seconds)
        self._raw = raw
        self._reader = hiredis.Reader()

    async def ask(self, *commands: Command) -> list[Any]:
        """Send commands and read their replies. Raises `OSError` or `EOFError`; then the connection is of no use."""
        self._raw.sendall(b"".join([packed(command) for command in commands]))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                data = self._raw.recv(65536)
                if not data:
                    raise EOFError("closed by the server")
                self._reader.feed(data)
            else:
                replies.append(reply)
        return replies

    def be_patient(self, seconds: float) -> None:
        """From now on wait so long for a reply."""
        self._raw.settimeout(seconds)

    def is_usable(self) -> bool:
        """Whether nothing has come from the server while the connection was idle: what comes then is its end."""
        waiting = select.poll()
        waiting.register(self._raw.fileno(), select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        """End the connection."""
        self._raw.close()


class BlockingDriver(Driver):
    """The blocking leaf's connections."""

    def __init__(self, options: Options, calls: Calls, known: Known) -> None:
        self._options = options
        self._calls = calls
        self._known = known
        self._address = address_of(options.target)
        self._runtime = BlockingRuntime()
        self._place: tuple[str, int] | None = None
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self._options.connections)
        self._free: list[Wire] = []
        self._waiting: list[Wire] = []

    def _check(self) -> None:
        if self._closed:
            raise UsageError(_CLOSED)
        if self._process != os.getpid():
            _inherited.extend((*self._free, *self._waiting))
            self._begin()

    async def _take(self, free: list[Wire], held_seconds: float) -> Wire:
        while True:
            with self._lock:
                wire = free.pop() if free else None
            if wire is None:
                wire = await self._connect()
                wire.be_patient(self._options.reply_seconds + held_seconds)
                return wire
            if wire.is_usable():
                return wire
            wire.close()

    def _give(self, free: list[Wire], wire: Wire) -> None:
        with self._lock:
            if not self._closed:
                free.append(wire)
                return
        wire.close()

    async def _connect(self) -> Wire:
        seconds = self._options.connect_seconds
        for _ in range(_MOVES):
            place = self._place
            try:
                return await self._greeted(Wire(connect(self._address, self._options, place), seconds))
            except Moved as moved:
                self._place = moved_to(moved, self._address, place)
            except BackendUnavailableError:
                self._place = None  # the server that we were sent to may be gone: ask again where we began
                if place is None:
                    raise
        raise failures.unreachable("the cluster sends us from one server to the next")

    async def _greeted(self, wire: Wire) -> Wire:
        try:
            await greet(wire.ask, self._options, self._calls, self._known, self._runtime)
        except _BROKEN as error:
            wire.close()
            raise failures.unreachable(str(error)) from None
        except BaseException:
            wire.close()
            raise
        return wire

    async def ask(self, *commands: Command, commits: bool = False, copies: bool = False) -> list[Any]:
        """See `interlock.backends.redis.home.Driver`."""
        self._check()
        confirmation = self._options.confirmation if copies else None
        if confirmation is not None:
            commands = (*commands, confirmation)
        with self._places:
            return await self._ask_until_answered(commands, commits)

    async def _ask_until_answered(self, commands: Sequence[Command], commits: bool) -> list[Any]:
        repeats, free = REPEATS, self._free
        while True:
            try:
                wire = await self._take(free, self._options.confirmation_seconds)
            except InterlockError:
                self._check()
                raise
            try:
                replies = await wire.ask(*commands)
            except _BROKEN as error:
                wire.close()
                self.distrust()
                silent = isinstance(error, TimeoutError)
                if commits or silent or repeats == 0:
                    said = f"no reply for {self._options.reply_seconds:g} s" if silent else str(error)
                    raise failures.lost(said or type(error).__name__, commits=commits) from None
                repeats -= 1
            except BaseException as interrupt:
                wire.close()
                if commits:
                    interrupt.add_note("the commit had begun and its answer was not awaited; it may or may not happen")
                raise
            else:
                self._give(free, wire)
                return replies

    async def wait(self, look: Callable[[], Awaitable[bool]], position: int, timeout_seconds: float) -> bool:
        """See `interlock.backends.redis.home.Driver`. Threads that wait have connections beside the others."""
        deadline = self._runtime.monotonic() + timeout_seconds
        behind = b"%d-18446744073709551615" % position
        while not await look():
            while True:
                self._check()
                left = deadline - self._runtime.monotonic()
                if left <= 0:
                    return False
                block = b"%d" % max(1, int(1000 * min(left, _SLICE_SECONDS)))
                free = self._waiting
                wire = await self._take(free, _SLICE_SECONDS)
                try:
                    (found,) = await wire.ask(
                        (b"XREAD", b"COUNT", b"1", b"BLOCK", block, b"STREAMS", self._calls.feed, behind)
                    )
                except BaseException as error:
                    wire.close()
                    if not isinstance(error, _BROKEN):
                        raise
                    break
                self._give(free, wire)
                if isinstance(found, Exception):
                    break
                if found:
                    return True
        return True

    def distrust(self) -> None:
        """See `interlock.backends.redis.home.Driver`."""
        with self._lock:
            free = [*self._free, *self._waiting]
            self._free.clear()
            self._waiting.clear()
        for wire in free:
            wire.close()

    def cut(self) -> None:
        """Close every idle connection now and every other one when it is given back."""
        self._closed = True
        if self._process == os.getpid():
            self.distrust()

    async def close(self) -> None:
        """As `cut`: there is nothing to wait for."""
        self.cut()
