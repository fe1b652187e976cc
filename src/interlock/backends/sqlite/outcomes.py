"""What became of transaction ids: the table ``outcome``, and the newest part of it that is only in memory.

Every commit has to know whether its id is recorded already. A unique index would tell, at the price of one page
more in each COMMIT, a fifth of what a single commit writes. So the ids of the newest rows of the feed are kept in
the memory of each writer (`Outcomes`), which reads there what other processes have added, and are put into the
table in bulk when the write-ahead log is copied. An id is looked up in the table only if it is not higher than the
highest there; ids are ordered by time, so that is rare, and right in any case.

What a writer remembers reaches from the row that *it* knows to be in the table to the newest row. Another process
may have put some of these into the table meanwhile, or compaction may have dropped them: then they are found all
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.statements import FeedRow, NewFeedRow

TAIL: Final = 1000
"""How many rows of the feed may be missing in the table when a file is opened."""

_ROW: Final = (
    "SELECT position, id, at, record FROM feed"
    " WHERE position = (SELECT position FROM outcome WHERE id = ?) AND id = ?"
    " UNION ALL SELECT position, id, at, record FROM feed"
    " WHERE position > (SELECT value FROM facts WHERE name = 'indexed') AND id = ? LIMIT 1"
)


def recorded(connection: Connection, identity: bytes) -> FeedRow | None:
    """The row of the feed with an id, as whoever has no writer's memory finds it."""
    row: FeedRow | None = connection.execute(_ROW, (identity,) * 3).fetchone()
    return row


def put_in(connection: Connection) -> None:
    """Put what is missing into the table. In a write transaction."""
    connection.execute(
        "INSERT OR IGNORE INTO outcome SELECT id, position FROM feed"
        " WHERE position > (SELECT value FROM facts WHERE name = 'indexed') ORDER BY id"
    )
    connection.execute("UPDATE facts SET value = (SELECT max(position) FROM feed) WHERE name = 'indexed'")


def drop(connection: Connection, ids: Iterable[bytes]) -> None:
    """Take ids out of the table, where they are in it."""
    connection.executemany("DELETE FROM outcome WHERE id = ?", [(identity,) for identity in sorted(ids)])


class Outcomes:
    """What one writer remembers of the newest ids."""

    __slots__ = ("_highest", "_known", "_position")

    def __init__(self) -> None:
        self._known: dict[bytes, bool] = {}
        self._position = -1
        self._highest = b""

    def catch_up(self, connection: Connection, head: int) -> None:
        """Learn what lies between the last row that is known and the head of the feed. In a transaction."""
        if head == self._position:
            return
        if self._position < 0:
            self._load(connection)
        rows = connection.execute(
            "SELECT id, record IS NOT NULL FROM feed WHERE position > ?", (self._position,)
        ).fetchall()
        self._known.update((identity, bool(committed)) for identity, committed in rows)
        self._position = head

    def _load(self, connection: Connection) -> None:
        self._position = connection.execute("SELECT value FROM facts WHERE name = 'indexed'").fetchone()[0]
        self._highest = connection.execute("SELECT max(id) FROM outcome").fetchone()[0] or b""

    def find(self, connection: Connection, identity: bytes) -> bool | None:
        """Whether an id is recorded as committed; None if it is not recorded."""
        committed = self._known.get(identity)
        if committed is None and identity <= self._highest:
            row = recorded(connection, identity)
            committed = None if row is None else row[3] is not None
        return committed

    def is_new(self, identity: bytes, head: int) -> bool:
        """Whether an id is known not to be recorded, without asking the database; False also where that is not known.
        ``head``: the position of the newest row of the feed."""
        return head == self._position and identity > self._highest and identity not in self._known

    def add(self, rows: Sequence[NewFeedRow]) -> None:
        """Rows that were committed, right behind those that are known."""
        for position, identity, _, record, _ in rows:
            self._known[identity] = record is not None
            self._position = position

    def put_in(self, connection: Connection) -> None:
        """Put what is known into the table and forget it. Begins and ends a transaction of its own."""
        connection.execute("BEGIN IMMEDIATE")
        put_in(connection)
        connection.execute("COMMIT")
        self._known.clear()
        self._load(connection)

    def __len__(self) -> int:
        return len(self._known)
