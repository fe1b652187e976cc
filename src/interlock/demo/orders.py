"""What the shop's export says: rows become orders, or typed refusals with the line they stand on.

Pure: bytes in, values out; no store, no files. The rules:

- **A row is refused, never repaired.** Blanks around a field, the letters' composition (NFC), the price's form and
  the zone of a moment are form and are normalised; anything else that is not as it should be is a `Refusal`.
- **An order is what its id names.** Rows with one id and equal payloads (after normalising) are deliveries of one
  order, and count once. A row with a known id and another payload contradicts it: whichever is processed first
  counts, so both stand in `Export.orders` and whoever processes them has to refuse the second.
- **One bad row takes no other with it.** A quote that is opened and never closed ends with its line; a field over
  several lines is believed only in the notes, and only if the whole row is quoted by the book.
- **Exports come joined.** A line that holds all column names, in whatever order, is a header for the rows below it.
"""

from __future__ import annotations

import csv
import enum
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final

COLUMNS: Final = (
    *("Order ID", "Created at", "Customer name", "Email", "SKU"),
    *("Quantity", "Unit price", "Shipping country", "Tags", "Notes"),
)
STOCK_COLUMNS: Final = ("SKU", "On hand")
MINOR_DIGITS: Final[Mapping[str, int]] = {"EUR": 2, "USD": 2, "GBP": 2, "CHF": 2, "JPY": 0, "KRW": 0, "KWD": 3}
"""The currencies that are known, with the decimal places of each."""

MAX_LINES_PER_ROW: Final = 20
MAX_FIELD_CHARACTERS: Final = 2000
MAX_ID_CHARACTERS: Final = 100

