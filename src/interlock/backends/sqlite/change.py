"""What one request changes: the rows that it makes, and what its record says of each key.

Everything is computed here before anything of the batch is changed, because merges may still refuse. `plain` is the
same as `Change` for the common request, which puts values and does nothing else, in one flat loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from interlock import merges
from interlock.backends.sqlite import record as records
from interlock.backends.sqlite import trail as trails
from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.statements import (
    COLUMNS,
    EXPIRES_AT,
    IN_ORDER,
    KEY,
    LEFT_ORDER,
    LISTED,
    NONCE,
    POSITION,
    TRAIL,
    UNLISTED,
    VALUE,
    Row,
)
from interlock.model import (
    ABSENT,
    NONCE_MASK,
    BoundBroken,
    CommitRequest,
    Key,
    Merge,
    Merged,
    MergeRefused,
    Put,
    Span,
    Version,
    Write,
)

Image = records.Image | int | None
Rows = dict[Key, Row]
Written = dict[Key, tuple[int, float | None, Any, float | None, Image]]
"""The stored form of `record.Written` for each key."""


def plain(request: CommitRequest, before: Rows, position: int, nonce: int, now: float) -> tuple[Rows, Written] | None:
    """The new rows, and what is written, of a request that only puts; None for any other."""
    if request.clears or request.quiet:
        return None
    rows: Rows = {}
    written: Written = {}
    for key, write in request.writes.items():
        if type(write) is not Put:
            return None
        old = before.get(key)
        ttl_seconds = write.ttl_seconds
        expires_at = None if ttl_seconds is None else now + ttl_seconds
        kind = records.PUT if write.listed else records.PUT_UNLISTED
        if old is None:
            listed = IN_ORDER if write.listed else UNLISTED
            rows[key] = (key, position, nonce, write.value, expires_at or 0, trails.FIRST, listed)
            written[key] = (kind, ttl_seconds, None, expires_at, None)
        else:
            listed = IN_ORDER if write.listed else LEFT_ORDER if old[LISTED] else UNLISTED
            trail = trails.following(old[TRAIL], old[POSITION])
            rows[key] = (key, position, nonce, write.value, expires_at or 0, trail, listed)
            written[key] = (kind, ttl_seconds, None, expires_at, old[1:])
    return rows, written


class Change:
    """What any request changes. ``before`` are the newest rows, to which `clear` adds those that it finds."""

    __slots__ = ("before", "cleared", "merged", "nonce", "now", "position", "quiet", "rows", "written")

    def __init__(self, before: Rows, position: int, nonce: int, now: float, *, quiet: bool) -> None:
        self.before = before
        self.position = position
        self.nonce = nonce
        self.now = now
        self.quiet = quiet
        self.rows: Rows = {}
        self.written: Written = {}
        self.merged: dict[Key, Merged] | None = None
        self.cleared: tuple[Key, ...] = ()

    def write(self, key: Key, write: Write) -> None:
        """Apply one write."""
        old = self.before.get(key)
        if type(write) is Put:
            ttl_seconds = write.ttl_seconds
            expires_at = None if ttl_seconds is None else self.now + ttl_seconds
            kind = records.PUT if write.listed else records.PUT_UNLISTED
            listed = IN_ORDER if write.listed else UNLISTED if old is None or not old[LISTED] else LEFT_ORDER
            image = self._row(key, old, write.value, expires_at or 0, listed)
            self.written[key] = (kind, ttl_seconds, None, expires_at, image)
            return
        now = self.rows.get(key, old)
        value = None if now is None else now[VALUE]
        listed = IN_ORDER if old is None else old[LISTED]
        if type(write) is Merge:
            self._merge(key, write, old, value, listed)
        elif value is not None:
            self.written[key] = (records.DELETE, None, None, None, self._row(key, old, None, 0, listed))
        elif key not in self.rows:
            self.written[key] = (records.DELETE, None, None, None, records.NOTHING)
        else:
            self.written[key] = (records.DELETE, *self.written[key][1:])

    def _merge(self, key: Key, write: Merge, old: Row | None, value: bytes | None, listed: int) -> None:
        try:
            after = merges.apply(value, write.operations)
        except (BoundBroken, MergeRefused) as refusal:
            refusal.key = key
            raise
        if self.merged is None:
            self.merged = {}
        self.merged[key] = Merged(after != value, value)
        image: Image = records.NOTHING
        expires_at = 0.0
        if after != value:
            expires_at = 0.0 if old is None or value is None else old[EXPIRES_AT]
            image = self._row(key, old, after, expires_at, listed)
        self.written[key] = (records.MERGE, None, records.operations_form(write), expires_at or None, image)

    def _row(self, key: Key, old: Row | None, value: bytes | None, expires_at: float, listed: int) -> Image:
        """Make the new row of a key; the image of the old one."""
        if old is None:
            self.rows[key] = (key, self.position, self.nonce, value, expires_at, trails.FIRST, listed)
            return None
        trail: trails.Trail
        image: Image = old[1:]
        if self.quiet and old[VALUE] is not None:
            trail = trails.QUIET
            if old[TRAIL] == trails.QUIET:
                image = (old[POSITION], old[NONCE], None, 0, trails.QUIET, old[LISTED])
        else:
            trail = trails.following(old[TRAIL], old[POSITION])
        self.rows[key] = (key, self.position, self.nonce, value, expires_at, trail, listed)
        return image

    def clear(self, spans: Iterable[Span], connection: Connection) -> None:
        """Tombstones for every live listed key of the spans."""
        for start, stop in spans:
            found = connection.execute(
                f"SELECT {COLUMNS} FROM current WHERE key >= ? AND key < ? AND value IS NOT NULL AND listed = 1",
                (start, stop),
            )
            for row in found.fetchall():
                self.before.setdefault(row[KEY], row)
            for key in sorted(key for key in self.before.keys() - self.rows.keys() if start <= key < stop):
                old = self.before[key]
                if old[VALUE] is not None and old[LISTED] == IN_ORDER:
                    image = self._row(key, old, None, 0, IN_ORDER)
                    self.written[key] = (records.CLEAR, None, None, None, image)
        self.cleared = tuple(self.rows)


def record(request: CommitRequest, written: Written, cleared: tuple[Key, ...], before: Mapping[Key, Row]) -> bytes:
    """The feed record of a request."""
    reads: dict[Key, Version | None] = {} if request.observed is None else dict(request.observed)
    for key, expected in request.reads.items():
        if type(expected) is tuple:
            reads[key] = expected
        elif expected is ABSENT and (row := before.get(key)) is not None:
            reads[key] = (row[POSITION], row[NONCE] & NONCE_MASK)
        else:
            reads[key] = None
    return records.encode(
        (
            written,
            request.agent,
            request.isolation,
            request.operation,
            request.run_id,
            request.attempt,
            reads,
            request.spans,
            request.clears,
            cleared,
        )
    )
