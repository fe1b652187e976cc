"""Stores that somebody has changed behind our back, and cursors that nobody has given out, on the engines themselves.

Whatever is then read, written or compacted ends in an answer or a typed error, and ends. What is changed is drawn from
a seed, the same in every run; ``INTERLOCK_FUZZ`` makes it more, as for the decoders.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from msgspec.structs import replace
from psycopg import sql
from redis.client import NEVER_DECODE

import interlock.sync
from fuzz.damage import Damage
from interlock.backends.postgresql import PostgreSQLBackend
from interlock.backends.redis import RedisBackend
from interlock.backends.sqlite import SQLiteBackend
from interlock.core.cursors import cursor_of, token_of
from interlock.errors import BackendCorruptError, InterlockError
from schemas import Schemas

ROUNDS = int(os.environ.get("INTERLOCK_FUZZ", "200")) * 3 // 10
_numbers = itertools.count()
EDGES = (-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
DETAILS = (b"", b"x", b"\xff" * 8, bytes(8), b"\xff" * 16, b"\x7f" + b"\xff" * 20, bytes(40))


def fill(store: interlock.sync.Store) -> None:
    """Commits of all sorts."""
    resource = store.resource("r")
    for number in range(6):
        with resource.session(idempotency_key=f"k{number}") as session:
            session.write(("key", number % 3), {"n": number, "text": "x" * 30})
            session.add("sum", 1)
            session.read("absent")
    with resource.session() as session:
        session.append("list", "x")
        session.delete(("key", 0))
    with resource.session() as session:
        session.clear(("key",))
        session.write(("key", 1), "again")


def use(store: interlock.sync.Store) -> list[InterlockError]:
    """Every way into a store; the errors that came of it."""
    resource, found = store.resource("r"), []

    def merge(session: Any) -> None:
        session.add("sum", 1)

    def rewrite(session: Any) -> None:
        session.write(("key", 1), session.read(("key", 1)))

    ways: tuple[Callable[[], object], ...] = (
        lambda: resource.read(("key", 1)),
        lambda: list(resource.scan()),
        lambda: list(resource.history(("key", 1))),
        lambda: list(resource.history("sum")),
        lambda: list(store.log.changes()),
        lambda: resource.run(rewrite),
        lambda: resource.run(merge),
        lambda: resource.run(lambda session: session.write("x", 1), idempotency_key="k1"),
        lambda: store.compact(),
    )
    for way in ways:
        try:
            way()
        except InterlockError as error:
            found.append(error)
    return found


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[interlock.sync.Store]:
    """A store on each engine, with something in it."""
    backend: Any
    if request.param == "memory":
        backend = interlock.MemoryBackend()
    elif request.param == "sqlite":
        backend = SQLiteBackend(tmp_path / "store.db")
    elif request.param == "postgresql":
        schemas: Schemas = request.getfixturevalue("schemas")
        backend = PostgreSQLBackend(schemas.url, schema=request.getfixturevalue("schema"))
    else:
        backend = RedisBackend(request.getfixturevalue("redis_url"), name=request.getfixturevalue("name"))
    with interlock.sync.Store(backend, agent="fuzz") as opened:
        fill(opened)
        yield opened


@pytest.fixture
def schema(schemas: Schemas) -> Iterator[str]:
    """A schema, emptied afterwards."""
    taken = schemas.take()
    yield taken
    schemas.give_back(taken)


@pytest.fixture
def name(redis_url: str) -> Iterator[str]:
    """The name of a store on Redis, deleted afterwards."""
    made = f"fuzz_{os.getpid()}_{next(_numbers)}"
    yield made
    with redis.Redis.from_url(redis_url) as client:
        client.delete(*client.keys(f"{{{made}}}:*"))


def test_cursors_that_nobody_has_given_out(store: interlock.sync.Store) -> None:
    real = token_of(store.log.head())
    tokens = [replace(real, **{name: edge}) for name in ("store", "incarnation", "position") for edge in EDGES]
    tokens += [
        replace(real, position=position, detail=detail)
        for position in (0, 1, real.position, real.position + 1, 2**62)
        for detail in DETAILS
    ]
    for token in tokens:
        with suppress(InterlockError):
            list(store.log.changes(cursor_of(token)))
    assert len(list(store.log.changes())) == 8


# -- Redis -------------------------------------------------------------------------------------------------------------
def break_redis(client: Any, keys: list[bytes], dice: random.Random) -> str:
    """Change one field of a hash or of an entry of the stream; what it was."""
    key = dice.choice([key for key in keys if client.type(key) in (b"hash", b"stream")])
    damage = Damage(dice, ())
    if client.type(key) == b"hash":
        field, value = dice.choice(sorted(client.hgetall(key).items()))
        client.hset(key, field, damage.of(value))
        return f"{key!r} {field!r}"
    entries = client.execute_command("XRANGE", key, "-", "+", **{NEVER_DECODE: []})
    broken = dice.randrange(len(entries))
    client.delete(key)
    for number, (place, fields) in enumerate(entries):
        words = list(fields)
        if number == broken:
            part = dice.randrange(len(words))
            words[part] = damage.of(words[part])
        client.execute_command("XADD", key, place, *words)
    return f"{key!r} {broken}"


def test_a_store_on_redis_that_somebody_has_changed(redis_url: str, name: str) -> None:
    dice, found = random.Random(1), []
    client = redis.Redis.from_url(redis_url)
    client.response_callbacks.clear()
    with client, interlock.sync.Store(RedisBackend(redis_url, name=name), agent="fuzz") as store:
        fill(store)
        keys = sorted(client.keys(f"{{{name}}}:*"))
        whole = {key: client.dump(key) for key in keys}
        for _ in range(ROUNDS):
            what = break_redis(client, keys, dice)
            try:
                found += use(store)
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
            client.delete(*client.keys(f"{{{name}}}:*"))
            for key, content in whole.items():
                client.restore(key, 0, content)
    assert any(type(error) is BackendCorruptError for error in found)


# -- PostgreSQL --------------------------------------------------------------------------------------------------------
CELLS = (
    ("transaction", "record", "id"), ("transaction", "id", "id"), ("entry", "value", "key"), ("entry", "key", "key"),
    ("superseded", "value", "key"),
)  # fmt: skip
"""Table, column, and the column by which a row is found."""


def test_a_store_on_postgresql_that_somebody_has_changed(schemas: Schemas, schema: str) -> None:
    dice, found = random.Random(1), []
    with (
        psycopg.connect(schemas.url, autocommit=True) as connection,
        interlock.sync.Store(PostgreSQLBackend(schemas.url, schema=schema), agent="fuzz") as store,
    ):
        fill(store)
        for _ in range(ROUNDS):
            table, column, by = dice.choice(CELLS)
            names = {"t": sql.Identifier(schema, table), "c": sql.Identifier(column), "b": sql.Identifier(by)}
            rows = connection.execute(
                sql.SQL("SELECT {b}, {c} FROM {t} WHERE {c} IS NOT NULL ORDER BY {b}").format(**names)
            ).fetchall()
            row, value = dice.choice(rows)
            broken = Damage(dice, ()).of(value)
            change = sql.SQL("UPDATE {t} SET {c} = %s WHERE {b} = %s").format(**names)
            with suppress(psycopg.errors.UniqueViolation):
                connection.execute(change, (broken, row))
            try:
                found += use(store)
            except Exception as error:
                raise AssertionError(f"{table}.{column} {row!r}: {error!r}") from error
            with suppress(psycopg.errors.UniqueViolation):
                connection.execute(change, (value, broken if column == by else row))
    assert any(type(error) is BackendCorruptError for error in found)
