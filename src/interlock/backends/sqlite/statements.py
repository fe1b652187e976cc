"""The statements that run for every read and every commit, and how their parameters are bound.

Two things about the driver shape them. Each statement costs some microseconds and gives up the interpreter's lock,
so many rows go through one statement, of a few sizes whose texts stay prepared. And the driver looks for an adapter
for each ``bytes`` and each None that it binds (0.4 to 0.9 us), but not for ``bytearray`` (0.2 us) nor numbers (0.05
us). So keys and values are bound as ``bytearray``, places for keys that are not needed hold the number 0, which no
key equals, and an entry that never expires has 0 in ``expires_at``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from interlock.backends.sqlite.connection import Connection
from interlock.model import Key

Row = tuple[bytes, int, int, bytes | None, float, int | bytes, int]
"""A row of ``current``: the newest version of a key, or its tombstone."""
KEY: Final = 0
POSITION: Final = 1
NONCE: Final = 2
VALUE: Final = 3
EXPIRES_AT: Final = 4
TRAIL: Final = 5
LISTED: Final = 6

UNLISTED: Final = 0
IN_ORDER: Final = 1
LEFT_ORDER: Final = 2
"""What ``listed`` says: never seen by scans and spans; seen; no longer seen, but older spans have to notice it."""

FeedRow = tuple[int, bytes, float, bytes | None]
"""What is asked of a row of ``feed``: position, id, at, record."""
NewFeedRow = tuple[int, bytes, float, bytes | None, int]
"""What is put into a row of ``feed``: that, and the record's marks."""

COLUMNS: Final = "key, position, nonce, value, expires_at, trail, listed"
HEAD: Final = "SELECT position, id FROM feed ORDER BY position DESC LIMIT 1"
HORIZON: Final = "SELECT position, id FROM feed ORDER BY position LIMIT 1"

READ_ONE: Final = (
    "SELECT f.position, f.id, c.position, c.nonce, c.value, c.expires_at, c.trail"
    f" FROM ({HEAD}) f LEFT JOIN current c ON c.key = ?"
)
READ_ONE_AT: Final = (
    "SELECT f.id, c.position, c.nonce, c.value, c.expires_at, c.trail, c.listed"
    " FROM feed f LEFT JOIN current c ON c.key = ? WHERE f.position = ?"
)
READ_AROUND: Final = (
    "SELECT f.position, f.id, c.position, c.nonce, c.value, c.expires_at, c.trail, c.listed,"
    " CASE WHEN c.position IS NULL THEN (SELECT max(key) FROM current WHERE key < ?) END,"
    " CASE WHEN c.position IS NULL THEN (SELECT min(key) FROM current WHERE key > ?) END"
    f" FROM ({HEAD}) f LEFT JOIN current c ON c.key = ?"
)
"""As `READ_ONE`, and where there is no row, its two neighbours. The key three times: to the first releases of
Python 3.12 a numbered place is a named one, which they warn of."""
_FEED_ENDS: Final = (
    f"SELECT NULL, f.position, f.id, (SELECT position FROM ({HORIZON})), NULL, NULL, NULL FROM ({HEAD}) f"
)
_FEW: Final = 8
_AT_ONCE: Final = 512
_ROWS: Final = 64
_COLUMNS: Final = 7
_PUT_ONE: Final = "INSERT OR REPLACE INTO current VALUES (?,?,?,?,?,?,?)"
_FRESH_ONE: Final = "INSERT OR FAIL INTO current VALUES (?,?,?,?,?,?,?)"
_FEED_ONE: Final = "INSERT OR FAIL INTO feed VALUES (?,?,?,?,?)"


@cache
def _finder(size: int, with_feed: bool) -> str:
    if size <= _FEW:  # faster for few than a join, which has to be set up
        parts = [f"SELECT {COLUMNS} FROM current WHERE key = ?"] * size
    else:
        places = ",".join(["(?)"] * size)
        columns = COLUMNS.replace(", ", ", c.")
        parts = [f"SELECT c.{columns} FROM (VALUES {places}) q JOIN current c ON c.key = q.column1"]
    return " UNION ALL ".join([_FEED_ENDS, *parts] if with_feed else parts)


def find(connection: Connection, keys: Sequence[Key], rows: dict[Key, Row], *, with_feed: bool) -> Any:
    """Put the rows of ``keys`` into ``rows``.

    ``with_feed``: also learn, in the same statement as the first few hundred of them, where the feed is: the newest
    position and its id, and the position of the horizon."""
    ends = None
    place = 0
    while place < len(keys) or (with_feed and ends is None):
        part: list[Any] = [bytearray(key) for key in keys[place : place + _AT_ONCE]]
        size = len(part) if len(part) <= _FEW else -(-len(part) // _FEW) * _FEW
        part += [0] * (size - len(part))
        found = connection.execute(_finder(size, with_feed and ends is None), part).fetchall()
        if with_feed and ends is None:
            ends = found.pop(0)[1:4]
        for row in found:
            rows[row[0]] = row
        place += _AT_ONCE
    return ends


@cache
def _inserter(verb: str, table: str, columns: int, size: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"{verb} INTO {table} VALUES {','.join([row] * size)}"


def put_current(connection: Connection, rows: Iterable[Row], *, fresh: bool) -> None:
    """Put rows in the place of those with the same keys; ``fresh``: there must be none, else ``sqlite3.IntegrityError``
    is raised."""
    bound: list[Any] = []
    for key, position, nonce, value, expires_at, trail, listed in rows:
        shown = None if value is None else bytearray(value)
        way = trail if type(trail) is int else bytearray(trail)
        bound += (bytearray(key), position, nonce, shown, expires_at, way, listed)
    if len(bound) == _COLUMNS:
        connection.execute(_FRESH_ONE if fresh else _PUT_ONE, bound)
    else:
        _insert(connection, "INSERT OR FAIL" if fresh else "INSERT OR REPLACE", "current", _COLUMNS, bound)


def put_feed(connection: Connection, rows: Iterable[NewFeedRow]) -> None:
    """Add rows to the feed."""
    bound: list[Any] = []
    for position, identity, at, record, marks in rows:
        bound += (position, bytearray(identity), at, marks, None if record is None else bytearray(record))
    _insert(connection, "INSERT OR FAIL", "feed", 5, bound)


def put_one_in_feed(connection: Connection, row: NewFeedRow) -> None:
    """Add one row to the feed."""
    position, identity, at, record, marks = row
    shown = None if record is None else bytearray(record)
    connection.execute(_FEED_ONE, (position, bytearray(identity), at, marks, shown))


def _insert(connection: Connection, verb: str, table: str, columns: int, bound: list[Any]) -> None:
    """Insert what is bound: up to 64 rows with a statement of just their number, more in portions of 64."""
    count = len(bound) // columns
    if count <= _ROWS:
        connection.execute(_inserter(verb, table, columns, count), bound)
        return
    for place in range(0, count, _ROWS):
        part = bound[place * columns : (place + _ROWS) * columns]
        connection.execute(_inserter(verb, table, columns, len(part) // columns), part)
