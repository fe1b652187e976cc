"""The fixture ``world``: see `cases.support`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from cases.support import World
from schemas import Schemas

SERVERS = ("postgresql", "redis")
"""Engines whose server is started by a fixture that is named after them."""


ON_DISK = ("test_sqlite.py", "test_workloads.py", "test_effects_processes.py")
"""Files whose tests kill processes or look at what lies on the disk."""

AT_CONNECTIONS = ("test_postgresql.py", "test_cancellation.py")
"""Files whose tests look at connections to PostgreSQL, or leave them at any moment: theirs are new, see `warm`."""


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The world that `cases.support.in_worlds` names, with nothing stored in it yet."""
    directory: Path = request.getfixturevalue("tmp_path" if request.path.name in ON_DISK else "fast_path")
    engine = request.param.partition("-")[0]
    server = request.getfixturevalue(f"{engine}_url") if engine in SERVERS else ""
    schemas: Schemas | None = request.getfixturevalue("schemas") if engine == "postgresql" else None
    schema = schemas.take() if schemas else ""
    warm = schemas and request.path.name not in AT_CONNECTIONS
    made = World(request.param, directory, server, schema)
    with request.getfixturevalue("warm_connections")() if warm else nullcontext():
        yield made
        made.close()
    if schemas:
        schemas.give_back(schema)
