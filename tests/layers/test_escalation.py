"""Who burns much work in vain is shielded by locks. W18: one long transaction among many short ones ends like that."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from cases.faults import Hooked
from cases.support import ENGINES, World, in_worlds, put
from interlock import BackendUnavailableError, RetryPolicy
from interlock.core.retry import HEAVY_SECONDS, escalates
from interlock.core.transaction import current
from interlock.layers.locks import LOCKS
from layers.support import records
from layers.test_leases import take
from layers.test_locks import elsewhere, leave

LONG = float(os.environ.get("INTERLOCK_SOAK") or 0) > 0
"""Whether there is time for all of it on servers, where it takes a minute."""


def test_what_counts_is_work_burnt_not_attempts_alone() -> None:
    policy = RetryPolicy(escalate_after=5)
    assert not escalates(policy, 4, 1000.0)
    assert escalates(policy, 5, HEAVY_SECONDS)
    assert not escalates(policy, 14, HEAVY_SECONDS / 2)
    assert escalates(policy, 15, 0.0)


@pytest.mark.soak
@in_worlds(*(f"{engine}-async" for engine in ENGINES))
async def test_w18_a_long_transaction_among_fifty_short_ones(world: World) -> None:
    keys, thinks = (20, 20) if LONG or not world.is_server else (6, 5)
    stock = world.open(retry=RetryPolicy(max_attempts=100)).resource("stock")
    async with stock.session() as session:
        for key in range(keys):
            await session.write(("k", key), 0)
    over = asyncio.Event()
    done = 0

    async def short(session: Any, key: int) -> None:
        value = await session.read(("k", key))
        await session.write(("k", key), value + 1)

    async def keep_on(number: int) -> None:
        nonlocal done
        while not over.is_set():
            await stock.run(short, (number + done) % keys)
            done += 1
            await asyncio.sleep(0)

    async def long(session: Any) -> None:
        total = 0
        for key in range(keys):
            total += await session.read(("k", key))
            before = done
            while done < before + thinks:  # it thinks while others commit
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


SOON = RetryPolicy(escalate_after=1, base_seconds=0)
"""A transaction of no weight is escalated after three attempts that lost."""


async def lose(stock: Any, number: int) -> None:
    """Change what a transaction has read."""
    await stock.run(put, "n", 10 * number)


@in_worlds("memory-async", "memory-sync")
async def test_locks_that_are_not_to_be_had_in_time_hold_no_attempt_up(world: World) -> None:
    stock = world.open(retry=SOON).resource("stock")
    await stock.run(put, "n", 0)
    lock = stock.lock("n")
    held: list[object] = []

    async def body(session: Any) -> None:
        value = await session.read("n")
        if session.attempt <= 3:
            await elsewhere(lose, stock, session.attempt)
        if session.attempt == 3:
            await elsewhere(take, lock)
        if session.attempt == 4:
            held.append(session._txn.held)
            await elsewhere(leave, lock)
        await session.write("n", value + 1)

    done = await stock.run_detailed(body, lock_timeout_seconds=0)
    assert done.attempts == 4
    assert held == [None]
    assert await stock.read("n") == 31
    assert await records(world.open(), LOCKS) == []


@in_worlds("memory-async", "memory-sync")
async def test_an_engine_that_fails_while_locks_are_asked_for_ends_the_call(world: World) -> None:
    failing = [BackendUnavailableError("the engine is away")]

    def fail(name: str, args: tuple[Any, ...]) -> None:
        if failing and name == "commit" and LOCKS.key("stock") in args[0].writes:
            raise failing[0]

    store = world.over(Hooked(world.backend(), fail), retry=SOON)
    stock = store.resource("stock")
    await stock.run(put, "n", 0)
    runs: list[int] = []

    async def body(session: Any) -> None:
        runs.append(session.attempt)
        value = await session.read("n")
        if session.attempt <= 3 and failing:
            await elsewhere(lose, stock, session.attempt)
        await session.write("n", value + 1)

    with pytest.raises(BackendUnavailableError, match="away"):
        await stock.run_detailed(body)
    assert runs == [1, 2, 3]
    assert current.get() is None
    failing.clear()
    await stock.run(body)
    assert await stock.read("n") == 31
    assert await records(store, LOCKS) == []
