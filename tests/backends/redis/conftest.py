"""Fixtures of the Redis tests: a store of its own for each test, and a server of its own where one is killed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
import redis

from redis_servers import RedisServer, redis_server

_numbers = itertools.count()


@pytest.fixture
def name(redis_url: str) -> Iterator[str]:
    """The name of a store that does not exist yet; deleted afterwards."""
    made = f"attack_{os.getpid()}_{next(_numbers)}"
    yield made
    with redis.Redis.from_url(redis_url) as client:
        if keys := client.keys(f"{{{made}}}:*"):
            client.delete(*keys)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A durable server that belongs to the test."""
    with redis_server() as started:
        yield started
