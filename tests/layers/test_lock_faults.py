"""Leases and locks when something fails at a bad moment: the engine, a reply, the own process, the loop around them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import interlock
import interlock.sync
from cases.faults import Broken, Hooked, Wrapped
from cases.support import World, in_worlds, put
from interlock import (
    BackendUnavailableError,
    ConflictError,
    FencedError,
    LeaseLostError,
    LockTimeoutError,
    UsageError,
)
from interlock.core.locking import footprint_of, key_span
from interlock.errors import SnapshotTooOldError
from interlock.layers import queues, tenures
from interlock.layers.desks import OPERATION
from interlock.layers.holdings import desk_of
from interlock.layers.ledger import Ledger
from interlock.layers.locks import LOCKS
from interlock.layers.tenures import Tenure
from interlock.model import Delete, DuplicateTransaction, Put
from layers.support import inner, records, silence
from layers.test_leases import SHORT, expire, leave, take

PESSIMISTIC: Any = {"isolation": "pessimistic", "lock_timeout_seconds": 0}

in_memory = in_worlds("memory-async", "memory-sync")


def tenure_of(session: Any) -> Tenure:
    """The tenure of a session's locks."""
    tenure: Tenure = getattr(session, "inner", session)._txn.held.tenure
    return tenure


async def other_takes(world: World, key: str) -> None:
    """Somebody else gets a lock at once."""
    async with world.open(agent="other").resource("stock").lock(key, wait_seconds=30):
        pass


