"""Drop what no snapshot needs any more, a bounded batch at a time, as one job of the writer.

The oldest row of the feed is the horizon: its token is the oldest that is still good, so it stays, and so does the
newest row. What lies before it is dropped. Nothing else has to be searched for: the images of superseded versions
lie in the rows that are dropped, and the tombstones that nobody needs any more are those of the keys that these
rows name.

Entries that expire are found by the feed too. Commits do not maintain a list of them, which would cost each commit
another row; instead compaction reads the feed once, from where it last came to, and puts the keys that will expire
into the table ``expiry``. It never drops a row that was not read so. Expired entries are deleted by an ordinary
commit with a record of its own.

Two ids outlive their rows. A transaction without a trace that is not younger than ``forgotten`` is reported as
forgotten, never as not committed. A commit not younger than ``forgotten_fence`` is refused, because its fence may
have been among those dropped. (A commit that happened needs no such memory: sent again, its snapshot lies below the
horizon.)
"""

from __future__ import annotations

from typing import Final

from interlock.backends.sqlite import outcomes
from interlock.backends.sqlite import record as records
from interlock.backends.sqlite.batch import Batch
from interlock.backends.sqlite.statements import EXPIRES_AT, VALUE, FeedRow
from interlock.model import CommitRequest, Delete, Key, Token, Write

SYSTEM_AGENT: Final = "interlock"
"""The agent in whose name expired entries are deleted."""


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


def _harvest(batch: Batch, limit: int) -> int:
    """Note which keys will expire, from the feed's next rows; the position up to which that is known."""
    done = int(_fact(batch, "harvested") or 0)
    rows = batch.connection.execute(
        "SELECT position, record FROM feed WHERE position > ? ORDER BY position LIMIT ?", (done, limit)
    ).fetchall()
    if not rows:
        return done
    expiring = [
        (written.expires_at, key)
        for _, raw in rows
        if raw is not None
        for key, written in records.decode(raw).written.items()
        if written.expires_at is not None
    ]
    batch.connection.executemany("INSERT OR IGNORE INTO expiry VALUES (?, ?)", expiring)
    last: int = rows[-1][0]
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
    rows: list[FeedRow] = batch.connection.execute(
        "SELECT position, id, at, record FROM feed WHERE position <= ? ORDER BY position LIMIT ?",
        (harvested, limit + 1),
    ).fetchall()
    old = [row for row in rows if row[2] < before]
    if len(old) < 2:
        return 0
    horizon = old[-1][0]
    decoded = [None if row[3] is None else records.decode(row[3]) for row in old]
    gone = {key for record in decoded if record is not None for key in _tombstones(record)}
    execute = batch.connection.execute
    dropped = len(old) - 1
    for key in sorted(gone):
        dropped += execute(
            "DELETE FROM current WHERE key = ? AND value IS NULL AND position <= ?", (key, horizon)
        ).rowcount
    going = [(row[1], record) for row, record in zip(old[:-1], decoded, strict=False) if row[0]]
    fences = [identity for identity, record in going if record is None]
    commits = [identity for identity, record in going if record is not None and record.agent is not None]
    _raise_fact(batch, "forgotten", fences + commits)
    _raise_fact(batch, "forgotten_fence", fences)
    execute("DELETE FROM feed WHERE position < ?", (horizon,))
    outcomes.drop(batch.connection, [row[1] for row in old[:-1]])
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
            if name == "forgotten_fence":
                batch.forgotten_fence = highest
