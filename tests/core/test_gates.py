"""Gates of hot keys: first come, first served; one who gives up hands on what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import interlock
from interlock.backends.memory import MemoryBackend
from interlock.gates import IN_A_ROW, Gates, left_behind
from interlock.model import CommitRequest, Delete, Entry, Merge, Put, Reply, Token
from interlock.ports import telling_way
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


LEFT = (Entry((1, 1), b"value"), Token(1, 0, 1))


def test_who_has_queued_before_a_turn_gets_what_that_turn_has_left() -> None:
    """Who came during the turn may have seen something that its snapshot does not contain."""

    async def program() -> None:
        gates = Gates(AsyncRuntime())
        got: dict[str, object] = {}

        async def turn(name: str) -> None:
            assert await gates.enter(KEY, name)
            got[name] = gates.left(KEY, name)
            assert gates.left(KEY, "somebody") is None
            gates.leave(KEY, name, LEFT)

        assert await gates.enter(KEY, "holder")
        assert gates.left(KEY, "holder") is None
        tasks = [asyncio.create_task(turn(name)) for name in "ab"]
        await asyncio.sleep(0)
        gates.leave(KEY, "holder", LEFT)
        await asyncio.gather(*tasks)
        assert got == {"a": None, "b": LEFT}

    asyncio.run(program())


def test_after_some_turns_one_begins_anew() -> None:
    """So that other processes, which have to read the key, are not kept from it for good."""

    async def program() -> None:
        gates = Gates(AsyncRuntime())
        got: list[bool] = []

        async def turn(name: int) -> None:
            assert await gates.enter(KEY, name)
            got.append(gates.left(KEY, name) is not None)
            gates.leave(KEY, name, LEFT)

        assert await gates.enter(KEY, -1)
        tasks = [asyncio.create_task(turn(name)) for name in range(2 * IN_A_ROW)]
        await asyncio.sleep(0)
        gates.leave(KEY, -1, LEFT)
        await asyncio.gather(*tasks)
        assert got == [False, *[True] * IN_A_ROW, False, *[True] * (IN_A_ROW - 2)]

    asyncio.run(program())


def test_a_turn_that_has_not_committed_leaves_nothing() -> None:
    async def program() -> None:
        gates = Gates(AsyncRuntime())
        got: list[object] = []

        async def turn(name: str) -> None:
            assert await gates.enter(KEY, name)
            got.append(gates.left(KEY, name))
            gates.leave(KEY, name, LEFT if name == "b" else None)

        assert await gates.enter(KEY, "holder")
        tasks = [asyncio.create_task(turn(name)) for name in "abc"]
        await asyncio.sleep(0)
        gates.leave(KEY, "holder")
        await asyncio.gather(*tasks)
        assert got == [None, None, LEFT]

    asyncio.run(program())


def test_only_a_value_that_stays_is_left_behind() -> None:
    reply = Reply((7, 8), Token(1, 0, 7), 0.0)
    assert left_behind(Put(b"value"), reply) == (Entry((7, 8), b"value"), reply.token)
    for write, found in (
        (Put(b"value"), None), (Put(b"value", 1.0), reply), (Delete(), reply), (Merge(()), reply), (None, reply),
    ):  # fmt: skip
        assert left_behind(write, found) is None


def test_a_turn_begins_with_what_the_one_before_has_written() -> None:
    """Which it need not read: see the module's docstring for why that is a snapshot of its own time."""

    async def program() -> None:
        read: list[object] = []
        async with interlock.open("memory://", agent="a") as store:
            stock: Any = store.resource("stock")
            async with stock.session() as session:
                await session.write("hot", 0)
            backend = stock._resource.space.engine.backend
            inner = backend.read

            def counted(keys: Any, at: Any = None) -> Any:
                read.append(keys)
                return inner(keys, at)

            backend.read = counted

            async def bump(session: interlock.AgentSession[Any]) -> None:
                found = await session.read("hot")
                await asyncio.sleep(0)
                await session.write("hot", found + 1)

            async def work() -> None:
                for _ in range(20):
                    await stock.run(bump)

            await asyncio.gather(*(work() for _ in range(10)))
            assert await stock.read("hot") == 200
        assert len(read) < 80, len(read)

    asyncio.run(program())