class Faulty(Hooked):
    """Raises what is planned for the next commits of the layer of locks."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, self._look)
        self.plan: list[Exception] = []

    def _look(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "commit" and self.plan and args[0].quiet:
            raise self.plan.pop(0)


# -- what is refused ---------------------------------------------------------------------------------------------------
@in_memory
async def test_what_is_not_held_guards_nothing(world: World) -> None:
    store = world.open()
    stock, lease = store.resource("stock"), store.lease("report")
    with pytest.raises(LeaseLostError, match="not held"):
        (await stock.begin()).fence(lease)
    await take(lease)
    await stock.run(put, "a", 1, fence=lease)
    await leave(lease)
    with pytest.raises(LeaseLostError, match="given back"):
        (await stock.begin()).fence(lease)


@in_memory
async def test_too_many_keys_are_refused_before_anything_is_taken(world: World) -> None:
    store = world.open()
    keys = [f"k{number}" for number in range(queues.MANY_TARGETS + 1)]
    with pytest.raises(UsageError, match="lock the whole resource"):
        await take(store.resource("stock").lock(*keys))
    assert await records(store, LOCKS) == []


@in_memory
async def test_a_shield_that_is_not_to_be_had_holds_nothing(world: World) -> None:
    """Locks for the next attempt are taken all or none, so that nobody waits for a lock in vain."""
    store = world.open()
    stock = store.resource("stock")
    space = getattr(stock, "inner", stock)._resource.space
    held = stock.lock("b")
    await take(held)
    session = await stock.begin(lock_timeout_seconds=0)
    txn = getattr(session, "inner", session)._txn
    spans = [key_span(space.encode(key)) for key in ("a", "b")]
    engine = getattr(store, "inner", store)._engine
    assert not await engine.locking.shield(txn, {space: ([], spans)})
    assert txn.held is None
    await other_takes(world, "a")
    await leave(held)
    assert await engine.locking.shield(txn, {space: ([], spans)})
    with pytest.raises(LockTimeoutError):
        await take(world.open().resource("stock").lock("a", wait_seconds=0))
    await session.rollback()
    await other_takes(world, "a")


@in_memory
async def test_a_resource_that_was_joined_and_not_used_is_not_shielded(world: World) -> None:
    """Else the next attempt would write the table of its locks, and wait its turn there, for nothing."""
    store = world.open()
    stock, goods = store.resource("stock"), store.resource("goods")
    async with stock.session() as session:
        await session.on(goods).read("a")
        txn = getattr(session, "inner", session)._txn
        home, joined = txn.spaces()
        raw = joined.encode("a")
        assert footprint_of(txn, None) == {joined: ([key_span(raw)], [])}
        await session.write("b", 1)
        assert set(footprint_of(txn, None)) == {home, joined}


@in_memory
async def test_a_session_that_was_granted_nothing_ends_like_any_other(world: World) -> None:
    stock = world.open().resource("stock")
    held = stock.lock("a")
    await take(held)
    session = await stock.begin(**PESSIMISTIC)
    with pytest.raises(LockTimeoutError):
        await session.read("a")
    assert tenure_of(session).version is None
    assert getattr(session, "inner", session)._txn.held.guards() == {}
    await session.rollback()
    await leave(held)
    assert await records(world.open(), LOCKS) == []


# -- lost on the way ---------------------------------------------------------------------------------------------------
@in_memory
async def test_locks_that_were_taken_over_are_lost_at_the_next(world: World) -> None:
    """The refusal of the next lock names the own tenure; before the commit would."""
    store = world.open()
    stock = store.resource("stock")
    session = await stock.begin(**PESSIMISTIC)
    await session.read("a")
    tenure = tenure_of(session)
    desk_of(getattr(store, "inner", store)._engine).keeper.remove(tenure)
    ledger = Ledger(getattr(store, "inner", store)._engine)
    reading = await ledger.backend.read((tenure.key, tenure.pulse_key))
    await ledger.commit(
        {tenure.key: Delete(), tenure.pulse_key: Delete()},
        {tenure.key: reading.entries[0].version, tenure.pulse_key: reading.entries[1].version},
        agent="other",
        quiet=True,
    )
    with pytest.raises(ConflictError, match="were lost"):
        await session.read("b")
    assert isinstance(tenure.loss, FencedError)
    await session.rollback()
    session = await stock.begin(**PESSIMISTIC)
    await session.read("a")
    tenure_of(session).lose(FencedError("the keeper has found it out"))
    with pytest.raises(ConflictError, match="were lost"):
        await session.read("c")
    await session.rollback()
    await other_takes(world, "a")
    await other_takes(world, "b")


@in_memory
async def test_locks_of_an_engine_that_has_restarted_are_lost_at_the_next(world: World) -> None:
    stock = world.open().resource("stock")
    session = await stock.begin(**PESSIMISTIC)
    await session.read("a")
    tenure_of(session).incarnation -= 1  # of before the restart, in which the tables were lost
    with pytest.raises(ConflictError, match="engine restarted"):
        await session.read("b")
    await session.rollback()


@in_memory
async def test_a_snapshot_that_is_too_old_for_a_lock(world: World) -> None:
    """The first lock is asked for again; a later one cannot be had under the reads of before."""
    faulty = Faulty(world.backend())
    stock = world.over(faulty).resource("stock")
    session = await stock.begin(**PESSIMISTIC)
    faulty.plan.append(SnapshotTooOldError("too old"))
    assert await session.read("a") is None
    assert not faulty.plan
    faulty.plan.append(SnapshotTooOldError("too old"))
    with pytest.raises((SnapshotTooOldError, ConflictError)):
        await session.read("b")
    await session.rollback()
    await stock.run(put, "a", 1, **PESSIMISTIC)
    assert await stock.read("a") == 1


class Twice(Wrapped):
    """Requests may come twice on their way; in between others do as they like."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.between: list[Callable[[Any, Any], Any]] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """The second one is told that the first has committed."""
        if name != "commit" or not self.between or args[0].operation != OPERATION:
            return await call()
        await call()
        await self.between.pop()(self.inner, args[0])
        raise DuplicateTransaction(True)


async def rewrite(backend: Any, request: Any, *, ends: bool) -> None:
    """Somebody else's commits since: the same table again, and the end of the tenure."""
    keys = list(request.writes)
    reading = await backend.read(keys)
    for number, (key, entry) in enumerate(zip(keys, reading.entries, strict=True)):
        write = Put(entry.value) if not ends else Delete()
        await backend.commit(
            type(request)(
                request.transaction + 1 + number,
                "other",
                "serializable",
                reading.token,
                {},
                {key: write},
                {},
                quiet=True,
            )
        )


@in_memory
async def test_a_grant_whose_reply_came_when_others_had_ended_it(world: World) -> None:
    """Nobody may commit under a tenure that it does not know."""
    twice = Twice(world.backend())
    store = world.over(twice)
    stock = store.resource("stock")
    session = await stock.begin(**PESSIMISTIC)

    async def end(backend: Any, request: Any) -> None:
        await rewrite(backend, request, ends=True)

    twice.between.append(end)
    with pytest.raises(ConflictError, match="were lost"):
        await session.read("a")
    assert not twice.between
    await session.rollback()
    await stock.run(put, "a", 1, **PESSIMISTIC)
    assert await stock.read("a") == 1


