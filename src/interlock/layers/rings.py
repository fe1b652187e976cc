"""Rings of waiting: found by following who waits for whom from table to table, ended by the youngest giving way.

Each owner that queues writes, in the commit that queues it, where it waits. It looks for rings after that commit. An
edge of the graph (this owner waits for that one) exists only once the waiting owner has queued, so when the last edge
of a ring appears, all of them are in the store, and the owner that made it sees them all. The records are read one
after another, not at one moment: what looks like a ring may have ended meanwhile. Then somebody gives way without
need, and runs again; a real ring lasts until somebody does, so none is missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from interlock.errors import (
    SnapshotTooOldError,
)
from interlock.layers import parts, queues
from interlock.layers.desks import WAITS, Place, put_table, table_of
from interlock.layers.errors import DeadlockError
from interlock.layers.ledger import Ledger
from interlock.layers.queues import Seat, Table
from interlock.layers.tenures import Tenure
from interlock.model import CommitRefused, Key


async def broken(ledger: Ledger, tenure: Tenure, place: Place, table: Table) -> bool:
    """Condemn the youngest of a ring of waiting that goes through this owner; True if there was one."""
    seats = await _ring(ledger, tenure, place, table)
    if not seats:
        return False
    youngest = max(seats, key=lambda seat: seat.born)
    agents = tuple(dict.fromkeys(seat.agent for seat in seats))
    if youngest.owner == tenure.owner:
        raise DeadlockError(
            f"{place.name}: a ring of {len(seats)} transactions waited for each other, and this one, the "
            f"youngest, gives way (agents {', '.join(agents)})",
            holders=agents,
        )
    if youngest.victim:  # it has been told already, and has to be waited for
        return False
    await _condemn(ledger, tenure, place, youngest.owner, agents)
    return True


async def _condemn(ledger: Ledger, tenure: Tenure, place: Place, owner: str, agents: Sequence[str]) -> None:
    reading = await ledger.backend.read((WAITS.key(owner),))
    key = WAITS.load(reading.entries[0])
    if key is None:
        return
    found = await ledger.backend.read((key,))
    place = msgspec.structs.replace(place, key=key)
    expected, table = table_of(place, found.entries[0])
    seat = table.seats.get(owner)
    if seat is None or not seat.wants or seat.victim:
        return
    try:
        await ledger.commit(
            {key: put_table(place, queues.condemned(table, owner, agents))}, {key: expected},
            agent=tenure.agent, durable=False, quiet=True, snapshot=found.token,
        )  # fmt: skip
    except (CommitRefused, SnapshotTooOldError):  # looked at again at the next wake-up
        return


async def _ring(ledger: Ledger, own: Tenure, place: Place, table: Table) -> list[Seat]:
    """The seats of a ring through this owner, found by following who waits for whom from table to table."""
    tables: dict[Key, Table] = {place.key: table}
    edges: dict[str, list[str]] = {}
    seats: dict[str, Seat] = {}
    frontier = [own.owner]
    places: dict[str, Key] = {own.owner: place.key}
    while frontier:
        unknown = [owner for owner in frontier if owner not in places]
        if unknown:
            reading = await ledger.backend.read([WAITS.key(owner) for owner in unknown])
            found = {owner: WAITS.load(entry) for owner, entry in zip(unknown, reading.entries, strict=True)}
            places.update((owner, key) for owner, key in found.items() if key is not None)
            for key in found.values():
                if key is not None and key not in tables:
                    there = msgspec.structs.replace(place, key=key)
                    tables[key] = (await parts.look(ledger, there, split=False)).all
        following: list[str] = []
        for owner in frontier:
            where = tables.get(places.get(owner, b""))
            seat = None if where is None else where.seats.get(owner)
            if where is None or seat is None or not seat.wants:
                edges[owner] = []
                continue
            seats[owner] = seat
            edges[owner] = [blocker.owner for blocker in queues.in_the_way(where, owner, seat.wants)]
            following += [blocker for blocker in edges[owner] if blocker not in edges]
        frontier = [owner for owner in dict.fromkeys(following) if owner not in edges]
    return [seats[owner] for owner in queues.ring(edges, own.owner)]
