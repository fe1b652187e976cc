"""The ordered keys of the memory backend, against a sorted list."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from interlock.backends.memory.order import KeyOrder
from interlock.model import Span

_KEYS = st.binary(min_size=1, max_size=2)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(_KEYS, max_size=30)),
        st.tuples(st.just("discard"), st.lists(_KEYS, max_size=5)),
        st.tuples(st.just("look"), st.tuples(_KEYS, _KEYS).map(list)),
    ),
    max_size=12,
)


@settings(deadline=None, database=None)
@given(_STEPS)
def test_it_is_a_sorted_set(steps: list[tuple[str, list[bytes]]]) -> None:
    order, wanted = KeyOrder(), set[bytes]()
    for step, keys in steps:
        if step == "add":
            order.fresh.update(keys)
            wanted.update(keys)
        elif step == "discard":
            for key in keys:
                order.discard(key)
                wanted.discard(key)
        else:
            span = Span(*keys)
            inside = sorted(key for key in wanted if span.start <= key < span.stop)
            assert list(order.walk(span)) == inside
            assert list(order.walk(span, reverse=True)) == inside[::-1]
            assert all(key in order for key in inside)
            assert order.count(span) >= 0
    assert list(order.walk(Span(b"", b"\xff\xff\xff"))) == sorted(wanted)
    assert {key for key in wanted if key in order} == wanted


def test_a_chunk_that_grows_too_long_is_parted() -> None:
    order = KeyOrder()
    keys = [b"%06d" % number for number in range(20_000)]
    order.fresh.update(keys)
    assert order.count(Span(keys[3], keys[4])) == 1
    late = [b"000003-%06d" % number for number in range(600)]
    for key in late:  # few at a time, so that they are inserted one by one
        order.fresh.add(key)
        assert list(order.walk(Span(key, key + b"\0"))) == [key]
    assert max(map(len, order._chunks)) <= 1024
    assert list(order.walk(Span(b"", b"9"))) == sorted([*keys, *late])


def test_many_chunks_are_walked_and_shrunk() -> None:
    order = KeyOrder()
    keys = [b"%06d" % number for number in range(5000)]
    order.fresh.update(keys[::2])
    assert list(order.walk(Span(b"", b"9"))) == keys[::2]
    for key in keys[1:200:2]:
        order.fresh.add(key)
        assert list(order.walk(Span(key, key + b"\0"))) == [key]
    order.fresh.update(keys)
    assert list(order.walk(Span(b"", b"9"))) == keys
    assert list(order.walk(Span(b"", b"9"), reverse=True)) == keys[::-1]
    assert list(order.walk(Span(keys[700], keys[2900]))) == keys[700:2900]
    assert order.count(Span(keys[700], keys[2900])) >= 2200
    assert order.count(Span(keys[7], keys[9])) == 2
    for key in keys[:-1]:
        order.discard(key)
        assert key not in order
    order.discard(b"never")
    assert list(order.walk(Span(b"", b"9"))) == keys[-1:]
    order.discard(keys[-1])
    assert list(order.walk(Span(b"", b"9"))) == []
    assert order.count(Span(b"", b"9")) == 0
    order.fresh.add(b"again")
    assert list(order.walk(Span(b"", b"z"))) == [b"again"]
