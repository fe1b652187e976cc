"""Keys and values as the command line writes them come back exactly, or are refused with the place."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import codec
from interlock.cli.forms import from_form, json_text, parse_key, parse_value, printable, shown_key, to_form
from interlock.errors import UsageError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ZONES = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "America/New_York"]).map(ZoneInfo),
    st.integers(-80_000, 80_000).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds))),
    st.just(dt.timezone(dt.timedelta(hours=1), "CET")),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**60), 10**60),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.binary(max_size=8),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.dates(),
    st.times(timezones=ZONES),
    st.datetimes(timezones=ZONES, allow_imaginary=True),
    st.timedeltas(),
    st.datetimes(timezones=ZONES).map(lambda at: at.replace(fold=1)),
)
HASHABLE = st.recursive(
    SCALARS, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)), max_leaves=4
)
NAMES = st.one_of(TEXTS, st.sampled_from(["$set", "$decimal", "$dict", "$", "$other"]))
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(NAMES, inner, max_size=3),
        st.tuples(inner),
        st.sets(HASHABLE, max_size=3),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down: what the codec makes bytes of."""
    return codec.freeze(one) == codec.freeze(other)


@given(VALUES)
def test_a_value_comes_back_exactly(value: Any) -> None:
    text = json_text(to_form(value))
    again = parse_value(text)
    assert same(again, value), text
    assert "\n" not in text
    assert "\t" not in text


@given(VALUES)
def test_a_form_does_not_depend_on_the_order_of_a_set(value: Any) -> None:
    assert json_text(to_form(value)) == json_text(to_form(codec.thaw(codec.freeze(value))))


@given(st.one_of(TEXTS.filter(bool), st.lists(st.one_of(TEXTS, st.integers()), min_size=1, max_size=3).map(tuple)))
def test_a_key_comes_back_exactly(key: Any) -> None:
    shown = shown_key(key)
    assert parse_key(shown) == key
    assert type(parse_key(shown)) is type(key)
    assert shown == shown.strip()
    assert not {"\n", "\t", "\x1b", "\x9b"} & set(shown)


@given(TEXTS)
def test_a_raw_key_is_taken_as_it_is(text: str) -> None:
    assert parse_key(text, raw=True) == text


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("sku-1", "sku-1"),
        ("7", "7"),
        ("{x}", "{x}"),
        ('["job", 7]', ("job", 7)),
        ('["job"]', ("job",)),
        ("[-3]", (-3,)),
        ('"[not a list]"', "[not a list]"),
        ('"\\u0000"', "\0"),
    ],
)
def test_keys_as_people_type_them(argument: str, key: Any) -> None:
    assert parse_key(argument) == key


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("[job]", "--raw-key"),
        ('["a"', "--raw-key"),
        ('["a", 1.5]', "texts and whole numbers, not 1.5"),
        ('["a", true]', "texts and whole numbers, not true"),
        ('["a", null]', "texts and whole numbers, not null"),
        ('["a", ["b"]]', "texts and whole numbers"),
        ('"a', "--raw-key"),
    ],
)
def test_what_is_no_key_is_refused(argument: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_key(argument)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-5", -5),
        ("1.0", 1.0),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ('{"$decimal": "1.20"}', Decimal("1.20")),
        ('{"$bytes": "aGk="}', b"hi"),
        ('{"$tuple": [1, {"$set": [2]}]}', (1, {2})),
        ('{"$dict": {"$set": 1}}', {"$set": 1}),
        ('{"$set": 1, "more": 2}', {"$set": 1, "more": 2}),
        ('{"$uuid": "12345678-1234-5678-1234-567812345678"}', UUID("12345678-1234-5678-1234-567812345678")),
        ('{"$date": "2026-11-30"}', dt.date(2026, 11, 30)),
        ('{"$timedelta": [1, 2, 3]}', dt.timedelta(1, 2, 3)),
        ('{"$datetime": "2026-11-30T10:00:00Z"}', dt.datetime(2026, 11, 30, 10, tzinfo=dt.UTC)),
        (
            '{"$datetime": {"iso": "2026-10-25T02:30:00", "zone": "Europe/Berlin", "fold": 1}}',
            dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        ),
        (
            '{"$time": {"iso": "10:00:00+01:00", "name": "CET"}}',
            dt.time(10, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
        ),
    ],
)
def test_values_as_people_type_them(text: str, value: Any) -> None:
    assert same(parse_value(text), value)


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("sku", ["not JSON", "line 1"]),
        ("", ["not JSON"]),
        ("NaN", ["NaN", "finite"]),
        ("[1, -Infinity]", ["-Infinity"]),
        ('{"a": 1, "a": 2}', ["'a'", "twice"]),
        ('[{"$money": 1}]', ["$[0]", "'$money'", "$decimal", "$dict"]),
        ('{"a": {"$decimal": "one"}}', ["$.a", "decimal"]),
        ('{"$decimal": 1.2}', ["a text is needed"]),
        ('{"$bytes": "!"}', ["$:", "bytes"]),
        ('{"$set": [1, 1]}', ["twice"]),
        ('{"$set": [[1]]}', ["unhashable"]),
        ('{"$tuple": "ab"}', ["a list is needed"]),
        ('{"$dict": [1]}', ["an object is needed"]),
        ('{"$timedelta": [1, 2]}', ["timedelta"]),
        ('{"$datetime": {"iso": "2026-10-25T02:30:00", "zone": "Europe/Atlantis"}}', ["Atlantis"]),
        ('{"$datetime": {"iso": "2026-10-25T02:30:00", "zones": "UTC"}}', ["zones"]),
        ('{"$datetime": 7}', ["datetime"]),
        ("9" * 5000, ["cannot be read"]),
        ("[" * 100_000, ["cannot be read"]),
        ("[" * 200 + "]" * 200, ["nested deeper"]),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_place(text: str, complaints: Iterable[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_value(text)
    for complaint in complaints:
        assert complaint in str(caught.value)


def test_a_span_of_time_longer_than_any_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a timedelta"):
        parse_value('{"$timedelta": [0, 0, 1099999999999999999999999990]}')


def test_nothing_can_take_over_the_terminal() -> None:
    """Escape sequences, also the eight-bit ones, and characters that turn the direction of writing around."""
    hostile = "a\x1b]0;title\x07\x9b31m\u202eb\u2066c\u2028d\x7f"
    shown = json_text(hostile)
    assert json.loads(shown) == hostile
    assert printable(hostile) == shown
    assert all(character.isprintable() for character in shown)


@pytest.mark.parametrize("name", ["Müller", "Νίκος", "محمد", "दिल्ली", "می\u200cخواهم", "👩\u200d🚀", "北京 店"])
def test_names_in_any_script_stay_readable(name: str) -> None:
    assert printable(name) == name
    assert shown_key(name) == name
    assert json_text(name) == f'"{name}"'


def test_a_terminal_without_unicode_gets_escapes() -> None:
    assert json_text({"name": "Νίκος"}, ascii_only=True) == '{"name": "\\u039d\\u03af\\u03ba\\u03bf\\u03c2"}'


def test_every_type_of_the_domain_has_a_form() -> None:
    """A type that the codec learns later must not reach the command line without one."""
    for kind in codec._LOWER:
        assert from_form(to_form(kind())) == kind() if kind not in (dt.date, dt.datetime, UUID) else True
