"""The cells of the effect journal: acts executed at most once for their keys, on one new SQLite file, synchronous=FULL.

Each call has a new key and an act that does nothing but return a small dict, so what is measured is the journal: the
intent before the act, the result after it. Compared by effects per second with the two libraries of PyPI that do the
same, `exactly-once` and `agent-once`, each used as its documentation shows and made as durable: every commit of theirs
is synced to the disk (`PRAGMA synchronous=FULL`). They stand in the place of floors, beside a real one: the least
journal that a program could write by hand (`benchmarks.floors.journal`), with one sync for each effect.

Where it can be done, all of it is measured again as on a slower disk (`benchmarks.slow_syncs`), where it shows how many
syncs an effect takes and how many callers share one.

Callers are threads for the peers, which have no other way to be concurrent on SQLite, and threads or tasks for us.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any, Final

import interlock
import interlock.sync
from benchmarks.floors.journal import Inline, Writer
from benchmarks.measure import Cell, Measure, Sample, Target
from benchmarks.slow_syncs import apart, possible
from benchmarks.sqlite import drive, drive_threads, url_of

PACKAGES: Final = {"exactly_once": "exactly-once", "once": "agent-once"}
"""Module -> what to install."""
CALLERS: Final = (1, 16)
DELAYS_MS: Final = (2,)
"""How much longer syncs take in the cells that are measured again."""
AT_LEAST: Final = {1: 2.0, 16: 5.0}
"""How many times the effects per second of either peer, by the number of callers."""
FLOOR: Final = "floor: bare journal"
FLOOR_THREADS: Final = "floor: bare journal, threads"
OF_THE_FLOOR: Final = 0.6
"""What part of a floor's effects per second."""


def missing() -> list[str]:
    """What would have to be installed for all peers."""
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


def all_cells() -> list[Cell]:
    """All of them, on this disk and on slower ones."""
    found = cells()
    slower = [
        dataclasses.replace(
            cell,
            group=f"{cell.group}, a sync takes {delay} ms more",
            measure=apart(__name__, cell.group, cell.name, delay),
        )
        for delay in (DELAYS_MS if possible() else ())
        for cell in found
    ]
    return found + slower


def cells(callers: tuple[int, ...] = CALLERS) -> list[Cell]:
    """Those on this disk; the peers first, if they are installed."""
    found: list[Cell] = []
    absent = missing()
    peers = {"exactly-once": _exactly_once, "agent-once": _agent_once}
    for count in callers:
        group = f"effects on SQLite FULL, {count} at once"
        targets = tuple(Target(name, AT_LEAST.get(count, 1.0)) for name in peers if name not in absent)
        found += floors(group, count)
        found += [Cell(group, name, peer(count), floor=True) for name, peer in peers.items() if name not in absent]
        tasks = (Target(FLOOR, OF_THE_FLOOR), *targets)
        threads = (Target(FLOOR if count == 1 else FLOOR_THREADS, OF_THE_FLOOR), *targets)
        for durable, said in ((False, ""), (True, ", durable results")):
            found += [
                Cell(group, f"async execute{said}", _tasks(count, durable=durable), targets=() if durable else tasks),
                Cell(
                    group, f"sync execute{said}", _threads(count, durable=durable), targets=() if durable else threads
                ),
            ]
    return found


def floors(group: str, count: int) -> list[Cell]:
    """The least journal: on the calling thread for one caller, else with a thread that commits for all."""
    if count == 1:
        return [Cell(group, FLOOR, _inline, floor=True)]
    return [
        Cell(group, FLOOR, _written(count), floor=True),
        Cell(group, FLOOR_THREADS, _written_now(count), floor=True),
    ]


async def act(order: str) -> dict[str, str]:
    """What is executed: nothing."""
    return {"id": order}


def act_now(order: str) -> dict[str, str]:
    """The same in synchronous code."""
    return {"id": order}


def _tasks(count: int, *, durable: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        async def work() -> Sample:
            async with interlock.open(url_of(directory), agent="benchmark") as store:
                executor = interlock.IdempotentExecutor(store, durable_results=durable)

                async def call(key: str, idempotency_key: str) -> object:
                    return await executor.execute(idempotency_key, act, idempotency_key)

                return await drive(call, count, seconds)

        return asyncio.run(work())

    return measure


def _threads(count: int, *, durable: bool) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        with interlock.sync.open(url_of(directory), agent="benchmark") as store:
            executor = interlock.sync.IdempotentExecutor(store, durable_results=durable)

            def call(key: str, idempotency_key: str) -> object:
                return executor.execute(idempotency_key, act_now, idempotency_key)

            return drive_threads([call] * count, seconds)

    return measure


def _inline(seconds: float, directory: Path) -> Sample:
    journal = Inline(directory)

    def call(key: str, idempotency_key: str) -> object:
        journal.intend(idempotency_key)
        result = act_now(idempotency_key)
        journal.done(idempotency_key, result)
        return result

    try:
        return drive_threads([call], seconds)
    finally:
        journal.close()


def _written(count: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        writer = Writer(directory)

        async def call(key: str, idempotency_key: str) -> object:
            await writer.write(idempotency_key)
            result = await act(idempotency_key)
            await writer.write(idempotency_key, result)
            return result

        try:
            return asyncio.run(drive(call, count, seconds))
        finally:
            writer.close()

    return measure


def _written_now(count: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        writer = Writer(directory)

        def call(key: str, idempotency_key: str) -> object:
            writer.write_now(idempotency_key)
            result = act_now(idempotency_key)
            writer.write_now(idempotency_key, result)
            return result

        try:
            return drive_threads([call] * count, seconds)
        finally:
            writer.close()

    return measure


def _exactly_once(count: int) -> Measure:
    """A decorated function over one store object, which has one connection under a lock."""

    def measure(seconds: float, directory: Path) -> Sample:
        import exactly_once

        store: Any = exactly_once.Store.sqlite(str(directory / "peer.db"))
        store._conn.execute("PRAGMA synchronous=FULL")  # it opens its file with NORMAL, which syncs no commit
        guarded: Any = exactly_once.once(store, key=lambda order: order)(act_now)

        def call(key: str, idempotency_key: str) -> object:
            return guarded(idempotency_key)

        try:
            return drive_threads([call] * count, seconds)
        finally:
            store.close()

    return measure


def _agent_once(count: int) -> Measure:
    """One object for all threads, which has a connection for each of them; durable as it comes."""

    def measure(seconds: float, directory: Path) -> Sample:
        import once

        peer: Any = once.Once(path=directory / "peer.db")

        def call(key: str, idempotency_key: str) -> object:
            return peer.execute(fn=act_now, key=idempotency_key, order=idempotency_key)

        try:
            return drive_threads([call] * count, seconds)
        finally:
            peer.close()

    return measure
