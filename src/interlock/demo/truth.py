"""What must be true of the shop at the end of a day, worked out from the files alone.

Pure, and without the library that it judges. Which orders get the last units depends on the order in which they are
worked on, so the truth is what holds for *every* serial order:

- each good order is decided exactly once: sold, or refused because too little was left; none lost, none twice;
- no article is sold beyond its opening stock, and what is left is the opening stock without what was sold;
- a decision is right at its moment. The ledger's page of an article lists its decisions in the order in which they were
  made, so each is played again: sold if and only if enough was left;
- the till holds the price of the recorded sales, in whole smallest units, by prices from the file.

`judge` counts each kind of deviation for itself. It is given what the store holds at the end *and* what the agents
were told had been done: a sale that was acknowledged and then overwritten is not in the store any more, but it was
promised.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from interlock.demo.orders import Order


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision about one order, as it stands in the ledger or as an agent was told. ``transaction`` made it."""

    order_id: str
    article: str
    quantity: int
    currency: str
    total_minor: int
    sold: bool
    transaction: str


@dataclass(frozen=True, slots=True)
class Shop:
    """What the store holds: units left by article, the ledger's pages by article, money by currency."""

    stock: Mapping[str, int]
    ledger: Mapping[str, tuple[Entry, ...]]
    till: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Truth:
    """What the files say: opening stock, and the good orders by id with each payload that came under it."""

    opening: Mapping[str, int]
    orders: Mapping[str, tuple[Order, ...]]

    @property
    def wanted_units(self) -> int:
        """Units that all orders together ask for; of a contradicted order the most."""
        return sum(max(order.quantity for order in variants) for variants in self.orders.values())

    @property
    def sellable_units(self) -> int:
        """The most that can be sold: of no article more than there was or than is wanted."""
        wanted: Counter[str] = Counter()
        for variants in self.orders.values():
            for article in {order.article for order in variants}:
                wanted[article] += max(order.quantity for order in variants if order.article == article)
        return sum(min(units, self.opening.get(article, 0)) for article, units in wanted.items())


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a shop is from the truth; every figure has to be zero.

    ``revenue_error`` is the till without the recorded sales, by currency in smallest units, and holds only what
    differs."""

    units_oversold: int = 0
    orders_lost: int = 0
    acknowledged_lost: int = 0
    applied_twice: int = 0
    revenue_error: Mapping[str, int] = field(default_factory=dict)
    stock_error_units: int = 0
    wrong_decisions: int = 0
    foreign_records: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing at all is wrong."""
        return self == Verdict()


def truth_of(orders: Iterable[Order], opening: Mapping[str, int]) -> Truth:
    """The truth of a list of deliveries: equal payloads of one id are one order."""
    variants: defaultdict[str, dict[tuple[object, ...], Order]] = defaultdict(dict)
    for order in orders:
        variants[order.order_id].setdefault(order.payload, order)
    return Truth(dict(opening), {order_id: tuple(found.values()) for order_id, found in variants.items()})


def judge(truth: Truth, shop: Shop, acknowledged: Iterable[Entry]) -> Verdict:
    """Count what is wrong. ``acknowledged`` are the decisions that agents were told, replays included."""
    told = set(acknowledged)
    records = [entry for page in shop.ledger.values() for entry in page]
    recorded = {entry.order_id for entry in records}
    applied = told | set(records)
    again = len(records) - len(set(records))  # the same record twice
    lost = truth.orders.keys() - recorded
    return Verdict(
        units_oversold=_oversold(truth, applied),
        orders_lost=len(lost),
        acknowledged_lost=len(lost & {entry.order_id for entry in told}),
        applied_twice=sum(count - 1 for count in Counter(entry.order_id for entry in applied).values()) + again,
        revenue_error=_revenue_error(truth, records, shop.till),
        stock_error_units=_stock_error(truth, records, shop.stock),
        wrong_decisions=sum(
            _wrong_decisions(page, truth.opening.get(article, 0)) for article, page in shop.ledger.items()
        ),
        foreign_records=sum(not _from_file(truth, entry) for entry in applied)
        + sum(entry.article != article for article, page in shop.ledger.items() for entry in page),
    )


def _from_file(truth: Truth, entry: Entry) -> bool:
    """Whether the file has an order that says what a record says."""
    return any(
        (order.article, order.quantity, order.currency, order.total_minor)
        == (entry.article, entry.quantity, entry.currency, entry.total_minor)
        for order in truth.orders.get(entry.order_id, ())
    )


def _oversold(truth: Truth, applied: Iterable[Entry]) -> int:
    """Units that were promised beyond the opening stock, over all articles."""
    sold: Counter[str] = Counter()
    for entry in applied:
        if entry.sold:
            sold[entry.article] += entry.quantity
    return sum(max(0, units - truth.opening.get(article, 0)) for article, units in sold.items())


def _sales(records: Iterable[Entry]) -> list[Entry]:
    """The recorded sales, one for each order."""
    return list({entry.order_id: entry for entry in records if entry.sold}.values())


def _revenue_error(truth: Truth, records: Iterable[Entry], till: Mapping[str, int]) -> dict[str, int]:
    """Till without the recorded sales at the file's prices."""
    error = Counter(till)
    for entry in _sales(records):
        priced = [
            order.total_minor
            for order in truth.orders.get(entry.order_id, ())
            if (order.quantity, order.currency, order.total_minor)
            == (entry.quantity, entry.currency, entry.total_minor)
        ]
        error[entry.currency] -= priced[0] if priced else 0
    return {currency: minor for currency, minor in sorted(error.items()) if minor}


def _stock_error(truth: Truth, records: Iterable[Entry], stock: Mapping[str, int]) -> int:
    """By how many units the stock is off, over all articles, from opening stock without recorded sales."""
    left = Counter(truth.opening)
    for entry in _sales(records):
        left[entry.article] -= entry.quantity
    return sum(abs(stock.get(article, 0) - left[article]) for article in left.keys() | stock.keys())


def _wrong_decisions(page: Iterable[Entry], opening: int) -> int:
    """Decisions of a page that do not follow from those before them."""
    left, wrong = opening, 0
    for entry in page:
        if entry.sold != (entry.quantity <= left):
            wrong += 1
        if entry.sold:
            left -= entry.quantity
    return wrong
