"""The fixture ``world``: see `cases.support`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.support import World
from schemas import Schemas

SERVERS = ("postgresql", "redis")
"""Engines whose server is started by a fixture that is named after them."""


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The world that `cases.support.in_worlds` names, with nothing stored in it yet."""
    engine = request.param.partition("-")[0]
    server = request.getfixturevalue(f"{engine}_url") if engine in SERVERS else ""
    schemas: Schemas | None = request.getfixturevalue("schemas") if engine == "postgresql" else None
    schema = schemas.take() if schemas else ""
    made = World(request.param, tmp_path, server, schema)
    yield made
    made.close()
    if schemas:
        schemas.give_back(schema)
