"""The Redis backend passes the conformance suite, on a real server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
import redis

from interlock.backends.redis import RedisBackend
from interlock.ports import Backend
from interlock.testing.conformance import *  # noqa: F403

_numbers = itertools.count()


@pytest.fixture
def backend(redis_url: str, redis_client: redis.Redis) -> Iterator[Callable[[], Backend]]:
    made: list[str] = []

    def make() -> Backend:
        made.append(f"conformance_{os.getpid()}_{next(_numbers)}")
        return RedisBackend(redis_url, name=made[-1], connections=8)

    yield make
    for name in made:
        if keys := redis_client.keys(f"{{{name}}}:*"):
            redis_client.delete(*keys)
