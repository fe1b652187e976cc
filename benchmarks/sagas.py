"""The cells of sagas: five steps that do nothing, each with an undo that is never needed.

In memory the floor is `contextlib.ExitStack` from the standard library, which keeps a callback for each step and
nothing else, and the ratio is that of processor time. Durable sagas lie on one new SQLite file, synchronous=FULL, 1 and
16 at once. The peers are those of PyPI that undo steps, each used as its documentation shows: agent-saga, simple-saga
and latch-idempotent in memory; of these agent-saga alone keeps a journal, in a file that it syncs. They stand in place
of floors, so that their figures come from the same run. Two more that undo nothing stand beside the durable sagas: five
effects of exactly-once, and a workflow of five steps of dbos, whose system database is a SQLite file then. The floor of
durable sagas is the least journal that a program could write by hand (`benchmarks.floors.journal`): one sync before
each step, and one for the end. A snapshot of 100,000 nodes stands beside `copy.deepcopy`, which
keeps no identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import importlib.util
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import interlock
import interlock.sync
from benchmarks.floors.journal import Inline, Writer
from benchmarks.measure import Cell, Measure, Sample, Target, measure_awaits, measure_calls
from benchmarks.sqlite import drive, drive_threads, url_of
from interlock import compensable

PACKAGES: Final = {
    "agent_saga": "agent-saga", "simple_saga": "simple-saga", "latch": "latch-idempotent",
    "exactly_once": "exactly-once", "dbos": "dbos",
}  # fmt: skip
"""Module -> what to install."""
STEPS: Final = 5
CALLERS: Final = (1, 16)
MEMORY: Final = "five no-op steps in memory"
SNAPSHOT: Final = "a state of 100,000 nodes"
NODES: Final = 100_000
TIMES_EXIT_STACK: Final = 12.0
"""Of the processor time of an `ExitStack`, which was 5 us where 60 us were the aim for a saga."""
TIMES_AGENT_SAGA: Final = 15.0
"""In memory: how many times cheaper than agent-saga."""
FLOOR: Final = "floor: bare journal"
OF_THE_FLOOR: Final = 0.6
"""What part of the floor's sagas per second."""
TIMES_DURABLE: Final = {16: 5.0}
"""Durable: how many times the sagas per second of agent-saga, by the number of callers."""


def missing() -> list[str]:
    """What would have to be installed for all peers."""
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


def cells(callers: tuple[int, ...] = CALLERS) -> list[Cell]:
    """All of them; the floor and the peers first, those that are installed."""
    absent = missing()
    peers = {"agent-saga": _agent_saga, "simple-saga": _simple_saga, "latch-idempotent": _latch}
    here = {name: measure for name, measure in peers.items() if name not in absent}
    found = [Cell(MEMORY, "floor: ExitStack", _exit_stack, floor=True, by_cpu=True)]
    found += [Cell(MEMORY, name, measure, floor=True, by_cpu=True) for name, measure in here.items()]
    targets = [Target("floor: ExitStack", TIMES_EXIT_STACK)]
    if "agent-saga" in here:
        targets.append(Target("agent-saga", 1 / TIMES_AGENT_SAGA))
    for name, own in (("with Saga", _saga_now), ("async with Saga", _saga)):
        found.append(Cell(MEMORY, name, own, by_cpu=True, targets=tuple(targets)))
    found += [
        Cell(SNAPSHOT, "floor: copy.deepcopy", _on_a_state(_deepcopy), floor=True, by_cpu=True),
        Cell(SNAPSHOT, "snapshot", _on_a_state(_snapshot), by_cpu=True, targets=(Target("floor: copy.deepcopy", 1.0),)),
        Cell(SNAPSHOT, "snapshot, a change, restore", _on_a_state(_restore), by_cpu=True),
    ]
    for count in callers:
        group = f"durable, SQLite FULL, {count} at once"
        wanted = [Target(FLOOR, OF_THE_FLOOR)]
        found.append(Cell(group, FLOOR, _inline if count == 1 else _written(count), floor=True))
        durable = {"agent-saga": _agent_saga_durable, "exactly-once": _exactly_once, "dbos": _dbos}
        for name, peer in durable.items():
            if name not in absent:
                found.append(Cell(group, name, peer(count), floor=True))
        if "agent-saga" in here:
            wanted.append(Target("agent-saga", TIMES_DURABLE.get(count, 1.0)))
        found.append(Cell(group, "async with store.saga", _durable(count), targets=tuple(wanted)))
        found.append(Cell(group, "with store.saga", _durable_now(count), targets=tuple(wanted)))
    return found


