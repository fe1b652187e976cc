"""The cells of the SQLite backend: tasks of one event loop, or threads, on one new file, with ``synchronous=FULL``.

Compared by commits per second with a hand-written writer thread that commits in groups, once with the least rows that
are safe and once with the rows that the library writes. In the floors every transaction has an idempotency key. The
library is measured with one and without; the README says which cell compares with which floor.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import interlock
import interlock.sync
from benchmarks.floors.sqlite import (
    GroupWriter,
    LeastRows,
    Rows,
    SameRows,
    commit_async,
    commit_blocking,
    commit_inline,
    connect,
)
from benchmarks.measure import Cell, Measure, Sample, Target
from benchmarks.memory import rewrite, rewrite_now
from benchmarks.portlevel import PortCaller
from benchmarks.workload import AGENT, RESOURCE, VALUE, all_keys, changed, keys_of
from interlock.opening import backend_for, for_async, for_sync
from interlock.stepping import step

LEAST: Final = "floor: least rows"
SAME: Final = "floor: same rows"
INLINE: Final = "floor: no thread"
PORT: Final = "port level"
PORT_KEYED: Final = "port level, with key"
RUN: Final = "async run"
RUN_KEYED: Final = "async run, with key"
RUN_NOW: Final = "sync run"
RUN_NOW_KEYED: Final = "sync run, with key"
TASKS: Final = (1, 8, 32)
THREADS: Final = (1, 8)
TARGETS: Final = (Target(LEAST, 0.6), Target(SAME, 0.8))
"""What part of a floor's commits per second the library should reach."""

_WARM_SECONDS: Final = 0.2
_FILL: Final = 2_000

Call = Callable[[str, str], Awaitable[object]]
"""One transaction on a key, under an idempotency key."""
CallNow = Callable[[str, str], object]


def cells(tasks: tuple[int, ...] = TASKS, threads: tuple[int, ...] = THREADS) -> list[Cell]:
    """All of them, floors first."""
    found: list[Cell] = []
    for count in tasks:
        group = group_of(count, "task")
        found += [
            Cell(group, LEAST, _floor(LeastRows, count), floor=True),
            Cell(group, SAME, _floor(SameRows, count), floor=True),
            Cell(group, PORT, _port(count, keyed=False)),
            Cell(group, PORT_KEYED, _port(count, keyed=True)),
            Cell(group, RUN, _library(count, keyed=False), targets=TARGETS),
            Cell(group, RUN_KEYED, _library(count, keyed=True), targets=TARGETS),
        ]
    for count in threads:
        group = group_of(count, "thread")
        found += [
            Cell(group, LEAST, _floor_now(LeastRows, count), floor=True),
            Cell(group, SAME, _floor_now(SameRows, count), floor=True),
            Cell(group, PORT, _port_now(count, keyed=False)),
            Cell(group, PORT_KEYED, _port_now(count, keyed=True)),
            Cell(group, RUN_NOW, _library_now(count, keyed=False), targets=TARGETS),
            Cell(group, RUN_NOW_KEYED, _library_now(count, keyed=True), targets=TARGETS),
        ]
        if count == 1:
            found.insert(-4, Cell(group, INLINE, _floor_inline, floor=True))
    return found


def group_of(count: int, what: str) -> str:
    """The group of so many tasks or threads."""
    return f"SQLite FULL, {count} {what}{'s' * (count > 1)}"


def url_of(directory: Path) -> str:
    """A new store in a directory."""
    return f"sqlite:///{directory / 'store.db'}"


# --- driving ----------------------------------------------------------------------------------------------------------


async def drive(call: Call, tasks: int, seconds: float, keys_for: Callable[[int], list[str]] = keys_of) -> Sample:
    """Let tasks make transactions for so long, each on its own keys, after a while of the same to get warm."""
    latencies: list[float] = []
    clock = time.perf_counter

    async def work(task: int, until: float, name: str) -> None:
        keys, i = keys_for(task), 0
        while (begun := clock()) < until or i == 0:
            await call(keys[i % len(keys)], f"{name}-{task}-{i}")
            latencies.append(clock() - begun)
            i += 1

    until = clock() + min(seconds, _WARM_SECONDS)
    await asyncio.gather(*(work(task, until, "warm") for task in range(tasks)))
    latencies.clear()
    cpu, started = time.process_time(), clock()
    until = started + seconds
    await asyncio.gather(*(work(task, until, "order") for task in range(tasks)))
    cpu, wall = time.process_time() - cpu, clock() - started
    return Sample(len(latencies), wall, cpu, sorted(latencies))


def drive_threads(calls: list[CallNow], seconds: float) -> Sample:
    """The same with threads, one for each call."""
    latencies: list[list[float]] = [[] for _ in calls]
    clock = time.perf_counter
    warmed, begin = threading.Barrier(len(calls) + 1), threading.Barrier(len(calls) + 1)
    until = clock() + min(seconds, _WARM_SECONDS)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        keys, own, call = keys_of(thread), latencies[thread], calls[thread]

        def loop(name: str) -> None:
            i = 0
            while (begun := clock()) < until or i == 0:
                call(keys[i % len(keys)], f"{name}-{thread}-{i}")
                own.append(clock() - begun)
                i += 1

        try:
            loop("warm")
            own.clear()
            warmed.wait()
            begin.wait()
            loop("order")
        except BaseException as failure:
            failures.append(failure)
            warmed.abort()
            begin.abort()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(len(calls))]
    for thread in threads:
        thread.start()
    try:
        warmed.wait()
        cpu, started = time.process_time(), clock()
        until = started + seconds
        begin.wait()
    except threading.BrokenBarrierError:
        raise failures[0] from None
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    cpu, wall = time.process_time() - cpu, clock() - started
    pooled = sorted(latency for own in latencies for latency in own)
    return Sample(len(pooled), wall, cpu, pooled)


