"""The floors of the SQLite backend: a writer thread that commits in groups, and the rows that it writes.

The thread takes whatever is queued, begins one transaction, judges and applies each job with a statement for each row,
commits once and wakes all callers of the batch at once. So a batch of 32 costs one fsync. Reads are made on the
caller's own thread. Two kinds of rows:

- `LeastRows`: the value, the idempotency key, a log line. No history, so no snapshots; no outcome of a transaction.
- `SameRows`: what the library's backend writes: the newest version of each key with its place in history, the
  idempotency record as an expiring entry, and a feed record that is also the outcome of the transaction and holds the
  replaced version; and it validates what the library validates, the rules of the resource included.

Same driver (`sqlite3`), same settings (write-ahead log, ``synchronous=FULL``) as the library.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from benchmarks.workload import AGENT, OPERATION, RESOURCE, VALUE, pack, unpack

BATCH: Final = 128
Version = tuple[int, int]


class Refused(Exception):
    """Somebody else has changed what was read."""


def connect(path: Path, synchronous: str = "FULL") -> sqlite3.Connection:
    """A connection with the library's settings."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30, cached_statements=256)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    return connection


class Rows(Protocol):
    """Which rows a floor reads and writes."""

    def create(self, connection: sqlite3.Connection, keys: Iterable[str]) -> None:
        """Make the tables, with a value under each key."""

    def read(self, connection: sqlite3.Connection, key: str) -> tuple[str, Version]:
        """A value and its version."""

    def begin(self, connection: sqlite3.Connection) -> None:
        """A transaction has begun."""

    def apply(
        self, connection: sqlite3.Connection, key: str, text: str, version: Version, idempotency_key: str
    ) -> None:
        """Judge and apply one job. Raises `Refused` before it has written anything."""


class LeastRows:
    """Value, idempotency key, log."""

    def create(self, connection: sqlite3.Connection, keys: Iterable[str]) -> None:
        """Make the tables."""
        connection.executescript(
            "CREATE TABLE kv (resource TEXT, key TEXT, value BLOB, version INTEGER, PRIMARY KEY (resource, key))"
            " WITHOUT ROWID;"
            "CREATE TABLE idempotency (key TEXT PRIMARY KEY, position INTEGER) WITHOUT ROWID;"
            "CREATE TABLE log (position INTEGER PRIMARY KEY, payload BLOB);"
        )
        rows = [(RESOURCE, key, pack(VALUE)) for key in keys]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO kv VALUES (?, ?, ?, 0)", rows)
        connection.execute("COMMIT")

    def read(self, connection: sqlite3.Connection, key: str) -> tuple[str, Version]:
        """A value and its version."""
        row = connection.execute(
            "SELECT value, version FROM kv WHERE resource = ? AND key = ?", (RESOURCE, key)
        ).fetchone()
        return unpack(row[0]), (row[1], 0)

    def begin(self, connection: sqlite3.Connection) -> None:
        """Nothing to prepare."""

    def apply(
        self, connection: sqlite3.Connection, key: str, text: str, version: Version, idempotency_key: str
    ) -> None:
        """Two look-ups, three rows."""
        execute = connection.execute
        if execute("SELECT position FROM idempotency WHERE key = ?", (idempotency_key,)).fetchone() is not None:
            return
        found = execute("SELECT version FROM kv WHERE resource = ? AND key = ?", (RESOURCE, key)).fetchone()
        if found != (version[0],):
            raise Refused(key)
        value = pack(text)
        position = execute("INSERT INTO log (payload) VALUES (?)", (value,)).lastrowid
        execute(
            "INSERT INTO kv VALUES (?, ?, ?, ?)"
            " ON CONFLICT (resource, key) DO UPDATE SET value = excluded.value, version = excluded.version",
            (RESOURCE, key, value, position),
        )
        execute("INSERT INTO idempotency VALUES (?, ?)", (idempotency_key, position))


_NEW_ID_BYTES: Final = 10
_RECORD_SECONDS: Final = 2_592_000.0
_PUT: Final = "INSERT OR REPLACE INTO current VALUES (?, ?, ?, ?, ?, ?, ?)"
_LOOK: Final = "SELECT position, nonce, value, expires_at, trail, listed FROM current WHERE key = ?"


