"""What goes on in the background while things are held: renewing many at once, and releasing what could not be."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from typing import Any

import pytest

from cases.faults import Counted, Wrapped
from cases.support import World, awaited, in_worlds, put
from interlock import BackendUnavailableError, LeaseLostError
from interlock.gates import HOLD_SECONDS
from interlock.layers import parts
from interlock.layers.ledger import Ledger
from interlock.layers.locks import LOCKS
from interlock.layers.tenures import PULSES, TENURES
from interlock.model import Delete
from layers.support import inner, records
from layers.test_leases import leave, take
from layers.test_locks import PESSIMISTIC, elsewhere, kill

in_memory = in_worlds("memory-async", "memory-sync")


def renewals(counted: Counted) -> list[int]:
    """How many owners were renewed by each renewing commit so far."""
    prefix = PULSES.span().start
    return [len(request.writes) for request in counted.commits if all(key.startswith(prefix) for key in request.writes)]


@in_worlds("memory-async", "memory-sync", "sqlite-async", "postgresql-sync", "redis-sync")
async def test_those_that_are_due_together_are_renewed_in_one_commit(world: World) -> None:
    counted = Counted(world.backend())
    store = world.over(counted)
    stock = store.resource("stock")
    held = [await elsewhere(take, stock.lock(f"k{number}", ttl_seconds=1.5)) for number in range(8)]
    while 8 not in renewals(counted):
        await world.look_again()
    await kill(world.open(), inner(held[3]).tenure)
    counted.commits.clear()
    while inner(held[3]).tenure.loss is None or 7 not in renewals(counted):
        await world.look_again()
    for number, lock in enumerate(held):
        assert lock.lost == (number == 3), "whoever was taken over takes nobody along"
        if number == 3:
            with pytest.raises(LeaseLostError):
                await leave(lock)
        else:
            await leave(lock)


class Unable(Wrapped):
    """Refuses every commit in which a tenure ends, and notes how many."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.unable: list[int] = [0]

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        ends = name == "commit" and any(
            key.startswith(TENURES.span().start) and type(write) is Delete for key, write in args[0].writes.items()
        )
        if ends:
            self.unable[0] += 1
            raise BackendUnavailableError("not now")
        return await call()


@in_worlds("memory-async", "memory-sync")
async def test_what_cannot_be_released_holds_no_renewal_up(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The failures of one release alone take longer than a lease lives; they are tried again between renewals."""
    store = world.over(Unable(world.backend()))
    stock = store.resource("stock")
    lease = await elsewhere(take, store.lease("kept", ttl_seconds=2))
    stuck = [await elsewhere(take, stock.lock(f"k{number}")) for number in range(8)]
    with caplog.at_level(logging.WARNING, "interlock"):
        for lock in stuck:
            with pytest.raises(BackendUnavailableError):
                await leave(lock)
        while len(caplog.records) < len(stuck):
            await world.look_again()
            assert not lease.lost
    await lease.check()


class Late(Wrapped):
    """A renewal that was on its way when its owner gave back: it comes behind the release, and before its reply."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.renewals: list[Any] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        done = await call()
        if name == "commit" and self.renewals and any(type(write) is Delete for write in args[0].writes.values()):
            await self.renewals.pop()()
        return done


@in_memory
async def test_a_renewal_behind_the_release_is_no_loss(world: World) -> None:
    late = Late(world.backend())
    store = world.over(late)
    for held in (store.resource("stock").lock("a"), store.lease("report")):
        await elsewhere(take, held)
        tenure = inner(held).tenure
        late.renewals.append(functools.partial(tenure.look_again, Ledger(inner(held).desk.engine)))
        await leave(held)
        assert not late.renewals
        assert tenure.loss is None


@in_worlds("memory-async")
async def test_turns_inside_the_process_do_not_make_anybody_wait_for_much_longer_than_it_wants(world: World) -> None:
    """Others hold on to their turns, as callers of an engine that hangs do; each for as long as it may."""
    lock = world.open().resource("stock").lock("a", wait_seconds=0)
    key, gates = inner(lock).place.key, inner(lock).desk.gates
    await gates.enter(key, object())
    others = [asyncio.ensure_future(gates.enter(key, object())) for _ in range(4)]
    while key not in gates.open or len(gates.open[key].queue) < len(others):
        await asyncio.sleep(0)
    begun = time.monotonic()
    async with lock:
        assert time.monotonic() - begun < 3 * HOLD_SECONDS
    for other in others:
        other.cancel()


class Cut(Wrapped):
    """The caller is cancelled in a grant, which happens all the same."""

    cut = False

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        done = await call()
        if name == "commit" and self.cut and any(key.startswith(LOCKS.span().start) for key in args[0].writes):
            self.cut = False
            raise asyncio.CancelledError
        return done


@pytest.mark.parametrize("split", [True, False])
@awaited
async def test_who_is_cancelled_in_a_grant_leaves_nothing_behind(
    world: World, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither if it holds other things by then, here and in another resource."""
    if split:
        monkeypatch.setattr(parts, "SPLIT_AT", 1)
    cut = Cut(world.backend())
    store = world.over(cut)
    stock, goods = store.resource("stock"), store.resource("goods")
    for place in (stock, goods):
        await place.run(put, "z", 1, **PESSIMISTIC)
        for earlier in (0, 1):
            with pytest.raises(asyncio.CancelledError):
                async with store.session(**PESSIMISTIC) as session:
                    for number in range(earlier):
                        await session.on(stock).read(f"before {number}")
                    cut.cut = True
                    await session.on(place).read("a")
            while await records(store, LOCKS):
                await asyncio.sleep(0)
            assert await records(store, LOCKS) == []
