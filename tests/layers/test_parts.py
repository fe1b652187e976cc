"""Split tables of locks: owners of different keys do not meet, and everybody else still sees all of them.

Two store objects over one engine stand for two processes. What happens between a look at the locks and the commit that
relies on it is done by a hook, so each race is run on purpose and nothing waits for luck."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from cases.faults import Counted, Wrapped
from cases.support import World, awaited, everywhere, in_worlds, put, put_all, rows
from interlock import DeadlockError, LockTimeoutError
from interlock.layers import contests, locks, parts, removals
from interlock.layers.ledger import Ledger
from interlock.layers.locks import LOCKS
from interlock.layers.parts import part_of
from interlock.layers.tenures import TENURES
from interlock.model import ABSENT
from layers.support import inner, records, silence
from layers.test_leases import SHORT, leave, take
from layers.test_locks import AT_ONCE, PESSIMISTIC, a_millisecond, elsewhere, kill, try_once
from layers.test_locks import (  # with tables that are split from the first lock on
    test_a_lock_that_was_taken_over_is_no_longer_ones_own as test_split_a_lock_that_was_taken_over,
)
from layers.test_locks import test_crossed_locks_end_with_a_victim as test_split_crossed_locks
from layers.test_locks import test_of_a_ring_the_youngest_gives_way_and_keeps_its_age as test_split_a_ring
from layers.test_locks import test_ranges_are_locked as test_split_ranges
from layers.test_locks import test_the_last_to_queue_condemns_a_younger_one as test_split_a_younger_one
from layers.test_locks import test_two_that_make_a_shared_lock_exclusive as test_split_shared_to_exclusive
from layers.test_locks import test_who_waits_for_everything_is_not_overtaken_by_readers as test_split_fairness
from layers.test_locks import test_whoever_is_cancelled_while_waiting_leaves_no_trace as test_split_cancelled
from layers.test_locks import test_writers_of_every_mode_wait_for_a_lock as test_split_writers

__all__ = [
    "test_split_a_lock_that_was_taken_over", "test_split_a_ring", "test_split_a_younger_one", "test_split_cancelled",
    "test_split_crossed_locks", "test_split_fairness", "test_split_ranges", "test_split_shared_to_exclusive",
    "test_split_writers",
]  # fmt: skip

MAIN = LOCKS.key("stock")


@pytest.fixture(autouse=True)
def split_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One owner of a single key is enough."""
    monkeypatch.setattr(parts, "SPLIT_AT", 1)


class Between(Wrapped):
    """Before the commit that a plan is about, does something else, once. A plan says which commit it is, and what to
    do; it is shared with the engine's blocking leaf."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.plans: list[tuple[Callable[[Any], bool], Callable[[], Any]]] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        if name == "commit" and self.plans and self.plans[0][0](args[0]):
            _, act = self.plans.pop()
            await act()
        return await call()


def grants(request: Any) -> bool:
    """Whether a commit grants a lock or queues for it: it writes a table, and nobody's tenure ends with it."""
    tables = [write for key, write in request.writes.items() if key.startswith(MAIN)]
    return bool(tables) and not any(type(write).__name__ == "Delete" for write in request.writes.values())


def writes_the_table(request: Any) -> bool:
    """Whether a commit changes the main table."""
    return MAIN in request.writes


async def split(stock: Any) -> None:
    """Have the table split, and nobody in it."""
    await leave(await elsewhere(take, stock.lock("some key")))


@everywhere
async def test_who_locks_one_key_does_not_write_what_others_lock(world: World) -> None:
    counted = Counted(world.backend())
    stock = world.over(counted).resource("stock")
    await split(stock)
    counted.commits.clear()
    for _ in range(2):
        await stock.run(put, "a", 1, **PESSIMISTIC)
    assert counted.commits
    assert all(MAIN not in request.writes for request in counted.commits), "the main table is only looked at"
    held = stock.lock("a", "b", "c")
    await take(held)
    counted.commits.clear()
    await leave(held)
    (release,) = counted.commits
    assert len([key for key in release.writes if key.startswith(MAIN)]) == len(
        {part_of(inner(held).place, target) for target in inner(held).targets}
    ), "all parts are left at once"
    assert await records(world.open(), LOCKS) == []


