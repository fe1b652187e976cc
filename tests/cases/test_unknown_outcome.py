"""Cases of kind unknown-outcome: a lost reply is settled, never guessed; nothing is applied twice."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from cases.faults import Broken, Hooked, LostReplies, is_commit
from cases.support import World, everywhere, increment, put, rows
from interlock import (
    BackendUnavailableError,
    CommitUnknownError,
    InterlockError,
    Outcome,
    RetryPolicy,
    ValueRefusedError,
)
from interlock.core.engine import HOUSEKEEPING_COMMITS

SHORT = RetryPolicy(max_attempts=3, max_seconds=0.2, base_seconds=0.001)


@everywhere
async def test_R018_a_lost_reply_is_a_typed_error_and_can_be_looked_up(world: World) -> None:
    for fault, truth in (("before", Outcome.NOT_COMMITTED), ("after", Outcome.COMMITTED)):
        faulty = LostReplies(world.backend(), {1: fault})
        store = world.over(faulty)
        stock = store.resource("stock")
        session = await stock.begin()
        await session.write(fault, "written")
        with pytest.raises(CommitUnknownError) as caught:
            await session.commit()
        error = caught.value
        assert (error.maybe_committed, error.retryable) == (True, False)
        assert error.transaction_id == session.transaction_id
        assert len(faulty.commits) == 1, "it was sent again blindly"
        assert await store.outcome(error.transaction_id) is truth
        assert await store.outcome(error.transaction_id) is truth, "the answer is final"
        assert await stock.read(fault) == ("written" if truth is Outcome.COMMITTED else None)
    assert len(await rows(world.open().log.changes())) == 1


@everywhere
async def test_R018_the_fence_makes_not_committed_final(world: World) -> None:
    """The look-up comes first, the lost commit arrives only then: it is too late."""
    late: list[Any] = []

    def hold(name: str, args: tuple[Any, ...]) -> None:
        if is_commit(name, args) and not late:
            late.append(args[0])
            raise CommitUnknownError("lost on the way", transaction_id=f"{args[0].transaction:032x}")

    inner = world.backend()
    store = world.over(Hooked(inner, hold))
    stock = store.resource("stock")
    session = await stock.begin()
    await session.write("k", 1)
    with pytest.raises(CommitUnknownError):
        await session.commit()
    assert await store.outcome(session.transaction_id) is Outcome.NOT_COMMITTED
    with pytest.raises(Exception, match="False"):  # DuplicateTransaction(committed=False)
        await (inner if world.awaits else inner.blocking()).commit(late[0])
    assert await stock.read("k") is None


@everywhere
async def test_R018_run_settles_a_lost_reply_itself(world: World) -> None:
    for plan, runs in (({1: "after"}, 1), ({1: "before"}, 2), ({1: "before", 2: "after"}, 2)):
        faulty = LostReplies(world.backend(), plan)
        stock = world.over(faulty).resource(f"stock {plan}")
        done = await stock.run_detailed(increment)
        assert (done.value, done.attempts) == (1, runs)
        assert len(faulty.commits) == runs
        assert await stock.read("n") == 1
        assert done.transaction_id == f"{faulty.commits[-1].transaction:032x}"

        faulty = LostReplies(world.backend(), plan)
        stock = world.over(faulty).resource(f"attempts {plan}")
        async for attempt in stock.attempts():
            async with attempt, attempt.session() as session:
                await increment(session)
        assert len(faulty.commits) == runs
        assert await stock.read("n") == 1


@everywhere
async def test_R018_an_engine_that_stays_away_leaves_it_unknown(world: World) -> None:
    broken = Broken(world.backend())

    def vanish(name: str, args: tuple[Any, ...]) -> None:
        if is_commit(name, args):
            broken.broken.append(BackendUnavailableError("the connection is gone"))
            raise CommitUnknownError("lost", transaction_id=f"{args[0].transaction:032x}")

    store = world.over(Hooked(broken, vanish), retry=SHORT)
    runs: list[int] = []

    async def body(session: Any) -> None:
        runs.append(session.attempt)
        await session.write("k", 1)

    with pytest.raises(CommitUnknownError) as caught:
        await store.resource("stock").run(body)
    assert runs == [1]
    assert await store.outcome(caught.value.transaction_id) is Outcome.UNKNOWN
    broken.broken.clear()
    assert await store.outcome(caught.value.transaction_id) is Outcome.NOT_COMMITTED


@everywhere
async def test_R019_a_row_with_a_generated_id_is_created_once(world: World) -> None:
    async def create(session: Any) -> str:
        name = os.urandom(8).hex()
        await session.write(("row", name), "created")
        return name

    for number in range(1, 4):
        for fault in ("before", "after"):
            faulty = LostReplies(world.backend(), dict.fromkeys(range(1, number + 1), fault))
            created = world.over(faulty).resource(f"created {number} {fault}")
            name = await created.run(create)
            assert await rows(created.scan()) == [(("row", name), "created")]


@everywhere
async def test_R022_a_swallowed_error_is_never_reported_as_a_commit(world: World) -> None:
    stock = world.open().resource("stock")
    await stock.run(put, "k", 1)

    async def swallow(session: Any) -> str:
        await session.write("other", "half of the work")
        try:
            await session.write("k", object())
        except ValueRefusedError:
            pass
        return "looks fine"

    with pytest.raises(ValueRefusedError):
        await stock.run(swallow)
    with pytest.raises(ValueRefusedError):
        async with stock.session() as session:
            await swallow(session)
    session = await stock.begin()
    await swallow(session)
    with pytest.raises(ValueRefusedError):
        await session.commit()
    assert await rows(stock.scan()) == [("k", 1)]


@everywhere
async def test_R022_a_failure_of_the_engine_in_the_body_is_not_swallowed_either(world: World) -> None:
    broken = Broken(world.backend())
    stock = world.over(broken, retry=SHORT).resource("stock")

    async def swallow(session: Any) -> str:
        await session.write("k", 1)
        broken.broken.append(BackendUnavailableError("a statement failed"))
        try:
            await session.read("other")
        except BackendUnavailableError:
            broken.broken.clear()
        return "looks fine"

    with pytest.raises(InterlockError):
        await stock.run(swallow)
    assert await stock.read("k") is None


@everywhere
async def test_R023_what_fails_after_the_commit_does_not_undo_the_answer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What the store does by itself after a commit (dropping what is old) may fail; the commit has happened."""
    failed: list[str] = []

    def refuse(name: str, args: tuple[Any, ...]) -> None:
        if name == "compact":
            failed.append(name)
            raise BackendUnavailableError("cannot compact just now")

    store = world.over(Hooked(world.backend(), refuse))
    stock = store.resource("stock")
    with caplog.at_level(logging.WARNING, "interlock"):
        for number in range(1, HOUSEKEEPING_COMMITS + 2):
            done = await stock.run_detailed(increment)
            assert (done.value, done.attempts) == (number, 1)
    assert failed == ["compact"]
    assert ["compact" in record.getMessage() for record in caplog.records] == [True]
    assert await stock.read("n") == HOUSEKEEPING_COMMITS + 1


