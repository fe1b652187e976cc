"""Sagas in both colours: what a step returns is what its function returns, and scopes know their state."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import assert_type

import interlock
from interlock import sync as il


@dataclass
class Purse:
    """What an outing is paid from."""

    cents: int


async def book(place: str, *, seats: int = 1) -> str:
    """Somewhere else."""
    return f"{seats} at {place}"


async def cancel(result: str) -> None:
    """The undo of `book`."""


def spend(purse: Purse, cents: int) -> int:
    """In the purse."""
    purse.cents -= cents
    return purse.cents


def solvent(purse: Purse) -> bool:
    """An invariant."""
    return purse.cents >= 0


@interlock.compensable(undo=cancel, outside="run")
async def hire(boat: str, hours: int) -> str:
    """Hire a boat."""
    return f"{boat} for {hours}"


async def count(session: interlock.AgentSession[int], key: str) -> int:
    """A transaction."""
    await session.add(key, 1)
    return await session.expect(key)


def count_now(session: il.AgentSession[int], key: str) -> int:
    """The same in plain code."""
    session.add(key, 1)
    return session.expect(key)


async def outing(store: interlock.Store, purse: Purse) -> None:
    """Every call of the asynchronous scope."""
    visits = store.resource("visits", int)
    async with interlock.Saga(purse, invariants=[solvent], on_compensation_error=print) as saga:
        assert_type(saga, interlock.AsyncSagaScope[Purse])
        assert assert_type(await saga.step(book, "the theatre", undo=cancel), str) == "1 at the theatre"
        assert assert_type(await saga.step(partial(book, seats=2), "the opera", undo=cancel), str)
        assert assert_type(await saga.step(spend, saga.state, 30, kind="reversible"), int) == 70
        both = await saga.parallel(interlock.Step(book, "a", undo=cancel), interlock.Step(spend, purse, 5))
        assert_type(both, tuple[str, int])
        assert assert_type(await hire("Emma", 2), str)
        assert assert_type(await saga.transact(visits, count, "theatre", agent="ada"), int) == 1
        sent = saga.defer(book, "the taxi")
        assert_type(sent, interlock.Deferred[str])
        async with saga.savepoint() as inner:
            assert_type(inner, interlock.AsyncSagaScope[Purse])
            await inner.check()
        current = interlock.current_saga()
        assert current is not None
    assert assert_type(sent.result(), str) == "1 at the taxi"
    assert saga.report.clean
    async with interlock.Saga() as bare:
        assert_type(bare, interlock.AsyncSagaScope[None])
    async with store.saga("outing", id="1", state=purse, on_crash="resume") as durable:
        assert_type(durable, interlock.AsyncSagaScope[Purse])
    report = await store.recover(modules=["outings"], older_than_seconds=0)
    assert assert_type(report.undone, tuple[str, ...]) == ()
    async for letter in store.dead_letters.list():
        if letter.dead_letter is not None:
            await store.dead_letters.skip(letter.dead_letter, reason="never mind")


def plain_outing(store: il.Store, purse: Purse) -> None:
    """The same in plain code."""
    visits = store.resource("visits", int)
    taken = interlock.snapshot(purse)
    with interlock.Saga(purse) as saga:
        assert_type(saga, interlock.SagaScope[Purse])
        assert assert_type(saga.step(spend, purse, 10), int) == purse.cents
        assert_type(saga.parallel(interlock.Step(spend, purse, 1), interlock.Step(str, 2)), tuple[int, str])
        assert assert_type(saga.transact(visits, count_now, "park"), int) == 1
        later = saga.defer(spend, purse, 1)
        with saga.savepoint():
            saga.check()
        assert il.current_saga() is not None
    assert assert_type(later.result(), int) == purse.cents
    assert taken.diff() != []
    taken.restore()
    with store.saga("outing", id="2") as durable:
        assert_type(durable, interlock.SagaScope[None])
    assert store.recover().live == ()


async def main() -> None:
    """Both."""
    async with interlock.open("memory://", agent="ada") as store:
        await outing(store, Purse(100))
    with il.open("memory://", agent="ada") as plain:
        plain_outing(plain, Purse(100))


if __name__ == "__main__":
    asyncio.run(main())
