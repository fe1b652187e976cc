"""Stores on PostgreSQL that are used again, because making one costs more than most of what tests do in it.

`Schemas.take` gives the name of a store that is as good as new. When a test gives it back, every table is emptied and
the one row of ``meta`` is written as the backend writes it into a new schema, with a new number of the store: so the
next test begins with what `interlock.backends.postgresql.schema` leaves, and tokens of the store before are foreign to
it. What cannot be emptied within a moment (somebody still holds its locks) is not used again.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from typing import Any, Final

import psycopg
from psycopg import sql

from interlock.backends.postgresql.home import SCHEMA_VERSION

_numbers = itertools.count()

_PATIENCE: Final = "2s"
_IN_USE: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
"""What says that somebody still uses a store."""
_SMALL_BYTES: Final = 1 << 20
_KEPT: Final = 3
"""How many stores lie between two uses of one: whatever a test has left running is over by then."""


def empty(connection: psycopg.Connection[Any], schema: str) -> bool:
    """Make a store of a test as good as new; whether that was possible. The connection is in autocommit mode."""
    rows = connection.execute(
        "SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind = 'r'",
        [schema],
    ).fetchall()
    sizes = {str(name): int(size) for name, size in rows}
    if "meta" not in sizes:
        return False
    tables = [sql.Identifier(schema, table) for table in sorted(sizes)]
    names = sql.SQL(", ").join(tables)
    if sum(sizes.values()) < _SMALL_BYTES:
        emptied = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(names)
        emptied = sql.SQL("; ").join([emptied, *[sql.SQL("DELETE FROM {}").format(table) for table in tables]])
    else:
        emptied = sql.SQL("TRUNCATE {}").format(names)
    store = int.from_bytes(os.urandom(8), "big") >> 2
    fresh = sql.SQL("{}; INSERT INTO {} (version, store, origin) VALUES ({}, {}, '')").format(
        emptied, sql.Identifier(schema, "meta"), SCHEMA_VERSION, store
    )
    try:
        connection.execute(fresh)  # one message of several statements is one transaction
    except _IN_USE:
        return False
    return True


def drop(connection: psycopg.Connection[Any], schema: str) -> None:
    """Remove a store."""
    connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


class Schemas:
    """The stores of this process in one database, each for one test at a time.

    Without ``again`` each of them is new, for tests that look at what lies on the server or change it."""

    def __init__(self, url: str, *, again: bool = True) -> None:
        self.url = url
        self._again = again
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"SET lock_timeout = '{_PATIENCE}'")
        self._free: deque[str] = deque()
        self._left: list[str] = []

    def take(self) -> str:
        """The name of a store that has nothing in it, or is made when it is first opened."""
        if len(self._free) > _KEPT:
            return self._free.popleft()
        return f"test_{os.getpid()}_{next(_numbers)}"

    def give_back(self, schema: str) -> None:
        """The test that took it is over."""
        if self._again and empty(self._connection, schema):
            self._free.append(schema)
            return
        try:
            drop(self._connection, schema)
        except _IN_USE:
            self._left.append(schema)

    def close(self) -> None:
        """Remove them all."""
        for schema in [*self._free, *self._left]:
            drop(self._connection, schema)
        self._connection.close()
