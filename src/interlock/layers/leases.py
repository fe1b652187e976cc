"""Leases: an exclusive right to a name that ends by itself, with a fencing token that only grows.

A lease is the one target of its own table (`interlock.layers.queues`), so waiting is fair, and an owner's tenure
(`interlock.layers.tenures`), so that whoever was believed dead cannot go on. Its grants are durable; renewals are not.

- The token is the position of the granting commit with the engine's incarnation in front. Grants of one lease write one
  record one after another, so positions grow; where a crash of the engine can give a position again, it raises the
  incarnation first. There is no counter that could be compacted away.
- A session that is fenced with a lease expects the tenure's version in its own commit. Commit and takeover are both
  conditional on one record, so of the two exactly one comes first: a commit that was accepted lies before the takeover,
  and none lies after it. No clock is in this argument.
- ``strict=True`` adds the engine's clock to it: the commit expects the pulse to be alive, so that it is refused from
  the moment of expiry, also when nobody has taken over.
"""

from __future__ import annotations

from interlock import keys
from interlock.core.engine import Engine
from interlock.errors import (
    UnsupportedError,
)
from interlock.layers.desks import Place
from interlock.layers.errors import LeaseUnavailableError
from interlock.layers.holdings import SHORTEST_SECONDS, Held, Holding, agent_of, check_seconds, desk_of
from interlock.layers.ledger import Kind
from interlock.layers.queues import EVERYTHING
from interlock.layers.tenures import Tenure, tells_time
from interlock.ports import Capability

LEASES = Kind("lease", count=1)


class Lease(Held):
    """A named right that one holder has at a time. Made by `Store.lease`; renews itself while the body runs."""

    __slots__ = ()


class Leasing:
    """`Store.lease`."""

    _engine: Engine

    def lease(
        self,
        name: str,
        *,
        agent: str | None = None,
        ttl_seconds: float = 30,
        wait_seconds: float = 0,
        strict: bool = False,
        cancel_on_loss: bool = False,
    ) -> Lease:
        """``async with store.lease("nightly-report") as lease:`` makes sure that one holder at a time is in the body.

        Args:
            name: the same name is the same lease in every process.
            agent: who holds it; default: the open session's agent, or the store's.
            ttl_seconds: how long it stays held after the last renewal; renewed three times as often.
            wait_seconds: how long to wait for it, in the order of arrival; 0: take it now or not at all.
            strict: commits that are fenced with it are refused from its expiry on, also if nobody has taken it over.
            cancel_on_loss: cancel the body when the lease is lost; the exit then raises `LeaseLostError`. Only for
                asynchronous code.

        Raises: on entering `LeaseUnavailableError` (the body does not run), `UnsupportedError` for ``strict`` on an
            engine without a clock; on leaving `LeaseLostError` if it was not held to the end."""
        return Lease(new_lease(self._engine, name, agent, ttl_seconds, wait_seconds, strict, cancel_on_loss))


def new_lease(
    engine: Engine,
    name: str,
    agent: str | None,
    ttl_seconds: float,
    wait_seconds: float,
    strict: bool,
    cancel_on_loss: bool,
) -> Holding:
    """The holding behind `Store.lease` of both worlds."""
    shown = f"lease {keys.check_name('the name of a lease', name)!r}"
    ttl_seconds = check_seconds("ttl_seconds", ttl_seconds, SHORTEST_SECONDS)
    wait_seconds = check_seconds("wait_seconds", wait_seconds, 0)
    if strict and not tells_time(engine.backend):
        raise UnsupportedError("strict=True needs an engine that tells the time", capability=Capability.CLOCK.value)
    desk = desk_of(engine)
    tenure = Tenure(
        desk.new_owner(), agent_of(engine, agent), ttl_seconds, name=shown, durable=True, strict=bool(strict)
    )
    place = Place(LEASES, LEASES.key(name), shown, EVERYTHING, durable=True)

    def refuse(holders: tuple[str, ...]) -> LeaseUnavailableError:
        waited = f", and was not free within {wait_seconds:g} seconds" if wait_seconds else ""
        return LeaseUnavailableError(f"{shown} is held by {', '.join(holders)}{waited}", lease=name, holders=holders)

    return Holding(desk, place, (EVERYTHING,), tenure, wait_seconds, refuse, cancels=cancel_on_loss)
