"""What a server says that was killed, and what it says afterwards. `test_postgresql_kills` kills it often."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.backends.postgresql import PostgreSQLBackend
from interlock.errors import BackendUnavailableError, CommitUnknownError, SnapshotTooOldError
from interlock.testing.conformance.world import Subject, key, put
from servers import PostgreSQLServer, postgresql_server


@pytest.fixture
def server() -> Iterator[PostgreSQLServer]:
    with postgresql_server() as started:
        yield started


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
