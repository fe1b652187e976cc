"""Make ``orders.csv`` and ``stock.csv``, the input of ``interlock demo``: a shop's export on a busy day, with faults.

    python examples/make_orders.py            writes both files here and, as package data, into the demo

The files are kept in the repository, and a test runs this script and compares bytes. So nothing here may depend on the
time, the machine or the version of Python: only ``Random.random()``, whose sequence Python promises to keep, is used.

What is in ``orders.csv`` (2,000 rows; the header is not a row, and a row may go over several lines):

- three exports, one after the other as ``cat`` joins them: each with a byte order mark and a header of its own, the
  second and third with other column orders; CRLF line ends;
- 1,566 distinct good orders of 40 articles; six hot articles get half of them, and more is wanted than is there;
- 240 deliveries that came again, because the sender got no answer: 120 the same to the byte, 120 written otherwise
  (blanks, the price's form, another zone for the same moment, decomposed letters, tags in another order) but meaning
  the same; three quarters of them within a dozen rows, the rest anywhere behind;
- 12 rows that use a known order id for something else: the one that is processed first counts, the other is refused;
- 54 orders of articles that nobody has, and 128 rows that are malformed in 16 ways; 16 of them are sent again mended.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import TypeVar

T = TypeVar("T")

SEED = 20251128
ROWS = 2000
DISTINCT, AGAIN_SAME, AGAIN_OTHER_FORM, CONTRADICTIONS, UNKNOWN, MALFORMED, MENDED = 1550, 120, 120, 12, 54, 128, 16

ORDER, AT, NAME, EMAIL, SKU = "Order ID", "Created at", "Customer name", "Email", "SKU"
QUANTITY, PRICE, COUNTRY, TAGS, NOTES = "Quantity", "Unit price", "Shipping country", "Tags", "Notes"
COLUMN_ORDERS = (
    (ORDER, AT, NAME, EMAIL, SKU, QUANTITY, PRICE, COUNTRY, TAGS, NOTES),
    (ORDER, EMAIL, NAME, AT, COUNTRY, SKU, PRICE, QUANTITY, NOTES, TAGS),
    (AT, ORDER, SKU, QUANTITY, PRICE, NAME, EMAIL, COUNTRY, TAGS, NOTES),
)

# sku, name, opening stock, weight among the orders, price in euro cents
ARTICLES: tuple[tuple[str, str, int, int, int], ...] = (
    ("TEE-BLK-M", "T-shirt, black, M", 180, 90, 1990),
    ("TEE-BLK-L", "T-shirt, black, L", 150, 85, 1990),
    ("MUG-BLUE", "Mug “Ozean”, blue", 140, 80, 1250),
    ("CONSOLE-X", "Game console X", 60, 85, 49900),
    ("SNEAKER-42", "Sneaker, 42", 90, 80, 8999),
    ("抹茶-100G", "抹茶 100 g", 120, 80, 1680),
    ("TEE-WHT-S", "T-shirt, white, S", 80, 20, 1990),
    ("TEE-WHT-M", "T-shirt, white, M", 90, 20, 1990),
    ("TEE-WHT-L", "T-shirt, white, L", 70, 20, 1990),
    ("MUG-RED", "Mug “Rote Grütze”, red", 60, 18, 1250),
    ("MUG-СЕВЕР", "Кружка «Север»", 45, 16, 1390),
    ("CAP-GRN", "Cap, green", 40, 16, 1500),
    ("CAP-NVY", "Cap, navy", 40, 16, 1500),
    ("SOCK-36-40", "Socks 36–40, three pairs", 110, 18, 1199),
    ("SOCK-41-46", "Socks 41–46, three pairs", 110, 18, 1199),
    ("BAG-TOTE", "Tote bag", 75, 16, 990),
    ("BAG-BACK-20L", "Backpack 20 l", 35, 14, 6990),
    ("BOTTLE-500", "Bottle 500 ml", 65, 14, 2450),
    ("BOTTLE-750", "Bottle 750 ml", 55, 14, 2750),
    ("NOTEBOOK-A5", "Notebook A5, dotted", 95, 14, 1495),
    ("NOTEBOOK-A4", "Notebook A4, ruled", 60, 12, 1795),
    ("PEN-FINE", "Pen, fine", 200, 12, 350),
    ("PEN-BROAD", "Pen, broad", 150, 12, 350),
    ("LAMP-DESK", "Desk lamp", 18, 12, 5400),
    ("LAMP-FLOOR", "Floor lamp", 9, 10, 12900),
    ("CHAIR-OAK", "Chair, oak", 12, 10, 18900),
    ("TABLE-OAK", "Table, oak", 3, 9, 64900),
    ("POSTER-A2", "Poster A2 «Ελλάδα»", 50, 12, 1600),
    ("POSTER-A1", "Poster A1 «Ελλάδα»", 30, 10, 2400),
    ("CANDLE-CITRUS", "Candle, citrus", 70, 12, 1290),
    ("CANDLE-PINE", "Candle, pine", 70, 12, 1290),
    ("COFFEE-250G", "Coffee 250 g", 160, 14, 890),
    ("COFFEE-1KG", "Coffee 1 kg", 60, 12, 2890),
    ("TEA-ASSAM", "Assam tea, असम चाय", 85, 12, 760),
    ("HONEY-500G", "Honey 500 g, דבש", 55, 12, 920),
    ("SOAP-OLIVE", "Olive soap, صابون زيت الزيتون", 90, 12, 540),
    ("KEYRING", "Keyring", 25, 10, 450),
    ("GIFTCARD-50", "Gift card", 1, 9, 5000),
    ("VINYL-LP-07", "Limited LP no. 7", 0, 9, 3200),
    ("STICKER-🌻", "Sunflower stickers", 300, 12, 199),
)

UNKNOWN_SKUS = ("TEE-BLK-XXXL", "tee-blk-m", "CONSOLE-Y", "MUG BLUE", "SKU-0", "抹茶-1000G", "0", "NULL", "MUG-CEBEP")
"""Nearly right ones too: other case, a blank for the hyphen, Latin letters that look like the Cyrillic ones."""

PEOPLE: tuple[tuple[str, str], ...] = (
    ("Anna Schröder", "DE"),
    ("Jürgen Groß", "DE"),
    ("Zoë Lindqvist", "SE"),
    ("Siân O'Brien", "GB"),
    ("Dr. Bob Smith, Jr.", "US"),
    ('Ann "Bea" Lee', "US"),
    ("Nguyễn Thị Minh Khai", "VN"),
    ("İbrahim Işık", "TR"),
    ("Łukasz Żółć", "PL"),
    ("Renée Null", "FR"),
    ("None", "US"),
    ("true", "GB"),
    ("=SUM(A1)", "CH"),
    ("محمد بن عبد الله", "EG"),
    ("فاطمة الزهراء", "MA"),
    ("ليلى حسن", "AE"),
    ("\u200fדוד כהן\u200f", "IL"),
    ("שָׂרָה לֵוִי", "IL"),
    ("अनन्या शर्मा", "IN"),
    ("राजेश कुमार", "IN"),
    ("张伟", "CN"),
    ("王小明", "CN"),
    ("陳怡君", "TW"),
    ("山田 太郎", "JP"),
    ("佐藤 さくら", "JP"),
    ("김민준", "KR"),
    ("이서연", "KR"),
    ("Иван Петров", "KZ"),
    ("Ольга Ковальчук", "UA"),
    ("Γιώργος Παπαδόπουλος", "GR"),
    ("Ελένη Ιωάννου", "CY"),
    ("สมชาย ใจดี", "TH"),
    ("น้ำฝน ศรีสุข", "TH"),
    ("Ame\u0301lie Lefe\u0300vre", "FR"),
    ("Ǻsmund Ø̣stby", "NO"),
    ("Sunny 🌻 Flores", "MX"),
    ("👩‍👩‍👧‍👦 Rainbow", "CA"),
    ("🇺🇦 Taras", "UA"),
    ("Z̸͉̈a̵̙͑l̴͖̈g̷̭̈o̸̜͒", "US"),
    ("ناصر (Nasser) 3", "SA"),
    ("Բագրատ Սարգսյան", "AM"),
    ("ნინო ბერიძე", "GE"),
    ("தமிழ்ச்செல்வன்", "LK"),
    ("አበበ በቀለ", "ET"),
    ("Māori Te Ao", "NZ"),
    ("Ng", "HK"),
    ("Wolfeschlegel" * 12, "US"),
    ("𝓕𝓪𝓷𝓬𝔂 𝓕𝓸𝓷𝓽", "BR"),
    ("O\u00a0Neill\u2003Pat", "IE"),
    ("؜يوسف", "JO"),
)

MAILBOXES = ("anna", "info", "k.lee", "büro", "用户", "x+shop")
TAG_NAMES = ("gift", "express", "wholesale", "first order", "fragile", "repeat")
NOTE_TEXTS = (
    *("",) * 20,
    "Please ring twice.",
    "Leave it with the neighbour, ground floor",
    'Card: "Happy birthday!"',
    "اتركه عند الباب",
    "ドアの前に置いてください",
    "Bitte nicht knicken; danke!",
    "First line\r\nSecond line",
    "🎁",
)
ZONES = (1, 1, 1, 0, -5, 9, 2, -8, 5.5)

Row = dict[str, str]


class Dice:
    """What the script needs of chance, from ``random()`` alone."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, stop: int) -> int:
        return int(self._random.random() * stop)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[int]) -> T:
        point = self._random.random() * sum(weights)
        for item, weight in zip(items, weights, strict=True):
            point -= weight
            if point < 0:
                return item
        return items[-1]

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()


