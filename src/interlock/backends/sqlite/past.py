"""From a row to those before it: what a snapshot shows of a key that has changed since.

Each step reads the record of a commit, which keeps the image of the version that it replaced; which one, says the trail
of the newer version (`interlock.backends.sqlite.trail`). The last few records are kept decoded, because a record never
changes; whether the snapshot is still good is for the caller to check afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from interlock.backends.sqlite import record as records
from interlock.backends.sqlite.statements import POSITION, TRAIL, Row
from interlock.backends.sqlite.trail import QUIET, back
from interlock.backends.sqlite.validation import too_old
from interlock.errors import SnapshotTooOldError

_RECORDS_KEPT: Final = 16


class Past:
    """The superseded versions, as one connection sees them."""

    __slots__ = ("_execute", "_records")

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute
        self._records: dict[int, records.Replaced] = {}

    def _record(self, position: int) -> records.Replaced:
        """What the commit at a position replaced. Raises `KeyError` where it is no longer kept."""
        record = self._records.get(position)
        if record is None:
            found = self._execute("SELECT record FROM feed WHERE position = ?", (position,)).fetchone()
            if found is None or found[0] is None:
                raise KeyError(position)
            if len(self._records) >= _RECORDS_KEPT:
                self._records.clear()
            record = self._records[position] = records.decode_replaced(found[0])
        return record

    def as_of(self, row: Row, snapshot: int, *, for_feed: bool = False) -> Row | None:
        """The row of a key that a snapshot shows, from a newer one. ``for_feed`` goes on past quiet commits."""
        key = row[0]
        while row[POSITION] > snapshot:
            if row[TRAIL] == QUIET and not for_feed:
                raise SnapshotTooOldError("a version that the snapshot shows was replaced by a commit that keeps none")
            try:
                image = records.replaced_of(key, self._record(back(row[TRAIL], row[POSITION], snapshot)))
            except KeyError:
                raise too_old(snapshot) from None
            if image is None:
                return None
            if image[POSITION] >= row[POSITION]:  # of a damaged file: the way would not end
                raise ValueError(f"the version at {row[POSITION]} has replaced one that is not older")
            row = image
        return row
