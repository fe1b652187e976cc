"""What became of a transaction: the outcome as a fence, and lost replies, which `run` settles by it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, listed
from interlock.testing.conformance.sessions.faults import Clock, Lossy

Session = interlock.AgentSession[Any]
Outcome = interlock.Outcome


async def increment(session: Session, key: str) -> int:
    """Read, add one, write."""
    value: int = await session.read(key, 0) + 1
    await session.write(key, value)
    return value


@at_desk
async def test_outcomes(desk: Desk) -> None:
    store, second = desk.open(), desk.open()
    things = store.resource("things")
    done = await things.run_detailed(increment, "a")
    abandoned, failed, reading = [await things.begin() for _ in range(3)]
    await abandoned.write("b", 1)
    await abandoned.rollback()
    await failed.read("a")
    await failed.write("b", 1)
    await things.run(increment, "a")
    with pytest.raises(interlock.ConflictError):
        await failed.commit()
    await reading.read("a")
    await reading.commit()
    for each in (store, second):
        assert await each.outcome(done.transaction_id) is Outcome.COMMITTED
        for session in (abandoned, failed, reading):
            assert await each.outcome(session.transaction_id) is Outcome.NOT_COMMITTED
    for wrong in ("", "x" * 32, "1234", 7, None):
        with pytest.raises(interlock.UsageError, match="id"):
            await store.outcome(wrong)  # type: ignore[arg-type]


@at_desk
async def test_asking_is_a_fence(desk: Desk) -> None:
    """NOT COMMITTED is final: a transaction that was still running cannot commit any more."""
    store, theirs = desk.open(), desk.open()
    things = store.resource("things")
    session = await things.begin()
    await session.write("a", 1)
    assert await theirs.outcome(session.transaction_id) is Outcome.NOT_COMMITTED
    with pytest.raises(interlock.ConflictError, match="outcome") as caught:
        await session.commit()
    assert caught.value.transaction_id == session.transaction_id
    assert await store.outcome(session.transaction_id) is Outcome.NOT_COMMITTED
    assert await contents(things) == {}
    asked: list[str] = []

    async def agent(session: Session) -> int:
        if not asked:
            asked.append(session.transaction_id)
            await theirs.outcome(session.transaction_id)
        return await increment(session, "a")

    done = await things.run_detailed(agent)
    assert (done.value, done.attempts) == (1, 2)
    assert await store.outcome(asked[0]) is Outcome.NOT_COMMITTED
    assert await store.outcome(done.transaction_id) is Outcome.COMMITTED


@at_desk
async def test_asking_nobody(desk: Desk) -> None:
    lossy = Lossy(desk)
    store = desk.open(backend=lossy)
    done = await store.resource("things").run_detailed(increment, "a")
    lossy.silent = 1
    assert await store.outcome(done.transaction_id) is Outcome.UNKNOWN
    assert await store.outcome(done.transaction_id) is Outcome.COMMITTED


@pytest.mark.parametrize("fate", ["landed", "lost"])
@at_desk
async def test_run_settles_a_lost_reply(desk: Desk, fate: str) -> None:
    """Exactly one effect, one answer, and no error, whichever way it went."""
    lossy = Lossy(desk)
    store = desk.open(backend=lossy)
    things = store.resource("things")
    lossy.lose = [fate]
    runs: list[str] = []

    async def agent(session: Session) -> int:
        runs.append(session.transaction_id)
        return await increment(session, "a")

    done = await things.run_detailed(agent)
    assert (done.value, done.replayed) == (1, False)
    assert done.attempts == len(runs) == (1 if fate == "landed" else 2)
    assert done.transaction_id == runs[-1]
    assert len(lossy.asked) == 1
    assert await things.read("a") == 1
    (change,) = await listed(store.log.changes())
    assert (change.transaction_id, change.cursor) == (done.transaction_id, done.cursor)
    for transaction in runs:
        expected = Outcome.COMMITTED if transaction == runs[-1] else Outcome.NOT_COMMITTED
        assert await store.outcome(transaction) is expected


@pytest.mark.parametrize("fate", ["landed", "lost"])
@at_desk
async def test_attempts_settle_a_lost_reply(desk: Desk, fate: str) -> None:
    """Also where the body returns from inside: what it returned is not lost with the reply."""
    lossy = Lossy(desk)
    things = desk.resource(backend=lossy)
    lossy.lose = [fate]
    runs = 0

    async def agent() -> str:
        nonlocal runs
        async for attempt in things.attempts():
            async with attempt, attempt.session() as session:
                runs += 1
                return f"returned {await increment(session, 'a')}"
        return "fell out"

    assert await agent() == "returned 1"
    assert runs == (1 if fate == "landed" else 2)
    assert await things.read("a") == 1


@pytest.mark.parametrize("fate", ["landed", "lost"])
@at_desk
async def test_a_keyed_run_settles_a_lost_reply(desk: Desk, fate: str) -> None:
    lossy = Lossy(desk)
    things = desk.resource(backend=lossy)
    lossy.lose = [fate, fate]
    done = await things.run_detailed(increment, "a", idempotency_key="K")
    assert done.value == 1
    again = await things.run_detailed(increment, "a", idempotency_key="K")
    assert (again.value, again.replayed, again.transaction_id) == (1, True, done.transaction_id)
    assert await things.read("a") == 1


@at_desk
async def test_the_question_is_repeated_until_it_is_answered(desk: Desk) -> None:
    lossy, clock = Lossy(desk), Clock(desk)
    things = desk.resource(backend=lossy, runtime=clock)
    lossy.lose, lossy.silent = ["landed"], 5
    done = await things.run_detailed(increment, "a")
    assert (done.value, done.attempts, len(lossy.asked)) == (1, 1, 6)
    assert len(clock.slept) == 5
    assert sorted(clock.slept) == clock.slept


@pytest.mark.parametrize("fate", ["landed", "lost"])
@at_desk
async def test_what_cannot_be_settled_is_unknown(desk: Desk, fate: str) -> None:
    """Only then does the caller hear of it, with the id to ask for later; and nothing is run again."""
    lossy, clock = Lossy(desk), Clock(desk)
    store = desk.open(backend=lossy, runtime=clock)
    things = store.resource("things")
    for options, seconds in (({"timeout_seconds": 3}, 3.0), ({"retry": interlock.RetryPolicy(max_seconds=5)}, 5.0)):
        before = await things.read("a", 0)
        lossy.lose, lossy.silent, begun = [fate], 10**6, clock.seconds
        with pytest.raises(interlock.CommitUnknownError) as caught:
            await things.run(increment, "a", **options)
        assert seconds - 1 <= clock.seconds - begun <= seconds
        lossy.silent = 0
        for error in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
            assert error.maybe_committed
            assert not error.retryable
            expected = Outcome.COMMITTED if fate == "landed" else Outcome.NOT_COMMITTED
            assert await store.outcome(error.transaction_id) is expected
            assert "outcome" in error.explain()
        assert await things.read("a", 0) == before + (fate == "landed")


@at_desk
async def test_a_bare_session_says_that_it_does_not_know(desk: Desk) -> None:
    """It has one attempt and no time of its own to find out; the id tells later."""
    lossy = Lossy(desk)
    store = desk.open(backend=lossy)
    things = store.resource("things")
    for fate, outcome in (("landed", Outcome.COMMITTED), ("lost", Outcome.NOT_COMMITTED)):
        lossy.lose = [fate]
        with pytest.raises(interlock.CommitUnknownError) as caught:
            async with things.session() as session:
                await session.write(fate, 1)
        assert caught.value.transaction_id == session.transaction_id
        assert await store.outcome(session.transaction_id) is outcome
    assert await contents(things) == {"landed": 1}


@at_desk
async def test_an_unknown_commit_of_another_store_is_not_run_again(desk: Desk) -> None:
    """It is not this transaction's, so this one's fence would prove nothing."""
    lossy = Lossy(desk)
    theirs, mine = desk.resource("theirs", backend=lossy), desk.elsewhere().resource("mine")
    runs = 0

    async def agent(session: Session) -> None:
        nonlocal runs
        runs += 1
        await session.write("a", 1)
        lossy.lose, lossy.silent = ["landed"], 10**6
        await theirs.run(increment, "charged", retry=interlock.RetryPolicy(max_seconds=0))

    with pytest.raises(interlock.CommitUnknownError):
        await mine.run(agent)
    assert runs == 1
    with pytest.raises(interlock.CommitUnknownError):
        async for attempt in mine.attempts():
            async with attempt, attempt.session() as session:
                await agent(session)
    assert runs == 2
    assert await theirs.read("charged") == 2
    assert await contents(mine) == {}


@at_desk
async def test_lost_replies_under_load_lose_and_double_nothing(desk: Desk) -> None:
    lossy = Lossy(desk)
    things = desk.resource(backend=lossy)
    lossy.lose = ["landed", "", "lost", "", "", "landed", "lost", "lost", ""] * 12

    async def agent() -> None:
        for _ in range(6):
            await things.run(increment, "hot")

    await desk.together(*[agent] * 5)
    assert await things.read("hot") == 30
