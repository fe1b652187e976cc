"""The PostgreSQL backend without advisory locks passes the port's part of the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from interlock.backends.postgresql import PostgreSQLBackend
from interlock.ports import Backend
from interlock.testing.conformance import *  # noqa: F403
from schemas import Schemas

for _name, _test in list(globals().items()):  # sessions see nothing of how a backend orders its commits
    if _name.startswith("test_") and ".conformance.port." not in _test.__module__:
        del globals()[_name]


@pytest.fixture
def backend(
    schemas: Schemas, warm_connections: Callable[[], AbstractContextManager[None]]
) -> Iterator[Callable[[], Backend]]:
    made: list[str] = []

    def make() -> Backend:
        made.append(schemas.take())
        return PostgreSQLBackend(schemas.url, schema=made[-1], connections=8, locking="serializable")

    with warm_connections():
        yield make
    for schema in made:
        schemas.give_back(schema)
