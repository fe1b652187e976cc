"""One process of the demonstration: some agents, each a task, that work through the process's part of the deliveries.

Run as ``python -m interlock.demo.worker``; what to do comes in on stdin and what was done goes out on stdout
(`interlock.demo.messages`). The agents take the next delivery from one list, so no two of them are given the same one;
that another process has another delivery of the same order at this moment is what the demonstration is about.

A delivery is acknowledged after its commit and never before: the supervisor counts what it was told.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import interlock
from interlock.demo import shop
from interlock.demo.messages import (
    GO,
    Acknowledged,
    Contradicted,
    Done,
    Failed,
    Job,
    Message,
    Ready,
    pack,
    unpack_job,
)
from interlock.demo.orders import Order
from interlock.demo.truth import Entry

TIMEOUT_SECONDS = 120.0
"""The longest that one delivery may take, retries included."""


def tell(message: Message) -> None:
    """Say it now, in one piece."""
    sys.stdout.buffer.write(pack(message))
    sys.stdout.buffer.flush()


class Agent:
    """One agent: takes deliveries and processes each to its end."""

    def __init__(self, job: Job, number: int, resources: shop.Resources) -> None:
        self._job = job
        self._name = f"agent-{job.process}-{number}"
        self._resources = resources
        self._random = Random(f"{job.seed}/{job.process}/{number}")

    async def work(self, deliveries: Iterator[Order]) -> None:
        """Process deliveries until there are none left."""
        for order in deliveries:
            tell(await self.process(order))

    async def think(self) -> None:
        """What a model call would be here: some milliseconds, in which the others go on."""
        low, high = self._job.think_seconds
        await asyncio.sleep(self._random.uniform(low, high))

    async def process(self, order: Order) -> Message:
        """One delivery, run as the column says."""
        options: dict[str, Any] = {"agent": self._name, "isolation": self._job.isolation}
        if self._job.keyed:
            options |= {"idempotency_key": order.order_id, "idempotency_fingerprint": order.payload}
        started = time.perf_counter()
        try:
            done = await self._resources.ledger.run_detailed(
                shop.sell, order, self._resources, self.think, timeout_seconds=TIMEOUT_SECONDS, **options
            )
        except interlock.IdempotencyMismatchError:
            return Contradicted(order.line)
        except interlock.InterlockError as error:
            return Failed(order.line, error.explain())
        seconds = time.perf_counter() - started
        entry = Entry(**done.value)
        if entry.quantity != order.quantity or entry.total_minor != order.total_minor:
            return Contradicted(order.line)
        applied = not done.replayed and entry.transaction == done.transaction_id
        lost = done.attempts if done.replayed else done.attempts - 1
        return Acknowledged(order.line, entry, applied, done.attempts, lost, seconds)


async def work(job: Job) -> None:
    """Connect, say so, wait for the word, and work."""
    async with interlock.open(job.url) as store:
        resources = shop.resources(store, job.prefix)
        tell(Ready(sum([units async for _, units in resources.stock.scan()])))
        if await asyncio.to_thread(sys.stdin.buffer.readline) != GO:
            return
        deliveries = iter(job.orders)
        agents = [Agent(job, number, resources) for number in range(1, job.agents + 1)]
        async with asyncio.TaskGroup() as tasks:
            for agent in agents:
                tasks.create_task(agent.work(deliveries))
    tell(Done())


def main() -> None:
    """Read the job and do it."""
    asyncio.run(work(unpack_job(sys.stdin.buffer.readline())))


if __name__ == "__main__":
    main()
