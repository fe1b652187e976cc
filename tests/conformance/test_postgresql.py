"""The PostgreSQL backend passes the conformance suite, on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from interlock.backends.postgresql import PostgreSQLBackend
from interlock.ports import Backend
from interlock.testing.conformance import *  # noqa: F403
from schemas import Schemas


@pytest.fixture
def backend(
    schemas: Schemas, warm_connections: Callable[[], AbstractContextManager[None]]
) -> Iterator[Callable[[], Backend]]:
    made: list[str] = []

    def make() -> Backend:
        made.append(schemas.take())
        return PostgreSQLBackend(schemas.url, schema=made[-1], connections=8)

    with warm_connections():
        yield make
    for schema in made:
        schemas.give_back(schema)
