"""Places for connections: as many as were asked for, to whoever came first. Without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from interlock.backends.postgresql.connections import Connection, LoopPool
from interlock.backends.postgresql.home import Options


class Line:
    """What a driver's connection is to the pool."""

    closed = False

    def is_closed(self) -> bool:
        """Whether it has been ended."""
        return self.closed

    def terminate(self) -> None:
        """End it."""
        self.closed = True

    async def close(self, timeout: float) -> None:
        """Ask the server, which says nothing."""
        await asyncio.Event().wait()


class Pool(LoopPool):
    """Connections to nowhere."""

    made = 0

    async def _connect(self) -> Connection:
        await asyncio.sleep(0)
        self.made += 1
        return Connection(Line(), {}, self._options)


def with_pool(count: int, body: Callable[[Pool], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30.0):
            await body(Pool(Options("postgresql://nowhere", "interlock", count, "fsync", 5.0, 10.0), {}))

    asyncio.run(run())


def test_a_free_connection_is_taken_without_waiting() -> None:
    async def body(pool: Pool) -> None:
        assert pool.take() is None
        first = await pool.acquire()
        assert pool.take() is None
        pool.release(first)
        assert pool.take() is first
        pool.release(first)
        first.raw.terminate()
        assert pool.take() is None
        assert await pool.acquire() is not first
        assert pool.made == 2

    with_pool(2, body)


def test_places_go_to_those_who_wait_in_their_order_and_nobody_overtakes() -> None:
    async def body(pool: Pool) -> None:
        got: list[int] = []

        async def wait(number: int) -> None:
            connection = await pool.acquire()
            got.append(number)
            await asyncio.sleep(0)
            pool.release(connection)

        held = [await pool.acquire(), await pool.acquire()]
        tasks = [asyncio.ensure_future(wait(number)) for number in range(6)]
        await asyncio.sleep(0)
        assert pool.take() is None
        tasks[1].cancel()  # waits no more
        pool.release(held[0])  # to the first, who is cancelled when he has it
        tasks[0].cancel()
        assert pool.take() is None
        pool.release(held[1])
        await asyncio.gather(*tasks, return_exceptions=True)
        assert got == [2, 3, 4, 5]
        assert pool.made == 2
        assert [pool.take() is None, pool.take() is None, pool.take() is None] == [False, False, True]

    with_pool(2, body)


def test_who_was_cancelled_keeps_nobody_waiting() -> None:
    async def body(pool: Pool) -> None:
        held = await pool.acquire()
        task = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        task.cancel()
        pool.release(held)  # before the cancelled one has run
        assert await pool.acquire() is held
        await asyncio.wait({task})
        assert task.cancelled()
        assert pool.take() is None

    with_pool(1, body)


def test_a_connection_that_cannot_be_made_gives_its_place_back() -> None:
    class Broken(Pool):
        async def _connect(self) -> Connection:
            raise OSError

    async def run() -> None:
        pool = Broken(Options("postgresql://nowhere", "interlock", 1, "fsync", 5.0, 10.0), {})
        for _ in range(2):
            found = await asyncio.gather(pool.acquire(), return_exceptions=True)
            assert type(found[0]) is OSError

    asyncio.run(run())


def test_whoever_closes_and_is_cancelled_leaves_no_connection_open() -> None:
    async def body(pool: Pool) -> None:
        await pool.begin()
        held = [await pool.acquire() for _ in range(3)]
        for connection in held[:2]:
            pool.release(connection)
        closing = asyncio.ensure_future(pool.close())
        await asyncio.sleep(0)
        assert not any(connection.raw.closed for connection in held)
        assert pool.take() is None, "nobody gets one that is about to be closed"
        closing.cancel()
        await asyncio.wait({closing})
        # The one that was being closed ends itself: asyncpg aborts what is cancelled there.
        assert [connection.raw.closed for connection in held] == [True, False, True]

    with_pool(3, body)
