"""The fixture ``world``: see `cases.support`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.support import World


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The world that `cases.support.in_worlds` names, with nothing stored in it yet."""
    made = World(request.param, tmp_path)
    yield made
    made.close()
