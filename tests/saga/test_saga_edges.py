"""Durable sagas at their edges: pages, ages, typed values, what cannot be read, functions that are not known."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import pytest

import interlock
import interlock.sync
import interlock.testing.sync
from cases.faults import LostReplies, Wrapped
from interlock import (
    CANNOT_TELL,
    NOT_HAPPENED,
    CompensationError,
    Happened,
    JournalMismatchError,
    SagaClosedError,
    StepFailedError,
    StepUnknownError,
    UsageError,
    ValueRefusedError,
    compensable,
)
from interlock.layers.ledger import Ledger
from interlock.model import Put
from interlock.saga import journal, recorded, recording, registry
from interlock.saga.records import declare
from interlock.saga.recovery import list_sagas
from interlock.stepping import step, step_all
from interlock.testing import Clock
from saga.taking import give_away

_serial = itertools.count()

LOG: list[tuple[Any, ...]] = []
ANSWERS: list[Any] = []


class Boom(Exception):
    """What goes wrong."""


@dataclass(frozen=True)
class Parcel:
    """A value that is built again from its declared type."""

    weight: int


def pack(parcel: Parcel, times: int = 1) -> Parcel:
    """Takes a typed value, and returns one."""
    LOG.append(("pack", parcel.weight))
    return Parcel(parcel.weight + times)


@compensable(outside="run")
def unpack(result: Parcel, parcel: Parcel) -> None:
    """Needs both."""
    LOG.append(("unpack", result, parcel))


@compensable(outside="run")
def unpack_plain(result: Any, parcel: Any) -> None:
    """Needs both, and says nothing of their types."""
    LOG.append(("unpack plain", result, parcel))


def act(name: str) -> str:
    """Does something."""
    LOG.append(("act", name))
    return name


def refuse(name: str) -> str:
    """Does nothing."""
    raise Boom(name)


def interrupt(name: str) -> str:
    """Nobody knows what it has done."""
    LOG.append(("interrupt", name))
    raise KeyboardInterrupt


@compensable(outside="run")
def undo(result: str) -> None:
    """Takes it back."""
    LOG.append(("undo", result))


@compensable(outside="run")
def undo_named(name: str) -> None:
    """Takes it back without knowing what came of it."""
    LOG.append(("undo named", name))


@compensable(outside="run")
def answer(key: str) -> Any:
    """A probe."""
    LOG.append(("asked", key))
    return ANSWERS.pop(0)


@compensable(kind="irreversible")
def mail(text: str) -> str:
    """Cannot be taken back."""
    LOG.append(("mail", text))
    return text


@compensable(kind="irreversible")
def letter(text: str) -> str:
    """Another one."""
    raise OSError("no post")


@pytest.fixture(autouse=True)
def empty() -> None:
    LOG.clear()
    ANSWERS.clear()


def taken() -> list[tuple[Any, ...]]:
    """What was logged since the last look."""
    found = list(LOG)
    LOG.clear()
    return found


def die(saga: Any) -> None:
    """As if the coordinator had died here."""
    saga._frame.course.recorder.journal.lost = True
    raise Boom


def stores(count: int = 2) -> list[Any]:
    """Store objects over one engine."""
    url = f"memory://edges-{next(_serial)}"
    return [interlock.sync.open(url, agent=f"a{number}") for number in range(count)]


class SmallPages(Wrapped):
    """Scans give two rows at a time."""

    async def scan(self, span: Any, at: Any = None, *, limit: int, **more: Any) -> Any:
        """Less than was asked for."""
        return await self.inner.scan(span, at, limit=2, **more)


# -- how much there is, and how old ------------------------------------------------------------------------------------
def test_a_journal_of_several_pages() -> None:
    backend = interlock.MemoryBackend()
    with interlock.sync.Store(SmallPages(backend), agent="a") as store:
        for number in range(3):
            with pytest.raises(Boom), store.saga("s", id=f"{number}") as saga:
                for name in "abcde":
                    saga.step(act, name, undo=undo)
                die(saga)
        taken()
        report = store.recover(older_than_seconds=0)
        assert report.undone == ("s/0", "s/1", "s/2")
        assert taken() == [("undo", name) for name in "edcba"] * 3


def test_a_recovery_with_a_limit() -> None:
    (store,) = stores(1)
    for number in range(3):
        with pytest.raises(Boom), store.saga("s", id=f"{number}") as saga:
            saga.step(act, "a", undo=undo)
            die(saga)
    assert store.recover(older_than_seconds=0, limit=2).undone == ("s/0", "s/1")
    assert [entry.id for entry in step_all(list_sagas(store._engine))] == ["2"]
    assert store.recover(older_than_seconds=0, limit=2).undone == ("s/2",)
    listed = step_all(list_sagas(store._engine, ended=True))
    assert [(entry.name, entry.id, entry.status, entry.run) for entry in listed] == [
        ("s", "0", "undone", 1), ("s", "1", "undone", 1), ("s", "2", "undone", 1),
    ]  # fmt: skip
    store.close()


def test_an_id_is_free_again_when_its_saga_has_expired() -> None:
    """Under other keys, although the run before cannot be replayed any more."""
    clock = Clock()
    store = interlock.testing.sync.open_store(clock=clock)
    for run in (1, 2):
        with store.saga("s", id="1") as saga:
            assert saga.step(act, "a", undo=undo) == "a"
            assert saga._frame.course.recorder.journal.run == run
        assert taken() == [("act", "a")]
        clock.advance(store._engine.idempotency_ttl_seconds + 1)
    store.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modules": "shop"}, "not one text"),
        ({"older_than_seconds": -1}, "from 0"),
        ({"older_than_seconds": "1"}, "from 0"),
    ],
)
def test_what_a_recovery_does_not_take(options: Any, said: str) -> None:
    (store,) = stores(1)
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        die(saga)
    with pytest.raises(UsageError, match=said):
        store.recover(**{"older_than_seconds": 0, **options})
    assert [entry.status for entry in step_all(list_sagas(store._engine))] == ["running"]
    store.close()


def test_one_that_is_to_be_resumed_is_left_alone() -> None:
    store, other = stores()
    with pytest.raises(Boom), store.saga("s", id="1", on_crash="resume") as saga:
        saga.step(act, "a", undo=undo)
        die(saga)
    report = other.recover(older_than_seconds=0)
    assert report == interlock.RecoveryReport(resumable=("s/1",))
    with other.saga("s", id="1", on_crash="resume") as saga:
        assert saga.step(act, "a", undo=undo) == "a"
        saga.step(act, "b", undo=undo)
    assert taken() == [("act", "a"), ("act", "b")]
    store.close()
    other.close()


def test_a_saga_that_cannot_be_read_stops_no_other() -> None:
    store, other = stores()
    for number in range(2):
        with pytest.raises(Boom), store.saga("s", id=f"{number}") as saga:
            saga.step(act, "a", undo=undo)
            die(saga)
    key = journal.PAGES.key("s", "0", 1, 0)
    ledger = Ledger(store._engine)
    record = step(ledger.read(journal.PAGES, [key])).records[0]
    step(ledger.commit({key: Put(b"\xc1")}, {key: record.expected}, agent="vandal", quiet=True))
    taken()
    report = other.recover(older_than_seconds=0)
    assert report.undone == ("s/1",)
    assert [text.split(":")[0] for text in report.unknown] == ["s/0"]
    assert "cannot be read" in report.unknown[0]
    assert taken() == [("undo", "a")]
    store.close()
    other.close()


# -- values ------------------------------------------------------------------------------------------------------------
def test_typed_values_are_built_again() -> None:
    """By a recovery from the undo's own annotations, by a replay from those of the step."""
    store, other = stores()
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        saga.step(pack, Parcel(1), undo=unpack)
        die(saga)
    assert other.recover(older_than_seconds=0).undone == ("s/1",)
    assert taken() == [("pack", 1), ("unpack", Parcel(2), Parcel(1))]
    for _ in range(2):
        with store.saga("s", id="2") as saga:
            assert saga.step(pack, Parcel(1), undo=unpack) == Parcel(2)
    assert taken() == [("pack", 1)]
    store.close()
    other.close()


