"""Merges in a session: folded into own writes, seen by own reads, applied to the newest value, bounded, custom."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import MODES, VALIDATING, Desk, at_desk, contents, fill, listed

Modes = pytest.mark.parametrize("mode", MODES)


async def _every_merge(session: interlock.AgentSession[Any]) -> None:
    await session.add("number", 2)
    await session.add("number", 3)
    await session.add("money", Decimal("0.10"))
    await session.append("list", {"x": 1})
    await session.append("list", 2)
    await session.set_add("set", "b")
    await session.set_add("set", 1)
    await session.set_remove("set", "a")
    await session.maximum("high", 5)
    await session.minimum("low", 5)
    await session.merge("last", "new", using="last")


MERGED = {
    "number": 5,
    "money": Decimal("0.10"),
    "list": [{"x": 1}, 2],
    "set": {"b", 1},
    "high": 5,
    "low": 5,
    "last": "new",
}
BEFORE = {"number": 10**30, "money": Decimal("0.20"), "list": [0], "set": {"a", b"c"}, "high": 7, "low": 7, "last": 0}
AFTER = {
    "number": 10**30 + 5,
    "money": Decimal("0.30"),
    "list": [0, {"x": 1}, 2],
    "set": {"b", 1, b"c"},
    "high": 7,
    "low": 5,
    "last": "new",
}


@Modes
@at_desk
async def test_merges_of_absent_keys(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    async with things.session(isolation=mode) as session:
        await _every_merge(session)
    assert await contents(things) == MERGED


@Modes
@at_desk
async def test_merges_of_values(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, BEFORE)
    async with things.session(isolation=mode) as session:
        await _every_merge(session)
    assert await contents(things) == AFTER


@Modes
@at_desk
async def test_merges_fold_into_own_writes(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, dict.fromkeys(BEFORE, "something else"))
    async with things.session(isolation=mode) as session:
        for key, value in BEFORE.items():
            await session.write(key, value)
        await _every_merge(session)
        assert await contents(session) == AFTER
        for key in BEFORE:
            await session.delete(key)
        await _every_merge(session)
        assert {key: await session.read(key) for key in MERGED} == MERGED
        await session.clear()
        await _every_merge(session)
        assert await contents(session) == MERGED
    assert await contents(things) == MERGED


@Modes
@at_desk
async def test_a_write_takes_back_earlier_merges(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, {"a": 1, "b": 1, "c": 1})
    async with things.session(isolation=mode) as session:
        for key in "abc":
            await session.add(key, 10)
        await session.write("a", 5)
        await session.delete("b")
        await session.clear("c")
        assert await contents(session) == {"a": 5}
    assert await contents(things) == {"a": 5}


@Modes
@at_desk
async def test_a_read_shows_pending_merges(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, {"a": 1})
    async with things.session(isolation=mode) as session:
        await session.add("a", 2)
        await session.add("z", 2)
        assert await session.read("a") == 3
        assert await session.expect("z") == 2
        assert await session.exists("z")
        assert await session.read_many(["a", "z"]) == {"a": 3, "z": 2}
        assert await listed(session.scan(reverse=True)) == [("z", 2), ("a", 3)]
        assert await session.update("a", lambda value: value * 10) == 30
    assert await contents(things) == {"a": 30, "z": 2}


@Modes
@at_desk
async def test_merges_of_keys_never_read_do_not_conflict(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, {"a": 1, "other": 1})
    first, second = await things.begin(isolation=mode), await things.begin(isolation=mode)
    for session in (first, second):
        await session.read("other")
        await session.add("a", 1)
        await session.append("log", 1)
    await first.commit()
    await second.commit()
    assert await contents(things) == {"a": 3, "log": [1, 1], "other": 1}


@pytest.mark.parametrize("mode", VALIDATING)
@pytest.mark.parametrize("how", ["read before", "read after", "scan before", "scan after"])
@at_desk
async def test_a_key_that_is_merged_and_read_counts_as_read(desk: Desk, mode: interlock.Isolation, how: str) -> None:
    """By key and by range, where there is a value and where there is none, and for registered merges too."""
    for key, custom in (("a", False), ("z", False), ("a", True), ("z", True)):
        things = desk.elsewhere().resource("things")
        things.register_merge("sum", _sum)
        await fill(things, {"a": 1})
        session = await things.begin(isolation=mode)
        if how == "read before":
            await session.read(key)
        elif how == "scan before":
            await listed(session.scan(key))
        await (session.merge(key, 1, using="sum") if custom else session.add(key, 1))
        if how == "read after":
            assert await session.read(key) == (2 if key == "a" else 1)
        elif how == "scan after":
            assert await listed(session.scan(key)) == [(key, 2 if key == "a" else 1)]
        await fill(things, {key: 5})
        if how == "scan before" and key == "z" and mode != "serializable":
            await session.commit()  # a phantom: nothing was seen there
            assert await things.read(key) == 6
            continue
        with pytest.raises(interlock.ConflictError):
            await session.commit()
        assert await things.read(key) == 5


def _sum(value: int | None, operand: int) -> int:
    return (value or 0) + operand


@at_desk
async def test_a_merge_conflicts_with_those_who_read(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"a": 1, "b": 1})
    reader = await things.begin()
    assert await reader.read("a") == 1
    async with things.session() as session:
        await session.add("a", 1)
    await reader.write("b", 2)
    with pytest.raises(interlock.ReadConflict):
        await reader.commit()
    reader = await things.begin()
    assert await reader.read("a") == 2
    async with things.session() as session:
        await session.add("a", 0)
        await session.maximum("a", 1)
        await session.set_remove("nothing", 1)
    await reader.write("b", 2)
    await reader.commit()  # what leaves the bytes as they were is no change


@Modes
@at_desk
async def test_bounds(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, {"stock": 2, "money": Decimal(5), "low": -5})
    async with things.session(isolation=mode) as session:
        await session.add("stock", -2, floor=0)
        await session.add("stock", 3, ceiling=3)
        await session.add("low", 1, floor=0)  # a step away from a bound is never refused
        await session.add("new", 4, floor=0, ceiling=4)
    assert await contents(things) == {"stock": 3, "money": Decimal(5), "low": -4, "new": 4}
    for key, amount, bounds, current in (
        ("stock", -4, {"floor": 0}, 3),
        ("stock", 1, {"ceiling": 3}, 3),
        ("money", Decimal("-5.01"), {"floor": Decimal(0)}, Decimal(5)),
        ("nothing", -1, {"floor": 0}, 0),
    ):
        session = await things.begin(isolation=mode)
        await session.write("side", 1)
        await session.add(key, amount, **bounds)
        with pytest.raises(interlock.InvariantError) as caught:
            await session.commit()
        bound = next(iter(bounds.values()))
        error = caught.value
        assert (error.resource, error.key, error.current, error.bound) == ("things", key, current, bound)
        assert error.invariant in bounds
        assert not error.retryable
        assert error.transaction_id == session.transaction_id
        assert str(amount) in str(error)
    assert not await things.read("side")


@at_desk
async def test_bounds_hold_after_each_step_and_where_they_are_folded(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"a": 1})
    session = await things.begin()
    await session.add("a", -2, floor=0)
    await session.add("a", 5)
    with pytest.raises(interlock.InvariantError):
        await session.commit()
    session = await things.begin()
    await session.write("a", 1)
    with pytest.raises(interlock.InvariantError) as caught:
        await session.add("a", -2, floor=0)
    assert (caught.value.key, caught.value.current, caught.value.bound) == ("a", 1, 0)
    with pytest.raises(interlock.InvariantError):
        await session.commit()  # a failed call dooms
    session = await things.begin()
    await session.add("a", -2, floor=0)
    with pytest.raises(interlock.InvariantError):
        await session.read("a")
    await session.rollback()
    assert await things.read("a") == 1


@at_desk
async def test_merges_that_do_not_fit_are_refused(desk: Desk) -> None:
    things = desk.resource()
    stored = {"text": "x", "number": 1, "money": Decimal(1), "tuple set": {(1, 2)}}
    await fill(things, stored)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("add", ("number", 1.5), {}),
        ("add", ("number", True), {}),
        ("add", ("number", 1), {"floor": Decimal(0)}),
        ("add", ("number", 1), {"ceiling": 1.0}),
        ("add", ("number", Decimal("NaN")), {}),
        ("set_add", ("x", 1.5), {}),
        ("set_add", ("x", True), {}),
        ("append", ("x", object()), {}),
        ("append", ("x", float("nan")), {}),
        ("maximum", ("x", {}), {}),
        ("maximum", ("x", True), {}),
        ("merge", ("x", object(), "last"), {}),
    ]
    for name, arguments, named in calls:
        session = await things.begin()
        with pytest.raises(interlock.ValueRefusedError):
            await getattr(session, name)(*arguments, **named)
        await session.rollback()
    for name, arguments in (
        ("add", ("text", 1)),
        ("add", ("money", 1)),
        ("add", ("number", Decimal(1))),
        ("append", ("number", 1)),
        ("set_add", ("tuple set", 1)),
        ("maximum", ("text", 1)),
        ("minimum", ("number", Decimal(1))),
    ):
        session = await things.begin()
        await getattr(session, name)(*arguments)
        with pytest.raises(interlock.ValueRefusedError, match=str(arguments[0])):
            await session.commit()
    assert await contents(things) == stored


@Modes
@at_desk
async def test_registered_merges(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()

    @things.register_merge("widen")
    def widen(value: list[int] | None, operand: int) -> list[int]:
        low, high = value or [operand, operand]
        return [min(low, operand), max(high, operand)]

    async with things.session(isolation=mode) as session:
        await session.merge("a", 5, using="widen")
        await session.merge("a", 2, using="widen")
        assert await session.read("a") == [2, 5]
        await session.write("b", [0, 0])
        await session.merge("b", 9, using="widen")
        assert await contents(session) == {"a": [2, 5], "b": [0, 9]}
    assert await contents(things) == {"a": [2, 5], "b": [0, 9]}
    async with things.session(isolation=mode) as session:
        await session.append("a", 4)
        with pytest.raises(ValueError, match="unpack"):
            await session.merge("b", 1, using="widen")
            await session.append("b", 1)
            await session.merge("b", 2, using="widen")
            await session.read("b")
        await session.rollback()
    assert await contents(things) == {"a": [2, 5], "b": [0, 9]}


@Modes
@at_desk
async def test_registered_merges_are_repeated_without_the_function(desk: Desk, mode: interlock.Isolation) -> None:
    """What others commit meanwhile is merged with; the agent's own function runs once."""
    things, theirs = desk.resource(), desk.resource()
    await fill(things, {"a": 1})
    seen: list[int | None] = []
    runs = 0

    @things.register_merge("sum")
    def total(value: int | None, operand: int) -> int:
        seen.append(value)
        return (value or 0) + operand

    async def agent(session: interlock.AgentSession[Any]) -> None:
        nonlocal runs
        runs += 1
        await session.merge("a", 10, using="sum")
        await session.add("a", 100)
        await fill(theirs, {"a": 5})

    await things.run(agent, isolation=mode)
    assert await things.read("a") == 115
    assert (runs, seen[-1]) == (1, 5)


