"""Keys: byte order is tuple order, no two keys collide, every character is literal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import BackendCorruptError, LimitExceededError, UsageError, keys

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(-(2**70), 2**70)
parts = st.one_of(texts, numbers)
tuples = st.lists(parts, min_size=1, max_size=5).map(tuple)
any_key = st.one_of(texts.filter(bool), tuples)


def order(key: keys.UserKey) -> tuple[object, ...]:
    """The order that is documented: texts before tuples; in a tuple texts before numbers."""
    if isinstance(key, str):
        return (0, key)
    return (1, tuple((0, part, 0) if isinstance(part, str) else (1, "", part) for part in key))


@given(any_key)
def test_what_was_encoded_is_decoded(key: keys.UserKey) -> None:
    assert keys.decode(keys.encode(key)) == key
    assert type(keys.decode(keys.encode(key))) is type(key)


@given(any_key, any_key)
def test_bytes_sort_as_keys_do(one: keys.UserKey, other: keys.UserKey) -> None:
    a, b = keys.encode(one), keys.encode(other)
    assert (a == b) == (one == other)
    assert (a < b) == (order(one) < order(other))


@given(any_key, any_key)
def test_a_prefix_takes_what_begins_with_it_and_nothing_else(prefix: keys.UserKey, key: keys.UserKey) -> None:
    space = keys.resource_space("r")
    span = keys.prefix_span(space, prefix)
    inside = span.start <= space + keys.encode(key) < span.stop
    if isinstance(prefix, str):
        assert inside == (isinstance(key, str) and key.startswith(prefix))
    else:
        assert inside == (isinstance(key, tuple) and key[: len(prefix)] == prefix)


@given(texts.filter(lambda text: text.strip()), any_key, texts.filter(lambda text: text.strip()), any_key)
def test_resources_never_run_into_each_other(one: str, a: keys.UserKey, other: str, b: keys.UserKey) -> None:
    stored = keys.resource_space(one) + keys.encode(a), keys.resource_space(other) + keys.encode(b)
    assert (stored[0] == stored[1]) == ((one, a) == (other, b))
    assert keys.split(stored[0]) == (one, a)


@given(st.binary(max_size=40))
def test_foreign_bytes_are_refused_in_one_way(raw: bytes) -> None:
    try:
        key = keys.decode(raw)
    except BackendCorruptError:
        return
    assert keys.encode(key) == raw or isinstance(key, tuple)


@pytest.mark.parametrize("key", ["", (), None, 5, b"k", ["a"], (True,), (1.5,), ("a", None), (("a",),), "\ud800"])
def test_what_is_no_key_is_refused(key: object) -> None:
    with pytest.raises(UsageError):
        keys.encode(key)


@pytest.mark.parametrize("key", ["k" * 1100, ("k" * 600, "k" * 600), "é" * 600, (2**2000,)])
def test_what_is_too_long_is_refused(key: object) -> None:
    with pytest.raises(LimitExceededError) as caught:
        keys.encode(key)
    assert caught.value.found > caught.value.allowed
