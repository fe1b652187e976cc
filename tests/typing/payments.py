"""A cashier pays once for each order, in both worlds; mails are sent after the commit, what is unknown is asked for."""

import asyncio
from functools import partial

import interlock
from interlock import CANNOT_TELL, NOT_HAPPENED, EffectStatus, Happened
from interlock import sync as il

paid: dict[str, int] = {}
mails: list[str] = []


async def pay(order: str, cents: int, idempotency_key: str) -> dict[str, int]:
    """What a payment provider does, which answers in time for whole euros only."""
    paid[idempotency_key] = cents
    if cents % 100:
        raise TimeoutError(order)
    return {order: cents}


def pay_now(order: str, *, cents: int) -> int:
    """The same in synchronous code."""
    paid[order] = cents
    return cents


async def look_up(key: str) -> interlock.Answer[dict[str, int]]:
    """A probe."""
    if key == "unsure":
        return CANNOT_TELL
    return Happened({key: paid[key]}) if key in paid else NOT_HAPPENED


async def send(payload: str) -> None:
    """A handler."""
    mails.append(payload)


async def main() -> None:
    """In asynchronous code."""
    async with interlock.open("memory://", agent="cashier") as store:
        executor = interlock.IdempotentExecutor(store, claim_seconds=30, wait_seconds=5)
        receipt: dict[str, int] = await executor.execute("order-1", pay, "order-1", 500)
        done: interlock.Executed[dict[str, int]] = await executor.execute_detailed("order-1", pay, "order-1", 500)
        assert done.replayed
        assert done.value == receipt
        try:
            await executor.execute("order-2", pay, "order-2", 525)
        except TimeoutError:
            effect: interlock.Effect | None = await store.effects.get("order-2")
            assert effect is not None
            assert effect.status is EffectStatus.UNKNOWN
        report: interlock.Reconciled = await store.effects.reconcile(verify=look_up)
        assert report.happened == [("order-2", "")]
        store.effects.handler("mail", send)
        orders = store.resource("orders", int)
        async with orders.session() as session:
            await session.write("order-1", 500)
            await session.stage("mail", "thank you", key="order-1")
        dispatched: interlock.Dispatched = await store.effects.dispatch(limit=10)
        assert dispatched.succeeded == 1
        assert mails == ["thank you"]
        every: list[interlock.Effect] = await store.effects.list(EffectStatus.SUCCEEDED)
        assert len(every) == 3


def main_now() -> None:
    """In synchronous code."""
    with il.open("memory://", agent="cashier") as store:
        executor = il.IdempotentExecutor(store.effects, durable_results=True)
        cents: int = executor.execute("order-3", partial(pay_now, cents=700), "order-3")
        assert cents == executor.execute("order-3", partial(pay_now, cents=700), "order-3") == paid["order-3"]
        length: int = executor.execute("length", len, "four", payload=4)
        assert length == 4


asyncio.run(main())
main_now()
