"""Snapshots and cursors as tokens: sets of transactions, and how they grow.

A token stands for the set of transactions ``position < token.position`` without those listed in ``detail``, which were
under way when it was taken. This is PostgreSQL's own snapshot, with one change: its upper end is clamped to just
behind the newest position that has a record. Ids that were given out beyond that and rolled back may be given out
again after crash recovery, and a token that reached further would then show transactions that it never contained.

Three ways to make one: `clamped` from a snapshot, `behind_own` for the reply to a commit, and `advanced`, the cursor
behind one record of the feed. The last is exact: between two tokens the records come in the order of positions, so
"what the first contained, and of the second everything up to this position" is again such a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Snapshot(NamedTuple):
    """A set of transactions: those below ``stop`` that are not in ``open``, which is sorted."""

    stop: int
    open: tuple[int, ...] = ()

    def shows(self, position: int) -> bool:
        """Whether the transaction at a position is in the set."""
        return position < self.stop and position not in self.open

    def detail(self) -> bytes:
        """The open positions as a token keeps them."""
        return b"".join([position.to_bytes(8, "big") for position in self.open])


NOTHING = Snapshot(1)
"""The snapshot of an empty store."""


def from_detail(stop: int, detail: bytes) -> Snapshot:
    """The snapshot of a token."""
    if not detail:
        return Snapshot(stop)
    return Snapshot(stop, tuple(int.from_bytes(detail[at : at + 8], "big") for at in range(0, len(detail), 8)))


def parsed(text: str) -> Snapshot:
    """The snapshot that PostgreSQL writes as ``xmin:xmax:xip``."""
    _, stop, open_ = text.split(":")
    return Snapshot(int(stop), tuple(sorted(map(int, open_.split(",")))) if open_ else ())


def clamped(seen: Snapshot, newest: int | None) -> Snapshot:
    """A snapshot that ends just behind the newest record that it shows."""
    stop = 1 if newest is None else newest + 1
    if seen.stop < stop:
        return seen
    return Snapshot(stop, tuple([position for position in seen.open if position < stop]) if seen.open else ())


def behind_own(seen: Snapshot, newest: int | None, own: int) -> Snapshot:
    """What a commit saw when it held all its locks, and itself."""
    if newest is not None and newest > own:
        return Snapshot(newest + 1, tuple([p for p in seen.open if p <= newest and p != own]))
    unfinished = [position for position in (*seen.open, *range(seen.stop, own)) if position < own]
    return Snapshot(own + 1, tuple(unfinished))


def advanced(since: Snapshot, until: Snapshot, position: int) -> Snapshot:
    """``since``, and everything of ``until`` up to a position."""
    still_open: Iterable[int] = [p for p in since.open if p > position or not until.shows(p)]
    if position < since.stop:
        return Snapshot(since.stop, tuple(still_open))
    between = [p for p in until.open if since.stop <= p <= position]
    return Snapshot(position + 1, (*still_open, *between))


def contains(snapshot: Snapshot, horizon_stop: int, horizon_open: Sequence[int]) -> bool:
    """Whether a snapshot shows everything that lies below the horizon."""
    if horizon_stop > snapshot.stop:
        return False
    return not any(position < horizon_stop and position not in horizon_open for position in snapshot.open)
