"""Twenty kills: of the server, of a single one of its processes, in calm and under load.

Before each, transactions of somebody else are rolled back. Their ids leave no trace on disk and are given out again
after the crash, so a token that reached beyond the newest record would then show transactions that it never contained,
and a cursor would skip them. Every token and the cursor live through all kills.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest

import interlock
from interlock.backends.postgresql import PostgreSQLBackend
from interlock.errors import BackendUnavailableError, CommitUnknownError
from interlock.model import Settled, Token
from interlock.testing.conformance.world import Subject, key, new_transaction, put
from servers import PostgreSQLServer, postgresql_server
from soak import rounds

KILLS = 20
ROLLED_BACK = 30
WRITERS = 6


@pytest.fixture
def server() -> Iterator[PostgreSQLServer]:
    with postgresql_server() as started:
        yield started


async def connected(url: str) -> asyncpg.Connection[Any]:
    """A connection, as soon as the server takes one."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await asyncpg.connect(url)
            except (asyncpg.PostgresError, OSError):
                await asyncio.sleep(0)


async def roll_back(url: str) -> None:
    """A foreign application's transactions that take ids and come to nothing."""
    connection = await connected(url)
    await connection.execute("BEGIN; SELECT pg_current_xact_id(); ROLLBACK;" * ROLLED_BACK)
    await connection.close()


async def kill_one(server: PostgreSQLServer) -> None:
    """Kill the process behind one connection: the server ends all others and recovers as after a loss of power."""
    connection = await connected(server.url)
    os.kill(connection.get_server_pid(), signal.SIGKILL)
    while not connection.is_closed():
        await asyncio.sleep(0)
    await (await connected(server.url)).close()


async def kill_all(server: PostgreSQLServer) -> None:
    """Kill the server, and start it again."""
    server.kill()
    server.start()


class Witness:
    """What a store has shown, which it must go on showing: snapshots by their tokens, and the feed behind a cursor."""

    def __init__(self, store: Subject) -> None:
        self.store = store
        self.snapshots: list[tuple[Token, dict[bytes, Any]]] = []
        self.cursor: Token | None = None
        self.seen: list[int] = []

    async def follow(self) -> None:
        """Read on in the feed."""
        changes, self.cursor = await self.store.backend.changes(self.cursor, limit=100_000)
        self.seen += [change.transaction for change in changes]

    async def look(self) -> None:
        """Take a snapshot, and remember what it shows."""
        token = await self.store.backend.snapshot()
        self.snapshots.append((token, await self.store.listing(token)))

    async def check_snapshots(self) -> None:
        """None has changed, by scan or by key."""
        for token, shown in self.snapshots:
            assert await self.store.listing(token) == shown, "a snapshot has changed"
        token, shown = self.snapshots[-1]
        reading = await self.store.backend.read(list(shown), token)
        values = [None if entry is None else entry.value for entry in reading.entries]
        assert values == [put(value).value for value in shown.values()], "a snapshot has changed"

    async def check_feed(self) -> None:
        """Nothing was skipped, nothing came twice."""
        await self.follow()
        assert len(self.seen) == len(set(self.seen)), "a record was delivered twice"
        assert set(self.seen) == {change.transaction for change in await self.store.feed()}, "a record was skipped"


@pytest.mark.soak
def test_tokens_and_cursors_over_twenty_kills(server: PostgreSQLServer) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(server.url))
        witness = Witness(store)
        kills: list[Callable[[PostgreSQLServer], Awaitable[None]]] = [kill_all, kill_one]
        for number, kill in zip(range(rounds(KILLS, 10 * KILLS, by_hand=6)), itertools.cycle(kills), strict=False):
            for turn in range(5):
                await store.commit({key("calm", turn): put(number), key("only", number, turn): put(turn)})
            await witness.follow()
            await roll_back(server.url)
            await witness.look()
            await witness.follow()
            await roll_back(server.url)
            await kill(server)
            for turn in range(2 * ROLLED_BACK):  # as many ids as were rolled back, and more
                await store.commit({key("calm", turn % 5): put(-turn), key("after", number, turn): put(turn)})
            await witness.check_snapshots()
        await witness.check_feed()
        await store.backend.close()

    asyncio.run(run())


