"""Cases of kind cancellation: whatever is cancelled, wherever, leaves nothing half done, held, open or running on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from cases.cancelling import at_every_suspension, cancelled_at
from cases.faults import Hooked, Pausing
from cases.support import PATIENCE_SECONDS, World, awaited, everywhere, in_worlds, increment, put, rows
from cases.workers import Worker
from interlock import Outcome, Saga, SagaClosedError, SQLiteBackend, Step, UsageError


async def transfer(session: Any, number: int) -> int:
    """Read, list, and write two keys that must always agree."""
    left = await session.read("left", 0)
    assert await session.read("right", 0) == left
    await rows(session.scan(("log",)))
    await session.write("left", number)
    await session.write(("log", number % 3), number)
    await session.write("right", number)
    return number


def ways(stock: Any) -> dict[str, Callable[[int], Coroutine[Any, Any, None]]]:
    """Every way to run a transaction, each meeting a conflict first where it can."""

    async def conflicted(session: Any, number: int) -> None:
        await transfer(session, number)
        if session.attempt < 3:
            await stock.run(transfer, -number, detached=True, agent="rival")

    async def run(number: int) -> None:
        await stock.run(conflicted, number)

    async def run_with_key(number: int) -> None:
        await stock.run(transfer, number, idempotency_key=f"K{number}")

    async def session(number: int) -> None:
        async with stock.session() as entered:
            await transfer(entered, number)

    async def begin(number: int) -> None:
        begun = await stock.begin()
        await transfer(begun, number)
        await begun.commit()

    async def attempts(number: int) -> None:
        async for attempt in stock.attempts():
            async with attempt, attempt.session() as entered:
                await conflicted(entered, number)

    return {"run": run, "run with a key": run_with_key, "session": session, "begin": begin, "attempts": attempts}


@awaited
async def test_R091_cancel_at_every_await_then_commit_something_else(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for pausing in (False,) if world.is_server else (True, False):  # calls of a server suspend by themselves
        backend = Pausing(world.backend()) if pausing else world.backend()
        stock, second = world.over(backend).resource("stock"), world.open().resource("stock")
        all_ways = ways(stock)
        for name in ("run with a key", "session") if world.is_server else all_ways:
            way, cancels = all_ways[name], 0
            async for number, cancelled in at_every_suspension(way):
                cancels += cancelled
                left, right = await halves(second)
                assert left == right, f"{name}, cancelled at await {number}: half done"
                assert cancelled or left == number
                async with asyncio.timeout(PATIENCE_SECONDS / 10):
                    await stock.run(put, "unrelated", [name, number])
                assert await second.read("unrelated") == [name, number]
                assert_nobody_writes(world)
            assert cancels >= (8 if pausing else 4 if world.is_server else 0)
    gc.collect()
    faults = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert not faults, "what was cancelled leaves an error behind"


async def halves(stock: Any) -> tuple[int, int]:
    """Both keys of `transfer` at one moment: a commit that nobody waits for any more may land between two reads."""
    async with stock.session(isolation="snapshot") as session:
        return await session.read("left", 0), await session.read("right", 0)


def assert_nobody_writes(world: World) -> None:
    """No connection is idle in a transaction."""
    if world.engine != "sqlite":
        return
    with contextlib.closing(sqlite3.connect(world.path, timeout=0, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def test_R091_interrupts_of_a_synchronous_program(tmp_path: Any) -> None:
    """Ctrl-C again and again, at any line: what was acknowledged is there, what was taken back is not."""
    for url in ("memory://", f"sqlite:///{tmp_path}/case.db"):
        worker = Worker("interrupted", url=url, times=150, seed=7)
        found = worker.result()
        assert found["acknowledged but lost"] == []
        assert found["taken back but there"] == []
        assert found["value"] == found["committed"]
        assert 120 <= found["interrupts"] <= 150  # a few are lost where Python cannot raise them


@everywhere
async def test_R091_an_interrupt_after_the_commit_says_that_it_has_happened(world: World) -> None:
    """Every so many commits the store cleans up after one. Whoever is interrupted there has committed."""
    interrupts: list[BaseException] = []

    def interrupt(name: str, args: tuple[Any, ...]) -> None:
        if name == "compact":
            interrupts.append(asyncio.CancelledError() if world.awaits else KeyboardInterrupt())
            raise interrupts[-1]

    stock = world.over(Hooked(world.backend(), interrupt)).resource("stock")
    done = 0
    while not interrupts:
        try:
            done = await stock.run(increment)
        except (asyncio.CancelledError, KeyboardInterrupt):
            break
    assert "COMMITTED" in " ".join(interrupts[0].__notes__)
    assert await stock.read("n") == done + 1
    assert await stock.run(increment) == done + 2


@awaited
async def test_R092_random_cancels_leak_nothing(world: World) -> None:
    dice = random.Random(92)
    stock = world.over(Pausing(world.backend())).resource("stock")
    await stock.run(increment, "ended")
    await asyncio.gather(*[stock.run(increment, "hot") for _ in range(8)])
    before = held()

    async def cancel_one(number: int) -> bool:
        _, task = await cancelled_at(dice.randrange(1, 12), stock.run(increment, "hot", agent=f"agent {number}"))
        if not task.cancelled():
            task.result()
        return task.cancelled()

    cancelled, batches = 0, 15 if world.is_server else 50
    for _ in range(batches):
        cancelled += sum(await asyncio.gather(*[cancel_one(number) for number in range(20)]))
    assert cancelled > 10 * batches
    async with asyncio.timeout(PATIENCE_SECONDS / 10):
        await asyncio.gather(stock.run(increment, "served"), stock.run(increment, "served"))
    assert await stock.read("served") == 2
    after = held()
    assert after <= before, f"threads and open files: {before} before, {after} after"
    assert 20 * batches - cancelled <= await stock.read("hot") - 8 <= 20 * batches
    assert len(await rows(stock.history("hot"))) == await stock.read("hot")


def held() -> tuple[int, int]:
    """How many threads there are, and how many open files."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def commits_held(world: World, backend: SQLiteBackend) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold each commit where it can no longer be taken back: inside its write transaction.

    Two events: the first says that one has got there, the second lets it go on."""
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> int:
        inside.set()
        return int(go_on.wait(PATIENCE_SECONDS))

    writer = backend._engine._writer
    assert writer is not None
    assert writer.connection is not None
    writer.connection.create_function("hold", 0, hold)
    with contextlib.closing(sqlite3.connect(world.path, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER held BEFORE INSERT ON feed BEGIN SELECT hold(); END")
    try:
        yield inside, go_on
    finally:
        go_on.set()


@in_worlds("sqlite-async")
async def test_R095_cancelled_twice_while_the_commit_is_in_flight(world: World) -> None:
    backend = SQLiteBackend(world.path)
    store = world.over(backend)
    stock = store.resource("stock")
    await stock.run(put, "opened", 1)
    with commits_held(world, backend) as (inside, go_on):
        task = asyncio.create_task(stock.run(put, "k", "written"))
        await asyncio.to_thread(inside.wait, PATIENCE_SECONDS)
        for _ in range(2):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done(), "control has returned while the commit went on unobserved"
        go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
    assert task.cancelling() == 2
    assert "COMMITTED" in " ".join(caught.value.__notes__)
    assert await stock.read("k") == "written"


@in_worlds("sqlite-async")
async def test_R095_a_commit_that_takes_too_long_is_left_with_a_note(world: World) -> None:
    backend = SQLiteBackend(world.path, grace_seconds=0.05)
    store = world.over(backend)
    stock = store.resource("stock")
    await stock.run(put, "opened", 1)
    with commits_held(world, backend) as (inside, go_on):
        session = await stock.begin()
        await session.write("k", "written")
        task = asyncio.create_task(session.commit())
        await asyncio.to_thread(inside.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "not known" in " ".join(caught.value.__notes__)
        go_on.set()
    assert await store.outcome(session.transaction_id) is Outcome.COMMITTED
    assert await stock.read("k") == "written"


@in_worlds("sqlite-async")
async def test_R095_a_coroutine_that_is_closed_while_its_commit_is_in_flight(world: World) -> None:
    backend = SQLiteBackend(world.path)
    stock = world.over(backend).resource("stock")
    await stock.run(put, "opened", 1)
    with commits_held(world, backend) as (inside, go_on):
        coroutine = stock.run(put, "k", "written")
        coroutine.send(None)
        await asyncio.to_thread(inside.wait, PATIENCE_SECONDS)
        coroutine.close()  # no time to wait, and nobody to tell
        go_on.set()
    await stock.run(put, "next", 1)
    assert await stock.read("k") == "written"


@awaited
async def test_R095_cancelled_twice_at_every_await(world: World) -> None:
    backend = world.backend() if world.is_server else Pausing(world.backend())
    stock = world.over(backend).resource("stock")
    all_ways = ways(stock)
    for name in ("run with a key", "begin") if world.is_server else all_ways:
        way, number = all_ways[name], 0
        while True:
            number += 1
            stepped, task = await cancelled_at(number, way(number), times=2)
            left, right = await halves(stock)
            assert left == right, f"{name} at {number}"
            if stepped.suspensions < number:
                task.result()
                break
            assert task.cancelled()
            assert task.cancelling() == min(2, stepped.suspensions - number + 1)
            await stock.run(put, "unrelated", number)


@awaited
async def test_R098_a_sibling_that_runs_on_writes_nothing(world: World) -> None:
    stock = world.open().resource("stock")
    failed, late = asyncio.Event(), asyncio.Event()
    orphans: list[asyncio.Task[None]] = []

    async def slow_child(session: Any) -> None:
        await session.write("early", 1)
        await late.wait()
        await session.write("late", 1)

    async def body(session: Any) -> None:
        orphans.append(asyncio.create_task(slow_child(session)))
        await asyncio.sleep(0)
        failed.set()
        raise LookupError("the other child failed")

    for start in (stock.run, in_session(stock)):
        with pytest.raises(LookupError):
            await start(body)
        session = await stock.begin()
        await session.write("next", 1)
        late.set()
        with pytest.raises(UsageError, match="rolled back"):
            await orphans.pop()
        await session.commit()
        late.clear()
    assert failed.is_set()
    assert await rows(stock.scan()) == [("next", 1)]


def in_session(stock: Any) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Run a body in a bare session."""

    async def start(body: Any) -> None:
        async with stock.session() as session:
            await body(session)

    return start


