"""Parts: where the locks of single keys lie while many owners lock different keys of one resource.

One table for all locks of a resource is simple and exact, but everybody who locks anything rewrites it, so that owners
who have nothing to do with each other wait for each other's commits. A table is therefore *split* when it fills with
owners that hold single keys and nobody waits. Beside a split table, the *main* one, lie `PARTS` parts, and a key
belongs to one of them by its hash.

- **A part holds what is held, and nobody waits there.** Whoever wants a few single keys, with nothing in the way, takes
  them in their parts: the commit writes these parts, and expects the main table as it was read. It does not write the
  main table, so owners of different parts do not touch each other.
- **All that waits is in the main table**, and so is what ranges hold. Whoever meets anything in its way, or wants a
  range, goes there. It reads the main table and all parts in one reading; taken together (`View.all`) they are exactly
  the one table that there would be without parts, and the rules of `interlock.layers.queues`, for what is in the way,
  who came first, and for rings, are applied to that.
- **Both see each other.** A grant in a part expects the main table; a grant in the main table writes it, and expects
  every part in which something in its way could be. Of two that are in each other's way the one that commits second
  has not seen the first, and is refused. Queueing writes the main table and expects no part: so it succeeds however
  busy the parts are, and from then on nobody takes anything in a part that is in the way of who queues. So ranges do
  not starve, and nobody overtakes.
- **No wake-up is lost.** Who waits has read the main table and the parts after its place in the queue was written, and
  waits for a change of any of them since that reading.
- **A part is never without its main table.** That one stays as long as there may be anything in a part: it is made one
  again, or removed, only by a commit that expects all parts to be empty; and nobody writes a part but under the
  expectation that it is split. So for a writer of another mode the absence of the main table still means that nobody
  holds a lock there; if it is there, the writer looks at the parts of its keys, too, and expects them.

A split table that nobody uses any more is left as it is, an empty record. The next writer of another mode, or owner
that wants a range, finds it in its way and removes it (`unite`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from interlock.errors import SnapshotTooOldError
from interlock.layers import queues
from interlock.layers.desks import OPERATION, Place, put_table, table_of
from interlock.layers.ledger import Kind, Ledger
from interlock.layers.queues import Table, Target
from interlock.model import ABSENT, CommitRefused, Expectation, Key, Token

PARTS: Final = 32
"""How many parts a split table has. The same for ever: processes find each other's locks by it."""
SPLIT_AT: Final = 4
"""How many owners of single keys make a table worth splitting."""
FEW_TARGETS: Final = 4
"""The most keys of one wish that are taken in parts; more are dearer there than in the main table."""
MANY_IN_A_PART: Final = 16
"""How many keys one owner may hold in one part; then it goes to the main table, where too many become one range."""

Known = tuple[Expectation, Table]
"""A table, and what a commit expects that relies on it."""


class View(msgspec.Struct, frozen=True):
    """A table and its parts (none, if it is not split), as they were in one state. ``all`` is what they say
    together."""

    expected: Expectation
    main: Table
    parts: Mapping[Key, Known]
    all: Table
    token: Token | None = None

    def expectations(self, place: Place, targets: Sequence[Target]) -> dict[Key, Expectation]:
        """Of the parts in which something could lie that is in the way of these targets."""
        return {key: self.parts[key][0] for key in relevant(place, targets)} if self.parts else {}

    @property
    def is_idle(self) -> bool:
        """Whether the table is split for nothing: there is nobody in any part."""
        return self.main.split and not any(table.seats for _, table in self.parts.values())


def alone(known: Known) -> View:
    """The view of a table that has no parts, or is believed to."""
    return View(known[0], known[1], {}, known[1])


@lru_cache(1024)
def parts_of(kind: Kind, key: Key) -> tuple[Key, ...]:
    """The keys of all parts of a table."""
    return tuple(kind.extended(key, number) for number in range(PARTS))


def part_of(place: Place, target: Target) -> Key:
    """The key of the part of a single key."""
    return parts_of(place.kind, place.key)[zlib.crc32(target.start) % PARTS]


def relevant(place: Place, targets: Sequence[Target]) -> tuple[Key, ...]:
    """The keys of the parts that these targets concern, in order: of a range, all."""
    if all(target.is_key for target in targets):
        return tuple(sorted({part_of(place, target) for target in targets}))
    return parts_of(place.kind, place.key)


def watched(place: Place, view: View, targets: Sequence[Target]) -> tuple[Key, ...]:
    """The keys whose change may free these targets."""
    return (place.key, *relevant(place, targets)) if view.main.split else (place.key,)


def is_small(place: Place, targets: Sequence[Target]) -> bool:
    """Whether a wish is one that may be granted in parts."""
    return place.splits and len(targets) <= FEW_TARGETS and all(target.is_key for target in targets)


def worth_splitting(place: Place, table: Table) -> bool:
    """Whether a table has filled with owners that hold single keys, and nobody waits."""
    if not place.splits or table.split or len(table.seats) < SPLIT_AT:
        return False
    return all(not seat.wants and all(map(_is_key, seat.held)) for seat in table.seats.values())


def _is_key(target: Target) -> bool:
    return target.is_key


async def look(ledger: Ledger, place: Place, *, split: bool) -> View:
    """A table and its parts as they are now. ``split``: whether it is believed to have some; if that was wrong, it is
    read once more, so that what is returned is always of one state. Raises `BackendCorruptError`."""
    keys = parts_of(place.kind, place.key) if place.splits else ()
    reading = await ledger.backend.read((place.key, *keys) if split else (place.key,))
    expected, main = table_of(place, reading.entries[0])
    if not main.split:
        return View(expected, main, {}, main, reading.token)
    if not split:
        reading = await ledger.backend.read((place.key, *keys))
        expected, main = table_of(place, reading.entries[0])
        if not main.split:
            return View(expected, main, {}, main, reading.token)
    found = [table_of(place, entry) for entry in reading.entries[1:]]
    whole = queues.together(main, [table for _, table in found if table.seats])
    return View(expected, main, dict(zip(keys, found, strict=True)), whole, reading.token)


def without(place: Place, view: View, owners: Iterable[str]) -> dict[Key, tuple[Expectation, Table, Table]]:
    """The tables of a view in which some owners have seats: what is expected, as it is, as it is without them."""
    gone = set(owners)
    tables = {place.key: (view.expected, view.main), **view.parts}
    return {
        key: (expected, table, table.without(gone))
        for key, (expected, table) in tables.items()
        if not gone.isdisjoint(table.seats)
    }


async def unite(ledger: Ledger, place: Place, view: View, agent: str) -> bool:
    """Make a split table one again, or remove it; False if anything has changed meanwhile."""
    expectations = {place.key: view.expected, **dict.fromkeys(view.parts, ABSENT)}
    table = msgspec.structs.replace(view.main, split=False)
    try:
        await ledger.commit(
            {place.key: put_table(place, table)}, expectations,
            agent=agent, durable=False, quiet=True, snapshot=view.token, operation=OPERATION,
        )  # fmt: skip
    except (CommitRefused, SnapshotTooOldError):
        return False
    return True
