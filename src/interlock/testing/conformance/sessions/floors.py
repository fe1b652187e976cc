"""Isolation floors: no session weaker than a resource requires, in any process, from the commit that publishes it."""

from __future__ import annotations

from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import MODES, Desk, at_desk, contents, listed

Session = interlock.AgentSession[Any]
WEAKER = MODES[:-1]


async def put(session: Session, key: str, value: Any) -> None:
    """Write one value."""
    await session.write(key, value)


@pytest.mark.parametrize("mode", WEAKER)
@at_desk
async def test_a_floor_refuses_weaker_sessions(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    things.require(isolation="serializable")
    with pytest.raises(interlock.IsolationError, match="serializable"):
        await things.run(put, "a", 1, isolation=mode)
    async with desk.open().session(isolation=mode) as session:
        await session.rollback()
    store = desk.open()
    mine = store.resource("things")
    mine.require(isolation="serializable")
    with pytest.raises(interlock.IsolationError):
        async with store.resource("other").session(isolation=mode) as session:
            await session.on(mine).read("a")
    await mine.run(put, "a", 1)
    assert await contents(mine) == {"a": 1}


@pytest.mark.parametrize("mode", WEAKER)
@at_desk
async def test_a_published_floor_binds_other_processes_readers_too(desk: Desk, mode: interlock.Isolation) -> None:
    mine, theirs = desk.resource(), desk.resource()
    early = await theirs.begin(isolation=mode)
    await early.write("b", 1)
    mine.require(isolation="serializable")
    await mine.run(put, "a", 1)
    with pytest.raises(interlock.IsolationError):
        await early.commit()
    for touch in ("read", "read_many", "scan", "write", "add"):
        fresh = desk.resource()
        with pytest.raises(interlock.IsolationError, match="serializable"):
            async with fresh.session(isolation=mode) as session:
                if touch == "read":
                    await session.read("a")
                elif touch == "read_many":
                    await session.read_many(["a", "b"])
                elif touch == "scan":
                    await listed(session.scan())
                elif touch == "write":
                    await session.write("b", 1)
                else:
                    await session.add("b", 1)
        with pytest.raises(interlock.IsolationError):
            await fresh.begin(isolation=mode)
    assert await contents(mine) == {"a": 1}
    assert await theirs.run(read, "a") == 1


async def read(session: Session, key: str) -> Any:
    """Read one value."""
    return await session.read(key)


@at_desk
async def test_a_floor_that_is_learnt_or_declared_midway_binds_at_the_commit(desk: Desk) -> None:
    """Also a session of the same process that had begun before."""
    theirs = desk.resource()
    learnt = await theirs.begin(isolation="snapshot")
    await learnt.write("b", 1)
    mine = desk.resource()
    mine.require(isolation="optimistic")
    await mine.run(put, "a", 1)
    await theirs.run(put, "a", 2)  # this process knows the floor from here on
    with pytest.raises(interlock.IsolationError):
        await learnt.commit()
    other = desk.resource("other")
    declared = await other.begin(isolation="snapshot")
    await declared.write("b", 1)
    other.require(isolation="serializable")
    with pytest.raises(interlock.IsolationError):
        await declared.commit()
    assert await contents(mine) == {"a": 2}
    assert await contents(other) == {}


@at_desk
async def test_floors_only_rise(desk: Desk) -> None:
    mine, theirs = desk.resource(), desk.resource()
    mine.require(isolation="serializable")
    mine.require(isolation="none")
    await mine.run(put, "a", 1)
    theirs.require(isolation="snapshot")
    await theirs.run(put, "a", 2)
    with pytest.raises(interlock.IsolationError, match="serializable"):
        await theirs.run(put, "a", 3, isolation="snapshot")
    third = desk.resource()
    with pytest.raises(interlock.IsolationError, match="serializable"):
        await third.run(read, "a", isolation="optimistic")
