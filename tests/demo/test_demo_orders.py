"""What the export's parser takes, what it refuses, and that one bad row never costs another one."""

import runpy
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from interlock.demo.main import DATA
from interlock.demo.orders import COLUMNS, Export, Order, OrdersFileError, Reason, read_export, read_stock
from interlock.demo.truth import truth_of

ROOT = Path(__file__).resolve().parents[2]
HEADER = ",".join(COLUMNS)
ARTICLES = {"MUG", "TEE", "抹茶-100G"}
GOOD = {
    "Order ID": "#1",
    "Created at": "2025-11-28 09:15:02 +0100",
    "Customer name": "Anna Schröder",
    "Email": "anna@example.com",
    "SKU": "MUG",
    "Quantity": "2",
    "Unit price": "EUR 12.50",
    "Shipping country": "DE",
    "Tags": "",
    "Notes": "",
}


def row(**changes: str) -> str:
    """A good row, with some columns (underscores for blanks) replaced by text that is quoted if it must be."""
    cells = {**GOOD, **{name.replace("_", " "): text for name, text in changes.items()}}
    return ",".join('"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text for text in cells.values())


def export(*rows: str, header: str = HEADER) -> Export:
    return read_export("\n".join((header, *rows, "")).encode(), ARTICLES)


def one(**changes: str) -> Order:
    (order,) = export(row(**changes)).orders
    return order


def refused(text: str | bytes) -> Reason:
    body = text.encode() if isinstance(text, str) else text
    read = read_export(HEADER.encode() + b"\n" + body + b"\n" + row(Order_ID="#next").encode(), ARTICLES)
    assert [order.order_id for order in read.orders] == ["#next"], "the row behind it is taken"
    (refusal,) = read.refusals
    assert refusal.line == 2
    return refusal.reason


def test_a_good_row_is_an_order_in_whole_cents_and_utc() -> None:
    order = one()
    assert (order.line, order.order_id, order.article, order.quantity) == (2, "#1", "MUG", 2)
    assert (order.currency, order.unit_minor, order.total_minor) == ("EUR", 1250, 2500)
    assert order.created_at == "2025-11-28T08:15:02+00:00"


@pytest.mark.parametrize(
    ("price", "currency", "minor"),
    [
        ("EUR 12.50", "EUR", 1250),
        ("12.50 EUR", "EUR", 1250),
        ("EUR 12.5", "EUR", 1250),
        ("EUR 12", "EUR", 1200),
        ("EUR 0.07", "EUR", 7),
        ("JPY 1200", "JPY", 1200),
        ("KWD 1.234", "KWD", 1234),
        ("EUR 999999999.99", "EUR", 99999999999),
    ],
)
def test_prices_are_exact(price: str, currency: str, minor: int) -> None:
    assert (one(Unit_price=price).currency, one(Unit_price=price).unit_minor) == (currency, minor)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Quantity": ""}, Reason.BAD_QUANTITY),
        ({"Quantity": "two"}, Reason.BAD_QUANTITY),
        ({"Quantity": "-1"}, Reason.BAD_QUANTITY),
        ({"Quantity": "+1"}, Reason.BAD_QUANTITY),
        ({"Quantity": "0"}, Reason.BAD_QUANTITY),
        ({"Quantity": "1.0"}, Reason.BAD_QUANTITY),
        ({"Quantity": "1_000"}, Reason.BAD_QUANTITY),
        ({"Quantity": "1e3"}, Reason.BAD_QUANTITY),
        ({"Quantity": "٢"}, Reason.BAD_QUANTITY),
        ({"Quantity": "２"}, Reason.BAD_QUANTITY),
        ({"Quantity": "9" * 5000}, Reason.TOO_LONG),
        ({"Quantity": "9999999"}, Reason.BAD_QUANTITY),
        ({"Unit_price": ""}, Reason.BAD_PRICE),
        ({"Unit_price": "free"}, Reason.BAD_PRICE),
        ({"Unit_price": "12.50"}, Reason.BAD_PRICE),
        ({"Unit_price": "EUR 12,50"}, Reason.BAD_PRICE),
        ({"Unit_price": "EUR 1,299.00"}, Reason.BAD_PRICE),
        ({"Unit_price": "EUR -1.00"}, Reason.BAD_PRICE),
        ({"Unit_price": "EUR nan"}, Reason.BAD_PRICE),
        ({"Unit_price": "EUR 1e3"}, Reason.BAD_PRICE),
        ({"Unit_price": "EUR 12.505"}, Reason.BAD_PRICE),
        ({"Unit_price": "JPY 1200.5"}, Reason.BAD_PRICE),
        ({"Unit_price": "XXX 1.00"}, Reason.BAD_PRICE),
        ({"Created_at": ""}, Reason.BAD_MOMENT),
        ({"Created_at": "2025-11-28 09:15:02"}, Reason.BAD_MOMENT),
        ({"Created_at": "28/11/2025 9:15"}, Reason.BAD_MOMENT),
        ({"Created_at": "2025-02-30 09:15:02 +0100"}, Reason.BAD_MOMENT),
        ({"Created_at": "0001-01-01 00:00:00 +1400"}, Reason.BAD_MOMENT),
        ({"Order_ID": " "}, Reason.MISSING_FIELD),
        ({"Order_ID": "#" * 101}, Reason.TOO_LONG),
        ({"Customer_name": ""}, Reason.MISSING_FIELD),
        ({"Email": "anna"}, Reason.BAD_EMAIL),
        ({"Email": "a b@c.d"}, Reason.BAD_EMAIL),
        ({"SKU": ""}, Reason.MISSING_FIELD),
        ({"SKU": "mug"}, Reason.UNKNOWN_ARTICLE),
        ({"SKU": "МUG"}, Reason.UNKNOWN_ARTICLE),
        ({"Shipping_country": "Germany"}, Reason.BAD_COUNTRY),
        ({"Shipping_country": ""}, Reason.BAD_COUNTRY),
    ],
)
def test_a_field_that_is_not_as_it_should_be_refuses_its_row(changes: dict[str, str], reason: Reason) -> None:
    assert refused(row(**changes)) is reason