_QUANTITY = re.compile(r"[0-9]{1,6}", re.ASCII)
_PRICE = re.compile(r"(?P<before>[A-Z]{3}) (?P<amount>\S+)|(?P<bare>\S+) (?P<behind>[A-Z]{3})", re.ASCII)
_AMOUNT = re.compile(r"(?P<whole>[0-9]{1,9})(?:\.(?P<fraction>[0-9]{1,3}))?", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")


class OrdersFileError(ValueError):
    """The file as a whole is not what it should be: no header, a stock figure that is no number."""


class Reason(enum.Enum):
    """Why a row was refused."""

    WRONG_COLUMNS = "wrong number of columns"
    BROKEN_QUOTING = "broken quoting"
    BAD_ENCODING = "not UTF-8"
    TOO_LONG = "field too long"
    MISSING_FIELD = "empty field"
    BAD_MOMENT = "no time with a zone"
    BAD_EMAIL = "bad e-mail address"
    BAD_QUANTITY = "bad quantity"
    BAD_PRICE = "bad price"
    BAD_COUNTRY = "bad country"
    UNKNOWN_ARTICLE = "unknown article"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that is no order: the line it starts on (the first is 1), why, and the text at fault."""

    line: int
    reason: Reason
    found: str


@dataclass(frozen=True, slots=True)
class Order:
    """One delivery of an order. ``unit_minor`` is the unit price in the currency's smallest unit; ``created_at`` is
    UTC."""

    line: int
    order_id: str
    created_at: str
    customer: str
    email: str
    article: str
    quantity: int
    currency: str
    unit_minor: int
    country: str
    tags: tuple[str, ...]
    notes: str

    @property
    def total_minor(self) -> int:
        """Price of the whole order in the currency's smallest unit."""
        return self.quantity * self.unit_minor

    @property
    def payload(self) -> tuple[object, ...]:
        """Everything that the order says, without where it stood: equal for two deliveries of one order."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.name != "line")


@dataclass(frozen=True, slots=True)
class Export:
    """A whole file: ``orders`` in the file's order, each delivery for itself, and what was refused."""

    rows: int
    orders: tuple[Order, ...]
    refusals: tuple[Refusal, ...]


class _RefusedField(Exception):
    def __init__(self, reason: Reason, found: str) -> None:
        super().__init__(reason, found)
        self.reason = reason
        self.found = found


def read_export(content: bytes, articles: Collection[str]) -> Export:
    """Read a whole export. ``articles`` are the SKUs that exist.

    Raises `OrdersFileError` if the first row is not a header with all of `COLUMNS`."""
    columns: list[str] = []
    orders: list[Order] = []
    refusals: list[Refusal] = []
    for row in _rows(content, len(COLUMNS)):
        if _is_header(row.cells, COLUMNS):
            columns = [cell.strip() for cell in row.cells]
            continue
        if not columns:
            raise OrdersFileError(f"line {row.line} has to be a header with the columns {', '.join(COLUMNS)}")
        try:
            orders.append(_order(row, columns, articles))
        except _RefusedField as refused:
            refusals.append(Refusal(row.line, refused.reason, refused.found[:200]))
    if not columns:
        raise OrdersFileError("the file is empty")
    return Export(len(orders) + len(refusals), tuple(orders), tuple(refusals))


def read_stock(content: bytes) -> dict[str, int]:
    """Opening stock by SKU, from a file with the columns SKU and On hand (others are ignored).

    Raises `OrdersFileError` naming the line: stock is ours, so a mistake in it stops everything."""
    columns: list[str] = []
    stock: dict[str, int] = {}
    for found in _rows(content, len(STOCK_COLUMNS)):
        line, cells = found.line, found.cells
        if not columns:
            if not _is_header(cells, STOCK_COLUMNS):
                raise OrdersFileError(f"line {line} has to be a header with the columns {', '.join(STOCK_COLUMNS)}")
            columns = [cell.strip() for cell in cells]
            continue
        if found.broken or len(cells) != len(columns):
            raise OrdersFileError(f"line {line} has {len(cells)} columns instead of {len(columns)}")
        row = dict(zip(columns, map(_text, cells), strict=True))
        article, on_hand = row["SKU"], row["On hand"]
        if not article or article in stock:
            raise OrdersFileError(f"line {line}: {article!r} is no SKU or stands here for the second time")
        if not _QUANTITY.fullmatch(on_hand):
            raise OrdersFileError(f"line {line}: stock on hand is {on_hand!r}, not a number of units")
        stock[article] = int(on_hand)
    if not stock:
        raise OrdersFileError("there is no article in the stock file")
    return stock


def _is_header(cells: list[str], wanted: tuple[str, ...]) -> bool:
    names = [cell.strip() for cell in cells]
    return set(wanted) <= set(names) and len(set(names)) == len(names)


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    cells: list[str]
    used: int = 1
    broken: bool = False


def _rows(content: bytes, columns: int) -> Iterator[_Row]:
    """Each row with the number of its first line; blank lines are passed over. ``columns``: the least of a row over
    lines."""
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    lines = [line.removeprefix("\ufeff") + "\n" for line in lines]
    at = 0
    while at < len(lines):
        row = _row(lines, at, columns)
        if any(cell.strip() for cell in row.cells):
            yield row
        at += row.used


def _row(lines: list[str], at: int, columns: int) -> _Row:
    """The row that starts at a line: on that line alone, or by the book over several, or broken."""
    alone = _parsed(lines[at : at + 1], strict=False)
    if alone is not None and "\n" not in "".join(alone[0]):
        return _Row(at + 1, alone[0])
    over_lines = _parsed(lines[at : at + MAX_LINES_PER_ROW], strict=True)
    if over_lines is not None:
        cells, used = over_lines
        if len(cells) >= columns and sum("\n" in cell for cell in cells) == 1:
            return _Row(at + 1, cells, used)
    return _Row(at + 1, [lines[at].rstrip("\r\n")], broken=True)


def _parsed(lines: list[str], *, strict: bool) -> tuple[list[str], int] | None:
    reader = csv.reader(iter(lines), strict=strict)
    try:
        return next(reader, []), reader.line_num
    except csv.Error:
        return None


def _order(found: _Row, columns: list[str], articles: Collection[str]) -> Order:
    row = _fields(found, columns)
    currency, unit_minor = _price(row["Unit price"])
    order = Order(
        line=found.line,
        order_id=_identifier(row["Order ID"], "Order ID"),
        created_at=_moment(row["Created at"]),
        customer=_present(row["Customer name"], "Customer name"),
        email=_email(row["Email"]),
        article=_identifier(row["SKU"], "SKU"),
        quantity=_quantity(row["Quantity"]),
        currency=currency,
        unit_minor=unit_minor,
        country=_country(row["Shipping country"]),
        tags=tuple(sorted({tag for text in row["Tags"].split(",") if (tag := text.strip())})),
        notes=row["Notes"],
    )
    if order.article not in articles:
        raise _RefusedField(Reason.UNKNOWN_ARTICLE, order.article)
    return order


def _fields(found: _Row, columns: list[str]) -> dict[str, str]:
    """A row's fields by column, each in its normal form; or why it is no row."""
    cells = found.cells
    for cell in cells:
        if _SURROGATE.search(cell):
            raise _RefusedField(Reason.BAD_ENCODING, cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    if found.broken or any("\n" in cell for at, cell in enumerate(cells) if columns[at : at + 1] != ["Notes"]):
        raise _RefusedField(Reason.BROKEN_QUOTING, "".join(cells))
    if len(cells) != len(columns):
        raise _RefusedField(Reason.WRONG_COLUMNS, f"{len(cells)} instead of {len(columns)}")
    for cell in cells:
        if len(cell) > MAX_FIELD_CHARACTERS:
            raise _RefusedField(Reason.TOO_LONG, cell)
    return dict(zip(columns, map(_text, cells), strict=True))


def _text(cell: str) -> str:
    """A field without what is only form: letters composed, each run of blanks one space, none around."""
    return " ".join(unicodedata.normalize("NFC", cell).split())


def _present(text: str, column: str) -> str:
    if not text:
        raise _RefusedField(Reason.MISSING_FIELD, column)
    return text


def _identifier(text: str, column: str) -> str:
    if len(text) > MAX_ID_CHARACTERS:
        raise _RefusedField(Reason.TOO_LONG, text)
    return _present(text, column)


def _email(text: str) -> str:
    before, at, behind = text.rpartition("@")
    if not (before and at and behind) or " " in text:
        raise _RefusedField(Reason.BAD_EMAIL, text)
    return text


def _quantity(text: str) -> int:
    """ASCII digits only: ``int()`` would also take ``1_000`` and the digits of every script."""
    if not _QUANTITY.fullmatch(text) or int(text) == 0:
        raise _RefusedField(Reason.BAD_QUANTITY, text)
    return int(text)


def _price(text: str) -> tuple[str, int]:
    """``EUR 12.50`` or ``12.50 EUR``; no thousands separators, because ``1,299`` means two things."""
    match = _PRICE.fullmatch(text)
    if match is None:
        raise _RefusedField(Reason.BAD_PRICE, text)
    currency = match["before"] or match["behind"]
    amount = _AMOUNT.fullmatch(match["amount"] or match["bare"])
    digits = MINOR_DIGITS.get(currency)
    if amount is None or digits is None or len(amount["fraction"] or "") > digits:
        raise _RefusedField(Reason.BAD_PRICE, text)
    return currency, int(amount["whole"] + (amount["fraction"] or "").ljust(digits, "0"))


def _moment(text: str) -> str:
    """A time with a zone, as UTC in ISO form; without a zone it is no moment."""
    try:
        at = datetime.fromisoformat(re.sub(r" (?=[+-][0-9:]+$)", "", text))
    except ValueError:
        raise _RefusedField(Reason.BAD_MOMENT, text) from None
    if at.tzinfo is None:
        raise _RefusedField(Reason.BAD_MOMENT, text)
    try:
        return at.astimezone(UTC).isoformat()
    except OverflowError:
        raise _RefusedField(Reason.BAD_MOMENT, text) from None


def _country(text: str) -> str:
    """Two letters, as ISO 3166 has them; exports write them in either case."""
    if not re.fullmatch(r"[A-Za-z]{2}", text):
        raise _RefusedField(Reason.BAD_COUNTRY, text)
    return text.upper()
