"""Durable sagas: what is journalled, replayed, recovered and refused, on memory and SQLite and in both colours."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

import interlock
import interlock.sync
from cases.faults import Counted
from interlock import (
    CompensationError,
    JournalMismatchError,
    LeaseUnavailableError,
    NotFoundError,
    SagaClosedError,
    UsageError,
    ValueRefusedError,
    compensable,
)
from interlock.layers.ledger import Ledger
from interlock.saga import journal, recorded, registry
from interlock.saga.records import declare
from saga.taking import give_away

_serial = itertools.count()

LOG: list[tuple[Any, ...]] = []
BROKEN: set[str] = set()


class Boom(Exception):
    """What goes wrong."""


@compensable(outside="run")
def release(result: str, sku: str) -> None:
    """Takes a reservation back."""
    LOG.append(("release", result, sku))


def reserve(sku: str, quantity: int) -> str:
    """Reserves."""
    LOG.append(("reserve", sku, quantity))
    return f"r-{sku}"


@compensable(outside="run")
def refund(result: str, idempotency_key: str) -> None:
    """Gives money back."""
    if "refund" in BROKEN:
        raise OSError("the bank is closed")
    LOG.append(("refund", result, idempotency_key))


def charge(cents: int, idempotency_key: str = "") -> str:
    """Takes money."""
    if "charge" in BROKEN:
        raise KeyboardInterrupt
    LOG.append(("charge", cents, idempotency_key))
    return "ch-1"


@compensable(kind="irreversible")
def ship(order: str) -> str:
    """Sends a parcel."""
    if "ship" in BROKEN:
        raise OSError("no lorry")
    LOG.append(("ship", order))
    return f"parcel of {order}"


def plain_undo(result: str) -> None:
    """An undo that is not declared as compensable."""
    LOG.append(("plain undo", result))


@pytest.fixture(autouse=True)
def empty_log() -> None:
    LOG.clear()
    BROKEN.clear()


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    with interlock.sync.open(url, agent="shop") as opened:
        yield opened


def place(store: Any, order: str, *, fails: bool = False, cents: int = 5, **options: Any) -> Any:
    """An order."""
    with store.saga("order", id=order, **options) as saga:
        saga.step(reserve, "sku", 2, undo=release)
        saga.step(charge, cents, undo=refund, idempotency_key=f"charge:{order}")
        parcel = saga.defer(ship, order)
        if fails:
            raise Boom
    return parcel.result()


DONE = [("reserve", "sku", 2), ("charge", 5, "charge:o1"), ("ship", "o1")]


def taken() -> list[tuple[Any, ...]]:
    """What was logged since the last look."""
    found = list(LOG)
    LOG.clear()
    return found


def test_a_saga_that_committed_is_replayed(store: Any, url: str) -> None:
    assert place(store, "o1") == "parcel of o1"
    assert taken() == DONE
    with interlock.sync.open(url, agent="another") as other:
        assert place(other, "o1") == "parcel of o1"
    assert taken() == []
    assert store.recover(older_than_seconds=0) == interlock.RecoveryReport()


def test_what_a_replay_does_differently_is_a_mismatch(store: Any) -> None:
    place(store, "o1")
    taken()
    with pytest.raises(JournalMismatchError, match="other arguments"):
        place(store, "o1", cents=7)
    with pytest.raises(JournalMismatchError, match="the program calls"), store.saga("order", id="o1") as saga:
        saga.step(charge, 5)
    with pytest.raises(JournalMismatchError, match="ended without"), store.saga("order", id="o1"):
        pass
    with pytest.raises(JournalMismatchError, match="not among"), store.saga("order", id="o1") as saga:
        saga.step(reserve, "sku", 2, step_id="new")
    assert taken() == []  # and nothing of what was committed is undone
    assert place(store, "o1") == "parcel of o1"


def test_an_id_that_was_undone_begins_anew_under_other_keys(store: Any) -> None:
    with pytest.raises(Boom):
        place(store, "o1", fails=True)
    assert taken() == [*DONE[:2], ("refund", "ch-1", "charge:o1:undo"), ("release", "r-sku", "sku")]
    assert place(store, "o1") == "parcel of o1"
    assert taken() == [DONE[0], ("charge", 5, "charge:o1#2"), DONE[2]]


def test_while_a_coordinator_lives_nobody_else_enters_or_recovers(store: Any, url: str) -> None:
    with (
        store.saga("order", id="o1") as saga,
        interlock.sync.open(url, agent="rival") as rival,
        ThreadPoolExecutor(1) as pool,
    ):
        saga.step(reserve, "sku", 2, undo=release)
        with pytest.raises(LeaseUnavailableError):
            pool.submit(place, rival, "o1").result()
        assert rival.recover(older_than_seconds=0).live == ("order/o1",)
        assert rival.recover(older_than_seconds=60).live == ("order/o1",)
        pool.submit(place, rival, "o2").result()  # another saga is another matter
    assert ("release", "r-sku", "sku") not in LOG


def test_who_takes_over_knows_the_keys_that_were_made(store: Any, url: str) -> None:
    """They are not in the records; in the second run they are others than in the first."""
    keys = []
    for _ in range(2):
        saga = store.saga("order", id="o1")
        with pytest.raises(SagaClosedError, match="taken over"), saga as scope:
            scope.step(charge, 5, undo=refund)
            scope.step(charge, 6, undo=refund, step_id="tip")
            give_away(saga)
            with interlock.sync.open(url, agent="rival") as rival:
                assert rival.recover(older_than_seconds=0).undone == ("order/o1",)
            one, other, *undone = [each[-1] for each in taken()]
            assert undone == [f"{other}:undo", f"{one}:undo"]
            keys += [one, other]
            scope.step(charge, 7)
    assert keys == ["order/o1:0", "order/o1:tip", "order/o1:0#2", "order/o1:tip#2"]


def test_a_coordinator_that_was_taken_over_does_nothing_more(store: Any, url: str) -> None:
    """It is given away as if its coordinator had died; the next write tells it, and it undoes nothing."""
    saga = store.saga("order", id="o1")
    with pytest.raises(SagaClosedError, match="taken over"), saga as scope:
        scope.step(reserve, "sku", 2, undo=release)
        give_away(saga)
        with interlock.sync.open(url, agent="rival") as rival:
            assert rival.recover(older_than_seconds=0).undone == ("order/o1",)
        assert taken()[1:] == [("release", "r-sku", "sku")]
        scope.step(charge, 5, undo=refund)
    assert taken() == []
    assert not scope.report.clean


def test_a_coordinator_that_was_taken_over_before_its_first_step_takes_none(store: Any, url: str) -> None:
    """Both have found nothing; only the saga's own record, which the other one has written, tells it."""
    with (
        pytest.raises(SagaClosedError, match="taken over"),
        store.saga("order", id="o1") as scope,
        interlock.sync.open(url, agent="rival") as rival,
        ThreadPoolExecutor(1) as pool,
    ):
        assert pool.submit(place, rival, "o1").result() == "parcel of o1"
        taken()
        scope.step(reserve, "sku", 2, undo=release)
    assert taken() == []
    assert place(store, "o1") == "parcel of o1"
    assert taken() == []  # it was replayed


