"""Decisions about effects that need no store: steps, moves, how acts are called, what their errors say, records."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from interlock import (
    BackendCorruptError,
    CommitUnknownError,
    ConflictError,
    EffectStatus,
    EffectUnknownError,
    SchemaMismatchError,
    UsageError,
    codec,
)
from interlock.layers.effects.calls import Act, is_unanswered, payload_fingerprint
from interlock.layers.effects.executing import Step, next_step
from interlock.layers.effects.records import EFFECT, MOVES, Stored, effect_key
from interlock.model import Entry
from interlock.wording import error_text

STORED = Stored(EffectStatus.PENDING, b"f", "op", 1.0, 1.0)


def in_status(status: EffectStatus, **facts: Any) -> Stored:
    import msgspec

    changed: Stored = msgspec.structs.replace(STORED, status=status, **facts)
    return changed


@pytest.mark.parametrize("verifies", [False, True])
def test_next_step(verifies: bool) -> None:
    ask = Step.ASK if verifies else None
    executing = {"claimed_at": 10.0, "claim_seconds": 5.0}
    wanted = [
        (None, Step.EXECUTE),
        (STORED, Step.EXECUTE),
        (in_status(EffectStatus.SUCCEEDED, result=b"mc"), Step.ANSWER),
        (in_status(EffectStatus.SUCCEEDED), ask or Step.ANSWER),
        (in_status(EffectStatus.EXECUTING, **executing), Step.WAIT),
        (in_status(EffectStatus.FAILED), ask or Step.EXECUTE),
        (in_status(EffectStatus.UNKNOWN), ask or Step.REFUSE),
    ]
    for stored, step in wanted:
        assert next_step(stored, 12.0, verifies=verifies) is step
    ended = in_status(EffectStatus.EXECUTING, **executing)
    assert next_step(ended, 14.9, verifies=verifies) is Step.WAIT
    assert next_step(ended, 15.0, verifies=verifies) is Step.REVOKE


def test_only_the_moves_of_the_table() -> None:
    for status in EffectStatus:
        for after in EffectStatus:
            if after in MOVES[status]:
                assert in_status(status).moved(after).status is after
            else:
                with pytest.raises(UsageError, match="cannot become"):
                    in_status(status).moved(after)
    assert EffectStatus.EXECUTING not in MOVES[EffectStatus.SUCCEEDED]


def plain(amount: int, currency: str = "EUR") -> None:
    pass


def keyed(amount: int, idempotency_key: str, *rest: int, **more: Any) -> None:
    pass


class Till:
    def charge(self, amount: int, *, idempotency_key: str = "") -> tuple[int, str]:
        return amount, idempotency_key

    def __call__(self, amount: int) -> int:
        return amount


def test_equal_arguments_have_equal_fingerprints() -> None:
    """R041: by place or by name, in whatever order."""
    first = Act(plain, (5, "EUR"), "k").fingerprint()
    assert first == Act(plain, (5,), "k").fingerprint()
    assert first == Act(functools.partial(plain, currency="EUR"), (5,), "other").fingerprint()
    assert first == Act(functools.partial(plain, amount=5), (), "k").fingerprint()
    assert first != Act(plain, (6,), "k").fingerprint()
    assert first != Act(functools.partial(keyed, 5), (), "k").fingerprint()
    assert Act(keyed, (5, "x"), "k").fingerprint() == Act(keyed, (5, "x"), "other").fingerprint()
    nested = Act(plain, ({"a": 1, "b": {"c": 1, "d": 2}},), "k").fingerprint()
    assert nested == Act(plain, ({"b": {"d": 2, "c": 1}, "a": 1},), "k").fingerprint()
    assert payload_fingerprint("a", 1) != payload_fingerprint("b", 1)
    assert Act(plain, (1,), "k").fingerprint() != Act(plain, (True,), "k").fingerprint()


def test_the_key_goes_where_the_act_wants_it() -> None:
    till = Till()
    assert Act(till.charge, (5,), "k").call() == (5, "k")
    assert Act(functools.partial(till.charge, idempotency_key="own"), (5,), "k").call() == (5, "own")
    assert Act(till, (5,), "k").call() == 5
    act = Act(keyed, (5, 6, 7), "k")
    assert (act.arguments, act.named) == ((5, "k", 6, 7), {})
    assert Act(max, (5, 6), "k").call() == 6
    assert Act(int, ("5",), "k").call() == 5

    def only_by_place(idempotency_key: str, amount: int, /) -> tuple[str, int]:
        return idempotency_key, amount

    assert Act(only_by_place, (5,), "k").call() == ("k", 5)
    with pytest.raises(UsageError, match="cannot be called"):
        Act(plain, (), "k")
    with pytest.raises(UsageError, match="cannot be called"):
        Act(plain, (1, 2, 3), "k")
    with pytest.raises(UsageError, match="payload="):
        Act(plain, (object(),), "k").fingerprint()
    assert Act(plain, ("\ud800",), "k").values == {"amount": "\ud800", "currency": "EUR"}
    with pytest.raises(UsageError):
        Act(plain, ("\ud800",), "k").fingerprint()
    assert Act(plain, (1 << 100,), "k").fingerprint() != Act(plain, (1 << 101,), "k").fingerprint()


class ReadTimeout(Exception):
    """As HTTP libraries call theirs."""


class APIConnectionError(Exception):
    """As model providers do."""


def chained(error: Exception, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    error.__cause__, error.__context__ = cause, context
    return error


def test_what_errors_say() -> None:
    unanswered = [
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(),
        TimeoutError(),
        TimeoutError(),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        ReadTimeout(),
        APIConnectionError(),
        EffectUnknownError(),
        CommitUnknownError(),
        ExceptionGroup("two", [ValueError(), TimeoutError()]),
        chained(ValueError(), cause=TimeoutError()),
        chained(ValueError(), context=TimeoutError()),
    ]
    failures = [
        ValueError(),
        OSError(),
        ConnectionRefusedError(),
        ConflictError(),
        ExceptionGroup("two", [ValueError(), KeyError()]),
        chained(ValueError(), cause=KeyError()),
    ]
    assert [error for error in unanswered if not is_unanswered(error)] == []
    assert [error for error in failures if is_unanswered(error)] == []
    outer = TimeoutError()
    assert not is_unanswered(chained(ValueError(), context=outer), handled=outer)
    loop = ValueError()
    loop.__cause__ = loop
    assert not is_unanswered(loop)


def test_errors_in_words() -> None:
    assert error_text(ValueError("no")) == "ValueError: no"
    assert error_text(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert error_text(ValueError("\ud800")) == "ValueError: \\ud800"
    assert len(error_text(ValueError("x" * 5000))) == 1000


def entry(raw: bytes) -> Entry:
    return Entry((1, 1), raw)


def test_records_are_read_or_refused() -> None:
    raw = EFFECT.put(STORED).value
    assert EFFECT.load(entry(raw)) == STORED
    assert codec.thaw(raw)[0] == "effect"
    assert EFFECT.load(None) is None
    assert EFFECT.parts(effect_key("k", "email")) == ("k", "email")
    with pytest.raises(SchemaMismatchError):
        EFFECT.load(entry(codec.freeze(["effect", 2, {"a": 1}])))
    for bad in (b"m", raw[:-1], codec.freeze(5), codec.freeze(["effect", 1, {}]), codec.freeze("effect")):
        with pytest.raises(BackendCorruptError):
            EFFECT.load(entry(bad))


def test_keys_and_names_do_not_run_into_each_other() -> None:
    """R123: of the journal."""
    pairs = [("users", "archive:k"), ("users:archive", "k"), ("a-b", "c"), ("a", "b-c"), ("a\0", "b"), ("a", "\0b")]
    assert len({effect_key(*pair) for pair in pairs}) == len(pairs)