@everywhere
async def test_R098_a_session_of_an_attempt_that_lost_is_closed(world: World) -> None:
    stock = world.open().resource("stock")
    lost: list[Any] = []

    async def body(session: Any) -> None:
        for old in lost:
            for call in (old.write("late", 1), old.read("k")):
                with pytest.raises(UsageError, match="rolled back"):
                    await call
        lost.append(session)
        await session.write("copy", await session.read("k", 0))
        if session.attempt < 3:
            await stock.run(put, "k", session.attempt, detached=True)

    await stock.run(body)
    with pytest.raises(UsageError, match="committed"):
        await lost[-1].write("late", 1)
    assert await rows(stock.scan()) == [("copy", 2), ("k", 2)]


@awaited
async def test_R098_a_task_group_cancels_the_siblings_and_nothing_lands(world: World) -> None:
    stock = world.open().resource("stock")
    written = asyncio.Event()

    async def writes(session: Any) -> None:
        await session.write("k", 1)
        written.set()
        await asyncio.Event().wait()

    async def fails() -> None:
        await written.wait()
        raise LookupError("the other child failed")

    async def body(session: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(writes(session))
            group.create_task(fails())

    with pytest.raises(ExceptionGroup) as caught:
        await stock.run(body)
    assert caught.group_contains(LookupError)
    await stock.run(put, "next", 1)
    assert await rows(stock.scan()) == [("next", 1)]


def test_R095_cancelled_again_and_again_during_the_undo() -> None:
    async def main() -> None:
        effects, undoing = ["a", "b"], asyncio.Event()

        async def undo(result: str) -> None:
            undoing.set()
            for _ in range(5):
                await asyncio.sleep(0)
            effects.remove(result)

        async def body() -> None:
            async with Saga() as saga:
                for name in ("a", "b"):
                    await saga.step(str, name, undo=undo)
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel("first")
        await undoing.wait()
        for number in range(3):
            task.cancel(f"again {number}")
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError, match="first"):
            await task
        assert effects == []
        assert task.cancelling() == 4

    asyncio.run(main())


