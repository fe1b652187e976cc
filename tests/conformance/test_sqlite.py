"""The SQLite backend passes the conformance suite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.backends.sqlite import SQLiteBackend
from interlock.ports import Backend
from interlock.testing.conformance import *  # noqa: F403


@pytest.fixture
def backend(fast_path: Path) -> Callable[[], Backend]:
    numbers = itertools.count()
    return lambda: SQLiteBackend(fast_path / f"{next(numbers)}.db")
