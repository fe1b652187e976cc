"""Resources of a pydantic model, through whole sessions in both worlds."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal

import pydantic
import pytest

import interlock
import interlock.sync


class Line(pydantic.BaseModel):
    article: str
    count: int = pydantic.Field(ge=1)


class Order(pydantic.BaseModel):
    buyer: str
    lines: list[Line]
    placed: dt.datetime
    total: Decimal


def order(count: int = 1) -> Order:
    line = Line(article="apple", count=count)
    return Order(buyer="Ada", lines=[line], placed=dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), total=Decimal("1.50"))


def test_a_model_comes_back_equal_and_new_at_each_read() -> None:
    with interlock.sync.open("memory://", agent="a") as store:
        orders = store.resource("orders", Order)
        given = order()
        with orders.session() as session:
            session.write("1", given)
            given.lines[0].count = 99
            assert session.read("1") == order()
        with orders.session() as session:
            first, second = session.expect("1"), session.expect("1")
            assert first == second == order()
            assert first is not second
            assert type(first.lines[0]) is Line
            first.lines.clear()
            assert session.read("1") == order()
        assert store.resource("orders").read("1")["buyer"] == "Ada"


def test_an_update_of_a_model_in_asynchronous_code() -> None:
    async def more(session: interlock.AgentSession[Order], key: str) -> int:
        found = await session.expect(key)
        found.lines[0].count += 1
        await session.write(key, found)
        return found.lines[0].count

    async def main() -> None:
        async with interlock.open("memory://", agent="a") as store:
            orders = store.resource("orders", Order)
            async with orders.session() as session:
                await session.write("1", order())
            counts = await asyncio.gather(*[orders.run(more, "1") for _ in range(5)])
            assert sorted(counts) == [2, 3, 4, 5, 6]
            assert await orders.read("1") == order(6)

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"buyer": "Ada"}, "an order", Line(article="apple", count=1)])
def test_what_is_no_such_model_is_refused_before_anything_is_written(wrong: object) -> None:
    with interlock.sync.open("memory://", agent="a") as store:
        orders = store.resource("orders", Order)
        session = orders.begin()
        with pytest.raises(interlock.ValueRefusedError):
            session.write("1", wrong)  # type: ignore[arg-type]
        with pytest.raises(interlock.ValueRefusedError):
            session.commit()
        assert orders.read("1") is None


def test_a_model_that_has_become_invalid_is_refused() -> None:
    with interlock.sync.open("memory://", agent="a") as store:
        orders = store.resource("orders", Order)
        broken = order()
        broken.lines[0].count = 0
        with pytest.raises(interlock.ValueRefusedError, match="not a valid Order"), orders.session() as session:
            session.write("1", broken)
        assert orders.read("1") is None


def test_a_stored_value_that_is_no_such_model_is_refused_when_it_is_read() -> None:
    with interlock.sync.open("memory://", agent="a") as store:
        with store.resource("orders").session() as session:
            session.write("1", {"buyer": "Ada"})
        with (
            pytest.raises(interlock.ValueRefusedError, match="not a valid Order"),
            store.resource("orders", Order).session() as session,
        ):
            session.read("1")


def place(session: interlock.sync.AgentSession[Order], key: str, count: int) -> Order:
    made = order(count)
    session.write(key, made)
    return made


def test_the_result_of_an_idempotent_run_may_be_a_model() -> None:
    with interlock.sync.open("memory://", agent="a") as store:
        orders = store.resource("orders", Order)
        first = orders.run_detailed(place, "1", 2, idempotency_key="k")
        again = orders.run_detailed(place, "1", 2, idempotency_key="k")
        assert (first.replayed, again.replayed) == (False, True)
        assert first.value == again.value == order(2)
        assert type(again.value) is Order
        with pytest.raises(interlock.IdempotencyMismatchError):
            orders.run(place, "1", 3, idempotency_key="k")
