# pyright: strict, reportDeprecated=true, reportUnusedExpression=false, reportUnusedVariable=false
"""Mistakes that users make. Each marked line has to be refused by mypy and by pyright, and no other line may be.

The marks say what the mistake is. This file is checked, never run: see `test_typing.py`.
"""

from functools import partial

import interlock
from interlock import sync as il

store = interlock.open("memory://", agent="x")
counts = store.resource("counts", int)
lists = store.resource("lists", list[str])
texts = store.resource("texts", str)


async def take(session: interlock.AgentSession[int], key: str, count: int = 1) -> int:
    return count


async def named(session: interlock.AgentSession[int], key: str, *, count: int) -> int:
    return count


def blocking(session: interlock.AgentSession[int]) -> int:
    return 1


async def ask(prompt: str) -> str:
    return prompt


def double(count: int) -> int:
    return count * 2


def shout(text: str) -> str:
    return text.upper()


async def calling() -> None:
    await counts.run(take, "a", 2, agent="y", isolation="snapshot")
    await counts.run(take, 5)  # WANT an argument of the wrong type
    await counts.run(take)  # WANT an argument is missing
    await counts.run(take, "a", 1, 2)  # WANT an argument too many
    await counts.run(take, "a", agnet="y")  # WANT an option misspelt
    await counts.run(take, "a", count=2)  # WANT a function's own keyword: partial
    await counts.run(partial(named, count=2), "a")
    await counts.run(named, "a")  # WANT a keyword is missing
    await counts.run(take, "a", isolation="serialisable")  # WANT a mode misspelt
    await counts.run(take, "a", isolation="linearizable")  # WANT a mode that does not exist
    await counts.run(take, "a", retry=5)  # WANT a number for a policy
    await counts.run(take, "a", timeout_seconds="30")  # WANT a text for seconds
    await counts.run(blocking)  # WANT a blocking function
    await lists.run(take, "a")  # WANT a function for another type of resource
    counts.run(take, "a")  # WANT not awaited
    done: int = await counts.run_detailed(take, "a")  # WANT the value is in .value
    async with counts.session(retry=interlock.RetryPolicy()) as session:  # WANT a session is one attempt
        pass


async def in_a_session() -> None:
    async with counts.session() as session:
        await session.write("x", 1)
        session.write("x", 1)  # WANT not awaited
        await session.write("x", "1")  # WANT a value of another type
        await session.write(1, 1)  # WANT a key that is a number
        await session.write(("a", 1.5), 1)  # WANT a key with a fraction
        await session.append("x", "y")  # WANT append on a number
        await session.set_add("x", "y")  # WANT set_add on a number
        await session.add("x", "1")  # WANT a text added to a number
        await session.update("x", shout)  # WANT a function for another type
        if await session.read("x") < 1:  # WANT it may be None
            await session.delete("x")
        total: int = await session.read("x", "none")  # WANT the default's type
        for pair in session.scan():  # WANT async for
            assert pair
        await session.scan()  # WANT async for, no await
        async with session.savepoint():  # WANT plain with
            await session.exists("x")
        await session.doom("no")  # WANT not awaited at all
        text: int = await session.memo(ask, "what?")  # WANT the result's type
        await session.memo(ask, 3)  # WANT an argument of the wrong type
        await session.merge("x", 1)  # WANT which merge?
        await session.on(texts).write("x", 1)  # WANT a value of another resource
        session.agent = "y"  # WANT read only


async def around_sessions() -> None:
    with store:  # WANT async with
        pass
    with counts.session() as blocked:  # WANT async with
        pass
    async with store.session() as unbound:
        await unbound.write("x", 1)  # WANT bound to no resource
        await unbound.on(counts).write("x", 1)
    async for attempt in counts.attempts():
        async with attempt:
            await attempt.read("x")  # WANT an attempt is not a session
    begun = counts.begin()
    await begun.write("x", 1)  # WANT begin is awaited
    async for change in store.log.changes(since=3):  # WANT a cursor is a text
        change.agent = "z"  # WANT frozen
    store.resource(counts)  # WANT a name
    interlock.open("memory://", "x")  # WANT keyword only
    interlock.RetryPolicy(max_attempt=3)  # WANT a field misspelt


@counts.transactional()
async def decorated(session: interlock.AgentSession[int], key: str) -> int:
    return await session.update(key, double, 0)


@texts.transactional()  # WANT a function for another type of resource
async def misplaced(session: interlock.AgentSession[int], key: str) -> int:
    return 1


@counts.invariant("not awaitable")  # WANT an async function
def unchecked(view: interlock.AgentView[int]) -> bool:
    return True


async def using_decorated() -> None:
    await decorated("a")
    await decorated(3)  # WANT an argument of the wrong type
    await decorated(counts, "a")  # WANT the session is given by the decorator


def synchronous() -> None:
    blocking_store = il.open("memory://", agent="x")
    numbers = blocking_store.resource("numbers", int)

    def body(session: il.AgentSession[int], key: str) -> int:
        return session.read(key, 0)

    async def coroutine(session: il.AgentSession[int]) -> int:
        return 1

    assert numbers.run(body, "a") == 0
    result: int = numbers.run(coroutine)  # WANT an async function in synchronous code
    numbers.run(coroutine)  # WANT the same, result unused
    numbers.run(take, "a")  # WANT a function for the other module
    numbers.run(body, 3)  # WANT an argument of the wrong type
    with numbers.session() as session:
        session.write("x", "1")  # WANT a value of another type
        left: int = session.read("x")  # WANT it may be None
        session.memo(ask, "what?")  # WANT an async function in synchronous code
        session.stage("mail", "thanks")  # WANT the key of the effect
    executor = il.IdempotentExecutor(blocking_store)
    answer: str = executor.execute("k", ask, "what?")  # WANT an async function in synchronous code
    length: str = executor.execute("k", len, "four")  # WANT a result of another type


async def in_a_saga() -> None:
    async with interlock.Saga({"cents": 3}) as saga:
        await saga.step(ask, "what?", undo=shout)
        await saga.step(ask, 3)  # WANT an argument of the wrong type
        saga.step(ask, "what?")  # WANT not awaited
        text: int = await saga.step(ask, "what?")  # WANT the result's type
        await saga.step(double, 1, undoo=shout)  # WANT an option misspelt
        await saga.step(double, 1, kind="irreversible")  # WANT that is what defer is for
        await saga.transact(counts, take, 5)  # WANT an argument of the wrong type
        await saga.transact(texts, take, "a")  # WANT a function for another type of resource
        saga.state = {}  # WANT read only
        with saga.savepoint():  # WANT async with
            pass
        saga.abort("enough")


def in_a_plain_saga() -> None:
    with interlock.Saga() as saga:
        text: str = saga.step(double, 2)  # WANT the result's type
        saga.step(ask, "what?")  # WANT an async function in synchronous code
        saga.defer(ask, "what?")  # WANT the same, deferred
        saga.step(double, "2")  # WANT an argument of the wrong type
    with store.saga("order", id="1"):  # WANT async with
        pass
    blocking_store = il.open("memory://", agent="x")
    blocking_store.saga("order")  # WANT an id
    blocking_store.saga("order", id="1", on_crash="retry")  # WANT rollback or resume
