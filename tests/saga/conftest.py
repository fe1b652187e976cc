"""Coroutine tests of this folder run on an asyncio loop of their own; ``url`` is a new store on each engine."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

_serial = itertools.count()

DATABASE = 9
"""The database of the Redis server that these tests have for themselves."""


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that nobody else uses."""
    name = f"sagas_{os.getpid()}_{next(_serial)}"
    if request.param == "memory":
        yield f"memory://{name}"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'sagas.db'}"
    elif request.param == "postgresql":
        server = request.getfixturevalue("postgresql_url")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]
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
