"""What a session sees: its own writes over its snapshot, by key, many at once, and by range, in every mode.

Every answer is compared with `Plain`, a dict with the same calls. The keys are chosen for their order: texts that
begin alike, characters that a range must not take for its end, tuples and texts side by side.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import interlock
from interlock import keys
from interlock.testing.conformance.sessions.desk import MODES, Desk, at_desk, contents, fill, listed

Key = interlock.Key
Modes = pytest.mark.parametrize("mode", MODES)

KEYS: tuple[Key, ...] = (
    "a", "ab", "a\0", "a%", "a_", "b", "z", "\u00e9", "\U0001f600", "*", "a/b",
    ("a",), ("a", 0), ("a", 1), ("a", -1), ("a", 256), ("a", "b"), ("a", "b", 1), ("ab", 1), ("t", "a", "x"), (7,),
)  # fmt: skip


class Plain:
    """A dict that is read in key order, with the calls of a session."""

    def __init__(self, rows: dict[Key, int]) -> None:
        self.rows = dict(rows)

    def inside(
        self, prefix: Key | None = None, start: Key | None = None, stop: Key | None = None
    ) -> Callable[[Key], bool]:
        """Whether a key lies in a range, decided without the library's encoding."""

        def begins(key: Key) -> bool:
            if isinstance(prefix, str):
                return isinstance(key, str) and key.startswith(prefix)
            return isinstance(prefix, tuple) and isinstance(key, tuple) and key[: len(prefix)] == prefix

        def between(key: Key) -> bool:
            return (start is None or order(start) <= order(key)) and (stop is None or order(key) < order(stop))

        return between if prefix is None else begins

    def scan(self, limit: int | None = None, reverse: bool = False, **where: Any) -> list[tuple[Key, int]]:
        """Rows in order."""
        inside = self.inside(**where)
        rows = sorted(((key, value) for key, value in self.rows.items() if inside(key)), key=lambda row: order(row[0]))
        return (rows[::-1] if reverse else rows)[:limit]


def order(key: Key) -> Any:
    """How keys compare: texts before tuples, and within a tuple texts before numbers."""
    if isinstance(key, str):
        return (0, [key])
    return (1, [(0, part, 0) if isinstance(part, str) else (1, "", part) for part in key])


RANGES: tuple[dict[str, Any], ...] = (
    {}, {"prefix": "a"}, {"prefix": "a%"}, {"prefix": "\u00e9"}, {"prefix": "a\0"}, {"prefix": ("a",)},
    {"prefix": ("a", "b")}, {"prefix": ("a", 0)}, {"prefix": ("t", "a")}, {"prefix": (7,)}, {"prefix": "nothing"},
    {"start": "ab"}, {"stop": "b"}, {"start": "a", "stop": "b"}, {"start": "b", "stop": "a"}, {"start": ("a", 0)},
    {"start": ("a", -1), "stop": ("a", 256)}, {"start": "z", "stop": ("a", "b")}, {"start": ("a", "b")},
)  # fmt: skip


def test_the_order_of_keys_is_the_order_of_their_bytes() -> None:
    assert sorted(KEYS, key=order) == sorted(KEYS, key=keys.encode)


@Modes
@at_desk
async def test_a_session_sees_its_own_writes(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, {"kept": 1, "changed": 1, "removed": 1})
    async with things.session(isolation=mode) as session:
        assert await session.read("none") is None
        assert await session.read("none", 7) == 7
        await session.write("new", None)
        assert await session.read("new", 7) is None
        assert await session.exists("new")
        await session.write("changed", 2)
        assert await session.expect("changed") == 2
        await session.delete("removed")
        assert await session.read("removed", "gone") == "gone"
        assert not await session.exists("removed")
        assert await session.update("changed", lambda value: value + 1) == 3
        assert await session.update("fresh", lambda value: value + 1, 40) == 41
        assert await session.read_many(["kept", "changed", "removed", "new", "fresh", "none", "kept"]) == {
            "kept": 1,
            "changed": 3,
            "new": None,
            "fresh": 41,
        }
        assert await contents(session) == {
            "changed": 3,
            "fresh": 41,
            "kept": 1,
            "new": None,
        }
        await session.write("removed", 5)
        assert await session.read("removed") == 5
    assert await contents(things) == {"changed": 3, "fresh": 41, "kept": 1, "new": None, "removed": 5}


@Modes
@at_desk
async def test_nobody_sees_what_is_not_committed(desk: Desk, mode: interlock.Isolation) -> None:
    things, theirs = desk.resource(), desk.resource()
    await fill(things, {"a": 1, "b": 1})
    mine = await things.begin(isolation=mode)
    await mine.write("a", 2)
    await mine.delete("b")
    await mine.clear("c")
    assert await contents(theirs) == {"a": 1, "b": 1}
    await mine.rollback()
    assert await contents(theirs) == {"a": 1, "b": 1}


@at_desk
async def test_values_read_are_copies(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"a": {"list": [1]}})
    async with things.session() as session:
        value = await session.expect("a")
        value["list"].append(2)
        assert await session.read("a") == {"list": [1]}
        await session.write("b", value)
        value["list"].append(3)
        assert await session.read("b") == {"list": [1, 2]}
        for _, found in await listed(session.scan()):
            found["list"].clear()
        assert await session.read_many(["a", "b"]) == {"a": {"list": [1]}, "b": {"list": [1, 2]}}
    assert await contents(things) == {"a": {"list": [1]}, "b": {"list": [1, 2]}}


