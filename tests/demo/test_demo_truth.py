"""The judge: right shops are clean, and each kind of wrong is counted as what it is."""

from dataclasses import replace

import pytest

from interlock.demo.orders import Order
from interlock.demo.truth import Entry, Shop, Truth, Verdict, judge, truth_of

OPENING = {"MUG": 3, "TEE": 10}


def order(order_id: str, article: str, quantity: int, *, unit_minor: int = 100, currency: str = "EUR") -> Order:
    return Order(
        line=int(order_id),
        order_id=order_id,
        created_at="2025-11-28T08:15:02+00:00",
        customer="Anna",
        email="anna@example.com",
        article=article,
        quantity=quantity,
        currency=currency,
        unit_minor=unit_minor,
        country="DE",
        tags=(),
        notes="",
    )


def entry(of: Order, sold: bool, transaction: str = "") -> Entry:
    return Entry(
        of.order_id, of.article, of.quantity, of.currency, of.total_minor, sold, transaction or f"t{of.order_id}"
    )


TWO, ONE, LATE, TEES = order("1", "MUG", 2), order("2", "MUG", 1), order("3", "MUG", 1), order("4", "TEE", 4)
YEN = order("5", "TEE", 1, unit_minor=1200, currency="JPY")
ORDERS = (TWO, ONE, LATE, TEES, YEN)
TRUTH = truth_of(ORDERS, OPENING)
MUGS = (entry(TWO, True), entry(ONE, True), entry(LATE, False))
SHIRTS = (entry(TEES, True), entry(YEN, True))
RIGHT = Shop(stock={"MUG": 0, "TEE": 5}, ledger={"MUG": MUGS, "TEE": SHIRTS}, till={"EUR": 700, "JPY": 1200})


def verdict(shop: Shop = RIGHT, told: tuple[Entry, ...] = (*MUGS, *SHIRTS), truth: Truth = TRUTH) -> Verdict:
    return judge(truth, shop, told)


def test_a_right_shop_is_clean() -> None:
    assert verdict() == Verdict()
    assert verdict().clean


def test_who_gets_the_last_unit_is_left_open() -> None:
    other = (entry(LATE, True), entry(TWO, True), entry(ONE, False))
    shop = replace(RIGHT, ledger={"MUG": other, "TEE": SHIRTS})
    assert verdict(shop, (*other, *SHIRTS)).clean


def test_replays_tell_the_same_and_killed_processes_tell_nothing() -> None:
    assert verdict(told=(*MUGS, *MUGS, *SHIRTS)).clean
    assert verdict(told=()).clean


def test_a_sale_beyond_the_stock_is_oversold() -> None:
    page = (*MUGS[:2], entry(LATE, True))
    found = verdict(replace(RIGHT, stock={"MUG": -1, "TEE": 5}, ledger={"MUG": page, "TEE": SHIRTS}), (*page, *SHIRTS))
    assert found.units_oversold == 1
    assert found.wrong_decisions == 1
    assert not found.clean


def test_a_sale_that_was_told_and_overwritten_is_oversold_and_lost() -> None:
    """The lost update: two agents see three mugs, both are told that they sold, one page survives."""
    first, second = entry(order("6", "MUG", 2), True), entry(order("7", "MUG", 2), True)
    truth = truth_of((order("6", "MUG", 2), order("7", "MUG", 2)), {"MUG": 3})
    shop = Shop(stock={"MUG": 1}, ledger={"MUG": (second,)}, till={"EUR": 400})
    assert judge(truth, shop, (first, second)) == Verdict(
        units_oversold=1, orders_lost=1, acknowledged_lost=1, revenue_error={"EUR": 200}
    )


def test_an_order_without_a_record_is_lost_whether_it_was_told_or_not() -> None:
    shop = replace(RIGHT, ledger={"MUG": MUGS[:2], "TEE": SHIRTS})
    assert verdict(shop) == Verdict(orders_lost=1, acknowledged_lost=1)
    assert verdict(shop, told=(*MUGS[:2], *SHIRTS)) == Verdict(orders_lost=1)


