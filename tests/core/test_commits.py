"""What rarely happens at the end of a transaction: second invariants, conflicts on ranges, replies that say little."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import interlock
from cases.faults import Counted, LostReplies
from interlock import CommitUnknownError, InvariantError, UsageError, codec
from interlock.backends.memory import MemoryBackend
from interlock.core import idempotency
from interlock.errors import BackendCorruptError, IdempotencyMismatchError, ValueRefusedError
from interlock.model import Change, Entry, Settled

Session = interlock.AgentSession[Any]


async def put(session: Session, key: str, value: object) -> None:
    await session.write(key, value)


async def increment(session: Session) -> int:
    value: int = await session.read("n", 0) + 1
    await session.write("n", value)
    return value


def test_the_invariants_of_every_resource_are_checked() -> None:
    seen: list[str] = []

    async def stocked(view: interlock.AgentView[Any]) -> bool:
        seen.append("stocked")
        return await view.read("apples", 0) >= 0

    async def bookable(view: interlock.AgentView[Any]) -> bool:
        seen.append("bookable")
        return await view.read("open", 0) < 2

    async def run() -> None:
        async with interlock.open("memory://", agent="a") as store:
            stock, orders = store.resource("stock"), store.resource("orders")
            stock.invariant("stocked", stocked)
            orders.invariant("bookable", bookable)
            async with stock.session() as session:
                await session.write("apples", 3)
                await session.on(orders).write("open", 1)
            assert seen == ["stocked", "bookable"]
            session = await stock.begin()
            await session.write("apples", 2)
            await session.on(orders).write("open", 2)
            with pytest.raises(InvariantError) as caught:
                await session.commit()
            assert (caught.value.invariant, caught.value.resource) == ("bookable", "orders")
            assert (await stock.read("apples"), await orders.read("open")) == (3, 1)

    asyncio.run(run())


def test_a_call_that_nobody_awaits_stops_the_short_way_too() -> None:
    async def run() -> None:
        async with interlock.open("memory://", agent="a") as store:
            stock = store.resource("stock")
            with pytest.raises(UsageError, match=r"never awaited to its end: session\.write"):
                async with stock.session() as session:
                    assert await session.read("a") is None
                    await session.write("a", 1)
                    _ = session.write("b", 2)
            assert (await stock.read("a"), await stock.read("b")) == (None, None)

    asyncio.run(run())


def test_a_conflict_on_a_range_alone_is_run_again() -> None:
    async def run() -> None:
        async with interlock.open("memory://", agent="a") as store:
            stock = store.resource("stock")
            await stock.run(put, "a", 1)

            async def count(session: Session) -> int:
                found = [row async for row in session.scan()]
                if session.attempt == 1:
                    await stock.run(put, "b", 1, detached=True)
                await session.write("count", len(found))
                return len(found)

            done = await stock.run_detailed(count)
            assert (done.value, done.attempts) == (2, 2)
            assert await stock.read("count") == 2

    asyncio.run(run())


# -- replies -----------------------------------------------------------------------------------------------------------
class Forgetful(LostReplies):
    """Loses replies, and says of what became of them always the same."""

    def __init__(self, plan: dict[int, Any], answer: tuple[Settled, Change | None]) -> None:
        super().__init__(MemoryBackend(), plan)
        self.answer = answer

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        return self.answer if name == "outcome" else await super().around(name, args, call)


def at(backend: Any, work: Any) -> Any:
    """Run ``work(resource)`` on a store over a backend."""

    async def run() -> Any:
        async with interlock.Store(backend, agent="a") as store:
            return await work(store.resource("stock"))

    return asyncio.run(run())


def test_a_commit_whose_record_is_gone_has_happened_all_the_same() -> None:
    backend = Forgetful({1: "after"}, (Settled.COMMITTED, None))

    async def work(stock: interlock.SharedResource[Any]) -> None:
        done = await stock.run_detailed(increment)
        assert (done.value, done.attempts, done.replayed, done.cursor) == (1, 1, False, None)
        assert await stock.read("n") == 1

    at(backend, work)
    assert len(backend.commits) == 1


def test_what_the_store_has_forgotten_stays_unknown() -> None:
    backend = Forgetful({1: "before"}, (Settled.FORGOTTEN, None))

    async def work(stock: interlock.SharedResource[Any]) -> None:
        with pytest.raises(CommitUnknownError) as caught:
            await stock.run_detailed(increment)
        assert caught.value.transaction_id == f"{backend.commits[0].transaction:032x}"

    at(backend, work)
    assert len(backend.commits) == 1, "it was run again"


def test_what_is_unknown_of_somebody_elses_commit_is_not_settled_here() -> None:
    backend = Counted(MemoryBackend())
    error = CommitUnknownError("of another store", transaction_id="5" * 32)
    runs: list[int] = []

    async def elsewhere() -> None:
        raise error

    async def body(session: Session) -> None:
        runs.append(session.attempt)
        with pytest.raises(CommitUnknownError):
            await session.memo(elsewhere)

    async def work(stock: interlock.SharedResource[Any]) -> None:
        with pytest.raises(CommitUnknownError) as caught:
            await stock.run_detailed(body)
        assert caught.value is error

    at(backend, work)
    assert runs == [1]
    assert "outcome" not in backend.calls
    assert backend.commits == []


# -- idempotency keys --------------------------------------------------------------------------------------------------
async def keyed(stock: interlock.SharedResource[Any], work: Any) -> bool:
    """Do something in a bare session with a key; whether it had been done before."""
    session = await stock.begin(idempotency_key="k")
    call: Coroutine[Any, Any, None] = work(session)
    await call
    await session.commit()
    return session.replayed


@pytest.mark.parametrize("kind", ["clear", "merge"])
def test_the_key_of_a_bare_session_binds_what_it_clears_and_merges(kind: str) -> None:
    async def run() -> None:
        async with interlock.open("memory://", agent="a") as store:
            stock = store.resource("stock")
            stock.register_merge("larger", lambda value, operand: max(value or 0, operand))

            def touch(key: str) -> Any:
                return lambda session: session.clear(key) if kind == "clear" else session.merge(key, 3, "larger")

            await stock.run(put, "a", 1)
            assert not await keyed(stock, touch("a"))
            after = await stock.read("a")
            assert after == (None if kind == "clear" else 3)
            await stock.run(put, "a", 1)
            assert await keyed(stock, touch("a"))
            assert await stock.read("a") == 1, "it was done twice"
            with pytest.raises(IdempotencyMismatchError):
                await keyed(stock, touch("b"))

    asyncio.run(run())


async def returns_what_cannot_be_stored(session: Session) -> object:
    await session.write("a", 1)
    return object()


def test_a_result_that_is_of_no_kind_is_refused_with_its_key() -> None:
    async def run() -> None:
        async with interlock.open("memory://", agent="a") as store:
            numbers: interlock.SharedResource[Any] = store.resource("numbers", int)
            with pytest.raises(ValueRefusedError, match="kept with its idempotency key"):
                await numbers.run(returns_what_cannot_be_stored, idempotency_key="k")
            assert await numbers.read("a") is None

    asyncio.run(run())


def test_a_key_that_is_no_text_is_refused() -> None:
    async def run() -> None:
        async with interlock.open("memory://", agent="a") as store:
            stock = store.resource("stock")
            with pytest.raises(UsageError, match="surrogate"):
                await stock.run(increment, idempotency_key="half \ud800")
            assert await stock.read("n") is None

    asyncio.run(run())


@pytest.mark.parametrize("stored", [1, ("fingerprint", b"id"), (b"fingerprint", "no bytes", None, False)])
def test_a_record_that_is_none_is_reported_as_damage(stored: Any) -> None:
    with pytest.raises(BackendCorruptError, match="idempotency record"):
        idempotency.read_record(Entry((1, 1), codec.freeze(stored)), 0.0, None)