def test_a_failed_undo_is_a_dead_letter_until_it_succeeds(store: Any, url: str) -> None:
    BROKEN.add("refund")
    with pytest.raises(CompensationError) as caught:
        place(store, "o1", fails=True)
    (failed,) = caught.value.failures
    assert failed.saga_id == "o1"
    assert [letter.dead_letter for letter in store.dead_letters.list()] == [failed.dead_letter]
    assert taken()[2:] == [("release", "r-sku", "sku")]
    with interlock.sync.open(url, agent="cron") as cron:  # the process starts again
        assert cron.recover(older_than_seconds=0).dead_letters == (failed.dead_letter,)
        assert not cron.dead_letters.retry(failed.dead_letter)
        with pytest.raises(SagaClosedError, match="dead_letters"):
            place(cron, "o1")
        assert taken() == []
        BROKEN.clear()
        assert cron.recover(older_than_seconds=0).undone == ("order/o1",)
        assert taken() == [("refund", "ch-1", "charge:o1:undo")]  # only what had failed
        assert list(cron.dead_letters.list()) == []
        with pytest.raises(NotFoundError):
            cron.dead_letters.retry(failed.dead_letter)


@pytest.mark.parametrize("how", ["retry", "skip", "done"])
def test_dead_letters_can_be_dealt_with_by_hand(store: Any, how: str) -> None:
    BROKEN.add("refund")
    with pytest.raises(CompensationError):
        place(store, "o1", fails=True)
    BROKEN.clear()
    taken()
    (letter,) = store.dead_letters.list()
    if how == "retry":
        assert store.dead_letters.retry(letter.dead_letter)
    elif how == "skip":
        store.dead_letters.skip(letter.dead_letter, reason="too small to bother")
    else:
        store.dead_letters.done(letter.dead_letter)
    assert taken() == ([("refund", "ch-1", "charge:o1:undo")] if how == "retry" else [])
    assert list(store.dead_letters.list()) == []
    assert store.recover(older_than_seconds=0) == interlock.RecoveryReport()


