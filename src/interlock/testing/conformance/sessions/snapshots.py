"""Which state a session reads: one snapshot, `check`, and how it moves forward while nothing that was read has changed.

`session.snapshot` is a cursor of the feed, so a test can ask where a session stands: everything behind the cursor is
what the snapshot does not contain.
"""

from __future__ import annotations

from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import MODES, Desk, at_desk, contents, fill, listed
from interlock.testing.conformance.sessions.faults import Lossy

Session = interlock.AgentSession[Any]
Modes = pytest.mark.parametrize("mode", MODES)
Extending = pytest.mark.parametrize("mode", ["optimistic", "serializable"])


async def behind(store: interlock.Store, session: Session) -> int:
    """How many commits lie behind a session's snapshot."""
    assert session.snapshot is not None
    return len(await listed(store.log.changes(session.snapshot)))


@Modes
@at_desk
async def test_a_snapshot_is_taken_when_it_is_needed(desk: Desk, mode: interlock.Isolation) -> None:
    store = desk.open()
    things = store.resource("things")
    await fill(things, {"a": 1})
    session = await things.begin(isolation=mode)
    assert session.snapshot is None
    await fill(things, {"a": 2})
    assert await session.read("a") == 2
    assert await behind(store, session) == 0
    await fill(things, {"a": 3})
    assert await behind(store, session) == 1
    assert await session.read("a") == (3 if mode == "none" else 2)
    await session.rollback()
    writer = await things.begin(isolation=mode)
    await writer.write("b", 1)
    assert (writer.snapshot is None) == (mode in ("none", "serializable"))
    await writer.rollback()


@Modes
@at_desk
async def test_a_reader_sees_one_state_and_never_aborts(desk: Desk, mode: interlock.Isolation) -> None:
    """Pairs that are always written together are equal in every read, by key and by range, however late it comes."""
    if mode == "none":
        return
    things = desk.resource()
    keys = ["a", "b", "c", "d"]
    await fill(things, dict.fromkeys(keys, 0))
    session = await things.begin(isolation=mode)
    first = await session.read("a")
    for number in range(1, 4):
        await fill(things, dict.fromkeys(keys, number))
        assert {first, await session.read(keys[number])} == {0}
        assert set((await session.read_many(keys)).values()) == {0}
        assert set((await contents(session)).values()) == {0}
    await fill(things, {"e": 1})
    assert await session.read("e") is None
    assert await session.read_many(["e", "a"]) == {"a": 0}
    assert (await session.commit()).cursor is None


@Extending
@at_desk
async def test_a_read_of_something_newer_moves_the_snapshot(desk: Desk, mode: interlock.Isolation) -> None:
    store = desk.open()
    things = store.resource("things")
    await fill(things, {"a": 1, "b": 1, "c": 1, ("n", 1): 1})
    session = await things.begin(isolation=mode)
    assert await session.read("a") == 1
    await fill(things, {"b": 2})
    assert await session.read("a") == 1
    assert await behind(store, session) == 1  # what is known already is not asked for again
    assert await session.read("b") == 2
    assert await behind(store, session) == 0
    await fill(things, {"c": 3})
    assert await session.read_many(["c", "a"]) == {"a": 1, "c": 3}
    await fill(things, {("n", 2): 2})
    assert await listed(session.scan(("n",))) == [(("n", 1), 1), (("n", 2), 2)]
    await session.write("d", 1)
    await session.commit()


@Extending
@at_desk
async def test_the_snapshot_stays_where_something_read_has_changed(desk: Desk, mode: interlock.Isolation) -> None:
    """Who only reads goes on with the old state; who has written conflicts at once; who writes later, then."""
    store = desk.open()
    things = store.resource("things")

    async def stale(session: Session) -> None:
        await fill(things, {"a": 1, "b": 1})
        assert await session.read("a") == 1
        await fill(things, {"a": 2, "b": 2})

    reader, writer, late = [await things.begin(isolation=mode) for _ in range(3)]
    await stale(reader)
    assert await reader.read("b") == 1
    assert await contents(reader) == {"a": 1, "b": 1}
    await reader.commit()

    await writer.write("c", 1)
    await stale(writer)
    with pytest.raises(interlock.ReadConflict) as caught:
        await writer.read("b")
    (conflict,) = caught.value.conflicts
    assert (conflict.key, conflict.kind, conflict.read_value, conflict.current_value) == ("a", "read", 1, 2)
    assert (conflict.committed_by, conflict.resource) == ("filler", "things")
    with pytest.raises(interlock.ReadConflict):
        await writer.commit()

    await stale(late)
    assert await late.read("b") == 1
    with pytest.raises(interlock.ReadConflict):
        await late.write("d", 1)
    assert await contents(things) == {"a": 2, "b": 2}