def test_a_value_whose_type_nobody_declares_any_more_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The undo is not called with something else instead."""
    store, other = stores()
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        saga.step(act, "first", undo=undo)
        saga.step(pack, Parcel(1), undo=unpack)
        die(saga)
    taken()
    monkeypatch.setitem(registry._registered, registry.path_of(unpack), unpack_plain)
    report = other.recover(older_than_seconds=0)
    (name,) = report.dead_letters
    assert taken() == [("undo", "first")]
    (found,) = other.dead_letters.list()
    assert (found.dead_letter, "annotation is gone" in str(found.error)) == (name, True)
    monkeypatch.undo()
    assert other.dead_letters.retry(name)
    assert taken() == [("unpack", Parcel(2), Parcel(1))]
    store.close()
    other.close()


def odd(session: Any) -> object:
    """A transaction whose result cannot be kept."""
    session.write("n", 1)
    return object()


def test_what_cannot_be_kept_is_refused_before_it_is_done() -> None:
    (store,) = stores(1)
    with pytest.raises(ValueRefusedError, match="an argument of mail"), store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        saga.defer(mail, object())
    assert taken() == [("act", "a"), ("undo", "a")]
    with pytest.raises(ValueRefusedError, match="the result of odd"), store.saga("s", id="2") as saga:
        saga.transact(store.resource("goods"), odd)
    assert store.resource("goods").read("n") is None
    store.close()


def test_names_that_were_looked_up_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_TEMPLATES", 1)
    monkeypatch.setattr(recorded, "_templates", {})
    for _ in range(2):
        for fn, back in ((act, undo), (refuse, undo_named), (pack, unpack)):
            record = declare(fn, ("a",), {}, None, undo=back)
            facts = recorded._template(record).facts
            assert (facts["fn"], facts["undo"]) == (registry.path_of(fn), registry.path_of(back))
            assert len(recorded._templates) == 1


def undo_in_state(result: str, state: Any) -> None:
    """Needs what no other process has."""


def test_an_undo_of_a_durable_saga_has_no_state() -> None:
    (store,) = stores(1)
    with pytest.raises(UsageError, match="pass ids"), store.saga("s", id="1", state={"n": 1}) as saga:
        saga.step(act, "a", undo=undo_in_state)
    assert taken() == []
    store.close()


# -- what other processes find -----------------------------------------------------------------------------------------
def test_a_step_that_was_named_and_one_without_undo() -> None:
    store, other = stores()
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        saga.step(act, "a")
        saga.step(act, "b", undo=undo, step_id="second")
        die(saga)
    taken()
    assert other.recover(older_than_seconds=0).undone == ("s/1",)
    assert taken() == [("undo", "b")]
    store.close()
    other.close()


@pytest.mark.parametrize("said", [Happened("x"), NOT_HAPPENED, interlock.CANNOT_TELL, None])
def test_a_step_of_which_nobody_knows_is_asked_about(said: Any) -> None:
    """By the recovery, with the probe that the journal names; ``None``: there is none."""
    store, other = stores()
    with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") as saga:
        saga.step(act, "first", undo=undo)
        saga._frame.course.recorder.journal.lost = True
        saga.step(interrupt, "x", undo=undo, verify=None if said is None else answer)
    taken()
    if said is not None:
        ANSWERS.append(said)
    report = other.recover(older_than_seconds=0)
    log = [line for line in taken() if line[0] != "asked"]
    if said is NOT_HAPPENED:
        assert (report.undone, report.unknown, log) == (("s/1",), (), [("undo", "first")])
    elif isinstance(said, Happened):
        assert (report.undone, report.unknown, log) == (("s/1",), (), [("undo", "x"), ("undo", "first")])
    else:
        assert (report.undone, report.unknown, log) == ((), ("s/1: interrupt",), [("undo", "first")])
        assert len(report.dead_letters) == 1
    store.close()
    other.close()


def test_a_saga_that_another_recovery_has_ended_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = stores()
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        saga.step(act, "first", undo=undo)
        die(saga)
    taken()
    enter, reports = journal.Journal.enter, list[Any]()

    async def late(self: journal.Journal, *args: Any, **named: Any) -> bool:
        """Between the look at all sagas and this one's lease, the other recovery comes and goes."""
        if not reports:
            reports.append(None)
            reports.append(other.recover(older_than_seconds=0))
        return await enter(self, *args, **named)

    monkeypatch.setattr(journal.Journal, "enter", late)
    report = store.recover(older_than_seconds=0)
    assert reports[1].undone == ("s/1",)
    assert (report.undone, report.unknown, report.live) == ((), (), ())
    assert taken() == [("undo", "first")]
    store.close()
    other.close()


