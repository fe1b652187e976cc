"""Drop what no snapshot needs any more, a bounded batch at a time, as one job of the writer.

The oldest row of the feed is the horizon: its token is the oldest that is still good, so it stays, and so does the
newest row. What lies before it is dropped. Nothing else has to be searched for: the images of superseded versions
lie in the rows that are dropped, and the tombstones that nobody needs any more are those of the keys that these
rows name.

Entries that expire are found by the feed too. Commits do not maintain a list of them, which would cost each commit
another row; instead compaction reads the feed once, from where it last came to, and puts the keys that will expire
into the table ``expiry``. It never drops a row that was not read so. Expired entries are deleted by an ordinary
commit with a record of its own.

Both look at as few records as they can: the feed's ``marks`` say which of them name anything that expires or was
deleted, and only these are read and decoded. So a bulk load, whose records are large, costs later batches nothing.

Two ids outlive their rows. A transaction without a trace that is not younger than ``forgotten`` is reported as
forgotten, never as not committed. A commit not younger than ``forgotten_fence`` is refused, because its fence may
have been among those dropped. (A commit that happened needs no such memory: sent again, its snapshot lies below the
horizon.)
"""

from __future__ import annotations

import math
from typing import Final

from interlock.backends.sqlite import outcomes
from interlock.backends.sqlite import record as records
from interlock.backends.sqlite.batch import Batch
from interlock.backends.sqlite.statements import EXPIRES_AT, VALUE
from interlock.model import CommitRequest, Delete, Key, Token, Write

SYSTEM_AGENT: Final = "interlock"
"""The agent in whose name expired entries are deleted."""

_BATCH_BYTES: Final = 1 << 20


def compact(batch: Batch, before: float, limit: int) -> int:
    """See `Backend.compact`."""
    batch.compacted = True
    harvested = _harvest(batch, 4 * limit)
    return _expire(batch, limit) + _drop(batch, before, limit, harvested)


def _fact(batch: Batch, name: str) -> bytes | int | None:
    found = batch.connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return found[0] if found else None


def _note(batch: Batch, name: str, value: bytes | int) -> None:
    batch.connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def _upto(batch: Batch, mark: int, after: int, until: float, before: float, limit: int) -> int | None:
    """The position of the last of the next rows of the feed that one batch may go through: behind ``after``, not behind
    ``until``, older than ``before``, so many rows, and no more bytes of records with ``mark`` than are decoded in some
    milliseconds. None where there is no row."""
    rows = batch.connection.execute(
        "SELECT position, at, CASE WHEN marks & ? THEN length(record) ELSE 0 END FROM feed"
        " WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
        (mark, after, until, limit),
    )
    last, size = None, 0
    for position, at, count in rows:
        size += count
        if at >= before or (last is not None and size > _BATCH_BYTES):
            break
        last = position
    rows.close()
    return last


def _harvest(batch: Batch, limit: int) -> int:
    """Note which keys will expire, from the feed's next rows; the position up to which that is known."""
    done = int(_fact(batch, "harvested") or 0)
    last = _upto(batch, records.EXPIRES, done, math.inf, math.inf, limit)
    if last is None:
        return done
    found = batch.connection.execute(
        "SELECT record FROM feed WHERE position > ? AND position <= ? AND marks & ?", (done, last, records.EXPIRES)
    ).fetchall()
    expiring = [
        (written.expires_at, key)
        for (raw,) in found
        for key, written in records.decode(raw).written.items()
        if written.expires_at is not None
    ]
    batch.connection.executemany("INSERT OR IGNORE INTO expiry VALUES (?, ?)", expiring)
    _note(batch, "harvested", last)
    return last


def _expire(batch: Batch, limit: int) -> int:
    """Delete up to ``limit`` entries that have expired."""
    due: list[tuple[float, Key]] = batch.connection.execute(
        "SELECT expires_at, key FROM expiry WHERE expires_at <= ? ORDER BY expires_at LIMIT ?", (batch.now, limit)
    ).fetchall()
    if not due:
        return 0
    batch.connection.executemany("DELETE FROM expiry WHERE expires_at = ? AND key = ?", due)
    batch.look([key for _, key in due if key not in batch.rows])
    expired: dict[Key, Write] = {}
    for _, key in due:
        row = batch.rows.get(key)
        if row is not None and row[VALUE] is not None and 0 < row[EXPIRES_AT] <= batch.now:
            expired[key] = Delete()
    if expired:
        identity = batch.new_id(batch.now)
        snapshot = Token(batch.store, 1, batch.head, batch.head_id)
        request = CommitRequest(
            int.from_bytes(identity, "big"), SYSTEM_AGENT, "none", snapshot, {}, expired, {}, operation="compact"
        )
        batch.perform(request, identity)
    return len(expired)


def _drop(batch: Batch, before: float, limit: int, harvested: int) -> int:
    """Drop rows from before ``before``, all but the last of them, and the tombstones up to there."""
    execute = batch.connection.execute
    horizon = _upto(batch, records.BURIES, -1, harvested, before, limit + 1)
    if horizon is None:
        return 0
    old: list[tuple[int, bytes, int, int]] = execute(
        "SELECT position, id, marks, typeof(record) = 'null' FROM feed WHERE position <= ? ORDER BY position",
        (horizon,),
    ).fetchall()
    if len(old) < 2:
        return 0
    buried = execute("SELECT record FROM feed WHERE position <= ? AND marks & ?", (horizon, records.BURIES)).fetchall()
    gone = {key for (raw,) in buried for key in _tombstones(records.decode(raw))}
    dropped = len(old) - 1
    for key in sorted(gone):
        if execute("DELETE FROM current WHERE key = ? AND value IS NULL AND position <= ?", (key, horizon)).rowcount:
            dropped += 1
            batch.remove(key, horizon)
    going = [(identity, marks, fence) for position, identity, marks, fence in old[:-1] if position]
    _raise_fact(batch, "forgotten", [identity for identity, marks, _ in going if not marks & records.SILENT])
    _raise_fact(batch, "forgotten_fence", [identity for identity, _, fence in going if fence])
    execute("DELETE FROM feed WHERE position < ?", (horizon,))
    outcomes.drop(batch.connection, [identity for _, identity, _, _ in old[:-1]])
    batch.horizon = horizon
    return dropped


def _tombstones(record: records.Record) -> list[Key]:
    return [key for key, written in record.written.items() if written.kind in (records.DELETE, records.CLEAR)]


def _raise_fact(batch: Batch, name: str, ids: list[bytes]) -> None:
    if ids:
        known = _fact(batch, name)
        highest = max(ids)
        if not isinstance(known, bytes) or highest > known:
            _note(batch, name, highest)
            if name == "forgotten":
                batch.forgotten = highest
            else:
                batch.forgotten_fence = highest