def money(cents: int, dice: Dice) -> str:
    """A unit price in one of three currencies; the yen has no hundredths."""
    currency = dice.weighted(("EUR", "USD", "JPY"), (6, 3, 1))
    return f"JPY {cents * 16 // 10}" if currency == "JPY" else f"{currency} {cents // 100}.{cents % 100:02d}"


def moment(at: datetime, hours: float) -> str:
    """A time as shops write it: ``2025-11-28 09:15:02 +0100``."""
    return at.astimezone(timezone(timedelta(hours=hours))).strftime("%Y-%m-%d %H:%M:%S %z")


def good_order(number: int, dice: Dice) -> Row:
    sku, _, _, _, cents = dice.weighted(ARTICLES, [article[3] for article in ARTICLES])
    name, country = dice.pick(PEOPLE)
    at = datetime(2025, 11, 28, tzinfo=UTC) + timedelta(seconds=number * 37 + dice.below(30))
    tags = sorted({dice.pick(TAG_NAMES) for _ in range(dice.below(4))})
    return {
        ORDER: f"#{10000 + number}",
        AT: moment(at, dice.pick(ZONES)),
        NAME: name,
        EMAIL: f"{dice.pick(MAILBOXES)}{number}@example.{dice.pick(('com', 'org', 'net'))}",
        SKU: sku,
        QUANTITY: str(dice.weighted((1, 2, 3, 5, 12, 500), (70, 18, 7, 3, 2, 1))),
        PRICE: money(cents, dice),
        COUNTRY: country,
        TAGS: ", ".join(tags),
        NOTES: dice.pick(NOTE_TEXTS),
    }