@awaited
async def test_a_table_is_split_when_many_hold_different_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SPLIT_AT", 4)
    counted = Counted(world.backend())
    stock = world.over(counted).resource("stock")
    held = [await elsewhere(take, stock.lock(f"k{number}")) for number in range(8)]
    mains = [request for request in counted.commits if MAIN in request.writes]
    assert len(mains) == 4, "from then on they lie in parts"
    for lock in held:
        await leave(lock)
    await stock.run(put, "k1", 1)
    assert await records(world.open(), LOCKS) == []


@everywhere
async def test_a_range_waits_for_whoever_holds_a_key_of_it_and_nobody_overtakes(world: World) -> None:
    stock, other = world.open().resource("stock"), world.open().resource("stock")
    await split(stock)
    held = await elsewhere(take, stock.lock(("n", 1), agent="holder"))
    with pytest.raises(LockTimeoutError) as caught:
        async with other.session(**AT_ONCE) as session:
            await rows(session.scan(("n",)))
    assert caught.value.holders == ("holder",)
    async with other.session(**AT_ONCE) as session:
        assert await rows(session.scan(("m",))) == []

    async def scan() -> None:
        async with world.open().resource("stock").lock(wait_seconds=60):
            pass

    waiting = world.thread(scan)
    while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
        await world.look_again()
    with pytest.raises(LockTimeoutError):
        await take(other.lock("elsewhere", wait_seconds=0))
    await leave(held)
    waiting.result()
    await other.run(put, ("n", 1), 1, **PESSIMISTIC)


@everywhere
async def test_of_a_key_and_a_range_at_once_one_is_refused(world: World) -> None:
    """Each in turn comes between the other's look and its commit."""
    for first, second in ((("a",), ()), ((), ("a",))):
        between = Between(world.backend())
        stock, other = world.over(between).resource("stock"), world.open().resource("stock")
        await split(stock)
        await stock.run(put, "free", 1, **PESSIMISTIC)
        rival = other.lock(*second, agent="rival", wait_seconds=0)
        between.plans.append((grants, functools.partial(elsewhere, take, rival)))
        with pytest.raises(LockTimeoutError) as caught:
            await elsewhere(take, stock.lock(*first, wait_seconds=0))
        assert caught.value.holders == ("rival",)
        assert not between.plans, "it has come between"
        await leave(rival)


@everywhere
async def test_a_writer_of_another_mode_sees_a_key_that_is_locked_in_the_last_moment(world: World) -> None:
    between = Between(world.backend())
    stock, other = world.over(between).resource("stock"), world.open().resource("stock")
    await split(stock)
    rival = other.lock("a", agent="rival")
    held = await elsewhere(take, other.lock("b"))

    def knows_the_locks(request: Any) -> bool:
        return not request.quiet and request.guards.get(MAIN, ABSENT) is not ABSENT

    between.plans.append((knows_the_locks, functools.partial(elsewhere, take, rival)))
    with pytest.raises(LockTimeoutError) as caught:
        await try_once(stock, "a", 1)
    assert caught.value.holders == ("rival",)
    assert not between.plans, "it has come between"
    await stock.run(put, "c", 1, lock_timeout_seconds=0)
    await leave(rival)
    await stock.run(put, "a", 2, lock_timeout_seconds=0)
    for keys in (("b",), ()):
        with pytest.raises(LockTimeoutError):
            async with stock.session(lock_timeout_seconds=0) as session:
                await session.write(*keys, 1) if keys else await session.clear()
    await leave(held)
    assert await stock.read("a") == 2


@everywhere
async def test_who_is_hindered_by_a_split_table_that_nobody_uses_removes_it(world: World) -> None:
    counted = Counted(world.backend())
    store = world.over(counted)
    stock = store.resource("stock")
    for remove in ("write", "range"):
        await split(stock)
        assert await raw_locks(store) == [MAIN]
        if remove == "write":
            await stock.run(put, "a", 1)
        else:
            async with stock.lock():
                assert await raw_locks(store) == [MAIN]
        assert await raw_locks(store) == []
        counted.commits.clear()
        await stock.run(put, "a", 1)
        assert len(counted.commits) == 1


