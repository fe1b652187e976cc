"""Cases of kind isolation: what one agent did must not be lost, mixed with, or decided on what another has changed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from cases.support import World, awaited, everywhere, increment, put, put_all, rows
from interlock import ConflictError, RangeConflict, ReadConflict, RetriesExhaustedError, RetryPolicy, UsageError

MODES = ("snapshot", "optimistic", "serializable")


@dataclass
class Account:
    balance: int


@everywhere
async def test_R001_second_committer_gets_a_conflict(world: World) -> None:
    records = world.open().resource("records")
    await records.run(put, "r", "version 1")
    first, second = await records.begin(agent="first"), await records.begin(agent="second")
    assert await first.read("r") == await second.read("r") == "version 1"
    await first.write("r", "edited by first")
    await second.write("r", "edited by second")
    done = await first.commit()
    with pytest.raises(ReadConflict) as caught:
        await second.commit()
    (conflict,) = caught.value.conflicts
    assert (conflict.resource, conflict.key, conflict.kind) == ("records", "r", "read")
    assert (conflict.read_value, conflict.current_value) == ("version 1", "edited by first")
    assert (conflict.committed_by, conflict.transaction_id) == ("first", done.transaction_id)
    assert await records.read("r") == "edited by first"
    with pytest.raises(UsageError):  # never refreshed under a result that was computed from the old version
        await second.commit()
    assert len(await rows(records.history("r"))) == 2


@everywhere
async def test_R001_run_computes_anew_from_fresh_reads(world: World) -> None:
    records = world.open().resource("records")
    await records.run(put, "r", ["v1"])
    seen: list[Any] = []

    async def edit(session: Any) -> None:
        value = await session.read("r")
        seen.append(value)
        if len(seen) == 1:
            await records.run(put, "r", [*value, "other"], agent="other", detached=True)
        await session.write("r", [*value, "mine"])

    assert (await records.run_detailed(edit)).attempts == 2
    assert seen == [["v1"], ["v1", "other"]]
    assert await records.read("r") == ["v1", "other", "mine"]


@everywhere
async def test_R002_no_update_is_lost_between_100_threads(world: World) -> None:
    counters = world.open().resource("counters")
    world.together(100, lambda number: counters.run(increment, agent=f"agent {number}"))
    assert await counters.read("n") == 100


@awaited
async def test_R002_no_update_is_lost_between_100_tasks(world: World) -> None:
    counters = world.open().resource("counters")

    async def think_and_add(session: Any) -> None:
        value = await session.read("n", 0)
        await asyncio.sleep(0)
        await session.write("n", value + 1)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(counters.run(think_and_add, agent=f"agent {number}"))
    assert await counters.read("n") == 100


@everywhere
async def test_R004_parallel_writers_of_one_mapping(world: World) -> None:
    state = world.open().resource("state")
    left, right = await state.begin(agent="left"), await state.begin(agent="right")
    for session, key in ((left, "a"), (right, "b")):
        assert await session.read(key) is None
        await session.write(key, key.upper())
    await left.commit()
    await right.commit()
    assert await rows(state.scan()) == [("a", "A"), ("b", "B")]

    again, rival = await state.begin(agent="again"), await state.begin(agent="rival")
    for session in (again, rival):
        await session.update("a", lambda value: value + "!")
    await again.commit()
    with pytest.raises(ConflictError):
        await rival.commit()
    assert await state.read("a") == "A!"


@everywhere
async def test_R005_a_deleted_key_counts_as_changed(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    for isolation in ("optimistic", "serializable"):
        await stock.run(put, "k", 1)
        reader = await stock.begin(isolation=isolation)
        assert await reader.read("k") == 1
        async with stock.session(agent="cleaner") as session:
            await session.delete("k")
        await reader.write("based on k", 1)
        with pytest.raises(ReadConflict) as caught:
            await reader.commit()
        assert caught.value.conflicts[0].current_version is None
        assert caught.value.conflicts[0].committed_by == "cleaner"

        reader = await stock.begin(isolation=isolation)
        assert not await reader.exists("k")
        await stock.run(put, "k", 2)
        await reader.write("based on the absence of k", 1)
        with pytest.raises(ReadConflict):
            await reader.commit()

        reader = await stock.begin(isolation=isolation)  # deleted and created again, with the same value
        assert await reader.read("k") == 2
        async with stock.session() as session:
            await session.delete("k")
        await stock.run(put, "k", 2)
        await reader.write("based on k", 2)
        with pytest.raises(ReadConflict):
            await reader.commit()
        async with stock.session() as session:
            await session.delete("k")
    assert await rows(stock.scan()) == []


@everywhere
async def test_R007_old_a_is_never_seen_with_new_b(world: World) -> None:
    pairs = world.open().resource("pairs")
    for isolation in MODES:
        for writes in (False, True):
            await pairs.run(put_all, {"a": "old", "b": "old"})
            session = await pairs.begin(isolation=isolation)
            first = await session.read("a")
            await pairs.run(put_all, {"a": "new", "b": "new"})
            assert (first, await session.read("b")) == ("old", "old"), "old a together with new b"
            if not writes:  # nothing to refuse: it has seen one consistent state
                await session.commit()
                continue
            if isolation == "snapshot":  # its writes are its own
                await session.write("decision", isolation)
                await session.commit()
                continue
            with pytest.raises(ConflictError):
                await session.write("decision", isolation)
                await session.commit()
    assert await pairs.read("decision") == "snapshot"


@everywhere
async def test_R007_a_scan_sees_one_state_too(world: World) -> None:
    pairs = world.open().resource("pairs")
    await pairs.run(put_all, {"a": "old", "b": "old"})
    session = await pairs.begin()
    assert await session.read("a") == "old"
    await pairs.run(put_all, {"a": "new", "b": "new", "c": "new"})
    assert await rows(session.scan()) == [("a", "old"), ("b", "old")]
    assert await session.read_many(["b", "c"]) == {"b": "old"}
    await session.commit()


@everywhere
async def test_R008_a_listing_is_part_of_what_was_read(world: World) -> None:
    orders = world.open().resource("orders")
    await orders.run(put_all, {("order", 1): "x", ("order", 2): "y", ("other", 1): "z"})

    async def count_then(isolation: str, change: Any) -> Any:
        session = await orders.begin(isolation=isolation)
        found = await rows(session.scan(("order",)))
        await change
        await session.write("count", len(found))
        return session

    with pytest.raises(RangeConflict):  # an insert: the phantom
        await (await count_then("serializable", orders.run(put, ("order", 3), "new"))).commit()
    with pytest.raises(RangeConflict):  # a change of what is listed
        await (await count_then("serializable", orders.run(put, ("order", 1), "changed"))).commit()

    async def take(session: Any) -> None:
        await session.delete(("order", 3))

    with pytest.raises(RangeConflict):
        await (await count_then("serializable", orders.run(take))).commit()
    await (await count_then("serializable", orders.run(put, ("other", 2), "elsewhere"))).commit()
    assert await orders.read("count") == 2


@everywhere
async def test_R008_the_weaker_modes_allow_the_phantom_as_documented(world: World) -> None:
    orders = world.open().resource("orders")
    for isolation in ("none", "snapshot", "optimistic"):
        await orders.run(put, ("order", 1), "x")
        session = await orders.begin(isolation=isolation)
        found = await rows(session.scan(("order",)))
        await orders.run(put, ("order", f"new under {isolation}"), "y")
        await session.write("count", len(found))
        await session.commit()
    assert await orders.read("count") == 3
    assert len(await rows(orders.scan(("order",)))) == 4


@everywhere
async def test_R009_write_skew(world: World) -> None:
    duty = world.open().resource("duty")
    for isolation in ("none", *MODES):
        await duty.run(put_all, {"x": "on", "y": "on"})
        sessions = {mine: await duty.begin(isolation=isolation, agent=mine) for mine in ("x", "y")}
        for mine, session in sessions.items():
            other = {"x": "y", "y": "x"}[mine]
            assert await session.read(mine) == await session.read(other) == "on"
            await session.write(mine, "off")
        await sessions["x"].commit()
        if isolation in ("none", "snapshot"):  # allowed there, and documented
            await sessions["y"].commit()
            assert await rows(duty.scan()) == [("x", "off"), ("y", "off")]
            continue
        with pytest.raises(ReadConflict) as caught:
            await sessions["y"].commit()
        assert [conflict.key for conflict in caught.value.conflicts] == ["x"]
        assert await rows(duty.scan()) == [("x", "off"), ("y", "on")]


@everywhere
async def test_R011_a_failed_body_leaves_nothing_for_the_next_one(world: World) -> None:
    store = world.open(retry=RetryPolicy(max_attempts=2))
    stock = store.resource("stock")

    async def set_and(session: Any, end: BaseException | None) -> None:
        await session.write("k", "left behind")
        await session.add("merged", 1)
        await session.clear("other")
        if end is not None:
            raise end
        assert await session.read("hot", 0) is not None
        await stock.run(put, "hot", session.attempt, detached=True)
        await session.write("hot", -1)

    await stock.run(put, "other", "kept")
    ends: list[tuple[BaseException | None, type[BaseException]]] = [
        (ValueError("the body failed"), ValueError),
        (asyncio.CancelledError(), asyncio.CancelledError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (None, RetriesExhaustedError),  # a conflict at each attempt
    ]
    for end, expected in ends:
        if world.awaits and isinstance(end, KeyboardInterrupt):
            continue  # it would stop the event loop; the synchronous worlds show it
        with pytest.raises(expected):
            await stock.run(set_and, end)
        await stock.run(put, "unrelated", str(expected))
    assert await rows(stock.scan()) == [("hot", 2), ("other", "kept"), ("unrelated", str(RetriesExhaustedError))]

    with pytest.raises(ValueError):
        async with stock.session() as session:
            await session.write("k", "left behind")
            raise ValueError("the body failed")
    with pytest.raises(UsageError):
        await session.write("other", "by the same session object")
    with pytest.raises(UsageError):
        await session.commit()
    assert not await stock.read("k")


@everywhere
async def test_R013_a_change_in_place_is_not_a_write(world: World) -> None:
    carts = world.open().resource("carts")
    await carts.run(put, "cart", ["apple"])
    first, second = await carts.begin(), await carts.begin()
    for session in (first, second):
        (await session.read("cart")).append("pear")
        assert await session.read("cart") == ["apple"], "the read value is not a private copy"
        assert (await session.read_many(["cart"]))["cart"] == ["apple"]
        await session.commit()
    assert await carts.read("cart") == ["apple"]

    mine = ["kiwi"]
    async with carts.session() as session:
        await session.write("cart", mine)
        mine.append("changed after the write")
        (await session.read("cart")).append("changed after the read of an own write")
    assert await carts.read("cart") == ["kiwi"]
    (await carts.read("cart")).append("changed after a diagnostic read")
    assert await carts.read("cart") == ["kiwi"]


@everywhere
async def test_R015_a_session_writes_keys_and_not_the_whole_state(world: World) -> None:
    state = world.open().resource("state")
    await state.run(put_all, {"a": 0, "b": 0})
    async with state.session(agent="A") as session:
        await session.write("a", await session.read("a") + 1)
        world.together(1, lambda _: state.run(put, "b", "set while A was open", agent="B"))
    assert await rows(state.scan()) == [("a", 1), ("b", "set while A was open")]


@everywhere
async def test_R017_a_retry_sees_no_object_of_the_attempt_before(world: World) -> None:
    accounts = world.open().resource("accounts", Account)
    await accounts.run(put, "a", Account(10))
    loaded: list[Account] = []

    async def withdraw(session: Any) -> None:
        account = await session.expect("a")
        assert account is not await session.expect("a")
        assert all(account is not other for other in loaded)
        loaded.append(account)
        account.balance -= 1
        if len(loaded) < 3:
            await accounts.run(put, "a", Account(10), detached=True)
        await session.write("a", account)

    assert (await accounts.run_detailed(withdraw)).attempts == 3
    assert await accounts.read("a") == Account(9)
    assert [account.balance for account in loaded] == [9, 9, 9]
