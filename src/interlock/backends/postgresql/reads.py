"""Reads: of the newest entries, or as of a snapshot; those of one event loop that come at once share a statement.

**A read as of a snapshot can share a statement with any other**, because the newest version of a key is also what a
snapshot shows if the snapshot contains its position: no version of that key can lie between. What has no row was never
written, or was deleted and then dropped by compaction; the statement also reads the horizon, below which compaction
drops, and a snapshot that contains the horizon contains that deletion as well. Only where the newest version is not in
the snapshot, or hides what a quiet commit has dropped, is the key's history needed, and the read is made again by a
statement of its own (`as_of` answers None).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from interlock.backends.postgresql.home import Driver, Home, Row
from interlock.backends.postgresql.record import token_of, version
from interlock.backends.postgresql.tokens import Snapshot, clamped, contains, from_detail, parsed
from interlock.errors import SnapshotTooOldError
from interlock.model import NONCE_MASK, Entry, Key, Token


class Look(NamedTuple):
    """The newest entries of some keys, their token, the server's time.

    ``rows``: position, nonce, value, expiry, and, where it was asked for, whether the row is one that nobody may see.
    ``horizon``: that of compaction, if it was asked for."""

    rows: Sequence[Row]
    token: Token
    clock: float
    home: Home
    horizon: Row = ()


class Shown(NamedTuple):
    """What a snapshot shows of some keys, the server's time, and whether any of them is older than the newest."""

    entries: list[Entry | None]
    clock: float
    superseded: bool = False


async def look(driver: Driver, keys: Sequence[Key], *, kept: bool = False) -> Look:
    """Read the newest entries in one statement; with ``kept`` also what `as_of` needs."""
    one = len(keys) == 1
    if kept:
        rows, home = await driver.fetch("read_kept", (list(keys),))
    else:
        rows, home = await driver.fetch("read_one" if one else "read", (keys[0] if one else list(keys),))
    seen, newest, clock = rows[0][:3]
    token = token_of(home.store, home.epoch, clamped(parsed(seen), newest))
    return Look([row[3:8] for row in rows] if keys else (), token, clock, home, rows[0][8:] if kept else ())


def newest(found: Look) -> list[Entry | None]:
    """The newest entries."""
    return [
        None if row[0] is None or (len(row) > 4 and row[4]) else Entry((row[0], row[1] & NONCE_MASK), row[2], row[3])
        for row in found.rows
    ]


def as_of(found: Look, at: Token) -> Shown | None:
    """What a snapshot shows, if that is in the newest entries; None: it is not. Raises what `Home.admit` raises, and
    `SnapshotTooOldError` for a snapshot below the horizon."""
    snapshot = found.home.admit(at)
    check_horizon(snapshot, *found.horizon)
    entries: list[Entry | None] = []
    for position, nonce, value, expires_at, hidden in found.rows:
        if position is None:
            entries.append(None)
        elif hidden or not snapshot.shows(position):
            return None
        else:
            entries.append(Entry((position, nonce & NONCE_MASK), value, expires_at))
    return Shown(entries, found.clock)


async def read_at(driver: Driver, keys: Sequence[Key], at: Token) -> Shown:
    """Read as of a snapshot by a statement of its own."""
    snapshot = from_detail(at.position, at.detail)
    rows, _ = await driver.fetch("read_at", (list(keys), snapshot.stop, list(snapshot.open)), at=at)
    check_horizon(snapshot, *rows[0][:2])
    entries: list[Entry | None] = []
    superseded = False
    for row in rows if keys else ():
        shown, whole, position = row[3:6]
        if shown is False:
            superseded = True
            if position is None and whole is False:
                raise SnapshotTooOldError("a version that the snapshot shows was overwritten quietly")
        entries.append(None if position is None else Entry(version(position, row[6]), row[7], row[8]))
    return Shown(entries, rows[0][2], superseded)


def check_horizon(snapshot: Snapshot, stop: int, open_: Sequence[int]) -> None:
    """Raises `SnapshotTooOldError` for a snapshot that does not contain the horizon."""
    if not contains(snapshot, stop, open_):
        raise SnapshotTooOldError("the store no longer keeps this snapshot")