async def raw_locks(store: Any) -> list[bytes]:
    """The keys of all tables and parts."""
    found = await Ledger(store._engine).scan(LOCKS)
    return [record.key for record in found.records]


@everywhere
async def test_a_part_is_never_left_behind_without_its_table(world: World) -> None:
    """Somebody takes a key in the very moment in which the table, found idle, is removed."""
    between = Between(world.backend())
    store = world.over(between)
    stock, other = store.resource("stock"), world.open().resource("stock")
    await split(stock)
    rival = other.lock("b")
    between.plans.append((writes_the_table, functools.partial(elsewhere, take, rival)))
    await stock.run(put, "a", 1)
    assert not between.plans, "it has come between"
    assert MAIN in await raw_locks(store)
    with pytest.raises(LockTimeoutError):
        await try_once(stock, "b", 1)
    await leave(rival)


@in_worlds("memory-async", "memory-sync", "sqlite-async", "sqlite-sync")
async def test_a_dead_holder_in_a_part_is_removed_by_whom_it_hinders(world: World) -> None:
    for hindered in ("key", "range", "writer"):
        stock, other = world.open().resource("stock"), world.open().resource("stock")
        await split(stock)
        lock = stock.lock("a", "b", ttl_seconds=SHORT)
        await elsewhere(take, lock)
        silence(lock)
        if hindered == "writer":
            await other.run(put_all, {"a": 1, "b": 2}, lock_timeout_seconds=30)
        else:
            rival = other.lock(*(("a",) if hindered == "key" else ()), wait_seconds=30)
            await elsewhere(take, rival)
            await leave(rival)
        assert await records(world.open(), LOCKS) == [], "from all its parts"


@awaited
async def test_no_wake_up_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder lets go between the look of whoever comes next and its place in the queue. Nobody looks again without
    news here, so one that was not woken would never go on."""
    monkeypatch.setattr(contests, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(removals, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(locks, "TTL_SECONDS", 3600.0)
    between = Between(world.backend())
    stock, other = world.over(between).resource("stock"), world.open().resource("stock")
    await split(stock)
    for keys in (("a",), ()):
        held = await elsewhere(take, other.lock("a", ttl_seconds=3600))
        between.plans.append((writes_the_table, functools.partial(leave, held)))
        waits = stock.lock(*keys, wait_seconds=3600)
        await asyncio.wait_for(elsewhere(take, waits), 60)
        assert not between.plans, "it has come between"
        await leave(waits)
        await split(stock)


class Told(Wrapped):
    """Notes for which keys somebody waits."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.keys: list[set[bytes]] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        if name == "wait":
            self.keys.append(set(args[2]))
        return await call()


