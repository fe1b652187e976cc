"""Sessions inside sessions, in tasks and threads that inherited a context, and the other ways to begin one."""

from __future__ import annotations

from functools import partial
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


@at_desk
async def test_begin_belongs_to_no_context(desk: Desk) -> None:
    things = desk.resource()
    begun = await things.begin()
    await begun.write("a", 1)
    await things.run(put, "b", 1)
    assert await contents(things) == {"b": 1}
    async with things.session() as session:
        inner = await things.begin()
        assert inner.transaction_id != session.transaction_id
        await inner.write("c", 1)
        await inner.commit()
        await session.write("d", 1)
    await begun.commit()
    assert await contents(things) == {"a": 1, "b": 1, "c": 1, "d": 1}


@at_desk
async def test_attempts_run_again_after_a_conflict(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"a": 1})
    numbers: list[int] = []
    async for attempt in things.attempts(agent="in place"):
        assert attempt.number == len(numbers) + 1
        async with attempt, attempt.session() as session:
            numbers.append(session.attempt)
            value = await session.expect("a")
            if session.attempt < 3:
                await fill(desk.resource(), {"a": value + 10})
            await session.write("a", value + 1)
    assert numbers == [1, 2, 3]
    assert await things.read("a") == 22
    change = (await listed(desk.open().log.changes()))[-1]
    assert (change.agent, change.attempts) == ("in place", 3)


@pytest.mark.parametrize("leave", ["return", "break", "continue"])
@at_desk
async def test_attempts_may_be_left_in_any_way(desk: Desk, leave: str) -> None:
    """A conflict at the commit on the way out is retried as well."""
    things = desk.resource()
    await fill(things, {"a": 1})
    seen: list[int] = []

    async def agent() -> str:
        async for attempt in things.attempts():
            async with attempt, attempt.session() as session:
                value = await session.expect("a")
                seen.append(value)
                if len(seen) == 1:
                    await fill(desk.resource(), {"a": 5})
                await session.write("a", value + 1)
                if leave == "return":
                    return "returned"
                if leave == "break":
                    break
                continue
        return "fell out"

    assert await agent() == ("returned" if leave == "return" else "fell out")
    assert seen == [1, 5]
    assert await things.read("a") == 6


@at_desk
async def test_attempts_end_with_the_bodys_own_error(desk: Desk) -> None:
    things = desk.resource()
    runs = 0
    with pytest.raises(Oops):
        async for attempt in things.attempts():
            async with attempt, attempt.session() as session:
                runs += 1
                await session.write("a", 1)
                raise Oops
    assert runs == 1
    with pytest.raises(interlock.RetriesExhaustedError) as caught:
        async for attempt in things.attempts(retry=interlock.RetryPolicy(max_attempts=2, base_seconds=0)):
            async with attempt, attempt.session() as session:
                await session.update("a", lambda value: value + 1, 0)
                await fill(desk.resource(), {"a": 1})
    assert caught.value.attempts == 2
    assert await things.read("a") == 1


@at_desk
async def test_attempts_need_both_managers_and_no_parent(desk: Desk) -> None:
    things = desk.resource()
    with pytest.raises(interlock.UsageError, match="attempt.session"):
        async for attempt in things.attempts():
            async with attempt.session():
                pass
    with pytest.raises(interlock.UsageError, match="one session"):
        async for attempt in things.attempts():
            async with attempt, attempt.session(), attempt.session():
                pass
    async with things.session():
        with pytest.raises(interlock.UsageError, match="detached=True"):
            async for attempt in things.attempts():
                async with attempt, attempt.session():
                    pass
        async for attempt in things.attempts(detached=True):
            async with attempt, attempt.session() as session:
                await session.write("a", 1)
    assert await contents(things) == {"a": 1}


@at_desk
async def test_transactional(desk: Desk) -> None:
    store = desk.open()
    things = store.resource("things")
    await fill(things, {"a": 1})
    runs = 0

    @things.transactional(agent="counter")
    async def add(session: Session, key: str, *, by: int = 1) -> int:
        """Add to a value."""
        nonlocal runs
        runs += 1
        value: int = await session.expect(key) + by
        if runs == 1:
            await fill(desk.resource(), {"a": 10})
        await session.write(key, value)
        return value

    assert await add("a", by=5) == 15
    assert await add("a") == 16
    assert runs == 3
    assert (add.__name__, add.__doc__) == ("add", "Add to a value.")
    assert (await listed(store.log.changes()))[-1].agent == "counter"
    async with things.session() as session:
        assert await add("a", by=4) == 20
        assert await session.read("a") == 20
        await session.rollback()
    assert await things.read("a") == 16

    @store.transactional()
    async def both(session: interlock.AgentSession[Any]) -> None:
        await session.on(things).write("a", 0)

    await both()
    assert await things.read("a") == 0


async def model(prompt: str, temperature: float = 0.0, *, seed: int = 0) -> dict[str, Any]:
    """Stands for a model."""
    calls.append((prompt, temperature, seed))
    return {"answer": f"{prompt}!"}


calls: list[tuple[str, float, int]] = []


