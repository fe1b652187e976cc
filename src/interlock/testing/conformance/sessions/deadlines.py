"""Time: back-off, the policy's limit, `timeout_seconds`. The clock stands still unless a test moves it."""

from __future__ import annotations

import time

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, fill, listed
from interlock.testing.conformance.sessions.faults import Clock
from interlock.testing.conformance.sessions.retrying import Policy, Session, increment, interfere


@at_desk
async def test_back_off_grows_is_capped_and_begins_at_once(desk: Desk) -> None:
    clock = Clock(desk)
    things = desk.resource(runtime=clock)
    await fill(things, {"a": 1})

    async def agent(session: Session) -> None:
        await session.read("a")
        await interfere(desk, "a", session.attempt)
        await session.write("a", 0)

    with pytest.raises(interlock.RetriesExhaustedError):
        await things.run(agent, retry=Policy(max_attempts=7, base_seconds=0.1, cap_seconds=0.5))
    assert clock.slept == [0.1, 0.2, 0.4, 0.5, 0.5]


@at_desk
async def test_no_attempt_begins_after_the_policys_time(desk: Desk) -> None:
    """Counted from the beginning of the first one, however long that thinks."""
    clock = Clock(desk)
    things = desk.resource(runtime=clock)
    await fill(things, {"a": 1})
    for thinking, attempts in ((31.0, 1), (29.0, 2), (11.0, 3)):

        async def agent(session: Session, thinking: float = thinking) -> None:
            await session.read("a")
            clock.seconds += thinking
            await interfere(desk, "a", session.attempt)
            await session.write("a", 0)

        with pytest.raises(interlock.RetriesExhaustedError) as caught:
            await things.run(agent, retry=Policy(max_seconds=30, base_seconds=0))
        assert caught.value.attempts == attempts


@at_desk
async def test_a_deadline_ends_a_transaction(desk: Desk) -> None:
    clock = Clock(desk)
    things = desk.resource(runtime=clock)
    await fill(things, {"a": 1})

    async def agent(session: Session, late: str) -> None:
        await session.read("a")
        await session.write("b", 1)
        clock.seconds += 11
        if late == "read":
            await session.read("c")
        elif late == "read_many":
            await session.read_many(["c", "d"])
        elif late == "scan":
            await listed(session.scan())
        elif late == "check":
            await session.check()

    for late in ("read", "read_many", "scan", "check", "commit"):
        with pytest.raises(interlock.DeadlineExceededError, match="timeout_seconds") as caught:
            await things.run(agent, late, timeout_seconds=10)
        assert not caught.value.retryable
        assert len(caught.value.transaction_id) == 32
        await things.run(agent, late, timeout_seconds=12)
        async with things.session() as session:
            await session.delete("b")
    with pytest.raises(interlock.DeadlineExceededError):
        async with things.session(timeout_seconds=10) as session:
            await agent(session, "commit")
    reading = await things.begin(timeout_seconds=10)
    assert await reading.read("a") == 1
    clock.seconds += 11
    assert await reading.read("a") == 1  # known already
    await reading.commit()  # nothing was to be written, and it has seen one state
    assert await contents(things) == {"a": 1}


@at_desk
async def test_a_deadline_spans_the_attempts(desk: Desk) -> None:
    clock = Clock(desk)
    things = desk.resource(runtime=clock)
    await fill(things, {"a": 1})
    runs = 0

    async def agent(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.read("a")
        clock.seconds += 4
        await interfere(desk, "a", runs)
        await session.write("a", 0)

    with pytest.raises(interlock.DeadlineExceededError) as caught:
        await things.run(agent, timeout_seconds=10, retry=Policy(base_seconds=0))
    assert runs == 3
    runs = 0
    with pytest.raises(interlock.DeadlineExceededError) as caught:
        await things.run(agent, timeout_seconds=13, retry=Policy(base_seconds=6, cap_seconds=6))
    assert runs == 2  # the third would begin too late, so nobody waits for it
    assert isinstance(caught.value.__cause__, interlock.ConflictError)
    for wrong in (0, -1, "1", True):
        with pytest.raises(interlock.UsageError, match="timeout_seconds"):
            await things.run(agent, timeout_seconds=wrong)  # type: ignore[arg-type]


@at_desk
async def test_a_deadline_is_kept_in_the_queue_for_a_hot_key(desk: Desk) -> None:
    things = desk.resource()
    await fill(things, {"hot": 0})
    holding, done = desk.flag(), desk.flag()

    async def slow(session: Session) -> None:
        value = await session.expect("hot")
        if session.attempt == 1:
            await interfere(desk, "hot", 5)
        else:
            holding.lift()
            await done.wait()
        await session.write("hot", value + 1)

    async def hasty() -> None:
        await holding.wait()
        begun = time.monotonic()
        try:
            with pytest.raises(interlock.DeadlineExceededError):
                await things.run(increment, "hot", timeout_seconds=0.05)
        finally:
            done.lift()
        assert time.monotonic() - begun < 0.9

    await desk.together(lambda: things.run(slow), hasty)
    assert await things.read("hot") == 6
