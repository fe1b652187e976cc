"""What many tasks at once must not be able to do to each other."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from interlock import codec
from interlock.backends.postgresql import PostgreSQLBackend
from interlock.errors import BackendUnavailableError, CommitUnknownError
from interlock.model import ABSENT, CommitRefused, Expectation, Merge, Operation, Settled, Span
from interlock.testing.conformance.world import Subject, key, put, thawed

TASKS = 24


def attack(
    url: str, schema: str, body: Callable[[Subject], Coroutine[Any, Any, None]], *, connections: int = TASKS
) -> None:
    """Run a test body on a fresh store with a connection for every task."""

    async def run() -> None:
        backend = PostgreSQLBackend(url, schema=schema, connections=connections)
        try:
            await body(Subject(backend))
        finally:
            await backend.close()

    asyncio.run(run())


async def together(count: int, job: Callable[[int], Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*(job(number) for number in range(count))))


@pytest.mark.parametrize("gathered", [False, True])
def test_absent_keys_do_not_skew(postgresql_url: str, schema: str, gathered: bool) -> None:
    """Of each pair of keys at most one may come into being, if each is put only while the other is absent."""

    async def body(store: Subject) -> None:
        pairs = 40

        async def insert(number: int) -> None:
            for pair in random.sample(range(pairs), pairs):
                me, other = key("pair", pair, number % 2), key("pair", pair, 1 - number % 2)
                reading = await store.backend.read([me, other])
                if reading.entries[1] is not None:
                    continue
                expected: dict[bytes, Expectation] = {other: ABSENT}
                if reading.entries[0] is None:
                    expected[me] = ABSENT
                try:
                    await store.commit({me: put(number)}, reads=expected, snapshot=reading.token, durable=gathered)
                except CommitRefused:
                    pass

        await together(TASKS, insert)
        listing = await store.listing()
        assert len(listing) == pairs
        for pair in range(pairs):
            assert (key("pair", pair, 0) in listing) != (key("pair", pair, 1) in listing)

    attack(postgresql_url, schema, body)


@pytest.mark.parametrize("gathered", [False, True])
def test_no_phantom_enters_a_range(postgresql_url: str, schema: str, gathered: bool) -> None:
    """Seats are taken while fewer than thirty are; counting and taking never interleave, whatever the room."""

    async def body(store: Subject) -> None:
        rooms, seats = 4, 30
        names = itertools.count()
        prefixes = [Span(key("room", room, 0), key("room", room, 1 << 30)) for room in range(rooms)]

        async def take(number: int) -> None:
            room = number % rooms
            while True:
                page = await store.backend.scan(prefixes[room])
                if len(page.items) >= seats:
                    return
                try:
                    await store.commit(
                        {key("room", room, next(names)): put(number)},
                        spans=(prefixes[room],),
                        snapshot=page.token,
                        durable=gathered,
                    )
                except CommitRefused:
                    pass

        await together(TASKS, take)
        for ends in prefixes:
            assert len((await store.backend.scan(ends)).items) == seats

    attack(postgresql_url, schema, body)


@pytest.mark.parametrize("gathered", [False, True])
def test_no_update_is_lost(postgresql_url: str, schema: str, gathered: bool) -> None:
    async def body(store: Subject) -> None:
        counters = [key("counter", number) for number in range(6)]
        await store.commit({counter: put(0) for counter in counters})

        async def increment(number: int) -> None:
            for turn in range(15):
                chosen = counters[(number + turn) % 6]
                while True:
                    reading = await store.backend.read([chosen])
                    (entry,) = reading.entries
                    assert entry is not None
                    try:
                        await store.commit(
                            {chosen: put(thawed(entry) + 1)},
                            reads={chosen: entry.version},
                            snapshot=reading.token,
                            durable=gathered,
                        )
                        break
                    except CommitRefused:
                        pass

        await together(TASKS, increment)
        assert sum((await store.listing()).values()) == TASKS * 15

    attack(postgresql_url, schema, body)


@pytest.mark.parametrize("gathered", [False, True])
def test_opposite_orders_do_not_deadlock(postgresql_url: str, schema: str, gathered: bool) -> None:
    """Keys in any order, read and written, with ranges over them: everybody waits, nobody for ever."""

    async def body(store: Subject) -> None:
        names = [key("n", place, "leaf") for place in range(6)]
        one = Merge((Operation("add", codec.freeze(1)),))

        async def commit(number: int) -> int:
            done = 0
            for _ in range(15):
                first, second, third = random.sample(names, 3)
                snapshot = await store.backend.snapshot()
                spans = (Span(key("n", number % 6), key("n", number % 6 + 1)),) if number % 4 == 0 else ()
                try:
                    await store.commit(
                        {first: one, second: one},
                        guards={third: ABSENT} if number % 5 == 0 else {},
                        spans=spans,
                        snapshot=snapshot,
                        durable=gathered,
                    )
                    done += 1
                except CommitRefused:
                    pass
            return done

        done = await together(TASKS, commit)
        assert sum((await store.listing()).values()) == 2 * sum(done)

    attack(postgresql_url, schema, body)


@pytest.mark.parametrize("gathered", [False, True])
def test_terminated_connections_lose_nothing(postgresql_url: str, schema: str, gathered: bool) -> None:
    """Connections are terminated again and again. Whoever does not know what became of a commit asks, and the counters
    agree in the end."""

    async def body(store: Subject) -> None:
        one = Merge((Operation("add", codec.freeze(1)),))
        progress = asyncio.Event()
        ended = False
        unknown = 0

        async def count(number: int) -> int:
            nonlocal unknown
            done = 0
            while done < 20:
                try:
                    request = await store.request({key("n", number % 4): one}, durable=gathered)
                    await store.backend.commit(request)
                    done += 1
                    progress.set()
                except BackendUnavailableError:  # nothing was written
                    pass
                except CommitUnknownError:
                    unknown += 1
                    done += await settled_at_last(request.transaction)
            return done

        async def settled_at_last(transaction: int) -> bool:
            while True:
                try:
                    return (await store.backend.outcome(transaction, fence=True))[0] is Settled.COMMITTED
                except BackendUnavailableError:
                    pass

        async def terminate() -> None:
            connection = await asyncpg.connect(postgresql_url)
            while True:
                await progress.wait()
                progress.clear()
                if ended:
                    break
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE $1 AND pid <> $2"
                    " AND state = 'active' ORDER BY random() LIMIT 1",
                    f'%"{schema}".commit%',
                    connection.get_server_pid(),
                )
            await connection.close()

        killer = asyncio.ensure_future(terminate())
        try:
            results = await together(8, count)
        finally:
            ended = True
            progress.set()
            await killer
        assert sum((await store.listing()).values()) == sum(results)
        assert len(await store.feed()) == sum(results)
        assert unknown > 0

    attack(postgresql_url, schema, body, connections=8)


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("gathered", [False, True])
def test_a_small_pool_makes_everybody_wait_and_nobody_fail(
    postgresql_url: str, schema: str, gathered: bool, connections: int
) -> None:
    async def body(store: Subject) -> None:
        await together(TASKS, lambda number: store.commit({key("n", number): put(number)}, durable=gathered))
        assert len(await store.listing()) == TASKS

    attack(postgresql_url, schema, body, connections=connections)
