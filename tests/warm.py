"""Connections to PostgreSQL that outlive the store that opened them, for tests that ask nothing about connections.

A session of the server spends most of what it does for a short test on beginning: a process is forked, it reads the
catalogue, and it compiles every function at the first call. A run has thousands of such tests. Within
`Warm.connections` a store that opens a connection gets one that an earlier test has closed, if there is one, and
everything that the library does with a new connection it does with this one.

**It is as good as new.** A connection is kept only if it is idle when it is closed. Then whatever a session remembers
is taken from it: locks, listening, settings, prepared statements. What it keeps is the server's own: its caches. A
store sees an object of its driver that is new, over a socket that is not:

- psycopg: a new `psycopg.Connection` around libpq's old connection; the one before it is closed from then on.
- asyncpg: a protocol and a transport that are new. Between them and the socket stands `_Between`, which answers the
  first message, the driver's greeting, with what the server once answered to the same, and does not let the last one
  pass.

All are connections to one URL. A store that is opened by another one (through a proxy, in another database, on a server
that a test is about to kill) connects as without this.

A forked child has the sockets of its parent: nothing is kept or given out but in the process that began.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
import psycopg
import pytest
from psycopg import pq

from interlock.backends.postgresql import blocking, connections, heralds

FORGET: Final = b"SELECT pg_advisory_unlock_all(); UNLISTEN *; RESET ALL; DEALLOCATE ALL"
"""What a session is told when it is closed. Not DISCARD ALL, which would also throw away what is compiled."""
_READY: Final = b"Z\x00\x00\x00\x05I"
"""The end of every answer of a session that is idle."""
_END: Final = b"X\x00\x00\x00\x04"
"""A client's last message."""
_MOST: Final = 12
_PATIENCE_SECONDS: Final = 10.0
_to_url: ContextVar[bool] = ContextVar("to_url", default=False)
"""Whether what connects on a loop at this moment is a store that was opened by the URL."""


class _Kept:
    """Things for one process, last in first out."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._things: list[Any] = []

    def put(self, thing: Any) -> bool:
        """Whether there was room for it."""
        with self._mutex:
            room = self._process == os.getpid() and len(self._things) < _MOST
            if room:
                self._things.append(thing)
            return room

    def take(self) -> Any:
        """The newest, or None."""
        with self._mutex:
            return self._things.pop() if self._things and self._process == os.getpid() else None


def _silent(descriptor: int) -> bool:
    """Whether nothing has come since: what comes to an idle session is its end."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return not waiting.poll(0)


# -- psycopg -----------------------------------------------------------------------------------------------------------
class _Blocking(psycopg.Connection[Any]):
    """A connection that leaves what it was made of behind."""

    kept: _Kept

    def close(self) -> None:
        """Give the connection back, or end it."""
        if self.closed:
            return
        inner, self.pgconn = self.pgconn, _gone()
        idle = inner.status == pq.ConnStatus.OK and inner.transaction_status == pq.TransactionStatus.IDLE
        if not (idle and _forgets(inner) and self.kept.put(inner)):
            inner.finish()


def _forgets(inner: Any) -> bool:
    inner.notice_handler = inner.notify_handler = None
    done: bool = inner.exec_(FORGET).status == pq.ExecStatus.COMMAND_OK
    while inner.notifies():
        pass
    return done


def _gone() -> Any:
    """libpq's part of a connection that is closed."""
    inner = pq.PGconn.connect_start(b"host=127.0.0.1 port=1")
    inner.finish()
    return inner


