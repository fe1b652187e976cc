"""`memo`: what was paid for once is not paid again, over attempts; and which call is which."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, fill

Session = interlock.AgentSession[Any]


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
