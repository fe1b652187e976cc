"""The shop itself: what an agent does about an order, and the shop's opening and closing.

`sell` is written as one writes such a thing without a thought for others: look up what is there, think, write down what
follows. It is the same function in every column of the demonstration. What differs is how it is run: with
``isolation="none"`` and no key, or as one transaction under the order's id.

Three resources: ``stock`` (units left by article), ``ledger`` (by article, its page: each decision in the order in
which it was made) and ``till`` (money by currency, in smallest units). The till is the one key that every sale
touches, so it is added to instead of read and written: additions do not conflict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import interlock
import interlock.sync
from interlock.demo.orders import Order
from interlock.demo.truth import Entry, Shop

Page = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Resources:
    """The three resources of one shop in an open store."""

    stock: interlock.SharedResource[Any]
    ledger: interlock.SharedResource[Any]
    till: interlock.SharedResource[Any]


def resources(store: interlock.Store, prefix: str) -> Resources:
    """The shop whose resources' names begin with ``prefix``."""
    return Resources(*(store.resource(f"{prefix}-{name}") for name in ("stock", "ledger", "till")))


async def sell(
    session: interlock.AgentSession[Any], order: Order, shop: Resources, think: Callable[[], Awaitable[None]]
) -> dict[str, Any]:
    """Decide about one order and write it down; returns the ledger's entry, an earlier one if it was decided before."""
    page: Page = await session.read(order.article, [])
    for entry in page:
        if entry["order_id"] == order.order_id:
            return entry
    left: int = await session.on(shop.stock).read(order.article, 0)
    await think()
    decision = Entry(
        order_id=order.order_id,
        article=order.article,
        quantity=order.quantity,
        currency=order.currency,
        total_minor=order.total_minor,
        sold=order.quantity <= left,
        transaction=session.transaction_id,
    )
    await session.write(order.article, [*page, asdict(decision)])
    if decision.sold:
        await session.on(shop.stock).write(order.article, left - order.quantity)
        await session.on(shop.till).add(order.currency, order.total_minor)
    return asdict(decision)


def open_shop(url: str, prefix: str, opening: Mapping[str, int]) -> None:
    """Put the opening stock on the shelves, in one transaction."""
    with interlock.sync.open(url, agent="supervisor") as store:
        with store.resource(f"{prefix}-stock").session() as session:
            for article, units in opening.items():
                session.write(article, units)


def close_shop(url: str, prefix: str) -> Shop:
    """What the shop holds now, all of it at one snapshot."""
    with interlock.sync.open(url, agent="supervisor") as store:
        stock, ledger, till = (store.resource(f"{prefix}-{name}") for name in ("stock", "ledger", "till"))
        with ledger.session() as session:
            return Shop(
                stock={str(article): units for article, units in session.on(stock).scan()},
                ledger={str(article): tuple(Entry(**entry) for entry in page) for article, page in session.scan()},
                till={str(currency): minor for currency, minor in session.on(till).scan()},
            )
