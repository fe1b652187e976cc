"""Snapshots and cursors as tokens: sets of positions, and how they grow.

**Positions.** Commits that are sent together share a transaction of the server, so a position is the transaction's id
times `ROOM`, plus the place of the commit among those of its transaction. The last place of each transaction is never
given out; it stands for the transaction as a whole.

A token stands for the set of positions ``position < token.position`` without those that ``detail`` hides: all of a
transaction that was under way when the token was taken (its last place is listed), or single positions of one that a
cursor is in the middle of. This is PostgreSQL's own snapshot, with one change: its upper end is clamped to just behind
the newest position that has a record. Ids that were given out beyond that and rolled back may be given out again
after crash recovery, and a token that reached further would then show transactions that it never contained.

Three ways to make one: `clamped` from a snapshot, `behind_own` for the reply to a commit, and `advanced`, the cursor
behind one record of the feed. The last is exact: between two tokens the records come in the order of positions, so
"what the first contained, and of the second everything up to this position" is again such a set. A commit says how
many of its transaction come after it (``rest``), and these are what is listed one by one; no cursor is in the middle of
more than one transaction, because the records of one transaction follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ROOM: Final = 256
"""Places in one transaction of the server."""
_LAST: Final = ROOM - 1


def whole(transaction: int) -> int:
    """The place that stands for all of a transaction."""
    return transaction * ROOM + _LAST


def _first(hidden: int) -> int:
    """The first position that an element of ``open`` hides."""
    return hidden - _LAST if hidden & _LAST == _LAST else hidden


class Snapshot(NamedTuple):
    """A set of positions: those below ``stop`` that ``open``, which is sorted, does not hide."""

    stop: int
    open: tuple[int, ...] = ()

    def shows(self, position: int) -> bool:
        """Whether a position is in the set."""
        return position < self.stop and position not in self.open and position | _LAST not in self.open

    def detail(self) -> bytes:
        """What is hidden as a token keeps it."""
        return b"".join([position.to_bytes(8, "big") for position in self.open])

    def lowest(self) -> int:
        """Every position below this one is in the set."""
        return _first(self.open[0]) if self.open else self.stop


NOTHING = Snapshot(1)
"""The snapshot of an empty store."""


def from_detail(stop: int, detail: bytes) -> Snapshot:
    """The snapshot of a token."""
    if not detail:
        return Snapshot(stop)
    return Snapshot(stop, tuple([int.from_bytes(detail[at : at + 8], "big") for at in range(0, len(detail), 8)]))


def parsed(text: str) -> Snapshot:
    """The snapshot that PostgreSQL writes as ``xmin:xmax:xip``."""
    _, stop, open_ = text.split(":")
    return Snapshot(int(stop) * ROOM, tuple(sorted([whole(int(part)) for part in open_.split(",")])) if open_ else ())


def clamped(seen: Snapshot, newest: int | None) -> Snapshot:
    """A snapshot that ends just behind the newest record that it shows."""
    stop = 1 if newest is None else newest + 1
    if seen.stop < stop:
        return seen
    return Snapshot(stop, tuple([position for position in seen.open if position < stop]) if seen.open else ())


def behind_own(seen: Snapshot, newest: int | None, own: int) -> Snapshot:
    """What a commit saw when it held all its locks, and itself. ``own``: the last position of its transaction."""
    mine = own | _LAST
    if newest is not None and newest > own:
        return Snapshot(newest + 1, tuple([p for p in seen.open if p <= newest and p != mine]))
    between = range(seen.stop // ROOM, own // ROOM)
    return Snapshot(own + 1, (*[p for p in seen.open if p < own], *[whole(transaction) for transaction in between]))


def advanced(since: Snapshot, until: Snapshot, position: int, rest: int = 0) -> Snapshot:
    """``since``, and everything of ``until`` up to a position, behind which its transaction has ``rest`` more."""
    still_open = [p for p in since.open if _first(p) > position or not until.shows(_first(p))]
    if position >= since.stop:
        between = [p for p in until.open if since.stop <= p <= position]
        return Snapshot(position + 1, (*still_open, *between))
    if position | _LAST in since.open:
        still_open += range(position + 1, position + 1 + rest)
        still_open.sort()
    return Snapshot(since.stop, tuple(still_open))


def contains(snapshot: Snapshot, horizon_stop: int, horizon_open: Sequence[int]) -> bool:
    """Whether a snapshot shows everything that lies below the horizon."""
    if horizon_stop > snapshot.stop:
        return False
    return not any(
        _first(hidden) < horizon_stop and hidden not in horizon_open and hidden | _LAST not in horizon_open
        for hidden in snapshot.open
    )
