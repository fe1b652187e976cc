"""Scanners: tasks that look at one prefix again and again and write down what they have found.

As a process of its own they leave the processor time of another one alone: ``python -m benchmarks.scanners URL SCHEMA
COUNT`` says that it has begun, and goes on until it is killed."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import interlock
from benchmarks.workload import AGENT, RESOURCE

PREFIX: Final = "audited"
PAUSE_SECONDS: Final = 0.005
"""How long a scanner thinks."""


async def scan(stock: interlock.SharedResource[Any], number: int) -> None:
    """Commit the number of keys under the prefix, which validates the range, for ever."""

    async def report(session: interlock.AgentSession[Any]) -> None:
        rows = [key async for key, _ in session.scan((PREFIX,))]
        await session.write(("report", number), len(rows))

    while True:
        await stock.run(report)
        await asyncio.sleep(PAUSE_SECONDS)


async def _scan_all(url: str, schema: str, count: int) -> None:
    async with interlock.open(url, agent=AGENT, schema=schema) as store:
        stock = store.resource(RESOURCE)
        await stock.read("begun")
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        await asyncio.gather(*(scan(stock, number) for number in range(count)))


if __name__ == "__main__":
    asyncio.run(_scan_all(sys.argv[1], sys.argv[2], int(sys.argv[3])))