# --- floors -----------------------------------------------------------------------------------------------------------


def _made(directory: Path, rows: Rows, workers: int) -> Path:
    path = directory / "floor.db"
    connection = connect(path)
    rows.create(connection, all_keys(workers))
    connection.close()
    return path


def _floor(make: Callable[[], Rows], tasks: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        rows = make()
        path = _made(directory, rows, tasks)
        writer, reader = GroupWriter(path, rows), connect(path)

        async def call(key: str, idempotency_key: str) -> None:
            text, version = rows.read(reader, key)
            await commit_async(writer, key, changed(text), version, idempotency_key)

        try:
            return asyncio.run(drive(call, tasks, seconds))
        finally:
            writer.close()
            reader.close()

    return measure


def _floor_now(make: Callable[[], Rows], threads: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        rows = make()
        path = _made(directory, rows, threads)
        writer = GroupWriter(path, rows)
        readers = [connect(path) for _ in range(threads)]

        def caller(reader: sqlite3.Connection) -> CallNow:
            def call(key: str, idempotency_key: str) -> None:
                text, version = rows.read(reader, key)
                commit_blocking(writer, key, changed(text), version, idempotency_key)

            return call

        try:
            return drive_threads([caller(reader) for reader in readers], seconds)
        finally:
            writer.close()
            for reader in readers:
                reader.close()

    return measure


def _floor_inline(seconds: float, directory: Path) -> Sample:
    rows = LeastRows()
    connection = connect(_made(directory, rows, 1))

    def call(key: str, idempotency_key: str) -> None:
        text, version = rows.read(connection, key)
        commit_inline(connection, rows, key, changed(text), version, idempotency_key)

    try:
        return drive_threads([call], seconds)
    finally:
        connection.close()


# --- the library ------------------------------------------------------------------------------------------------------


async def fill(stock: interlock.SharedResource[Any], keys: Sequence[Any]) -> None:
    """A value under each key."""
    for place in range(0, len(keys), _FILL):
        async with stock.session() as session:
            for key in keys[place : place + _FILL]:
                await session.write(key, VALUE)


def _library(tasks: int, *, keyed: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        async def work() -> Sample:
            async with interlock.open(url_of(directory), agent=AGENT) as store:
                stock = store.resource(RESOURCE)
                await fill(stock, all_keys(tasks))

                def call(key: str, idempotency_key: str) -> Awaitable[object]:
                    return stock.run(rewrite, key, idempotency_key=idempotency_key)

                def call_unkeyed(key: str, _: str) -> Awaitable[object]:
                    return stock.run(rewrite, key)

                return await drive(call if keyed else call_unkeyed, tasks, seconds)

        return asyncio.run(work())

    return measure


def _library_now(threads: int, *, keyed: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        with interlock.sync.open(url_of(directory), agent=AGENT) as store:
            stock = store.resource(RESOURCE)
            keys = all_keys(threads)
            for place in range(0, len(keys), _FILL):
                with stock.session() as session:
                    for key in keys[place : place + _FILL]:
                        session.write(key, VALUE)

            def call(key: str, idempotency_key: str) -> object:
                return stock.run(rewrite_now, key, idempotency_key=idempotency_key)

            def call_unkeyed(key: str, _: str) -> object:
                return stock.run(rewrite_now, key)

            return drive_threads([call if keyed else call_unkeyed] * threads, seconds)

    return measure


def _port(tasks: int, *, keyed: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        async def work() -> Sample:
            backend = for_async(backend_for(url_of(directory), {}))
            try:
                caller = PortCaller(backend)
                await caller.fill(all_keys(tasks))

                def call(key: str, idempotency_key: str) -> Awaitable[object]:
                    return caller.read_modify_write(key, idempotency_key if keyed else None)

                return await drive(call, tasks, seconds)
            finally:
                await backend.close()

        return asyncio.run(work())

    return measure


def _port_now(threads: int, *, keyed: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        backend = for_sync(backend_for(url_of(directory), {}))
        try:
            caller = PortCaller(backend)
            step(caller.fill(all_keys(threads)))

            def call(key: str, idempotency_key: str) -> object:
                return step(caller.read_modify_write(key, idempotency_key if keyed else None))

            return drive_threads([call] * threads, seconds)
        finally:
            step(backend.close())

    return measure


def fsync_seconds(directory: Path, count: int = 40) -> float:
    """What the disk takes to make 4 kB durable: the median of some appends."""
    path = directory / "probe"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    found = []
    try:
        for _ in range(count):
            begun = time.perf_counter()
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
            found.append(time.perf_counter() - begun)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return sorted(found)[count // 2]
