"""What a careful programmer would write on PostgreSQL: asyncpg, kept connections, prepared statements, one function.

The commit is one round trip. The function takes advisory locks (the key's exclusively, its resource's in shared mode,
so that somebody who validates a range could exclude writers), compares the version of what was read, writes, and
records the id of the request, by which a lost reply can be settled. It has no history, so no snapshots, and no feed.

`GlobalLock` takes one lock for everything instead, in the same function. `Statements` is the usual form of the same: a
transaction of six statements under one advisory lock.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Iterable
from typing import Any, Final

import asyncpg

from benchmarks.workload import VALUE, pack, unpack

_GLOBAL: Final = 42
_TABLES: Final = """
CREATE TABLE {s}.item (key text PRIMARY KEY, version bigint NOT NULL, value bytea NOT NULL) WITH (fillfactor = 50);
CREATE TABLE {s}.done (id text PRIMARY KEY, version bigint NOT NULL);
CREATE SEQUENCE {s}.versions;
CREATE FUNCTION {s}.commit(shared bigint[], exclusive bigint[], r_key text[], r_version bigint[], w_key text[],
  w_value bytea[], request text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE found bigint; own bigint; n int;
BEGIN
  FOR n IN 1 .. cardinality(shared) LOOP PERFORM pg_advisory_xact_lock_shared(shared[n]); END LOOP;
  FOR n IN 1 .. cardinality(exclusive) LOOP PERFORM pg_advisory_xact_lock(exclusive[n]); END LOOP;
  SELECT version INTO found FROM {s}.done WHERE id = request;
  IF FOUND THEN RETURN found; END IF;
  FOR n IN 1 .. cardinality(r_key) LOOP
    SELECT version INTO found FROM {s}.item WHERE key = r_key[n];
    IF coalesce(found, 0) <> r_version[n] THEN RETURN -1; END IF;
  END LOOP;
  own := nextval('{s}.versions');
  FOR n IN 1 .. cardinality(w_key) LOOP
    INSERT INTO {s}.item (key, version, value) VALUES (w_key[n], own, w_value[n])
      ON CONFLICT (key) DO UPDATE SET version = excluded.version, value = excluded.value;
  END LOOP;
  INSERT INTO {s}.done (id, version) VALUES (request, own);
  RETURN own;
END $$
"""


class Refused(Exception):
    """What was read has changed since."""


def lock_of(name: str) -> int:
    """The number of a name's advisory lock."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


_RESOURCE: Final = [lock_of("resource stock")]


async def create(url: str, schema: str, keys: Iterable[str]) -> None:
    """The tables in a schema of their own, with a value under each key."""
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE SCHEMA {schema};" + _TABLES.format(s=schema))
    rows = [(key, 0, pack(VALUE)) for key in keys]
    await connection.executemany(f"INSERT INTO {schema}.item VALUES ($1, $2, $3)", rows)
    await connection.close()


async def drop(url: str, schema: str) -> None:
    """Remove a schema."""
    connection = await asyncpg.connect(url)
    await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    await connection.close()


class Kept:
    """A connection with its prepared statements."""

    def __init__(self, raw: Any, statements: dict[str, Any]) -> None:
        self.raw = raw
        self.statements = statements


class Floor:
    """The function with a lock for each key."""

    texts: Final = {
        "read": "SELECT version, value FROM {s}.item WHERE key = $1",
        "commit": "SELECT {s}.commit($1, $2, $3, $4, $5, $6, $7)",
        "lock": "SELECT pg_advisory_xact_lock($1)",
        "version": "SELECT version FROM {s}.item WHERE key = $1",
        "update": "UPDATE {s}.item SET version = nextval('{s}.versions'), value = $2 WHERE key = $1 RETURNING version",
        "done": "INSERT INTO {s}.done (id, version) VALUES ($1, $2)",
    }
    needs: tuple[str, ...] = ("read", "commit")

    def __init__(self, url: str, schema: str, connections: int) -> None:
        self._url = url
        self._schema = schema
        self._count = connections
        self._free: asyncio.LifoQueue[Kept] = asyncio.LifoQueue()
        self._all: list[Kept] = []
        self._ids = itertools.count()

    async def __aenter__(self) -> Floor:
        for _ in range(self._count):
            raw = await asyncpg.connect(self._url)
            statements = {name: await raw.prepare(self.texts[name].format(s=self._schema)) for name in self.needs}
            self._all.append(Kept(raw, statements))
            self._free.put_nowait(self._all[-1])
        return self

    async def __aexit__(self, *error: object) -> None:
        for kept in self._all:
            await kept.raw.close()

    def new_id(self) -> str:
        """An id for a request."""
        return f"request {next(self._ids)}"

    async def read(self, key: str) -> tuple[int, Any]:
        """Version and value of a key."""
        kept = await self._free.get()
        try:
            row = await kept.statements["read"].fetchrow(key)
        finally:
            self._free.put_nowait(kept)
        return row[0], unpack(row[1])

    async def commit(self, key: str, version: int, value: Any, request: str) -> int:
        """Write a key that has this version. Raises `Refused` if it has another."""
        shared, exclusive = self.locks(key)
        kept = await self._free.get()
        try:
            found: int = await kept.statements["commit"].fetchval(
                shared, exclusive, [key], [version], [key], [pack(value)], request
            )
        finally:
            self._free.put_nowait(kept)
        if found < 0:
            raise Refused
        return found

    def locks(self, key: str) -> tuple[list[int], list[int]]:
        """What to lock, shared and exclusively."""
        return _RESOURCE, [lock_of(key)]


class GlobalLock(Floor):
    """The function under one lock."""

    def locks(self, key: str) -> tuple[list[int], list[int]]:
        """The same for everybody."""
        return [], [_GLOBAL]


class Statements(Floor):
    """One lock, and a statement for each step."""

    needs = ("read", "lock", "version", "update", "done")

    async def commit(self, key: str, version: int, value: Any, request: str) -> int:
        """Write a key that has this version. Raises `Refused` if it has another."""
        kept = await self._free.get()
        try:
            async with kept.raw.transaction():
                await kept.statements["lock"].fetchval(_GLOBAL)
                if await kept.statements["version"].fetchval(key) != version:
                    raise Refused
                own: int = await kept.statements["update"].fetchval(key, pack(value))
                await kept.statements["done"].fetch(request, own)
        finally:
            self._free.put_nowait(kept)
        return own