@Extending
@at_desk
async def test_a_stale_session_refuses_every_kind_of_write(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    things.register_merge("other", lambda value, operand: operand)
    for name, arguments, named in (
        ("write", ("d", 1), {}),
        ("delete", ("d",), {}),
        ("clear", ("d",), {}),
        ("update", ("d", lambda value: 1, 0), {}),
        ("update_where", (lambda key, value: 1,), {}),
        ("add", ("d", 1), {}),
        ("append", ("d", 1), {}),
        ("set_add", ("d", 1), {}),
        ("maximum", ("d", 1), {}),
        ("merge", ("d", 1), {"using": "other"}),
    ):
        await fill(things, {"a": 1, "b": 1})
        session = await things.begin(isolation=mode)
        await session.read("a")
        await fill(things, {"a": 2, "b": 2})
        await session.read("b")
        with pytest.raises(interlock.ReadConflict):
            await getattr(session, name)(*arguments, **named)
        with pytest.raises(interlock.ReadConflict):
            await session.commit()
    assert await contents(things) == {"a": 2, "b": 2}


@at_desk
async def test_a_changed_range_keeps_the_snapshot_in_optimistic_mode(desk: Desk) -> None:
    """It is no conflict there, but the session must not see two states either."""
    store = desk.open()
    things = store.resource("things")
    await fill(things, {("n", 1): 1, "a": 1, "b": 1})
    session = await things.begin(isolation="optimistic")
    assert len(await listed(session.scan(("n",)))) == 1
    await fill(things, {("n", 2): 2, "a": 2})
    assert await session.read_many(["b"]) == {"b": 1}
    await session.check()
    assert len(await listed(session.scan(("n",)))) == 1
    assert await session.read("a") == 1
    assert await behind(store, session) == 1
    with pytest.raises(interlock.ReadConflict):  # `a` was read, and has changed since the snapshot that did not move
        await session.check()
    session = await things.begin(isolation="optimistic")
    await listed(session.scan(("n",)))
    await fill(things, {("n", 3): 3})
    await session.check()
    await session.write("c", 1)
    await session.commit()


@Modes
@at_desk
async def test_check(desk: Desk, mode: interlock.Isolation) -> None:
    store = desk.open()
    things = store.resource("things")
    await fill(things, {"a": 1, "b": 1, "c": 1})
    session = await things.begin(isolation=mode)
    await session.check()
    await session.read("a")
    await fill(things, {"b": 2})
    await session.check()
    moved = mode in ("optimistic", "serializable")
    assert await session.read("b") == (2 if moved or mode == "none" else 1)
    if moved:
        assert await behind(store, session) == 0
    await fill(things, {"a": 2})
    if moved:
        with pytest.raises(interlock.ReadConflict, match="'a'"):
            await session.check()
        with pytest.raises(interlock.ReadConflict):
            await session.commit()
    else:
        await session.check()
        await session.commit()


@at_desk
async def test_check_of_ranges(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {("n", 1): 1})
    session = await things.begin()
    await listed(session.scan(("n",)))
    await session.check()
    await fill(things, {("m", 1): 1})
    await session.check()
    await fill(things, {("n", 2): 1})
    with pytest.raises(interlock.RangeConflict) as caught:
        await session.check()
    assert [(conflict.kind, conflict.key) for conflict in caught.value.conflicts] == [("range", ("n", 2))]


@at_desk
async def test_check_in_snapshot_mode_looks_at_what_is_written(desk: Desk) -> None:
    """There the first committer wins; that somebody else has won can be learnt before the end as well."""
    things = desk.resource()
    await fill(things, {"a": 1, "b": 1, "c": 1})
    for write in ("write", "delete", "clear", "add after read"):
        session = await things.begin(isolation="snapshot")
        await session.read("b")
        if write == "write":
            await session.write("a", 2)
        elif write == "delete":
            await session.delete("a")
        else:
            await session.read("a")
            await (session.clear("a") if write == "clear" else session.add("a", 1))
        await fill(things, {"b": 2, "c": 2})
        await session.check()
        assert await session.read("c") == 1
        await fill(things, {"a": 3, "c": 1})
        with pytest.raises(interlock.ConflictError, match="'a'"):
            await session.check()
        await session.rollback()


@at_desk
async def test_a_lost_reply_to_a_validation_leaves_nothing_unknown(desk: Desk) -> None:
    lossy = Lossy(desk)
    lossy.pure = True
    things = desk.resource(backend=lossy)
    await fill(things, {"a": 1, "b": 1})
    session = await things.begin()
    await session.read("a")
    lossy.lose = ["landed"]
    with pytest.raises(interlock.BackendUnavailableError):
        await session.check()
    runs = 0

    async def agent(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.read("a")
        if runs == 1:
            await fill(desk.resource(), {"b": 2})
            lossy.lose = ["lost"]
        await session.write("c", await session.read("b"))

    await things.run(agent)
    assert (runs, await things.read("c"), lossy.asked) == (2, 2, [])


@Modes
@at_desk
async def test_the_snapshot_is_a_cursor_of_the_feed(desk: Desk, mode: interlock.Isolation) -> None:
    """`changes(since=session.snapshot)` is exactly what the session does not see."""
    store = desk.open()
    things = store.resource("things")
    await fill(things, {"a": 0})
    session = await things.begin(isolation=mode)
    await session.read("a")
    for number in range(1, 4):
        await fill(things, {"a": number, ("n", number): number})
    unseen = await listed(store.log.changes(session.snapshot))
    assert [change.writes["things", "a"].value for change in unseen] == [1, 2, 3]
    await session.rollback()


@at_desk
async def test_snapshots_can_become_too_old(desk: Desk) -> None:
    """A reader is told, never shown something else."""
    store = desk.open(history_seconds=1e-6)
    things = store.resource("things")
    await fill(things, {"a": 1, "b": 1})
    reader, writer = await things.begin(), await things.begin()
    for session in (reader, writer):
        await session.read("a")
    await fill(things, {"a": 2, "b": 2})
    await fill(things, {"a": 3, "b": 3})
    await store.compact()
    for session in (reader, writer):
        with pytest.raises((interlock.SnapshotTooOldError, interlock.ReadConflict)):
            await session.write("c", 1)
            await session.read("b")
            await session.commit()
    assert await contents(things) == {"a": 3, "b": 3}


@at_desk
async def test_a_session_that_is_too_old_is_run_again(desk: Desk) -> None:
    store = desk.open(history_seconds=1e-6)
    things = store.resource("things")
    await fill(things, {"a": 1, "b": 1})
    seen: list[Any] = []

    async def agent(session: Session) -> None:
        first = await session.read("a")
        if not seen:
            await fill(desk.resource(), {"a": 2, "b": 2})
            await fill(desk.resource(), {"a": 3, "b": 3})
            await desk.open(history_seconds=1e-6).compact()
        seen.append(first)
        seen.append(await session.read("b"))

    await things.run(agent)
    assert seen[-2:] == [3, 3]


@pytest.mark.parametrize("mode", MODES[1:])
@at_desk
async def test_two_absences_are_equal(desk: Desk, mode: interlock.Isolation) -> None:
    """A key that was created and removed again since it was found absent is no conflict, however it was found so."""
    things = desk.resource()
    await fill(things, {"removed": 1})
    async with things.session() as session:
        await session.delete("removed")
    for key in ("never", "removed"):
        session = await things.begin(isolation=mode)
        assert await session.read(key) is None
        await fill(things, {key: 5})
        async with things.session() as other:
            await other.delete(key)
        await session.check()
        await session.write(key, 1)
        await session.write("other", key)
        await session.commit()
    assert await contents(things) == {"never": 1, "other": "removed", "removed": 1}