def test_an_irreversible_act_that_fails_keeps_the_saga_open_forwards(store: Any) -> None:
    BROKEN.add("ship")
    with pytest.raises(interlock.StepFailedError):
        place(store, "o1")
    assert taken() == DONE[:2]
    assert store.recover(older_than_seconds=0).dead_letters == ("order/o1/1/2",)
    BROKEN.clear()
    assert store.recover(older_than_seconds=0).finished == ("order/o1",)
    assert taken() == DONE[2:]
    assert place(store, "o1") == "parcel of o1"


def test_an_interrupted_step_is_unknown_in_the_journal_too(store: Any) -> None:
    BROKEN.add("charge")
    with pytest.raises(KeyboardInterrupt), store.saga("order", id="o1") as saga:
        saga.step(reserve, "sku", 2, undo=release)
        saga.step(charge, 5, undo=refund)
    assert saga.report.unknown == ("charge",)
    assert taken()[1:] == [("release", "r-sku", "sku")]
    assert [letter.step for letter in store.dead_letters.list()] == ["charge"]


def test_only_functions_that_can_be_found_again(store: Any) -> None:
    def local(result: Any) -> None:
        """Nobody else can find it."""

    for undo in (local, lambda result: None, [].append):
        with pytest.raises(UsageError, match="found again"), store.saga("order", id="o1") as saga:
            saga.step(reserve, "sku", 2, undo=undo)
    with pytest.raises(UsageError, match="found again"), store.saga("order", id="o1") as saga:
        saga.step(lambda: 1)
    with pytest.raises(ValueRefusedError), store.saga("order", id="o1") as saga:
        saga.step(reserve, object(), 2, undo=release)
    assert taken() == []


def test_an_undo_that_this_process_does_not_know_is_named(store: Any, url: str) -> None:
    with pytest.raises(Boom), store.saga("order", id="o1", lease_seconds=1) as saga:
        saga.step(reserve, "sku", 2, undo=plain_undo)
        saga._frame.course.recorder.journal.lost = True  # as if it had died here
        raise Boom
    taken()
    path = registry.path_of(plain_undo)
    del registry._registered[path]
    report = store.recover(older_than_seconds=0)
    assert report.missing_undo == (path,)
    assert len(report.dead_letters) == 1
    report = store.recover(older_than_seconds=0, modules=["somewhere.else"], undo={path: plain_undo})
    assert report.undone == ("order/o1",)
    assert taken() == [("plain undo", "r-sku")]


