"""The pure decisions of the core: what is validated, when to run again, how to merge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from interlock import ConflictError, RetryPolicy, UsageError, codec, merges
from interlock.core import isolation as modes
from interlock.core.cursors import cursor_of, token_of
from interlock.core.moments import moment_of
from interlock.core.retry import backoff_seconds, retryable_cause
from interlock.core.rules import published_in
from interlock.errors import BackendCorruptError, BackendUnavailableError, InterlockError, InvariantError
from interlock.model import ABSENT, UNCHANGED, BoundBroken, Delete, Entry, Merge, Operation, Put, Span, Token

READ = {b"a": Entry((3, 7), b"i1"), b"gone": Entry((4, 9), None), b"never": None}
WRITTEN = {b"a": Put(b"i2"), b"blind": Put(b"i3"), b"added": Merge((Operation("add", b"i1"),)), b"cut": Delete()}

EXPECTED: dict[int, dict[bytes, Any]] = {
    modes.NONE: {},
    modes.SNAPSHOT: {b"a": (3, 7), b"blind": UNCHANGED, b"cut": UNCHANGED},
    modes.OPTIMISTIC: {
        b"a": (3, 7),
        b"gone": ABSENT,
        b"never": ABSENT,
        b"blind": UNCHANGED,
        b"cut": UNCHANGED,
    },
    modes.SERIALIZABLE: {b"a": (3, 7), b"gone": ABSENT, b"never": ABSENT},
}


@pytest.mark.parametrize("mode", EXPECTED)
def test_each_mode_validates_what_it_promises(mode: int) -> None:
    assert modes.read_expectations(mode, READ, WRITTEN) == EXPECTED[mode]


def test_what_an_invariant_reads_is_validated_in_every_mode() -> None:
    for mode in EXPECTED:
        assert modes.read_expectations(mode, READ, {}, [b"gone"])[b"gone"] is ABSENT


def test_reads_that_no_version_stands_for_are_observed() -> None:
    expected = modes.read_expectations(modes.SERIALIZABLE, READ, {})
    assert modes.observed_reads(READ, expected) == {b"gone": (4, 9)}
    assert modes.observed_reads(READ, {}) == {b"a": (3, 7), b"gone": (4, 9), b"never": None}


spans = st.tuples(st.binary(max_size=2), st.binary(max_size=2)).map(lambda pair: Span(min(pair), max(pair)))


@given(st.lists(spans, max_size=6), st.binary(max_size=3))
def test_joined_spans_cover_the_same_keys(given: list[Span], key: bytes) -> None:
    joined = modes.validated_spans(modes.SERIALIZABLE, given, ())
    assert any(span.start <= key < span.stop for span in given) == any(span.start <= key < span.stop for span in joined)
    assert modes.validated_spans(modes.OPTIMISTIC, given, ()) == ()


def test_an_unknown_mode_names_those_that_exist() -> None:
    for mode in ("pessimist", "serialisable", "", None, 3):
        with pytest.raises(UsageError, match="none, snapshot, optimistic, serializable, pessimistic"):
            modes.rank(mode)


@given(st.integers(1, 500))
def test_waits_are_capped_and_the_first_retry_is_at_once(failures: int) -> None:
    policy = RetryPolicy(base_seconds=0.5, cap_seconds=3)
    assert backoff_seconds(policy, 1, lambda low, high: high) == 0
    longest = backoff_seconds(policy, failures, lambda low, high: high)
    assert longest == (0 if failures == 1 else min(3, 0.5 * 2.0 ** min(failures - 2, 60)))
    assert backoff_seconds(policy, failures, lambda low, high: low) == 0


@pytest.mark.parametrize(
    "limits",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_seconds": -1},
        {"base_seconds": float("nan")},
        {"cap_seconds": "1"},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(limits))):
        RetryPolicy(**limits)


def test_only_errors_that_say_so_are_retried_also_in_groups() -> None:
    conflict, down = ConflictError("c"), BackendUnavailableError("b")
    assert retryable_cause(conflict) is conflict
    assert retryable_cause(InvariantError("i")) is None
    for signal in (KeyboardInterrupt(), SystemExit(), GeneratorExit(), ValueError()):
        assert retryable_cause(signal) is None
    assert retryable_cause(ExceptionGroup("g", [conflict, ExceptionGroup("h", [down])])) is conflict
    assert retryable_cause(ExceptionGroup("g", [conflict, ValueError("v")])) is None
    assert retryable_cause(BaseExceptionGroup("g", [conflict, KeyboardInterrupt()])) is None


@given(st.integers(-(10**30), 10**30), st.lists(st.integers(-(10**20), 10**20), min_size=1, max_size=6))
def test_adding_is_exact_and_folding_changes_nothing(start: int, amounts: list[int]) -> None:
    steps = [merges.add_operation(amount, None, None) for amount in amounts]
    raw = codec.freeze(start)
    assert codec.thaw(merges.apply(raw, steps)) == start + sum(amounts)
    folded = merges.fold(steps)
    assert len(folded) == 1
    assert merges.apply(raw, folded) == merges.apply(raw, steps)


@given(st.integers(0, 20), st.integers(-20, 20), st.integers(0, 10), st.integers(5, 20))
def test_a_bound_refuses_only_a_step_towards_it(start: int, amount: int, floor: int, ceiling: int) -> None:
    operation = merges.add_operation(amount, floor, ceiling)
    after = start + amount
    refused = (amount < 0 and after < floor) or (amount > 0 and after > ceiling)
    try:
        assert codec.thaw(merges.apply(codec.freeze(start), [operation])) == after
        assert not refused
    except BoundBroken:
        assert refused


def test_every_error_says_whether_to_retry() -> None:
    def tree(kind: type[InterlockError]) -> list[type[InterlockError]]:
        return [kind, *(below for each in kind.__subclasses__() for below in tree(each))]

    for kind in tree(InterlockError):
        assert not (kind.retryable and kind.maybe_committed), kind
        group = issubclass(kind, BaseExceptionGroup)
        made = kind("what happened", [ValueError("one")]) if group else kind("what happened")
        assert made.explain().startswith(("what happened", "$: what happened", "Gave up")), kind


def test_a_stored_time_that_no_calendar_has_is_damage() -> None:
    assert moment_of(0.0).isoformat() == "1970-01-01T00:00:00+00:00"
    for seconds in (1e12, -1e12, 2.5e18, 1e300, float("inf"), float("nan")):
        with pytest.raises(BackendCorruptError, match="a stored time"):
            moment_of(seconds)


@pytest.mark.parametrize("name", ["store", "incarnation", "position"])
def test_a_cursor_with_numbers_that_no_token_has_is_none(name: str) -> None:
    """Engines would meet them where they have no room for them."""
    real = Token(2**64 - 1, 2**64 - 1, 2**63 - 1, b"detail")
    assert token_of(cursor_of(real)) == real
    wrong = [-1, -(2**63)] + ([2**63, 2**64 - 1] if name == "position" else [])
    for number in wrong:
        with pytest.raises(UsageError, match="not a cursor"):
            token_of(cursor_of(replace(real, **{name: number})))


RULES: dict[str, Any] = {"form": 1, "floor": "snapshot", "invariants": ["a"]}


@pytest.mark.parametrize(
    "damaged",
    [
        None, [], {}, {**RULES, "form": "1"}, {**RULES, "floor": None}, {**RULES, "floor": []},
        {**RULES, "invariants": None}, {**RULES, "invariants": [7]}, {**RULES, "invariants": "a"},
    ],
)  # fmt: skip
def test_damaged_rules_are_not_taken_for_none(damaged: Any) -> None:
    assert published_in(Entry((1, 1), codec.freeze(RULES)), "r").names == {"a"}
    with pytest.raises(BackendCorruptError):
        published_in(Entry((1, 1), codec.freeze(damaged)), "r")
