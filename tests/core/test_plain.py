"""What makes a transaction other than plain says so, so that the short ways never overlook anything."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import interlock
from interlock.core import carrying
from interlock.core.transaction import Transaction
from interlock.model import ABSENT, Put

_SEEN = (
    "engine backend home agent isolation mode generation plain reads writes records token operation run_id attempt _id "
    "ahead state error last_call calls thread context gate reply replayed settle unsettled memos operand_bytes born "
    "lock_timeout_seconds"
)
SEEN = frozenset(_SEEN.split())
"""What the short ways look at, or what does not change what they do."""
_RARE = "chains clears deadline guards held invariant_reads invariant_spans missed pinned spans stale touched unchecked"
RARE = frozenset(_RARE.split())
"""What they do not look at: must be as it began in a plain transaction."""

Session = interlock.AgentSession[Any]
Work = Callable[[interlock.Store, interlock.SharedResource[Any], Session], Awaitable[object]]


def test_every_field_is_of_one_kind_or_the_other() -> None:
    assert set(Transaction.__struct_fields__) == SEEN | RARE
    assert not SEEN & RARE


def test_the_collector_knows_a_transaction_from_the_beginning() -> None:
    """Its fields are stored without a look at whether it does."""
    assert gc.is_tracked(transaction_after(nothing))


def transaction_after(work: Work, **options: Any) -> Transaction:
    async def run() -> Transaction:
        async with interlock.open("memory://", agent="a") as store:
            stock = store.resource("stock")
            await stock.run(put, "apples", 1)
            session = await stock.begin(**options)
            await work(store, stock, session)
            return session._txn

    return asyncio.run(run())


async def put(session: Session, key: str, value: object) -> None:
    await session.write(key, value)


async def plain(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    await session.write("pears", await session.read("apples"))
    await session.delete("apples")
    await session.add("plums", 1)
    await session.memo(asyncio.sleep, 0)
    await session.check()
    with session.savepoint():
        await session.write("apples", 2)


async def another_space(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    await session.on(store.resource("orders")).read("apples")


async def scan(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    assert [row async for row in session.scan()] == [("apples", 1)]


async def clear(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    await session.clear()


async def custom_merge(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    stock.register_merge("larger", max)
    await session.merge("apples", 3, "larger")


async def large_merges(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    for _ in range(2):
        await session.append("list", "x" * (1 << 20 - 1))


async def stale(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    await session.read("apples")
    await stock.run(put, "apples", 2, detached=True)
    await stock.run(put, "pears", 2, detached=True)
    await session.read("pears")


async def carried_guard(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    carrying.carry(session._txn, guards={b"\0lease": carrying.Guard(ABSENT)})


async def carried_write(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    carrying.carry(session._txn, writes={b"\0effect": Put(b"x")})


async def invariant(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    async def holds(view: interlock.AgentView[Any]) -> bool:
        return await view.read("apples") is not None

    stock.invariant("apples", holds)
    await session.write("pears", 1)
    await session.commit()


async def nothing(store: interlock.Store, stock: interlock.SharedResource[Any], session: Session) -> None:
    pass


@pytest.mark.parametrize("options", [{}, {"run_id": "r"}, {"agent": "b"}, {"idempotency_key": "k"}])
def test_what_nearly_all_do_is_plain(options: dict[str, Any]) -> None:
    txn = transaction_after(plain, **options)
    assert txn.plain
    defaults = Transaction(*[None] * 7)  # type: ignore[arg-type]
    assert {name for name in RARE if getattr(txn, name) != getattr(defaults, name)} == set()


@pytest.mark.parametrize(
    "work",
    [another_space, scan, clear, custom_merge, large_merges, stale, carried_guard, carried_write, invariant],
    ids=lambda work: work.__name__,
)
def test_anything_else_is_not(work: Work) -> None:
    assert not transaction_after(work).plain


@pytest.mark.parametrize("options", [{"isolation": "optimistic"}, {"isolation": "pessimistic"}, {"timeout_seconds": 9}])
def test_options_that_are_not(options: dict[str, Any]) -> None:
    assert not transaction_after(nothing, **options).plain