def test_shapes_that_are_no_row_are_refused_alone() -> None:
    assert refused(row() + ",oops") is Reason.WRONG_COLUMNS
    assert refused(row().rsplit(",", 3)[0]) is Reason.WRONG_COLUMNS
    assert refused("not a row at all") is Reason.WRONG_COLUMNS
    assert refused(row().encode("latin-1")) is Reason.BAD_ENCODING
    assert refused(row(Notes="x" * 2001)) is Reason.TOO_LONG
    assert refused(row(Notes="x" * 200_000)) in (Reason.TOO_LONG, Reason.BROKEN_QUOTING)


@pytest.mark.parametrize("column", range(len(COLUMNS)))
def test_a_quote_that_is_never_closed_takes_only_its_own_row(column: int) -> None:
    cells = row().split(",")
    cells[column] = '"' + cells[column]
    assert refused(",".join(cells)) is Reason.BROKEN_QUOTING


def test_a_quote_that_closes_in_the_next_row_does_not_swallow_it() -> None:
    first = row(Order_ID="#1").replace("Anna Schröder", '"Anna Schröder')
    second = row(Order_ID="#2").replace("Anna Schröder", '"Anna" Schröder')
    read = export(first, second, row(Order_ID="#3"))
    assert [refusal.line for refusal in read.refusals] == [2]
    assert [(order.order_id, order.customer) for order in read.orders] == [
        ("#2", "Anna Schröder"),
        ("#3", "Anna Schröder"),
    ]


def test_quotes_that_csv_still_reads_are_read() -> None:
    assert one(Customer_name='Ann "Bea" Lee').customer == 'Ann "Bea" Lee'
    (order,) = export(row().replace("Anna Schröder", 'Ann "Bea" Lee')).orders
    assert order.customer == 'Ann "Bea" Lee'


def test_notes_may_go_over_lines_and_lines_are_counted_as_an_editor_does() -> None:
    read = export(row(Notes="one\ntwo\n\nthree"), row(Order_ID="#2", Quantity="x"), row(Order_ID="#3"))
    assert [order.notes for order in read.orders] == ["one two three", ""]
    assert [(refusal.line, refusal.reason) for refusal in read.refusals] == [(6, Reason.BAD_QUANTITY)]
    assert read.orders[1].line == 7
    assert read.rows == 3


def test_a_line_break_in_another_field_is_broken_quoting() -> None:
    read = export(row(Customer_name="Anna\nSchröder"))
    assert not read.orders
    assert read.refusals[0].reason is Reason.BROKEN_QUOTING


def test_joined_exports_bring_headers_and_byte_order_marks_of_their_own() -> None:
    other = ",".join(reversed(COLUMNS))
    turned = ",".join(reversed(row(Order_ID="#2").split(",")))
    read = read_export(f"\ufeff{HEADER}\r\n{row()}\r\n\r\n\ufeff{other}\r\n{turned}\r\n".encode(), ARTICLES)
    assert [order.order_id for order in read.orders] == ["#1", "#2"]
    assert read.orders[0].payload[1:] == read.orders[1].payload[1:]
    assert not read.refusals


