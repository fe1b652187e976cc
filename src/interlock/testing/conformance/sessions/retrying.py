"""Conflicts are run again, whole and on a fresh snapshot, until they commit or the policy ends it; nothing else is."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import MODES, Desk, at_desk, contents, fill, listed

Session = interlock.AgentSession[Any]
Policy = interlock.RetryPolicy


class Oops(Exception):
    """The body's own error."""


async def interfere(desk: Desk, key: str, value: Any) -> None:
    """Somebody else commits meanwhile."""
    async with desk.open(agent="rival").resource("things").session(agent="rival", detached=True) as session:
        await session.write(key, value)


@pytest.mark.parametrize("mode", MODES[1:])
@at_desk
async def test_a_conflict_runs_the_whole_function_again(desk: Desk, mode: interlock.Isolation) -> None:
    things = desk.resource()
    await fill(things, {"a": 1})
    seen: list[tuple[int, Any, str]] = []

    async def agent(session: Session, step: int) -> str:
        value = await session.expect("a")
        seen.append((session.attempt, value, session.transaction_id))
        await session.write(f"from attempt {session.attempt}", value)
        if session.attempt < 3:
            await interfere(desk, "a", value * 10)
        await session.write("a", value + step)
        return f"done with {value}"

    done = await things.run_detailed(agent, 7, isolation=mode)
    assert (done.value, done.attempts, done.replayed) == ("done with 100", 3, False)
    assert [(attempt, value) for attempt, value, _ in seen] == [(1, 1), (2, 10), (3, 100)]
    assert len({transaction for _, _, transaction in seen}) == 3
    assert done.transaction_id == seen[-1][2]
    assert await contents(things) == {"a": 107, "from attempt 3": 100}
    change = await desk.open().log.get(done.transaction_id)
    assert change is not None
    assert (change.attempts, change.cursor) == (3, done.cursor)
    assert change.operation is not None
    assert change.operation.endswith("agent")
    for _, _, lost in seen[:-1]:
        assert await desk.open().log.get(lost) is None


