"""The lease of a durable saga: one coordinator at a time, renewed while it works, taken over when it is dead."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from interlock.core.engine import Engine
from interlock.errors import InterlockError
from interlock.layers.holdings import Holding
from interlock.layers.leases import new_lease
from interlock.model import Expectation, Key

log = logging.getLogger("interlock")


class LeaseFence:
    """A `Fence` made of a lease of the store."""

    def __init__(self, engine: Engine, name: str, agent: str, ttl_seconds: float) -> None:
        self._make: Callable[[], Holding] = functools.partial(
            new_lease, engine, name, agent, ttl_seconds, 0, False, False
        )
        self._holding: Holding | None = None

    async def acquire(self) -> None:
        """Take it. Raises `LeaseUnavailableError` while another one holds it."""
        holding = self._make()
        await holding.acquire()
        self._holding = holding

    def expectations(self) -> dict[Key, Expectation]:
        """What a commit expects that only the holder may make."""
        assert self._holding is not None
        return {key: guard.expected for key, guard in self._holding.guards().items()}

    async def release(self) -> None:
        """Give it back; whoever has lost it has nothing to give back."""
        assert self._holding is not None
        try:
            await self._holding.give_back(None)
        except InterlockError as failure:  # it ends by itself; what the saga has come to is not changed by that
            log.warning("the lease of a saga could not be given back: %s", failure)