class Sent(MemoryBackend):
    """Commits that take a turn of the loop, each noted when it is sent. As a subclass it has no direct way."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    async def commit(self, request: CommitRequest) -> Reply:
        """Noted."""
        self.events.append("sent")
        await asyncio.sleep(0)
        return await super().commit(request)

    def blocking(self) -> Sent:
        """Itself: nothing that blocks is called."""
        return self


async def _increase(session: interlock.AgentSession[Any]) -> None:
    found = await session.read("hot", 0) or 0
    await session.write("hot", found + 1)


def test_the_next_commit_is_sent_before_the_last_one_is_heard_of() -> None:
    """All who queue wait for that commit; nobody waits for the caller whose turn is over."""
    events: list[str] = []

    async def program() -> None:
        async with interlock.Store(Sent(events), agent="a") as store:
            stock: Any = store.resource("stock")

            async def work() -> None:
                await stock.run(_increase)
                events.append("heard")

            await asyncio.gather(*(work() for _ in range(6)))
            assert await stock.read("hot") == 6

    asyncio.run(program())
    # All send at once and one gets through, without a gate; the others have turns, and hear when the next has sent.
    assert events == ["sent"] * 6 + ["heard", "sent"] + ["sent", "heard"] * 4 + ["heard"]


class Told(Sent):
    """Says at once that a commit was done, and lets two turns of the loop pass until its caller goes on."""

    async def commit_telling(self, request: CommitRequest, tell: Callable[[Reply], object]) -> Reply:
        """Noted."""
        self.events.append("sent")
        reply = await MemoryBackend.commit(self, request)
        tell(reply)
        self.events.append("told")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return reply


def test_who_is_told_of_a_commit_hands_the_gate_on_before_the_caller_goes_on() -> None:
    events: list[str] = []

    async def program() -> None:
        async with interlock.Store(Told(events), agent="a") as store:
            stock: Any = store.resource("stock")

            async def work() -> None:
                await stock.run(_increase)
                events.append("heard")

            await asyncio.gather(*(work() for _ in range(4)))
            assert await stock.read("hot") == 4

    asyncio.run(program())
    turns = events[events.index("told") :]
    assert turns[:3] == ["told", "sent", "told"], events  # and only then the first of them has heard
    assert [turns.count(event) for event in ("sent", "told", "heard")] == [2, 3, 3]


def test_a_subclass_that_does_something_else_to_commits_tells_nothing() -> None:
    class Other(Told):
        pass

    told, other = Told([]), Other([])
    assert telling_way(told) == told.commit_telling
    assert telling_way(other) is None
    assert telling_way(MemoryBackend()) is None


def test_who_is_cancelled_while_he_stands_back_learns_that_his_commit_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    leave = Gates.leave

    def cancelling(gates: Gates, key: bytes, holder: object, left: Any = None) -> bool:
        """Give the gate back, and cancel the first who has committed and passed it on."""
        passed = leave(gates, key, holder, left)
        if passed and left is not None:
            monkeypatch.setattr(Gates, "leave", leave)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return passed

    async def program() -> None:
        async with interlock.Store(Sent([]), agent="a") as store:
            stock: Any = store.resource("stock")

            async def work() -> None:
                try:
                    await stock.run(_increase)
                except asyncio.CancelledError as cancelled:
                    notes.extend(cancelled.__notes__)

            monkeypatch.setattr(Gates, "leave", cancelling)
            await asyncio.gather(*(work() for _ in range(4)))
            assert await stock.read("hot") == 4

    asyncio.run(program())
    assert notes == ["the commit had been done before"]