@in_memory
async def test_a_grant_whose_table_was_written_by_others_since(world: World) -> None:
    """The lock is held all the same; the next look at the table is at the engine's."""
    twice = Twice(world.backend())
    store = world.over(twice)
    stock, goods = store.resource("stock"), store.resource("goods")

    async def again(backend: Any, request: Any) -> None:
        await rewrite(backend, request, ends=False)

    async with stock.session(**PESSIMISTIC) as session:
        await session.write("a", 1)
        twice.between.append(again)
        await session.on(goods).write("b", 2)
        assert not twice.between
        with pytest.raises(LockTimeoutError):
            await take(world.open().resource("goods").lock("b", wait_seconds=0))
        await session.on(goods).write("c", 3)
    assert [await goods.read("b"), await goods.read("c"), await stock.read("a")] == [2, 3, 1]
    assert await records(store, LOCKS) == []


@in_worlds("memory-async")
async def test_who_waits_and_is_believed_dead_is_told(world: World) -> None:
    """It was taken out of the queue: its place there is lost, and it does not wait for ever."""
    store, other = world.open(), world.open(agent="other")
    holder = await take(store.lease("report"))
    waiter = other.lease("report", ttl_seconds=SHORT, wait_seconds=60)
    waiting = asyncio.create_task(take(waiter))
    while not inner(waiter).tenure.version:
        await asyncio.sleep(0)
    silence(waiter)
    await expire(other, inner(waiter).tenure.pulse_key)
    await other.compact()
    await leave(holder)
    async with store.lease("report", wait_seconds=60):
        pass
    with pytest.raises((LeaseLostError, FencedError)):
        await waiting


class Overtaken(Wrapped):
    """Whoever waits is woken by the end of what it waits for; the grant then comes behind a renewal."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.waits: list[Callable[[], Any]] = []
        self.renewals: list[Callable[[], Any]] = []
        self.grants: list[Any] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Give back, renew, and pass it on."""
        if name == "wait" and self.waits:
            await self.waits.pop()()
            return None
        if name == "commit" and not self.waits and args[0].operation == OPERATION:
            self.grants.append(args[0])
            if self.renewals:
                await self.renewals.pop()()
        return await call()


@in_memory
async def test_a_renewal_that_overtakes_the_grant_costs_another_try(world: World) -> None:
    """The pulse is another one than the grant expects, and the tenure is the same: nothing is lost."""
    overtaken = Overtaken(world.backend())
    store = world.over(overtaken)
    ledger = Ledger(getattr(world.open(), "inner", world.open())._engine)
    held = world.open().resource("stock").lock("a")
    await take(held)
    wanted = store.resource("stock").lock("a", wait_seconds=60)

    async def renew() -> None:
        tenure = inner(wanted).tenure
        await ledger.commit({tenure.pulse_key: Put(b"")}, {tenure.pulse_key: tenure.pulse}, agent="tester", quiet=True)

    overtaken.renewals.append(renew)
    overtaken.waits.append(lambda: leave(held))
    async with wanted:
        assert (len(overtaken.grants), overtaken.renewals, wanted.lost) == (2, [], False)
        with pytest.raises(LockTimeoutError):
            await take(world.open().resource("stock").lock("a", wait_seconds=0))
    assert await records(store, LOCKS) == []


# -- renewing ----------------------------------------------------------------------------------------------------------
@in_memory
async def test_a_strict_lease_that_has_expired_says_so_when_it_is_asked(world: World) -> None:
    store = world.open()
    lease = await take(store.lease("report", ttl_seconds=SHORT, strict=True))
    silence(lease)
    await expire(store, inner(lease).tenure.pulse_key)
    with pytest.raises(LeaseLostError, match="has expired"):
        await lease.check()
    first = inner(lease).tenure.loss
    inner(lease).tenure.lose(FencedError("later", lease="report"))
    assert inner(lease).tenure.loss is first
    with pytest.raises(LeaseLostError, match="has expired"):
        await leave(lease)


@in_memory
async def test_renewing_from_a_snapshot_that_is_too_old(world: World) -> None:
    faulty = Faulty(world.backend())
    store = world.over(faulty)
    async with store.lease("report") as lease:
        before = inner(lease).tenure.pulse
        faulty.plan.append(SnapshotTooOldError("too old"))
        await lease.check()
        assert not faulty.plan
        assert inner(lease).tenure.pulse != before
        faulty.plan += [SnapshotTooOldError("too old") for _ in range(tenures._TRIES)]
        with pytest.raises(BackendUnavailableError, match="kept changing"):
            await lease.check()
        assert not faulty.plan
        assert not lease.lost  # it may be held all the same
        await lease.check()


