"""What a coordinator writes of its saga, when a commit fails, is not heard of, or is refused."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest

import interlock
import interlock.sync
from cases.faults import Broken, Counted, Hooked, Pausing, is_commit
from interlock import BackendUnavailableError, CompensationError, LimitExceededError, ValueRefusedError, codec
from interlock.layers.ledger import Ledger
from interlock.saga import pages
from interlock.saga.journal import SAGAS
from interlock.saga.pages import encoded
from interlock.saga.presence import coordinators_of
from interlock.stepping import step

_serial = itertools.count()


def act(name: str) -> str:
    return name


def undo(result: str) -> None:
    """Nothing."""


def opened(kind: Any) -> tuple[Any, interlock.sync.Store]:
    """A store over a backend that misbehaves, and the backend."""
    backend = kind(interlock.MemoryBackend(f"saga-writing-{next(_serial)}"))
    return backend, interlock.sync.Store(backend, agent="a")


def journal_of(saga: Any) -> Any:
    """What writes."""
    return saga._frame.course.recorder.journal


def test_a_saga_whose_record_cannot_be_read_is_not_coordinated() -> None:
    errors: list[Exception] = [BackendUnavailableError("the server has gone")]

    def hook(name: str, args: tuple[Any, ...]) -> None:
        if name == "read" and SAGAS.key("s", "1") in args[0] and errors:
            raise errors.pop()

    _, store = opened(lambda inner: Hooked(inner, hook))
    with pytest.raises(BackendUnavailableError), store.saga("s", id="1"):
        raise AssertionError
    assert not coordinators_of(store._engine)._held
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
    store.close()


def test_a_saga_that_cannot_be_given_back_is_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Its owner's pulse ends by itself."""
    backend, store = opened(Broken)
    with (
        caplog.at_level(logging.WARNING, "interlock"),
        pytest.raises(CompensationError),
        store.saga("s", id="1") as saga,
    ):
        saga.step(act, "a", undo=undo)
        backend.broken.append(BackendUnavailableError("the server has gone"))
    assert "saga s/1 could not be given back" in caplog.text
    assert not coordinators_of(store._engine)._held
    backend.broken.clear()
    store.close()


def test_a_step_that_could_not_be_written_anew_is_what_it_was() -> None:
    backend, store = opened(Broken)
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        journal = journal_of(saga)
        ((place, before),) = journal.steps.items()
        backend.broken.append(BackendUnavailableError("the server has gone"))
        with pytest.raises(BackendUnavailableError):
            step(journal.write_step(place, {"error": "x"}))
        assert journal.steps[place] == before
        backend.broken.clear()
    store.close()


def test_pages_that_come_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps a saga has, all are read."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 1)
    scan, parts = Ledger.scan, []

    async def one(self: Ledger, *args: Any, **named: Any) -> Any:
        found = await scan(self, *args, **{**named, "limit": 1})
        parts.append(found.more)
        return found

    _, store = opened(lambda inner: inner)
    with store.saga("s", id="1") as saga:
        for name in "abc":
            saga.step(act, name, undo=undo, step_id=name)
        journal = journal_of(saga)
        step(journal.flush())
        steps = dict(journal.steps)
        monkeypatch.setattr(Ledger, "scan", one)
        step(journal.load())
        assert journal.steps == steps
        assert parts == [True, True, False]
    store.close()