def test_a_durable_saga_is_not_nested_but_others_nest_in_it(store: Any) -> None:
    with interlock.Saga(), pytest.raises(UsageError, match="nested"), store.saga("order", id="o1"):
        pass
    with pytest.raises(Boom), store.saga("order", id="o1") as saga:
        with interlock.Saga() as inner:
            inner.step(reserve, "a", 1, undo=release)
        with pytest.raises(LookupError), saga.savepoint():
            saga.step(reserve, "b", 1, undo=release)
            raise LookupError
        raise Boom
    assert [line[0] for line in taken()] == ["reserve", "reserve", "release", "release"]
    assert store.recover(older_than_seconds=0) == interlock.RecoveryReport()


def test_the_names_of_functions_are_looked_up_once_for_those_that_stay() -> None:
    """The same functions have the same names, others their own, and nothing keeps a function that would go."""

    def names(fn: Any, undo: Any) -> Any:
        return recorded._template(declare(fn, ("a", 1), {}, None, undo=undo))

    first = names(reserve, release)
    assert (first.facts["fn"], first.facts["undo"]) == (registry.path_of(reserve), registry.path_of(release))
    assert names(reserve, release) is first
    assert names(reserve, release_any).undo == registry.path_of(release_any)
    passing = weakref.ref(made := functools.partial(reserve))
    assert names(made, release).facts["fn"] == first.facts["fn"]
    del made
    gc.collect()
    assert passing() is None
    for fn, undo in ((lambda sku, count: None, release), (reserve, lambda result: None)):
        for _ in range(2):
            with pytest.raises(UsageError, match="found again"):
                names(fn, undo)


def test_a_step_costs_one_commit() -> None:
    counted = Counted(interlock.MemoryBackend())
    with interlock.sync.Store(counted, agent="a") as store:
        with store.saga("order", id="o1") as saga:
            saga.step(reserve, "sku", 1, undo=release)
            before = len(counted.commits)
            saga.step(reserve, "sku", 2, undo=release)
            saga.step(reserve, "sku", 3, undo=release)
            durable = [commit for commit in counted.commits[before:] if commit.durable]
            assert len(durable) == 2  # what the acts hang on; it brings the results before it
            assert [len(commit.writes) for commit in durable] == [1, 1]
            assert set(durable[1].guards) > set(durable[1].writes)  # and expects the saga's own record


async def test_in_asynchronous_code_it_is_the_same(url: str) -> None:
    async def act(name: str) -> str:
        await asyncio.sleep(0)
        return reserve(name, 1)

    named = compensable(name=f"durable.act.{next(_serial)}")(act)
    async with interlock.open(url, agent="shop") as store:
        with pytest.raises(asyncio.CancelledError):
            async with store.saga("order", id="o1") as saga:
                await saga.step(reserve, "sku", 2, undo=release)
                await saga.parallel(
                    interlock.Step(named, "a", undo=compensable(name=f"durable.undo.{next(_serial)}")(cancel)),
                    interlock.Step(named, "b", undo=release_any),
                )
                interlock.sync.current_saga().step(reserve, "x", 1, undo=release)  # type: ignore[union-attr]
                raise asyncio.CancelledError
        logged = sorted(line[0] for line in taken())
        assert logged == ["cancel", *["release"] * 3, *["reserve"] * 4]
        assert saga.report.clean
        assert await store.recover(older_than_seconds=0) == interlock.RecoveryReport()
        assert [letter async for letter in store.dead_letters.list()] == []
        with pytest.raises(UsageError, match="asynchronous"), store.saga("order", id="o2"):
            pass


@compensable(undo=release)
def tool(sku: str) -> str:
    """A plain tool, which is called like any other function."""
    return reserve(sku, 1)


@compensable(undo=release)
async def async_tool(sku: str) -> str:
    """The same, to be awaited."""
    return reserve(sku, 1)


async def tools(url: str) -> None:
    """Plain and asynchronous tools in one saga, in tasks' and threads' contexts; undone by another store object."""
    async with interlock.open(url, agent="shop") as store, interlock.open(url, agent="cron") as cron:
        with pytest.raises(Boom):
            async with store.saga("order", id="o1") as saga:
                assert tool("a") == "r-a"
                assert await async_tool("b") == "r-b"
                assert tool("c") == "r-c"
                saga._frame.course.recorder.journal.lost = True  # type: ignore[union-attr]  # as if it had died here
                raise Boom
        assert (await cron.recover(older_than_seconds=0)).undone == ("order/o1",)
        assert [line[-1] for line in taken() if line[0] == "release"] == ["c", "b", "a"]
        for again in (False, True):
            async with store.saga("order", id="o2"):
                assert tool("a") == "r-a"
                assert await async_tool("b") == "r-b"
            assert len(taken()) == (0 if again else 2)


