"""Transactions as steps: what is left of each kind of write after the undo, and what becomes of others' writes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import interlock
import interlock.sync
from interlock import CompensationError, ConflictError, Saga, UsageError

_serial = itertools.count()


class Boom(Exception):
    """What goes wrong."""


def fill(session: Any) -> None:
    """What there is before."""
    session.write("kept", 1)
    session.write("changed", [1])
    session.write("deleted", "old")
    session.write(("many", 1), 1)
    session.write(("many", 2), 2)
    session.write("count", 10)
    session.write("members", {"a", "b"})
    session.write("list", [1])
    session.write("best", 5)


def change(session: Any) -> str:
    """Every kind of write."""
    session.write("changed", [2])
    session.write("new", "x")
    session.delete("deleted")
    session.clear(("many",))
    session.write(("many", 3), 3)
    session.add("count", -4, floor=0)
    session.set_add("members", "b")
    session.set_add("members", "c")
    session.set_remove("members", "a")
    session.append("list", 2)
    session.maximum("best", 9)
    return "done"


def test_everything_is_taken_back(url: str) -> None:
    with interlock.sync.open(url, agent="a") as store:
        stock = store.resource("stock")
        stock.run(fill)
        before = list(stock.scan())
        with pytest.raises(Boom), Saga() as saga:
            assert saga.transact(stock, change) == "done"
            assert stock.read("new") == "x"
            raise Boom
        assert list(stock.scan()) == before
        assert saga.report.clean
        assert saga.report.undone == ("change",)


def test_merges_of_others_are_kept(url: str) -> None:
    with interlock.sync.open(url, agent="a") as store:
        stock = store.resource("stock")
        stock.run(fill)
        with pytest.raises(Boom), Saga() as saga:
            saga.transact(stock, lambda session: session.add("count", -4))
            saga.transact(stock, lambda session: session.set_add("members", "x"))
            stock.run(lambda session: session.add("count", 100), agent="rival")
            stock.run(lambda session: session.set_add("members", "y"), agent="rival")
            raise Boom
        assert stock.read("count") == 110
        assert stock.read("members") == {"a", "b", "y"}


@pytest.mark.parametrize("answer", [None, True, False])
def test_a_value_that_somebody_else_has_changed_is_a_conflict(url: str, answer: bool | None) -> None:
    with interlock.sync.open(url, agent="a") as store:
        stock = store.resource("stock")
        stock.run(fill)
        asked: list[Any] = []

        def on_conflict(conflict: interlock.Conflict) -> bool | None:
            asked.append(conflict)
            return answer

        with pytest.raises((Boom, CompensationError)) as caught, Saga() as saga:
            saga.transact(stock, change, on_conflict=on_conflict)
            stock.run(lambda session: session.write("changed", [3]), agent="rival")
            raise Boom
        assert [(each.resource, each.key, each.committed_by) for each in asked] == [("stock", "changed", "rival")]
        assert stock.read("changed") == ([1] if answer else [3])
        assert stock.read("deleted") == (None if answer is None else "old")  # nothing, or all the rest
        if answer is None:
            assert isinstance(caught.value, CompensationError)
            (failed,) = caught.value.failures
            assert isinstance(failed.error, ConflictError)
            assert "rival" in failed.error.explain()
        else:
            assert isinstance(caught.value, Boom)


def test_a_blind_write_that_loses_a_race_is_run_again(url: str) -> None:
    with interlock.sync.open(url, agent="a") as store:
        stock = store.resource("stock")
        attempts: list[int] = []

        def blind(session: Any) -> None:
            session.write("k", "mine")
            attempts.append(session.attempt)

        stock.run(lambda session: session.write("k", "before"))
        with pytest.raises(Boom), Saga() as saga:
            saga.transact(stock, blind)
            raise Boom
        assert stock.read("k") == "before"
        assert attempts == [1]


def test_a_saga_over_two_engines(tmp_path: Path) -> None:
    with (
        interlock.sync.open("memory://", agent="a") as one,
        interlock.sync.open(f"sqlite:///{tmp_path / 'two.db'}", agent="a") as two,
    ):
        stock, money = one.resource("stock", int), two.resource("money", int)
        stock.run(lambda session: session.write("sku", 5))
        money.run(lambda session: session.write("ada", 100))
        for fails in (True, False):
            with pytest.raises(Boom) if fails else Saga(), Saga() as saga:
                saga.transact(stock, lambda session: session.add("sku", -1, floor=0))
                saga.transact(money, lambda session: session.add("ada", -30, floor=0))
                if fails:
                    raise Boom
            assert (stock.read("sku"), money.read("ada")) == ((5, 100) if fails else (4, 70))


def take(session: Any, key: str) -> int:
    """A transaction of a durable saga."""
    value: int = session.update(key, lambda value: value - 1, 10)
    session.write(("log", key), value)
    return value


def test_in_a_durable_saga_the_inverse_is_in_the_same_commit(url: str) -> None:
    with interlock.sync.open(url, agent="a") as store:
        stock = store.resource("stock")

        def body(fails: bool) -> int:
            with store.saga("order", id="o1") as saga:
                left: int = saga.transact(stock, take, "sku")
                if fails:
                    saga._frame.course.recorder.journal.lost = True  # as if it had died here
                    raise Boom
            return left

        with pytest.raises(Boom):
            body(True)
        assert stock.read("sku") == 9
        with interlock.sync.open(url, agent="cron") as cron:
            assert cron.recover(older_than_seconds=0).undone == ("order/o1",)
        assert list(stock.scan()) == []
        assert [body(False), body(False)] == [9, 9]  # the second one is a replay
        assert stock.read("sku") == 9


def test_a_recovered_transaction_meets_others(url: str) -> None:
    with interlock.sync.open(url, agent="a") as store:
        stock = store.resource("stock")
        with pytest.raises(Boom), store.saga("order", id="o1") as saga:
            saga.transact(stock, take, "sku")
            saga._frame.course.recorder.journal.lost = True
            raise Boom
        stock.run(lambda session: session.write("sku", 50), agent="rival")
        report = store.recover(older_than_seconds=0)
        (letter,) = store.dead_letters.list()
        assert report.dead_letters == (letter.dead_letter,)
        assert "conflict" in str(letter.error)
        stock.run(lambda session: session.write("sku", 10), agent="rival")  # what it was is not what is put back
        assert not store.dead_letters.retry(letter.dead_letter)
        store.dead_letters.done(letter.dead_letter)
        assert stock.read("sku") == 10


async def test_asynchronously(url: str) -> None:
    async with interlock.open(url, agent="a") as store:
        stock = store.resource("stock", int)

        async def add(session: interlock.AgentSession[int], key: str) -> int:
            await session.add(key, 5)
            return await session.expect(key)

        with pytest.raises(Boom):
            async with Saga() as saga:
                assert await saga.transact(stock, add, "k") == 5
                raise Boom
        assert await stock.read("k") == 0
        with pytest.raises(UsageError, match="colours"), Saga() as plain:
            plain.transact(stock, add, "k")  # type: ignore[arg-type]
        with pytest.raises(Boom):
            async with store.saga("order", id="o1") as durable:
                await durable.transact(stock, add, "k", agent="b")
                raise Boom
        assert await stock.read("k") == 0


def test_a_session_that_is_open_is_not_joined(url: str) -> None:
    with interlock.sync.open(url, agent="a") as store:
        stock = store.resource("stock")
        with stock.session() as session, Saga() as saga:
            saga.transact(stock, lambda inner: inner.write("own", 1))
            session.rollback()
        assert stock.read("own") == 1