@at_desk
async def test_memo_asks_once_for_all_attempts(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"a": 1})
    calls.clear()
    locally: list[str] = []
    given: list[Any] = []

    async def agent(session: Session) -> None:
        value = await session.expect("a")

        async def local(word: str) -> str:
            locally.append(word)
            return word

        first = await session.memo(model, "hello")
        assert first == {"answer": "hello!"}
        first["answer"] = "changed"
        assert await session.memo(model, "hello") == {"answer": "hello!"}
        await session.memo(model, "hello", 0.5)
        await session.memo(partial(model, seed=3), "hello")
        await session.memo(partial(model, "hello", seed=3))
        await session.memo(local, "word")
        given.append(await session.memo(thing, 1))
        if session.attempt < 3:
            await fill(desk.resource(), {"a": value + 1})
        await session.write("a", -1)

    made: list[object] = []

    async def thing(number: int) -> object:
        made.append(object())
        return made[-1]

    done = await things.run_detailed(agent)
    assert done.attempts == 3
    assert calls == [("hello", 0.0, 0), ("hello", 0.5, 0), ("hello", 0.0, 3)]
    assert locally == ["word"]
    assert given == made * 3  # what has no stored form is kept as it is
    await things.run(agent)
    assert len(calls) == 6  # a run of its own asks anew


@at_desk
async def test_memo_is_kept_over_attempts_in_place(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"a": 1})
    calls.clear()
    async for attempt in things.attempts():
        async with attempt, attempt.session() as session:
            await session.update("a", lambda value: value + 1)
            await session.memo(model, "hello")
            if session.attempt == 1:
                await fill(desk.resource(), {"a": 5})
    assert len(calls) == 1
    assert await things.read("a") == 6


@at_desk
async def test_memo_tells_functions_apart(desk: Desk) -> None:
    things = desk.resource()

    def named(name: str) -> Any:
        async def answer(word: str) -> str:
            return f"{name} {word}"

        return answer

    async with things.session() as session:
        assert await session.memo(named("one"), "x") == "one x"
        assert await session.memo(named("two"), "x") == "two x"
        assert await session.memo(Person("three").answer, "x") == "three x"
        assert await session.memo(Person("four").answer, "x") == "four x"
        with pytest.raises(interlock.ValueRefusedError):
            await session.memo(model, object())  # type: ignore[arg-type]
        await session.rollback()


class Person:
    """Somebody with a method."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def answer(self, word: str) -> str:
        """The method."""
        return f"{self.name} {word}"


@at_desk
async def test_the_colour_of_a_function_is_checked(desk: Desk) -> None:
    """An async function in synchronous code, or the reverse, is refused before it can write."""
    things = desk.resource()
    ran: list[str] = []

    if desk.awaited:

        def plain(session: Any) -> None:
            ran.append("plain")

        with pytest.raises(interlock.UsageError, match=r"interlock\.sync"):
            await things.run(plain)  # type: ignore[arg-type]
    else:

        async def suspending(session: Any) -> None:
            ran.append("async")

        inner: Any = things
        with pytest.raises(interlock.UsageError, match="async"):
            inner.inner.run(suspending)
        with pytest.raises(interlock.UsageError, match="async"):
            inner.inner.run(lambda session: session.memo(suspending, 1))
    with pytest.raises(interlock.UsageError):
        await things.run(7)  # type: ignore[arg-type]
    with pytest.raises(interlock.UsageError, match="qty"):
        await things.run(put, "a", 1, qty=2)  # type: ignore[call-arg]
    with pytest.raises(interlock.UsageError, match="partial"):
        await things.run(put, "a", 1, qty=2)  # type: ignore[call-arg]
    assert await contents(things) == {}


@at_desk
async def test_the_agent_is_the_calls_the_sessions_or_the_stores(desk: Desk) -> None:
    store, nameless = desk.open(agent="of the store"), desk.open(agent=None)
    things = store.resource("things")
    await things.run(put, "a", 1)
    await things.run(put, "a", 2, agent="of the call", run_id="run 7")
    async with things.session(agent="of the session", run_id="run 8") as session:
        await things.run(put, "a", 3)
        assert session.agent == "of the session"
    changes = await listed(store.log.changes())
    assert [(change.agent, change.run_id) for change in changes] == [
        ("of the store", None),
        ("of the call", "run 7"),
        ("of the session", "run 8"),
    ]
    unnamed = nameless.resource("things")
    with pytest.raises(interlock.UsageError, match="agent"):
        await unnamed.run(put, "a", 1)
    with pytest.raises(interlock.UsageError, match="agent"):
        await unnamed.begin()
    for wrong in ("", "  ", 7, None):
        with pytest.raises(interlock.UsageError):
            async with unnamed.session(agent=wrong):  # type: ignore[arg-type]
                pass
    with pytest.raises(interlock.LimitExceededError):
        await unnamed.run(put, "a", 1, agent="x" * 256)


@at_desk
async def test_with_on_the_wrong_store(desk: Desk) -> None:
    store: Any = desk.open()
    if desk.awaited:
        with pytest.raises(interlock.UsageError, match=r"interlock\.sync"):
            with store:
                pass
    else:
        with pytest.raises(interlock.UsageError, match=r"interlock\.open"):
            async with store.inner:
                pass
    async with store as entered:
        assert entered is store
        await entered.resource("things").run(put, "a", 1)
