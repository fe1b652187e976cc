"""What must be true when all orders have been dealt with, from the outside world's log and what the store holds.

Pure, and without the word of any saga, report or journal. Whether an order comes about is nobody's business here; but
it comes about whole or not at all:

- an order that stands in the store was charged once, at its price, shipped once and confirmed by mail once;
- of any other order nothing is left: what was charged was refunded, exactly and once; what was shipped was recalled;
  no mail has gone out;
- the stock is the opening stock without what stands in the orders.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from interlock.demo.coordinator import Purchase
from interlock.demo.outside import Fact


@dataclass(frozen=True, slots=True)
class SagaVerdict:
    """How far the world is from the truth; every figure has to be zero.

    ``wrong_refunds``: a refund of something that was not charged, of another amount, or a second one.
    ``acknowledged_lost``: orders that a coordinator called completed and that are not in the store."""

    charges_without_order: int = 0
    orders_without_charge: int = 0
    double_charges: int = 0
    wrong_amounts: int = 0
    wrong_refunds: int = 0
    mails_for_cancelled: int = 0
    orders_without_mail: int = 0
    mails_twice: int = 0
    shipments_without_order: int = 0
    orders_not_shipped_once: int = 0
    stock_error_units: int = 0
    acknowledged_lost: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing at all is wrong."""
        return self == SagaVerdict()


def judge_sagas(
    opening: Mapping[str, int],
    stock: Mapping[str, int],
    orders: Mapping[str, Purchase],
    log: Iterable[Fact],
    acknowledged: Collection[str] = (),
) -> SagaVerdict:
    """Count what is wrong. ``stock`` and ``orders`` are what the store holds, by article and by order."""
    facts: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in log:
        facts[fact.kind].append(fact)
    refunded, wrong_refunds = _refunds(facts["charge"], facts["refund"])
    standing = [fact for fact in facts["charge"] if fact.id not in refunded]
    charged = Counter(fact.order for fact in standing)
    recalled = {fact.id for fact in facts["recall"]}
    shipped = Counter(fact.order for fact in facts["ship"] if fact.id not in recalled)
    mailed = Counter(fact.order for fact in facts["mail"])
    left = Counter(opening)
    for purchase in orders.values():
        left[purchase.article] -= purchase.quantity
    return SagaVerdict(
        charges_without_order=sum(fact.order not in orders for fact in standing),
        orders_without_charge=sum(not charged[order] for order in orders),
        double_charges=sum(count - 1 for count in charged.values()),
        wrong_amounts=sum(fact.order in orders and fact.cents != orders[fact.order].cents for fact in standing),
        wrong_refunds=wrong_refunds,
        mails_for_cancelled=sum(order not in orders for order in mailed),
        orders_without_mail=sum(not mailed[order] for order in orders),
        mails_twice=sum(count - 1 for count in mailed.values()),
        shipments_without_order=sum(count for order, count in shipped.items() if order not in orders),
        orders_not_shipped_once=sum(shipped[order] != 1 for order in orders),
        stock_error_units=sum(abs(stock.get(article, 0) - left[article]) for article in left.keys() | stock.keys()),
        acknowledged_lost=sum(order not in orders for order in acknowledged),
    )


def _refunds(charges: Iterable[Fact], refunds: Iterable[Fact]) -> tuple[set[str], int]:
    """The charges that were refunded, and the number of refunds that were not right."""
    charged = {fact.id: fact for fact in charges}
    refunded: set[str] = set()
    wrong = 0
    for fact in refunds:
        of = charged.get(fact.id)
        wrong += of is None or fact.id in refunded or (of.order, of.cents) != (fact.order, fact.cents)
        refunded.add(fact.id)
    return refunded, wrong
