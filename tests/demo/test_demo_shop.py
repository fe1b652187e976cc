"""The agents' function on its own: many tasks on one memory store, judged as the processes' work is judged."""

import asyncio
from pathlib import Path

import interlock
from interlock.demo import shop
from interlock.demo.messages import Acknowledged, Contradicted, Failed, Job, Message, pack, unpack_job, unpack_message
from interlock.demo.orders import Order
from interlock.demo.truth import Entry, Shop, Verdict, judge, truth_of
from interlock.demo.worker import Agent

OPENING = {"MUG": 30, "TEE": 20}


def order(line: int, order_id: str, article: str, quantity: int) -> Order:
    return Order(
        line, order_id, "2025-11-28T09:00:00+00:00", "王", "a@b.c", article, quantity, "EUR", 999, "CN", (), ""
    )


def deliveries() -> tuple[Order, ...]:
    """60 orders, each delivered twice, the second time just behind the first."""
    return tuple(
        order(line, f"#{line // 2}", "MUG" if line // 2 % 2 else "TEE", 1 + line // 2 % 3) for line in range(120)
    )


async def worked(
    isolation: str, *, keyed: bool, orders: tuple[Order, ...], agents: int = 8
) -> tuple[Shop, list[Message]]:
    """All orders processed by agents that are tasks of one loop, and the shop afterwards."""
    job = Job("memory://", "shop", 1, 1, agents, 0, (0.0, 0.002), isolation, keyed, orders)
    async with interlock.open(job.url) as store:
        resources = shop.resources(store, job.prefix)
        async with resources.stock.session(agent="test") as session:
            for article, units in OPENING.items():
                await session.write(article, units)
        todo = iter(job.orders)
        said: list[Message] = []

        async def work(agent: Agent) -> None:
            while (each := next(todo, None)) is not None:
                said.append(await agent.process(each))

        async with asyncio.TaskGroup() as tasks:
            for number in range(agents):
                tasks.create_task(work(Agent(job, number, resources)))
        return Shop(
            {article: units async for article, units in resources.stock.scan()},
            {article: tuple(Entry(**entry) for entry in page) async for article, page in resources.ledger.scan()},
            {currency: minor async for currency, minor in resources.till.scan()},
        ), said


def judged(orders: tuple[Order, ...], closing: Shop, said: list[Message]) -> Verdict:
    assert not [message for message in said if isinstance(message, Failed)]
    return judge(
        truth_of(orders, OPENING), closing, [message.entry for message in said if isinstance(message, Acknowledged)]
    )


def test_as_transactions_under_their_ids_all_orders_are_decided_once() -> None:
    orders = deliveries()
    closing, said = asyncio.run(worked("serializable", keyed=True, orders=orders))
    assert judged(orders, closing, said) == Verdict()
    done = [message for message in said if isinstance(message, Acknowledged)]
    assert len(done) == 120
    assert sum(message.applied for message in done) == 60
    assert sum(message.lost for message in done) > 0, "they did meet"


def test_without_isolation_the_same_function_oversells_loses_and_repeats() -> None:
    orders = deliveries()
    closing, said = asyncio.run(worked("none", keyed=False, orders=orders))
    found = judged(orders, closing, said)
    assert found.units_oversold > 0
    assert found.acknowledged_lost > 0
    assert found.applied_twice > 0
    assert found.revenue_error


def test_one_agent_alone_needs_no_isolation() -> None:
    orders = deliveries()
    closing, said = asyncio.run(worked("none", keyed=False, orders=orders, agents=1))
    assert judged(orders, closing, said) == Verdict()


def test_an_id_that_is_used_for_something_else_is_refused() -> None:
    for keyed, isolation in ((True, "serializable"), (False, "none")):
        orders = (order(1, "#1", "MUG", 1), order(2, "#1", "MUG", 2))
        closing, said = asyncio.run(worked(isolation, keyed=keyed, orders=orders, agents=1))
        assert judged(orders, closing, said) == Verdict()
        assert said[1] == Contradicted(2)


def test_what_is_said_comes_over_a_pipe_as_it_was() -> None:
    one = order(1, "#1", "抹茶", 1)
    job = Job("sqlite:///x", "p", 1, 2, 4, 7, (0.1, 0.2), "none", False, (one,))
    assert unpack_job(pack(job)) == job
    entry = Entry("#1", "抹茶", 1, "EUR", 999, True, "t")
    for message in (Acknowledged(1, entry, True, 2, 1, 0.5), Contradicted(2), Failed(3, "line\nbreak")):
        line = pack(message)
        assert line.count(b"\n") == 1
        assert unpack_message(line) == message


def test_the_naive_function_is_shown_once() -> None:
    """Both columns run the same function: it names no isolation and no key."""
    source = Path(shop.__file__).read_text("utf-8")
    body = source[source.index("async def sell") : source.index("def open_shop")]
    assert "isolation" not in body
    assert "idempotency" not in body