class Writer:
    """A task that puts new keys one after the other, and knows what it was told of each."""

    def __init__(self, store: Subject, number: int) -> None:
        self.store = store
        self.number = number
        self.acknowledged: set[bytes] = set()
        self.unknown: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.turns = itertools.count()

    async def write_until_killed(self) -> None:
        """Until the server is gone."""
        while True:
            name, transaction = key("load", self.number, next(self.turns)), new_transaction()
            try:
                await self.store.commit({name: put(self.number)}, transaction=transaction)
            except BackendUnavailableError:
                self.refused.add(name)
                return
            except CommitUnknownError:
                self.unknown[transaction] = name
                return
            self.acknowledged.add(name)

    async def ask(self) -> None:
        """Settle what was unknown."""
        for transaction, name in self.unknown.items():
            settled, _ = await self.store.backend.outcome(transaction, fence=True)
            (self.acknowledged if settled is Settled.COMMITTED else self.refused).add(name)
        self.unknown.clear()


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_over_twenty_kills_under_load(server: PostgreSQLServer) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(server.url))
        witness = Witness(store)
        writers = [Writer(store, number) for number in range(WRITERS)]
        for number in range(rounds(KILLS, 10 * KILLS, by_hand=6)):
            before = sum(len(writer.acknowledged) for writer in writers)
            tasks = [asyncio.ensure_future(writer.write_until_killed()) for writer in writers]
            while sum(len(writer.acknowledged) for writer in writers) < before + 30 + number:
                await asyncio.sleep(0)
            server.kill()
            await asyncio.gather(*tasks)
            server.start()
            await witness.follow()
            for writer in writers:
                await writer.ask()
        there = (await store.listing()).keys()
        for writer in writers:
            assert writer.acknowledged <= there, "an acknowledged commit is lost"
            assert not writer.refused & there, "what was refused is there"
        assert len(there) == sum(len(writer.acknowledged) for writer in writers)
        await witness.check_feed()
        await store.backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_agents_go_on_over_restarts_with_their_idempotency_keys(server: PostgreSQLServer, how: str) -> None:
    """Whoever could not reach the server, or was not told what became of a commit, comes again with the same key."""

    async def count(session: interlock.AgentSession[int], name: str) -> None:
        await session.write(name, await session.read(name, 0) + 1)
        await session.add("total", 1)

    async def run() -> None:
        done = 0
        async with interlock.open(server.url, agent="tester") as store:
            counters = store.resource("counters", int)

            async def agent(number: int) -> None:
                nonlocal done
                for turn in range(15):
                    while True:
                        try:
                            await counters.run(count, f"agent {number}", idempotency_key=f"{number}/{turn}")
                            break
                        except (BackendUnavailableError, CommitUnknownError):
                            await asyncio.sleep(0)
                    done += 1

            agents = [asyncio.ensure_future(agent(number)) for number in range(6)]
            for restarts in range(1, 4):
                while done < 20 * restarts:
                    await asyncio.sleep(0)
                await asyncio.to_thread(server.kill if how == "kill" else server.shut_down)
                await asyncio.to_thread(server.start)
            await asyncio.gather(*agents)
            found = dict([row async for row in counters.scan()])
            assert found == {"total": 90} | {f"agent {number}": 15 for number in range(6)}

    asyncio.run(run())


def test_the_feed_flows_while_a_foreign_transaction_idles_in_another_database(server: PostgreSQLServer) -> None:
    async def run() -> None:
        connection = await connected(server.url)
        await connection.execute("CREATE DATABASE elsewhere")
        foreign = await asyncpg.connect(server.url.replace("/postgres", "/elsewhere"))
        await foreign.execute("CREATE TABLE t (n int)")
        await foreign.execute("BEGIN; INSERT INTO t VALUES (1)")
        store = Subject(PostgreSQLBackend(server.url))
        witness = Witness(store)
        for number in range(10):
            reply = await store.commit({key("n", number): put(number)})
            await witness.follow()
            assert len(witness.seen) == number + 1
            assert await store.backend.wait(reply.token, 0.0) is False
        await foreign.execute("COMMIT")
        await witness.check_feed()
        for each in (foreign, connection):
            await each.close()
        await store.backend.close()

    asyncio.run(run())