def other_form(row: Row, dice: Dice) -> Row:
    """The same order, written otherwise; at least one field differs as text."""
    again = dict(row)
    currency, _, amount = row[PRICE].partition(" ")
    at = datetime.strptime(row[AT], "%Y-%m-%d %H:%M:%S %z")
    name = row[NAME]
    forms: tuple[Callable[[], None], ...] = (
        lambda: again.update({PRICE: f"{amount} {currency}"}),
        lambda: again.update({AT: at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}),
        lambda: again.update({QUANTITY: f" {row[QUANTITY]} ", SKU: f"{row[SKU]} "}),
        lambda: again.update({NAME: "  " + unicodedata.normalize("NFD", name).replace(" ", "  ")}),
        lambda: again.update({TAGS: ",".join(reversed(row[TAGS].split(", "))) + " ", EMAIL: row[EMAIL] + "\t"}),
        lambda: again.update({ORDER: row[ORDER] + " ", COUNTRY: row[COUNTRY].lower()}),
    )
    for _ in range(1 + dice.below(3)):
        dice.pick(forms)()
    return again


def contradiction(row: Row, number: int) -> Row:
    """The id of a known order on something else: another quantity, or another price."""
    again = dict(row)
    if number % 2:
        again[QUANTITY] = str(int(row[QUANTITY]) + 1)
    else:
        again[PRICE] = "EUR 0.01"
    return again


def _with(column: str, text: str) -> Callable[[Row], Row]:
    return lambda row: {**row, column: text}


FIELD_FAULTS: tuple[Callable[[Row], Row], ...] = (
    _with(QUANTITY, ""),
    _with(QUANTITY, "two"),
    _with(QUANTITY, "-3"),
    _with(QUANTITY, "0"),
    _with(QUANTITY, "1.5"),
    _with(QUANTITY, "٢"),
    _with(PRICE, "EUR 19,90"),
    _with(PRICE, "free"),
    _with(PRICE, "BTC 0.1"),
    _with(AT, "28/11/2025 9:15"),
    _with(AT, "2025-11-28 09:15:02"),
    _with(SKU, ""),
    _with(COUNTRY, "Germany"),
)


