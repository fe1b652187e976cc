"""Transactions as steps, at their edges: replays, lost replies, receipts that are old, gone or written by another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import interlock
import interlock.sync
import interlock.testing.sync
from cases.faults import Hooked, LostReplies, Wrapped, is_commit
from interlock import (
    BackendUnavailableError,
    CommitUnknownError,
    CompensationError,
    RecoveryReport,
    Saga,
    SagaClosedError,
    UsageError,
)
from interlock.layers.ledger import Ledger
from interlock.model import ABSENT, Delete
from interlock.saga import receipts
from interlock.saga.receipts import DONE, IDENTITIES, RECEIPTS, VOID, Receipt, identity_of
from interlock.stepping import step
from interlock.testing import Clock
from saga.taking import give_away

_serial = itertools.count()


class Boom(Exception):
    """What goes wrong."""


def put(session: Any, value: int) -> int:
    """Writes."""
    session.write("k", value)
    return value


def look(session: Any) -> Any:
    """Writes nothing."""
    return session.read("k")


async def put_later(session: Any, value: int) -> int:
    """Writes, where one awaits."""
    await session.write("k", value)
    return value


def new_store(agent: str = "a") -> Any:
    """A store of its own."""
    return interlock.sync.open(f"memory://transact-{next(_serial)}", agent=agent)


@pytest.fixture
def store() -> Iterator[Any]:
    with new_store() as opened:
        opened.resource("goods").run(put, 10)
        yield opened


@pytest.fixture
def other() -> Iterator[Any]:
    with new_store() as opened:
        opened.resource("goods").run(put, 10)
        yield opened


def die(saga: Any) -> None:
    """As if the coordinator had died here."""
    saga._frame.course.recorder.journal.lost = True
    raise Boom


# -- what transact takes -----------------------------------------------------------------------------------------------
def test_only_functions_of_the_right_colour_are_taken(store: Any) -> None:
    goods = store.resource("goods")
    with pytest.raises(UsageError, match="takes a function"), Saga() as saga:
        saga.transact(goods, 5)
    with pytest.raises(UsageError, match="is an async function"), Saga() as saga:
        saga.transact(goods, put_later, 5)
    assert goods.read("k") == 10


async def test_where_one_awaits_a_plain_function_is_none() -> None:
    async with interlock.open("memory://", agent="a") as store:
        goods = store.resource("goods")
        with pytest.raises(UsageError, match="is not an async function"):
            async with Saga() as saga:
                await saga.transact(goods, lambda session: 5)  # type: ignore[arg-type, return-value]
        assert await goods.read("k") is None


@pytest.mark.parametrize("there", [False, True], ids=["own", "other"])
@pytest.mark.parametrize("durable", [False, True], ids=["brief", "durable"])
def test_what_has_written_nothing_is_taken_back_by_nothing(store: Any, other: Any, durable: bool, there: bool) -> None:
    target = other if there else store
    goods = target.resource("goods")
    with pytest.raises(Boom), store.saga("s", id="1") if durable else Saga() as saga:
        assert saga.transact(goods, look) == 10
        raise Boom
    assert [value.value for value in goods.history("k")] == [10]
    assert saga.report.clean


@pytest.mark.parametrize("there", [False, True], ids=["own", "other"])
@pytest.mark.parametrize("durable", [False, True], ids=["brief", "durable"])
def test_what_was_a_replay_is_not_taken_back(store: Any, other: Any, durable: bool, there: bool) -> None:
    """Somebody has done it before, outside this saga: what it replaced is not known, and guessed by nobody."""
    goods = (other if there else store).resource("goods")
    assert goods.run(put, 1, idempotency_key="once") == 1
    with pytest.raises(CompensationError) as caught, store.saga("s", id="1") if durable else Saga() as saga:
        assert saga.transact(goods, put, 1, idempotency_key="once") == 1
        raise Boom
    (failed,) = caught.value.failures
    assert "was a replay" in str(failed.error)
    assert goods.read("k") == 1
    if durable:
        assert len(store.recover(older_than_seconds=0).dead_letters) == 1  # another process refuses it, too
        assert goods.read("k") == 1


# -- replies and stores that are lost ----------------------------------------------------------------------------------
@pytest.mark.parametrize("durable", [False, True], ids=["brief", "durable"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_an_interrupted_transaction_is_settled_by_its_store(durable: bool, done: bool) -> None:
    """An interrupt at its commit: the store says whether it has happened, and then it is taken back."""

    class Interrupted(Wrapped):
        armed = False

        async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
            if type(self).armed and is_commit(name, args) and not args[0].quiet:
                type(self).armed = False
                if done:
                    await call()
                raise KeyboardInterrupt
            return await call()

    with interlock.sync.Store(Interrupted(interlock.MemoryBackend()), agent="a") as store:
        goods = store.resource("goods")
        goods.run(put, 10)
        with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") if durable else Saga() as saga:
            if durable:
                saga.step(str, "first")
            Interrupted.armed = True
            saga.transact(goods, put, 1)
        assert goods.read("k") == 10
        assert saga.report.clean
        assert ("put" in saga.report.undone) is done
        assert store.recover(older_than_seconds=0) == RecoveryReport()


class Forgetful(Wrapped):
    """The replies to sessions' commits are lost, and the engine tells no more than that they have happened."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.losing: list[int] = []
        self.lost: list[int] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Lose them."""
        reply = await call()
        if name == "outcome":
            return reply[0], None
        if self.losing and is_commit(name, args) and not args[0].quiet:
            self.lost.append(1)
            raise CommitUnknownError("lost", transaction_id=f"{args[0].transaction:032x}")
        return reply


def test_a_transaction_whose_version_nobody_tells_is_taken_back_all_the_same() -> None:
    """The journal reads what has become of the step's record; else its next write would be refused."""
    backend = Forgetful(interlock.MemoryBackend())
    with interlock.sync.Store(backend, agent="a") as store:
        goods = store.resource("goods")
        goods.run(put, 10)
        with pytest.raises(Boom), store.saga("s", id="1") as saga:
            backend.losing.append(1)
            assert saga.transact(goods, put, 1) == 1
            assert goods.read("k") == 1
            raise Boom
        assert len(backend.lost) == 2
        assert goods.read("k") == 10
        assert saga.report.clean
        assert store.recover(older_than_seconds=0) == RecoveryReport()


