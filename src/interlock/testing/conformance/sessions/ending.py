"""How a session ends: savepoints, doom, calls that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import MODES, Desk, at_desk, contents, fill, listed

Session = interlock.AgentSession[Any]
Call = Callable[[Session], Any]


class Oops(Exception):
    """The body's own error."""


FAILING: dict[str, tuple[type[Exception], Call]] = {
    "read": (interlock.UsageError, lambda session: session.read("")),
    "expect": (interlock.NotFoundError, lambda session: session.expect("absent")),
    "exists": (interlock.UsageError, lambda session: session.exists(())),
    "read_many": (interlock.UsageError, lambda session: session.read_many(["a", ()])),
    "scan": (interlock.UsageError, lambda session: listed(session.scan("a", start="b"))),
    "write": (interlock.ValueRefusedError, lambda session: session.write("a", object())),
    "write key": (interlock.UsageError, lambda session: session.write((), 1)),
    "delete": (interlock.UsageError, lambda session: session.delete("")),
    "clear": (interlock.UsageError, lambda session: session.clear("a", stop="b")),
    "update": (interlock.NotFoundError, lambda session: session.update("absent", lambda value: value)),
    "update fn": (Oops, lambda session: session.update("a", _oops)),
    "update value": (interlock.ValueRefusedError, lambda session: session.update("a", lambda value: object())),
    "update_where": (Oops, lambda session: session.update_where(_oops_too)),
    "add": (interlock.ValueRefusedError, lambda session: session.add("a", 1.5)),
    "append": (interlock.ValueRefusedError, lambda session: session.append("a", object())),
    "set_add": (interlock.ValueRefusedError, lambda session: session.set_add("a", 1.5)),
    "maximum": (interlock.ValueRefusedError, lambda session: session.maximum("a", {})),
    "merge": (interlock.UsageError, lambda session: session.merge("a", 1, using="unknown")),
    "memo": (Oops, lambda session: session.memo(_slow_oops)),
}
"""Calls that fail, each in a session of a resource that holds ``a=1``."""


def _oops(value: Any) -> Any:
    raise Oops


def _oops_too(key: Any, value: Any) -> Any:
    raise Oops


async def _slow_oops() -> None:
    raise Oops


async def done(awaitable: Any) -> Any:
    """The result of a call of either colour."""
    return await awaitable if hasattr(awaitable, "__await__") else awaitable


