"""Who holds what, and who waits for it: the table of one resource's locks or of one lease, as pure functions.

A table has a seat for each owner. What an owner holds and what it wants are targets: ranges of stored keys, shared or
exclusive; a single key is the range that holds just that key, a lease is the range of everything. Two targets are
in each other's way if they overlap and are not both shared.

Who is in the way of a wish: owners that hold something in its way, and owners that wait for something in its way and
came earlier. So nobody is overtaken, and readers that keep coming do not starve a writer. One exception: whoever holds
something that the earlier one waits for does not queue behind it, since that could only end as a deadlock; this is what
lets a shared lock be made exclusive.

A wish of several targets is granted as a whole or not at all. A table is changed only under compare-and-swap
(`interlock.layers.contests`), so these functions see one state and decide one next state. A table that many use for
different keys is *split*: what its owners hold may then lie in its parts as well, see `interlock.layers.parts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

MANY_TARGETS: Final = 256
"""How many targets one owner may hold in one table before they become one for the whole."""


class Target(NamedTuple):
    """A range of stored keys."""

    start: bytes
    stop: bytes
    shared: bool = False

    def clashes_with(self, other: Target) -> bool:
        """Whether two owners cannot hold these at once."""
        return not (self.shared and other.shared) and self.start < other.stop and other.start < self.stop

    @property
    def is_key(self) -> bool:
        """Whether this is the range of a single key."""
        return self.stop == self.start + b"\0"

    def covers(self, other: Target) -> bool:
        """Whether to hold this is to hold the other."""
        return self.start <= other.start and other.stop <= self.stop and (other.shared or not self.shared)


EVERYTHING: Final = Target(b"", b"\xff")
"""What a lease is about: the whole of its table."""


class Seat(msgspec.Struct, frozen=True):
    """An owner in a table. ``born`` orders owners by age and is kept over retries; ``turn`` is its place in the queue
    while it wants something; ``victim``: the agents of the ring that it was chosen to end."""

    owner: str
    agent: str
    born: int
    ttl_seconds: float
    held: tuple[Target, ...] = ()
    wants: tuple[Target, ...] = ()
    turn: int = 0
    victim: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True):
    """All seats, by owner. ``turns`` counts those who have queued; ``split``: it has parts beside it."""

    seats: dict[str, Seat]
    turns: int = 0
    split: bool = False

    def plain(self) -> list[Any]:
        """As the plainest data, for a record: only what msgpack keeps as it is (an age has 128 bits)."""
        rows = [
            [s.owner, s.agent, f"{s.born:x}", s.ttl_seconds, list(map(list, s.held)), list(map(list, s.wants)), s.turn,
             list(s.victim)]
            for s in self.seats.values()
        ]  # fmt: skip
        return [self.turns, rows, True] if self.split else [self.turns, rows]

    def seat(self, owner: str) -> Seat | None:
        """The seat of an owner."""
        return self.seats.get(owner)

    def with_seat(self, seat: Seat) -> Table:
        """The table with a seat put in or replaced; one that holds and wants nothing is left out."""
        seats = {**self.seats, seat.owner: seat}
        if not (seat.held or seat.wants):
            del seats[seat.owner]
        return Table(seats, self.turns, self.split)

    def without(self, owners: Iterable[str]) -> Table:
        """The table without some owners."""
        gone = set(owners)
        return Table({owner: seat for owner, seat in self.seats.items() if owner not in gone}, self.turns, self.split)


EMPTY: Final = Table({})


_Row = tuple[str, str, str, float, tuple[Target, ...], tuple[Target, ...], int, tuple[str, ...]]


def from_plain(value: Any) -> Table:
    """The table of a record; an empty one where there is none. Raises `ValueError` for what is none."""
    if value is None:
        return EMPTY
    if type(value) not in (list, tuple) or len(value) < 2 or type(value[0]) is not int:
        raise ValueError("it is no table")
    turns, rows, *split = value
    rows = msgspec.convert(rows, list[_Row])
    seats = {}
    for owner, agent, born, ttl_seconds, held, wants, turn, victim in rows:
        seats[owner] = Seat(owner, agent, int(born, 16), ttl_seconds, held, wants, turn, victim)
    return Table(seats, turns, split == [True])


def in_the_way(table: Table, owner: str, wants: Sequence[Target]) -> list[Seat]:
    """The seats of everybody whom a wish of an owner has to wait for, as the module's docstring says."""
    own = table.seats.get(owner)
    queued = own is not None and bool(own.wants)
    found = []
    for seat in table.seats.values():
        if seat.owner == owner:
            continue
        holds = _clash(seat.held, wants)
        earlier = bool(seat.wants) and not (queued and own is not None and own.turn < seat.turn)
        if holds or (earlier and _clash(seat.wants, wants) and not (own and _clash(own.held, seat.wants))):
            found.append(seat)
    return found