class Mute(Wrapped):
    """One commit of a session is interrupted, and then the engine says nothing about it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.armed: list[int] = []
        self.muted: list[int] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Interrupt, or keep silent."""
        if self.muted and name == "outcome":
            raise BackendUnavailableError("the server has gone")
        if self.armed and is_commit(name, args) and not args[0].quiet:
            self.armed.pop()
            self.muted.append(1)
            raise KeyboardInterrupt
        return await call()


def test_a_transaction_of_which_nobody_knows_is_left_to_a_person() -> None:
    """The journal has not its inverse, so no recovery takes anything back."""
    backend = Mute(interlock.MemoryBackend())
    with interlock.sync.Store(backend, agent="a") as store:
        goods = store.resource("goods")
        goods.run(put, 10)
        with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") as saga:
            backend.armed.append(1)
            saga.transact(goods, put, 1)
        assert saga.report.unknown == ("put",)
        backend.muted.clear()
        report = store.recover(older_than_seconds=0)
        assert (report.undone, report.unknown) == ((), ("s/1: put",))
        (letter,) = store.dead_letters.list()
        assert goods.read("k") == 10
        store.dead_letters.done(letter.dead_letter)
        assert store.recover(older_than_seconds=0) == RecoveryReport()


def test_an_interrupt_before_the_transaction_has_begun_leaves_nothing(store: Any) -> None:
    def interrupted(session: Any) -> None:
        raise KeyboardInterrupt

    goods = store.resource("goods")
    with pytest.raises(KeyboardInterrupt), Saga() as saga:
        saga.transact(goods, put, 1)
        saga.transact(goods, interrupted)
    assert goods.read("k") == 10
    assert saga.report.clean


@pytest.mark.parametrize("there", [False, True], ids=["own", "other"])
def test_a_transaction_of_a_coordinator_that_was_taken_over_is_refused(store: Any, other: Any, there: bool) -> None:
    """By its own commit: the saga was undone while its function ran."""
    goods = (other if there else store).resource("goods")
    saga = store.saga("s", id="1")

    def overtaken(session: Any) -> None:
        session.write("k", 1)
        give_away(saga)
        assert store.recover(older_than_seconds=0, stores=[other], agent="rival").undone == ("s/1",)

    with pytest.raises(SagaClosedError, match="taken over"), saga as scope:
        scope.step(str, "first")
        scope.transact(goods, overtaken)
    assert goods.read("k") == 10
    assert not scope.report.clean


# -- receipts ----------------------------------------------------------------------------------------------------------
def test_two_give_a_store_its_identity_at_once() -> None:
    """Both have the one that was written."""
    backend = interlock.MemoryBackend()
    with interlock.sync.Store(backend, agent="rival") as rival:
        told: list[str] = []

        def first(name: str, args: tuple[Any, ...]) -> None:
            if name == "commit" and not told:
                told.append(step(identity_of(rival._engine, "rival")))

        with interlock.sync.Store(Hooked(backend, first), agent="a") as store:
            assert step(identity_of(store._engine, "a")) == told[0]
            assert step(Ledger(store._engine).read(IDENTITIES, [IDENTITIES.key("own")])).records[0].value == told[0]
            again = interlock.sync.Store(backend, agent="b")
            assert step(identity_of(again._engine, "b")) == told[0]


def test_a_receipt_is_settled_once() -> None:
    """Whoever asks voids it, unless somebody else has written it in between: then that is the answer."""
    backend = interlock.MemoryBackend()
    written: list[Any] = []
    with interlock.sync.Store(backend, agent="rival") as rival:
        receipt = Receipt(rival._engine, "r1")

        def first(name: str, args: tuple[Any, ...]) -> None:
            if name == "commit" and not written:
                written.append(RECEIPTS.put({"status": DONE, "transaction": "1", "inverse": []}))
                step(Ledger(rival._engine).commit({receipt.key: written[0]}, {receipt.key: ABSENT}, agent="rival"))

        with interlock.sync.Store(Hooked(backend, first), agent="a") as store:
            found = step(Receipt(store._engine, "r1").settle("a", 0.0))
            assert found == {"status": DONE, "transaction": "1", "inverse": []}
            for _ in range(2):
                assert step(Receipt(store._engine, "r2").settle("a", 0.0)) is None
            (void,) = step(Ledger(store._engine).read(RECEIPTS, [RECEIPTS.key("r2")])).records
            assert void.value == {"status": VOID}


