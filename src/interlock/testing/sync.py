"""Stores for tests in plain synchronous code; the same names as in `interlock.testing`."""

from __future__ import annotations

from typing import Any

from interlock import Change, sync
from interlock.core.isolation import Isolation
from interlock.core.retry import RetryPolicy
from interlock.testing.clock import Clock
from interlock.testing.faults import Faults, conflicts, lost_replies
from interlock.testing.stores import AT_ONCE, backend_for_test, by_program

__all__ = ["Clock", "Faults", "commits", "conflicts", "lost_replies", "open_store"]


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
) -> sync.Store:
    """A store for a test: as `interlock.sync.open`, with an agent's name, retries that do not wait, and room for
    faults.

    Args:
        url: as in `interlock.sync.open`; the default is a memory store of its own.
        clock: the time that the store lives in, for memory stores; default: real time.

    Raises: `UsageError` as `interlock.sync.open` does, and for a clock with a store that has a clock of its own."""
    return sync.Store(
        backend_for_test(url, clock, options, suspends=False),
        agent=agent,
        isolation=isolation,
        retry=retry,
        idempotency_ttl_seconds=idempotency_ttl_seconds,
        history_seconds=history_seconds,
        runtime=None if clock is None else clock.runtime(suspends=False),
    )


def commits(store: sync.Store) -> list[Change]:
    """The committed transactions that the store still keeps, oldest first; without those that the tools of this
    package made, and without compaction's."""
    return [change for change in store.log.changes() if by_program(change)]
