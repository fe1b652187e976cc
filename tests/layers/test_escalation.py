"""W18: one long transaction among many short ones ends, because the work that it burns is noticed."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from cases.support import ENGINES, World, in_worlds
from interlock import RetryPolicy
from interlock.core.retry import HEAVY_SECONDS, escalates

KEYS = 20
WORLDS = [f"{engine}-async" for engine in (ENGINES if os.environ.get("INTERLOCK_SOAK") else ("memory", "sqlite"))]
"""On servers it takes a minute, so that is a matter of the long run."""


def test_what_counts_is_work_burnt_not_attempts_alone() -> None:
    policy = RetryPolicy(escalate_after=5)
    assert not escalates(policy, 4, 1000.0)
    assert escalates(policy, 5, HEAVY_SECONDS)
    assert not escalates(policy, 14, HEAVY_SECONDS / 2)
    assert escalates(policy, 15, 0.0)


@pytest.mark.soak
@in_worlds(*WORLDS)
async def test_w18_a_long_transaction_among_fifty_short_ones(world: World) -> None:
    stock = world.open(retry=RetryPolicy(max_attempts=100)).resource("stock")
    async with stock.session() as session:
        for key in range(KEYS):
            await session.write(("k", key), 0)
    over = asyncio.Event()
    done = 0

    async def short(session: Any, key: int) -> None:
        value = await session.read(("k", key))
        await session.write(("k", key), value + 1)

    async def keep_on(number: int) -> None:
        nonlocal done
        while not over.is_set():
            await stock.run(short, (number + done) % KEYS)
            done += 1
            await asyncio.sleep(0)

    async def long(session: Any) -> None:
        total = 0
        for key in range(KEYS):
            total += await session.read(("k", key))
            before = done
            while done < before + 20:  # it thinks while others commit
                await asyncio.sleep(0)
                if held(session):
                    break
        await session.write("total", total)

    def held(session: Any) -> bool:
        return session._txn.held is not None

    shorts = [asyncio.ensure_future(keep_on(number)) for number in range(50)]
    finished = await asyncio.wait_for(stock.run_detailed(long), 60)
    over.set()
    await asyncio.gather(*shorts)
    assert 5 < finished.attempts <= 20
    assert await stock.read("total") is not None
    assert sum([value async for _, value in stock.scan(("k",))]) == done