def two(clock: Clock) -> tuple[Any, Any]:
    """A store and another one, by a clock that is moved."""
    store = interlock.testing.sync.open_store(clock=clock)
    other = interlock.testing.sync.open_store(clock=clock)
    other.resource("goods").run(put, 10)
    return store, other


def test_a_question_that_is_asked_too_late_stays_open() -> None:
    """Its receipt may have expired, so that there is none says nothing."""
    clock = Clock()
    store, other = two(clock)
    step(identity_of(other._engine, "a"))

    def dies(session: Any) -> None:
        session.write("k", 1)
        saga._frame.course.recorder.journal.lost = True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") as saga:
        saga.transact(other.resource("goods"), dies)
    clock.advance(receipts.KEPT_SECONDS)
    report = store.recover(older_than_seconds=0, stores=[other])
    assert len(report.unknown) == len(report.dead_letters) == 1
    assert report.undone == ()
    store.close()
    other.close()


def test_a_transaction_whose_receipt_is_gone_is_not_taken_back() -> None:
    """Without it nobody knows what it has replaced; a person has to look."""
    store, other = new_store(), new_store()
    goods = other.resource("goods")
    goods.run(put, 10)
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        saga.transact(goods, put, 1)
        die(saga)
    ledger = Ledger(other._engine)
    (record,) = step(ledger.scan(RECEIPTS)).records
    step(ledger.commit({record.key: Delete()}, {record.key: record.expected}, agent="vandal"))
    report = store.recover(older_than_seconds=0, stores=[other])
    assert (report.undone, len(report.dead_letters)) == ((), 1)
    assert "by hand" in str(next(iter(store.dead_letters.list())).error)
    assert goods.read("k") == 1
    store.close()
    other.close()


@pytest.mark.parametrize("there", [False, True], ids=["own", "other"])
def test_an_undo_that_was_not_noted_is_not_done_twice(store: Any, other: Any, there: bool) -> None:
    """The undo has committed, and its coordinator died before it could say that the saga has ended."""
    goods = (other if there else store).resource("goods")
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        saga.transact(goods, add, 5)
        die(saga)
    assert goods.read("n") == 5
    journal = interlock.saga.journal
    ended = journal.Journal.set_status

    async def dies(self: Any, status: str) -> None:
        if status == journal.UNDONE:
            raise KeyboardInterrupt
        await ended(self, status)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.Journal, "set_status", dies)
        if there:
            patch.setattr(journal.Journal, "drop_letter", dies_at_once)
        with pytest.raises(KeyboardInterrupt):
            store.recover(older_than_seconds=0, stores=[other])
    assert goods.read("n") == 0
    assert store.recover(older_than_seconds=0, stores=[other]).undone == ("s/1",)
    assert goods.read("n") == 0


async def dies_at_once(*arguments: Any) -> None:
    """The coordinator's end."""
    raise KeyboardInterrupt


def add(session: Any, amount: int) -> None:
    """Merges: what must not be taken back twice."""
    session.add("n", amount)


def test_who_enters_it_again_learns_what_became_of_a_transaction(store: Any, other: Any) -> None:
    """``on_crash="resume"``: it has committed on the other store, and the journal has not heard of it."""
    goods = other.resource("goods")
    with pytest.raises(SagaClosedError), store.saga("s", id="1", on_crash="resume") as saga:
        step(identity_of(other._engine, "a"))
        journal = saga._frame.course.recorder.journal

        def dies(place: Any, changes: Any) -> None:
            journal.lost = True
            raise SagaClosedError("died")

        journal.note = dies
        saga.transact(goods, put, 1)
    assert goods.read("k") == 1
    with store.saga("s", id="1", on_crash="resume") as saga:
        goods.run(put, 7, agent="rival")
        assert saga.transact(goods, put, 1) == 1
    assert goods.read("k") == 7  # it was not called again


def test_lost_replies_of_transactions_on_another_store() -> None:
    """However the reply is lost, the transaction happens once and is taken back once."""
    for fault in ("before", "after"):
        backend = LostReplies(interlock.MemoryBackend(), {})
        with new_store() as store, interlock.sync.Store(backend, agent="a") as other:
            goods = other.resource("goods")
            goods.run(put, 10)
            step(identity_of(other._engine, "a"))
            with pytest.raises(Boom), store.saga("s", id="1") as saga:
                backend.plan[len(backend.commits) + 1] = fault
                saga.transact(goods, put, 1)
                backend.plan[len(backend.commits) + 1] = fault
                raise Boom
            assert goods.read("k") == 10
            assert saga.report.clean
