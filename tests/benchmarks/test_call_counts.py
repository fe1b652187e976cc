"""What an operation asks of its ports and of SQLite, counted: gates against growing dearer that do not depend on time.

A number here may be lowered by whoever makes something cheaper. Raising one is a decision."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import interlock
import interlock.sync
from interlock.backends.memory import MemoryBackend
from interlock.core.engine import HOUSEKEEPING_COMMITS
from interlock.model import CommitRequest, Key, Reading, Reply, Token


class Counting(MemoryBackend):
    """A memory backend that counts the calls of its port."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def snapshot(self) -> Token:
        """Counted."""
        self.calls["snapshot"] += 1
        return await super().snapshot()

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Counted."""
        self.calls["read"] += 1
        return await super().read(keys, at)

    async def commit(self, request: CommitRequest) -> Reply:
        """Counted."""
        self.calls["commit"] += 1
        return await super().commit(request)

    async def now(self) -> float:
        """Counted."""
        self.calls["now"] += 1
        return await super().now()

    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Counted."""
        self.calls["compact"] += 1
        return await super().compact(before, limit=limit)


async def increase(session: interlock.AgentSession[Any], key: str) -> None:
    await session.write(key, await session.read(key, 0) + 1)


def port_calls(work: Callable[[interlock.SharedResource[Any]], Awaitable[object]]) -> dict[str, int]:
    """The calls that ``work`` makes on a store that has seen a commit before."""

    async def run() -> dict[str, int]:
        backend = Counting()
        async with interlock.Store(backend, agent="counter") as store:
            stock = store.resource("stock")
            await stock.run(increase, "apples")
            backend.calls.clear()
            await work(stock)
            return dict(backend.calls)

    return asyncio.run(run())


def test_port_read_modify_write() -> None:
    assert port_calls(lambda stock: stock.run(increase, "apples")) == {"read": 1, "commit": 1}


def test_port_read_modify_write_with_an_idempotency_key() -> None:
    """The first run of an operation teaches what the next one asks for together with its record."""

    async def work(stock: interlock.SharedResource[Any]) -> None:
        await stock.run(increase, "apples", idempotency_key="one")

    async def twice(stock: interlock.SharedResource[Any]) -> None:
        await work(stock)
        await stock.run(increase, "pears", idempotency_key="two")

    assert port_calls(work) == {"read": 2, "commit": 1}
    assert port_calls(twice) == {"read": 3, "commit": 2}


def test_port_replay() -> None:
    async def twice(stock: interlock.SharedResource[Any]) -> None:
        for _ in range(2):
            await stock.run(increase, "apples", idempotency_key="one")

    assert port_calls(twice) == {"read": 3, "commit": 1}


def test_port_session() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            await increase(session, "apples")
            await session.read("apples")

    assert port_calls(work) == {"read": 1, "commit": 1}


def test_port_read_only() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            for _ in range(3):
                await session.read("apples")

    assert port_calls(work) == {"read": 1}


def test_port_many_reads_in_one() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            await session.read_many([f"article-{i}" for i in range(100)])
            await session.write("apples", 1)

    assert port_calls(work) == {"read": 1, "commit": 1}


def test_port_blind_writes() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            for i in range(100):
                await session.write(f"article-{i}", i)

    assert port_calls(work) == {"snapshot": 1, "commit": 1}


def test_port_merge_reads_nothing() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            await session.add("apples", 1, floor=0)

    assert port_calls(work) == {"snapshot": 1, "commit": 1}


def test_port_conflict_costs_one_more_attempt() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        interfered = False

        async def with_interference(session: interlock.AgentSession[Any]) -> None:
            nonlocal interfered
            await increase(session, "apples")
            if not interfered:
                interfered = True
                await stock.run(increase, "apples", detached=True)

        await stock.run(with_interference)

    assert port_calls(work) == {"read": 3, "commit": 3}


def test_port_housekeeping_is_rare() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        for _ in range(HOUSEKEEPING_COMMITS):
            await stock.run(increase, "apples")

    calls = port_calls(work)
    assert (calls["now"], calls["compact"]) == (1, 1)


# --- Python calls ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector: by chance it would come in between, and call what waits for the ends of older stores."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def python_calls(work: Callable[[interlock.SharedResource[Any]], Awaitable[object]]) -> int:
    """How many Python functions run, comprehensions and resumed coroutines included, in ``work`` on a warm store."""

    async def run() -> int:
        async with interlock.open("memory://", agent="counter") as store:
            stock = store.resource("stock")
            for _ in range(2):
                await work(stock)
            calls = 0

            def count(frame: FrameType, event: str, argument: object) -> None:
                nonlocal calls
                calls += event == "call"

            with uncollected():
                before = sys.getprofile()
                sys.setprofile(count)
                try:
                    await work(stock)
                finally:
                    sys.setprofile(before)
            return calls

    return asyncio.run(run())


def stepped_calls(work: Callable[[interlock.sync.SharedResource[Any]], object]) -> int:
    """The same in synchronous code."""
    with interlock.sync.open("memory://", agent="counter") as store:
        stock = store.resource("stock")
        for _ in range(2):
            work(stock)
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        with uncollected():
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                work(stock)
            finally:
                sys.setprofile(before)
        return calls