# -- asyncpg -----------------------------------------------------------------------------------------------------------
class _Session:
    """A session of the server: the socket, what began it, and what the server answered."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.began = b""
        self.greeting = b""

    def forgets(self) -> bool:
        """Whether it is as good as new. What still comes from before is read away: the answer names its question."""
        mark = os.urandom(8).hex().encode()
        asked = FORGET + b"; SELECT '" + mark + b"'"
        self.raw.settimeout(_PATIENCE_SECONDS)
        self.raw.sendall(b"Q" + (len(asked) + 5).to_bytes(4, "big") + asked + b"\0")
        answer = b""
        while mark not in answer or not answer.endswith(_READY):
            piece = self.raw.recv(1 << 16)
            if not piece:
                return False
            answer += piece
            if b"E\0\0" in answer:
                return False
        return True


class _Between(asyncio.Protocol):
    """The loop's protocol, and the driver's transport."""

    def __init__(self, session: _Session, driver: Any, kept: _Kept) -> None:
        self._session = session
        self._driver = driver
        self._kept = kept
        self._transport: Any = None
        self._is_new = not session.greeting
        self._is_first = True
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    # As the loop's protocol.
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._driver.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_new:
            self._session.greeting += data
            self._is_new = not data.endswith(_READY)
        self._driver.data_received(data)

    def eof_received(self) -> Any:
        return self._driver.eof_received()

    def pause_writing(self) -> None:
        self._driver.pause_writing()

    def resume_writing(self) -> None:
        self._driver.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended:
            self._driver.connection_lost(error)

    # As the driver's transport.
    def write(self, data: Any) -> None:
        if self._is_first:
            self._is_first = False
            if not self._is_new:
                assert bytes(data) == self._session.began, "another database, user or setting"
                asyncio.get_running_loop().call_soon(self._driver.data_received, self._session.greeting)
                return
            self._session.began = bytes(data)
        elif len(data) == len(_END) and bytes(data) == _END:
            self._ended = True
            asyncio.get_running_loop().call_soon(self._leave)
            return
        self._transport.write(data)

    def _leave(self) -> None:
        session = self._session
        session.raw = self._transport.get_extra_info("socket").dup()
        self._transport.abort()
        with contextlib.suppress(OSError):
            if not self._is_new and session.forgets() and self._kept.put(session):
                session = None
        if session is not None:
            session.raw.close()
        self._driver.connection_lost(None)


# -- both --------------------------------------------------------------------------------------------------------------
class Warm:
    """The connections of one process of the run to the database with this URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._inners = _Kept()
        self._sessions = _Kept()

    def _connect(self, dsn: str, **options: Any) -> Any:
        """As `psycopg.connect`, for the options that the library uses."""
        if dsn != self._url:
            return psycopg.connect(dsn, **options)
        inner = self._inners.take()
        while inner is not None and not _silent(inner.socket):
            inner.finish()
            inner = self._inners.take()
        if inner is None:
            made = _Blocking.connect(dsn, **options)
        else:
            made = _Blocking(inner)
            made._autocommit = options["autocommit"]
            made.prepare_threshold = options["prepare_threshold"]
            made.cursor_factory = options.get("cursor_factory", psycopg.Cursor)
        made.kept = self._inners
        return made

    async def _create(self, make: Any, host: str, port: int) -> Any:
        """As ``create_connection`` of a loop, for asyncpg."""
        loop = asyncio.get_running_loop()
        driver = make()
        cancels = not isinstance(driver, asyncpg.protocol.Protocol)  # a statement, over a connection of its own
        if cancels or not _to_url.get():
            return await type(loop).create_connection(loop, lambda: driver, host, port)
        session = self._sessions.take()
        while session is not None and not _silent(session.raw.fileno()):
            session.raw.close()
            session = self._sessions.take()
        if session is None:
            session = _Session(socket.create_connection((host, port)))
        session.raw.setblocking(False)
        between = _Between(session, driver, self._sessions)
        await type(loop).create_connection(loop, lambda: between, sock=session.raw)
        return between, driver

    async def _connected(self, options: Any) -> Any:
        loop: Any = asyncio.get_running_loop()
        loop.create_connection = self._create  # for good: other connections of the loop pass through it, see there
        told = _to_url.set(options.dsn == self._url)
        try:
            return await self._plainly(options)
        finally:
            _to_url.reset(told)

    _plainly = staticmethod(connections._connected)

    def close(self) -> None:
        """End them all."""
        while inner := self._inners.take():
            inner.finish()
        while session := self._sessions.take():
            session.raw.close()

    @contextlib.contextmanager
    def connections(self) -> Iterator[None]:
        """Stores that are opened meanwhile begin with connections of others."""
        drivers = SimpleNamespace(**{**vars(psycopg), "connect": self._connect})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocking, "psycopg", drivers)
            patch.setattr(heralds, "psycopg", drivers)
            patch.setattr(connections, "_connected", self._connected)
            yield
