"""A cluster of three: each store lies whole on one server of it, wherever the URL points."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

import interlock
from interlock.backends.redis import RedisBackend
from interlock.backends.redis.failures import refused
from interlock.backends.redis.scripts import TEXTS, Calls
from interlock.errors import BackendError, BackendUnavailableError, SnapshotTooOldError, UnsupportedError, UsageError
from interlock.model import ABSENT, Delete, Merge, Operation
from interlock.ports import Backend
from interlock.testing.conformance.world import EVERYTHING, Subject, key, put, step
from redis_servers import RedisServer, redis_cluster

NAMES = ["one", "two", "three", "four", "five", "six"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as servers:
        yield servers


def _holder(servers: list[RedisServer], name: str) -> RedisServer:
    """The server that has a store's slot."""
    slot = servers[0].ask("CLUSTER", "KEYSLOT", f"{{{name}}}:entries")
    return servers[min(slot // (16384 // len(servers)), len(servers) - 1)]


async def _everything(store: Subject) -> None:
    """Every script once."""
    backend = store.backend
    await store.commit({key("a"): put(1), key("large"): put("x" * 9000), key("t"): put(1, ttl_seconds=0.001)})
    token = await backend.snapshot()
    add = Merge((Operation("add", b"i1"),))
    await store.commit({key("a"): add, key("b"): put(2)}, reads={key("c"): ABSENT}, spans=(EVERYTHING,))
    await store.commit({key("large"): Delete()}, clears=(EVERYTHING,))
    assert await store.value(key("a"), token) == 1
    assert len((await backend.scan(EVERYTHING, token)).items) == 3
    assert len(await store.feed()) == 3
    assert len(await backend.history(key("a"))) == 3
    await backend.outcome((await store.request({})).transaction, fence=True)
    assert await backend.wait(token, 5.0)
    assert await store.compact_all() > 0


@pytest.mark.parametrize("suspends", [True, False])
def test_a_store_is_found_from_every_server(cluster: list[RedisServer], suspends: bool) -> None:
    assert len({_holder(cluster, name).port for name in NAMES}) == 3, "the names do not cover the servers"

    async def run(backend: Backend) -> None:
        await _everything(Subject(backend))
        await backend.close()

    for place, each in enumerate(NAMES):
        name = f"{each}-{suspends}"
        backend = RedisBackend(cluster[place % 3].url, name=name)
        if suspends:
            asyncio.run(run(backend))
        else:
            step(run(backend.blocking()))
        holding = [bool(server.ask("KEYS", f"{{{name}}}:*")) for server in cluster]
        assert holding == [server is _holder(cluster, name) for server in cluster]


def test_keys_of_two_slots_are_refused_with_a_clear_error(cluster: list[RedisServer]) -> None:
    calls, other = Calls("one"), Calls("two")
    server = _holder(cluster, "one")
    with pytest.raises(ResponseError) as caught:
        server.ask("EVAL", TEXTS["read"], 7, *calls.keys[:6], other.keys[6], b"", b"")
    error = refused(f"CROSSSLOT {caught.value}")
    assert type(error) is UnsupportedError
    assert "one slot of a cluster" in str(error)
    with pytest.raises(UsageError, match="one slot"):
        RedisBackend(server.url, name="{one}{two}")


def test_a_session_over_stores_of_two_slots_is_refused(cluster: list[RedisServer]) -> None:
    async def run() -> None:
        async with interlock.open(cluster[0].url, agent="a", name="one") as first:
            async with interlock.open(cluster[0].url, agent="a", name="two") as second:
                with pytest.raises(UsageError, match="another store"):
                    async with first.resource("r").session() as session:
                        await session.write("k", 1)
                        await session.on(second.resource("r")).write("k", 1)
                assert await first.resource("r").read("k") is None

    asyncio.run(run())


def test_a_slot_that_moves_is_followed(cluster: list[RedisServer]) -> None:
    """The server of the slot is asked for another store that is being moved away from it."""
    name = "moving"
    old = _holder(cluster, name)
    new = next(server for server in cluster if server is not old)
    slot = old.ask("CLUSTER", "KEYSLOT", f"{{{name}}}:entries")

    async def run() -> None:
        store = Subject(RedisBackend(old.url, name=name))
        leaf = store.backend.blocking()
        reply = await store.commit({key("a"): put(1)})
        await leaf.snapshot()
        request = await store.request({key("a"): put(2)})
        waiting = asyncio.ensure_future(store.backend.wait(request.snapshot, 60.0))
        await asyncio.sleep(0)
        owner, target = old.ask("CLUSTER", "MYID"), new.ask("CLUSTER", "MYID")
        new.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", owner)
        old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
        keys = old.ask("CLUSTER", "GETKEYSINSLOT", slot, 100)
        old.ask("MIGRATE", "127.0.0.1", new.port, "", 0, 5000, "KEYS", *keys)
        with pytest.raises((BackendUnavailableError, BackendError)):  # not done, and not half done
            await store.backend.commit(request)
        for server in (new, old):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", target)
        for backend in (store.backend, leaf):
            entry = (await backend.read([key("a")])).entries[0]
            assert entry is not None
            assert entry.version == reply.version
        await store.commit({key("a"): put(3)})
        assert (await store.backend.snapshot()).incarnation > reply.token.incarnation
        with pytest.raises((SnapshotTooOldError, BackendUnavailableError)):  # it may have looked during the move
            await waiting
        await store.backend.close()

    asyncio.run(run())