def test_a_commit_that_does_not_know_its_version_is_looked_at_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a reply that was lost, when somebody has written the record since."""
    gather, unknown = Ledger.gather, [True, True]

    async def forgetful(self: Ledger, *args: Any, **named: Any) -> Any:
        done = await gather(self, *args, **named)
        return done if not unknown or not unknown.pop() else type(done)(done.transaction, None, done.token)

    _, store = opened(lambda inner: inner)
    monkeypatch.setattr(Ledger, "gather", forgetful)
    with store.saga("s", id="1") as saga:
        for name in "abc":
            saga.step(act, name, undo=undo, step_id=name)
        assert not unknown
    assert step(Ledger(store._engine).read(SAGAS, [SAGAS.key("s", "1")])).records[0].value["status"] == "committed"
    store.close()


def test_five_usual_steps_fit_into_a_row_that_sqlite_keeps_in_one_piece() -> None:
    """The end of a longer one lies in a page of its own, which each commit would write once more."""
    _, store = opened(lambda inner: inner)
    with store.saga("order", id="7e8b1c52-2c39-4a53-9b0e-6a1f3d2c4b5a") as saga:
        for number in range(5):
            saga.step(act, f"{number}", undo=undo)
        (page,) = journal_of(saga)._pages
        assert len(page.key) + len(page.put().value) < 950
    store.close()


def test_a_step_that_is_larger_than_a_value_may_be_is_refused() -> None:
    with pytest.raises(LimitExceededError):
        encoded(("x", 1), {"result": b"x" * codec.VALUE_BYTES})


def test_what_the_encoder_does_not_know_itself_is_stored_exactly_or_refused() -> None:
    step = {"result": 1 << 70}
    assert codec.thaw(encoded(1, step)) == (1, step)
    with pytest.raises(ValueRefusedError, match=r"\[1\]\.result"):
        encoded(1, {"result": "\ud800"})


def test_a_saga_that_is_coordinated_here_is_not_recovered_here() -> None:
    _, store = opened(lambda inner: inner)
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        assert store.recover(older_than_seconds=0).live == ("s/1",)
    store.close()


async def act_later(name: str) -> str:
    """A step that is awaited."""
    return name


async def undo_later(result: str) -> None:
    """Nothing."""


def test_who_waited_for_a_commit_that_failed_goes_on() -> None:
    """The first step of a saga is being written, and others wait for that; it fails, and they write what they need."""
    errors: list[Exception] = []

    def hook(name: str, args: tuple[Any, ...]) -> None:
        if is_commit(name, args) and SAGAS.key("s", "1") in args[0].writes and errors:
            raise errors.pop()

    async def both() -> None:
        backend = Pausing(Hooked(interlock.MemoryBackend(), hook))
        async with interlock.Store(backend, agent="a") as store, store.saga("s", id="1") as saga:
            errors.append(BackendUnavailableError("the server has gone"))
            steps = [saga.step(act_later, name, undo=undo_later, step_id=name) for name in "ab"]
            first, second = await asyncio.gather(*steps, return_exceptions=True)
            assert isinstance(first, BackendUnavailableError)
            assert second == "b"

    asyncio.run(both())


def test_what_no_commit_has_carried_is_as_old_as_its_first_change() -> None:
    _, store = opened(lambda inner: inner)
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        journal = journal_of(saga)
        before = journal.lag()
        assert before
        journal._note_lag()
        assert journal.lag() == before
        step(journal.flush())
        assert not journal.lag()
    store.close()


def undo_by_place(done: str, what: str) -> None:
    """None of its parameters has a name that the step knows."""


def test_what_an_undo_gets_by_its_place_and_how_often_it_is_tried_is_kept() -> None:
    _, store = opened(lambda inner: inner)
    patient = interlock.RetryPolicy(3, max_seconds=9.0, base_seconds=0.5, cap_seconds=2.0)
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo_by_place, undo_retry=patient)
        (facts,) = journal_of(saga).steps.values()
        assert len(facts["positional"]) == 1
        assert facts["retry"] == [3, 9.0, 0.5, 2.0]
    store.close()


def test_a_page_that_the_engine_may_lose_is_written_again_where_it_has_to_be_durable() -> None:
    backend, store = opened(Counted)
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        journal = journal_of(saga)
        step(journal.flush())
        (page,) = journal._pages
        assert (page.unsynced, page.dirty) == (True, False)
        step(journal._write(page=page))
        assert not page.unsynced
        assert [request.durable for request in backend.commits[-2:]] == [False, True]
        assert page.key in backend.commits[-1].writes
    store.close()
