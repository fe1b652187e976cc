"""Fixtures of the PostgreSQL tests: a schema of its own for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import psycopg
import pytest

_numbers = itertools.count()


@pytest.fixture
def schema(postgresql_url: str) -> Iterator[str]:
    """The name of a schema that does not exist yet; dropped afterwards."""
    name = f"attack_{os.getpid()}_{next(_numbers)}"
    yield name
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")  # type: ignore[arg-type]
