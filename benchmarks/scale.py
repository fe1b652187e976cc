"""Whether cost stays the same as a store grows: in keys, and in versions of one key.

All stores of a series are built first and then take turns, so that a busy spell of the machine hits small and large
ones alike. One task, one call at a time, through the public API; first everything that reads, then what adds versions.

On SQLite with ``synchronous=NORMAL``: the sync of the disk costs the same at any size, and would hide what may not. By
the number of keys a hand-written floor of the same size stands beside the library, because the processor's caches make
every large store dearer than a small one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import interlock
from benchmarks.floors.memory import LeastStore, read_modify_write
from benchmarks.floors.sqlite import SameRows, commit_inline, connect
from benchmarks.measure import Step, only_new_garbage, percentile
from benchmarks.memory import rewrite
from benchmarks.sqlite import url_of
from benchmarks.workload import AGENT, RESOURCE, VALUE, changed, pack

BACKENDS: Final = ("memory", "SQLite")
KEYS: Final = "keys"
VERSIONS: Final = "versions"
_FLOOR: Final = "floor: read-modify-write"
_FILL: Final = 5_000
_WRITERS: Final = 64
_OLD: Final = 20
"""Sessions that are opened before a key gets its versions, for each repetition."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cost of one kind of call on a store of one size; medians over the repetitions.

    ``axis``: what there is so many of, ``keys`` in the store or ``versions`` of the key."""

    backend: str
    axis: str
    count: int
    call: str
    p50_us: float
    p99_us: float
    cpu_us: float


@dataclass(slots=True)
class _Grown:
    """A store that has been filled, and what is called on it. ``old`` gives sessions that see the oldest version;
    ``floor`` is a read-modify-write on a floor of the same size, given a key and a name."""

    backend: str
    axis: str
    count: int
    stock: interlock.SharedResource[Any]
    keys: list[str]
    old: list[interlock.AgentSession[Any]]
    floor: Callable[[str, str], None] | None
    found: dict[str, list[tuple[float, float, float]]]


def sizes_up_to(largest: int, first: int) -> list[int]:
    """Powers of ten times ``first``."""
    sizes = [first]
    while sizes[-1] * 10 <= largest:
        sizes.append(sizes[-1] * 10)
    return sizes


def measure(
    *, largest: int, versions: int, seconds: float, repetitions: int, directory: Path | None, step: Step
) -> list[Point]:
    """All points. ``largest``: of the key counts; ``versions``: of the version counts."""
    points: list[Point] = []
    for backend in BACKENDS:
        for axis, counts in (
            (KEYS, sizes_up_to(largest, min(largest, 1_000))),
            (VERSIONS, sizes_up_to(versions, 1)),
        ):
            with tempfile.TemporaryDirectory(prefix="interlock-bench-", dir=directory) as made:
                points += asyncio.run(_series(backend, axis, counts, seconds, repetitions, Path(made), step))
    return points


def step_count(largest: int, versions: int, repetitions: int) -> int:
    """How often `measure` says what comes next."""
    stores = len(sizes_up_to(largest, min(largest, 1_000))) + len(sizes_up_to(versions, 1))
    return len(BACKENDS) * stores * (2 * repetitions + 1)


async def _series(
    backend: str, axis: str, counts: list[int], seconds: float, repetitions: int, directory: Path, step: Step
) -> list[Point]:
    async with contextlib.AsyncExitStack() as stack:
        grown = []
        for count in counts:
            step(f"{backend}: fill {count} {axis}")
            inside = directory / str(count)
            inside.mkdir()
            grown.append(await stack.enter_async_context(_grow(backend, axis, count, repetitions, inside)))
        with only_new_garbage():
            for measure_store in (_measure_reads, _measure_commits):
                for _ in range(repetitions):
                    for store in grown:
                        step(f"{backend}: {store.count} {axis}")
                        await measure_store(store, seconds)
                    grown.reverse()
        return [_point(store, call) for store in sorted(grown, key=lambda store: store.count) for call in store.found]


@contextlib.asynccontextmanager
async def _grow(backend: str, axis: str, count: int, repetitions: int, directory: Path) -> AsyncIterator[_Grown]:
    url, options = "memory://", dict[str, Any]()
    if backend != "memory":
        url, options = url_of(directory), {"synchronous": "NORMAL"}
    async with interlock.open(url, agent=AGENT, **options) as store:
        stock = store.resource(RESOURCE)
        keys = [f"article-{i}" for i in range(count if axis == KEYS else 1)]
        for place in range(0, len(keys), _FILL):
            async with stock.session() as session:
                for key in keys[place : place + _FILL]:
                    await session.write(key, VALUE)
        old = []
        if axis == VERSIONS:
            async with stock.session() as session:
                await session.write("anchor", 0)
            for _ in range(_OLD * repetitions):
                session = await stock.begin(isolation="snapshot", detached=True)
                await session.read("anchor")
                old.append(session)
            await _rewrite_often(stock, keys[0], count - 1)
        with contextlib.closing(_Floor(backend, directory, keys)) as floor:
            yield _Grown(backend, axis, count, stock, keys, old, floor.call if axis == KEYS else None, {})


class _Floor:
    """A floor with a value under each key: the store in memory, or the library's rows on the calling thread."""

    def __init__(self, backend: str, directory: Path, keys: list[str]) -> None:
        self.close: Callable[[], None] = lambda: None
        if backend == "memory":
            store = LeastStore()
            for key in keys:
                store.commit(AGENT, {}, {key: pack(VALUE)}, store.new_id())
            self.call: Callable[[str, str], None] = lambda key, name: read_modify_write(store, key, name)
            return
        rows = SameRows()
        connection = connect(directory / "floor.db", "NORMAL")
        rows.create(connection, keys)
        self.close = connection.close

        def call(key: str, name: str) -> None:
            text, version = rows.read(connection, key)
            commit_inline(connection, rows, key, changed(text), version, name)

        self.call = call


