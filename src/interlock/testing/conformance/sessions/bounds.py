"""Every size and count has a limit, and reaching it is a typed error before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

import interlock
from interlock import codec, keys
from interlock.model import Limits
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, fill, listed
from interlock.testing.conformance.sessions.faults import Passing

Session = interlock.AgentSession[Any]


class Narrow(Passing):
    """An engine that takes little at once."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.limits = Limits(writes=5, reads=6, spans=2, commit_bytes=1000)


@at_desk
async def test_a_commit_that_is_too_large_is_refused_whole(desk: Desk) -> None:
    things = desk.resource(backend=Narrow(desk))

    async def many_writes(session: Session) -> None:
        for number in range(6):
            await session.write(("n", number), number)

    async def many_reads(session: Session) -> None:
        await session.read_many([("n", number) for number in range(7)])
        await session.write("a", 1)

    async def many_spans(session: Session) -> None:
        for number in range(3):
            await listed(session.scan(("n", 10 * number)))
        await session.write("a", 1)

    async def many_bytes(session: Session) -> None:
        for number in range(4):
            await session.write(("n", number), "x" * 300)

    async def many_merges(session: Session) -> None:
        for number in range(4):
            await session.append(("n", number), "x" * 300)

    for agent, limit, allowed in (
        (many_writes, "writes", 5),
        (many_reads, "reads", 6),
        (many_spans, "spans", 2),
        (many_bytes, "commit_bytes", 1000),
        (many_merges, "commit_bytes", 1000),
    ):
        with pytest.raises(interlock.LimitExceededError) as caught:
            await things.run(agent)
        error = caught.value
        assert (error.limit, error.allowed, error.retryable) == (limit, allowed, False)
        assert error.found > allowed
        assert str(error.found) in str(error)
    assert await contents(things) == {}


@at_desk
async def test_what_was_overwritten_does_not_count(desk: Desk) -> None:
    things = desk.resource(backend=Narrow(desk))
    async with things.session() as session:
        for number in range(50):
            await session.write("a", f"{number} {'x' * 300}")
            await session.append("b", number)
        with pytest.raises(ZeroDivisionError):
            with session.savepoint():
                await session.write("c", "x" * 900)
                raise ZeroDivisionError
        await session.delete("c")
    assert await things.read("a") == f"49 {'x' * 300}"
    assert await things.read("b") == list(range(50))


@at_desk
async def test_values_are_bounded(desk: Desk) -> None:
    things = desk.resource()
    largest = "x" * (codec.VALUE_BYTES - 6)
    async with things.session() as session:
        await session.write("a", largest)
    assert await things.read("a") == largest
    for call, arguments in (
        ("write", ("b", largest + "x")),
        ("append", ("b", largest + "xx")),
        ("maximum", ("b", largest + "x")),
        ("merge", ("b", largest + "x", "last")),
    ):
        session = await things.begin()
        await session.write("c", 1)
        with pytest.raises(interlock.LimitExceededError) as caught:
            await getattr(session, call)(*arguments)
            await session.commit()
        assert caught.value.limit == "value_bytes"
    async with things.session() as session:
        await session.append("list", "x" * (codec.VALUE_BYTES - 50))
    session = await things.begin()
    await session.append("list", "y" * 100)
    with pytest.raises(interlock.ValueRefusedError, match="keys"):
        await session.commit()
    assert (await contents(things)).keys() == {"a", "list"}


@at_desk
async def test_keys_and_names_have_a_longest_form(desk: Desk) -> None:
    store = desk.open()
    things = store.resource("things")
    longest = "x" * (keys.KEY_BYTES - 2)
    await fill(things, {longest: 1, ("é" * 300, 5): 2})
    assert await contents(things) == {longest: 1, ("é" * 300, 5): 2}
    for key in (longest + "x", ("é" * 600,), (1 << 1700,)):
        session = await things.begin()
        with pytest.raises(interlock.LimitExceededError) as caught:
            await session.read(key)
        assert caught.value.limit == "key_bytes"
        with pytest.raises(interlock.LimitExceededError):
            await things.read(key)
    for wrong in ("", (), 7, ("a", 1.0), ("a", True), ("a", b"x"), ["a"], None, "\ud800"):
        session = await things.begin()
        with pytest.raises(interlock.UsageError):
            await session.write(wrong, 1)  # type: ignore[arg-type]
    for name in ("", " ", 7, None):
        with pytest.raises(interlock.UsageError):
            store.resource(name)  # type: ignore[arg-type]
    with pytest.raises(interlock.LimitExceededError):
        store.resource("x" * 256)
    await fill(store.resource("é" * 127), {"a": 1})


@at_desk
async def test_a_large_transaction(desk: Desk) -> None:
    things = desk.resource()
    rows = {("n", number): number for number in range(5000)}
    await fill(things, rows)
    async with things.session() as session:
        assert len(await session.read_many(list(rows))) == 5000
        assert await session.update_where(lambda _, value: value + 1) == 5000
    assert await contents(things) == {key: value + 1 for key, value in rows.items()}
    async with things.session() as session:
        await session.clear()
    assert await contents(things) == {}
