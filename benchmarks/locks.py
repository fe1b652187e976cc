"""The cells of locks: sixteen pessimistic transactions at once, on keys that no other one uses.

Once all keys lie in one resource, once each task has a resource of its own. As nobody wants what anybody else has
locked, the two should cost the same. The second stands in the place of a floor, so that both come from the same run,
and the ratio is that of processor time. Between its read and its write each transaction lets the others go on, as
agents do that think; without that, transactions in memory would come one after another, each alone. The same
transactions without locks stand beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import interlock
from benchmarks.measure import Cell, Measure, Sample, Target
from benchmarks.sqlite import drive, url_of
from benchmarks.workload import AGENT, VALUE, changed

TASKS: Final = 16
MANY: Final = "resource of its own"
ONE: Final = "one resource"
FREE: Final = "one resource, no locks"
TARGETS: Final = (Target(MANY, 1.5),)
"""How many times the processor time of tasks that do not share anything."""
_KEYS_OF_A_TASK: Final = 20


def cells(tasks: int = TASKS) -> list[Cell]:
    """All of them, what they are compared with first."""
    found: list[Cell] = []
    for backend, url in (("memory", lambda directory: "memory://"), ("SQLite FULL", url_of)):
        group = f"locks, {backend}, {tasks} tasks"
        found += [
            Cell(group, MANY, _locking(url, tasks, shared=False), floor=True, by_cpu=True),
            Cell(group, ONE, _locking(url, tasks), by_cpu=True, targets=TARGETS),
            Cell(group, FREE, _locking(url, tasks, isolation="serializable"), by_cpu=True),
        ]
    return found


def _keys_of(task: int) -> list[str]:
    return [f"{task} {number}" for number in range(_KEYS_OF_A_TASK)]


async def _rewrite_slowly(session: interlock.AgentSession[Any], key: str) -> None:
    text = await session.read(key, VALUE)
    await asyncio.sleep(0)
    await session.write(key, changed(text))


def _locking(url: Callable[[Path], str], tasks: int, *, shared: bool = True, isolation: Any = "pessimistic") -> Measure:
    """``shared``: all tasks use one resource."""

    def measure(seconds: float, directory: Path) -> Sample:
        async def work() -> Sample:
            async with interlock.open(url(directory), agent=AGENT) as store:
                places = [store.resource("goods" if shared else f"goods {task}") for task in range(tasks)]

                async def call(key: str, name: str) -> None:
                    await places[int(key.split()[0])].run(_rewrite_slowly, key, isolation=isolation)

                return await drive(call, tasks, seconds, _keys_of)

        return asyncio.run(work())

    return measure
