"""The conformance suite: what every backend has to do, as plain pytest tests.

A backend exists when this passes. Its author writes one file:

    # tests/test_my_backend.py
    import pytest
    from interlock.testing.conformance import *

    @pytest.fixture
    def backend():
        return lambda: MyBackend(...)

The fixture ``backend`` is a factory: each call gives a backend over a *fresh, empty* store, made but not yet used by
any event loop. The suite closes what it has opened. Clean up files and servers in the fixture, after a ``yield``.

Every test runs in two worlds: awaited on asyncio over the backend itself, and stepped in plain synchronous code over
its ``blocking()`` leaf. Nothing is skipped. For each capability that the backend does not declare, the test of that
capability checks that using it raises `UnsupportedError` by its name (`DURABLE` and `TOTAL_ORDER` have nothing that
could be refused).

- `port` tests the contract of `interlock.ports.Backend`, races with real threads included;
- `machine` drives the backend and a reference model in plain Python (`reference`) with the same random steps, others
  in each run; ``INTERLOCK_CONFORMANCE_EXAMPLES=20`` in the environment makes this, and the random sessions, 20 times as
  long;
- `sessions` tests what a program sees: isolation, sessions, retries, idempotency, outcomes and the feed, through the
  public names of `interlock` and `interlock.sync`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

_PARTS = (
    "port.reads",
    "port.commits",
    "port.guards",
    "port.spans",
    "port.merging",
    "port.feed",
    "port.keeping",
    "port.life",
    "port.races",
    "machine",
    "sessions.anomalies",
    "sessions.reading",
    "sessions.merging",
    "sessions.ending",
    "sessions.calling",
    "sessions.nesting",
    "sessions.beginning",
    "sessions.remembering",
    "sessions.snapshots",
    "sessions.rules",
    "sessions.floors",
    "sessions.retrying",
    "sessions.deadlines",
    "sessions.idempotency",
    "sessions.keyed",
    "sessions.outcomes",
    "sessions.following",
    "sessions.typing",
    "sessions.bounds",
    "sessions.machine",
)

pytest.register_assert_rewrite(
    "interlock.testing.conformance.world",
    "interlock.testing.conformance.sessions.desk",
    *(f"interlock.testing.conformance.{part}" for part in _PARTS),
)

# Only now, so that their asserts are rewritten.
world = import_module("interlock.testing.conformance.world").world
desk = import_module("interlock.testing.conformance.sessions.desk").desk
_MODULES = [import_module(f"interlock.testing.conformance.{part}") for part in _PARTS]


def _tests(modules: list[ModuleType]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("test_") and found.setdefault(name, value) is not value:
                raise ValueError(f"two tests of the suite are called {name}")
    return found


_found = _tests(_MODULES)
globals().update(_found)

__all__ = ["desk", "world", *_found]
