"""Leases: one holder, tokens that grow, takeover, fencing, waiting in order, losing, giving back."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import interlock
import interlock.sync
from cases.faults import LostReplies, Wrapped
from cases.support import World, awaited, everywhere, put
from interlock import (
    Capability,
    FencedError,
    FencingToken,
    LeaseLostError,
    LeaseUnavailableError,
    LimitExceededError,
    UnsupportedError,
    UsageError,
)
from interlock.layers.leases import LEASES
from interlock.testing import Clock, open_store
from layers.support import inner, records, silence

SHORT = 0.2
"""A time to live that a test waits for."""


@everywhere
async def test_one_holder_at_a_time(world: World) -> None:
    store = world.open()
    async with store.lease("report", agent="ann") as lease:
        assert not lease.lost
        await lease.check()
        with pytest.raises(LeaseUnavailableError) as caught:
            async with store.lease("report", agent="bob"):
                raise AssertionError("the body ran without the lease")
        assert (caught.value.holders, caught.value.lease, caught.value.retryable) == (("ann",), "report", False)
        async with store.lease("another"):
            pass
    async with store.lease("report", agent="bob"):
        pass
    assert await records(store, LEASES) == [], "nothing is left over"


@everywhere
async def test_tokens_grow(world: World) -> None:
    tokens: list[FencingToken] = []
    for number in range(5):
        store = world.open()
        async with store.lease("report") as lease:
            tokens.append(lease.token)
            if number == 2:
                silence(lease)
        if number == 3:
            await store.compact()
        await store.close()
    assert tokens == sorted(set(tokens))


async def take(lease: Any) -> Any:
    """Acquire; whoever does not give it back tests what happens then."""
    return await lease.__aenter__()


async def leave(lease: Any, error: BaseException | None = None) -> None:
    """Give back."""
    await lease.__aexit__(None if error is None else type(error), error, None)


@everywhere
async def test_a_commit_is_bound_to_the_lease(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    await stock.run(put, "a", 1, fence=lease)
    async with stock.session(fence=lease) as session:
        await session.write("a", 2)
    async with stock.session() as session:
        session.fence(lease)
        await session.write("a", 3)
    silence(lease)
    session = await stock.begin()
    session.fence(lease)
    await session.write("a", 4)
    async with store.lease("report", wait_seconds=30) as second:
        assert second.token > lease.token
        with pytest.raises(FencedError):
            await session.commit()
        assert lease.lost
        with pytest.raises(FencedError):
            await stock.run(put, "a", 5, fence=lease)
        with pytest.raises(FencedError):
            await lease.check()
        await stock.run(put, "a", 6, fence=second)
        with pytest.raises(FencedError):
            await leave(lease)
        await second.check()
    assert await stock.read("a") == 6


@everywhere
async def test_who_only_reads_is_bound_as_well(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    silence(lease)
    session = await stock.begin()
    await session.read("a")
    session.fence(lease)
    async with store.lease("report", wait_seconds=30):
        with pytest.raises(FencedError):
            await session.commit()


@everywhere
async def test_a_savepoint_takes_the_fence_back(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    silence(lease)
    async with store.lease("report", wait_seconds=30), stock.session() as session:
        with pytest.raises(LookupError), session.savepoint():
            session.fence(lease)
            raise LookupError
        await session.write("a", 1)
    assert await stock.read("a") == 1


@everywhere
async def test_strict_is_refused_from_expiry_on(world: World) -> None:
    """Nobody has taken over, and it is refused all the same; without strict it may go on."""
    store = world.open()
    stock = store.resource("stock")
    for strict in (False, True):
        lease = await take(store.lease(f"report-{strict}", ttl_seconds=SHORT, strict=strict))
        await stock.run(put, "a", "in time", fence=lease)
        silence(lease)
        tenure = inner(lease).tenure
        await expire(store, tenure.pulse_key)
        if strict:
            with pytest.raises(LeaseLostError):
                await stock.run(put, "a", "late", fence=lease)
            with pytest.raises(LeaseLostError):
                await lease.check()
            with pytest.raises(LeaseLostError):
                await leave(lease)
        else:
            await stock.run(put, "a", "late but alone", fence=lease)
            await lease.check()
            await leave(lease)
    assert await stock.read("a") == "in time"


async def expire(store: Any, key: bytes) -> None:
    """Wait until the engine says that a record has expired."""
    backend = store._engine.backend
    while True:
        reading = await backend.read((key,))
        entry = reading.entries[0]
        if entry is None or entry.value is None or entry.expires_at <= reading.at:
            return


@everywhere
async def test_strict_goes_on_over_renewals(world: World) -> None:
    """A renewal between the fence and the commit is learnt, not refused."""
    store = world.open()
    stock = store.resource("stock")
    async with store.lease("report", strict=True) as lease:
        session = await stock.begin()
        session.fence(lease)
        await session.write("a", 1)
        await lease.check()
        await lease.check()
        await session.commit()
    assert await stock.read("a") == 1


@everywhere
async def test_it_is_renewed_in_the_background(world: World) -> None:
    store = world.open()
    async with store.lease("report", ttl_seconds=SHORT) as lease:
        first = inner(lease).tenure.pulse
        until = inner(lease).tenure.confirmed + 4 * SHORT
        while inner(lease).tenure.confirmed < until:
            await store.resource("stock").read("nothing")
            await world.look_again()
        assert inner(lease).tenure.pulse != first
        assert not lease.lost
        with pytest.raises(LeaseUnavailableError):
            await take(store.lease("report"))


@everywhere
async def test_an_object_is_entered_once(world: World) -> None:
    store = world.open()
    lease = store.lease("report")
    with pytest.raises(UsageError):
        _ = lease.token
    with pytest.raises(LeaseLostError):
        await lease.check()
    async with lease:
        with pytest.raises(UsageError):
            await take(lease)
        await lease.check()
    with pytest.raises(UsageError):
        await take(lease)


@everywhere
async def test_what_makes_no_sense_is_refused_at_once(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    for name in ("", "  ", 5, None):
        with pytest.raises(UsageError):
            store.lease(name)
    with pytest.raises(LimitExceededError):
        store.lease("n" * 300)
    for bad in ({"ttl_seconds": 0}, {"ttl_seconds": "30"}, {"ttl_seconds": float("nan")}, {"wait_seconds": -1}):
        with pytest.raises(UsageError):
            store.lease("report", **bad)
    with pytest.raises(UsageError):
        world.open(agent=None).lease("report")
    with pytest.raises(UsageError):
        await stock.run(put, "a", 1, fence="report")
    with pytest.raises(UsageError):
        async with stock.session() as session:
            session.fence("report")
    if not world.awaits:
        with pytest.raises(UsageError, match="cannot"):
            await take(store.lease("report", cancel_on_loss=True))


@everywhere
async def test_the_agent_is_the_sessions(world: World) -> None:
    store = world.open()
    async with store.session(agent="inside"), store.lease("report"):
        with pytest.raises(LeaseUnavailableError) as caught:
            await take(store.lease("report"))
    assert caught.value.holders == ("inside",)


@everywhere
async def test_lost_replies_are_settled(world: World) -> None:
    """Whatever reply is lost, the lease is held once and given back whole."""
    for fault in ("before", "after"):
        for number in range(1, 4):
            faulty = LostReplies(world.backend(), {number: fault})
            store = world.over(faulty)
            async with store.lease(f"report-{fault}-{number}") as lease:
                await lease.check()
                assert not lease.lost
            assert len(faulty.commits) >= 3
            assert await records(store, LEASES) == []


@everywhere
async def test_waiting_is_in_the_order_of_arrival(world: World) -> None:
    store = world.open()
    order: list[int] = []
    first = await take(store.lease("report"))

    async def wait(number: int) -> None:
        other = world.open()
        async with other.lease("report", wait_seconds=60):
            order.append(number)

    threads = []
    for number in range(4):
        threads.append(world.thread(lambda number=number: wait(number)))
        while len((await records(store, LEASES))[0][1]) < number + 2:
            await world.look_again()
    await leave(first)
    for thread in threads:
        thread.result()
    assert order == [0, 1, 2, 3]


@awaited
async def test_a_body_is_cancelled_on_loss(world: World) -> None:
    store = world.open()
    lease = store.lease("report", ttl_seconds=SHORT, cancel_on_loss=True)
    with pytest.raises(LeaseLostError):
        async with lease:
            tenure = silence(lease)
            async with store.lease("report", wait_seconds=30):
                pass
            inner(lease).desk.keeper.add(tenure)
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@awaited
async def test_a_cancellation_from_outside_stays_one(world: World) -> None:
    store = world.open()
    entered = asyncio.Event()

    async def hold() -> None:
        async with store.lease("report", cancel_on_loss=True):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hold())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with store.lease("report", wait_seconds=10):
        pass


@awaited
async def test_wait_lost_tells(world: World) -> None:
    store = world.open()
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    watching = asyncio.ensure_future(lease.wait_lost())
    tenure = silence(lease)
    async with store.lease("report", wait_seconds=30):
        assert not watching.done()
        inner(lease).desk.keeper.add(tenure)
        await watching
    assert lease.lost
    async with store.lease("report") as second:
        watching = asyncio.ensure_future(second.wait_lost())
    await watching


@everywhere
async def test_the_body_s_own_error_stays_the_first(world: World) -> None:
    store = world.open()
    with pytest.raises(ValueError, match="own") as caught:
        async with store.lease("report", ttl_seconds=SHORT) as lease:
            silence(lease)
            async with store.lease("report", wait_seconds=30):
                pass
            raise ValueError("own")
    assert any("lost before the end" in note for note in caught.value.__notes__)


def test_a_loop_that_ends_leaves_the_lease_to_a_thread() -> None:
    """Acquired in one loop, kept alive by a thread, used in the next loop."""
    store = interlock.open("memory://", agent="tester")
    lease = store.lease("report", ttl_seconds=SHORT)
    asyncio.run(take(lease))
    tenure = inner(lease).tenure
    until = tenure.confirmed + 4 * SHORT
    while tenure.confirmed < until:
        gc.collect()
    assert not lease.lost

    async def end() -> None:
        await lease.check()
        await leave(lease)
        await store.close()

    asyncio.run(end())


def test_trio() -> None:
    trio = pytest.importorskip("trio")
    store = interlock.open("memory://", agent="tester")

    async def main() -> None:
        async with store.lease("report", ttl_seconds=SHORT) as lease:
            tenure = inner(lease).tenure
            until = tenure.confirmed + 3 * SHORT
            while tenure.confirmed < until:
                await trio.sleep(0)
            assert not lease.lost
        lease = store.lease("report", ttl_seconds=SHORT, cancel_on_loss=True)
        with pytest.raises(LeaseLostError):
            async with lease:
                tenure = silence(lease)
                async with store.lease("report", wait_seconds=30):
                    pass
                inner(lease).desk.keeper.add(tenure)
                await trio.sleep_forever()
        with trio.move_on_after(0.05):
            async with store.lease("report"):
                await trio.sleep_forever()
        async with store.lease("report", wait_seconds=10):
            pass
        await store.close()

    trio.run(main)


class WithoutClock(Wrapped):
    """An engine that knows neither the time nor expiring entries."""

    capabilities = property(lambda self: self.inner.capabilities - {Capability.CLOCK, Capability.EXPIRY})

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        if name == "now":
            raise UnsupportedError("no clock", capability="clock")
        if name == "commit":
            assert all(getattr(write, "ttl_seconds", None) is None for write in args[0].writes.values())
        return await call()


@everywhere
async def test_an_engine_without_a_clock_has_leases_too(world: World) -> None:
    store = world.over(WithoutClock(world.backend()))
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    with pytest.raises(UnsupportedError):
        store.lease("strict", strict=True)
    silence(lease)
    with pytest.raises(LeaseUnavailableError):
        await take(store.lease("report"))
    async with store.lease("report", wait_seconds=30) as second:
        assert second.token > lease.token
        with pytest.raises(FencedError):
            await store.resource("stock").run(put, "a", 1, fence=lease)


@everywhere
async def test_a_closed_store_holds_nothing(world: World) -> None:
    store = world.open()
    lease = await take(store.lease("report"))
    await store.close()
    assert lease.lost
    with pytest.raises(UsageError):
        await take(store.lease("other"))


@everywhere
async def test_compaction_leaves_a_held_lease_alone(world: World) -> None:
    """Also one whose pulse has expired and is compacted away: it is taken over only by somebody who wants it."""
    store = world.open()
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    silence(lease)
    await expire(store, inner(lease).tenure.pulse_key)
    await store.compact()
    await store.resource("stock").run(put, "a", 1, fence=lease)
    await lease.check()
    await leave(lease)
    assert await records(store, LEASES) == []


def test_time_that_is_moved() -> None:
    """By a clock of the test's own: renewed in time it is kept, silent for a time to live it is not."""

    async def main() -> None:
        clock = Clock()
        store = open_store(clock=clock)
        lease = await take(store.lease("report", ttl_seconds=30))
        for _ in range(10):
            before = inner(lease).tenure.pulse
            clock.advance(11)
            while inner(lease).tenure.pulse == before:
                await asyncio.sleep(0)
        with pytest.raises(LeaseUnavailableError):
            await take(store.lease("report"))
        silence(lease)
        clock.advance(29)
        assert not lease.lost
        with pytest.raises(LeaseUnavailableError):
            await take(store.lease("report"))
        clock.advance(2)
        assert lease.lost
        second = await take(store.lease("report"))
        assert second.token > lease.token
        with pytest.raises(FencedError):
            await store.resource("stock").run(put, "a", 1, fence=lease)
        await leave(second)
        await store.close()

    asyncio.run(main())
