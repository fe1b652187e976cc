"""Coroutine tests of this folder run on an asyncio loop of their own; ``url`` is a new store on each engine."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

import schemas
from servers import POSTGRESQL
from warm import Warm

_serial = itertools.count()

SCHEMA = "interlock"
"""Where a store lies whose URL says nothing else."""

DATABASE = 9
"""The database of the Redis server that these tests have for themselves."""


@pytest.fixture(scope="session")
def own_database(postgresql_url: str) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """The URL of a database that these tests have for themselves, and a connection to it."""
    name = f"sagas_{os.getpid()}"
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    own = urlsplit(postgresql_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(own, autocommit=True) as inside:
        yield own, inside
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def own_connections(own_database: tuple[str, Any]) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """As ``warm_connections``, to that database."""
    if os.environ.get(POSTGRESQL):
        yield nullcontext
        return
    warm = Warm(own_database[0])
    yield warm.connections
    warm.close()


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that nobody else uses."""
    name = f"sagas_{os.getpid()}_{next(_serial)}"
    if request.param == "memory":
        yield f"memory://{name}"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'sagas.db'}"
    elif request.param == "postgresql":
        own, connection = request.getfixturevalue("own_database")
        with request.getfixturevalue("own_connections")():
            yield own
        if not schemas.empty(connection, SCHEMA):
            schemas.drop(connection, SCHEMA)
    else:
        server = urlsplit(request.getfixturevalue("redis_url"))
        own = server._replace(path=f"/{DATABASE}").geturl()
        with redis.Redis.from_url(own) as client:
            client.flushdb()
            yield own
            client.flushdb()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Run an async test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**wanted))
    return True
