"""Kill -9, restart and flush: what was acknowledged stays, what is unknown can be settled, and nobody is told anything
of another life of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from interlock.backends.redis import RedisBackend
from interlock.errors import (
    BackendCorruptError,
    BackendUnavailableError,
    CommitUnknownError,
    SnapshotTooOldError,
    UsageError,
)
from interlock.model import ABSENT, CommitRequest, Delete, DuplicateTransaction, Key, Merge, Operation, Settled
from interlock.ports import Backend
from interlock.testing.conformance.world import EVERYTHING, Subject, key, put, step
from redis_servers import RedisServer, redis_server
from soak import usual

KILLS = 20
COUNT = Merge((Operation("add", b"i1"),))


async def write_until_killed(
    store: Subject, place: str, acknowledged: dict[Key, tuple[int, int]], unknown: list[tuple[Key, CommitRequest]]
) -> None:
    """Put new keys, and count them, one after the other, until the server is gone."""
    turn = 0
    while True:
        turn += 1
        name = key(place, turn)
        try:
            request = await store.request({name: put(turn), key("count"): COUNT}, reads={name: ABSENT})
        except BackendUnavailableError:
            return
        try:
            acknowledged[name] = (await store.backend.commit(request)).version
        except BackendUnavailableError:
            return
        except CommitUnknownError:
            unknown.append((name, request))
            return


def test_nothing_acknowledged_is_lost_over_twenty_kills(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        acknowledged: dict[Key, tuple[int, int]] = {}
        settled: list[Settled] = []
        incarnations: list[int] = []
        for number in range(usual(KILLS, 6)):
            old = await store.backend.snapshot()
            incarnations.append(old.incarnation)
            unknown: list[tuple[Key, CommitRequest]] = []
            done: dict[Key, tuple[int, int]] = {}
            writers = [
                asyncio.ensure_future(write_until_killed(store, f"{number} {place}", done, unknown))
                for place in range(8)
            ]
            while len(done) < 40:
                await asyncio.sleep(0)
            server.kill()
            await asyncio.gather(*writers)
            acknowledged |= done
            server.start()
            with pytest.raises(SnapshotTooOldError):
                await store.backend.read([key("count")], old)
            for name, request in unknown:
                became, _ = await store.backend.outcome(request.transaction, fence=True)
                settled.append(became)
                assert (became is Settled.COMMITTED) == (await store.entry(name) is not None)
                with pytest.raises((DuplicateTransaction, SnapshotTooOldError)):
                    await store.backend.commit(request)
        listing = await store.listing()
        feed = await store.feed()
        assert acknowledged.keys() <= listing.keys(), "an acknowledged commit is lost"
        assert {name: await store.version(name) for name in list(acknowledged)[::50]} == {
            name: acknowledged[name] for name in list(acknowledged)[::50]
        }
        assert listing[key("count")] == len(listing) - 1 == len(acknowledged) + settled.count(Settled.COMMITTED)
        assert len(feed) == len({change.transaction for change in feed}) == len(listing) - 1
        assert incarnations == sorted(set(incarnations))
        await store.backend.close()

    asyncio.run(run())


def test_after_a_restart_tokens_and_cursors_are_refused_and_values_are_there(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        reply = await store.commit({key("a"): put(1)})
        again = await store.request({key("a"): put(2)}, snapshot=reply.token)
        server.kill()
        server.start()
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.backend.read([key("a")], reply.token),
            lambda: store.backend.changes(reply.token),
            lambda: store.backend.wait(reply.token, 0.0),
            lambda: store.backend.commit(again),
        ]
        for use in uses:
            with pytest.raises(SnapshotTooOldError):
                await use()
        assert await store.version(key("a")) == reply.version
        assert [change.version for change in await store.feed()] == [reply.version]
        await store.commit({key("a"): put(2)}, reads={key("a"): reply.version})
        await store.backend.close()

    asyncio.run(run())


def test_a_server_that_is_gone_is_unavailable_and_comes_back(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
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
            assert (await backend.read([key("a")])).entries == [await store.entry(key("a"))]
        assert await store.entry(key("b")) is None
        await store.backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("suspends", [True, False])
def test_waiting_goes_on_over_a_restart_and_says_that_the_token_is_too_old(server: RedisServer, suspends: bool) -> None:
    backend = RedisBackend(server.url)
    leaf: Backend = backend if suspends else backend.blocking()

    async def run() -> None:
        store = Subject(leaf)
        reply = await store.commit({key("a"): put(1)})
        assert await leaf.wait(reply.token, 0.01) is False
        server.kill()
        server.start()
        with pytest.raises(SnapshotTooOldError):
            await leaf.wait(reply.token, 10.0)
        await leaf.close()

    if suspends:
        asyncio.run(run())
    else:
        step(run())


def test_a_store_that_was_flushed_is_reported_and_not_made_anew_in_passing(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        leaf = store.backend.blocking()
        reply = await store.commit({key("a"): put(1)})
        await leaf.snapshot()
        request = await store.request({key("a"): put(2)})
        server.ask("FLUSHALL")
        for backend in (store.backend, leaf):
            uses: list[Callable[[], Awaitable[Any]]] = [
                backend.snapshot,
                lambda backend=backend: backend.read([key("a")], reply.token),
                lambda backend=backend: backend.scan(EVERYTHING),
                lambda backend=backend: backend.changes(None),
                lambda backend=backend: backend.commit(request),
                lambda backend=backend: backend.outcome(request.transaction, fence=True),
                lambda backend=backend: backend.history(key("a")),
                lambda backend=backend: backend.compact(0.0),
            ]
            for use in uses:
                with pytest.raises(BackendCorruptError):
                    await use()
        assert server.ask("DBSIZE") == 0
        server.kill()
        server.start()
        for backend in (store.backend, leaf):
            with pytest.raises(BackendCorruptError):
                await backend.snapshot()
        assert server.ask("DBSIZE") == 0
        other = Subject(RedisBackend(server.url))
        fresh = await other.commit({key("a"): put("another life")})
        assert fresh.token.incarnation > reply.token.incarnation
        with pytest.raises(UsageError):
            await other.backend.read([key("a")], reply.token)
        await other.backend.close()
        await store.backend.close()

    asyncio.run(run())


def test_a_server_without_persistence_that_restarts_has_lost_the_store() -> None:
    async def run(server: RedisServer) -> None:
        store = Subject(RedisBackend(server.url, durability="none"))
        await store.commit({key("a"): put(1)})
        server.kill()
        server.start()
        with pytest.raises(BackendCorruptError):
            await store.entry(key("a"))
        await store.backend.close()

    with redis_server(appendonly="no") as server:
        asyncio.run(run(server))


def test_commits_are_whole_when_memory_runs_out(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        await store.commit({key("a"): put(1)})
        used = int(server.ask("INFO", "memory")["used_memory"])
        server.ask("CONFIG", "SET", "maxmemory", used + 400_000)
        done = 0
        with pytest.raises(BackendUnavailableError, match="OOM"):
            while True:
                await store.commit({key("fill", done): put("x" * 3000), key("count"): COUNT})
                done += 1
        listing = await store.listing()
        assert listing.pop(key("count")) == done == len(listing) - 1
        assert len(await store.feed()) == done + 1
        at = await store.backend.now()
        assert await store.backend.compact(at + 1) > 0, "compaction needs no memory"
        server.ask("CONFIG", "SET", "maxmemory", 0)
        await store.commit({name: Delete() for name in listing})
        await store.backend.close()

    asyncio.run(run())
