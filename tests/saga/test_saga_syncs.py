"""How often a durable saga has the disk synced: counted in SQLite, not timed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import interlock
import interlock.sync
from interlock import compensable
from saga.syncs import syncs

SAGAS = 16
FEW, MANY = 3, 8


def act(number: int) -> int:
    """A step."""
    return number


async def act_async(number: int) -> int:
    """The same, asynchronous."""
    return number


@compensable(name="syncs.undo", outside="run")
def undo(result: int) -> None:
    """Its undo."""


def test_the_counter_counts(tmp_path: Path) -> None:
    """As SQLite's documentation says: a commit to the log with FULL is one sync, with NORMAL none."""
    with syncs().counted() as counter:
        connection = sqlite3.connect(tmp_path / "plain.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (0)")
        for durable, expected in (("FULL", 1), ("NORMAL", 0)):
            connection.execute(f"PRAGMA synchronous={durable}")
            before = counter.count
            connection.execute("INSERT INTO t VALUES (1)")
            assert counter.count - before == expected
        connection.close()


def alone(path: Path, steps: int) -> int:
    """The syncs of one saga of so many steps."""
    with syncs().counted() as counter:
        with interlock.sync.open(f"sqlite:///{path}", agent="a") as store:
            with store.saga("warm", id="w") as saga:
                saga.step(act, 0, undo=undo)
            before = counter.count
            with store.saga("steps", id="s") as saga:
                for number in range(steps):
                    saga.step(act, number, undo=undo)
            count = counter.count - before
    return count


def test_alone_a_step_syncs_once(tmp_path: Path) -> None:
    few, many = (alone(tmp_path / f"{steps}.db", steps) for steps in (FEW, MANY))
    assert many - few == MANY - FEW  # at most two were promised
    assert few <= FEW + 2  # the lease, and the end


def test_at_once_they_share_the_syncs(tmp_path: Path) -> None:
    async def run() -> int:
        async with interlock.open(f"sqlite:///{tmp_path / 'many.db'}", agent="a") as store:

            async def one(number: int) -> None:
                async with store.saga("steps", id=str(number)) as saga:
                    for place in range(MANY):
                        await saga.step(act_async, place, undo=undo)

            await one(-1)
            before = counter.count
            await asyncio.gather(*map(one, range(SAGAS)))
            return counter.count - before

    with syncs().counted() as counter:
        count: Any = asyncio.run(run())
    assert count < SAGAS * MANY / 2  # one for each step of each would be twice that
