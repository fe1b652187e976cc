"""Where no row lies: the gaps between neighbouring keys, kept in memory beside the newest rows.

A key that was never used before, such as that of an idempotency record, cannot be among the rows that are kept. But
who has looked for one key in vain has seen the two rows between which it would lie, and so knows the same of every key
between these two. A gap is the open interval between two neighbouring keys of ``current``, in the newest state.

**Why a gap is never wrong.** It is put in only for the state in which it was found. From one state to the next, keys
appear only by what the writer itself has written, and each of those is given to `fill`, which splits the gap that it
falls into, but for those whose row before is known: that is in no gap. Keys disappear only by compaction, which gives
each of them to `remove`. So every gap begins at a row that is there, two gaps have no key in common, and none has a row
inside.

Readers look while the writer changes the gaps, without a lock: each step they take is one call into C, and
`interlock.backends.sqlite.newest` makes them throw away what they found if the state changed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from interlock.model import Key

_MOST: Final = 1 << 15
"""How many are kept; beyond that, all are given up, so that a change of the list stays a matter of microseconds."""


class Gaps:
    """The gaps that are known."""

    __slots__ = ("_stops", "starts")

    def __init__(self) -> None:
        self.starts: list[Key] = []
        """The keys behind which one begins, in order."""
        self._stops: dict[Key, Key] = {}
        """Each of these -> the key before which it ends."""

    def cover(self, key: Key) -> bool:
        """Whether a key lies in a gap."""
        starts = self.starts
        place = bisect_left(starts, key)
        if not place:
            return False
        stop = self._stops.get(starts[place - 1])
        return stop is not None and key < stop

    def add(self, start: Key, stop: Key) -> None:
        """There is no row between these two keys."""
        if start not in self._stops:
            if self.full:
                return
            insort(self.starts, start)
        self._stops[start] = stop

    def remove(self, key: Key) -> None:
        """There is no row any more at a key."""
        if self._stops.pop(key, None) is not None:
            del self.starts[bisect_left(self.starts, key)]

    def fill(self, key: Key) -> None:
        """A row is written to a key, perhaps the first one there."""
        starts, stops = self.starts, self._stops
        place = bisect_left(starts, key)
        if not place:
            return
        start = starts[place - 1]
        stop = stops[start]
        if key < stop:
            starts.insert(place, key)
            stops[key] = stop
            stops[start] = key

    @property
    def full(self) -> bool:
        """Whether there are too many."""
        return len(self.starts) >= _MOST