@pytest.mark.parametrize("name", FAILING)
@at_desk
async def test_a_failed_call_dooms(desk: Desk, name: str) -> None:
    """Code that swallows the error cannot commit: the exit raises it again, whatever came after."""
    kind, call = FAILING[name]
    things = desk.resource()
    await fill(things, {"a": 1})
    with pytest.raises(kind) as outer:
        async with things.session() as session:
            await session.write("b", 1)
            with pytest.raises(kind) as inner:
                await done(call(session))
            with pytest.raises(interlock.UsageError, match="doomed") as later:
                await session.write("c", 1)
            assert later.value.__cause__ is inner.value
    assert outer.value is inner.value
    assert await contents(things) == {"a": 1}
    runs = 0

    async def agent(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.write("b", 1)
        with pytest.raises(kind):
            await done(call(session))

    with pytest.raises(kind):
        await things.run(agent)
    assert runs == 1
    assert await contents(things) == {"a": 1}


@at_desk
async def test_a_body_that_fails_leaves_nothing(desk: Desk) -> None:
    things = desk.resource()
    for kind in (Oops, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        with pytest.raises(kind):
            async with things.session() as session:
                await session.write("a", 1)
                raise kind
        with pytest.raises(interlock.UsageError, match="rolled back"):
            await session.read("a")
        async with things.session() as session:
            assert await session.read("a") is None
    assert await contents(things) == {}


@at_desk
async def test_doom(desk: Desk) -> None:
    things = desk.resource()
    with pytest.raises(interlock.TransactionError, match="the plan is wrong") as caught:
        async with things.session() as session:
            await session.write("a", 1)
            session.doom("the plan is wrong")
            with pytest.raises(interlock.UsageError, match="doomed"):
                session.doom("again")
            with pytest.raises(interlock.UsageError, match="doomed"):
                with session.savepoint():
                    pass
    assert caught.value.transaction_id == session.transaction_id
    assert not caught.value.retryable
    async with things.session() as session:
        await session.write("a", 1)
        session.doom("left without an error all the same")
        await session.rollback()
    assert await contents(things) == {}


@pytest.mark.parametrize("mode", MODES)
@at_desk
async def test_savepoints_take_back_writes_and_keep_reads(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    things.register_merge("last one", lambda value, operand: operand)
    await fill(things, {"a": 1, "b": 1, "c": 1, "read": 1})
    session = await things.begin(isolation=mode)
    await session.write("a", 2)
    await session.add("n", 1)
    await session.merge("m", 1, using="last one")
    with pytest.raises(Oops):
        with session.savepoint():
            await session.write("a", 3)
            await session.write("new", 3)
            await session.delete("b")
            await session.clear("c")
            await session.add("n", 10)
            await session.merge("m", 2, using="last one")
            await session.merge("m2", 2, using="last one")
            await session.read("read")
            with session.savepoint():
                await session.write("inner", 1)
            with pytest.raises(Oops):
                with session.savepoint():
                    await session.write("a", 4)
                    raise Oops
            assert await session.read("a") == 3
            raise Oops
    assert await contents(session) == {"a": 2, "b": 1, "c": 1, "m": 1, "n": 1, "read": 1}
    with session.savepoint():
        await session.write("d", 1)
    assert await session.read("d") == 1
    if mode in ("optimistic", "serializable"):
        await fill(desk.resource(), {"read": 2})
        with pytest.raises(interlock.ConflictError):
            await session.commit()
    else:
        await session.commit()
        assert await contents(things) == {"a": 2, "b": 1, "c": 1, "d": 1, "m": 1, "n": 1, "read": 1}


@at_desk
async def test_doom_outlives_a_savepoint(desk: Desk) -> None:
    things = desk.resource()
    with pytest.raises(interlock.NotFoundError):
        async with things.session() as session:
            with pytest.raises(interlock.NotFoundError):
                with session.savepoint():
                    await session.expect("absent")


@at_desk
async def test_begin_commit_and_rollback(desk: Desk) -> None:
    things = desk.resource()
    session = await things.begin(agent="hook", run_id="run")
    await session.write("a", 1)
    done = await session.commit()
    assert (done.value, done.transaction_id, done.attempts, done.replayed) == (None, session.transaction_id, 1, False)
    assert done.cursor is not None
    change = await desk.open().log.get(done.transaction_id)
    assert change is not None
    assert (change.agent, change.run_id, change.cursor) == ("hook", "run", done.cursor)
    session = await things.begin()
    assert await session.read("a") == 1
    assert (await session.commit()).cursor is None
    session = await things.begin()
    await session.write("a", 2)
    await session.rollback()
    assert await things.read("a") == 1
    async with things.session() as session:
        await session.write("a", 3)
        await session.commit()
        assert await things.read("a") == 3
    async with things.session() as session:
        await session.write("a", 4)
        await session.rollback()
    assert await things.read("a") == 3


@at_desk
async def test_an_explicit_commit_that_failed_is_not_forgotten(desk: Desk) -> None:
    """Rule 3 once more: who swallows it meets it again at the exit."""
    things = desk.resource()
    await fill(things, {"a": 1})
    with pytest.raises(interlock.ReadConflict) as outer:
        async with things.session() as session:
            await session.update("a", lambda value: value + 1)
            await fill(desk.resource(), {"a": 5})
            with pytest.raises(interlock.ReadConflict) as inner:
                await session.commit()
    assert outer.value is inner.value
    session = await things.begin()
    await session.update("a", lambda value: value + 1)
    await fill(things, {"a": 6})
    with pytest.raises(interlock.ReadConflict):
        await session.commit()
    with pytest.raises(interlock.UsageError, match="rolled back"):
        await session.commit()
    assert await things.read("a") == 6


EVERY_CALL: dict[str, Call] = {
    **{name: call for name, (_, call) in FAILING.items() if name not in ("write key", "update fn")},
    "check": lambda session: session.check(),
    "commit": lambda session: session.commit(),
    "rollback": lambda session: session.rollback(),
    "doom": lambda session: session.doom("too late"),
    "savepoint": lambda session: session.savepoint(),
    "enter": lambda session: session.__aenter__(),
}


@pytest.mark.parametrize("end", ["commit", "rollback", "failure"])
@at_desk
async def test_an_ended_session_refuses_every_call(desk: Desk, end: str) -> None:
    things = desk.resource()
    await fill(things, {"a": 1})
    session = await things.begin()
    await session.write("b", 1)
    if end == "failure":
        await session.read("a")
        await fill(things, {"a": 1})
        with pytest.raises(interlock.ConflictError):
            await session.commit()
    else:
        await getattr(session, end)()
    for name, call in EVERY_CALL.items():
        with pytest.raises(interlock.UsageError, match="already"):
            await done(call(session))
            raise AssertionError(name)
    assert session.transaction_id
    assert (session.agent, session.isolation, session.attempt) == ("tester", "serializable", 1)
    assert await contents(things) == ({"a": 1, "b": 1} if end == "commit" else {"a": 1})


@at_desk
async def test_a_session_is_entered_once(desk: Desk) -> None:
    things = desk.resource()
    session = things.session()
    with pytest.raises(interlock.UsageError, match="not entered"):
        await session.read("a")
    async with session:
        await session.write("a", 1)
        with pytest.raises(interlock.UsageError):
            async with session:
                pass
    with pytest.raises(interlock.UsageError):
        async with session:
            pass


@at_desk
async def test_a_closed_store_refuses_every_call(desk: Desk) -> None:
    store = desk.open()
    things = store.resource("things")
    session = await things.begin()
    await session.write("a", 1)
    started = things.session()
    await store.close()
    await store.close()

    async def nothing(session: Session) -> None:
        raise AssertionError("it ran")

    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: session.read("b"), session.commit, started.__aenter__, things.begin, lambda: things.run(nothing),
        lambda: things.read("a"), lambda: things.entry("a"), lambda: listed(things.scan()),
        lambda: listed(things.history("a")), lambda: store.outcome("0" * 32), store.compact, store.log.head,
        lambda: listed(store.log.changes()), lambda: store.log.get("0" * 32),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(interlock.UsageError):
            await call()