class SameRows:
    """The rows and the information of the library's backend."""

    def __init__(self) -> None:
        self._position = 0

    def create(self, connection: sqlite3.Connection, keys: Iterable[str]) -> None:
        """Make the tables."""
        connection.executescript(
            "CREATE TABLE current (key BLOB PRIMARY KEY, position INTEGER, nonce INTEGER, value BLOB, expires_at REAL,"
            " trail, listed INTEGER) WITHOUT ROWID;"
            "CREATE TABLE feed (position INTEGER PRIMARY KEY, id BLOB UNIQUE, at REAL, record BLOB);"
        )
        rows = [(_stored(key), 1, 1, pack(VALUE), None, 2, 1) for key in keys]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_PUT, rows)
        connection.execute("INSERT INTO feed VALUES (1, ?, 0, NULL)", (os.urandom(16),))
        connection.execute("COMMIT")

    def read(self, connection: sqlite3.Connection, key: str) -> tuple[str, Version]:
        """A value and its version."""
        row = connection.execute("SELECT value, position, nonce FROM current WHERE key = ?", (_stored(key),)).fetchone()
        return unpack(row[0]), (row[1], row[2])

    def begin(self, connection: sqlite3.Connection) -> None:
        """Where the feed ends."""
        self._position = connection.execute("SELECT position FROM feed ORDER BY position DESC LIMIT 1").fetchone()[0]

    def apply(
        self, connection: sqlite3.Connection, key: str, text: str, version: Version, idempotency_key: str
    ) -> None:
        """Three look-ups, three rows. The feed's unique ids refuse a transaction that is sent twice."""
        execute = connection.execute
        stored, record_key = _stored(key), b"\0idempotency" + idempotency_key.encode()
        if execute(_LOOK, (record_key,)).fetchone() is not None:
            return
        old = execute(_LOOK, (stored,)).fetchone()
        if old[:2] != version or execute(_LOOK, (b"\0rules",)).fetchone() is not None:
            raise Refused(key)
        now = time.time()
        identity = int(now * 1000).to_bytes(6, "big") + os.urandom(_NEW_ID_BYTES)
        nonce = int.from_bytes(identity[8:], "big", signed=True)
        self._position = position = self._position + 1
        expires_at = now + _RECORD_SECONDS
        written = {stored: (0, None, None, None, old), record_key: (1, _RECORD_SECONDS, None, expires_at, None)}
        reads = {stored: version}
        record = pack((written, AGENT, "serializable", OPERATION, None, 1, reads, (), (), ()))
        execute("INSERT INTO feed VALUES (?, ?, ?, ?)", (position, identity, now, record))
        execute(_PUT, (stored, position, nonce, pack(text), None, old[4] + 1, 1))
        execute(_PUT, (record_key, position, nonce, pack((identity, None)), expires_at, 2, 0))


def _stored(key: str) -> bytes:
    return b"\1\2" + RESOURCE.encode() + b"\0\2" + key.encode() + b"\0"


@dataclass(slots=True)
class Job:
    """One commit on its way to the writer. ``answer`` is called on the writer's thread, or on the loop where there is
    one."""

    key: str
    text: str
    version: Version
    idempotency_key: str
    answer: Callable[[BaseException | None], None]
    loop: asyncio.AbstractEventLoop | None
    failure: BaseException | None = None


class GroupWriter:
    """The thread that commits."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self.rows = rows
        self.queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._connection = connect(path)
        self._thread = threading.Thread(target=self._work, name="floor-writer")
        self._thread.start()

    def close(self) -> None:
        """Stop after what was asked before."""
        self.queue.put(None)
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        stopped = False
        while not stopped:
            first = self.queue.get()
            batch = [] if first is None else [first]
            stopped = first is None
            while not stopped and len(batch) < BATCH:
                try:
                    job = self.queue.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    stopped = True
                else:
                    batch.append(job)
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[Job]) -> None:
        connection, apply = self._connection, self.rows.apply
        connection.execute("BEGIN IMMEDIATE")
        self.rows.begin(connection)
        for job in batch:
            try:
                apply(connection, job.key, job.text, job.version, job.idempotency_key)
            except Refused as refused:
                job.failure = refused
        connection.execute("COMMIT")
        loop = batch[0].loop
        if loop is None:
            _answer(batch)
        else:
            loop.call_soon_threadsafe(_answer, batch)


def _answer(batch: list[Job]) -> None:
    for job in batch:
        job.answer(job.failure)


async def commit_async(writer: GroupWriter, key: str, text: str, version: Version, idempotency_key: str) -> None:
    """Have a commit made, suspending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def answer(failure: BaseException | None) -> None:
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    writer.queue.put(Job(key, text, version, idempotency_key, answer, loop))
    await future


def commit_blocking(writer: GroupWriter, key: str, text: str, version: Version, idempotency_key: str) -> None:
    """Have a commit made, blocking the thread."""
    done = threading.Lock()
    done.acquire()
    job = Job(key, text, version, idempotency_key, lambda failure: done.release(), None)
    writer.queue.put(job)
    done.acquire()
    if job.failure is not None:
        raise job.failure


def commit_inline(
    connection: sqlite3.Connection, rows: Rows, key: str, text: str, version: Version, idempotency_key: str
) -> None:
    """Commit on the calling thread, one transaction for each job."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        rows.begin(connection)
        rows.apply(connection, key, text, version, idempotency_key)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
