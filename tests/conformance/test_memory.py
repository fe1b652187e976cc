"""The memory backend passes the conformance suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interlock.backends.memory import MemoryBackend
from interlock.ports import Backend
from interlock.testing.conformance import *  # noqa: F403


@pytest.fixture
def backend() -> Callable[[], Backend]:
    return MemoryBackend
