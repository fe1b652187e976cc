"""Taking owners out of tables: those that are dead, and those that are done.

Every removal is one conditional commit. Of a dead owner it expects the pulse that was seen, so that one who renews
comes first; of an owner that gives back it expects the tenure, so that nothing of a later owner is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interlock.errors import SnapshotTooOldError
from interlock.layers import queues
from interlock.layers.desks import OPERATION, POLL_SECONDS, WAITS, Desk, Place, put_table, table_of
from interlock.layers.ledger import Ledger, is_expired
from interlock.layers.queues import Seat, Table
from interlock.layers.tenures import PULSES, TENURES, Tenure, takeover
from interlock.model import ABSENT, CommitRefused, Delete, Entry, Expectation, Key, Write


async def judge(
    desk: Desk, ledger: Ledger, seats: Sequence[Seat]
) -> tuple[dict[str, tuple[Entry | None, Entry | None]], float]:
    """The owners that are dead, with their tenures and pulses; and after how many seconds another one may be."""
    wanted = [key for seat in seats for key in (TENURES.key(seat.owner), PULSES.key(seat.owner))]
    reading = await ledger.backend.read(wanted)
    now = ledger.runtime.monotonic()
    dead: dict[str, tuple[Entry | None, Entry | None]] = {}
    patience = POLL_SECONDS
    for seat, tenure, pulse in zip(seats, reading.entries[::2], reading.entries[1::2], strict=True):
        left = desk.witness.look(ledger.backend, seat.owner, seat.ttl_seconds, tenure, pulse, reading.at, now)
        if left <= 0:
            dead[seat.owner] = (tenure, pulse)
        else:
            patience = min(patience, left)
    return dead, patience


async def remove(
    ledger: Ledger,
    place: Place,
    expected: Expectation,
    table: Table,
    dead: Mapping[str, tuple[Entry | None, Entry | None]],
    agent: str,
) -> bool:
    """End dead owners and take them out of a table; False if anything has changed meanwhile."""
    writes: dict[Key, Write] = {place.key: put_table(place, table.without(dead))}
    expectations: dict[Key, Expectation] = {place.key: expected}
    for owner, (tenure, pulse) in dead.items():
        more, conditions = takeover(owner, tenure, pulse)
        writes.update(more)
        expectations.update(conditions)
        writes[WAITS.key(owner)] = Delete()
    try:
        await ledger.commit(writes, expectations, agent=agent, durable=place.durable, quiet=True, operation=OPERATION)
    except (CommitRefused, SnapshotTooOldError):
        return False
    return True


async def release(desk: Desk, ledger: Ledger, tenure: Tenure, places: Sequence[Place]) -> bool:
    """End a tenure and take it out of its tables. What is somebody else's by now is left alone; True if it was the
    owner's to the end."""
    owned = False
    takes_turns = ledger.runtime is desk.engine.runtime
    for place in places:
        turn = object()
        entered = takes_turns and await desk.gates.enter(place.key, turn)
        try:
            owned = await _leave(desk, ledger, tenure, place) or owned
        finally:
            if entered:
                desk.gates.leave(place.key, turn)
    return owned


async def _leave(desk: Desk, ledger: Ledger, tenure: Tenure, place: Place) -> bool:
    """`release` of one table."""
    while True:
        reading = await ledger.backend.read((place.key, tenure.key, tenure.pulse_key))
        _, mine, pulse = reading.entries
        expected, table = table_of(place, reading.entries[0])
        new = table.without((tenure.owner,))
        writes, expectations = takeover(tenure.owner, mine, pulse)
        del expectations[tenure.pulse_key]  # a renewal that comes in between changes nothing
        live = mine is not None and mine.value is not None
        if tenure.owner in table.seats:
            writes[place.key], expectations[place.key] = put_table(place, new), expected
            writes[WAITS.key(tenure.owner)] = Delete()
        if not writes:
            return False
        try:
            if place.durable:  # a lease, for which nobody waits in the middle of a transaction
                done = await ledger.gathered(
                    writes, expectations, agent=tenure.agent, durable=False, snapshot=reading.token
                )
            else:
                done = await ledger.commit(
                    writes, expectations, agent=tenure.agent, durable=False, quiet=True, snapshot=reading.token,
                    operation=OPERATION,
                )  # fmt: skip
        except (CommitRefused, SnapshotTooOldError):
            continue
        if place.key in writes and done.version is not None:
            desk.remember(place, done.version if new.seats else ABSENT, new)
        expired = tenure.strict and (pulse is None or pulse.value is None or is_expired(pulse, reading.at))
        return live and not expired


def release_later(desk: Desk, tenure: Tenure, places: Sequence[Place]) -> None:
    """`release` in the background."""

    async def work(ledger: Ledger) -> None:
        await release(desk, ledger, tenure, places)

    desk.keeper.later(work)


def give_back(desk: Desk, tenure: Tenure, place: Place, *, only_wishes: bool) -> None:
    """In the background: take an owner out of a table; or, if it holds other things, only what it waits for."""
    if not only_wishes:
        desk.keeper.remove(tenure)
        release_later(desk, tenure, [place])
        return

    async def withdraw(ledger: Ledger) -> None:
        while True:
            reading = await ledger.backend.read((place.key,))
            expected, table = table_of(place, reading.entries[0])
            seat = table.seats.get(tenure.owner)
            if seat is None or not seat.wants:
                return
            try:
                await ledger.commit(
                    {
                        place.key: put_table(place, queues.given_up(table, tenure.owner)),
                        WAITS.key(tenure.owner): Delete(),
                    },
                    {place.key: expected},
                    agent=tenure.agent, durable=False, quiet=True, snapshot=reading.token,
                )  # fmt: skip
            except (CommitRefused, SnapshotTooOldError):
                continue
            return

    desk.keeper.later(withdraw)
