"""Sessions inside sessions, and in tasks and threads that inherited a context."""

from __future__ import annotations

from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, fill, listed

Session = interlock.AgentSession[Any]


class Oops(Exception):
    """The body's own error."""


async def put(session: Session, key: str, value: Any) -> str:
    """Write one value."""
    await session.write(key, value)
    return f"{key} written"


async def put_and_fail(session: Session, key: str, value: Any) -> None:
    """Write one value, in vain."""
    await session.write(key, value)
    raise Oops(key)


@at_desk
async def test_a_nested_run_joins_its_parent(desk: Desk) -> None:
    store = desk.open()
    things, others = store.resource("things"), store.resource("others")
    async with things.session(agent="outer") as session:
        await session.write("a", 1)
        assert await others.run(put, "b", 2) == "b written"
        done = await things.run_detailed(put, "c", 3)
        assert (done.transaction_id, done.attempts, done.cursor) == (session.transaction_id, 1, None)
        assert await session.on(others).read("b") == 2
        assert await session.read("c") == 3
        assert await contents(desk.resource()) == {}
    (change,) = await listed(store.log.changes())
    assert change.writes.keys() == {("things", "a"), ("others", "b"), ("things", "c")}
    assert change.agent == "outer"


@at_desk
async def test_a_nested_session_joins_its_parent(desk: Desk) -> None:
    store = desk.open()
    things, others = store.resource("things"), store.resource("others")

    async def agent(session: Session) -> None:
        await session.write("a", 1)
        async with others.session() as inner:
            assert inner.transaction_id == session.transaction_id
            assert inner.agent == session.agent
            await inner.write("b", 2)
            assert await inner.on(things).read("a") == 1
            for joined in (inner, inner.on(things)):
                with pytest.raises(interlock.UsageError, match="joined"):
                    await joined.commit()
        with pytest.raises(interlock.UsageError):
            await inner.write("late", 1)
        with pytest.raises(interlock.UsageError):
            await inner.read("b")
        await session.write("c", 3)

    await things.run(agent)
    assert await contents(things) == {"a": 1, "c": 3}
    assert await contents(others) == {"b": 2}
    assert len(await listed(store.log.changes())) == 1


@at_desk
async def test_the_parent_may_catch_what_a_nested_one_raises(desk: Desk) -> None:
    """Then only the nested part is taken back."""
    things = desk.resource()
    async with things.session() as session:
        await session.write("a", 1)
        with pytest.raises(Oops):
            await things.run(put_and_fail, "a", 2)
        with pytest.raises(Oops):
            async with things.session() as inner:
                await inner.write("b", 2)
                await things.run(put, "c", 3)
                raise Oops
        async with things.session() as inner:
            await inner.write("d", 4)
            await inner.rollback()
            with pytest.raises(interlock.UsageError):
                await inner.write("d", 5)
        await things.run(put, "e", 5)
        assert await contents(session) == {"a": 1, "e": 5}
    assert await contents(things) == {"a": 1, "e": 5}


@at_desk
async def test_a_failed_call_in_a_nested_one_dooms_the_whole(desk: Desk) -> None:
    things = desk.resource()

    async def swallow(session: Session) -> None:
        with pytest.raises(interlock.NotFoundError):
            await session.expect("absent")

    with pytest.raises(interlock.NotFoundError):
        async with things.session() as session:
            await session.write("a", 1)
            await things.run(swallow)
    with pytest.raises(interlock.NotFoundError):
        async with things.session() as session:
            with pytest.raises(interlock.NotFoundError):
                async with things.session() as inner:
                    await inner.expect("absent")
            with pytest.raises(interlock.UsageError, match="doomed"):
                await things.run(put, "b", 1)
            with pytest.raises(interlock.UsageError, match="doomed"):
                async with things.session():
                    pass
    assert await contents(things) == {}


@at_desk
async def test_a_conflict_in_a_nested_run_is_the_parents(desk: Desk) -> None:
    """A nested run does not retry by itself: the outermost one runs again, whole."""
    things = desk.resource()
    await fill(things, {"a": 1})
    runs: list[str] = []

    async def inner(session: Session) -> None:
        runs.append("inner")
        await session.update("a", lambda value: value + 1)
        if len(runs) < 4:
            await fill(desk.resource(), {"a": 10})
            await session.check()

    async def outer(session: Session) -> None:
        runs.append("outer")
        await things.run(inner)

    await things.run(outer)
    assert runs == ["outer", "inner", "outer", "inner"]
    assert await things.read("a") == 11


