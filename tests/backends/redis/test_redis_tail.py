"""The reader of the stream goes when nobody waits any more, whenever that is."""

from __future__ import annotations

import asyncio
from typing import Any

from interlock.backends.redis import RedisBackend
from interlock.backends.redis.tail import Tail
from interlock.testing.conformance.world import Subject, key, put


class Idle:
    """A connection that is not asked anything."""

    broken = False


def test_whoever_goes_while_the_reader_connects_leaves_nothing_behind() -> None:
    async def run() -> None:
        async def connect(block_seconds: float) -> Any:
            tail.dismiss(waiter)
            return Idle()

        tail = Tail(connect, b"feed")
        waiter = tail.enlist(7)
        assert tail._task is not None
        await tail._task
        assert not waiter.done()

    asyncio.run(run())


def test_a_wait_that_ends_at_its_first_look(redis_url: str, name: str) -> None:
    """The news were there before: the reader, which is still connecting, has nobody left to read for."""

    async def run() -> None:
        backend = RedisBackend(redis_url, name=name)
        store = Subject(backend)
        since = await backend.snapshot()
        await store.commit({key("a"): put(1)})
        assert await backend.wait(since, 30.0)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        await backend.close()

    asyncio.run(run())
