"""Who may use a session: calls that are forgotten, that overlap, that are interrupted."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, fill, listed
from interlock.testing.conformance.sessions.ending import FAILING, Call, Oops, Session, done
from interlock.testing.conformance.sessions.faults import Held


@at_desk
async def test_a_call_that_is_never_awaited(desk: Desk) -> None:
    """Only asynchronous code can forget an await; nothing is written then, and the error names the call."""
    if not desk.awaited:
        return
    things = desk.resource()
    await fill(things, {"a": 1})
    forgotten: dict[str, Call] = {name: call for name, (_, call) in FAILING.items() if name != "scan"}
    for name, call in forgotten.items():
        with pytest.raises(interlock.UsageError, match="never awaited") as caught:
            async with things.session() as session:
                await session.write("b", 1)
                call(session)
                await session.write("c", 1)
        assert name.split()[0] in str(caught.value)
    session = await things.begin()
    session.write("b", 1)  # type: ignore[unused-coroutine]
    with pytest.raises(interlock.UsageError, match="never awaited"):
        await session.commit()
    with pytest.raises(Oops):
        async with things.session() as session:
            session.write("b", 1).close()
            raise Oops
    assert await contents(things) == {"a": 1}
    async with things.session() as session:
        late = session.write("b", 1)
        await session.write("c", 1)
        await late
    assert await contents(things) == {"a": 1, "b": 1, "c": 1}


@at_desk
async def test_one_task_or_thread_at_a_time(desk: Desk) -> None:
    """A call that begins while another one waits for the engine is refused, dooms, and says why."""
    held = Held(desk)
    things = desk.resource(backend=held)
    await fill(things, {"a": 1, "b": 1})
    others: dict[str, Call] = {
        "read": lambda session: session.read("b"),
        "write": lambda session: session.write("b", 2),
        "scan": lambda session: listed(session.scan()),
        "add": lambda session: session.add("b", 2),
        "check": lambda session: session.check(),
        "memo": lambda session: session.memo(_nothing),
        "commit": lambda session: session.commit(),
        "savepoint": lambda session: session.savepoint(),
    }
    firsts: dict[str, Call] = {
        "read": lambda session: session.read("a"),
        "read_many": lambda session: session.read_many(["a", "b"]),
        "scan": lambda session: listed(session.scan()),
        "check": lambda session: session.check(),
        "clear": lambda session: session.clear(),
        "update_where": lambda session: session.update_where(lambda key, value: value + 1),
    }
    for name, first in firsts.items():
        for other in others if name == "read" else ("read", "write"):
            session = await things.begin()
            held.hold()
            _, refused = await desk.gathered(
                functools.partial(_done_later, first, session),
                functools.partial(_intrude, held, others[other], session),
            )
            assert isinstance(refused, interlock.UsageError), f"{other} during {name} was not refused"
            with pytest.raises(interlock.UsageError):
                await session.commit()
    assert await contents(things) == {"a": 1, "b": 1}


async def _nothing() -> None:
    pass


async def _done_later(call: Call, session: Session) -> Any:
    return await done(call(session))


async def _intrude(held: Held, call: Call, session: Session) -> None:
    await held.reached()
    try:
        await done(call(session))
    finally:
        held.go_on()


@at_desk
async def test_nothing_is_added_to_a_commit_under_way(desk: Desk) -> None:
    held = Held(desk)
    things = desk.resource(backend=held)
    session = await things.begin()
    await session.write("a", 1)
    refused: list[str] = []

    async def intrude() -> None:
        await held.reached()
        for call in (session.write("b", 1), session.read("a"), session.commit()) if desk.awaited else ():
            try:
                await call
            except interlock.UsageError as error:
                refused.append(str(error))
        if not desk.awaited:
            for name, arguments in (("write", ("b", 1)), ("read", ("a",)), ("commit", ())):
                try:
                    await getattr(session, name)(*arguments)
                except interlock.UsageError as error:
                    refused.append(str(error))
        held.go_on()

    held.hold("commit")
    await desk.together(session.commit, intrude)
    assert len(refused) == 3
    assert await contents(things) == {"a": 1}


@at_desk
async def test_tasks_that_share_a_session_by_turns(desk: Desk) -> None:
    """One at a time is allowed, also from several tasks or threads."""
    things = desk.resource()
    session = await things.begin()
    for number in range(4):
        await desk.together(lambda number=number: session.write("a", number))  # type: ignore[misc]
    await session.commit()
    assert await things.read("a") == 3


@at_desk
async def test_an_interrupted_call_that_is_swallowed(desk: Desk) -> None:
    """The session cannot commit, and its exit does not raise a cancellation that nobody has sent."""
    if not desk.awaited:
        return
    held = Held(desk)
    things = desk.resource(backend=held)
    held.hold()
    with pytest.raises(interlock.TransactionError, match="CancelledError") as caught:
        async with things.session() as session:
            await session.write("b", 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await session.read("a")
    assert type(caught.value) is interlock.TransactionError
    held.go_on()
    assert await contents(things) == {}