def test_columns_that_we_do_not_know_are_passed_over() -> None:
    read = export(row() + ",paid", header=HEADER + ",Financial status")
    assert len(read.orders) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"Order_ID": " #1 "},
        {"Quantity": " 2"},
        {"Unit_price": "12.50 EUR"},
        {"Unit_price": "EUR 12.5"},
        {"Created_at": "2025-11-28T08:15:02Z"},
        {"Created_at": "2025-11-28 03:15:02 -0500"},
        {"Customer_name": "Anna\u00a0 " + unicodedata.normalize("NFD", "Schröder")},
        {"Shipping_country": "de"},
    ],
)
def test_another_form_of_the_same_order_is_the_same_order(changes: dict[str, str]) -> None:
    read = export(row(), row(**changes))
    assert read.orders[0].payload == read.orders[1].payload
    assert len(truth_of(read.orders, {"MUG": 1}).orders["#1"]) == 1


def test_tags_have_no_order() -> None:
    assert one(Tags="gift, express").tags == one(Tags=" express,gift ,gift").tags == ("express", "gift")


@pytest.mark.parametrize(
    "changes", [{"Quantity": "3"}, {"Unit_price": "USD 12.50"}, {"SKU": "TEE"}, {"Customer_name": "Anne Schröder"}]
)
def test_another_content_under_the_same_id_is_kept_apart(changes: dict[str, str]) -> None:
    read = export(row(), row(**changes), row())
    assert len(read.orders) == 3
    assert len(truth_of(read.orders, {"MUG": 1, "TEE": 1}).orders["#1"]) == 2


@pytest.mark.parametrize(
    "name", ["محمد", "\u200fדוד\u200f", "अनन्या", "张伟", "김민준", "สมชาย", "👩‍👩‍👧‍👦", "None", "=SUM(A1)", "Z̸͉̈a"]
)
def test_names_come_through_as_they_are(name: str) -> None:
    assert one(Customer_name=name).customer == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"a,b,c\n", row().encode(), b"\xff\xfeO\x00r\x00d\x00e\x00r\x00"])
def test_a_file_without_a_header_is_refused_whole(content: bytes) -> None:
    with pytest.raises(OrdersFileError, match=r"line 1|empty"):
        read_export(content, ARTICLES)


def test_stock_is_read_or_refused_whole() -> None:
    assert read_stock('\ufeffSKU,Article,On hand\r\nMUG,"Mug, blue",3\r\n抹茶-100G,抹茶,0\r\n'.encode()) == {
        "MUG": 3,
        "抹茶-100G": 0,
    }
    for rows in ("", "MUG,Mug,-1", "MUG,Mug,", "MUG,Mug", "MUG,Mug,1\nMUG,Mug,1", ",Mug,1", 'MUG,"Mug,1'):
        with pytest.raises(OrdersFileError):
            read_stock(f"SKU,Article,On hand\n{rows}\n".encode())
    with pytest.raises(OrdersFileError):
        read_stock(b"SKU,Article\nMUG,Mug\n")


def test_the_script_makes_the_kept_files_to_the_byte() -> None:
    made = runpy.run_path(str(ROOT / "examples" / "make_orders.py"))
    for name in ("orders", "stock"):
        content = made[f"{name}_csv"]()
        assert (ROOT / "examples" / f"{name}.csv").read_bytes() == content
        assert (DATA / f"{name}.csv").read_bytes() == content, "the demo ships the same file"


def test_the_kept_file_is_what_the_script_says_it_is() -> None:
    stock = read_stock((DATA / "stock.csv").read_bytes())
    read = read_export((DATA / "orders.csv").read_bytes(), stock)
    truth = truth_of(read.orders, stock)
    assert len(stock) == 40
    assert (read.rows, len(read.orders), len(read.refusals)) == (2000, 1566 + 240 + 12, 54 + 128)
    assert len(truth.orders) == 1566
    assert sum(len(variants) > 1 for variants in truth.orders.values()) == 12
    reasons = Counter(refusal.reason for refusal in read.refusals)
    assert reasons[Reason.UNKNOWN_ARTICLE] == 54
    assert len(reasons) >= 8
    assert truth.wanted_units > sum(stock.values()) > truth.sellable_units
    scripts = {unicodedata.name(letter, "?").split()[0] for order in read.orders for letter in order.customer}
    wanted = {"ARABIC", "DEVANAGARI", "CJK", "HANGUL", "CYRILLIC", "GREEK", "HEBREW", "THAI", "TAMIL", "ETHIOPIC"}
    assert wanted <= scripts
