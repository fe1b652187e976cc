"""Kill -9 of the whole server: what was acknowledged stays, and tokens and cursors from before stay right.

The ids of transactions that were rolled back before the kill are given out again after it, so a token that reached
beyond the newest record would show transactions that it never contained, and a cursor would skip them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from interlock.backends.postgresql import PostgreSQLBackend
from interlock.errors import BackendUnavailableError, CommitUnknownError, SnapshotTooOldError
from interlock.model import Token
from interlock.testing.conformance.world import Subject, key, put
from servers import PostgreSQLServer, postgresql_server

KILLS = 3
ROLLED_BACK = 40


@pytest.fixture
def server() -> Iterator[PostgreSQLServer]:
    with postgresql_server() as started:
        yield started


async def roll_back(url: str, count: int) -> None:
    """A foreign application's transactions that take an id and come to nothing."""
    connection = await asyncpg.connect(url)
    for _ in range(count):
        await connection.execute("BEGIN; SELECT pg_current_xact_id(); ROLLBACK")
    await connection.close()


async def write_until_killed(store: Subject, number: int, acknowledged: set[bytes]) -> None:
    """Put new keys, one after the other, until the server is gone."""
    turn = len(acknowledged)
    while True:
        name = key("load", number, turn)
        turn += 1
        try:
            await store.commit({name: put(turn)})
        except (BackendUnavailableError, CommitUnknownError):
            return
        acknowledged.add(name)


async def follow(store: Subject, cursor: Token | None, seen: list[int]) -> Token:
    """Read the feed to its end."""
    changes, cursor = await store.backend.changes(cursor, limit=100_000)
    seen += [change.transaction for change in changes]
    return cursor


def test_nothing_acknowledged_is_lost_and_no_snapshot_changes(server: PostgreSQLServer) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(server.url))
        acknowledged: set[bytes] = set()
        seen: list[int] = []
        cursor: Token | None = None
        for number in range(KILLS):
            for turn in range(10):
                await store.commit({key("calm", turn): put(number), key("only", number, turn): put(turn)})
            cursor = await follow(store, cursor, seen)
            await roll_back(server.url, ROLLED_BACK)
            token = await store.backend.snapshot()
            shown = await store.listing(token)
            cursor = await follow(store, cursor, seen)
            await roll_back(server.url, ROLLED_BACK)
            server.kill()
            server.start()
            for turn in range(2 * ROLLED_BACK):
                await store.commit({key("calm", turn % 10): put(-turn), key("after", number, turn): put(turn)})
            assert await store.listing(token) == shown
            reading = await store.backend.read(list(shown), token)
            assert [None if entry is None else entry.value for entry in reading.entries] == [
                put(value).value for value in shown.values()
            ]
            acknowledged |= await load_and_kill(store, server, number)
        await follow(store, cursor, seen)
        assert len(seen) == len(set(seen)), "a record was delivered twice"
        assert set(seen) == {change.transaction for change in await store.feed()}, "a record was skipped"
        assert acknowledged <= (await store.listing()).keys(), "an acknowledged commit is lost"
        assert acknowledged
        await store.backend.close()

    asyncio.run(run())


async def load_and_kill(store: Subject, server: PostgreSQLServer, number: int) -> set[bytes]:
    """Kill the server while six tasks commit; what was acknowledged to them."""
    sets: list[set[bytes]] = [set() for _ in range(6)]
    writers = [
        asyncio.ensure_future(write_until_killed(store, 6 * number + place, done)) for place, done in enumerate(sets)
    ]
    while sum(map(len, sets)) < 60:
        await asyncio.sleep(0)
    server.kill()
    await asyncio.gather(*writers)
    server.start()
    return set().union(*sets)


def test_after_commits_that_were_not_durable_old_tokens_are_refused(server: PostgreSQLServer) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(server.url))
        await store.commit({key("a"): put(1)})
        durable = await store.backend.snapshot()
        server.kill()
        server.start()
        assert await store.value(key("a"), durable) == 1
        await store.commit({key("a"): put(2)}, durable=False)
        soft = await store.backend.snapshot()
        server.kill()
        server.start()
        for token in (durable, soft):
            uses: list[Any] = [
                lambda token=token: store.backend.read([key("a")], token),
                lambda token=token: store.backend.changes(token),
                lambda token=token: store.commit({key("b"): put(1)}, snapshot=token),
            ]
            for use in uses:
                with pytest.raises(SnapshotTooOldError):
                    await use()
        assert await store.value(key("a")) in (1, 2)
        await store.commit({key("a"): put(3)})
        await store.backend.close()

    asyncio.run(run())


def test_a_server_that_is_gone_is_unavailable_and_comes_back(server: PostgreSQLServer) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(server.url))
        leaf = store.backend.blocking()
        reply = await store.commit({key("a"): put(1)})
        assert (await leaf.read([key("a")])).entries == [await store.entry(key("a"))]
        server.kill()
        for backend in (store.backend, leaf):
            with pytest.raises(BackendUnavailableError):
                await backend.read([key("a")])
            with pytest.raises((BackendUnavailableError, CommitUnknownError)):
                await backend.commit(await store.request({key("b"): put(1)}, snapshot=reply.token))
        server.start()
        for backend in (store.backend, leaf):
            await backend.commit(await store.request({key("b"): put(1)}, snapshot=reply.token))
            assert (await backend.read([key("a")])).entries[0] is not None
        await store.backend.close()

    asyncio.run(run())