@Modes
@at_desk
async def test_ranges_are_what_a_dict_would_give(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    plain = Plain({key: number for number, key in enumerate(KEYS) if number % 4 != 3})
    await fill(things, plain.rows)
    async with things.session(isolation=mode) as session:
        await _compare_ranges(session, plain)
        for number, key in enumerate(KEYS):
            if number % 3 == 0:
                await session.write(key, plain.rows.setdefault(key, 0))
            elif number % 3 == 1:
                await session.delete(key)
                plain.rows.pop(key, None)
            else:
                await session.add(key, 100)
                plain.rows[key] = plain.rows.get(key, 0) + 100
        await _compare_ranges(session, plain)
    assert await contents(things) == plain.rows


async def _compare_ranges(session: interlock.AgentSession[Any], plain: Plain) -> None:
    for where in RANGES:
        for limit in (None, 1, 2, 5):
            for reverse in (False, True):
                found = await listed(session.scan(**where, limit=limit, reverse=reverse))
                assert found == plain.scan(limit, reverse, **where), (where, limit, reverse)


@at_desk
async def test_diagnostic_scans_show_the_same(desk: Desk) -> None:
    things, neighbour = desk.resource(), desk.resource("things\0")
    plain = Plain({key: number for number, key in enumerate(KEYS)})
    await fill(things, plain.rows)
    await fill(neighbour, {"a": "not ours", ("a",): "not ours"})
    for where in RANGES:
        for limit in (None, 3):
            for reverse in (False, True):
                found = await listed(things.scan(**where, limit=limit, reverse=reverse))
                assert found == plain.scan(limit, reverse, **where)


@pytest.mark.parametrize("mode", ["snapshot", "serializable"])
@at_desk
async def test_pages_join_without_gaps(desk: Desk, mode: interlock.Isolation) -> None:
    """More rows than any page has, half of them rewritten, with own rows between and behind them."""
    things = desk.resource()
    plain = Plain({("n", number): number for number in range(0, 2600, 2)})
    await fill(things, plain.rows)
    chance = random.Random(5)
    async with things.session(isolation=mode) as session:
        assert await listed(session.scan()) == plain.scan()
        for number in chance.sample(range(3000), 600):
            if number % 3:
                plain.rows[("n", number)] = -number
                await session.write(("n", number), -number)
            else:
                plain.rows.pop(("n", number), None)
                await session.delete(("n", number))
        for limit, reverse in ((None, False), (None, True), (1500, True), (40, False)):
            assert await listed(session.scan(("n",), limit=limit, reverse=reverse)) == plain.scan(limit, reverse)
        counted = 0
        async for key, _ in session.scan(start=("n", 100)):
            counted += 1
            if counted == 70:
                assert key == plain.scan(70, start=("n", 100))[-1][0]
                break


@Modes
@at_desk
async def test_clear_and_update_where(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    plain = Plain({key: number for number, key in enumerate(KEYS)})
    await fill(things, plain.rows)
    async with things.session(isolation=mode) as session:
        for where in ({"prefix": "a%"}, {"prefix": ("a", "b")}, {"start": "b", "stop": "z"}):
            inside = plain.inside(**where)
            await session.clear(**where)
            plain.rows = {key: value for key, value in plain.rows.items() if not inside(key)}
            assert await listed(session.scan()) == plain.scan()
        await session.write("bb", 7)
        await session.add(("a", "b", 2), 5)
        plain.rows |= {"bb": 7, ("a", "b", 2): 5}
        assert await session.read("b") is None
        assert await session.read(("a", "b", 2)) == 5
        changed = await session.update_where(lambda key, value: interlock.DELETE if value % 2 else value + 10, "a")
        assert changed == len(plain.scan(prefix="a"))
        for key, value in plain.scan(prefix="a"):
            plain.rows.pop(key)
            if not value % 2:
                plain.rows[key] = value + 10
        assert await session.update_where(lambda key, value: value) == 0
        assert await listed(session.scan()) == plain.scan()
    assert await listed(things.scan()) == plain.scan()
    async with things.session(isolation=mode) as session:
        await session.clear()
        assert await listed(session.scan()) == []
    assert await contents(things) == {}


@at_desk
async def test_a_clear_also_takes_what_comes_before_the_commit(desk: Desk) -> None:
    """Unlike deletes of what was scanned, it is a statement about the range."""
    things = desk.resource()
    await fill(things, {"a1": 1, "b": 1})
    clearing = await things.begin()
    await clearing.clear("a")
    await clearing.write("a3", 3)
    await fill(things, {"a1": 2, "a2": 2})
    await clearing.commit()
    assert await contents(things) == {"a3": 3, "b": 1}


@at_desk
async def test_a_session_of_the_store_spans_resources(desk: Desk) -> None:
    store = desk.open()
    left, right = store.resource("left"), store.resource("right", int)
    async with store.session() as session:
        await session.on(left).write("a", "text")
        await session.on(right).write("a", 1)
        assert await session.on(left).read("a") == "text"
        with pytest.raises(interlock.UsageError, match="no resource"):
            await session.read("a")
    assert await left.read("a") == "text"
    assert await right.read("a") == 1
    async with left.session() as one:
        await one.on(right).update("a", lambda value: value + 1)
        await one.delete("a")
        with pytest.raises(interlock.UsageError, match="another store"):
            await one.on(desk.elsewhere().resource("left")).read("a")
        await one.rollback()
    assert await left.read("a") == "text"


@at_desk
async def test_ranges_that_make_no_sense_are_refused(desk: Desk) -> None:
    things = desk.resource()
    for where in ({"prefix": "a", "start": "b"}, {"prefix": ""}, {"prefix": ()}, {"limit": 0}, {"limit": True}):
        session = await things.begin()
        with pytest.raises(interlock.UsageError):
            await listed(session.scan(**where))
        with pytest.raises(interlock.UsageError):
            await listed(things.scan(**where))
        await session.rollback()
