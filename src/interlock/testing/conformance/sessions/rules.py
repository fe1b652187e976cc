"""Invariants: checked at every commit, published in the store, binding for every process.

Each store object of a desk knows only the rules that it has declared or learnt, as another process would.
"""

from __future__ import annotations

from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import MODES, Desk, at_desk, contents, fill, listed
from interlock.testing.conformance.sessions.faults import Held

Session = interlock.AgentSession[Any]
View = interlock.AgentView[Any]
Modes = pytest.mark.parametrize("mode", MODES)


async def put(session: Session, key: str, value: Any) -> None:
    """Write one value."""
    await session.write(key, value)


async def in_credit(view: View) -> bool:
    """Together the two accounts hold something."""
    return await view.read("a", 0) + await view.read("b", 0) >= 0


async def at_most_two(view: View) -> bool:
    """No more than two seats are taken."""
    return len(await listed(view.scan(("seat",)))) <= 2


@Modes
@at_desk
async def test_an_invariant_refuses_what_breaks_it(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    things.invariant("in credit", in_credit)
    await fill(things, {"a": 10, "b": 10})
    for breaking in ("write", "delete", "add", "clear", "update_where", "merge"):
        session = await things.begin(isolation=mode)
        if breaking == "write":
            await session.write("a", -11)
        elif breaking == "delete":
            await session.write("b", -5)
            await session.delete("a")
        elif breaking == "add":
            await session.add("a", -25)
        elif breaking == "clear":
            await session.clear("a")
            await session.write("b", -1)
        elif breaking == "update_where":
            await session.update_where(lambda key, value: -1)
        else:
            await session.merge("a", -99, using="last")
        with pytest.raises(interlock.InvariantError, match="in credit") as caught:
            await session.commit()
        error = caught.value
        assert (error.invariant, error.resource, error.retryable) == ("in credit", "things", False)
        assert error.transaction_id == session.transaction_id
    assert await contents(things) == {"a": 10, "b": 10}
    session = await things.begin(isolation=mode)
    await session.write("a", -9)
    await session.commit()
    assert await contents(things) == {"a": -9, "b": 10}


@Modes
@at_desk
async def test_what_an_invariant_reads_is_validated_in_every_mode(desk: Desk, mode: interlock.Isolation) -> None:
    """Two withdrawals that are fine one by one, and together are not."""
    things = desk.resource()
    things.invariant("in credit", in_credit)
    await fill(things, {"a": 10, "b": 10})
    first, second = await things.begin(isolation=mode), await things.begin(isolation=mode)
    await first.write("a", -5)
    await second.write("b", -5)
    await first.commit()
    with pytest.raises((interlock.ReadConflict, interlock.InvariantError)):
        await second.commit()
    assert await contents(things) == {"a": -5, "b": 10}

    runs = 0

    async def withdraw(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.update("b", lambda value: value - 3)
        if runs == 1:
            async with desk.open().resource("other").session() as side:
                await side.write("x", 1)
            async with things.session(isolation=mode, detached=True) as other:
                await other.write("a", -7)

    await things.run(withdraw, isolation=mode)
    assert await contents(things) == {"a": -7, "b": 7}


@Modes
@at_desk
async def test_ranges_of_an_invariant_are_validated_in_every_mode(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    things.invariant("two seats", at_most_two)
    await fill(things, {("seat", 0): "ada", "other": 1})
    sessions = [await things.begin(isolation=mode) for _ in range(3)]
    for number, session in enumerate(sessions, 1):
        await session.write(("seat", number), "somebody")
    outcomes = []
    for session in sessions:
        try:
            await session.commit()
            outcomes.append("committed")
        except (interlock.ConflictError, interlock.InvariantError) as error:
            outcomes.append(error.code)
    assert outcomes[0] == "committed"
    assert set(outcomes[1:]) <= {"range_conflict", "conflict", "invariant"}
    assert len(await contents(things)) == 3


@at_desk
async def test_many_agents_keep_an_invariant(desk: Desk) -> None:
    things = desk.resource()
    things.invariant("in credit", in_credit)
    await fill(things, {"a": 6, "b": 6})
    refused: list[interlock.InvariantError] = []

    async def withdraw(session: Session, account: str) -> None:
        await session.update(account, lambda value: value - 1)
        await desk.give_way()

    async def agent(number: int) -> None:
        for turn in range(3):
            try:
                mode = MODES[(number + turn) % 4]
                await things.run(withdraw, "ab"[number % 2], isolation=mode)
            except interlock.InvariantError as error:
                refused.append(error)

    await desk.together(*[lambda number=number: agent(number) for number in range(6)])
    left = await contents(things)
    assert left["a"] + left["b"] >= 0
    assert refused


@at_desk
async def test_an_invariant_sees_what_will_be(desk: Desk) -> None:
    """Its view has the reads of a session, and nothing that writes."""
    store = desk.open()
    things, others = store.resource("things"), store.resource("others")
    seen: list[Any] = []

    @things.invariant("look")
    async def look(view: View) -> bool:
        seen.append(await view.read("a"))
        seen.append(await view.read("none", "default"))
        seen.append(await view.exists("gone"))
        seen.append(await view.expect("n"))
        seen.append(await view.read_many(["a", "gone", "n"]))
        seen.append(await listed(view.scan(reverse=True)))
        seen.append(await view.on(others).read("o"))
        assert not hasattr(view, "write")
        return True

    await fill(others, {"o": 1})
    async with things.session(detached=True) as session:
        await session.write("gone", 1)
        await session.add("n", 1)
    seen.clear()
    async with things.session() as session:
        await session.write("a", 1)
        await session.delete("gone")
        await session.add("n", 4)
        await session.on(others).write("o", 2)
    assert seen == [1, "default", False, 5, {"a": 1, "n": 5}, [("n", 5), ("a", 1)], 2]


@Modes
@at_desk
async def test_an_invariant_of_another_resource_is_not_asked(desk: Desk, mode: interlock.Isolation) -> None:
    store = desk.open()
    things, others = store.resource("things"), store.resource("others")
    asked: list[str] = []

    @things.invariant("asked")
    async def note(view: View) -> bool:
        asked.append("things")
        return True

    await others.run(put, "a", 1, isolation=mode)
    async with things.session(isolation=mode) as session:
        await session.read("a")
        await session.on(others).write("a", 2)
    assert asked == []
    async with others.session(isolation=mode) as session:
        await session.on(things).write("a", 2)
    assert asked == ["things"]


@at_desk
async def test_invariants_that_fail_or_misbehave(desk: Desk) -> None:
    store = desk.open()
    boom, shy = store.resource("boom"), store.resource("shy")

    @boom.invariant("raises")
    async def raises(view: View) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await boom.run(put, "a", 1)

    @shy.invariant("swallows")
    async def swallows(view: View) -> bool:
        try:
            await view.expect("absent")
        except interlock.NotFoundError:
            return True
        return False

    with pytest.raises(interlock.NotFoundError):
        await shy.run(put, "a", 1)
    if desk.awaited:
        careless = store.resource("careless")

        @careless.invariant("forgets")
        async def forgets(view: View) -> bool:
            view.read("a")  # type: ignore[unused-coroutine]
            return True

        with pytest.raises(interlock.UsageError, match="never awaited"):
            await careless.run(put, "a", 1)
    nested = store.resource("nested")

    @nested.invariant("runs")
    async def runs(view: View) -> bool:
        await nested.run(put, "inside", 1)
        return True

    with pytest.raises(interlock.UsageError):
        await nested.run(put, "a", 1)
    for resource in (boom, shy, nested):
        assert await contents(resource) == {}


@at_desk
async def test_rules_are_declared_once(desk: Desk) -> None:
    things = desk.resource()
    assert things.invariant("in credit", in_credit) is in_credit
    assert things.invariant("in credit", in_credit) is in_credit
    with pytest.raises(interlock.UsageError, match="in credit"):
        things.invariant("in credit", at_most_two)
    for name, check in (("", in_credit), (7, in_credit), ("x", 7)):
        with pytest.raises(interlock.UsageError):
            things.invariant(name, check)  # type: ignore[arg-type]
    with pytest.raises(interlock.UsageError, match="serializable"):
        things.require(isolation="strict")  # type: ignore[arg-type]


@at_desk
async def test_a_process_that_has_not_declared_an_invariant_may_read_but_not_write(desk: Desk) -> None:
    """It could not check it. From the commit that publishes the name, which may be while it is at work."""
    mine, theirs = desk.resource(), desk.resource()
    await theirs.run(put, "a", 1)
    old = await theirs.begin()
    await old.write("b", 1)
    mine.invariant("in credit", in_credit)
    await mine.run(put, "a", 2)
    for write in (old.commit, lambda: theirs.run(put, "b", 1), lambda: theirs.run(put, "b", 1)):
        with pytest.raises(interlock.InvariantError, match="not registered") as caught:
            await write()
        assert (caught.value.invariant, caught.value.resource) == ("in credit", "things")
    assert await theirs.read("a") == 2
    async with theirs.session() as session:
        assert await session.read("a") == 2
    theirs.invariant("in credit", in_credit)
    await theirs.run(put, "b", 1)
    assert await contents(mine) == {"a": 2, "b": 1}
    with pytest.raises(interlock.InvariantError, match="would be broken"):
        await theirs.run(put, "b", -7)


@at_desk
async def test_names_of_several_processes_add_up(desk: Desk) -> None:
    first, second, third = desk.resource(), desk.resource(), desk.resource()
    first.invariant("one", in_credit)
    await first.run(put, "a", 1)
    second.invariant("one", in_credit)
    second.invariant("two", at_most_two)
    await second.run(put, "a", 2)
    for undeclared in (first, third):
        with pytest.raises(interlock.InvariantError, match="not registered"):
            await undeclared.run(put, "a", 3)
    first.invariant("two", at_most_two)
    await first.run(put, "a", 4)
    assert await contents(third) == {"a": 4}


@at_desk
async def test_a_rule_that_is_published_while_a_commit_is_under_way(desk: Desk) -> None:
    held = Held(desk)
    theirs, mine = desk.resource(backend=held), desk.resource()
    await theirs.run(put, "a", 1)
    mine.invariant("in credit", in_credit)

    async def publish() -> None:
        await held.reached()
        await mine.run(put, "a", 2)
        held.go_on()

    held.hold("commit")
    refused, _ = await desk.gathered(lambda: theirs.run(put, "b", 1), publish)
    assert isinstance(refused, interlock.InvariantError)
    assert await contents(mine) == {"a": 2}


@at_desk
async def test_rules_of_one_resource_are_no_matter_of_another(desk: Desk) -> None:
    store, second = desk.open(), desk.open()
    things, others = store.resource("things"), store.resource("others")
    things.require(isolation="serializable")
    things.invariant("in credit", in_credit)
    await things.run(put, "a", 1)
    await second.resource("others").run(put, "a", -5, isolation="none")
    await others.run(put, "a", -6, isolation="none")
    async with second.session() as session:
        await session.on(second.resource("others")).write("a", -7)
        assert await session.on(second.resource("things")).read("a") == 1
    assert await contents(others) == {"a": -7}


@at_desk
async def test_rules_do_not_show(desk: Desk) -> None:
    """They lie beside the data, not in it."""
    store = desk.open()
    things = store.resource("things")
    things.require(isolation="snapshot")
    things.invariant("in credit", in_credit)
    await things.run(put, "a", 1)
    assert await contents(things) == {"a": 1}
    (change,) = await listed(store.log.changes())
    assert change.writes.keys() == {("things", "a")}
    assert change.reads.keys() == {("things", "b")}
