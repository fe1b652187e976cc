"""Cases of kind context: generators, threads, executors and several event loops, for sessions and for sagas."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio

import interlock
import interlock.sync
from cases.support import Thread, World, awaited, increment, put, rows, stepped
from interlock import Saga, SagaClosedError, UsageError, carry, compensable


@awaited
async def test_R083_a_generator_that_is_closed_elsewhere_closes_its_session(world: World) -> None:
    stock = world.open().resource("stock")
    sessions: list[Any] = []

    async def generate() -> AsyncIterator[int]:
        async with stock.session() as session:
            sessions.append(session)
            await session.write("k", "of an abandoned generator")
            yield 1
            yield 2

    async def consume_and_break() -> None:
        async for _ in generate():
            break

    async def begin_only(generator: Any) -> None:
        await anext(generator)

    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    for consume in (consume_and_break, lambda: asyncio.create_task(consume_and_break())):
        await consume()
        for _ in range(3):  # finalised by a task of the loop's own
            gc.collect()
            await asyncio.sleep(0)

    generator = generate()  # begun in one task, closed in another
    await asyncio.create_task(begin_only(generator))
    await asyncio.create_task(generator.aclose())

    generator = generate()  # begun here, closed in another
    await begin_only(generator)
    await asyncio.create_task(generator.aclose())

    assert problems == []
    for session in sessions:
        with pytest.raises(UsageError, match="rolled back"):
            await session.read("k")
    for start in (lambda: stock.run(put, "here", 1), lambda: asyncio.create_task(stock.run(put, "in a task", 1))):
        await start()
    assert await rows(stock.scan()) == [("here", 1), ("in a task", 1)]


@stepped
async def test_R083_a_plain_generator_that_is_closed_elsewhere_too(world: World) -> None:
    stock = world.open().resource("stock").inner

    def generate() -> Iterator[int]:
        with stock.session() as session:
            session.write("k", "of an abandoned generator")
            yield 1
            yield 2

    generator = generate()
    contextvars.copy_context().run(next, generator)
    generator.close()  # in another context
    generator = generate()
    contextvars.copy_context().run(next, generator)  # a token of one context is of no use in another thread
    Thread(generator.close).result()
    stock.run(lambda session: session.write("here", 1))
    assert list(stock.scan()) == [("here", 1)]


@awaited
async def test_R084_a_session_does_not_leak_into_threads_and_tasks(world: World) -> None:
    stock = world.open().resource("stock")

    def in_thread(number: int, **options: Any) -> int:
        return asyncio.run(stock.run(increment, f"n{number}", **options))

    async with stock.session() as session:
        await session.write("mine", 1)
        loop = asyncio.get_running_loop()
        with pytest.raises(UsageError, match="detached=True"):  # to_thread takes the context along
            await asyncio.to_thread(in_thread, 1)
        with pytest.raises(UsageError, match="detached=True"):
            await asyncio.create_task(stock.run(increment, "n1"))
        with pytest.raises(UsageError, match="detached=True"):
            await asyncio.gather(stock.run(increment, "n1"))
        assert await asyncio.to_thread(in_thread, 2, detached=True) == 1
        assert await asyncio.create_task(stock.run(increment, "n3", detached=True)) == 1
        # These begin with an empty context: whatever they do is theirs.
        assert await loop.run_in_executor(None, in_thread, 4) == 1
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert await asyncio.wrap_future(pool.submit(in_thread, 5)) == 1
        assert Thread(lambda: in_thread(6)).result() == 1
        assert await stock.run(increment, "n7") == 1  # in this task it joins
        assert (await rows(session.scan("n")))[-1] == ("n7", 1)
        await session.rollback()
    assert [key for key, _ in await rows(stock.scan())] == ["n2", "n3", "n4", "n5", "n6"]


@stepped
async def test_R084_a_synchronous_session_does_not_either(world: World) -> None:
    stock = world.open().resource("stock").inner

    def add(session: Any, key: str) -> None:
        session.update(key, lambda value: value + 1, 0)

    with concurrent.futures.ThreadPoolExecutor(1) as pool, stock.session() as session:
        session.write("mine", 1)
        with pytest.raises(UsageError, match="detached=True"):
            pool.submit(contextvars.copy_context().run, stock.run, add, "a").result()
        copied = contextvars.copy_context()
        pool.submit(copied.run, lambda: stock.run(add, "b", detached=True)).result()
        pool.submit(stock.run, add, "c").result()
        Thread(lambda: stock.run(add, "d")).result()
        stock.run(add, "e")
        session.rollback()
    pool.shutdown()
    assert [key for key, _ in stock.scan()] == ["b", "c", "d"]
    copied.run(stock.run, add, "after the session has ended")
    assert stock.read("after the session has ended") == 1


@stepped
async def test_R084_a_session_is_used_by_one_thread_at_a_time(world: World) -> None:
    stock = world.open().resource("stock").inner
    inside, go_on = threading.Event(), threading.Event()
    stock.run(lambda session: session.write("k", 1))

    def slow(value: int) -> int:
        inside.set()
        go_on.wait(10)
        return value + 1

    session = stock.begin()
    updating = Thread(lambda: session.update("k", slow))
    inside.wait(10)
    with pytest.raises(UsageError, match="one thread at a time"):
        session.write("k", 5)
    go_on.set()
    with pytest.raises(UsageError):
        updating.result()
    with pytest.raises(UsageError):
        session.commit()
    assert stock.read("k") == 1


@awaited
async def test_R088_a_session_is_entered_once(world: World) -> None:
    stock = world.open().resource("stock")
    session = stock.session()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with session:
            entered.set()
            await leave.wait()
            await session.write("k", "first")

    async def second() -> None:
        await entered.wait()
        try:
            async with session:
                await session.write("k", "second")
        finally:
            leave.set()

    results = await asyncio.gather(first(), second(), return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], UsageError)
    assert await stock.read("k") == "first"
    with pytest.raises(UsageError):
        async with session:
            await session.write("k", "third")


@awaited
async def test_R089_one_store_on_two_loops_in_turn_and_on_two_at_once(world: World) -> None:
    """Opened on this loop; used on loops of asyncio and trio in other threads, in turn and together, on one hot key."""
    counters = world.open().resource("counters")
    await counters.run(increment, "hot")

    async def think_and_add(session: Any) -> None:
        value = await session.read("hot", 0)
        await asyncio.sleep(0)
        await session.write("hot", value + 1)

    async def crowd() -> None:
        await asyncio.gather(*[counters.run(think_and_add, agent=f"agent {number}") for number in range(20)])

    async def trio_think_and_add(session: Any) -> None:
        value = await session.read("hot", 0)
        await trio.lowlevel.checkpoint()
        await session.write("hot", value + 1)

    async def trio_crowd() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(lambda number=number: counters.run(trio_think_and_add, agent=f"trio {number}"))

    for crowds in ([crowd], [crowd], [trio_crowd], [crowd, crowd], [crowd, trio_crowd, crowd, trio_crowd]):
        before = await counters.read("hot")
        threads = [Thread(lambda one=one: trio.run(one) if one is trio_crowd else asyncio.run(one())) for one in crowds]
        for thread in threads:
            thread.result()
        assert await counters.read("hot") == before + 20 * len(crowds)


@awaited
async def test_R089_a_loop_that_died_while_waiting_holds_nobody_up(world: World) -> None:
    counters = world.open().resource("counters")
    holding = asyncio.Event()

    async def hold(session: Any) -> None:
        await session.read("hot", 0)
        if session.attempt == 1:
            await counters.run(put, "hot", 0, detached=True)
        else:  # it has its turn at the hot key now
            holding.set()
            await asyncio.Event().wait()
        await session.write("hot", 1)

    async def wait_behind() -> None:
        waiting = asyncio.create_task(counters.run(increment, "hot"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    holder = asyncio.create_task(counters.run(hold))
    await holding.wait()
    for _ in range(3):
        Thread(lambda: asyncio.run(wait_behind())).result()
    holder.cancel()
    await asyncio.wait([holder])
    async with asyncio.timeout(5):
        assert await counters.run(increment, "hot") == 1


class Effects:
    """An act and its undo."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.tool = compensable(undo=self.made.remove)(self.make)

    def make(self, name: str) -> str:
        """Leave an effect."""
        self.made.append(name)
        return name

    async def make_async(self, name: str) -> str:
        """The same."""
        await asyncio.sleep(0)
        return self.make(name)


