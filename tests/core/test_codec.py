"""Values: exact or refused, with the path."""

from __future__ import annotations

import datetime as dt
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import BackendCorruptError, LimitExceededError, ValueRefusedError, codec
from interlock.core.typed import difference

zones = st.one_of(
    st.none(),
    st.sampled_from([dt.UTC, ZoneInfo("Europe/Berlin"), dt.timezone(dt.timedelta(hours=1), "X")]),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**60), 10**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=20),
    st.decimals(-(10**20), 10**20, places=6),
    st.sampled_from([Decimal("1.10"), Decimal("-0"), Decimal("1E+30"), Decimal("0E-9")]),
    st.uuids(),
    st.dates(),
    st.times(timezones=zones),
    st.datetimes(timezones=zones, allow_imaginary=False),
    st.timedeltas(),
)
hashable = st.recursive(
    scalars, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)), max_leaves=4
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4),
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
    ),
    max_leaves=20,
)


@given(values)
def test_what_was_frozen_is_thawed_with_its_types(value: Any) -> None:
    raw = codec.freeze(value)
    again = codec.thaw(raw)
    assert difference(value, again, "$", 0) is None
    assert codec.freeze(again) == raw


@given(values)
def test_a_thawed_value_is_a_new_one(value: Any) -> None:
    raw = codec.freeze([value])
    codec.thaw(raw).clear()
    assert len(codec.thaw(raw)) == 1


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), scalars, max_size=5))
def test_a_fingerprint_ignores_the_order_of_a_dict(value: dict[str, Any]) -> None:
    turned = dict(reversed(list(value.items())))
    assert codec.canonical({"a": value}) == codec.canonical({"a": turned})


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused_in_one_way(raw: bytes) -> None:
    try:
        codec.thaw(raw)
    except BackendCorruptError:
        pass


class Colour(enum.IntEnum):
    RED = 1


REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "$"),
    ({"a": [1, float("inf")]}, "$.a[1]"),
    ({1: "a"}, "$"),
    ({"a": {True: 1}}, "$.a"),
    ({"a": {None: 1, "b": 2}}, "$.a"),
    ("\ud800", "$"),
    ({"\udfff": 1}, "$"),
    (10**4000, "$"),
    ([(1, [10**5000])], "$[0][1][0]"),
    (Decimal("NaN"), "$"),
    (OrderedDict(a=1), "$"),
    ({"a": defaultdict(int)}, "$.a"),
    ([Counter()], "$[0]"),
    (deque([1]), "$"),
    (Colour.RED, "$"),
    ([object()], "$[0]"),
    ((lambda: None,), "$[0]"),
    (dt.datetime(2026, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "$"),
    (range(3), "$"),
]


@pytest.mark.parametrize(("value", "path"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_would_not_come_back_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        codec.freeze(value)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


def test_a_cycle_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ValueRefusedError, match="cycle"):
        codec.freeze(cycle)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(LimitExceededError, match="split it over keys"):
        codec.freeze("x" * (codec.VALUE_BYTES + 1))


def test_a_uuid_and_a_naive_time_stay_what_they_are() -> None:
    for value in (uuid4(), dt.datetime(2026, 3, 29, 2, 30), dt.datetime(2026, 10, 25, 2, 30, fold=1)):
        again = codec.thaw(codec.freeze(value))
        assert again == value
        assert getattr(again, "fold", 0) == getattr(value, "fold", 0)
        assert getattr(again, "tzinfo", None) is None


def test_plain_records_have_the_same_bytes() -> None:
    """The short way of records whose values are known to be plain; what is not text is refused on it, too."""
    step = {
        "fn": "shop:reserve",
        "kept": {"sku": [False, b"ab"]},
        "order": 7,
        "retry": [3, 0.5],
        "undo": None,
        "é": True,
    }
    assert codec.freeze_plain(("sagastep", 1, step)) == codec.freeze(("sagastep", 1, step))
    assert codec.freeze_plain(("sagastep", 1, {"n": 1 << 70})) == codec.freeze(("sagastep", 1, {"n": 1 << 70}))
    with pytest.raises(ValueRefusedError):
        codec.freeze_plain(("sagastep", 1, {"label": "\ud800"}))
    with pytest.raises(LimitExceededError):
        codec.freeze_plain(("sagastep", 1, b"x" * (codec.VALUE_BYTES + 1)))
