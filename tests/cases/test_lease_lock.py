"""Cases of kind lease-lock: one holder, no eternal locks, no release of what is another's, no lost wake-ups."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from typing import Any

import pytest

from cases.faults import Counted
from cases.support import World, awaited, everywhere, in_worlds, put
from interlock import FencedError, LeaseLostError, LeaseUnavailableError, LockTimeoutError, UsageError
from interlock.layers.leases import LEASES
from interlock.layers.ledger import Ledger
from interlock.layers.tenures import PULSES

SHORT = 0.2


def holding(lease: Any) -> Any:
    return getattr(lease, "inner", lease)._holding


def silence(lease: Any) -> None:
    """No renewal any more, as of a process that hangs."""
    holding(lease).desk.keeper.remove(holding(lease).tenure)


async def take(lease: Any) -> Any:
    return await lease.__aenter__()


async def leave(lease: Any) -> None:
    await lease.__aexit__(None, None, None)


@awaited
async def test_R052_a_release_that_is_cancelled_is_made_up_for(world: World) -> None:
    store = world.open()
    for ticks in range(12):
        lease = await take(store.lease("job", ttl_seconds=60))
        task = asyncio.ensure_future(leave(lease))
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await leave(lease)
        async with store.lease("job", ttl_seconds=60, wait_seconds=30):
            pass


@everywhere
async def test_R054_a_late_release_frees_nobody_elses_lease(world: World) -> None:
    store = world.open()
    lease = store.lease("job", ttl_seconds=SHORT)
    await take(lease)
    silence(lease)
    with pytest.raises(UsageError):
        await take(lease)
    second = await take(store.lease("job", wait_seconds=30))
    with pytest.raises(FencedError):
        await leave(lease)
    await second.check()
    with pytest.raises(LeaseUnavailableError):
        await take(store.lease("job"))
    await leave(second)


@in_worlds("memory-async")
async def test_R055_a_waiter_that_is_cancelled_at_the_hand_over_is_no_dead_owner(world: World) -> None:
    store = world.open()
    chance = random.Random(55)
    for _ in range(300):
        holder = await take(store.lease("job", ttl_seconds=60))
        waiter = asyncio.ensure_future(take(store.lease("job", ttl_seconds=60, wait_seconds=60)))
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        leaving = asyncio.ensure_future(leave(holder))
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        waiter.cancel()
        await leaving
        (result,) = await asyncio.gather(waiter, return_exceptions=True)
        if not isinstance(result, BaseException):
            await leave(result)
        async with store.lease("job", ttl_seconds=60, wait_seconds=30):
            pass


@everywhere
async def test_R057_whatever_is_held_has_an_end_from_the_first_moment(world: World) -> None:
    """There is no moment between taking and limiting: both are one commit, and so is queueing."""
    counted = Counted(world.backend())
    store = world.over(counted)
    async with store.lease("job"), store.resource("stock").lock("a"):
        pass
    async with store.resource("stock").session(isolation="pessimistic") as session:
        await session.write("a", 1)
    beginning = PULSES.span().start
    for request in counted.commits:
        held = any(key.startswith(beginning) for key in request.writes)
        ends = [write for key, write in request.writes.items() if key.startswith(beginning)]
        assert all(getattr(write, "ttl_seconds", 1) is not None for write in ends)
        if request.quiet:
            assert held or request.guards, "a table is only changed by an owner that ends by itself"


@in_worlds("memory-async", "sqlite-async")
async def test_R061_a_starved_loop_loses_its_lease_for_certain(world: World) -> None:
    store, other = world.open(), world.open()
    stock = store.resource("stock")
    lease = await take(store.lease("job", ttl_seconds=SHORT))
    until = time.monotonic() + 3 * SHORT
    while time.monotonic() < until:
        pass
    try:
        second = await take(other.lease("job"))
    except LeaseUnavailableError:  # the renewal came first after all
        await stock.run(put, "a", 1, fence=lease)
        return
    with pytest.raises(FencedError):
        await stock.run(put, "a", 1, fence=lease)
    await stock.run(put, "a", 2, fence=second)
    assert await stock.read("a") == 2


@everywhere
async def test_R063_an_old_holder_is_refused_wherever_it_comes(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    lease = await take(store.lease("job", ttl_seconds=SHORT))
    silence(lease)
    tokens = [lease.token]
    for number in range(3):
        again = world.open()
        async with again.lease("job", wait_seconds=30) as later:
            tokens.append(later.token)
            await again.resource("stock").run(put, "a", number, fence=later)
        await again.close()
    with pytest.raises(FencedError):
        await stock.run(put, "a", "old", fence=lease)
    with pytest.raises(LeaseLostError):
        await lease.check()
    with pytest.raises(LeaseLostError):
        await leave(lease)
    assert tokens == sorted(set(tokens))
    assert await stock.read("a") == 2


@everywhere
async def test_R064_no_wake_up_is_lost_and_nothing_is_left_over(world: World) -> None:
    rounds = 10 if world.is_server else 30

    async def work(number: int) -> None:
        store = world.open(agent=f"agent {number}")
        for _ in range(rounds):
            async with store.lease("job", ttl_seconds=60, wait_seconds=60):
                await world.give_way()

    began = time.monotonic()
    world.together(3, work)
    assert time.monotonic() - began < 55, "somebody slept through a free lease"
    assert (await Ledger(world.open()._engine).scan(LEASES)).records == ()


@everywhere
async def test_R065_a_nested_acquire_ends_at_once(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    async with store.lease("job"):
        with pytest.raises(LeaseUnavailableError) as caught:
            await take(store.lease("job"))
        assert caught.value.holders == ("tester",)
    async with stock.lock("a"):
        with pytest.raises(LockTimeoutError) as late:
            await take(stock.lock("a", wait_seconds=0))
        assert late.value.holders == ("tester",)


@everywhere
async def test_R066_a_body_that_outlives_its_lease(world: World) -> None:
    store = world.open()

    async def body(error: Exception | None) -> None:
        async with store.lease("job", ttl_seconds=SHORT) as lease:
            silence(lease)
            async with store.lease("job", wait_seconds=30):
                pass
            if error is not None:
                raise error

    with pytest.raises(LeaseLostError):
        await body(None)
    with pytest.raises(ValueError, match="own") as caught:
        await body(ValueError("own"))
    assert "was lost" in caught.value.__notes__[0]


@everywhere
async def test_R067_without_the_lease_the_body_does_not_run(world: World) -> None:
    store = world.open()
    ran = []
    async with store.lease("job"), store.resource("stock").lock("a"):
        for held in (store.lease("job"), store.resource("stock").lock("a", wait_seconds=0)):
            with pytest.raises((LeaseUnavailableError, LockTimeoutError)):
                async with held:
                    ran.append(held)
    assert ran == []


@in_worlds("memory-sync", "sqlite-sync")
async def test_the_holder_is_named_to_whoever_waits_in_vain(world: World) -> None:
    async with world.open(agent="first").lease("job"):
        job = functools.partial(try_it, world)
        with pytest.raises(LeaseUnavailableError, match="first"):
            world.thread(job).result()


async def try_it(world: World) -> None:
    async with world.open(agent="second").lease("job", wait_seconds=0.05):
        raise AssertionError("two holders")
