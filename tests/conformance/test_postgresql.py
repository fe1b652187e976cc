"""The PostgreSQL backend passes the conformance suite, on a real server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import psycopg
import pytest

from interlock.backends.postgresql import PostgreSQLBackend
from interlock.ports import Backend
from interlock.testing.conformance import *  # noqa: F403

_numbers = itertools.count()


@pytest.fixture
def backend(postgresql_url: str) -> Iterator[Callable[[], Backend]]:
    made: list[str] = []

    def make() -> Backend:
        made.append(f"conformance_{os.getpid()}_{next(_numbers)}")
        return PostgreSQLBackend(postgresql_url, schema=made[-1], connections=8)

    yield make
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        for schema in made:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")  # type: ignore[arg-type]
