"""Sagas whose transactions meet: one key written by several steps, and stores besides the journal's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import interlock
import interlock.sync
from cases.faults import Wrapped, is_commit
from interlock import CompensationError, JournalMismatchError, RecoveryReport, Saga, SagaClosedError, UsageError
from interlock.saga import receipts


class Boom(Exception):
    """What goes wrong."""


def put(session: Any, value: int) -> int:
    """Writes."""
    session.write("k", value)
    return value


def add(session: Any, amount: int) -> None:
    """Merges."""
    session.add("k", amount)


def clear(session: Any) -> None:
    """Deletes."""
    session.delete("k")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    with interlock.sync.open(f"sqlite:///{tmp_path / 'other.db'}", agent="a") as opened:
        opened.resource("goods").run(put, 10)
        yield opened


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    with interlock.sync.open(url, agent="a") as opened:
        opened.resource("goods").run(put, 10)
        yield opened


def scope_of(store: Any, durable: bool) -> Any:
    """A saga in memory, or in the store."""
    return store.saga("move", id="m1") if durable else Saga()


WAYS = {
    "writes": [(put, 1), (put, 2), (put, 3)],
    "write, add": [(put, 1), (add, 5), (add, 6)],
    "add, write": [(add, 5), (put, 1), (add, 1)],
    "delete, write": [(clear,), (put, 1), (clear,)],
}


@pytest.mark.parametrize("durable", [False, True], ids=["brief", "durable"])
@pytest.mark.parametrize("there", [False, True], ids=["own", "other"])
@pytest.mark.parametrize("way", WAYS)
def test_steps_on_one_key_are_all_taken_back(store: Any, other: Any, way: str, durable: bool, there: bool) -> None:
    goods = (other if there else store).resource("goods")
    with pytest.raises(Boom), scope_of(store, durable) as saga:
        saga.transact(goods, *WAYS[way][0])
        with pytest.raises(KeyError), saga.savepoint():
            saga.transact(goods, *WAYS[way][1])
            raise KeyError
        for fn, *arguments in WAYS[way][1:]:
            saga.transact(goods, fn, *arguments)
        raise Boom
    assert goods.read("k") == 10
    assert saga.report.clean


@pytest.mark.parametrize("durable", [False, True], ids=["brief", "durable"])
@pytest.mark.parametrize("there", [False, True], ids=["own", "other"])
def test_what_somebody_else_wrote_between_two_steps_stays(store: Any, other: Any, durable: bool, there: bool) -> None:
    """The later step covered it; its undo puts it back, and the earlier step's undo finds it."""
    goods = (other if there else store).resource("goods")
    with pytest.raises(CompensationError) as caught, scope_of(store, durable) as saga:
        saga.transact(goods, put, 1)
        goods.run(put, 5, agent="rival")
        saga.transact(goods, put, 2)
        raise Boom
    (failed,) = caught.value.failures
    assert isinstance(failed.error, interlock.ConflictError)
    assert [each.committed_by for each in failed.error.conflicts] == ["rival"]
    assert goods.read("k") == 5


def test_an_idempotency_key_is_free_again_when_its_transaction_was_taken_back(store: Any) -> None:
    goods = store.resource("goods")
    with pytest.raises(Boom), Saga() as saga:
        assert saga.transact(goods, put, 1, idempotency_key="once") == 1
        raise Boom
    assert goods.read("k") == 10
    assert goods.run(put, 1, idempotency_key="once") == 1
    assert goods.read("k") == 1


def die(saga: Any) -> None:
    """As if the coordinator had died here."""
    saga._frame.course.recorder.journal.lost = True
    raise Boom


def forget() -> None:
    """As in another process, which has met no store yet."""
    receipts._met.clear()


def test_recovery_is_given_the_other_store(store: Any, other: Any) -> None:
    with pytest.raises(Boom), store.saga("move", id="m1") as saga:
        saga.transact(store.resource("goods"), put, 1)
        saga.transact(other.resource("goods"), put, 2)
        die(saga)
    forget()
    report = store.recover(older_than_seconds=0)
    assert [Path(shown).name for shown in report.missing_stores] == ["other.db"]
    assert len(report.dead_letters) == 1
    assert store.resource("goods").read("k") == 10  # the rest is undone all the same
    (letter,) = store.dead_letters.list()
    assert "stores=" in str(letter.error)
    assert not store.dead_letters.retry(letter.dead_letter)
    assert store.dead_letters.retry(letter.dead_letter, stores=[other])
    assert other.resource("goods").read("k") == 10
    assert store.recover(older_than_seconds=0) == RecoveryReport()


def test_who_enters_it_again_gives_the_other_store_too(store: Any, other: Any) -> None:
    with pytest.raises(Boom), store.saga("move", id="m1") as saga:
        saga.transact(other.resource("goods"), put, 2)
        die(saga)
    forget()
    with pytest.raises(SagaClosedError, match="stores="), store.saga("move", id="m1"):
        pass
    with store.saga("move", id="m1", stores=[other]) as saga:
        assert other.resource("goods").read("k") == 10
        saga.transact(other.resource("goods"), add, 7)
    assert other.resource("goods").read("k") == 17