@in_memory
async def test_who_cannot_renew_loses_when_its_time_is_over(world: World) -> None:
    """As far as it can know, others may have the lease by then."""
    broken = Broken(world.backend())
    store = world.over(broken)
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    broken.broken.append(BackendUnavailableError("the server has gone"))
    await lease.wait_lost()
    loss = inner(lease).tenure.loss
    assert "could not be renewed" in str(loss)
    broken.broken.clear()
    with pytest.raises(LeaseLostError, match="could not be renewed"):
        await leave(lease)
    async with store.lease("report", wait_seconds=30):
        pass


@in_memory
async def test_what_is_given_back_while_it_is_renewed_stays_so(world: World) -> None:
    removed: list[Any] = []

    def during(name: str, args: tuple[Any, ...]) -> None:
        if name == "commit" and leases and not removed and list(args[0].writes) == [inner(leases[0]).tenure.pulse_key]:
            removed.append(silence(leases[0]))

    leases: list[Any] = []
    store = world.over(Hooked(world.backend(), during))
    leases.append(await take(store.lease("report", ttl_seconds=SHORT)))
    keeper = inner(leases[0]).desk.keeper
    while not removed:
        await world.look_again()
    while keeper._job is not None:
        await world.look_again()
    assert keeper._tenures == keeper._due == {}
    await leave(leases[0])


# -- giving back -------------------------------------------------------------------------------------------------------
@in_memory
async def test_the_engine_is_away_when_locks_are_let_go(world: World) -> None:
    """The commit is known; the locks are let go in the background, as soon as that is possible."""
    faulty = Faulty(world.backend())
    stock = world.over(faulty).resource("stock")
    async with stock.session(**PESSIMISTIC) as session:
        await session.write("a", 1)
        faulty.plan += [BackendUnavailableError("the server has gone")] * 3
    assert await stock.read("a") == 1
    await other_takes(world, "a")
    assert not faulty.plan


@in_memory
async def test_the_engine_is_away_when_a_lease_is_given_back(world: World) -> None:
    faulty = Faulty(world.backend())
    store = world.over(faulty)
    lease = await take(store.lease("report"))
    faulty.plan += [BackendUnavailableError("the server has gone")] * 3
    with pytest.raises(BackendUnavailableError):
        await leave(lease)
    async with world.open().lease("report", wait_seconds=30):
        pass
    lease = await take(store.lease("report"))
    faulty.plan.append(BackendUnavailableError("the server has gone"))
    own = LookupError()
    await leave(lease, own)
    assert "could not be given back yet" in own.__notes__[0]
    async with world.open().lease("report", wait_seconds=30):
        pass


