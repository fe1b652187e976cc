"""Cases of kind redis: scripts that vanish, and the keys that a script names."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

import interlock
import interlock.sync
from cases.support import PATIENCE_SECONDS, World, increment, on_redis, rows
from redis_servers import RedisServer, redis_server

# --- R149: scripts that vanish ----------------------------------------------------------------------------------------


@on_redis
async def test_R149_scripts_are_flushed_again_and_again_and_every_commit_is_applied_once(world: World) -> None:
    store = world.open()
    counters = store.resource("counters")
    enough = threading.Event()
    flushes = 0

    def flush() -> None:
        nonlocal flushes
        with redis.Redis.from_url(world.url) as client:
            while not enough.is_set():
                client.script_flush()
                flushes += 1

    async def count(number: int) -> None:
        for turn in range(20):
            await counters.run(increment, idempotency_key=f"{number}/{turn}", agent=f"agent {number}")

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        world.together(8, count)
    finally:
        enough.set()
        flusher.join(PATIENCE_SECONDS)
    assert flushes > 10
    assert await counters.read("n") == 160
    assert len(await rows(store.log.changes())) == 160


@on_redis
async def test_R149_commits_of_one_pipeline_are_loaded_again_together(world: World) -> None:
    store = world.open()
    counters = store.resource("counters")
    await counters.run(increment)
    with redis.Redis.from_url(world.url) as client:
        for number in range(1, 6):
            client.script_flush()
            world.together(10, lambda _, number=number: counters.run(increment, str(number), detached=True))
            client.script_flush()
            assert await counters.read(str(number)) == 10
    assert len(await rows(store.log.changes())) == 51


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_R149_a_restart_forgets_scripts_and_nobody_notices(colour: str) -> None:
    with redis_server() as server:
        world = OfServer(colour, server)
        try:
            world.call(over_restarts(world, server))
        finally:
            world.close()


class OfServer(World):
    """A world on a server that the test may kill."""

    def __init__(self, colour: str, server: RedisServer) -> None:
        super().__init__(f"redis-{colour}", server.directory, server.url)


async def over_restarts(world: World, server: RedisServer) -> None:
    """Count before and after."""
    counters = world.open().resource("counters")
    for number in range(1, 4):
        done = await counters.run_detailed(increment, idempotency_key=str(number))
        server.kill()
        server.start()
        again = await counters.run_detailed(increment, idempotency_key=str(number))
        assert (done.value, again.value, again.replayed) == (number, number, True)


# --- R150: the keys that a script names -------------------------------------------------------------------------------

WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
OF_NO_KEY = {b"time", b"info", b"config", b"script"}


class Monitor:
    """What a server is told, line by line."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), PATIENCE_SECONDS)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"

    def until(self, mark: bytes) -> Iterator[tuple[bool, list[bytes]]]:
        """Whether a script has said it, and the words; up to a PING that says ``mark``."""
        for line in self._lines:
            words = WORD.findall(line)
            if words[-1] == mark:
                break
            yield b" lua]" in line.partition(b'"')[0], [words[0].lower(), *words[1:]]

    def close(self) -> None:
        """End it."""
        self._lines.close()
        self._socket.close()


def add_one(session: Any) -> None:
    """Write something."""
    session.add("sum", 1)


def everything(store: interlock.sync.Store) -> None:
    """Use whatever there is."""
    stock = store.resource("stock")
    for number in range(3):
        stock.run(lambda session, n=number: session.write(("log", n), "x" * 5000 * n))
    with stock.session() as session:
        assert len(list(session.scan(("log",)))) == 3
        session.add("sum", 10**20, floor=0)
        session.set_add("set", "a")
        session.append("list", [1])
        session.maximum("maximum", 7)
        session.write("other", session.read("absent"))
        session.delete(("log", 0))
        session.clear(("log",))
    for _ in range(2):
        stock.run(add_one, idempotency_key="K")
    cursor = store.log.head()
    assert list(store.log.changes())
    assert list(stock.history("sum"))
    assert stock.entry("sum") is not None
    assert store.log.wait(cursor, timeout_seconds=0.01) is False
    assert store.outcome(session.transaction_id) is interlock.Outcome.COMMITTED
    store.compact()


def test_R150_every_key_that_is_touched_is_declared_and_nothing_else_is() -> None:
    with redis_server() as server:
        with contextlib.closing(Monitor(server.url)) as monitor:
            with interlock.sync.open(server.url, agent="tester", name="declared") as store:
                everything(store)
            server.ask("PING", "that is all")
            heard = list(monitor.until(b"that is all"))
        declared, touched, commands = set[bytes](), set[bytes](), set[bytes]()
        for by_script, words in heard:
            if by_script and words[0] not in OF_NO_KEY:
                commands.add(words[0])
                touched |= {words[1], *(word for word in words if word.startswith(b"{declared}"))}
            elif words[0] in (b"evalsha", b"eval"):
                count = int(words[2])
                declared |= set(words[3 : 3 + count])
        assert len(commands) >= 8, "the monitor sees what scripts do"
        assert touched <= declared, "a key is touched that was not declared"
        assert all(re.fullmatch(rb"\{declared\}:[a-z]+", key) for key in declared), "an argument is declared as a key"
        assert declared <= touched, "a key is declared for nothing"


def test_R150_a_user_who_may_touch_the_keys_of_one_store_can_use_it() -> None:
    """The server checks what is declared and what is touched against the keys that a user may see."""
    with redis_server() as server:
        server.ask("ACL", "SETUSER", "shop", "on", ">word", "+@all", "~{mine}:*")
        url = server.url.replace("redis://", "redis://shop:word@")
        with interlock.sync.open(url, agent="tester", name="mine") as store:
            everything(store)
        theirs = interlock.sync.open(url, agent="tester", name="theirs")
        with pytest.raises(interlock.BackendError):
            theirs.resource("stock").run(add_one)
        theirs.close()