@at_desk
async def test_registered_merges_of_many_agents_lose_nothing(desk: Desk) -> None:
    store = desk.open()
    things = store.resource("things")
    things.register_merge("sum", _sum)

    async def agent() -> None:
        for _ in range(5):
            async with things.session() as session:
                await session.merge("a", 1, using="sum")
                await desk.give_way()

    await desk.together(*[agent] * 6)
    assert await things.read("a") == 30


@at_desk
async def test_an_operand_is_what_it_was_when_it_was_given(desk: Desk) -> None:
    things = desk.resource()
    operand = {"tags": ["new"]}

    @things.register_merge("extend")
    def extend(value: dict[str, list[str]] | None, given: dict[str, list[str]]) -> dict[str, list[str]]:
        given["tags"].insert(0, *(value or {"tags": ["first"]})["tags"])
        return given

    async with things.session() as session:
        await session.merge("a", operand, using="extend")
        operand["tags"].append("changed later")
        assert await session.read("a") == {"tags": ["first", "new"]}
        assert await session.read("a") == {"tags": ["first", "new"]}
    assert await things.read("a") == {"tags": ["first", "new"]}


@at_desk
async def test_merge_functions_are_named_once(desk: Desk) -> None:
    things = desk.resource()
    assert things.register_merge("sum", _sum) is _sum
    assert things.register_merge("sum", _sum) is _sum
    for name in ("sum", "last", "", 7):
        with pytest.raises(interlock.UsageError):
            things.register_merge(name, lambda value, operand: operand)  # type: ignore[arg-type]
    with pytest.raises(interlock.UsageError):
        things.register_merge("other", 7)  # type: ignore[call-overload]
    session = await things.begin()
    with pytest.raises(interlock.UsageError, match="sum"):
        await session.merge("a", 1, using="unknown")
    await session.rollback()