@awaited
async def test_who_waits_for_a_range_is_woken_by_the_last_of_its_keys(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines may wake for other keys as well; so it is looked at, too, for which ones they are asked to."""
    monkeypatch.setattr(contests, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(removals, "POLL_SECONDS", 3600.0)
    told = Told(world.backend())
    stock, other = world.over(told).resource("stock"), world.open().resource("stock")
    await split(stock)
    held = [await elsewhere(take, other.lock(f"k{number}", ttl_seconds=3600)) for number in range(3)]
    waits = stock.lock(wait_seconds=3600)
    waiting = asyncio.ensure_future(elsewhere(take, waits))
    while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
        await asyncio.sleep(0)
    for lock in held:
        assert not waiting.done()
        await leave(lock)
    await asyncio.wait_for(waiting, 60)
    await leave(waits)
    assert told.keys
    assert all(keys == {MAIN, *parts.parts_of(LOCKS, MAIN)} for keys in told.keys)
    await split(stock)
    held = [await elsewhere(take, other.lock("a", ttl_seconds=3600))]
    told.keys.clear()
    waits = stock.lock("a", wait_seconds=3600)
    waiting = asyncio.ensure_future(elsewhere(take, waits))
    while not told.keys:
        await asyncio.sleep(0)
    assert told.keys == [{MAIN, *parts.relevant(inner(waits).place, inner(waits).targets)}]
    await leave(*held)
    await asyncio.wait_for(waiting, 60)
    await leave(waits)


@awaited
async def test_a_ring_of_a_key_and_a_range_ends(world: World) -> None:
    """One holds a key in a part and wants what the other holds; that one wants a range with the key in it."""
    stock = world.open().resource("stock")
    await split(stock)
    old, young = await stock.begin(agent="old", **PESSIMISTIC), await stock.begin(agent="young", **PESSIMISTIC)
    await old.write(("n", 1), 1)
    await a_millisecond()
    await young.write("m", 2)
    waiting = asyncio.ensure_future(rows(young.scan(("n",))))
    while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(old.write("m", 1))
    with pytest.raises(DeadlockError):
        await waiting
    await young.rollback()
    await closing
    await old.commit()


@awaited
async def test_who_holds_what_a_range_waits_for_goes_on_past_it(world: World) -> None:
    """To wait behind it would be a deadlock, and there is none to be ended: nobody is a victim."""
    stock, other = world.open().resource("stock"), world.open().resource("stock")
    await split(stock)
    session = await stock.begin(**PESSIMISTIC)
    await session.write(("n", 1), 1)
    waits = other.lock(wait_seconds=60)
    waiting = asyncio.ensure_future(elsewhere(take, waits))
    while not any(seat[5] for _, seats in await records(world.open(), LOCKS) for seat in seats):
        await asyncio.sleep(0)
    for key in ("x", ("n", 1), ("n", 2)):
        await session.write(key, await session.read(key, 0) + 1)
    await session.commit()
    await waiting
    await leave(waits)


@everywhere
async def test_too_many_keys_of_one_owner_leave_the_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = world.open().resource("stock")
    await split(stock)
    session = await stock.begin(**PESSIMISTIC)
    monkeypatch.setattr(parts, "MANY_IN_A_PART", 1)
    for number in range(40):
        await session.read(("n", number))
    found = await records(world.open(), LOCKS)
    held = sorted(len(seat[4]) for _, seats in found for seat in seats)
    assert held[:-1] == [1] * (len(held) - 1)
    assert sum(held) == 40
    await session.read_many([("m", number) for number in range(300)])
    assert len(await records(world.open(), LOCKS)) > 2
    with pytest.raises(LockTimeoutError):
        await try_once(world.open().resource("stock"), ("n", 7), 1)
    await session.rollback()
    assert await records(world.open(), LOCKS) == []


@in_worlds("memory-async", "memory-sync")
async def test_an_owner_that_lets_go_writes_no_more_than_it_has_to(world: World) -> None:
    """It was never in a queue, so there is nothing of it there; and nothing is read for that."""
    counted = Counted(world.backend())
    stock = world.over(counted).resource("stock")
    await stock.run(put, "a", 1)
    counted.calls.clear()
    counted.commits.clear()
    await stock.run(put, "a", 2, **PESSIMISTIC)
    assert counted.calls.count("read") == 0
    assert counted.calls.count("commit") == 3
    release = counted.commits[-1]
    assert len(release.writes) == 3, "the table, the tenure and the pulse"
    assert any(key.startswith(TENURES.span().start) for key in release.reads | release.guards)


@in_worlds("memory-async", "memory-sync")
async def test_whoever_was_taken_over_lets_nothing_of_the_next_one_go(world: World) -> None:
    """It knows nothing of its end, and leaves by what it knows: the next owner's lock stays."""
    stock, other = world.open().resource("stock"), world.open().resource("stock")
    await split(stock)
    session = await stock.begin(**PESSIMISTIC)
    await session.write("a", 1)
    tenure = getattr(session, "inner", session)._txn.held.tenure
    inner(stock.lock("a")).desk.keeper.remove(tenure)
    rival = other.lock("a", wait_seconds=0)
    await kill(world.open(), tenure)
    await elsewhere(take, rival)
    await session.rollback()
    with pytest.raises(LockTimeoutError):
        await try_once(stock, "a", 2)
    await leave(rival)
