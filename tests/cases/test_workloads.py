"""The workloads that the library promises to carry: one hot key, a crowd that thinks, escrow, and SIGKILL."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from cases.support import World, between_processes, everywhere, rows, stepped
from cases.workers import Worker, checksum, kill_after
from interlock import InvariantError
from soak import usual

THINKING_SECONDS = 0.005


@between_processes
async def test_processes_increment_one_key(world: World, tmp_path: Path) -> None:
    """Default settings, many increments each: none lost, no error reaches anybody, and they take turns.

    All have their first turn, with everything that opening a store takes, before they go on at the same moment. On one
    machine they queue for the file. Time is counted in commits, which a machine that is busy with something else does
    not stretch: the slowest process has had its last turn with the last commit of all, and the fastest took more than a
    fifth of that. A server's clients do not see each other, and no turns are promised."""
    count, times, gate = *((4, 25) if world.is_server else (8, 200)), tmp_path / "gate"
    workers = [
        Worker("increment", url=world.place, key="n", times=times, agent=f"w{number}", gate=str(gate))
        for number in range(count)
    ]
    with gate.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for worker in workers:
            worker.ready()
            worker.go()
    done = [worker.result() for worker in workers]
    assert [one["errors"] for one in done] == [[]] * count
    store = world.open()
    assert await store.resource("counters").read("n") == count * times
    commits = [change.agent for change in await rows(store.log.changes())]
    assert len(commits) == count * times
    assert len(set(commits[:count])) == count
    finished = {agent: place for place, agent in enumerate(commits[count:], 1)}
    assert len(finished) == count
    assert world.is_server or max(finished.values()) <= 5 * min(finished.values()), finished


@stepped
async def test_sixteen_threads_think_over_one_key(world: World) -> None:
    """100 read-modify-writes each with 5 ms of thinking in between: all succeed under the default policy."""
    turns = 10 if world.is_server else 100
    counters = world.open().resource("counters")

    async def think_and_add(session: Any) -> None:
        value = await session.read("n", 0)
        time.sleep(THINKING_SECONDS)
        await session.write("n", value + 1)

    async def agent(number: int) -> int:
        attempts = 0
        for _ in range(turns):
            attempts += (await counters.run_detailed(think_and_add, agent=f"agent {number}")).attempts
        return attempts

    attempts = world.together(16, agent)
    assert await counters.read("n") == 16 * turns
    assert sum(attempts) < 3 * 16 * turns, "agents queue for the key instead of thinking in vain"


@everywhere
async def test_escrow_sells_each_unit_once_without_a_conflict(world: World) -> None:
    stock = world.open().resource("stock")
    async with stock.session() as session:
        await session.write("units", 50)

    async def buy(session: Any) -> None:
        await session.add("units", -1, floor=0)

    refusals: list[InvariantError] = []

    async def agent(number: int) -> int:
        try:
            return int((await stock.run_detailed(buy, agent=f"agent {number}")).attempts)
        except InvariantError as refused:
            refusals.append(refused)
            return 0

    attempts = world.together(64, agent)
    assert Counter(attempts) == {1: 50, 0: 14}
    assert {(one.invariant, one.key, one.current, one.bound) for one in refusals} == {("floor", "units", 0, 0)}
    assert await stock.read("units") == 0
    assert len(await rows(world.open().log.changes())) == 51


@between_processes
async def test_kill_writers_and_lose_nothing(world: World) -> None:
    """Two processes commit all the time; one of them is killed without warning, and replaced, again and again."""
    survivor = Worker("write_until_told", url=world.place, name="survivor")
    breeder = Worker("write_until_killed", url=world.place)
    survivor.ready()
    breeder.ready()
    survivor.go()
    acknowledged: dict[str, int] = {}
    store = world.open()
    ledger = store.resource("ledger")
    for number in range(4 if world.is_server else usual(30, 8)):
        name = f"victim {number}"
        acknowledged[name] = kill_after(breeder, name, 2 + number % 7)
        await lost_or_torn(ledger, acknowledged)
    breeder.end()
    survivor.go("stop")
    told = survivor.result()
    assert told["errors"] == []
    acknowledged["survivor"] = told["count"]
    await lost_or_torn(ledger, acknowledged)
    total = sum([await ledger.read((name, "count"), 0) for name in acknowledged])
    assert await ledger.read("total") == total
    assert len(await rows(store.log.changes())) == total
    if world.engine == "sqlite":
        with contextlib.closing(sqlite3.connect(world.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def lost_or_torn(ledger: Any, acknowledged: dict[str, int]) -> None:
    """Every acknowledged commit is there, and of every commit everything."""
    for name, count in acknowledged.items():
        async with ledger.session(isolation="snapshot") as session:
            found = await session.read((name, "count"), 0)
            assert found >= count, f"{name} was told {count}, {found} are there"
            parts = [await session.read((name, part)) for part in ("a", "b", "c")]
        assert parts == [checksum(name, part, found) for part in ("a", "b", "c")], f"a commit of {name} is torn"