async def test_plain_tools_in_an_asynchronous_durable_saga(url: str) -> None:
    await tools(url)
    async with interlock.open(url, agent="shop") as store:
        with pytest.raises(Boom):
            async with store.saga("order", id="o3"):
                assert await asyncio.to_thread(tool, "x") == "r-x"
                raise Boom
        assert [line[0] for line in taken()] == ["reserve", "release"]


@pytest.mark.parametrize("scheme", ["memory://trio{}", "sqlite:///{}"])
def test_durable_sagas_on_trio(tmp_path: Path, scheme: str) -> None:
    trio.run(tools, scheme.format(_place(tmp_path, scheme)))

    async def cancelled(url: str) -> None:
        async with interlock.open(url, agent="shop") as store:
            with trio.move_on_after(3600) as scope:
                async with store.saga("order", id="o4"):
                    await async_tool("a")
                    scope.cancel()
                    await trio.sleep_forever()
            assert scope.cancelled_caught
            assert await store.recover(older_than_seconds=0) == interlock.RecoveryReport()

    trio.run(cancelled, scheme.format(_place(tmp_path, scheme)))
    assert [line[0] for line in taken()] == ["reserve", "release"]


def _place(folder: Path, scheme: str) -> str:
    number = next(_serial)
    return str(number) if scheme.startswith("memory") else str(folder / f"trio{number}.db")


async def cancel(result: str) -> None:
    """An asynchronous undo."""
    await asyncio.sleep(0)
    LOG.append(("cancel", result))


@compensable(outside="run")
def release_any(result: str) -> None:
    """Another one."""
    LOG.append(("release", result))


def test_two_recoverers_never_undo_twice(url: str) -> None:
    with interlock.sync.open(url, agent="shop") as store:
        for number in range(6):
            with pytest.raises(Boom), store.saga("order", id=f"o{number}") as saga:
                saga.step(reserve, f"sku{number}", 1, undo=release)
                saga._frame.course.recorder.journal.lost = True
                raise Boom
        taken()
        with interlock.sync.open(url, agent="second") as second, ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(lambda each: each.recover(older_than_seconds=0), (store, second)))
        undone = sorted(title for report in reports for title in report.undone)
        assert undone == [f"order/o{number}" for number in range(6)]
        assert sorted(taken()) == [("release", f"r-sku{number}", f"sku{number}") for number in range(6)]


def test_a_letter_of_a_saga_that_committed_does_not_undo_it(store: Any) -> None:
    BROKEN.add("refund")
    with store.saga("order", id="o1") as saga:
        saga.step(reserve, "sku", 1, undo=release)
        with pytest.raises(CompensationError), interlock.Saga() as inner:
            inner.step(charge, 5, undo=refund)
            raise Boom
    assert not saga.report.clean
    taken()
    (letter,) = store.dead_letters.list()
    BROKEN.clear()
    assert store.dead_letters.retry(letter.dead_letter)
    assert [line[0] for line in taken()] == ["refund"]
    assert store.recover(older_than_seconds=0) == interlock.RecoveryReport()


def test_what_has_ended_expires(store: Any) -> None:
    place(store, "o1")
    with pytest.raises(Boom):
        place(store, "o2", fails=True)
    for kind in (journal.SAGAS, journal.PAGES):
        found = interlock.stepping.step(Ledger(store._engine).scan(kind)).records
        assert found
        assert all(record.entry.expires_at is not None for record in found)


def test_closing() -> None:
    with closing(interlock.sync.open("memory://", agent="a")) as store:
        pass
    with pytest.raises(UsageError, match="closed"), store.saga("order", id="o1"):
        pass