def test_R083_a_saga_in_a_generator_that_is_closed_elsewhere_is_undone() -> None:
    async def main() -> None:
        effects, problems = Effects(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))

        async def generate() -> AsyncIterator[int]:
            async with Saga() as saga:
                await saga.step(effects.make_async, "x", undo=effects.made.remove)
                yield 1

        async def begin_only(generator: Any) -> None:
            await anext(generator)

        async def consume_and_break() -> None:
            async for _ in generate():
                break

        await consume_and_break()
        for _ in range(5):
            gc.collect()
            await asyncio.sleep(0)
        generator = generate()  # begun in this task, closed in another
        await begin_only(generator)
        await asyncio.create_task(generator.aclose())
        assert interlock.current_saga() is None
        generator = generate()  # the reverse
        await asyncio.create_task(begin_only(generator))
        await generator.aclose()
        assert effects.made == []
        assert problems == []
        assert interlock.current_saga() is None
        async with Saga():  # and here one can begin
            assert interlock.current_saga() is not None
            await asyncio.to_thread(effects.tool, "kept")
        assert effects.made == ["kept"]

    asyncio.run(main())


def test_R084_a_saga_goes_into_threads_with_carry_or_is_missed_loudly() -> None:
    async def main() -> None:
        effects, loop = Effects(), asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.raises(LookupError):
            async with Saga():
                await asyncio.to_thread(effects.tool, "to_thread")
                assert await asyncio.to_thread(interlock.sync.current_saga) is not None
                await asyncio.create_task(asyncio.to_thread(effects.tool, "task"))
                for lost in (
                    lambda: loop.run_in_executor(None, effects.tool, "x"),
                    lambda: asyncio.wrap_future(pool.submit(effects.tool, "x")),
                ):
                    with pytest.raises(UsageError, match=r"interlock\.carry"):
                        await lost()
                with pytest.raises(UsageError, match="outside a saga"):
                    Thread(lambda: effects.tool("x")).result()
                assert Thread(interlock.sync.current_saga).result() is None
                await loop.run_in_executor(None, carry(effects.tool), "executor")
                await asyncio.wrap_future(pool.submit(carry(effects.tool), "pool"))
                carried = carry(effects.tool)
                Thread(lambda: carried("thread")).result()
                assert effects.made == ["to_thread", "task", "executor", "pool", "thread"]
                raise LookupError
        assert effects.made == []
        with pytest.raises(UsageError, match="no saga is open"):
            carry(effects.tool)

    asyncio.run(main())


