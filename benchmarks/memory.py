"""The cells of the memory backend: one task or thread, one key after the other.

Compared by processor time for each commit, with the same kind of transaction by hand: with an idempotency key the floor
records one too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import interlock
import interlock.sync
from benchmarks.floors.memory import LeastSession, LeastStore, read_modify_write
from benchmarks.measure import Cell, Measure, Sample, Target, measure_awaits, measure_calls
from benchmarks.portlevel import PortCaller
from benchmarks.workload import AGENT, RESOURCE, VALUE, changed, keys_of, pack
from interlock.backends.memory import MemoryBackend

LEAST: Final = "floor: function"
SESSION: Final = "floor: session"
TARGETS: Final = (Target(LEAST, 4.0), Target(SESSION, 4.0))
"""How many times the processor time of a floor a transaction may cost."""

KEYS: Final = keys_of(0)


def key_of(i: int) -> str:
    """The key of the i-th call."""
    return KEYS[i % len(KEYS)]


async def rewrite(session: interlock.AgentSession[Any], key: interlock.Key) -> None:
    """The transaction, awaited."""
    await session.write(key, changed(await session.read(key, VALUE)))


def rewrite_now(session: interlock.sync.AgentSession[Any], key: str) -> None:
    """The transaction, stepped."""
    session.write(key, changed(session.read(key, VALUE)))


def cells() -> list[Cell]:
    """All of them, floors first."""
    found: list[Cell] = []
    for group, keyed in (("memory", False), ("memory, idempotency key", True)):
        found += [
            Cell(group, LEAST, _floor(keyed), floor=True, by_cpu=True),
            Cell(group, SESSION, _floor_session(keyed), floor=True, by_cpu=True),
            Cell(group, "port level", _port(keyed), by_cpu=True),
            Cell(group, "async session", _session(keyed), by_cpu=True, targets=TARGETS),
            Cell(group, "async run", _run(keyed), by_cpu=True, targets=TARGETS),
            Cell(group, "sync session", _session_now(keyed), by_cpu=True, targets=TARGETS),
            Cell(group, "sync run", _run_now(keyed), by_cpu=True, targets=TARGETS),
        ]
    return found


def _filled() -> LeastStore:
    store = LeastStore()
    for key in KEYS:
        store.commit(AGENT, {}, {key: pack(VALUE)}, store.new_id())
    return store


def _floor_session(keyed: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        store = _filled()

        async def call(i: int) -> None:
            async with LeastSession(store, f"order-{i}" if keyed else store.new_id()) as session:
                key = key_of(i)
                await session.write(key, changed(await session.read(key, VALUE)))

        return asyncio.run(measure_awaits(call, seconds))

    return measure


def _floor(keyed: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        store = _filled()

        def call(i: int) -> None:
            read_modify_write(store, key_of(i), f"order-{i}" if keyed else None)

        return measure_calls(call, seconds)

    return measure


def _awaited(make: Callable[[interlock.SharedResource[Any]], Callable[[int], Awaitable[object]]]) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        async def work() -> Sample:
            async with interlock.open("memory://", agent=AGENT) as store:
                stock = store.resource(RESOURCE)
                async with stock.session() as session:
                    for key in KEYS:
                        await session.write(key, VALUE)
                return await measure_awaits(make(stock), seconds)

        return asyncio.run(work())

    return measure


def _session(keyed: bool) -> Measure:
    def make(stock: interlock.SharedResource[Any]) -> Callable[[int], Awaitable[object]]:
        async def plain(i: int) -> None:
            async with stock.session() as session:
                await rewrite(session, key_of(i))

        async def with_key(i: int) -> None:
            async with stock.session(idempotency_key=f"order-{i}") as session:
                await rewrite(session, key_of(i))

        return with_key if keyed else plain

    return _awaited(make)


def _run(keyed: bool) -> Measure:
    def make(stock: interlock.SharedResource[Any]) -> Callable[[int], Awaitable[object]]:
        def plain(i: int) -> Awaitable[object]:
            return stock.run(rewrite, key_of(i))

        def with_key(i: int) -> Awaitable[object]:
            return stock.run(rewrite, key_of(i), idempotency_key=f"order-{i}")

        return with_key if keyed else plain

    return _awaited(make)


def _stepped(make: Callable[[interlock.sync.SharedResource[Any]], Callable[[int], object]]) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        with interlock.sync.open("memory://", agent=AGENT) as store:
            stock = store.resource(RESOURCE)
            with stock.session() as session:
                for key in KEYS:
                    session.write(key, VALUE)
            return measure_calls(make(stock), seconds)

    return measure


def _session_now(keyed: bool) -> Measure:
    def make(stock: interlock.sync.SharedResource[Any]) -> Callable[[int], object]:
        def plain(i: int) -> None:
            with stock.session() as session:
                rewrite_now(session, key_of(i))

        def with_key(i: int) -> None:
            with stock.session(idempotency_key=f"order-{i}") as session:
                rewrite_now(session, key_of(i))

        return with_key if keyed else plain

    return _stepped(make)


def _run_now(keyed: bool) -> Measure:
    def make(stock: interlock.sync.SharedResource[Any]) -> Callable[[int], object]:
        def plain(i: int) -> object:
            return stock.run(rewrite_now, key_of(i))

        def with_key(i: int) -> object:
            return stock.run(rewrite_now, key_of(i), idempotency_key=f"order-{i}")

        return with_key if keyed else plain

    return _stepped(make)


def _port(keyed: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        async def work() -> Sample:
            caller = PortCaller(MemoryBackend())
            await caller.fill(KEYS)
            return await measure_awaits(
                lambda i: caller.read_modify_write(key_of(i), f"order-{i}" if keyed else None), seconds
            )

        return asyncio.run(work())

    return measure