@everywhere
async def test_R026_a_commit_that_timed_out_is_applied_once(world: World) -> None:
    """Only a refusal that proves that nothing happened leads to another run, and each run has an id of its own."""
    lost = LostReplies(world.backend(), {1: "after"})
    stock = world.over(lost).resource("lost")
    await stock.run(increment)
    assert len(lost.commits) == 1

    refused = LostReplies(world.backend(), {1: BackendUnavailableError("busy: nothing was written")})
    stock = world.over(refused).resource("refused")
    done = await stock.run_detailed(increment)
    assert (done.attempts, await stock.read("n")) == (2, 1)
    assert len({request.transaction for request in refused.commits}) == 2

    odd = LostReplies(world.backend(), {1: RuntimeError("an error that nobody has classified")})
    stock = world.over(odd).resource("odd")
    with pytest.raises(RuntimeError):
        await stock.run(increment)
    assert len(odd.commits) == 1


@everywhere
async def test_R026_a_request_that_is_delivered_twice_is_applied_once(world: World) -> None:
    class Doubled(LostReplies):
        async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
            if is_commit(name, args):
                await call()
            return await super().around(name, args, call)

    store = world.over(Doubled(world.backend(), {}))
    stock = store.resource("stock")
    done = await stock.run_detailed(increment)
    assert (done.value, done.attempts) == (1, 1)
    async for attempt in stock.attempts():
        async with attempt, attempt.session() as session:
            await increment(session)
    assert await stock.read("n") == 2

    session = await stock.begin()
    await session.add("n", 1)
    with pytest.raises(CommitUnknownError) as caught:
        await session.commit()
    assert await store.outcome(caught.value.transaction_id) is Outcome.COMMITTED
    assert await stock.read("n") == 3
