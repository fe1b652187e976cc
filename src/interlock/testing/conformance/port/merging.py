"""Merges: each kind, bounds, refusals, exactness, and that one which changes nothing writes nothing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from interlock import codec
from interlock.model import (
    ABSENT,
    UNCHANGED,
    BoundBroken,
    Delete,
    Key,
    Merge,
    Merged,
    MergeRefused,
    Operation,
    Write,
)
from interlock.testing.conformance.world import EVERYTHING, World, in_both_worlds, key, put, thawed

BIG = 10**3999


def _operation(kind: str, value: Any, floor: Any = None, ceiling: Any = None) -> Operation:
    if kind == "append":
        operand = codec.freeze_element(value)
    elif kind in ("set_add", "set_remove"):
        operand = codec.freeze_member(value)
    else:
        operand = codec.freeze(value)
    low, high = (None if bound is None else codec.freeze(bound) for bound in (floor, ceiling))
    return Operation(kind, operand, low, high)


def merge(kind: str, *values: Any, floor: Any = None, ceiling: Any = None) -> Merge:
    """A merge that does one kind of operation with each value in turn."""
    return Merge(tuple(_operation(kind, value, floor, ceiling) for value in values))


def _shown(value: Any) -> str:
    """A value in a test's name: the same in every process, which the order of a set is not."""
    return f"{sorted(value, key=repr) if isinstance(value, set) else value!r:.16}"


_CASES: list[tuple[str, Any, list[Any], Any]] = [
    ("add", None, [5], 5),
    ("add", 10, [5, -7], 8),
    ("add", 10, [-20], -10),
    ("add", BIG, [BIG], 2 * BIG),
    ("add", 2**63 - 1, [1], 2**63),
    ("add", -(2**64), [1], -(2**64) + 1),
    ("add", 2**53, [1], 2**53 + 1),
    ("add", None, [Decimal("1.10")], Decimal("1.10")),
    ("add", Decimal("0.1"), [Decimal("0.2")], Decimal("0.3")),
    ("add", Decimal("1E+20"), [Decimal("1E-20")], Decimal("100000000000000000000.00000000000000000001")),
    ("append", None, ["a"], ["a"]),
    ("append", [1], [2, [3], None], [1, 2, [3], None]),
    ("set_add", None, ["a"], {"a"}),
    ("set_add", {"b", 1}, ["a", b"a", 1], {"a", "b", b"a", 1}),
    ("set_remove", None, ["a"], set()),
    ("set_remove", {"a", "b"}, ["a", "c"], {"b"}),
    ("maximum", None, [3], 3),
    ("maximum", 3, [5, 4], 5),
    ("maximum", BIG, [BIG + 1], BIG + 1),
    ("maximum", "a", ["b"], "b"),
    ("minimum", None, [3], 3),
    ("minimum", 3, [5, 1], 1),
    ("minimum", Decimal("1.5"), [Decimal("1.25")], Decimal("1.25")),
    ("last", None, [{"a": [1]}], {"a": [1]}),
    ("last", 1, ["x", None], None),
]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: f"{case[0]}-{_shown(case[1])}")
@in_both_worlds
async def test_a_merge_is_applied_to_the_newest_value(world: World, case: tuple[str, Any, list[Any], Any]) -> None:
    kind, before, values, after = case
    store = world.open()
    if before is not None:
        await store.commit({key("a"): put(before)})
    reply = await store.commit({key("a"): merge(kind, *values)})
    entry = await store.entry(key("a"))
    assert entry is not None
    assert entry.value == codec.freeze(after)
    assert entry.version == reply.version
    assert type(thawed(entry)) is type(after)
    assert reply.merged == {key("a"): Merged(True, None if before is None else codec.freeze(before))}


@in_both_worlds
async def test_a_merge_after_a_delete_begins_anew(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(5), key("b"): put(5)})
    await store.commit({key("a"): Delete()})
    reply = await store.commit({key("a"): merge("add", 1), key("b"): merge("add", 5)}, clears=(EVERYTHING,))
    assert await store.listing() == {key("a"): 1, key("b"): 5}
    assert reply.merged == {key("a"): Merged(True, None), key("b"): Merged(True, None)}
    assert await store.version(key("b")) == reply.version


@pytest.mark.parametrize(
    ("kind", "value", "same"),
    [
        ("add", 7, 0),
        ("add", Decimal("1.10"), Decimal("0.00")),
        ("set_add", {"a", "b"}, "a"),
        ("set_remove", {"a"}, "b"),
        ("maximum", 7, 3),
        ("minimum", 7, 7),
        ("last", [1], [1]),
    ],
)
@in_both_worlds
async def test_a_merge_that_changes_nothing_writes_nothing(world: World, kind: str, value: Any, same: Any) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(value)})
    reply = await store.commit({key("a"): merge(kind, same)}, reads={key("a"): first.version})
    assert reply.merged == {key("a"): Merged(False, codec.freeze(value))}
    assert await store.version(key("a")) == first.version
    changes = await store.feed(first.token)
    assert [(change.version, dict(change.writes)) for change in changes] == [
        (reply.version, {key("a"): merge(kind, same)})
    ]
    await store.commit({key("b"): put(1)}, reads={key("a"): first.version}, snapshot=first.token)
    await store.commit({key("b"): put(1)}, reads={key("a"): UNCHANGED}, snapshot=first.token)