@at_desk
async def test_a_nested_one_asks_for_no_more_than_its_parent_gives(desk: Desk) -> None:
    things = desk.resource()
    async with things.session(isolation="snapshot") as session:
        for stronger in ("optimistic", "serializable"):
            with pytest.raises(interlock.UsageError, match="snapshot"):
                things.session(isolation=stronger)
            with pytest.raises(interlock.UsageError, match="snapshot"):
                await things.run(put, "a", 1, isolation=stronger)
        for weaker in ("snapshot", "none"):
            await things.run(put, weaker, 1, isolation=weaker)
            async with things.session(isolation=weaker) as inner:
                assert inner.isolation == "snapshot"
        await session.rollback()


@at_desk
async def test_options_of_a_nested_one_do_not_contradict_its_parent(desk: Desk) -> None:
    things = desk.resource()
    async with things.session(agent="buyer", run_id="monday") as session:
        others: list[interlock.Options] = [{"agent": "seller"}, {"run_id": "tuesday"}]
        for other in others:
            [option] = other
            with pytest.raises(interlock.UsageError, match=f"^{option}=.*detached=True"):
                await things.run(put, "a", 1, **other)
            with pytest.raises(interlock.UsageError, match=f"^{option}=.*detached=True"):
                things.session(agent=other.get("agent", "buyer"), run_id=other.get("run_id", "monday"))
            other["detached"] = True
            assert await things.run(put, "b", 1, **other) == "b written"
        async with things.session(agent="buyer", run_id="monday") as inner:
            await inner.write("c", 1)
        await things.run(put, "d", 1, agent="buyer", timeout_seconds=9, retry=interlock.RetryPolicy(max_attempts=1))
        assert session.agent == "buyer"
    assert await contents(things) == {"b": 1, "c": 1, "d": 1}


@at_desk
async def test_detached_and_other_stores_are_independent(desk: Desk) -> None:
    store, second, elsewhere = desk.open(), desk.open(), desk.elsewhere()
    things = store.resource("things")
    with pytest.raises(Oops):
        async with things.session() as session:
            await session.write("a", 1)
            assert await things.run(put, "b", 1, detached=True) == "b written"
            async with things.session(detached=True) as inner:
                assert inner.transaction_id != session.transaction_id
                assert await inner.read("a") is None
                await inner.write("c", 1)
                async with things.session() as innermost:  # joins the nearest one
                    assert innermost.transaction_id == inner.transaction_id
            await second.resource("things").run(put, "d", 1)
            await elsewhere.resource("things").run(put, "e", 1)
            await session.read("b")
            raise Oops
    assert await contents(things) == {"b": 1, "c": 1, "d": 1}
    assert await contents(elsewhere.resource("things")) == {"e": 1}


@at_desk
async def test_an_inherited_context_is_not_joined(desk: Desk) -> None:
    """In a task or thread of its own the call would belong to nobody's transaction or break into somebody else's."""
    store, elsewhere = desk.open(), desk.elsewhere()
    things = store.resource("things")

    async def run() -> None:
        await things.run(put, "b", 1)

    async def session() -> None:
        async with things.session() as inner:
            await inner.write("b", 1)

    async def attempts() -> None:
        async for attempt in things.attempts():
            async with attempt, attempt.session() as inner:
                await inner.write("b", 1)

    async def free() -> None:
        await things.run(put, "c", 1, detached=True)
        await elsewhere.resource("things").run(put, "d", 1)
        begun = await things.begin()
        await begun.write("e", 1)
        await begun.commit()

    async with things.session() as outer:
        for job in (run, session, attempts):
            (refused,) = await desk.gathered(job)
            assert isinstance(refused, interlock.UsageError)
            assert "detached=True" in str(refused)
        await desk.together(free)
        await outer.write("a", 1)
    assert await contents(things) == {"a": 1, "c": 1, "e": 1}
    assert await contents(elsewhere.resource("things")) == {"d": 1}


@at_desk
async def test_a_context_outlives_its_session(desk: Desk) -> None:
    """Work that was started inside a session and begins after its end is nobody's child."""
    things = desk.resource()
    may_go = desk.flag()

    async def later() -> None:
        await may_go.wait()
        await things.run(put, "late", 1)

    async def session() -> None:
        async with things.session() as outer:
            await outer.write("a", 1)
            await outer.commit()
            await things.run(put, "after the commit", 1)
            async with things.session() as another:
                assert another.transaction_id != outer.transaction_id
        may_go.lift()

    await desk.together(session, later)
    assert await contents(things) == {"a": 1, "after the commit": 1, "late": 1}