def test_R095_a_cancellation_that_comes_during_the_undo_is_not_lost() -> None:
    async def main() -> None:
        effects, undoing = ["a"], asyncio.Event()

        async def undo(result: str) -> None:
            undoing.set()
            await asyncio.sleep(0)
            effects.remove(result)

        async def body() -> None:
            async with Saga() as saga:
                await saga.step(str, "a", undo=undo)
                raise LookupError

        task = asyncio.create_task(body())
        await undoing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert isinstance(caught.value.__cause__, LookupError)
        assert effects == []

    asyncio.run(main())


def test_R098_a_step_that_begins_when_its_saga_is_undone_is_refused() -> None:
    async def main() -> None:
        effects: list[str] = []
        started, undone = asyncio.Event(), asyncio.Event()

        async def act(name: str) -> str:
            effects.append(name)
            return name

        async def straggler() -> str:
            started.set()
            await asyncio.sleep(0)
            return await act("straggler")

        async def late(saga: Any) -> None:
            await undone.wait()
            await saga.step(act, "late", undo=effects.remove)

        with pytest.raises(LookupError):
            async with Saga() as saga:
                running = asyncio.create_task(saga.step(straggler, undo=effects.remove))
                orphan = asyncio.create_task(late(saga))
                await started.wait()
                raise LookupError
        undone.set()
        assert await running == "straggler"  # it was awaited, and then undone
        with pytest.raises(SagaClosedError):
            await orphan
        assert effects == []

        async def fails() -> None:
            await started.wait()
            raise LookupError

        started.clear()
        with pytest.raises(LookupError):
            async with Saga() as saga:
                await saga.parallel(Step(straggler, undo=effects.remove), Step(fails))
        assert effects == []

    asyncio.run(main())