def act(number: int) -> int:
    """A step."""
    return number


@compensable(outside="run")
def undo(result: int) -> None:
    """Its undo."""


async def act_async(number: int) -> int:
    """The same in asynchronous code."""
    return number


@compensable(outside="run")
async def undo_async(result: int) -> None:
    """Its undo."""


# --- in memory --------------------------------------------------------------------------------------------------------
def _exit_stack(seconds: float, directory: Path) -> Sample:
    def call(i: int) -> None:
        with contextlib.ExitStack() as stack:
            for number in range(STEPS):
                stack.callback(undo, act(number))
            stack.pop_all()

    return measure_calls(call, seconds)


def _saga_now(seconds: float, directory: Path) -> Sample:
    def call(i: int) -> None:
        with interlock.Saga() as saga:
            for number in range(STEPS):
                saga.step(act, number, undo=undo)

    return measure_calls(call, seconds)


def _saga(seconds: float, directory: Path) -> Sample:
    async def call(i: int) -> None:
        async with interlock.Saga() as saga:
            for number in range(STEPS):
                await saga.step(act_async, number, undo=undo_async)

    return asyncio.run(measure_awaits(call, seconds))


def _simple_saga(seconds: float, directory: Path) -> Sample:
    from simple_saga import SyncSaga

    def call(i: int) -> None:
        with SyncSaga() as saga:
            for number in range(STEPS):
                saga.step(action=functools.partial(act, number), compensation=undo)

    return measure_calls(call, seconds)


def _latch(seconds: float, directory: Path) -> Sample:
    from latch import Saga

    def call(i: int) -> None:
        saga = Saga(name="five steps")
        for number in range(STEPS):
            saga.add_step(functools.partial(act, number), compensation=undo)
        saga.run()

    return measure_calls(call, seconds)


async def _agent_saga_once(agent_saga: Any, wal: Any) -> None:
    async with agent_saga.saga_scope(wal=wal) as saga:
        for number in range(STEPS):
            await saga.execute(
                tool="step",
                semantics=agent_saga.ActionSemantics.COMPENSABLE,
                forward=functools.partial(act, number),
                compensate=lambda result: agent_saga.Compensation(fn=undo, handler="undo", kwargs={"result": result}),
            )


