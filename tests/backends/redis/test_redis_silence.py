"""Servers and networks that say nothing and end no connection: typed errors in good time, settled by `outcome`."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

import interlock
from interlock import sync
from interlock.backends.redis import RedisBackend, tail
from interlock.errors import BackendUnavailableError, CommitUnknownError
from interlock.model import Settled
from interlock.testing.conformance.world import Subject, key, put, step
from interlock.testing.proxies import FaultyProxy
from redis_servers import RedisServer

_REPLY_SECONDS = 1.5
_SLACK_SECONDS = 20.0
"""What a busy machine may need besides; a hang would be for ever."""


@pytest.mark.parametrize("suspends", [True, False])
def test_a_commit_on_a_silent_network_is_unknown_and_a_read_is_unavailable(
    redis_url: str, name: str, suspends: bool
) -> None:
    with FaultyProxy(redis_url) as proxy:
        backend = RedisBackend(proxy.url, name=name, reply_seconds=_REPLY_SECONDS)
        leaf = backend if suspends else backend.blocking()

        async def run() -> None:
            store = Subject(leaf)
            await store.commit({key("a"): put(1)})
            request = await store.request({key("a"): put(2)})
            proxy.silence()
            begun = time.monotonic()
            with pytest.raises(CommitUnknownError, match="no reply for"):
                await leaf.commit(request)
            assert _REPLY_SECONDS <= time.monotonic() - begun < _SLACK_SECONDS
            assert await leaf.outcome(request.transaction, fence=True) == (Settled.FENCED, None)
            assert await store.value(key("a")) == 1
            proxy.silence()
            accepted = proxy.accepted
            with pytest.raises(BackendUnavailableError, match="no reply for"):
                await leaf.read([key("a")])
            assert proxy.accepted == accepted, "asked once, not again and again"
            assert await store.value(key("a")) == 1
            await leaf.close()

        if suspends:
            asyncio.run(run())
        else:
            step(run())


def test_all_who_share_a_silent_connection_hear_of_it_at_once(redis_url: str, name: str) -> None:
    async def run() -> None:
        with FaultyProxy(redis_url) as proxy:
            store = Subject(RedisBackend(proxy.url, name=name, reply_seconds=_REPLY_SECONDS))
            await store.commit({key("n", number): put(0) for number in range(8)})
            requests = [await store.request({key("n", number): put(1)}) for number in range(4)]
            proxy.silence()
            begun = time.monotonic()
            errors = await asyncio.gather(
                *[store.backend.commit(request) for request in requests],
                *[store.backend.read([key("n", number)]) for number in range(4)],
                return_exceptions=True,
            )
            assert time.monotonic() - begun < _SLACK_SECONDS
            assert [type(error) for error in errors] == [CommitUnknownError] * 4 + [BackendUnavailableError] * 4
            await store.backend.close()

    asyncio.run(run())


def test_a_stopped_server_ends_reads_and_new_connections(server: RedisServer) -> None:
    async def run() -> None:
        backend = RedisBackend(server.url, reply_seconds=_REPLY_SECONDS, connect_seconds=_REPLY_SECONDS)
        leaf = backend.blocking()
        store = Subject(backend)
        await store.commit({key("a"): put(1)})
        await leaf.read([key("a")])
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            for each in (backend, leaf):
                for _ in range(2):  # on the connection that there is, and while one is made
                    begun = time.monotonic()
                    with pytest.raises(BackendUnavailableError):
                        await each.read([key("a")])
                    assert time.monotonic() - begun < _SLACK_SECONDS
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert await store.value(key("a")) == 1
        await leaf.commit(await store.request({key("a"): put(2)}))
        await backend.close()

    asyncio.run(run())


def test_run_settles_a_commit_that_a_silent_network_swallowed(redis_url: str, name: str) -> None:
    with FaultyProxy(redis_url) as proxy:
        with sync.open(proxy.url, agent="a", name=name, reply_seconds=_REPLY_SECONDS) as store:
            stock = store.resource("stock", int)

            def take(session: sync.AgentSession[int]) -> None:
                session.write("k", (session.read("k") or 0) + 1)
                if not held:
                    held.append(1)
                    proxy.silence()

            held: list[int] = [1]
            stock.run(take)
            held.clear()
            stock.run(take)
            assert stock.read("k") == 2

        async def run() -> None:
            async with interlock.open(proxy.url, agent="a", name=name, reply_seconds=_REPLY_SECONDS) as store:
                stock = store.resource("stock", int)

                async def take(session: interlock.AgentSession[int]) -> None:
                    await session.write("k", (await session.read("k") or 0) + 1)
                    if not held:
                        held.append(1)
                        proxy.silence()

                held: list[int] = []
                await stock.run(take)
                assert await stock.read("k") == 3

        asyncio.run(run())


def test_waiting_for_news_is_no_silence(redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is asked to hold that question for longer than it may owe a reply."""
    monkeypatch.setattr(tail, "BLOCK_SECONDS", 3.0)

    async def run() -> None:
        with FaultyProxy(redis_url) as proxy:
            backend = RedisBackend(proxy.url, name=name, reply_seconds=_REPLY_SECONDS)
            token = await backend.snapshot()
            assert not await backend.wait(token, 0.1)
            accepted = proxy.accepted
            assert not await backend.wait(token, 4.0)
            assert proxy.accepted == accepted
            await backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("suspends", [True, False])
def test_what_a_stopped_server_does_late_is_what_outcome_says(server: RedisServer, suspends: bool) -> None:
    """The commit lies in the server's socket while its caller gives up. It may be done after that; whatever `outcome`
    says is so for good, whichever of the two connections the server reads first."""
    backend = RedisBackend(server.url, reply_seconds=_REPLY_SECONDS)
    leaf = backend if suspends else backend.blocking()

    async def run() -> None:
        store = Subject(leaf)
        await store.commit({key("a"): put(0)})
        for number in range(1, 3):
            request = await store.request({key("a"): put(number)})
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(CommitUnknownError):
                    await leaf.commit(request)
            finally:
                server.process.send_signal(signal.SIGCONT)
            before = await store.value(key("a"))
            settled, change = await leaf.outcome(request.transaction, fence=True)
            done = settled is Settled.COMMITTED
            assert done or settled is Settled.FENCED
            assert (change is not None) is done
            after = [await store.value(key("a")) for _ in range(3)]
            assert len(set(after)) == 1
            assert (after[0] == number) is done
            assert before in (number - 1, number)
            await store.commit({key("a"): put(number)})
        await leaf.close()

    if suspends:
        asyncio.run(run())
    else:
        step(run())
