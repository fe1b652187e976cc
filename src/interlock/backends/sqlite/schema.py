"""The tables, and how a file becomes a store.

- ``current`` holds the newest version of each key, or its tombstone, and is updated in place.
- ``feed`` has one row for each position, with the id of the transaction that took it. The record holds what the
  feed tells and the image of each version that the commit replaced: history, outcome and feed are one row. A row
  without a record is the origin (position 0) or a fence: an id that will never commit. ``marks`` says what compaction
  has to know of the record (see `interlock.backends.sqlite.record`); it lies before it, because SQLite reads a large
  record only for whoever asks for what comes behind its beginning.
- ``outcome`` finds the positions of ids, see `interlock.backends.sqlite.outcomes`.
- ``expiry`` lists keys by the time when they expire. It is filled by compaction from the feed, not by commits.
- ``facts`` holds the store's id, its clock and what compaction has reached.

So a commit of one key is two row writes and one entry of an index that grows at its end. Neither ``current`` nor
``feed`` has another index: ``INSERT OR REPLACE`` then needs no look-up before it writes, and the default of ``key``
(never used) spares each statement a journal of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any, Final, NamedTuple

from interlock.backends.sqlite import outcomes
from interlock.backends.sqlite.connection import Connection
from interlock.errors import BackendCorruptError, BackendUnavailableError, SchemaMismatchError

APPLICATION: Final = 0x494C_434B
VERSION: Final = 2

_TABLES: Final = (
    "CREATE TABLE current (key BLOB NOT NULL DEFAULT x'' PRIMARY KEY, position INTEGER, nonce INTEGER, value BLOB,"
    " expires_at REAL, trail, listed INTEGER) WITHOUT ROWID",
    "CREATE TABLE feed (position INTEGER PRIMARY KEY, id BLOB, at REAL, marks INTEGER, record BLOB)",
    "CREATE TABLE outcome (id BLOB PRIMARY KEY, position INTEGER) WITHOUT ROWID",
    "CREATE TABLE expiry (expires_at REAL, key BLOB, PRIMARY KEY (expires_at, key)) WITHOUT ROWID",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
)


class Opened(NamedTuple):
    """What is learnt when the file is opened: the store's id, and the base of its clock."""

    store: int
    base: float

    def now(self) -> float:
        """The store's time."""
        return since_boot() + self.base


def prepare(connection: Connection, path: str, synchronous: str, store: int) -> dict[str, Any]:
    """Check that the file is a store of ours, or make it one with the id ``store``; the facts. Under the queue lock.

    Nothing is written to a file that is not ours. Raises `BackendCorruptError`, `SchemaMismatchError`,
    `BackendUnavailableError` and ``sqlite3.Error``."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if application != APPLICATION and not (empty and application == version == 0):
        raise BackendCorruptError(
            f"{path} is a SQLite database of another application. Nothing was written to it; name another file"
        )
    if not empty and version != VERSION:
        what = "newer" if version > VERSION else "older"
        raise SchemaMismatchError(
            f"{path} has schema version {version}, written by a {what} Interlock; this one understands {VERSION}."
            " Nothing was written to it. Use the version of Interlock that wrote it, or another file"
        )
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise BackendUnavailableError(
            f"{path} cannot have a write-ahead log (journal mode {mode}): the file system cannot share memory between"
            " processes; use a local disk"
        )
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("BEGIN IMMEDIATE")
    if empty:
        _create(connection, store)
    facts = dict(connection.execute("SELECT name, value FROM facts").fetchall())
    if connection.execute("SELECT max(position) FROM feed").fetchone()[0] > facts["indexed"] + outcomes.TAIL:
        outcomes.put_in(connection)
    _set_clock(connection, facts)
    connection.execute("COMMIT")
    return facts


def _create(connection: Connection, store: int) -> None:
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO feed VALUES (0, ?, 0.0, 0, NULL)", (store.to_bytes(16, "big"),))
    connection.execute(
        "INSERT INTO facts VALUES ('store', ?), ('harvested', 0), ('indexed', 0)", (store.to_bytes(8, "big"),)
    )
    connection.execute(f"PRAGMA application_id={APPLICATION}")
    connection.execute(f"PRAGMA user_version={VERSION}")


def _set_clock(connection: Connection, facts: dict[str, Any]) -> None:
    """The store's clock is the machine's time since boot plus a base that is set once for each boot.

    So it is the same for all processes, and no change of the wall clock moves it. After a boot it goes on from the
    wall clock's time, or from the last commit's if that is later."""
    boot = boot_id()
    if facts.get("boot") == boot:
        return
    latest = connection.execute("SELECT at FROM feed ORDER BY position DESC LIMIT 1").fetchone()[0]
    base = max(time.time(), latest, float(facts.get("opened", 0.0))) - since_boot()
    facts.update(boot=boot, base=base, opened=base + since_boot())
    rows = [(name, facts[name]) for name in ("boot", "base", "opened")]
    connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)


def since_boot() -> float:
    """Seconds since the machine was started, sleep included; the same for all processes."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_id() -> str:
    """What tells this run of the machine from all others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()
    return str(round((time.time() - since_boot()) / 3600))