async def _rewrite_often(stock: interlock.SharedResource[Any], key: str, times: int) -> None:
    """Make versions of a key, by many tasks that do not look at it and so never conflict."""
    left = times

    async def write() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with stock.session() as session:
                await session.write(key, VALUE)

    await asyncio.gather(*(write() for _ in range(min(_WRITERS, times))))


async def _measure_reads(store: _Grown, seconds: float) -> None:
    stock, keys = store.stock, store.keys
    choose = random.Random(7).choice

    async def read() -> None:
        async with stock.session() as session:
            await session.read(choose(keys))

    _note(store, "read", await _timed(read, seconds, 20))
    if not store.old:
        return
    mine, store.old = store.old[:_OLD], store.old[_OLD:]
    sessions = iter(mine)

    async def read_old() -> None:
        await next(sessions).read(keys[0])

    _note(store, "read the oldest version", await _timed(read_old, 0.0, len(mine)))
    for session in mine:
        await session.rollback()


async def _measure_commits(store: _Grown, seconds: float) -> None:
    stock, keys, floor = store.stock, store.keys, store.floor
    choose = random.Random(7).choice

    async def commit() -> None:
        await stock.run(rewrite, choose(keys))

    _note(store, "read-modify-write", await _timed(commit, seconds, 20))
    if floor is not None:
        names = map(str, itertools.count(len(store.found.get(_FLOOR, ())) << 32))

        async def call_floor() -> None:
            floor(choose(keys), next(names))

        _note(store, _FLOOR, await _timed(call_floor, seconds, 20))


async def _timed(call: Callable[[], Awaitable[object]], seconds: float, least: int) -> tuple[float, float, float]:
    """p50 and p99 in seconds, and processor seconds for each call."""
    clock = time.perf_counter
    latencies: list[float] = []
    cpu, started = time.process_time(), clock()
    while len(latencies) < least or clock() - started < seconds:
        begun = clock()
        await call()
        latencies.append(clock() - begun)
    cpu = time.process_time() - cpu
    latencies.sort()
    return percentile(latencies, 50), percentile(latencies, 99), cpu / len(latencies)


def _note(store: _Grown, call: str, timed: tuple[float, float, float]) -> None:
    store.found.setdefault(call, []).append(timed)


def _point(store: _Grown, call: str) -> Point:
    p50, p99, cpu = (1e6 * statistics.median(values) for values in zip(*store.found[call], strict=True))
    return Point(store.backend, store.axis, store.count, call, p50, p99, cpu)
