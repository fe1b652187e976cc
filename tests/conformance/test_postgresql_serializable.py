"""The PostgreSQL backend without advisory locks passes the port's part of the conformance suite."""

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

for _name, _test in list(globals().items()):  # sessions see nothing of how a backend orders its commits
    if _name.startswith("test_") and ".conformance.port." not in _test.__module__:
        del globals()[_name]


@pytest.fixture
def backend(postgresql_url: str) -> Iterator[Callable[[], Backend]]:
    made: list[str] = []

    def make() -> Backend:
        made.append(f"serializable_{os.getpid()}_{next(_numbers)}")
        return PostgreSQLBackend(postgresql_url, schema=made[-1], connections=8, locking="serializable")

    yield make
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        for schema in made:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")  # type: ignore[arg-type]