class Losing(Wrapped):
    """Its next writing commit happens when it is told to, and not before."""

    late: Any = None
    armed = False

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        if self.armed and is_commit(name, args):
            type(self).late = staticmethod(call)
            type(self).armed = False
            raise KeyboardInterrupt
        return await call()


def test_a_transaction_that_was_on_its_way_can_not_happen_behind_a_recovery(store: Any, tmp_path: Path) -> None:
    """Its coordinator was stopped before the other store had it; it comes after the saga was undone, and is refused."""
    with interlock.sync.Store(Losing(interlock.SQLiteBackend(tmp_path / "slow.db")), agent="a") as slow:
        goods = slow.resource("goods")
        goods.run(put, 10)
        with pytest.raises(KeyboardInterrupt), store.saga("move", id="m1") as saga:
            assert goods.read("k") == 10
            receipts_known(slow)
            Losing.armed = True
            store_of(saga).lost = True
            saga.transact(goods, put, 2)
        assert store.recover(older_than_seconds=0, stores=[slow]).undone == ("move/m1",)
        with pytest.raises(interlock.model.CommitRefused):
            interlock.stepping.step(Losing.late())
        assert goods.read("k") == 10


def store_of(saga: Any) -> Any:
    """The saga's journal; ``lost``: it does not roll back."""
    return saga._frame.course.recorder.journal


def receipts_known(store: Any) -> None:
    """Give the store its identity, so that the next commit to it is the transaction's."""
    interlock.stepping.step(receipts.identity_of(store._engine, "a"))


def test_a_store_of_another_identity_is_another_store(store: Any, other: Any, tmp_path: Path) -> None:
    with pytest.raises(Boom), store.saga("move", id="m1", on_crash="resume") as saga:
        saga.transact(other.resource("goods"), put, 2)
        die(saga)
    with interlock.sync.open(f"sqlite:///{tmp_path / 'third.db'}", agent="a") as third:
        forget()
        with (
            pytest.raises(JournalMismatchError, match="another store"),
            store.saga("move", id="m1", on_crash="resume", stores=[other]) as saga,
        ):
            saga.transact(third.resource("goods"), put, 2)
        assert third.resource("goods").read("k") is None


def test_what_is_no_store_of_this_world_is_refused(store: Any, other: Any) -> None:
    asynchronous = interlock.open("memory://", agent="a")
    for stores in ([store._engine], "sqlite:///x.db", [asynchronous]):
        with pytest.raises(UsageError, match="store"):
            store.recover(stores=stores)


def test_the_feed_says_which_saga_a_transaction_belongs_to(store: Any, other: Any) -> None:
    cursors = store.log.head(), other.log.head()
    with pytest.raises(Boom), store.saga("move", id="m1") as saga:
        saga.transact(store.resource("goods"), put, 1)
        saga.transact(other.resource("goods"), put, 2)
        raise Boom
    for each, cursor in zip((store, other), cursors, strict=True):
        runs = [(change.run_id, change.operation.rpartition(".")[2]) for change in each.log.changes(cursor)]
        assert runs == [("move/m1", "put"), ("move/m1", "undo of a transaction")]


def test_a_recovery_by_name(store: Any) -> None:
    for name in ("move", "other"):
        with pytest.raises(Boom), store.saga(name, id="m1") as saga:
            saga.transact(store.resource("goods"), add, 1)
            die(saga)
    assert store.recover(name="other", older_than_seconds=0).undone == ("other/m1",)
    assert store.recover(name="mov", older_than_seconds=0) == RecoveryReport()
    with pytest.raises(UsageError):
        store.recover(name="")
    assert store.recover(older_than_seconds=0).undone == ("move/m1",)
    assert store.resource("goods").read("k") == 10


class Slow(Wrapped):
    """Tells when a commit is under way, and takes its time."""

    entered: Any = None

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        if self.entered is not None and is_commit(name, args) and any(key[:1] == b"\1" for key in args[0].writes):
            entered, self.entered = self.entered, None
            done = await call()
            entered.set()
            await asyncio.Event().wait()
            return done
        return await call()


@pytest.mark.parametrize("there", [False, True], ids=["own", "other"])
async def test_cancelled_while_the_commit_is_under_way(there: bool) -> None:
    """The transaction has committed and nobody has seen it: its store is asked, and it is taken back."""
    slow = Slow(interlock.MemoryBackend())
    async with (
        interlock.Store(slow, agent="a") as target,
        interlock.open("memory://", agent="a") as elsewhere,
    ):
        goods = target.resource("goods")

        async def write(session: Any, value: int) -> None:
            await session.write("k", value)

        journal = elsewhere if there else target
        await goods.run(write, 10)
        slow.entered = entered = asyncio.Event()

        async def work() -> None:
            async with journal.saga("move", id="m1") as saga:
                reports.append(saga)
                await saga.transact(goods, write, 1)

        reports: list[Any] = []
        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await goods.read("k") == 10
        assert reports[0].report.clean
        assert await journal.recover(older_than_seconds=0) == RecoveryReport()
