"""Fixtures for all tests: the servers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from servers import POSTGRESQL, postgresql_server


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The URL of a PostgreSQL database that this run may use."""
    given = os.environ.get(POSTGRESQL)
    if given:
        yield given
        return
    with postgresql_server() as server:
        yield server.url