class Order:
    """A part of a state."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.items = [number, number + 1]


def _state() -> dict[int, Order]:
    """An order and a list for each two nodes."""
    return {number: Order(number) for number in range(NODES // 2)}


def _deepcopy(state: dict[int, Order]) -> None:
    copy.deepcopy(state)


def _snapshot(state: dict[int, Order]) -> None:
    interlock.snapshot(state)


def _restore(state: dict[int, Order]) -> None:
    taken = interlock.snapshot(state)
    state[0].items.append(1)
    taken.restore()


def _on_a_state(call: Callable[[dict[int, Order]], None]) -> Measure:
    """A call takes long, so each is timed, without any to get warm."""

    def measure(seconds: float, directory: Path) -> Sample:
        state, clock = _state(), time.perf_counter
        latencies: list[float] = []
        cpu, started = time.process_time(), clock()
        while not latencies or clock() - started < seconds:
            begun = clock()
            call(state)
            latencies.append(clock() - begun)
        return Sample(len(latencies), clock() - started, time.process_time() - cpu, sorted(latencies))

    return measure


def _agent_saga(seconds: float, directory: Path) -> Sample:
    async def work() -> Sample:
        import agent_saga

        wal: Any = agent_saga.AsyncWAL()
        await wal.start()
        try:
            return await measure_awaits(lambda i: _agent_saga_once(agent_saga, wal), seconds)
        finally:
            await wal.close()

    return asyncio.run(work())


# --- durable ----------------------------------------------------------------------------------------------------------
def _agent_saga_durable(count: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        async def work() -> Sample:
            import agent_saga

            wal: Any = agent_saga.AsyncWAL(directory / "peer.wal")
            await wal.start()

            async def call(key: str, idempotency_key: str) -> None:
                await _agent_saga_once(agent_saga, wal)

            try:
                return await drive(call, count, seconds)
            finally:
                await wal.close()

        return asyncio.run(work())

    return measure


def _inline(seconds: float, directory: Path) -> Sample:
    journal = Inline(directory)

    def call(key: str, idempotency_key: str) -> None:
        for number in range(STEPS):
            journal.intend(f"{idempotency_key}:{number}")
            journal.done(f"{idempotency_key}:{number}", act(number))
        journal.intend(idempotency_key)

    try:
        return drive_threads([call], seconds)
    finally:
        journal.close()


def _written(count: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        writer = Writer(directory)

        async def call(key: str, idempotency_key: str) -> None:
            for number in range(STEPS):
                await writer.write(f"{idempotency_key}:{number}")
                await writer.write(f"{idempotency_key}:{number}", await act_async(number))
            await writer.write(idempotency_key)

        try:
            return asyncio.run(drive(call, count, seconds))
        finally:
            writer.close()

    return measure


def _exactly_once(count: int) -> Measure:
    """Five effects; nothing is undone. Synced as in `benchmarks.effects`."""

    def measure(seconds: float, directory: Path) -> Sample:
        import exactly_once

        store: Any = exactly_once.Store.sqlite(str(directory / "peer.db"))
        store._conn.execute("PRAGMA synchronous=FULL")
        guarded: Any = exactly_once.once(store, key=lambda saga, number: f"{saga}:{number}")(_numbered)

        def call(key: str, idempotency_key: str) -> None:
            for number in range(STEPS):
                guarded(idempotency_key, number)

        try:
            return drive_threads([call] * count, seconds)
        finally:
            store.close()

    return measure


def _numbered(saga: str, number: int) -> int:
    return number


@functools.cache
def _five_steps() -> Callable[[str], None]:
    """A workflow of dbos, which keeps them in a registry of the process."""
    import dbos

    recorded: Any = dbos.DBOS.step()(act)

    def five(saga: str) -> None:
        for number in range(STEPS):
            recorded(number)

    workflow: Callable[[str], None] = dbos.DBOS.workflow()(five)
    return workflow


def _dbos(count: int) -> Measure:
    """A workflow is restarted, not undone, after a crash: its steps are at least once, and have no undo."""

    def measure(seconds: float, directory: Path) -> Sample:
        import dbos

        five = _five_steps()
        url = f"sqlite:///{directory / 'peer.db'}"
        dbos.DBOS(config={"name": "five", "system_database_url": url, "log_level": "ERROR"})
        dbos.DBOS.launch()

        def call(key: str, idempotency_key: str) -> None:
            with dbos.SetWorkflowID(idempotency_key):
                five(idempotency_key)

        try:
            return drive_threads([call] * count, seconds)
        finally:
            dbos.DBOS.destroy()

    return measure


def _durable(count: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        serial = itertools.count()

        async def work() -> Sample:
            async with interlock.open(url_of(directory), agent="benchmark") as store:

                async def call(key: str, idempotency_key: str) -> None:
                    async with store.saga("five", id=f"{next(serial)}") as saga:
                        for number in range(STEPS):
                            await saga.step(act_async, number, undo=undo_async)

                return await drive(call, count, seconds)

        return asyncio.run(work())

    return measure


def _durable_now(count: int) -> Measure:
    def measure(seconds: float, directory: Path) -> Sample:
        serial = itertools.count()
        with interlock.sync.open(url_of(directory), agent="benchmark") as store:

            def call(key: str, idempotency_key: str) -> None:
                with store.saga("five", id=f"{next(serial)}") as saga:
                    for number in range(STEPS):
                        saga.step(act, number, undo=undo)

            return drive_threads([call] * count, seconds)

    return measure
