"""psycopg for callers that block: a pool for any number of threads, last in first out.

A thread that is interrupted while a commit is under way (Ctrl-C) does not learn from the driver how the commit ended;
the connection is then cut, and the interrupt carries a note that says that it may have happened. A forked child has
connections of its own; those of its parent are left alone, because closing them would end the parent's sessions.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from interlock.backends.postgresql import failures, groups, reads, scans
from interlock.backends.postgresql.home import ISOLATE, REPEATS, TURNS, Home, Options, Row, check_server, welcome
from interlock.backends.postgresql.schema import ensure
from interlock.backends.postgresql.statements import statements
from interlock.errors import UsageError
from interlock.model import Key, Page, Reply, Token

_inherited: Final[list[Any]] = []
"""Connections of the parent process, which a child must neither use nor close."""


class Connection:
    """A connection and the store behind it."""

    def __init__(self, raw: Any, texts: dict[str, str], options: Options) -> None:
        self.raw = raw
        self._texts = texts
        self._options = options
        self.home = Home(0, 0, 0)
        self.softened = False

    def fetch(self, name: str, arguments: Sequence[Any]) -> list[Row]:
        """Execute a statement, prepared if the session is ours."""
        pooler = self._options.pooler
        if pooler and name not in ("hello", "soften"):
            arguments = (*arguments, self.home.epoch)
        cursor = self.raw.cursor(binary=True)
        cursor.execute(self._texts[name], arguments or None, prepare=not pooler)
        rows: list[Row] = cursor.fetchall()
        return rows

    async def _select(self, text: str) -> Row:
        row: Row = self.raw.execute(text).fetchone()
        return row

    async def _execute(self, text: str) -> None:
        psycopg.ClientCursor(self.raw).execute(text)

    async def greet(self) -> None:
        """Make the schema if it is missing, and learn about the store. Raises what `welcome` raises."""
        options = self._options
        await check_server(self._select, options, self.raw.info.backend_pid)
        await ensure(options, self._select, self._execute)
        (row,) = self.fetch("hello", ())
        self.home = welcome(row, options)
        if options.durability == "none":
            self.soften()
        if options.locking == "serializable":
            self.raw.execute(ISOLATE)

    def soften(self) -> None:
        """Note, durably, that from now on a crash may lose commits."""
        if not self.softened:
            self.fetch("soften", (self.home.epoch,))
            self.softened = True

    def is_usable(self) -> bool:
        """Whether nothing has come from the server while the connection was idle: what comes then is its end."""
        if self.raw.closed:
            return False
        waiting = select.poll()
        waiting.register(self.raw.fileno(), select.POLLIN)
        return not waiting.poll(0)


class BlockingDriver:
    """The blocking leaf's connections."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._texts = statements(options.schema, pooler=options.pooler)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self._options.connections)
        self._free: list[Connection] = []

    async def _acquire(self) -> Connection:
        if self._closed:
            raise UsageError("this store is closed")
        if self._process != os.getpid():
            _inherited.extend(self._free)
            self._begin()
        self._places.acquire()
        try:
            while True:
                with self._lock:
                    connection = self._free.pop() if self._free else None
                if connection is None:
                    return await self._connect()
                if connection.is_usable():
                    return connection
                connection.raw.close()
        except BaseException:
            self._places.release()
            raise

    async def _connect(self) -> Connection:
        options = self._options
        try:
            raw = psycopg.connect(
                options.dsn,
                autocommit=True,
                connect_timeout=max(2, round(options.connect_seconds)),
                cursor_factory=psycopg.RawCursor,
                prepare_threshold=None if options.pooler else 5,
            )
        except (psycopg.Error, OSError) as error:
            raise failures.unreachable(str(error)) from None
        connection = Connection(raw, self._texts, options)
        try:
            await connection.greet()
        except psycopg.Error as error:
            raw.close()
            raise _translated(error, commits=False) from None
        except BaseException:
            raw.close()
            raise
        return connection

    def _release(self, connection: Connection) -> None:
        with self._lock:
            keep = not (self._closed or connection.raw.closed)
            if keep:
                self._free.append(connection)
        if not keep:
            connection.raw.close()
        self._places.release()

    async def ask(self, seconds: float, name: str, arguments: Sequence[Any], *, at: Token) -> list[Row]:
        """See `interlock.backends.postgresql.home.Driver`."""
        return (await self.fetch(name, arguments, at=at))[0]

    async def fetch(
        self, name: str, arguments: Sequence[Any], *, at: Token | None = None, commits: bool = False, soft: bool = False
    ) -> tuple[list[Row], Home]:
        """See `interlock.backends.postgresql.home.Driver`."""
        repeats, turns = REPEATS, TURNS
        while True:
            connection = await self._acquire()
            sent = False
            try:
                if at is not None:
                    connection.home.admit(at)
                if soft:
                    connection.soften()
                sent = commits
                return connection.fetch(name, arguments), connection.home
            except psycopg.Error as error:
                lost, stale = failures.is_lost(error.sqlstate), failures.is_stale(error.sqlstate)
                if lost or stale:
                    connection.raw.close()
                if failures.is_to_repeat(error.sqlstate, error.diag.constraint_name) and turns > 0:
                    turns -= 1
                elif (stale or (lost and not sent)) and repeats > 0:
                    repeats -= 1
                else:
                    raise _translated(error, commits=sent) from None
            except (KeyboardInterrupt, SystemExit) as interrupt:
                connection.raw.close()
                if sent:
                    interrupt.add_note("the commit had begun and its answer was not awaited; it may or may not happen")
                raise
            finally:
                self._release(connection)

    async def look(self, keys: Sequence[Key]) -> reads.Look:
        """See `interlock.backends.postgresql.reads.look`."""
        return await reads.look(self, keys)

    async def read_at(self, keys: Sequence[Key], at: Token) -> reads.Shown:
        """See `interlock.backends.postgresql.reads.read_at`."""
        return await reads.read_at(self, keys, at)

    async def scan(self, wanted: scans.Wanted) -> Page:
        """See `interlock.backends.postgresql.scans.page`."""
        return await scans.page(self, wanted)

    async def commit(self, job: groups.Job) -> Reply:
        """See `interlock.backends.postgresql.groups.commit_alone`."""
        return await groups.commit_alone(self, job)

    def cut(self) -> None:
        """Close every idle connection now and every other one when it is given back."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        if self._process == os.getpid():
            for connection in free:
                connection.raw.close()

    async def close(self) -> None:
        """As `cut`: there is nothing to wait for."""
        self.cut()


def _translated(error: psycopg.Error, *, commits: bool) -> Exception:
    """Our error for the driver's."""
    if commits and error.diag.constraint_name == failures.ONCE:
        return failures.DuplicateId()
    return failures.failure(error.sqlstate, str(error), commits=commits)