def test_a_step_of_which_nobody_knows_may_be_undone_all_the_same() -> None:
    store, other = stores()
    with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") as saga:
        saga._frame.course.recorder.journal.lost = True
        saga.step(interrupt, "x", undo=undo_named, undo_unknown=True)
    taken()
    assert other.recover(older_than_seconds=0).undone == ("s/1",)
    assert taken() == [("undo named", "x")]
    store.close()
    other.close()


def test_who_resumes_calls_what_has_not_happened() -> None:
    store, other = stores()
    with pytest.raises(KeyboardInterrupt), store.saga("s", id="1", on_crash="resume") as saga:
        saga._frame.course.recorder.journal.lost = True
        saga.step(interrupt, "x", undo=undo, verify=answer)
    taken()
    ANSWERS.append(NOT_HAPPENED)
    with pytest.raises(KeyboardInterrupt), other.saga("s", id="1", on_crash="resume") as saga:
        saga._frame.course.recorder.journal.lost = True
        saga.step(interrupt, "x", undo=undo, verify=answer)
    assert [line[0] for line in taken()] == ["asked", "interrupt"]
    ANSWERS.append(Happened("found"))
    with other.saga("s", id="1", on_crash="resume") as saga:
        assert saga.step(interrupt, "x", undo=undo, verify=answer) == "found"
    assert [line[0] for line in taken()] == ["asked"]
    store.close()
    other.close()


