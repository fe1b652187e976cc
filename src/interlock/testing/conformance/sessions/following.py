"""The feed and the history in the words of users: what was committed, by whom, on what it was based."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import MODES, Desk, at_desk, contents, fill, listed

Session = interlock.AgentSession[Any]


async def append(session: Session, key: str, value: Any) -> None:
    """Write one value, after reading it."""
    await session.write(key, [*await session.read(key, []), value])


@at_desk
async def test_a_change_tells_everything(desk: Desk) -> None:
    store = desk.open()
    things, others = store.resource("things"), store.resource("others")
    await fill(things, {"a": 1, "b": 1, "gone": 1, ("t", 1): 1, "c1": 1, "c2": 1})
    before = (await listed(store.log.changes()))[-1]
    begun = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
    async with things.session(agent="ada", run_id="run 7") as session:
        await session.read("a")
        await session.read("absent")
        await listed(session.scan(("t",)))
        await session.write("a", {"x": Decimal("1.5")})
        await session.delete("gone")
        await session.clear("c")
        await session.add("b", 5, floor=0, ceiling=9)
        await session.append("list", (1, 2))
        await session.append("list", "two")
        await session.set_add("set", b"x")
        await session.on(others).write(("o", 1), None)
        transaction_id = session.transaction_id
    (change,) = await listed(store.log.changes(before.cursor))
    assert change == await store.log.get(transaction_id)
    assert (change.transaction_id, change.agent, change.run_id) == (transaction_id, "ada", "run 7")
    assert (change.isolation, change.operation, change.attempts) == ("serializable", None, 1)
    assert change.at.tzinfo is dt.UTC
    assert begun < change.at
    assert change.reads == {("things", "a"): before.version, ("things", "absent"): None}
    assert len(change.spans) == 1
    kinds = {place: (written.kind, written.value) for place, written in change.writes.items()}
    assert kinds == {
        ("things", "a"): ("put", {"x": Decimal("1.5")}),
        ("things", "gone"): ("delete", None),
        ("things", "c1"): ("clear", None),
        ("things", "c2"): ("clear", None),
        ("things", "b"): ("merge", None),
        ("things", "list"): ("merge", None),
        ("things", "set"): ("merge", None),
        ("others", ("o", 1)): ("put", None),
    }
    assert change.writes["things", "b"].operations == (("add", 5, 0, 9),)
    assert change.writes["things", "list"].operations == (
        ("append", (1, 2), None, None),
        ("append", "two", None, None),
    )
    assert change.writes["things", "set"].operations == (("set_add", b"x", None, None),)
    entry = await things.entry("a")
    assert entry is not None
    assert entry.version == change.version


@pytest.mark.parametrize("mode", MODES)
@at_desk
async def test_reads_are_recorded_in_every_mode(desk: Desk, mode: interlock.Isolation) -> None:
    """So that a history can be judged afterwards, also of the modes that do not validate."""
    store = desk.open()
    things = store.resource("things")
    await fill(things, {"a": 1, "b": 1, "blind": 1})
    async with things.session() as session:
        await session.delete("b")
    async with things.session(isolation=mode) as session:
        await session.read_many(["a", "b", "c"])
        await session.write("d", 1)
        await session.write("blind", 2)
    first, deletion, change = await listed(store.log.changes())
    assert change.isolation == mode
    assert change.reads == {
        ("things", "a"): first.version,
        ("things", "b"): deletion.version,
        ("things", "c"): None,
    }


@at_desk
async def test_each_committed_transaction_is_there_once(desk: Desk) -> None:
    """In an order in which each comes after what it has read."""
    store = desk.open()
    things = store.resource("things")
    done: list[str] = []

    async def agent(number: int) -> None:
        for turn in range(4):
            each = await things.run_detailed(append, f"k{(number + turn) % 3}", (number, turn))
            done.append(each.transaction_id)

    await desk.together(*[partial(agent, number) for number in range(5)])
    changes = await listed(store.log.changes())
    assert sorted(change.transaction_id for change in changes) == sorted(done)
    newest: dict[Any, str | None] = {}
    lists: dict[Any, list[Any]] = {}
    for change in changes:
        for place, version in change.reads.items():
            assert newest.get(place) == version
        for place, written in change.writes.items():
            assert written.value[:-1] == lists.get(place, [])
            newest[place], lists[place] = change.version, written.value
    assert {key: lists["things", key] for key in ("k0", "k1", "k2")} == await contents(things)
    assert len(changes) == 20


@at_desk
async def test_a_feed_can_be_resumed_anywhere(desk: Desk) -> None:
    store, second = desk.open(), desk.open()
    things = store.resource("things")
    start = await store.log.head()
    assert await listed(store.log.changes(start)) == []
    cursors = [start]
    for number in range(7):
        done = await things.run_detailed(append, "a", number)
        assert done.cursor is not None
        cursors.append(done.cursor)
    whole = await listed(store.log.changes())
    assert [change.cursor for change in whole] == cursors[1:]
    for place, cursor in enumerate(cursors):
        assert await listed(second.log.changes(cursor)) == whole[place:]
    assert await store.log.head() == cursors[-1]
    assert all(type(cursor) is str and cursor.isascii() for cursor in cursors)
    async for change in store.log.changes():
        assert change == whole[0]
        break
    begun = await things.begin()
    await begun.read("a")
    assert await listed(store.log.changes(begun.snapshot)) == []
    await begun.rollback()


@at_desk
async def test_what_left_no_trace_is_not_in_the_feed(desk: Desk) -> None:
    store = desk.open()
    things = store.resource("things")
    await fill(things, {"a": 1})
    head = await store.log.head()
    async with things.session() as session:
        await session.read("a")
        await session.check()
    with pytest.raises(interlock.InvariantError):
        async with things.session() as session:
            await session.add("a", -5, floor=0)
    async with things.session() as session:
        await session.write("b", 1)
        await session.rollback()
    assert await store.log.get(session.transaction_id) is None
    assert await listed(store.log.changes(head)) == []


@at_desk
async def test_cursors_of_others_and_of_nobody_are_refused(desk: Desk) -> None:
    store, elsewhere = desk.open(), desk.elsewhere()
    await fill(elsewhere.resource("things"), {"a": 1})
    foreign = await elsewhere.log.head()
    with pytest.raises(interlock.UsageError):
        await listed(store.log.changes(foreign))
    with pytest.raises(interlock.UsageError):
        await store.log.wait(foreign, timeout_seconds=0)
    for wrong in ("", "nonsense", "é", foreign[:-4], foreign + "AAAA", 7):
        with pytest.raises(interlock.UsageError, match="cursor"):
            await listed(store.log.changes(wrong))  # type: ignore[arg-type]
        with pytest.raises(interlock.UsageError, match="cursor"):
            await store.log.wait(wrong, timeout_seconds=0)  # type: ignore[arg-type]
    for wrong in ("", "x" * 32, 7):
        with pytest.raises(interlock.UsageError, match="id"):
            await store.log.get(wrong)  # type: ignore[arg-type]
    assert await store.log.get("0" * 32) is None


@at_desk
async def test_a_feed_that_has_gone_on_without_its_reader_says_so(desk: Desk) -> None:
    store = desk.open(history_seconds=1e-6)
    things = store.resource("things")
    start = await store.log.head()
    for number in range(3):
        await things.run(append, "a", number)
    await store.compact()
    with pytest.raises(interlock.SnapshotTooOldError):
        await listed(store.log.changes(start))
    head = await store.log.head()
    await things.run(append, "a", 3)
    assert len(await listed(store.log.changes(head))) == 1
    kept = await listed(store.log.changes())
    assert kept[-1].writes["things", "a"].value == [0, 1, 2, 3]


@at_desk
async def test_waiting_for_news(desk: Desk) -> None:
    store, theirs = desk.open(), desk.open()
    things = theirs.resource("things")
    head = await store.log.head()
    assert not await store.log.wait(head, timeout_seconds=0.01)
    await things.run(append, "a", 1)
    assert await store.log.wait(head, timeout_seconds=0)
    head = await store.log.head()

    async def wait() -> bool:
        return await store.log.wait(head, timeout_seconds=20)

    async def write() -> bool:
        await desk.give_way()
        await things.run(append, "a", 2)
        return True

    assert await desk.together(wait, write) == [True, True]


@at_desk
async def test_following_what_others_do(desk: Desk) -> None:
    store, theirs = desk.open(), desk.open()
    things = theirs.resource("things")
    await things.run(append, "a", 0)

    async def follow() -> list[Any]:
        seen: list[Any] = []
        async for change in store.log.changes(follow=True):
            seen += change.writes["things", "a"].value[-1:]
            if len(seen) == 6:
                break
        return seen

    async def write() -> list[Any]:
        for number in range(1, 6):
            await things.run(append, "a", number)
            await desk.give_way()
        return []

    assert (await desk.together(follow, write))[0] == [0, 1, 2, 3, 4, 5]


@at_desk
async def test_history_and_entry(desk: Desk) -> None:
    store = desk.open()
    things = store.resource("things")
    assert await things.entry("a") is None
    assert await listed(things.history("a")) == []
    for agent, value in (("ada", 1), ("bob", None), ("cyd", 3)):
        async with things.session(agent=agent) as session:
            await (session.write("a", value) if value else session.delete("a"))
    newest, deletion, oldest = await listed(things.history("a"))
    assert [(each.value, each.agent, each.deleted) for each in (newest, deletion, oldest)] == [
        (3, "cyd", False),
        (None, "bob", True),
        (1, "ada", False),
    ]
    assert newest == await things.entry("a")
    assert newest.key == "a"
    assert newest.at is not None
    assert newest.at.tzinfo is dt.UTC
    change = await store.log.get(newest.transaction_id)
    assert change is not None
    assert (change.version, change.at) == (newest.version, newest.at)
    assert await listed(things.history("a", limit=2)) == [newest, deletion]
    async with things.session() as session:
        await session.delete("a")
    assert await things.entry("a") is None
    assert await things.get("a", "gone") == await things.read("a", "gone") == "gone"


@at_desk
async def test_diagnostic_reads_are_refused_inside_sessions(desk: Desk) -> None:
    """They would not be validated, and nearly always `session.read` was meant."""
    store = desk.open()
    things, others, elsewhere = store.resource("things"), desk.resource(), desk.elsewhere().resource("things")
    await fill(things, {"a": 1})

    async def every(resource: interlock.SharedResource[Any]) -> None:
        await resource.read("a")
        await resource.get("a")
        await resource.entry("a")
        await listed(resource.scan())
        await listed(resource.history("a"))

    async with things.session() as session:
        for call in (
            lambda: things.read("a"),
            lambda: things.get("a"),
            lambda: things.entry("a"),
            lambda: listed(things.scan()),
            lambda: listed(things.history("a")),
            lambda: store.resource("another").read("a"),
        ):
            with pytest.raises(interlock.UsageError, match=r"session\."):
                await call()
        await every(others)
        await every(elsewhere)
        assert await session.read("a") == 1
        await session.commit()
        await every(things)
    await every(things)
    begun = await things.begin()
    await every(things)
    await begun.rollback()
