"""Taking owners out of tables: those that are dead, and those that are done.

Every removal is one conditional commit. Of a dead owner it expects the pulse that was seen, so that one who renews
comes first; of an owner that gives back it expects the tenure, so that nothing of a later owner is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from interlock.errors import SnapshotTooOldError
from interlock.gates import HOLD_SECONDS
from interlock.layers import parts, queues
from interlock.layers.desks import OPERATION, POLL_SECONDS, WAITS, Desk, Place, put_table, table_of
from interlock.layers.ledger import Ledger, is_expired
from interlock.layers.parts import Known, View
from interlock.layers.queues import Seat
from interlock.layers.tenures import PULSES, TENURES, Tenure, takeover
from interlock.model import ABSENT, CommitRefused, Delete, Entry, Expectation, Key, Token, Write

_TOGETHER: Final = 3
"""How often to try to leave several tables at once."""


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
    ledger: Ledger, place: Place, view: View, dead: Mapping[str, tuple[Entry | None, Entry | None]], agent: str
) -> bool:
    """End dead owners and take them out of a table and its parts; False if anything has changed meanwhile."""
    writes: dict[Key, Write] = {}
    expectations: dict[Key, Expectation] = {}
    for key, (expected, _, table) in parts.without(place, view, dead).items():
        writes[key], expectations[key] = put_table(place, table), expected
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
    owner's to the end.

    All at once in one commit; where that does not succeed because others change the same tables all the time, in one
    after another. With the first of them the tenure is over, so that in the others nobody has to wait for it."""
    tenure.leaving = True
    takes_turns = ledger.runtime is desk.engine.runtime
    turn = object()
    places = sorted(places, key=lambda place: place.key)
    try:
        for place in places if takes_turns else ():
            await desk.gates.enter(place.key, turn, ledger.runtime.monotonic() + HOLD_SECONDS)
        if takes_turns and await _leave_as_known(desk, ledger, tenure, places):
            return True
        for _ in range(_TOGETHER if len(places) > 1 else 0):
            owned = await _leave(desk, ledger, tenure, places)
            if owned is not None:
                return owned
        return any([await _leave_one(desk, ledger, tenure, place) for place in places])
    finally:
        for place in places:
            desk.gates.leave(place.key, turn)


async def _leave_one(desk: Desk, ledger: Ledger, tenure: Tenure, place: Place) -> bool:
    while True:
        owned = await _leave(desk, ledger, tenure, (place,))
        if owned is not None:
            return owned


async def _leave_as_known(desk: Desk, ledger: Ledger, tenure: Tenure, places: Sequence[Place]) -> bool:
    """`release` of locks without a look, from the tables as this process has written them last. False: look."""
    if tenure.version is None or tenure.loss is not None or any(place.durable for place in places):
        return False
    known = {place.key: desk.tables.get(place.key) for place in places}
    if not all(each is not None and tenure.owner in each[1].seats for each in known.values()):
        return False
    found = {key: each for key, each in known.items() if each is not None}
    writes: dict[Key, Write] = {tenure.key: Delete(), tenure.pulse_key: Delete()}
    return await _send(desk, ledger, tenure, places, found, writes, {tenure.key: tenure.version}, tenure.token)


async def _leave(desk: Desk, ledger: Ledger, tenure: Tenure, places: Sequence[Place]) -> bool | None:
    """`release` from the tables as they are now; None if they have changed meanwhile."""
    reading = await ledger.backend.read((tenure.key, tenure.pulse_key, *[place.key for place in places]))
    mine, pulse, *entries = reading.entries
    writes, expectations = takeover(tenure.owner, mine, pulse)
    del expectations[tenure.pulse_key]  # a renewal that comes in between changes nothing
    live = mine is not None and mine.value is not None
    found = {place.key: table_of(place, entry) for place, entry in zip(places, entries, strict=True)}
    found = {key: known for key, known in found.items() if tenure.owner in known[1].seats}
    if not (writes or found):
        return False
    expired = tenure.strict and (pulse is None or pulse.value is None or is_expired(pulse, reading.at))
    if await _send(desk, ledger, tenure, places, found, writes, expectations, reading.token):
        return live and not expired
    return None


async def _send(
    desk: Desk,
    ledger: Ledger,
    tenure: Tenure,
    places: Sequence[Place],
    found: Mapping[Key, Known],
    writes: dict[Key, Write],
    expectations: dict[Key, Expectation],
    token: Token | None,
) -> bool:
    """Take an owner out of the tables in which it was found; False if they have changed meanwhile."""
    place = places[0]
    tables = {key: table.without((tenure.owner,)) for key, (_, table) in found.items()}
    for key, (expected, _) in found.items():
        writes[key], expectations[key] = put_table(place, tables[key]), expected
    if tenure.queued:
        writes[WAITS.key(tenure.owner)] = Delete()
    try:
        if place.durable:  # a lease, for which nobody waits in the middle of a transaction
            done = await ledger.gathered(writes, expectations, agent=tenure.agent, durable=False, snapshot=token)
        else:
            done = await ledger.commit(
                writes, expectations, agent=tenure.agent, durable=False, quiet=True, snapshot=token,
                operation=OPERATION,
            )  # fmt: skip
    except (CommitRefused, SnapshotTooOldError):
        return False
    for key, table in tables.items():
        if done.version is not None:
            desk.remember(key, done.version if table.seats or table.split else ABSENT, table)
    return True


def release_later(desk: Desk, tenure: Tenure, places: Sequence[Place]) -> None:
    """`release` in the background."""

    async def work(ledger: Ledger) -> None:
        await release(desk, ledger, tenure, places)

    desk.keeper.later(work)


def give_back(desk: Desk, tenure: Tenure, place: Place, *, only_wishes: bool) -> None:
    """In the background: take an owner out of a table; or, if it holds other things, only what it waits for."""
    if not only_wishes:
        desk.keeper.remove(tenure)
        release_later(desk, tenure, list(tenure.seated.values()))
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
