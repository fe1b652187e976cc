"""Leases in synchronous code: `interlock.layers.holdings`, each call stepped to its end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from interlock.core.carrying import Guard
from interlock.core.engine import Engine
from interlock.layers.holdings import FencingToken, Holding, described
from interlock.layers.leases import new_lease
from interlock.model import Key
from interlock.stepping import step


class Held:
    """Something that is held for the body of a ``with`` and renews itself meanwhile."""

    __slots__ = ("_holding",)

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    def __repr__(self) -> str:
        return described(self, self._holding)

    @property
    def token(self) -> FencingToken:
        """The fencing token: larger than that of every earlier grant, also over restarts. `UsageError` before it is
        acquired."""
        return self._holding.token

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost, or was not renewed for ``ttl_seconds``, so that others may have it."""
        return self._holding.lost

    def check(self) -> None:
        """Renew it at once. Raises `LeaseLostError` if it is no longer held."""
        step(self._holding.confirm())

    def wait_lost(self) -> None:
        """Wait until it is lost or given back."""
        step(self._holding.until_lost())

    def guards(self) -> dict[Key, Guard]:
        """What the commit of a session carries that is fenced with it; see `AgentSession.fence`."""
        return self._holding.guards()

    def __enter__(self) -> Self:
        step(self._holding.acquire())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        step(self._holding.give_back(error))


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
        """``with store.lease("nightly-report") as lease:`` makes sure that one holder at a time is in the body.

        Args:
            name: the same name is the same lease in every process.
            agent: who holds it; default: the open session's agent, or the store's.
            ttl_seconds: how long it stays held after the last renewal; renewed three times as often.
            wait_seconds: how long to wait for it, in the order of arrival; 0: take it now or not at all.
            strict: commits that are fenced with it are refused from its expiry on, also if nobody has taken it over.
            cancel_on_loss: refused, since a thread cannot be cancelled; ask `Lease.lost` or call `Lease.check`.

        Raises: on entering `LeaseUnavailableError` (the body does not run), `UnsupportedError` for ``strict`` on an
            engine without a clock; on leaving `LeaseLostError` if it was not held to the end."""
        return Lease(new_lease(self._engine, name, agent, ttl_seconds, wait_seconds, strict, cancel_on_loss))
