"""Gates of hot keys: first come, first served; one who gives up hands on what it was given."""

from __future__ import annotations

import asyncio

from interlock.gates import Gates
from interlock.runtime import AsyncRuntime

KEY = b"key"


async def _queued(gates: Gates, names: str) -> tuple[list[str], dict[str, asyncio.Task[None]]]:
    """Tasks that wait for the gate in this order, each noting when it gets it and handing it on."""
    got: list[str] = []

    async def wait(name: str) -> None:
        assert await gates.enter(KEY, name)
        got.append(name)
        gates.leave(KEY, name)

    assert await gates.enter(KEY, "holder")
    tasks = {}
    for place, name in enumerate(names):
        tasks[name] = asyncio.create_task(wait(name))
        while len(gates.open[KEY].queue) == place:
            await asyncio.sleep(0)
    return got, tasks


def test_who_came_first_goes_first() -> None:
    async def program() -> None:
        gates = Gates(AsyncRuntime())
        got, tasks = await _queued(gates, "abcd")
        gates.leave(KEY, "holder")
        await asyncio.gather(*tasks.values())
        assert got == list("abcd")
        assert not gates.open

    asyncio.run(program())


def test_one_who_is_cancelled_when_it_is_its_turn_hands_on() -> None:
    async def program() -> None:
        gates = Gates(AsyncRuntime())
        got, tasks = await _queued(gates, "abc")
        gates.leave(KEY, "holder")  # "a" is woken, and cancelled before it runs
        tasks["a"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert got == ["b", "c"]
        assert not gates.open

    asyncio.run(program())


def test_who_holds_it_no_more_gives_nothing_back() -> None:
    async def program() -> None:
        gates = Gates(AsyncRuntime())
        got, tasks = await _queued(gates, "a")
        gates.leave(KEY, "somebody")
        assert gates.open[KEY].holder == "holder"
        gates.leave(KEY, "holder")
        await tasks["a"]
        assert got == ["a"]

    asyncio.run(program())
