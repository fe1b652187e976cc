"""Replies that never come: cut connections, cancelled tasks, interrupted threads, silent servers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from interlock import sync
from interlock.backends.redis import RedisBackend
from interlock.errors import BackendUnavailableError, CommitUnknownError, UsageError
from interlock.model import Settled
from interlock.testing.conformance.world import Subject, key, put, step
from redis_servers import RedisServer


class Cutter:
    """Stands between us and the server, and cuts the connection when a commit comes: before it reaches the server, or
    after the server has answered, so that only the answer is lost."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        self.armed = ""
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(ours,), daemon=True))
            self._threads[-1].start()

    def _serve(self, ours: socket.socket) -> None:
        """One request and its answer at a time, which is how both leaves use it here."""
        theirs = socket.create_connection(("127.0.0.1", self._port))
        back = threading.Thread(target=self._answer, args=(theirs, ours), daemon=True)
        back.start()
        with ours, theirs:
            try:
                while data := ours.recv(1 << 20):
                    cut = self.armed if b"marker" in data else ""
                    if cut == "before":
                        break
                    if cut == "after":
                        self._swallow = theirs
                    theirs.sendall(data)
                    if cut:
                        back.join(10)
                        break
            except OSError:
                pass
            self.armed = ""
            ours.shutdown(socket.SHUT_RDWR) if ours.fileno() >= 0 else None
            theirs.close()
            back.join(10)

    _swallow: socket.socket | None = None

    def _answer(self, theirs: socket.socket, ours: socket.socket) -> None:
        try:
            while data := theirs.recv(1 << 20):
                if self._swallow is theirs:
                    return
                ours.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def cutter(server: RedisServer) -> Iterator[Cutter]:
    made = Cutter(server.port)
    yield made
    made.close()


@pytest.mark.parametrize("suspends", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_reply_is_unknown_and_can_be_settled(cutter: Cutter, suspends: bool, when: str) -> None:
    backend = RedisBackend(cutter.url)
    leaf = backend if suspends else backend.blocking()

    async def run() -> None:
        store = Subject(leaf)
        await store.commit({key("a"): put(1)})
        request = await store.request({key("a"): put("marker")})
        cutter.armed = when
        with pytest.raises(CommitUnknownError):
            await leaf.commit(request)
        settled, change = await leaf.outcome(request.transaction, fence=True)
        assert settled is (Settled.FENCED if when == "before" else Settled.COMMITTED)
        assert (change is None) is (when == "before")
        assert await store.value(key("a")) == (1 if when == "before" else "marker")
        await leaf.close()

    if suspends:
        asyncio.run(run())
    else:
        step(run())


@pytest.mark.parametrize("when", ["before", "after"])
def test_run_settles_a_lost_reply_by_itself(cutter: Cutter, when: str) -> None:
    runs: list[int] = []

    def write(session: sync.AgentSession[str]) -> None:
        runs.append(1)
        session.write("k", "marker")

    with sync.open(cutter.url, agent="a") as store:
        store.resource("r", str).read("k")
        cutter.armed = when
        store.resource("r", str).run(write)
        assert store.resource("r", str).read("k") == "marker"
        assert len(list(store.log.changes())) == 1
    assert len(runs) == (2 if when == "before" else 1)


def test_a_cancelled_commit_ends_and_says_how(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url, grace_seconds=20.0))
        await store.commit({key("a"): put(1)})
        request = await store.request({key("a"): put(2)})
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        task = asyncio.ensure_future(store.backend.commit(request))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "the caller goes on before the commit has ended"
        server.process.send_signal(signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "was done" in caught.value.__notes__[0]
        assert await store.value(key("a")) == 2
        await store.backend.close()

    asyncio.run(run())


def test_a_cancelled_commit_is_waited_for_no_longer_than_the_grace(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url, grace_seconds=0.01))
        await store.commit({key("a"): put(1)})
        request = await store.request({key("a"): put(2)})
        others = [asyncio.ensure_future(store.entry(key("a"))) for _ in range(3)]
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        task = asyncio.ensure_future(store.backend.commit(request))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "may or may not happen" in caught.value.__notes__[0]
        server.process.send_signal(signal.SIGCONT)
        await asyncio.gather(*others)
        assert await store.value(key("a")) == 2, "the connection goes on for the others"
        await store.backend.close()

    asyncio.run(run())


def test_cancelled_reads_disturb_nobody(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        await store.commit({key("n", number): put(number) for number in range(20)})
        for turn in range(20):
            tasks = [asyncio.ensure_future(store.value(key("n", number))) for number in range(20)]
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert results[1::2] == list(range(20))[1::2]
        await store.backend.close()

    asyncio.run(run())


def test_an_interrupted_thread_says_that_it_may_have_happened(server: RedisServer) -> None:
    leaf = RedisBackend(server.url).blocking()
    store = Subject(leaf)
    step(store.commit({key("a"): put(1)}))
    request = step(store.request({key("a"): put(2)}))
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        step(leaf.commit(request))
    timer.join()
    server.process.send_signal(signal.SIGCONT)
    assert "may or may not happen" in caught.value.__notes__[0]
    settled, _ = step(leaf.outcome(request.transaction, fence=True))
    assert step(store.value(key("a"))) == (2 if settled is Settled.COMMITTED else 1)
    step(leaf.close())


def test_closing_ends_those_who_wait(server: RedisServer) -> None:
    async def run() -> None:
        backend = RedisBackend(server.url)
        token = await backend.snapshot()
        tasks = [asyncio.ensure_future(backend.wait(token, 60.0)) for _ in range(3)]
        while len(backend._driver._loops[asyncio.get_running_loop()].tail._waiters) < 3:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        await backend.close()
        assert all(type(error) is UsageError for error in await asyncio.gather(*tasks, return_exceptions=True))

    asyncio.run(run())


def test_connections_that_the_server_closed_are_replaced(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        leaf = store.backend.blocking()
        reply = await store.commit({key("a"): put(1)})
        token = await leaf.snapshot()
        waiting = asyncio.ensure_future(store.backend.wait(token, 20.0))
        for number in range(5):
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await store.version(key("a")) == reply.version, "the same life of the server, the same token"
            assert (await leaf.read([key("a")], token)).token == token
            await leaf.commit(await store.request({key("n", number): put(number)}))
        assert await waiting
        await store.backend.close()

    asyncio.run(run())


def test_a_forked_child_has_connections_of_its_own(server: RedisServer) -> None:
    leaf = RedisBackend(server.url).blocking()
    store = Subject(leaf)
    step(store.commit({key("a"): put(1)}))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            step(store.commit({key("child"): put(step(store.value(key("a"))))}))
            code = 0
        finally:
            os._exit(code)
    for number in range(20):
        step(store.commit({key("parent", number): put(number)}))
    assert os.waitpid(child, 0)[1] == 0
    assert step(store.value(key("child"))) == 1
    assert len(step(store.listing())) == 22
    step(leaf.close())


def test_no_server_is_no_commit(server: RedisServer) -> None:
    """What never went out is unavailable, not unknown."""

    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        request = await store.request({key("a"): put(1)})
        server.kill()
        await asyncio.sleep(0)
        errors = []
        for backend in (store.backend, store.backend.blocking()):
            for _ in range(2):
                try:
                    await backend.commit(request)
                except (BackendUnavailableError, CommitUnknownError) as error:
                    errors.append(error)
        assert type(errors[-1]) is BackendUnavailableError
        assert type(errors[1]) is BackendUnavailableError
        await store.backend.close()

    asyncio.run(run())
