"""The other ways to begin a transaction, and what each checks before it does."""

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
    with pytest.raises(interlock.UsageError, match="attempt"):
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
    async with things.session(agent="counter") as session:
        assert await add("a", by=4) == 20
        assert await session.read("a") == 20
        await session.rollback()
    assert await things.read("a") == 16

    @store.transactional()
    async def both(session: interlock.AgentSession[Any]) -> None:
        await session.on(things).write("a", 0)

    await both()
    assert await things.read("a") == 0


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
