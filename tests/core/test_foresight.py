"""What is read ahead with an idempotency record: it saves a round trip, and is never more than a guess."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import interlock
import interlock.sync
from interlock.backends.memory import MemoryBackend
from interlock.core.foresight import FRESH_SECONDS
from interlock.model import Key, Reading, Token
from interlock.runtime import AsyncRuntime

Stock = interlock.SharedResource[Any]
Session = interlock.AgentSession[Any]


class Passed(MemoryBackend):
    """A memory backend whose reads are counted. As a subclass it has no direct way."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Key, ...]] = []

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Noted."""
        self.asked.append(tuple(keys))
        return await super().read(keys, at)

    def blocking(self) -> Passed:
        """Itself: nothing in it suspends."""
        return self


class Watch(AsyncRuntime):
    """Time that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def monotonic(self) -> float:  # type: ignore[override]
        """Where the test has put it."""
        return self.now


def with_store(work: Callable[[interlock.Store, Stock, Passed, Watch], Awaitable[object]]) -> None:
    """A store in which runs of `increase` and `move` have been seen."""

    async def run() -> None:
        backend, watch = Passed(), Watch()
        async with interlock.Store(backend, agent="a", runtime=watch) as store:
            stock = store.resource("stock")
            await stock.run(increase, "pears", idempotency_key="first")
            await stock.run(move, "pears", "plums", idempotency_key="first")
            await stock.run(perhaps, "pears", True, idempotency_key="first")
            backend.asked.clear()
            await work(store, stock, backend, watch)

    asyncio.run(run())


async def increase(session: Session, key: str) -> int:
    value: int = await session.read(key, 0) + 1
    await session.write(key, value)
    return value


async def move(session: Session, source: str, target: str) -> None:
    await session.write(source, await session.read(source, 0) - 1)
    await session.write(target, await session.read(target, 0) + 1)


async def perhaps(session: Session, key: str, reads: bool) -> None:
    if reads:
        await session.read(key)
    await session.write("done", True)


def test_one_round_trip_for_the_record_and_every_argument_that_is_read() -> None:
    async def work(store: interlock.Store, stock: Stock, backend: Passed, watch: Watch) -> None:
        assert await stock.run(increase, "apples", idempotency_key="one") == 1
        await stock.run(move, "apples", "plums", idempotency_key="one")
        await stock.run_detailed(move, "plums", "plums", idempotency_key="two")
        assert [len(keys) for keys in backend.asked] == [2, 3, 2]
        assert (await stock.read("apples"), await stock.read("plums")) == (0, 2)

    with_store(work)


def test_a_replay_runs_nothing() -> None:
    async def work(store: interlock.Store, stock: Stock, backend: Passed, watch: Watch) -> None:
        first = await stock.run_detailed(increase, "apples", idempotency_key="one")
        again = await stock.run_detailed(increase, "apples", idempotency_key="one")
        assert (again.value, again.replayed, again.attempts) == (first.value, True, 0)
        assert await stock.read("apples") == 1

    with_store(work)


def test_what_was_read_ahead_is_validated_once_it_is_read() -> None:
    async def work(store: interlock.Store, stock: Stock, backend: Passed, watch: Watch) -> None:
        meddled = Counter[str]()

        async def meddling(session: Session, key: str) -> int:
            value = await increase(session, key)
            if not meddled[key]:
                meddled[key] += 1
                await stock.run(increase, key, detached=True)
            return value

        for key in ("apples", "plums"):
            done = await stock.run_detailed(
                meddling, key, idempotency_key=f"meddling with {key}", idempotency_fingerprint=key
            )
            assert done.attempts == 2
        assert await stock.read("apples") == 2

    with_store(work)


def test_an_argument_that_is_not_read_is_no_read() -> None:
    async def work(store: interlock.Store, stock: Stock, backend: Passed, watch: Watch) -> None:
        async def meddling(session: Session, key: str, reads: bool) -> None:
            await perhaps(session, key, reads)
            await stock.run(increase, key, detached=True)

        options: Any = {"idempotency_fingerprint": 1}
        space = stock._resource.space
        space.foreseen[f"{meddling.__module__}.{meddling.__qualname__}"] = (0,)
        done = await stock.run_detailed(meddling, "apples", False, idempotency_key="one", **options)
        assert done.attempts == 1
        reads = [change.reads async for change in store.log.changes() if change.transaction_id == done.transaction_id]
        assert reads == [{}]
        await stock.run(perhaps, "apples", False, idempotency_key="two")  # and from now on it is not asked for
        backend.asked.clear()
        await stock.run(perhaps, "apples", False, idempotency_key="three")
        assert [len(keys) for keys in backend.asked] == [1]

    with_store(work)


def test_a_function_that_thinks_first_reads_what_is_there_then() -> None:
    async def work(store: interlock.Store, stock: Stock, backend: Passed, watch: Watch) -> None:
        async def thinking(session: Session, key: str) -> int:
            await stock.run(increase, key, detached=True)
            watch.now += FRESH_SECONDS
            return await increase(session, key)

        stock._resource.space.foreseen[f"{thinking.__module__}.{thinking.__qualname__}"] = (0,)
        done = await stock.run_detailed(thinking, "apples", idempotency_key="one", idempotency_fingerprint=1)
        assert (done.value, done.attempts) == (2, 1)

    with_store(work)


def test_a_snapshot_that_has_moved_leaves_behind_what_was_read_ahead() -> None:
    async def work(store: interlock.Store, stock: Stock, backend: Passed, watch: Watch) -> None:
        async def checking(session: Session, key: str) -> int:
            await stock.run(increase, key, detached=True)
            await session.check()
            return await increase(session, key)

        stock._resource.space.foreseen[f"{checking.__module__}.{checking.__qualname__}"] = (0,)
        done = await stock.run_detailed(checking, "apples", idempotency_key="one", idempotency_fingerprint=1)
        assert (done.value, done.attempts) == (2, 1)

    with_store(work)


def test_what_no_key_can_be_is_left_to_the_function() -> None:
    async def work(store: interlock.Store, stock: Stock, backend: Passed, watch: Watch) -> None:
        with pytest.raises(interlock.UsageError, match="empty"):
            await stock.run(increase, "", idempotency_key="one")

        async def nothing(session: Session, key: str) -> None:
            await session.write("done", key)

        stock._resource.space.foreseen[f"{nothing.__module__}.{nothing.__qualname__}"] = (0,)
        await stock.run(nothing, "", idempotency_key="two", idempotency_fingerprint=1)
        assert await stock.read("done") == ""

    with_store(work)


def test_synchronous_runs_read_ahead_too() -> None:
    def increase_now(session: interlock.sync.AgentSession[Any], key: str) -> None:
        session.write(key, session.read(key, 0) + 1)

    backend = Passed()
    with interlock.sync.Store(backend, agent="a") as store:
        stock = store.resource("stock")
        for number in range(3):
            stock.run(increase_now, "apples", idempotency_key=f"{number}")
        assert [len(keys) for keys in backend.asked] == [1, 1, 2, 2]
        assert stock.read("apples") == 3