def holders_of(table: Table, targets: Sequence[Target], *, but: str = "") -> list[Seat]:
    """The seats that hold something in the way of these targets; nobody's place in the queue counts."""
    return [seat for seat in table.seats.values() if seat.owner != but and _clash(seat.held, targets)]


def together(table: Table, parts: Iterable[Table]) -> Table:
    """A table and its parts as if they were one: what each owner holds in any of them."""
    seats = dict(table.seats)
    for part in parts:
        for owner, seat in part.seats.items():
            have = seats.get(owner)
            seats[owner] = seat if have is None else msgspec.structs.replace(have, held=(*have.held, *seat.held))
    return Table(seats, table.turns, table.split)


def _clash(some: Sequence[Target], others: Sequence[Target]) -> bool:
    return any(one.clashes_with(other) for one in some for other in others)


def missing(table: Table, owner: str, wants: Sequence[Target]) -> list[Target]:
    """What of a wish the owner does not hold yet."""
    own = table.seats.get(owner)
    held = () if own is None else own.held
    return [target for target in wants if not any(have.covers(target) for have in held)]


def granted(table: Table, seat: Seat, wants: Sequence[Target], whole: Target) -> Table:
    """The table in which an owner holds what it wanted, too. ``seat`` is the owner's, or a new one; ``whole`` is what
    its targets become when they are too many."""
    held = [have for have in seat.held if not any(target.covers(have) for target in wants)]
    held += [target for target in wants if not any(have.covers(target) for have in held)]
    if len(held) > MANY_TARGETS:
        held = [Target(whole.start, whole.stop, all(target.shared for target in held))]
    return table.with_seat(msgspec.structs.replace(seat, held=tuple(dict.fromkeys(held)), wants=(), turn=0, victim=()))


def queued(table: Table, seat: Seat, wants: Sequence[Target]) -> Table:
    """The table in which an owner waits, behind everybody who does already."""
    turn = table.turns + 1
    waiting = msgspec.structs.replace(seat, wants=tuple(wants), turn=turn, victim=())
    return Table(table.with_seat(waiting).seats, turn, table.split)


def given_up(table: Table, owner: str) -> Table:
    """The table in which an owner no longer waits; what it holds it keeps."""
    seat = table.seats.get(owner)
    if seat is None:
        return table
    return table.with_seat(msgspec.structs.replace(seat, wants=(), turn=0, victim=()))


def condemned(table: Table, owner: str, agents: Sequence[str]) -> Table:
    """The table in which a waiting owner is told to give way, to end a ring of these agents."""
    seat = table.seats[owner]
    return table.with_seat(msgspec.structs.replace(seat, victim=tuple(agents)))


def ring(edges: dict[str, list[str]], owner: str) -> list[str]:
    """The owners of a ring of waiting that goes through ``owner``, beginning with it; empty if there is none."""
    path: list[str] = []
    seen: set[str] = set()
    stack: list[tuple[str, int]] = [(owner, 0)]
    while stack:
        current, depth = stack.pop()
        del path[depth:]
        path.append(current)
        for following in edges.get(current, ()):
            if following == owner:
                return path
            if following not in seen:
                seen.add(following)
                stack.append((following, depth + 1))
    return []