@pytest.mark.parametrize("verify", [None, answer], ids=["no probe", "a probe that cannot tell"])
def test_who_resumes_where_nobody_knows_does_not_go_on(verify: Any) -> None:
    store, other = stores()
    ANSWERS.extend([CANNOT_TELL] * 4)
    with pytest.raises(KeyboardInterrupt), store.saga("s", id="1", on_crash="resume") as saga:
        saga.step(act, "a", undo=undo)
        saga._frame.course.recorder.journal.lost = True
        saga.step(interrupt, "x", undo=undo, verify=verify)
    assert [line[0] for line in taken()] == ["act", "interrupt"]
    with (
        pytest.raises(StepUnknownError, match="nobody knows whether it") as raised,
        other.saga("s", id="1", on_crash="resume") as saga,
    ):
        saga.step(act, "a", undo=undo)
        saga.step(interrupt, "x", undo=undo, verify=verify)
    assert raised.value.maybe_committed
    assert [line for line in taken() if line[0] != "asked"] == [("undo", "a")]
    assert saga.report.unknown == ("interrupt",)
    assert not saga.report.clean
    assert [letter.step for letter in other.dead_letters.list()] == ["interrupt"]
    store.close()
    other.close()


def test_who_resumes_calls_what_had_failed() -> None:
    store, other = stores()
    with pytest.raises(Boom), store.saga("s", id="1", on_crash="resume") as saga:
        with pytest.raises(Boom):
            saga.step(refuse, "a", undo=undo)
        die(saga)
    with other.saga("s", id="1", on_crash="resume") as saga, pytest.raises(Boom):
        saga.step(refuse, "a", undo=undo)
    assert taken() == []
    store.close()
    other.close()