@at_desk
async def test_a_conflict_that_the_body_swallows_is_a_conflict_all_the_same(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"a": 1, "b": 1})
    runs = 0

    async def agent(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.write("c", runs)
        await session.read("a")
        if runs == 1:
            await interfere(desk, "a", 5)
            try:
                await session.check()
            except interlock.ConflictError:
                return
        await session.read("b")

    await things.run(agent)
    assert runs == 2
    assert await things.read("c") == 2


@at_desk
async def test_a_conflict_error_of_the_bodys_own_is_retried(desk: Desk) -> None:
    """Whoever finds out that he decided on something stale may say so."""
    things = desk.resource()
    runs = 0

    async def agent(session: Session) -> int:
        nonlocal runs
        runs += 1
        await session.write("a", runs)
        if runs < 3:
            raise interlock.ConflictError("what I was told elsewhere is old")
        return runs

    assert await things.run(agent) == 3
    assert await contents(things) == {"a": 3}


@at_desk
async def test_groups_of_conflicts_are_retried_and_mixed_groups_are_not(desk: Desk) -> None:
    things = desk.resource()
    conflict = interlock.ConflictError("stale")
    groups: dict[BaseExceptionGroup[Any], bool] = {
        ExceptionGroup("one", [conflict]): True,
        ExceptionGroup("nested", [conflict, ExceptionGroup("inner", [interlock.SnapshotTooOldError("old")])]): True,
        ExceptionGroup("mixed", [conflict, Oops()]): False,
        ExceptionGroup("nested mixed", [conflict, ExceptionGroup("inner", [conflict, Oops()])]): False,
        BaseExceptionGroup("cancelled too", [conflict, asyncio.CancelledError()]): False,
        ExceptionGroup("not retryable", [conflict, interlock.InvariantError("no")]): False,
    }
    for group, retried in groups.items():
        runs = 0

        async def agent(session: Session, group: BaseExceptionGroup[Any] = group) -> None:
            nonlocal runs
            runs += 1
            await session.write("a", runs)
            if runs == 1:
                raise group

        if retried:
            await things.run(agent)
        else:
            with pytest.raises(BaseExceptionGroup) as caught:
                await things.run(agent)
            assert caught.value is group
        assert runs == (2 if retried else 1), group


@at_desk
async def test_interrupts_are_never_retried(desk: Desk) -> None:
    things = desk.resource()
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        runs: list[Session] = []

        async def agent(session: Session, kind: type[BaseException] = kind, runs: list[Session] = runs) -> None:
            runs.append(session)
            await session.write("a", 1)
            raise kind

        with pytest.raises(kind):
            await things.run(agent)
        (session,) = runs
        with pytest.raises(interlock.UsageError, match="rolled back"):
            await session.write("a", 2)
    assert await contents(things) == {}


@at_desk
async def test_a_cancelled_task_stops_at_once(desk: Desk) -> None:
    if not desk.awaited:
        return
    things = desk.resource()
    reached, runs = asyncio.Event(), 0

    async def agent(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.write("a", 1)
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(things.run(agent))
    await reached.wait()
    task.cancel("stop")
    with pytest.raises(asyncio.CancelledError, match="stop"):
        await task
    assert (runs, await contents(things)) == (1, {})


@at_desk
async def test_the_bodys_error_is_what_the_caller_gets(desk: Desk) -> None:
    """The very object, never one about the roll-back."""
    store = desk.open()
    things = store.resource("things")
    error = Oops("mine")

    async def agent(session: Session) -> None:
        await session.write("a", 1)
        await store.close()  # so that nothing of a roll-back could work
        raise error

    with pytest.raises(Oops) as caught:
        await things.run(agent)
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert await contents(desk.elsewhere().resource("things")) == {}


@at_desk
async def test_a_hopeless_case_ends_with_all_its_facts(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"hot": 0})
    runs = 0

    async def agent(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.update("hot", lambda value: value + 1)
        await interfere(desk, "hot", runs * 100)

    with pytest.raises(interlock.RetriesExhaustedError, match="4 attempts") as caught:
        await things.run(agent, retry=Policy(max_attempts=4, base_seconds=0.0001))
    for error in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert (error.attempts, runs, error.retryable, error.maybe_committed) == (4, 4, False, False)
        assert len(error.transaction_id) == 32
        last = error.last
        assert isinstance(last, interlock.ReadConflict)
        (conflict,) = last.conflicts
        assert (conflict.resource, conflict.key, conflict.kind) == ("things", "hot", "read")
        assert (conflict.read_value, conflict.current_value) == (300, 400)
        assert conflict.committed_by == "rival"
        assert conflict.read_version != conflict.current_version
        change = await desk.open().log.get(conflict.transaction_id)
        assert change is not None
        assert change.agent == "rival"
        told = error.explain()
        for fact in ("4 attempts", "'hot'", "'things'", "300", "400", "'rival'"):
            assert fact in told
    assert await things.read("hot") == 400


@at_desk
async def test_conflicts_tell_what_was_there_and_what_is(desk: Desk) -> None:
    """Deleted, created, too large to show, never read; each in words that a model can be shown."""
    things = desk.resource()
    await fill(things, {"deleted": 1, "large": "x" * 5000, "text": "é" * 400, ("t", 1): 1})
    session = await things.begin()
    await session.read_many(["deleted", "created", "large", "text", ("t", 1)])
    await session.write("mine", 1)
    async with things.session(agent="rival") as rival:
        await rival.delete("deleted")
        await rival.write("created", {"by": "rival"})
        await rival.write("large", "y" * 5000)
        await rival.write("text", "new")
        await rival.write(("t", 1), 2)
    with pytest.raises(interlock.ReadConflict) as caught:
        await session.commit()
    found = {conflict.key: conflict for conflict in caught.value.conflicts}
    assert found.keys() == {"deleted", "created", "large", "text", ("t", 1)}
    assert found["deleted"].current_version is None
    assert (found["deleted"].read_value, found["deleted"].current_value) == (1, None)
    assert found["created"].read_version is None
    assert (found["created"].read_value, found["created"].current_value) == (None, {"by": "rival"})
    assert (found["large"].read_value, found["large"].current_value) == (None, None)
    assert (found["text"].read_value, found["text"].current_value) == ("é" * 400, "new")
    assert all(conflict.committed_by == "rival" for conflict in found.values())
    for conflict in found.values():
        assert repr(conflict.key) in conflict.sentence()
        assert len(conflict.sentence()) < 500
    assert "deleted" in found["deleted"].sentence()
    assert "Nothing was written" in caught.value.explain()
    blind = await things.begin(isolation="snapshot")
    await blind.write("mine", 1)
    await fill(things, {"mine": 5})
    with pytest.raises(interlock.WriteConflict) as written:
        await blind.commit()
    (conflict,) = written.value.conflicts
    assert (conflict.kind, conflict.read_version, conflict.current_value) == ("write", None, 5)


async def increment(session: Session, key: str) -> int:
    """Read, add one, write."""
    value: int = await session.read(key, 0) + 1
    await session.write(key, value)
    return value


@at_desk
async def test_a_hot_key_gives_way_to_everybody(desk: Desk) -> None:
    """16 agents, 12 read-modify-writes each, with others in between: all succeed under the default policy."""
    store = desk.open()
    things = store.resource("things")
    attempts: list[int] = []

    async def slowly(session: Session) -> None:
        value = await session.read("hot", 0)
        await desk.give_way()
        await session.write("hot", value + 1)

    async def agent() -> None:
        for _ in range(12):
            done = await things.run_detailed(slowly)
            attempts.append(done.attempts)

    await desk.together(*[agent] * 16)
    assert await things.read("hot") == 16 * 12
    assert max(attempts) < Policy().max_attempts
    assert len(await listed(store.log.changes())) == 16 * 12


@at_desk
async def test_agents_of_several_stores_share_a_hot_key(desk: Desk) -> None:
    """Their queues know nothing of each other, as those of processes do not."""

    async def agent(number: int) -> None:
        things = desk.open().resource("things")
        for _ in range(6):
            await things.run(increment, "hot")
            await things.run(increment, f"cold {number}")

    await desk.together(*[lambda number=number: agent(number) for number in range(6)])
    assert await desk.resource().read("hot") == 36


@at_desk
async def test_an_abandoned_turn_is_passed_on(desk: Desk) -> None:
    """Whoever leaves the queue of a hot key, by an error or a roll-back, lets the next one in at once."""
    things = desk.resource()
    await fill(things, {"hot": 0})

    async def stumble(session: Session) -> None:
        value = await session.expect("hot")
        if session.attempt == 1:
            await interfere(desk, "hot", value + 10)
            await session.write("hot", 0)
        raise Oops

    async def agent(number: int) -> None:
        for turn in range(3):
            if (number + turn) % 2:
                with pytest.raises((Oops, interlock.RetriesExhaustedError)):
                    await things.run(stumble)
            else:
                await things.run(increment, "hot")
            begun = await things.begin()
            await begun.read("hot")
            await desk.give_way()
            await begun.rollback()

    await desk.together(*[lambda number=number: agent(number) for number in range(6)])


@at_desk
async def test_policies_that_make_no_sense_are_refused(desk: Desk) -> None:
    for wrong in (
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"max_seconds": -1},
        {"base_seconds": float("inf")},
        {"cap_seconds": "1"},
    ):
        with pytest.raises(interlock.UsageError, match=next(iter(wrong))):
            Policy(**wrong)
    with pytest.raises(interlock.UsageError, match="RetryPolicy"):
        await desk.resource().run(increment, "a", retry=3)  # type: ignore[arg-type]
    with pytest.raises(interlock.UsageError, match="retry"):
        desk.resource().session(retry=Policy())  # type: ignore[call-arg]
