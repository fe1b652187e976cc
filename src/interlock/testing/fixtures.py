"""Fixtures for pytest. Enable them in a conftest.py: ``pytest_plugins = ["interlock.testing.fixtures"]``.

They need no plugin for asynchronous tests and fit each: the stores are memory stores, which belong to no event loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import interlock
from interlock import sync
from interlock.stepping import step
from interlock.testing import sync as in_sync
from interlock.testing.clock import Clock
from interlock.testing.stores import open_store


@pytest.fixture
def interlock_clock() -> Clock:
    """A clock that stands still; a test that asks for it moves the time of its store by ``advance``."""
    return Clock()


@pytest.fixture
def interlock_store(request: pytest.FixtureRequest) -> Iterator[interlock.Store]:
    """A fresh memory store for asynchronous code, closed after the test. It lives by `interlock_clock` if the test
    (or another fixture of it) asks for that, else in real time."""
    store = open_store(clock=_clock_of(request))
    yield store
    step(store.close())


@pytest.fixture
def interlock_sync_store(request: pytest.FixtureRequest) -> Iterator[sync.Store]:
    """The same for plain synchronous code."""
    with in_sync.open_store(clock=_clock_of(request)) as store:
        yield store


def _clock_of(request: pytest.FixtureRequest) -> Clock | None:
    if "interlock_clock" not in request.fixturenames:
        return None
    clock: Clock = request.getfixturevalue("interlock_clock")
    return clock
