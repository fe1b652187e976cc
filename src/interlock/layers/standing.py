"""Locks outside sessions: `SharedResource.lock`.

The same locks as those of pessimistic sessions, held for the body of a ``with`` by an owner of their own. Sessions that
are begun inside the body, in the same task or thread, know them: they do not wait for them, and their commits are
fenced with them. Elsewhere they are passed on by ``fence=``.
"""

from __future__ import annotations

from typing import Any

from interlock.core.space import Resource
from interlock.keys import UserKey
from interlock.layers.errors import LockTimeoutError
from interlock.layers.holdings import SHORTEST_SECONDS, Held, Holding, agent_of, check_seconds, desk_of
from interlock.layers.locks import place_of, targets_of
from interlock.layers.tenures import Tenure


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
        """``async with stock.lock("a", "b") as lock:`` keeps everybody else from writing these keys meanwhile.

        Sessions in the body, in the same task or thread, may write them, and commit only while the lock is held;
        elsewhere pass ``fence=lock``. All keys are taken at once, waiting in the order of arrival.

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


def new_lock(
    resource: Resource, keys: tuple[Any, ...], agent: str | None, shared: bool, ttl_seconds: float, wait_seconds: float
) -> Holding:
    """The holding behind `SharedResource.lock` of both worlds."""
    space = resource.space
    ttl_seconds = check_seconds("ttl_seconds", ttl_seconds, SHORTEST_SECONDS)
    wait_seconds = check_seconds("wait_seconds", wait_seconds, 0)
    targets = targets_of(space, keys, bool(shared))
    said = ", ".join(map(repr, keys[:3])) + (", ..." if len(keys) > 3 else "")
    name = f"the lock on {said or 'everything'} in resource {space.name!r}"
    desk = desk_of(space.engine)
    tenure = Tenure(desk.new_owner(), agent_of(space.engine, agent), ttl_seconds, name=name, durable=False)

    def refuse(holders: tuple[str, ...]) -> LockTimeoutError:
        waited = f"within {wait_seconds:g} seconds" if wait_seconds else "at once"
        return LockTimeoutError(
            f"{name} was not to be had {waited}: it is held by {', '.join(holders)}", holders=holders
        )

    return Holding(desk, place_of(space), targets, tenure, wait_seconds, refuse, announced=True)
