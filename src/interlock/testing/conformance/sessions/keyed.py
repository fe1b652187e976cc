"""Idempotency keys used at once, in bare sessions, in nested runs, after lost replies, and when their time is over."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, listed
from interlock.testing.conformance.sessions.faults import Lossy
from interlock.testing.conformance.sessions.idempotency import Session, reserve, runs


@at_desk
async def test_many_at_once_have_one_effect(desk: Desk) -> None:
    """Over one store object, and over several, whose processes know nothing of each other."""
    stores = [desk.open() for _ in range(3)]
    done: list[interlock.Committed[int]] = []

    async def agent(number: int) -> None:
        stock = stores[number % 3].resource("stock")
        for order in range(3):
            each = await stock.run_detailed(reserve, "nut", 1, idempotency_key=f"order {order}")
            done.append(each)

    await desk.together(*[partial(agent, number) for number in range(9)])
    assert await stores[0].resource("stock").read("nut") == 7
    assert len(done) == 27
    assert sum(not each.replayed for each in done) == 3
    assert {(each.transaction_id, each.value) for each in done if each.replayed} == {
        (each.transaction_id, each.value) for each in done if not each.replayed
    }


@at_desk
async def test_a_mismatch_is_found_while_the_key_is_at_work(desk: Desk) -> None:
    """P2 never runs, neither while P1 does nor after it."""
    stock = desk.resource("stock")
    inside, outside = desk.flag(), desk.flag()

    async def slow(session: Session, payload: str) -> str:
        await session.write("payload", payload)
        inside.lift()
        await outside.wait()
        return payload

    async def call(payload: str) -> Any:
        return await stock.run(slow, payload, idempotency_key="K", idempotency_fingerprint=payload)

    async def other() -> None:
        await inside.wait()
        try:
            with pytest.raises(interlock.IdempotencyMismatchError, match="moment"):
                await call("P2")
        finally:
            outside.lift()

    await desk.together(partial(call, "P1"), other)
    with pytest.raises(interlock.IdempotencyMismatchError):
        await call("P2")
    assert await call("P1") == "P1"
    assert await stock.read("payload") == "P1"


@at_desk
async def test_a_key_ends_with_its_time(desk: Desk) -> None:
    """Before: a replay. After: a new run, whether or not it was compacted, with a record of its own."""
    store = desk.open(idempotency_ttl_seconds=0.15)
    stock = store.resource("stock")
    for compacting in (False, True):
        await stock.run(reserve, "nut", idempotency_key=f"K{compacting}")
        begun = await desk.backend.now()
        again = await stock.run_detailed(reserve, "nut", idempotency_key=f"K{compacting}")
        assert again.replayed or await desk.backend.now() > begun + 0.1
        while await desk.backend.now() <= begun + 0.16:
            await desk.give_way()
        if compacting:
            await store.compact()
        later = await stock.run_detailed(reserve, "nut", idempotency_key=f"K{compacting}")
        assert (later.replayed, later.attempts) == (False, 1)
    with pytest.raises(interlock.UsageError, match="idempotency_ttl_seconds"):
        desk.open(idempotency_ttl_seconds=0)


@at_desk
async def test_a_bare_session_replays_by_its_footprint(desk: Desk) -> None:
    stock = desk.resource("stock")

    async def book(key: str, value: int, agent: str = "tester", **options: Any) -> bool:
        async with stock.session(idempotency_key="K", agent=agent, **options) as session:
            await session.write(key, value)
            assert not session.replayed
        return session.replayed

    assert not await book("a", 1)
    assert await book("a", 2)
    assert await stock.read("a") == 1
    with pytest.raises(interlock.IdempotencyMismatchError):
        await book("b", 1)
    with pytest.raises(interlock.IdempotencyMismatchError):
        await book("a", 1, agent="other")
    with pytest.raises(interlock.IdempotencyMismatchError):
        await book("a", 1, idempotency_fingerprint="given")
    begun = await stock.begin(idempotency_key="K")
    await begun.write("a", 3)
    done = await begun.commit()
    assert (done.replayed, done.cursor) == (True, None)
    empty = await stock.begin(idempotency_key="nothing written")
    assert not (await empty.commit()).replayed
    empty = await stock.begin(idempotency_key="nothing written")
    assert (await empty.commit()).replayed
    replayed = []
    async for attempt in stock.attempts(idempotency_key="K"):
        async with attempt, attempt.session() as session:
            await session.write("a", 4)
        replayed.append(session.replayed)
    assert replayed == [True]
    assert await contents(stock) == {"a": 1}


@at_desk
async def test_a_nested_run_with_a_key(desk: Desk) -> None:
    """Its record is written by the outermost commit; where it was done before, only that part is left out."""
    stock = desk.resource("stock")
    runs.clear()

    async def order(session: Session) -> list[int]:
        await session.append("log", session.attempt)
        first = await stock.run(reserve, "nut", 2, idempotency_key="nut")
        second = await stock.run(reserve, "nut", 2, idempotency_key="nut")
        return [first, second, await stock.run(reserve, "bolt", 1, idempotency_key="bolt")]

    assert await stock.run(order) == [8, 8, 9]
    assert len(runs) == 2
    assert await stock.run(order) == [8, 8, 9]
    assert len(runs) == 2
    assert await contents(stock) == {"bolt": 9, "log": [1, 1], "nut": 8}
    with pytest.raises(interlock.IdempotencyMismatchError):
        async with stock.session() as session:
            await session.write("a", 1)
            await stock.run(reserve, "nut", 5, idempotency_key="nut")
    with pytest.raises(interlock.UsageError, match="idempotency_key"):
        async with stock.session():
            async with stock.session(idempotency_key="K"):
                pass


@at_desk
async def test_a_nested_part_that_somebody_else_does_meanwhile(desk: Desk) -> None:
    """The parent runs again, whole, and finds it done; its own work is not lost, its answer is its own."""
    stock, theirs = desk.resource("stock"), desk.resource("stock")
    parents = 0

    async def order(session: Session) -> str:
        nonlocal parents
        parents += 1
        await session.write("parent", parents)
        left = await stock.run(reserve, "nut", 2, idempotency_key="nut")
        if parents == 1:
            assert await theirs.run(reserve, "nut", 2, idempotency_key="nut") == 8
        return f"order with {left} left"

    assert await stock.run(order) == "order with 8 left"
    assert parents == 2
    assert await contents(stock) == {"nut": 8, "parent": 2}
    parents = 0
    assert await stock.run(order, idempotency_key="parent", idempotency_fingerprint=1) == "order with 8 left"
    assert await stock.run(order, idempotency_key="parent", idempotency_fingerprint=1) == "order with 8 left"
    assert parents == 1


@at_desk
async def test_a_lost_reply_and_a_crash_after_it(desk: Desk) -> None:
    """The classic: the work was done, nobody was told, and somebody else asks again."""
    lossy = Lossy(desk)
    unlucky, survivor = desk.resource("stock", backend=lossy), desk.resource("stock")
    lossy.lose, lossy.silent = ["landed"], 10**6
    with pytest.raises(interlock.CommitUnknownError):
        await unlucky.run(reserve, "nut", 3, idempotency_key="order", retry=interlock.RetryPolicy(max_seconds=0))
    done = await survivor.run_detailed(reserve, "nut", 3, idempotency_key="order")
    assert (done.value, done.replayed) == (7, True)
    lossy.lose = ["lost"]
    with pytest.raises(interlock.CommitUnknownError):
        await unlucky.run(reserve, "nut", 3, idempotency_key="other", retry=interlock.RetryPolicy(max_seconds=0))
    done = await survivor.run_detailed(reserve, "nut", 3, idempotency_key="other")
    assert (done.value, done.replayed) == (4, False)


@at_desk
async def test_records_do_not_show(desk: Desk) -> None:
    store = desk.open()
    stock = store.resource("stock")
    await stock.run(reserve, "nut", idempotency_key="K")
    assert await contents(stock) == {"nut": 9}
    (change,) = await listed(store.log.changes())
    assert change.writes.keys() == change.reads.keys() == {("stock", "nut")}
    for wrong in ("", " ", 7, b"x"):
        with pytest.raises(interlock.UsageError, match="idempotency_key"):
            await stock.run(reserve, "nut", idempotency_key=wrong)  # type: ignore[arg-type]
    with pytest.raises(interlock.LimitExceededError):
        await stock.run(reserve, "nut", idempotency_key="é" * 128)
    await stock.run(reserve, "nut", idempotency_key="é" * 127)
