"""A store that tests use again is as good as a new one; see `schemas`."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import schemas
from interlock.backends.postgresql import PostgreSQLBackend
from interlock.errors import UsageError
from interlock.testing.conformance.world import Subject, key, put, step


def _look(connection: psycopg.Connection[Any], schema: str) -> dict[str, list[Any]]:
    """Every row of every table, but for the store's number and the table's own."""
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", [schema]).fetchall()
    found = {}
    for (table,) in tables:
        text = f"SELECT to_jsonb(t) - 'store' - 'origin' FROM {schema}.{table} t"
        found[table] = connection.execute(text).fetchall()  # type: ignore[arg-type]
    return found


def test_an_emptied_store_is_as_good_as_a_new_one(postgresql_url: str, schema: str) -> None:
    def open_it(name: str) -> Subject:
        return Subject(PostgreSQLBackend(postgresql_url, schema=name).blocking())

    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        store = open_it(schema)
        before = step(store.commit({key("a"): put(1), key("b"): put(2)})).token
        step(store.commit({key("a"): put(3)}))
        step(store.commit({key("c"): put(4)}, quiet=True, durable=False))
        step(store.compact_all())
        step(store.backend.close())
        assert schemas.empty(connection, schema)
        used, fresh = open_it(schema), open_it(f"{schema}_new")
        try:
            assert step(used.listing()) == step(fresh.listing()) == {}
            assert _look(connection, schema) == _look(connection, f"{schema}_new")
            with pytest.raises(UsageError, match="another store"):
                step(used.listing(before))
        finally:
            step(used.backend.close())
            step(fresh.backend.close())
            schemas.drop(connection, f"{schema}_new")


def test_a_store_that_is_not_there_or_in_use_is_not_used_again(postgresql_url: str, schema: str) -> None:
    made = schemas.Schemas(postgresql_url)
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema).blocking())
    try:
        with psycopg.connect(postgresql_url) as holder:
            assert not schemas.empty(holder, schema)
            step(store.commit({key("a"): put(1)}))
            holder.execute(f"SELECT * FROM {schema}.entry")  # type: ignore[arg-type]
            made.give_back(schema)
            assert made.take() != schema
    finally:
        step(store.backend.close())
        made.close()
