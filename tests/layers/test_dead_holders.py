"""Holders of locks that are killed or stopped, and engines that are killed while locks are held.

What must hold: whoever waits goes on within the locks' time to live, and what the holder was about to write never lands
behind the write of whoever took over. After a crash of the engine the locks may be gone (their records are volatile);
then validation alone keeps the count right."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import interlock
import zygote
from cases.support import World, in_worlds
from interlock import InterlockError, RetryPolicy, sync
from interlock.core.options import DEFAULTS
from interlock.layers.desks import POLL_SECONDS
from interlock.layers.locks import TTL_SECONDS as TTL_SECONDS_OF_SESSIONS
from layers.lock_holder import TTL_SECONDS
from redis_servers import redis_server
from servers import postgresql_server

HOLDER = Path(__file__).with_name("lock_holder.py")
SLACK_SECONDS = 20.0
processes = in_worlds("sqlite-sync", "postgresql-sync", "redis-sync")


@contextmanager
def holder(world: World, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock; gone in the end."""
    url, options = world.place
    process = zygote.start(str(HOLDER), url, json.dumps(options), how)
    try:
        assert hear(process) == "held"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


async def add_ten(session: Any) -> None:
    await session.write("n", await session.read("n", 0) + 10)


@pytest.mark.parametrize("mode", ["serializable", "pessimistic"])
@pytest.mark.parametrize("how", ["session", "lock"])
@processes
async def test_a_killed_holder_of_locks_is_waited_for_no_longer_than_they_live(
    world: World, how: str, mode: str
) -> None:
    stock = world.open().resource("stock")
    with holder(world, how) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        begun = time.monotonic()
        await stock.run(add_ten, isolation=mode, lock_timeout_seconds=60)
        assert time.monotonic() - begun < TTL_SECONDS + SLACK_SECONDS
    assert await stock.read("n") == 10


@in_worlds("sqlite-sync")
async def test_the_locks_of_a_killed_process_are_had_within_the_usual_time(world: World) -> None:
    """Nobody has chosen any time here: those who wait as long as they do as a rule get what a dead process held."""
    once = RetryPolicy(max_attempts=1)
    stock = world.open().resource("stock")

    async def add(session: Any) -> None:
        await session.add("n", 10)

    async def write() -> None:
        await world.open().resource("stock").run(add, retry=once)

    with holder(world, "default") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        writer = world.thread(write)
        await stock.run(add, isolation="pessimistic", retry=once)
        writer.result()
    assert await stock.read("n") == 20


@in_worlds("memory-async")
async def test_locks_live_for_less_than_they_are_waited_for(world: World) -> None:
    """Of `SharedResource.lock`, too; with room for the look after the end of that time."""
    for lock in (interlock.SharedResource.lock, sync.SharedResource.lock):
        defaults = {name: each.default for name, each in inspect.signature(lock).parameters.items()}
        assert defaults["ttl_seconds"] == TTL_SECONDS_OF_SESSIONS
        assert defaults["wait_seconds"] == DEFAULTS.lock_timeout_seconds >= TTL_SECONDS_OF_SESSIONS + 2 * POLL_SECONDS


@pytest.mark.parametrize("how", ["session", "lock"])
@processes
async def test_a_stopped_holder_of_locks_cannot_commit_behind_the_next_one(world: World, how: str) -> None:
    stock = world.open().resource("stock")
    with holder(world, how) as process:
        process.send_signal(signal.SIGSTOP)
        await stock.run(add_ten, isolation="pessimistic", lock_timeout_seconds=60)
        assert await stock.read("n") == 10
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert hear(process) in ("conflict", "fenced", "lease_lost")
    assert await stock.read("n") == 10


@pytest.mark.parametrize("start", [postgresql_server, redis_server])
@pytest.mark.parametrize("held", ["session", "lock"])
def test_the_engine_is_killed_while_locks_are_held(start: Callable[[], Any], held: str) -> None:
    with start() as server, sync.open(server.url, agent="first") as first, sync.open(server.url, agent="next") as other:
        one, two = first.resource("stock"), other.resource("stock")
        one.run(lambda session: session.write("n", 0))
        crashed = threading.Event()

        def slow(session: Any) -> None:
            value = session.read("n")
            if not crashed.is_set():
                server.kill()
                server.start()
                crashed.set()
                rival.start()
            session.write("n", value + 1)

        def compete() -> None:
            persist(lambda: two.run(lambda session: session.write("n", session.read("n") + 1)))

        rival = threading.Thread(target=compete)
        if held == "session":
            persist(lambda: one.run(slow, isolation="pessimistic"))
        else:
            persist(lambda: locked(one, slow))
        rival.join(SLACK_SECONDS)
        assert not rival.is_alive(), "the locks of a dead engine hold somebody up"
        assert two.read("n") == 2


def locked(resource: Any, body: Callable[[Any], None]) -> None:
    with resource.lock("n", ttl_seconds=TTL_SECONDS) as lock, resource.session(fence=lock) as session:
        body(session)


def persist(act: Callable[[], Any]) -> None:
    """Again while the error says that nothing was done and another try may do."""
    until = time.monotonic() + SLACK_SECONDS
    while True:
        try:
            return act()
        except InterlockError as error:
            again = error.retryable or error.code in ("fenced", "lease_lost", "backend_unavailable")
            if error.maybe_committed or not again or time.monotonic() > until:
                raise
