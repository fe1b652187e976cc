"""Opening a store: who comes first makes it, servers that cannot keep promises are refused, all ways to a server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
import trio

import interlock
import zygote
from interlock import sync
from interlock.backends.redis import RedisBackend, greeting
from interlock.backends.redis.home import Ask
from interlock.errors import (
    BackendCorruptError,
    BackendError,
    BackendUnavailableError,
    CommitUnknownError,
    SchemaMismatchError,
    UsageError,
)
from interlock.model import Settled
from interlock.testing.conformance.world import Subject, key, put, step
from redis_servers import RedisServer, redis_sentinel, redis_server
from servers import missing

_OPEN = """
import sys
from interlock import sync
with sync.open(sys.argv[1], agent="p" + sys.argv[3], name=sys.argv[2]) as store:
    store.resource("r").run(lambda session: session.add("opened", 1))
"""


def test_twenty_processes_open_a_new_store_at_once(redis_url: str, name: str) -> None:
    processes = [
        zygote.start("-c", _OPEN, redis_url, name, str(number), stderr=subprocess.PIPE) for number in range(20)
    ]
    ended = [(process.communicate(timeout=100)[1], process.returncode) for process in processes]
    assert [code for _, code in ended] == [0] * 20, ended
    with sync.open(redis_url, agent="judge", name=name) as store:
        assert store.resource("r").read("opened") == 20


def test_scripts_that_are_flushed_during_the_greeting(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = greeting.load

    async def load_in_vain(ask: Ask) -> None:
        await load(ask)
        await ask((b"SCRIPT", b"FLUSH"))

    async def add_one(session: interlock.AgentSession[int]) -> None:
        await session.add("n", 1)

    async def run() -> None:
        async with interlock.open(redis_url, agent="a", name=name) as store:
            await store.resource("r", int).run(add_one)

    monkeypatch.setattr(greeting, "load", load_in_vain)
    asyncio.run(run())
    with sync.open(redis_url, agent="b", name=name) as store:
        assert store.resource("r", int).read("n") == 1


def test_both_worlds_share_a_store(redis_url: str, name: str) -> None:
    async def put_one(session: interlock.AgentSession[int]) -> None:
        await session.write("k", 1)

    async def run() -> None:
        async with interlock.open(redis_url, agent="a", name=name) as store:
            await store.resource("r", int).run(put_one)

    asyncio.run(run())
    with sync.open(redis_url, agent="b", name=name) as store:
        assert store.resource("r", int).read("k") == 1


def test_trio_is_served_too(redis_url: str, name: str) -> None:
    async def run() -> None:
        async with interlock.open(redis_url, agent="a", name=name) as store:
            resource = store.resource("r", int)
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(resource.run, add_one)
            assert await resource.read("n") == 10
        backend = RedisBackend(redis_url, name=name)
        token = await backend.snapshot()
        assert await backend.wait(token, 0.01) is False
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.wait, token, 10.0)
                await Subject(backend).commit({key("a"): put(1)})
        await backend.close()

    async def add_one(session: interlock.AgentSession[int]) -> None:
        await session.add("n", 1)

    trio.run(run)


def test_event_loops_of_several_threads_share_a_store_object(redis_url: str, name: str) -> None:
    backend = RedisBackend(redis_url, name=name)

    async def write(number: int) -> None:
        store = Subject(backend)
        for turn in range(20):
            await store.commit({key(number, turn): put(turn)})

    threads = [threading.Thread(target=lambda n=number: asyncio.run(write(n))) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    async def judge() -> None:
        assert len(await Subject(backend).listing()) == 120
        await backend.close()

    asyncio.run(judge())


@pytest.mark.parametrize("make", [redis.Redis.from_url, redis.asyncio.Redis.from_url])
def test_a_client_of_redis_py_names_the_server(redis_url: str, name: str, make: object) -> None:
    client = make(redis_url)  # type: ignore[operator]
    leaf = RedisBackend(client, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        await store.commit({key("a"): put(1)})
        assert await store.value(key("a")) == 1
        await leaf.close()

    step(run())


def _refusal(url: str, **options: object) -> BaseException:
    """What opening raises, the same in both worlds."""
    backend = RedisBackend(url, connect_seconds=2.0, **options)  # type: ignore[arg-type]
    errors: list[BaseException] = []

    async def opened(target: RedisBackend) -> None:
        try:
            await target.snapshot()
        except Exception as error:
            errors.append(error)
        await target.close()

    asyncio.run(opened(backend))
    step(opened(RedisBackend(url, connect_seconds=2.0, **options).blocking()))  # type: ignore[arg-type]
    first, second = errors
    assert type(first) is type(second)
    return first


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"appendonly": "no"}, "appendonly is off"),
        ({"appendfsync": "everysec"}, "appendfsync is everysec"),
        ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru"),
    ],
)
def test_a_server_that_may_lose_what_it_acknowledges_is_refused(settings: dict[str, str], said: str) -> None:
    with redis_server(**settings) as server:
        error = _refusal(server.url)
        assert isinstance(error, UsageError)
        assert said in str(error)
        assert "durability" in str(error)
        assert server.ask("DBSIZE") == 0

        async def run() -> None:
            store = Subject(RedisBackend(server.url, durability="none"))
            await store.commit({key("a"): put(1)})
            await store.backend.close()

        asyncio.run(run())


def test_where_config_is_forbidden_nobody_promises_a_sync(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-config")
    url = server.url.replace("redis://", "redis://app:secret@")
    error = _refusal(url)
    assert isinstance(error, UsageError)
    assert "CONFIG is forbidden" in str(error)
    with sync.open(url, agent="a", durability="none") as store:
        store.resource("r").read("k")


def test_a_wrong_password_and_missing_rights_are_said(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+info", "+config")
    assert type(_refusal(server.url.replace("redis://", "redis://reader:secret@"))) is BackendError
    assert type(_refusal(server.url.replace("redis://", "redis://reader:wrong@"))) is BackendError


def test_a_password_works() -> None:
    with redis_server(requirepass="p@ss word") as server:
        assert type(_refusal(server.url)) is BackendError
        url = server.url.replace("redis://", "redis://:p%40ss%20word@")
        with sync.open(url, agent="a") as store:
            store.resource("r").run(lambda session: session.write("k", 1))
            assert store.resource("r").read("k") == 1


def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        error = _refusal(f"redis://127.0.0.1:{probe.getsockname()[1]}")
    assert isinstance(error, BackendUnavailableError)


def test_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            for _ in range(2):
                accepted, _ = other.accept()
                with accepted:
                    accepted.recv(1000)
                    accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert isinstance(_refusal(f"redis://127.0.0.1:{other.getsockname()[1]}"), BackendUnavailableError)
        thread.join(10)


def test_another_form_and_other_data_are_left_alone(server: RedisServer) -> None:
    with sync.open(server.url, agent="a", name="old") as store:
        store.resource("r").read("k")
    server.ask("HSET", "{old}:entries", "v", "999")
    assert isinstance(_refusal(server.url, name="old"), SchemaMismatchError)
    server.ask("SET", "{other}:entries", "mine")
    assert isinstance(_refusal(server.url, name="other"), BackendCorruptError)
    assert server.ask("GET", "{other}:entries") == b"mine"


@pytest.mark.parametrize(
    "options",
    [{"durability": "most"}, {"connections": 0}, {"replicas": 0}, {"grace_seconds": -1.0}, {"connect_seconds": 0.0}],
)
def test_options_that_make_no_sense_are_refused(redis_url: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        RedisBackend(redis_url, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://x", "redis+sentinel://h:1", "redis+sentinel:///service", "redis://h:port"])
def test_urls_that_make_no_sense_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        RedisBackend(url)


@pytest.fixture
def replica(server: RedisServer) -> Iterator[RedisServer]:
    """A replica of the server."""
    with redis_server(replicaof=f"127.0.0.1 {server.port}", appendonly="no") as second:
        while second.ask("INFO")["master_link_status"] != "up":
            pass
        while server.ask("INFO")["slave0"]["state"] != "online":
            pass
        yield second


def test_without_replicas_nothing_is_replicated(server: RedisServer) -> None:
    error = _refusal(server.url, durability="replicated")
    assert isinstance(error, BackendUnavailableError)
    assert "wants 1 replicas" in str(error)


def test_a_replica_is_not_written_to(replica: RedisServer) -> None:
    error = _refusal(replica.url, durability="none")
    assert isinstance(error, BackendUnavailableError)
    assert "replica" in str(error)


@pytest.mark.parametrize("suspends", [True, False])
def test_a_replicated_commit_is_on_the_replica(server: RedisServer, replica: RedisServer, suspends: bool) -> None:
    backend = RedisBackend(server.url, durability="replicated", grace_seconds=0.3)
    leaf = backend if suspends else backend.blocking()

    async def run() -> None:
        store = Subject(leaf)
        for number in range(5):
            await store.commit({key("n", number): put(number)})
            assert replica.ask("HEXISTS", "{interlock}:entries", key("n", number))
        if suspends:
            await asyncio.gather(*[store.commit({key("m", number): put(number)}) for number in range(20)])
            assert all(replica.ask("HEXISTS", "{interlock}:entries", key("m", number)) for number in range(20))
        request = await store.request({key("late"): put(1)})
        replica.kill()
        with pytest.raises(CommitUnknownError):
            await leaf.commit(request)
        await store.commit({key("volatile"): put(1)}, durable=False)  # asks for no copy
        with pytest.raises(BackendUnavailableError):
            await leaf.outcome(request.transaction, fence=True)
        replica.start()
        while server.ask("INFO")["connected_slaves"] != 1 or server.ask("INFO")["slave0"]["state"] != "online":
            pass
        settled, change = await leaf.outcome(request.transaction, fence=True)
        assert settled is Settled.COMMITTED
        assert change is not None
        await leaf.close()

    if suspends:
        asyncio.run(run())
    else:
        step(run())


def test_a_promoted_replica_is_another_incarnation(server: RedisServer, replica: RedisServer) -> None:
    async def run() -> None:
        first = Subject(RedisBackend(server.url, durability="replicated"))
        reply = await first.commit({key("a"): put(1)})
        replica.ask("REPLICAOF", "NO", "ONE")
        second = Subject(RedisBackend(replica.url, durability="none"))
        assert await second.version(key("a")) == reply.version
        assert (await second.backend.snapshot()).incarnation > reply.token.incarnation
        with pytest.raises(interlock.SnapshotTooOldError):
            await second.commit({key("a"): put(2)}, snapshot=reply.token)
        await first.backend.close()
        await second.backend.close()

    asyncio.run(run())


def test_a_unix_socket_works(tmp_path: Path) -> None:
    path = f"/tmp/interlock-{tmp_path.name}-{threading.get_ident() % 10000}.sock"
    with redis_server(unixsocket=path) as server:
        with sync.open(f"unix://{path}", agent="a") as store:
            store.resource("r").run(lambda session: session.write("k", 1))
        asyncio.run(_read_back(f"unix://{path}"))
        assert server.ask("DBSIZE") > 0


async def _read_back(url: str, **options: object) -> None:
    async with interlock.open(url, agent="a", **options) as store:
        assert await store.resource("r").read("k") == 1


@pytest.fixture(params=[True, False])
def suspends(request: pytest.FixtureRequest) -> bool:
    """Each leaf."""
    leaf: bool = request.param
    return leaf


def _use(url: str, suspends: bool, **options: object) -> None:
    """Write and read through one leaf."""

    async def run(backend: RedisBackend) -> None:
        store = Subject(backend)
        await store.commit({key("a"): put(1)})
        assert await store.value(key("a")) == 1
        await backend.close()

    backend = RedisBackend(url, **options)  # type: ignore[arg-type]
    if suspends:
        asyncio.run(run(backend))
    else:
        step(run(backend.blocking()))


def test_a_sentinel_names_the_primary_also_after_a_failover(
    server: RedisServer, replica: RedisServer, suspends: bool
) -> None:
    with redis_sentinel(server) as sentinel:
        while sentinel.ask("SENTINEL MASTER", "service")["num-slaves"] < 1:
            pass
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/service"
        backend = RedisBackend(url, durability="none")
        leaf = backend if suspends else backend.blocking()

        async def run() -> None:
            store = Subject(leaf)
            reply = await store.commit({key("a"): put(1)})
            while not replica.ask("HEXISTS", "{interlock}:entries", key("a")):
                pass
            server.kill()
            deadline = time.monotonic() + 60
            while True:
                try:
                    assert await store.version(key("a")) == reply.version
                    break
                except BackendUnavailableError:
                    assert time.monotonic() < deadline
            with pytest.raises(interlock.SnapshotTooOldError):
                await leaf.read([key("a")], reply.token)
            await store.commit({key("a"): put(2)})
            assert replica.ask("INFO")["role"] == "master"
            await leaf.close()

        if suspends:
            asyncio.run(run())
        else:
            step(run())


class _Tunnel:
    """Ends TLS in front of a server, in a thread: the server of the pip package is built without."""

    def __init__(self, port: int, certificate: Path, private: Path) -> None:
        self._port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, private)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> int:
        self._thread.start()
        self._ready.wait(30)
        return self.port

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


def test_tls_is_what_redis_py_makes_of_the_url(server: RedisServer, tmp_path: Path, suspends: bool) -> None:
    if shutil.which("openssl") is None:
        missing("openssl", "it makes the certificate, and is not on the path")
    certificate, private = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(private), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    with _Tunnel(server.port, certificate, private) as port:
        _use(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}", suspends)
        with pytest.raises(BackendUnavailableError):
            _use(f"rediss://127.0.0.1:{port}", suspends)