def test_an_empty_shop_has_lost_everything() -> None:
    shop = Shop(stock=OPENING, ledger={}, till={})
    assert verdict(shop, told=()) == Verdict(orders_lost=5)
    assert verdict(Shop({}, {}, {}), told=()).stock_error_units == 13


def test_an_order_that_stands_twice_was_applied_twice() -> None:
    again = entry(TEES, True, "another")
    shop = replace(RIGHT, stock={"MUG": 0, "TEE": 1}, ledger={"MUG": MUGS, "TEE": (*SHIRTS, again)})
    found = verdict(replace(shop, till={"EUR": 1100, "JPY": 1200}), (*MUGS, *SHIRTS, again))
    assert found == Verdict(applied_twice=1, revenue_error={"EUR": 400}, stock_error_units=4)


def test_the_same_record_twice_was_applied_twice() -> None:
    shop = replace(RIGHT, ledger={"MUG": MUGS, "TEE": (*SHIRTS, SHIRTS[0])})
    assert verdict(shop).applied_twice == 1


def test_twice_is_seen_even_if_only_one_is_left_in_the_ledger() -> None:
    assert verdict(told=(*MUGS, *SHIRTS, entry(TEES, True, "overwritten"))).applied_twice == 1


@pytest.mark.parametrize(
    ("till", "error"),
    [
        ({"EUR": 701, "JPY": 1200}, {"EUR": 1}),
        ({"EUR": 699, "JPY": 1200}, {"EUR": -1}),
        ({"EUR": 700}, {"JPY": -1200}),
        ({"EUR": 700, "JPY": 1200, "USD": 5}, {"USD": 5}),
        ({"EUR": 701, "JPY": 1199}, {"EUR": 1, "JPY": -1}),
    ],
)
def test_money_is_counted_by_currency_to_the_smallest_unit(till: dict[str, int], error: dict[str, int]) -> None:
    assert verdict(replace(RIGHT, till=till)) == Verdict(revenue_error=error)


def test_stock_that_does_not_follow_from_the_sales_is_off() -> None:
    assert verdict(replace(RIGHT, stock={"MUG": 1, "TEE": 4})) == Verdict(stock_error_units=2)
    assert verdict(replace(RIGHT, stock={"MUG": 0, "TEE": 5, "CUP": 1})) == Verdict(stock_error_units=1)


def test_a_refusal_with_enough_in_stock_is_a_wrong_decision() -> None:
    page = (entry(TEES, False), entry(YEN, True))
    shop = replace(RIGHT, stock={"MUG": 0, "TEE": 9}, ledger={"MUG": MUGS, "TEE": page}, till={"EUR": 300, "JPY": 1200})
    assert verdict(shop, (*MUGS, *page)) == Verdict(wrong_decisions=1)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SHIRTS[0], order_id="99"),
        replace(SHIRTS[0], quantity=3, total_minor=300),
        replace(SHIRTS[0], total_minor=401),
        replace(SHIRTS[0], article="MUG"),
    ],
)
def test_a_record_that_the_file_does_not_bear_out_is_foreign(wrong: Entry) -> None:
    shop = replace(RIGHT, ledger={"MUG": MUGS, "TEE": (wrong, SHIRTS[1])})
    found = verdict(shop, (*MUGS, SHIRTS[1]))
    assert found.foreign_records >= 1
    assert not found.clean


def test_of_a_contradicted_order_either_form_may_count_but_not_both() -> None:
    other = order("4", "TEE", 5)
    truth = truth_of((*ORDERS, other), OPENING)
    assert len(truth.orders) == 5
    page = (entry(other, True), SHIRTS[1])
    shop = replace(RIGHT, stock={"MUG": 0, "TEE": 4}, ledger={"MUG": MUGS, "TEE": page}, till={"EUR": 800, "JPY": 1200})
    assert verdict(shop, (*MUGS, *page), truth).clean
    assert verdict(RIGHT, truth=truth).clean
    assert verdict(shop, (*MUGS, *page, entry(TEES, True, "too")), truth).applied_twice == 1


def test_what_can_be_sold_is_bounded_by_stock_and_by_demand() -> None:
    assert TRUTH.wanted_units == 9
    assert TRUTH.sellable_units == 3 + 5
