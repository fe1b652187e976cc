"""What other people's errors say may be anything; what has happened is written down and reported all the same."""

from __future__ import annotations

from typing import Any

import pytest

import interlock
from interlock import CompensationError, EffectStatus, compensable
from interlock.errors import BackendUnavailableError
from interlock.saga.recording import Recorder
from interlock.sync import IdempotentExecutor, Saga, Store
from interlock.wording import ERROR_CHARACTERS, error_text, message_of


class BrokenError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class HugeError(Exception):
    def __str__(self) -> str:
        return "x" * 3_000_000

    __repr__ = __str__


class HalfError(Exception):
    def __str__(self) -> str:
        return "\ud800" * ERROR_CHARACTERS

    __repr__ = __str__


KINDS = (BrokenError, HugeError, HalfError)
raised: list[type[Exception]] = []


@compensable(name="texts.act", outside="run")
def act() -> int:
    return 1


@compensable(name="texts.fail", outside="run")
def fail() -> None:
    raise raised[-1]


@pytest.fixture(params=KINDS)
def kind(request: Any) -> type[Exception]:
    raised.append(request.param)
    return raised[-1]


@pytest.fixture
def store() -> Any:
    with interlock.sync.open("memory://", agent="a") as opened:
        yield opened


def test_a_text_is_always_there_and_short(kind: type[Exception]) -> None:
    error = kind()
    assert error_text(error).startswith(kind.__name__)
    assert 0 < len(message_of(error)) <= ERROR_CHARACTERS
    assert len(error_text(error)) <= ERROR_CHARACTERS
    error_text(error).encode()
    assert error_text(ValueError()) == "ValueError"


def test_a_failed_undo_leaves_its_dead_letter(store: Store, kind: type[Exception]) -> None:
    with pytest.raises(CompensationError) as caught, store.saga("s", id="1") as saga:
        saga.step(act, undo=fail)
        saga.abort("over")
    assert [type(failed.error) for failed in caught.value.failures] == [kind]
    (letter,) = store.dead_letters.list()
    assert kind.__name__ in str(letter.error)
    assert (saga.report.status, saga.report.clean) == ("incomplete", False)


def test_a_failed_deferred_act_leaves_its_dead_letter(store: Store, kind: type[Exception]) -> None:
    with pytest.raises(interlock.StepFailedError), store.saga("s", id="1") as saga:
        deferred = saga.defer(fail)
    (letter,) = store.dead_letters.list()
    assert kind.__name__ in str(letter.error)
    assert str(deferred)


def test_an_effect_has_failed(store: Store, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        IdempotentExecutor(store).execute("k", fail)
    found = store.effects.get("k")
    assert found is not None
    assert found.status is EffectStatus.FAILED


def test_the_next_message_is_sent_too(store: Store, kind: type[Exception]) -> None:
    sent = []

    def send(payload: str) -> None:
        if payload == "bad":
            raise kind
        sent.append(payload)

    store.effects.handler("mail", send)
    with store.resource("r").session() as session:
        session.stage("mail", "bad", key="1")
        session.stage("mail", "good", key="2")
    assert store.effects.dispatch().retrying == 1
    assert sent == ["good"]


def test_a_doomed_session_says_why(store: Store, kind: type[Exception]) -> None:
    def change(value: Any) -> Any:
        raise kind

    session = store.resource("r").begin()
    with pytest.raises(kind):
        session.update("k", change, 0)
    with pytest.raises(interlock.UsageError, match="doomed"):
        session.read("k")


def test_a_hook_that_fails_is_noted(kind: type[Exception]) -> None:
    def hook(failed: Any) -> None:
        raise kind

    with pytest.raises(CompensationError) as caught, Saga(on_compensation_error=hook) as saga:
        saga.step(int, undo=lambda: 1 / 0)
        saga.abort("over")
    (failed,) = caught.value.failures
    assert "on_compensation_error itself failed" in failed.error.__notes__[0]


@pytest.mark.parametrize("trouble", [BackendUnavailableError("gone"), RuntimeError("a defect")])
def test_an_undo_that_failed_is_told_where_the_journal_cannot_be(
    store: Store, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """Before, only the journal's trouble was told of, or nothing at all, and the saga called clean."""
    raised.append(ZeroDivisionError)

    async def left(*_: Any) -> str:
        raise trouble

    monkeypatch.setattr(Recorder, "left", left)
    with pytest.raises(interlock.InterlockError) as caught, store.saga("s", id="1") as saga:
        saga.step(act, undo=fail)
        saga.abort("over")
    told = [type(failed.error) for failed in saga.report.failed_undos]
    assert told[0] is ZeroDivisionError
    assert (saga.report.status, saga.report.clean) == ("incomplete", False)
    if type(trouble) is RuntimeError:
        assert "a defect" in str(caught.value.__notes__)