def increase_now(session: interlock.sync.AgentSession[Any], key: str) -> None:
    session.write(key, session.read(key, 0) + 1)


def test_python_calls_of_a_session() -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            await increase(session, "apples")

    assert python_calls(work) <= 18


def test_python_calls_of_run() -> None:
    assert python_calls(lambda stock: stock.run(increase, "apples")) <= 16


def test_python_calls_of_run_with_an_idempotency_key() -> None:
    keys = iter(range(10))
    assert python_calls(lambda stock: stock.run(increase, "apples", idempotency_key=f"order-{next(keys)}")) <= 23


def test_python_calls_of_a_synchronous_session() -> None:
    def work(stock: interlock.sync.SharedResource[Any]) -> None:
        with stock.session() as session:
            increase_now(session, "apples")

    assert stepped_calls(work) <= 18


def test_python_calls_of_synchronous_run() -> None:
    assert stepped_calls(lambda stock: stock.run(increase_now, "apples")) <= 17


def test_python_calls_of_synchronous_run_with_an_idempotency_key() -> None:
    keys = iter(range(10))
    assert stepped_calls(lambda stock: stock.run(increase_now, "apples", idempotency_key=f"order-{next(keys)}")) <= 24


# --- statements -------------------------------------------------------------------------------------------------------


def verbs(statements: list[str]) -> Counter[str]:
    """How often each kind of statement was begun; a transaction that takes the write lock is a kind of its own."""
    firsts = (statement if statement == "BEGIN IMMEDIATE" else statement.split()[0] for statement in statements)
    return Counter(firsts)


def sqlite_work(
    path: Path, statements: list[str], work: Callable[[interlock.SharedResource[Any]], Awaitable[object]]
) -> Counter[str]:
    """The statements of ``work``, on a store that is open and has seen a commit."""

    async def run() -> Counter[str]:
        async with interlock.open(f"sqlite:///{path}", agent="counter") as store:
            stock = store.resource("stock")
            await stock.run(increase, "apples")
            statements.clear()
            await work(stock)
            return verbs(statements)

    return asyncio.run(run())


def test_sqlite_read_modify_write(tmp_path: Path, statements: list[str]) -> None:
    """Whatever this process has written is read from memory; the writer asks whether anybody else has written."""
    found = sqlite_work(tmp_path / "s.db", statements, lambda stock: stock.run(increase, "apples"))
    assert found == {"PRAGMA": 1, "BEGIN IMMEDIATE": 1, "INSERT": 2, "COMMIT": 1}


def test_sqlite_read_modify_write_with_an_idempotency_key(tmp_path: Path, statements: list[str]) -> None:
    """The caller's look for the record; the writer's question whether anybody else has written, its own look for it,
    the changed rows, the feed row."""
    found = sqlite_work(
        tmp_path / "s.db", statements, lambda stock: stock.run(increase, "apples", idempotency_key="one")
    )
    assert found == {"SELECT": 2, "PRAGMA": 1, "BEGIN IMMEDIATE": 1, "INSERT": 2, "COMMIT": 1}


def test_sqlite_read_only_takes_no_lock(tmp_path: Path, statements: list[str]) -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            await session.read("pears")

    assert sqlite_work(tmp_path / "s.db", statements, work) == {"SELECT": 1}


def test_sqlite_read_of_what_this_process_has_written(tmp_path: Path, statements: list[str]) -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            await session.read("apples")

    assert sqlite_work(tmp_path / "s.db", statements, work) == {}


def test_sqlite_check_writes_nothing(tmp_path: Path, statements: list[str]) -> None:
    async def work(stock: interlock.SharedResource[Any]) -> None:
        async with stock.session() as session:
            await session.read("apples")
            await session.check()

    assert sqlite_work(tmp_path / "s.db", statements, work) == {"SELECT": 1, "BEGIN": 1, "ROLLBACK": 1}


def test_sqlite_concurrent_transactions_share_one_commit(tmp_path: Path, statements: list[str]) -> None:
    """32 transactions that queue up while another process writes cost one COMMIT, that is one sync of the disk, and as
    many statements as one transaction does. The other process is a lock on the queue file, held here."""
    path = tmp_path / "s.db"
    count = 32

    async def work(stock: interlock.SharedResource[Any]) -> None:
        other = os.open(f"{path}-queue", os.O_RDWR)
        try:
            fcntl.flock(other, fcntl.LOCK_EX)
            tasks = [
                asyncio.create_task(stock.run(increase, f"article-{i}", idempotency_key=f"order-{i}"))
                for i in range(count)
            ]
            for _ in range(3):  # reads do not suspend: after one turn of the loop every task waits for its commit
                await asyncio.sleep(0)
            assert verbs(statements) == {"SELECT": 2 * count}
            fcntl.flock(other, fcntl.LOCK_UN)
            await asyncio.gather(*tasks)
        finally:
            os.close(other)

    found = sqlite_work(path, statements, work)
    assert found == {"SELECT": 2 * count + 1, "PRAGMA": 1, "BEGIN IMMEDIATE": 1, "INSERT": 2, "COMMIT": 1}
