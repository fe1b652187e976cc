"""Stores for tests in asynchronous code. `interlock.testing.sync` has the same names for synchronous code."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

import interlock
from interlock.backends.memory import MemoryBackend
from interlock.core.isolation import Isolation
from interlock.core.retry import RetryPolicy
from interlock.errors import UsageError
from interlock.opening import backend_for
from interlock.testing.clock import Clock
from interlock.testing.faults import RIVAL_OPERATION, FaultyBackend

AT_ONCE: Final = RetryPolicy(base_seconds=0)
"""The retry policy of stores in tests: as many attempts as usual, without waiting between them."""


def open_store(
    url: str = "memory://",
    *,
    agent: str = "test",
    clock: Clock | None = None,
    isolation: Isolation = "serializable",
    retry: RetryPolicy = AT_ONCE,
    idempotency_ttl_seconds: float = 2_592_000,
    history_seconds: float = 86_400,
    **options: Any,
) -> interlock.Store:
    """A store for a test: as `interlock.open`, with an agent's name, retries that do not wait, and room for faults.

    Args:
        url: as in `interlock.open`; the default is a memory store of its own.
        clock: the time that the store lives in, for memory stores; default: real time.

    Raises: `UsageError` as `interlock.open` does, and for a clock with a store that has a clock of its own."""
    return interlock.Store(
        backend_for_test(url, clock, options, suspends=True),
        agent=agent,
        isolation=isolation,
        retry=retry,
        idempotency_ttl_seconds=idempotency_ttl_seconds,
        history_seconds=history_seconds,
        runtime=None if clock is None else clock.runtime(suspends=True),
    )


async def commits(store: interlock.Store) -> list[interlock.Change]:
    """The committed transactions that the store still keeps, oldest first; without those that the tools of this
    package made, and without compaction's."""
    return [change async for change in store.log.changes() if by_program(change)]


def by_program(change: interlock.Change) -> bool:
    """Whether a change is the doing of the program under test."""
    return change.operation != RIVAL_OPERATION and not (change.agent == "interlock" and change.operation == "compact")


def backend_for_test(url: str, clock: Clock | None, options: dict[str, Any], *, suspends: bool) -> FaultyBackend:
    """The backend of `open_store` in both worlds."""
    if clock is None:
        return FaultyBackend(backend_for(url, options))
    parts = urlsplit(url)
    if parts.scheme != "memory" or parts.path not in ("", "/") or options:
        raise UsageError(f"a Clock is the time of memory:// stores; {url!r} has a clock of its own, or options")
    backend = MemoryBackend(
        unquote(parts.netloc) or None, runtime=clock.runtime(suspends=suspends), clock=clock.engine_time
    )
    return FaultyBackend(backend, leaf=backend)
