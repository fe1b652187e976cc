"""What the server's array types are is asked once in a process, not by every connection."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from interlock.backends.postgresql import PostgreSQLBackend, types
from interlock.model import Mark
from interlock.testing.conformance.world import Subject, key, put


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The types that servers were asked for since, in a process that knows none yet."""
    seen: list[list[int]] = []
    ask = asyncpg.Connection._introspect_types

    async def counted(connection: Any, typeoids: Any, timeout: Any) -> Any:
        seen.append(sorted(typeoids))
        return await ask(connection, typeoids, timeout)

    monkeypatch.setattr(types, "_known", {})
    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", counted)
    return seen


def test_only_the_first_connection_asks_what_arrays_are(
    postgresql_url: str, schema: str, asked: list[list[int]]
) -> None:
    async def use(number: int) -> None:
        subject = Subject(PostgreSQLBackend(postgresql_url, schema=schema))
        await subject.commit({key("a"): put(number), key("b"): put([number])}, fetch=(key("a"),))
        assert [await subject.value(key(name)) for name in "ab"] == [number, [number]]
        assert await subject.refused({key("a"): put(0)}, reads={key("a"): Mark.ABSENT}) != {}
        await subject.backend.close()

    for number in range(3):
        asyncio.run(use(number))
    assert len(asked) == 1


def test_types_that_servers_number_themselves_are_asked_for_each_time(
    postgresql_url: str, schema: str, asked: list[list[int]]
) -> None:
    async def use(colours: tuple[str, ...]) -> None:
        connection: Any = await asyncpg.connect(
            postgresql_url, statement_cache_size=0, connection_class=types.Connection
        )
        await connection.execute(f"CREATE SCHEMA {schema}; CREATE TYPE {schema}.colour AS ENUM {colours}")
        kind = await connection.prepare(f"SELECT ARRAY['{colours[0]}']::{schema}.colour[]", name="asked")
        assert await kind.fetchval() == [colours[0]]
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
        await connection.close()

    asyncio.run(use(("red", "green")))
    asyncio.run(use(("blue", "black")))
    assert len(asked) == 2
    assert types._known == {}


def test_statements_without_a_name_are_not_lost(postgresql_url: str, asked: list[list[int]]) -> None:
    async def use() -> None:
        connection: Any = await asyncpg.connect(
            postgresql_url, statement_cache_size=0, connection_class=types.Connection
        )
        for numbers in ([1, None], [2, 3]):
            assert await connection.fetchval("SELECT $1::bigint[]", numbers) == numbers
        await connection.close()

    asyncio.run(use())
    asyncio.run(use())
    assert asked == [[1016]]