def cut_off(line: str) -> str:
    """The end of the line is missing, as when a disk was full."""
    return line[: line.index(",", len(line) // 2)]


def one_too_many(line: str) -> str:
    """A comma inside a field that nobody quoted."""
    return line + ",oops"


def open_quote(line: str) -> str:
    """A quote that is opened and never closed: a careless parser takes in the rows behind it."""
    at = line.index(",")
    return f'{line[:at]},"{line[at + 1 :].replace(chr(34), "")}'


LINE_FAULTS: tuple[Callable[[str], str], ...] = (cut_off, one_too_many, open_quote)


def quoted(field: str) -> str:
    """A field as CSV has it; quoted only where it must be."""
    return '"' + field.replace('"', '""') + '"' if any(sign in field for sign in ',"\r\n') else field


def written(row: Row, columns: Sequence[str]) -> str:
    return ",".join(quoted(row[column]) for column in columns)


class Placed:
    """Rows at places along the day; sorted at the end, so that a delivery that came again stands where it came."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, Row, Callable[[str], str] | None]] = []

    def put(self, place: float, row: Row, fault: Callable[[str], str] | None = None) -> None:
        self.rows.append((place, len(self.rows), row, fault))


def behind(place: float, dice: Dice) -> float:
    """Where a second delivery stands: mostly close, so that both are worked on at once."""
    near = dice.below(4) > 0
    return place + (dice.between(0.3, 9) if near else dice.between(30, DISTINCT - place + 60))


def place_rows(dice: Dice) -> Placed:
    placed = Placed()
    numbers = iter(range(1, ROWS + 1))
    goods = []
    for _ in range(DISTINCT):
        number = next(numbers)
        goods.append((float(number), good_order(number, dice)))
    for place, row in goods:
        placed.put(place, row)
    for _ in range(AGAIN_SAME):
        place, row = dice.pick(goods)
        placed.put(behind(place, dice), dict(row))
    for _ in range(AGAIN_OTHER_FORM):
        place, row = dice.pick(goods)
        placed.put(behind(place, dice), other_form(row, dice))
    for number in range(CONTRADICTIONS):
        place, row = goods[(number * 127 + 11) % DISTINCT]
        placed.put(behind(place, dice), contradiction(row, number))
    for _ in range(UNKNOWN):
        place = dice.between(1, DISTINCT)
        placed.put(place, {**good_order(next(numbers), dice), SKU: dice.pick(UNKNOWN_SKUS)})
    for index in range(MALFORMED):
        place = dice.between(1, DISTINCT)
        row = {**good_order(next(numbers), dice), NOTES: ""}
        kind = index % (len(FIELD_FAULTS) + len(LINE_FAULTS))
        if kind < len(FIELD_FAULTS):
            placed.put(place, FIELD_FAULTS[kind](row))
        else:
            placed.put(place, row, LINE_FAULTS[kind - len(FIELD_FAULTS)])
        if index < MENDED:
            placed.put(place + dice.between(5, 40), row)
    return placed


def orders_csv() -> bytes:
    """The whole file."""
    rows = sorted(place_rows(Dice(SEED)).rows, key=lambda item: item[:2])
    if len(rows) != ROWS:
        raise SystemExit(f"{len(rows)} rows instead of {ROWS}")
    starts = {0: COLUMN_ORDERS[0], 700: COLUMN_ORDERS[1], 1400: COLUMN_ORDERS[2]}
    lines = []
    columns: Sequence[str] = COLUMN_ORDERS[0]
    for index, (_, _, row, fault) in enumerate(rows):
        if index in starts:
            columns = starts[index]
            lines.append("\ufeff" + ",".join(columns))
        line = written(row, columns)
        lines.append(fault(line) if fault else line)
    return ("\r\n".join(lines) + "\r\n").encode()


def stock_csv() -> bytes:
    """Opening stock of each article."""
    lines = ["SKU,Article,On hand"]
    lines += [f"{quoted(sku)},{quoted(name)},{on_hand}" for sku, name, on_hand, _, _ in ARTICLES]
    return ("\ufeff" + "\r\n".join(lines) + "\r\n").encode()


def main() -> None:
    """Write both files to both places."""
    here = Path(__file__).resolve().parent
    for folder in (here, here.parent / "src" / "interlock" / "demo" / "data"):
        (folder / "orders.csv").write_bytes(orders_csv())
        (folder / "stock.csv").write_bytes(stock_csv())


if __name__ == "__main__":
    main()