@in_worlds("memory-sync")
async def test_what_cannot_be_given_back_is_left_to_its_end(world: World, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken(world.backend())
    store = world.over(broken)
    lease = await take(store.lease("report", ttl_seconds=SHORT))
    desk = inner(lease).desk
    broken.broken.append(BackendUnavailableError("the server has gone"))
    with caplog.at_level(logging.WARNING, "interlock"), pytest.raises(BackendUnavailableError):
        await leave(lease)
    while desk.keeper._job is not None:
        await world.look_again()
    assert "run out by itself" in caplog.text
    broken.broken.clear()
    async with store.lease("report", wait_seconds=30):
        pass


@in_worlds("memory-async")
async def test_a_session_that_is_dropped_lets_go_in_the_background(world: World) -> None:
    stock = world.open().resource("stock")
    session = await stock.begin(**PESSIMISTIC)
    await session.write("a", 1)
    txn = session._txn
    txn.rollback()
    assert txn.held is None
    await other_takes(world, "a")
    assert await stock.read("a") is None
    txn.engine.locking.drop(txn)  # again: there is nothing left


@in_memory
async def test_a_session_that_is_dropped_behind_the_end_of_its_store(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    session = await stock.begin(**PESSIMISTIC)
    await session.write("a", 1)
    txn = getattr(session, "inner", session)._txn
    await store.close()
    txn.rollback()
    keeper = txn.engine.locking.keeper
    assert keeper._releases == []
    job = keeper._job

    async def nothing(ledger: Ledger) -> None:
        """Nobody is to begin a job for it."""

    keeper.later(nothing)
    assert keeper._job in (job, None)
    while job is not None and job.alive():
        await world.look_again()


@in_worlds("memory-async")
async def test_an_owner_that_holds_nothing_lets_nothing_go(world: World) -> None:
    stock = world.open().resource("stock")
    session = await stock.begin(isolation="pessimistic")
    txn = session._txn
    await txn.engine.locking.let_go(txn)
    txn.engine.locking.drop(txn)
    assert txn.held is None
    await session.rollback()


@in_memory
async def test_a_writer_takes_a_dead_holder_out_of_its_way(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    lock = await take(stock.lock("a", ttl_seconds=SHORT))
    silence(lock)
    await stock.run(put, "free", 1)
    await world.open(agent="other").resource("stock").run(put, "a", 1, lock_timeout_seconds=30)
    assert await stock.read("a") == 1
    assert await records(store, LOCKS) == []
    with pytest.raises(FencedError):
        await leave(lock)
    await leave(lock)  # it has been given back: there is nothing left to say


# -- loops -------------------------------------------------------------------------------------------------------------
def test_without_a_loop_a_thread_gives_back() -> None:
    """A coroutine that is closed behind its loop's end."""
    store = interlock.open("memory://", agent="tester")

    async def main() -> Any:
        lease = store.lease("report")
        await take(lease)
        return lease

    holding = inner(asyncio.run(main()))
    given: list[str] = []

    async def release(ledger: Ledger) -> None:
        assert not ledger.runtime.suspends
        given.append("back")

    keeper = holding.desk.keeper
    keeper.remove(holding.tenure)
    job = keeper._job
    while job is not None and job.alive() and keeper._job is job:  # what is stirred when it has ended begins again
        keeper._stir(0.0)
    keeper.later(release)
    while not given:
        pass
    asyncio.run(store.close())


class WithoutLeaf(Wrapped):
    """A backend that can only be awaited."""

    suspends = property(lambda self: True)

    def blocking(self) -> Any:
        """There is none."""
        return self


def test_without_a_loop_and_without_a_thread_it_runs_out() -> None:
    store = interlock.Store(WithoutLeaf(interlock.MemoryBackend()), agent="tester")
    lease = store.lease("report", ttl_seconds=SHORT)
    asyncio.run(take(lease))
    assert inner(lease).desk.keeper._job is None
    while not lease.lost:
        pass

    async def next_one() -> None:
        async with store.lease("report", wait_seconds=30) as second:
            assert second.token > lease.token
        await store.close()

    asyncio.run(next_one())


def test_a_loop_that_ends_in_the_middle_of_a_release() -> None:
    """A thread does it again."""
    store = interlock.open("memory://", agent="tester")
    worlds: list[bool] = []

    async def release(ledger: Ledger) -> None:
        worlds.append(ledger.runtime.suspends)
        if ledger.runtime.suspends:
            await asyncio.Event().wait()

    async def main() -> None:
        await take(store.lease("warm"))
        desk_of(store._engine).keeper.later(release)
        while not worlds:
            await asyncio.sleep(0)

    asyncio.run(main())
    while len(worlds) < 2:
        pass
    assert worlds == [True, False]
    asyncio.run(store.close())


@in_worlds("memory-async")
async def test_a_keeper_that_is_closed_hands_nothing_over(world: World) -> None:
    """Nothing can be awaited there, nor a thread be relied on; what is held runs out, or the next job takes it."""
    store = world.open()
    lease = await take(store.lease("report"))
    keeper = inner(lease).desk.keeper
    job = keeper._job
    work = keeper._work(Ledger(store._engine))
    work.send(None)
    work.close()
    assert keeper._job is job
    assert list(keeper._tenures.values()) == [inner(lease).tenure]
    await leave(lease)


@in_worlds("memory-async")
async def test_a_lease_that_is_lost_in_the_moment_of_its_grant_cancels_the_body(world: World) -> None:
    def granted(name: str, args: tuple[Any, ...]) -> None:
        if name == "commit" and args[0].quiet:
            tenure = inner(lease).tenure
            tenure.lose(LeaseLostError("lost at once", lease="report"))

    store = world.over(Hooked(world.backend(), granted))
    lease = store.lease("report", cancel_on_loss=True)
    reached: list[int] = []
    with pytest.raises(LeaseLostError, match="lost at once"):
        async with lease:
            await asyncio.sleep(0)
            reached.append(1)
    assert not reached


def test_an_interrupt_while_a_lease_is_given_back_leaves_nothing_behind() -> None:
    """It is given back in the background."""
    interrupts: list[BaseException] = []

    def hook(name: str, args: tuple[Any, ...]) -> None:
        if name == "commit" and interrupts:
            raise interrupts.pop()

    store = interlock.sync.Store(Hooked(interlock.MemoryBackend(), hook), agent="a")
    with pytest.raises(KeyboardInterrupt), store.lease("x", ttl_seconds=60):
        interrupts.append(KeyboardInterrupt())
    with store.lease("x", ttl_seconds=60, wait_seconds=30):
        assert not interrupts
    store.close()
