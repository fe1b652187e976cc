"""The leases of a store, for people: who holds what, with which token, and for how much longer.

A list is a look at records that go on changing; it holds nothing and decides nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from interlock.core.engine import Engine
from interlock.layers import queues
from interlock.layers.holdings import FencingToken
from interlock.layers.leases import LEASES
from interlock.layers.ledger import Ledger, Record
from interlock.layers.queues import Seat
from interlock.layers.tenures import PULSES, TENURES, tells_time
from interlock.model import Entry


class LeaseInfo(msgspec.Struct, frozen=True):
    """A lease as it was found. ``token`` is that of the present incarnation; ``seconds_left`` is None where the engine
    cannot tell, and 0 for a holder that has not renewed in time and that nobody has replaced yet. ``waiting`` names the
    agents that queue for it, in their order."""

    name: str
    holder: str
    agent: str
    token: FencingToken
    seconds_left: float | None
    ttl_seconds: float
    waiting: tuple[str, ...] = ()


async def list_leases(engine: Engine) -> list[LeaseInfo]:
    """Every lease that somebody holds, by name."""
    ledger = Ledger(engine)
    found: list[LeaseInfo] = []
    after = None
    while True:
        page = await ledger.scan(LEASES, after=after)
        holders = list(_holders(page.records))
        keys = [key for _, seat, _ in holders for key in (TENURES.key(seat.owner), PULSES.key(seat.owner))]
        reading = await ledger.backend.read(keys) if keys else None
        for place, (name, seat, waiting) in enumerate(holders):
            assert reading is not None
            tenure, pulse = reading.entries[2 * place : 2 * place + 2]
            if tenure is None or tenure.value is None:
                continue
            token = FencingToken(reading.token.incarnation, tenure.version[0])
            left = _left(pulse, reading.at) if tells_time(engine.backend) else None
            found.append(LeaseInfo(name, seat.owner, seat.agent, token, left, seat.ttl_seconds, waiting))
        if not page.more:
            return found
        after = LEASES.parts(page.records[-1].key)


def _holders(records: tuple[Record, ...]) -> Iterator[tuple[str, Seat, tuple[str, ...]]]:
    for record in records:
        table = queues.from_plain(record.value)
        queue = sorted((seat for seat in table.seats.values() if seat.wants), key=lambda seat: seat.turn)
        for seat in table.seats.values():
            if seat.held:
                yield str(LEASES.parts(record.key)[0]), seat, tuple(waiting.agent for waiting in queue)


def _left(pulse: Entry | None, at: float) -> float:
    if pulse is None or pulse.value is None or pulse.expires_at is None:
        return 0.0
    return max(0.0, pulse.expires_at - at)