def test_a_step_that_fails_by_its_own_word_has_nothing_to_undo() -> None:
    store, other = stores()
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        with pytest.raises(Boom):
            saga.step(refuse, "b", undo=undo_named)
    page = step(Ledger(store._engine).read(journal.PAGES, [journal.PAGES.key("s", "1", 1, 0)])).records[0].value
    assert [page[place][1]["status"] for place in range(2)] == ["done", "failed"]
    with pytest.raises(Boom), store.saga("s", id="2") as saga:
        saga.step(act, "a", undo=undo)
        with pytest.raises(Boom):
            saga.step(refuse, "b", undo=undo_named)
        die(saga)
    taken()
    assert other.recover(older_than_seconds=0).undone == ("s/2",)
    assert taken() == [("undo", "a")]
    store.close()
    other.close()


def test_two_steps_of_one_name_are_refused() -> None:
    (store,) = stores(1)
    with pytest.raises(UsageError, match="two steps"), store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo, step_id="one")
        saga.step(act, "b", undo=undo, step_id="one")
    assert taken() == [("act", "a"), ("undo", "a")]
    store.close()


# -- deferred acts -----------------------------------------------------------------------------------------------------
def test_a_replay_that_defers_something_else_is_a_mismatch() -> None:
    (store,) = stores(1)
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        saga.defer(mail, "hello")
    taken()
    with pytest.raises(JournalMismatchError, match="the program letter"), store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        saga.defer(letter, "hello")
    assert taken() == []
    store.close()


def test_a_deferred_act_that_this_process_does_not_know_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = stores()
    with pytest.raises(StepFailedError), store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        saga.defer(letter, "hello")
        saga.defer(mail, "bye")
    taken()
    path = registry.path_of(letter)
    with monkeypatch.context() as patch:
        patch.delitem(registry._registered, path)
        report = other.recover(older_than_seconds=0)
    assert (report.missing_undo, report.finished, report.undone) == ((path,), (), ())
    assert taken() == []  # nor what comes behind it
    monkeypatch.setitem(registry._registered, path, mail)
    assert other.recover(older_than_seconds=0).finished == ("s/1",)
    assert taken() == [("mail", "hello"), ("mail", "bye")]
    store.close()
    other.close()


FAILS: list[int] = []
BEGUN: list[asyncio.Event] = []


@compensable(kind="irreversible")
async def slow_mail(text: str) -> str:
    """Takes several passes of the loop."""
    if FAILS:
        raise OSError("no post")
    BEGUN.pop().set()
    for _ in range(5):
        await asyncio.sleep(0)
    LOG.append(("mail", text))
    return text


async def test_a_recovery_that_is_cancelled_ends_the_acts_that_it_has_begun() -> None:
    async with interlock.open(f"memory://edges-{next(_serial)}", agent="a") as store:
        FAILS.append(1)
        with pytest.raises(StepFailedError):
            async with store.saga("s", id="1") as saga:
                saga.defer(slow_mail, "x")
        FAILS.clear()
        begun = asyncio.Event()
        BEGUN.append(begun)
        recovery = asyncio.create_task(store.recover(older_than_seconds=0))
        await begun.wait()
        recovery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recovery
        assert taken() == [("mail", "x")]
        assert await store.recover(older_than_seconds=0) == interlock.RecoveryReport()