@in_both_worlds
async def test_a_merge_is_a_change_for_everybody_else(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    await store.commit({key("a"): merge("add", 1), key("b"): merge("add", 1)})
    for expected in (first.version, UNCHANGED):
        await store.refused({key("c"): put(1)}, reads={key("a"): expected}, snapshot=first.token)
    await store.refused({key("c"): put(1)}, reads={key("b"): ABSENT}, snapshot=first.token)


@in_both_worlds
async def test_merges_of_an_unread_key_never_conflict(world: World) -> None:
    store = world.open()
    snapshot = await store.backend.snapshot()
    for _ in range(20):
        await store.commit({key("a"): merge("add", 1)}, snapshot=snapshot)
    assert await store.value(key("a")) == 20


_BOUNDS: list[tuple[Any, Any, Any, Any, bool]] = [
    (1, -1, 0, None, True),
    (0, -1, 0, None, False),
    (None, -1, 0, None, False),
    (9, 1, None, 10, True),
    (10, 1, None, 10, False),
    (-5, 1, 0, None, True),
    (-5, -1, 0, None, False),
    (15, -1, None, 10, True),
    (15, 0, None, 10, True),
    (5, -3, 0, 10, True),
    (2**70, -(2**70) - 1, 0, None, False),
    (Decimal("0.5"), Decimal("-0.5"), Decimal(0), None, True),
    (Decimal("0.5"), Decimal("-0.51"), Decimal(0), None, False),
]


@pytest.mark.parametrize(("before", "amount", "floor", "ceiling", "holds"), _BOUNDS)
@in_both_worlds
async def test_a_bound_refuses_a_step_towards_it(
    world: World, before: Any, amount: Any, floor: Any, ceiling: Any, holds: bool
) -> None:
    store = world.open()
    await store.commit({key("a"): put(before)} if before is not None else {})
    step = merge("add", amount, floor=floor, ceiling=ceiling)
    snapshot = await store.backend.snapshot()
    if holds:
        await store.commit({key("a"): step})
        assert await store.value(key("a")) == before + amount
        return
    with pytest.raises(BoundBroken) as caught:
        await store.commit({key("a"): step, key("b"): put(1), key("0"): merge("add", 1)})
    assert caught.value.key == key("a")
    assert caught.value.operation == step.operations[0]
    assert caught.value.before == (None if before is None else codec.freeze(before))
    assert await store.value(key("a")) == before
    assert await store.entry(key("b")) is None
    assert await store.entry(key("0")) is None
    assert await store.feed(snapshot) == []


@in_both_worlds
async def test_bounds_are_checked_after_each_operation_in_order(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    await store.commit({key("a"): merge("add", 1, -2, floor=0)})
    assert await store.value(key("a")) == 0
    with pytest.raises(BoundBroken) as caught:
        await store.commit({key("a"): merge("add", 5, -6, 6, floor=0)})
    assert (caught.value.operation, caught.value.before) == (_operation("add", -6, 0), codec.freeze(5))
    assert await store.value(key("a")) == 0


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("text", merge("add", 1)),
        (1.5, merge("add", 1)),
        (True, merge("add", 1)),
        (1, merge("add", Decimal(1))),
        (Decimal(1), merge("add", 1)),
        (1, merge("append", 1)),
        ({"a": 1}, merge("append", 1)),
        ([1], merge("set_add", 1)),
        (frozenset({1}), merge("set_add", 1)),
        (1, merge("maximum", "text")),
        (None, merge("minimum", 1)),
        (10**4000 - 1, merge("add", 1)),
        ([b"x" * 1_000_000], merge("append", b"x" * 60_000)),
    ],
    ids=lambda value: _shown(value),
)
@in_both_worlds
async def test_a_merge_into_another_kind_or_too_large_is_refused(world: World, value: Any, wrong: Merge) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(value)})
    with pytest.raises(MergeRefused) as caught:
        await store.commit({key("b"): put(1), key("a"): wrong})
    assert caught.value.key == key("a")
    assert caught.value.reason
    assert await store.version(key("a")) == first.version
    assert await store.entry(key("b")) is None
    assert await store.feed(first.token) == []


@in_both_worlds
async def test_a_conflict_is_named_before_a_bound(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(0)})
    await store.refused({key("a"): merge("add", -1, floor=0)}, reads={key("b"): (1, 1)})


@in_both_worlds
async def test_a_merge_keeps_the_set_and_list_forms_of_plain_puts(world: World) -> None:
    store = world.open()
    await store.commit({key("s"): merge("set_add", 3, "b", 1, "a"), key("l"): merge("append", 1, "two")})
    entries = (await store.backend.read([key("s"), key("l")])).entries
    assert [entry.value for entry in entries if entry is not None] == [
        codec.freeze({1, 3, "a", "b"}),
        codec.freeze([1, "two"]),
    ]


@in_both_worlds
async def test_old_snapshots_show_the_value_before_a_merge(world: World) -> None:
    store = world.open()
    tokens = [(await store.commit({key("a"): merge("add", 1)})).token for _ in range(10)]
    assert [await store.value(key("a"), token) for token in tokens] == list(range(1, 11))


@in_both_worlds
async def test_the_feed_has_the_operands_of_merges(world: World) -> None:
    store = world.open()
    writes: dict[Key, Write] = {key("a"): merge("add", 1, 2, floor=0), key("b"): merge("append", "x"), key("c"): put(1)}
    await store.commit(writes)
    (change,) = await store.feed()
    assert dict(change.writes) == writes
    assert change.reads == {}