def test_R084_a_carried_function_is_refused_when_its_saga_has_ended() -> None:
    effects = Effects()
    with Saga():
        carried = carry(effects.tool)
    with pytest.raises(SagaClosedError):
        Thread(lambda: carried("late")).result()
    assert effects.made == []


def test_R088_a_saga_is_entered_once() -> None:
    async def main() -> None:
        saga, effects, entered = Saga(), Effects(), asyncio.Event()

        async def first() -> None:
            async with saga as scope:
                entered.set()
                await scope.step(effects.make_async, "first")

        async def second() -> None:
            await entered.wait()
            async with saga as scope:
                await scope.step(effects.make_async, "second")

        results = await asyncio.gather(first(), second(), return_exceptions=True)
        assert results[0] is None
        assert isinstance(results[1], UsageError)
        assert effects.made == ["first"]

    asyncio.run(main())


def test_R090_the_current_saga_is_the_same_in_gather_and_create_task() -> None:
    async def main() -> None:
        effects = Effects()
        tool = compensable(undo=effects.made.remove)(effects.make_async)
        with pytest.raises(LookupError):
            async with Saga() as saga:
                await asyncio.gather(tool("a"), tool("b"))
                await asyncio.create_task(tool("c"))
                async with asyncio.TaskGroup() as group:
                    group.create_task(tool("d"))
                assert sorted(effects.made) == ["a", "b", "c", "d"]
                assert len(saga.report.steps) == 4
                raise LookupError
        assert effects.made == []

    asyncio.run(main())