@pytest.mark.parametrize("said", [Happened("x"), NOT_HAPPENED, interlock.CANNOT_TELL])
def test_a_deferred_act_that_was_interrupted_is_asked_about(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator died in the middle of it: it is run again only if it has not happened."""
    store, other = stores()
    begun = recording.Recorder.begin_deferred

    async def begin_and_die(self: Any, frame: Any, record: Any) -> bool:
        await begun(self, frame, record)
        self.journal.lost = True
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recording.Recorder, "begin_deferred", begin_and_die)
        ANSWERS.append(interlock.CANNOT_TELL)
        with pytest.raises(StepFailedError), store.saga("s", id="1") as saga:
            saga.defer(mail, "x", verify=answer)
    taken()
    ANSWERS[:] = [said, said]
    report = other.recover(older_than_seconds=0)
    log = [line for line in taken() if line[0] != "asked"]
    if said is interlock.CANNOT_TELL:
        assert (report.finished, report.unknown, log) == ((), ("s/1: mail",), [])
        assert len(report.dead_letters) == 1
    else:
        assert (report.finished, report.unknown) == (("s/1",), ())
        assert log == ([("mail", "x")] if said is NOT_HAPPENED else [])
    store.close()
    other.close()


# -- engines -----------------------------------------------------------------------------------------------------------
def add(session: Any, amount: int) -> int:
    """A transaction."""
    value: int = session.read("n", 0) + amount
    session.write("n", value)
    return value


@pytest.mark.parametrize("fault", ["before", "after"])
def test_the_reply_to_a_transaction_is_lost(fault: str) -> None:
    """Its record is known all the same, and the saga goes on and back from it."""
    backend = LostReplies(interlock.MemoryBackend(), {})
    with interlock.sync.Store(backend, agent="a") as store:
        goods = store.resource("goods")
        with pytest.raises(Boom), store.saga("s", id="1") as saga:
            saga.step(act, "a", undo=undo)
            backend.plan[len(backend.commits) + 1] = fault
            assert saga.transact(goods, add, 5) == 5
            saga.step(act, "b", undo=undo)
            raise Boom
        assert saga.report.clean
        assert goods.read("n") is None
        assert taken()[2:] == [("undo", "b"), ("undo", "a")]


class WithoutLeaf(Wrapped):
    """A backend that can only be awaited."""

    suspends = property(lambda self: True)

    def blocking(self) -> Any:
        """There is none."""
        return self


def test_a_plain_step_needs_a_backend_that_can_block() -> None:
    async def main() -> None:
        store = interlock.Store(WithoutLeaf(interlock.MemoryBackend()), agent="a")
        with pytest.raises(UsageError, match="make the function async"):
            async with store.saga("s", id="1") as saga:
                await saga.step(act, "a", undo=undo)
                assert taken() == [("act", "a")]
                tool("b")
        assert taken() == [("undo", "a")]
        await store.close()

    asyncio.run(main())


@compensable(undo=undo)
def tool(name: str) -> str:
    """A plain tool."""
    return act(name)


def test_the_engine_is_gone_when_the_saga_is_undone() -> None:
    """What stands is reported; the journal says enough to undo it later."""
    backend = LostReplies(interlock.MemoryBackend(), {})
    with interlock.sync.Store(backend, agent="a") as store:
        with pytest.raises(CompensationError) as caught, store.saga("s", id="1") as saga:
            saga.step(act, "a", undo=undo)
            backend.plan[len(backend.commits) + 1] = interlock.BackendUnavailableError("the server has gone")
            raise Boom
        assert [failed.step for failed in caught.value.failures] == ["writing the journal"]
        assert isinstance(caught.value.__cause__, Boom)
        assert taken() == [("act", "a")]
        assert store.recover(older_than_seconds=0).undone == ("s/1",)
        assert taken() == [("undo", "a")]


def test_a_coordinator_that_was_taken_over_while_it_undoes() -> None:
    store, other = stores()
    saga = store.saga("s", id="1")
    with pytest.raises(Boom), saga as scope:
        scope.step(act, "a", undo=undo)
        give_away(saga)
        assert other.recover(older_than_seconds=0).undone == ("s/1",)
        raise Boom
    assert taken() == [("act", "a"), ("undo", "a")]
    assert not scope.report.clean
    store.close()
    other.close()


def test_an_earlier_run_that_cannot_be_ended_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = stores()
    with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") as saga:
        saga.step(interrupt, "x", undo=undo)
    with pytest.raises(SagaClosedError, match="nobody knows"), other.saga("s", id="1"):
        raise AssertionError("the body ran")
    store.close()
    other.close()
