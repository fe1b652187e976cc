"""Leases in synchronous code: `interlock.layers.holdings`, each call stepped to its end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from interlock.core.carrying import Guard
from interlock.core.engine import Engine
from interlock.core.space import Resource
from interlock.keys import UserKey
from interlock.layers.holdings import FencingToken, Holding, described
from interlock.layers.leases import new_lease
from interlock.layers.standing import new_lock
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


class Lock(Held):
    """Keys of a resource that are locked. Made by `SharedResource.lock`; renews itself while the body runs."""

    __slots__ = ()


class Lockable:
    """`SharedResource.lock`."""

    _resource: Resource

    def lock(
        self,
        *keys: UserKey,
        agent: str | None = None,
        shared: bool = False,
        ttl_seconds: float = 5,
        wait_seconds: float = 10,
    ) -> Lock:
        """``with stock.lock("a", "b") as lock:`` keeps everybody else from writing these keys meanwhile.

        Sessions in the body, in the same thread, may write them, and commit only while the lock is held; elsewhere pass
        ``fence=lock``. All keys are taken at once, waiting in the order of arrival.

        Args:
            keys: which; none: the whole resource.
            agent: who holds it; default: the open session's agent, or the store's.
            shared: others may lock the same keys shared as well, and nobody may write them.
            ttl_seconds: how long it stays held after the last renewal; renewed three times as often. Shorter than
                others wait, so that they get what a dead process has held.
            wait_seconds: how long to wait.

        Raises: on entering `LockTimeoutError` with the holders; on leaving `LeaseLostError` if it was not held to the
            end."""
        return Lock(new_lock(self._resource, keys, agent, shared, ttl_seconds, wait_seconds))


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
