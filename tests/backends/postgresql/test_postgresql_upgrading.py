"""A schema of an older version is brought up to date by whoever comes first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from interlock import codec, keys, sync
from interlock.backends.postgresql import PostgreSQLBackend
from interlock.backends.postgresql import record as records
from interlock.errors import BackendError, SchemaMismatchError, SnapshotTooOldError
from interlock.model import CommitRequest, Put, Settled, Token
from interlock.testing.conformance.world import Subject, new_transaction, step

KEY = keys.resource_space("r") + keys.encode("k")
TOKEN = Token(4711, 3, 1)


def _old_commit(connection: Any, schema: str, value: int, expected: dict[bytes, Any]) -> tuple[int, int]:
    """What version 1 left behind of a commit of one key. The number of the server's transaction is the position."""
    request = CommitRequest(
        new_transaction(), f"old{value}", "serializable", TOKEN, expected, {KEY: Put(codec.freeze(value))}, {}
    )
    with connection.transaction():
        (position,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        nonce = records.signed(request.transaction & ((1 << 64) - 1))
        connection.execute(
            f"INSERT INTO {schema}.superseded (position, nonce, until, listed, quiet, key, value)"
            f" SELECT position, nonce, $1, listed, quiet, key, value FROM {schema}.entry WHERE key = $2",
            (position, KEY),
        )
        connection.execute(
            f"INSERT INTO {schema}.entry (position, nonce, listed, quiet, key, value)"
            " VALUES ($1, $2, true, false, $3, $4)"
            " ON CONFLICT (key) DO UPDATE SET position = $1, nonce = $2, value = $4",
            (position, nonce, KEY, codec.freeze(value)),
        )
        connection.execute(
            f"INSERT INTO {schema}.transaction (position, at, state, id, agent, record, puts)"
            " VALUES ($1, $2, 1, $3, $4, $5, ARRAY[$6::bytea])",
            (
                position,
                float(value),
                request.transaction.to_bytes(16, "big"),
                request.agent,
                records.encode(request),
                KEY,
            ),
        )
    return position, request.transaction


@pytest.fixture
def old(postgresql_url: str, schema: str) -> list[tuple[int, int]]:
    """A store of version 1 with three versions of a key, each of which read the one before."""
    text = Path(__file__).with_name("schema_1.sql").read_text("utf-8").replace("@schema@", schema)
    made: list[tuple[int, int]] = []
    with psycopg.connect(postgresql_url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        psycopg.ClientCursor(connection).execute(text)
        for value in range(3):
            position, transaction = made[-1] if made else (0, 0)
            expected = {KEY: (position, transaction & ((1 << 64) - 1))} if made else {}
            made.append(_old_commit(connection, schema, value, expected))
    return made


def test_twenty_stores_open_an_old_schema_at_once(postgresql_url: str, schema: str, old: list[tuple[int, int]]) -> None:
    def use(number: int) -> None:
        with sync.open(postgresql_url, agent="p", schema=schema) as store:
            store.resource("r").run(lambda session: session.add("opened", 1))

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(use, range(20)))
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema).blocking())
    assert step(store.value(KEY)) == 2
    kept = step(store.backend.history(KEY))
    assert [(codec.thaw(entry.value), author.agent) for entry, author in kept] == [
        (2, "old2"),
        (1, "old1"),
        (0, "old0"),
    ]
    changes = step(store.feed())
    assert [change.agent for change in changes] == ["old0", "old1", "old2", *["p"] * 20]
    assert [change.reads for change in changes[:3]] == [
        {}, {KEY: changes[0].version}, {KEY: changes[1].version},
    ]  # fmt: skip
    assert [step(store.value(KEY, change.token)) for change in changes[:3]] == [0, 1, 2]
    assert step(store.backend.outcome(old[0][1], fence=True))[0] is Settled.COMMITTED
    with pytest.raises(SnapshotTooOldError):
        step(store.backend.read([KEY], TOKEN))
    step(store.backend.close())


def test_an_older_process_that_is_still_there_is_told(postgresql_url: str, schema: str) -> None:
    """Its functions are gone: what it sends fails, and nothing is written."""
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema).blocking())
    request = step(store.request({KEY: Put(codec.freeze(1))}))
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        for name in ("commit", "commit_group"):
            connection.execute(f"DROP FUNCTION {schema}.{name}")  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatchError):
        step(store.backend.commit(request))
    step(store.backend.close())


def test_an_upgrade_that_fails_leaves_the_old_schema(
    postgresql_url: str, schema: str, old: list[tuple[int, int]]
) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"DROP VIEW {schema}.entries")  # type: ignore[arg-type]
    leaf = PostgreSQLBackend(postgresql_url, schema=schema).blocking()
    with pytest.raises(BackendError):
        step(leaf.snapshot())
    step(leaf.close())
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        found = connection.execute(f"SELECT version FROM {schema}.meta").fetchone()  # type: ignore[arg-type]
        newest = connection.execute(f"SELECT position FROM {schema}.entry").fetchone()  # type: ignore[arg-type]
    assert found == (1,)
    assert newest == (old[-1][0],)


@pytest.mark.parametrize("version", [2, 3])
def test_a_store_of_a_later_version_gets_new_functions_and_keeps_the_rest(
    postgresql_url: str, schema: str, version: int
) -> None:
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema).blocking())
    token = step(store.commit({KEY: Put(codec.freeze(1))})).token
    step(store.backend.close())
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        functions = f"SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace"
        (commit_group,) = connection.execute(f"{functions} AND p.proname = 'commit_group'").fetchone()  # type: ignore[arg-type, misc]
        connection.execute(f"DROP FUNCTION {commit_group}")
        connection.execute(
            f"CREATE FUNCTION {schema}.commit_group(p_locks bigint[]) RETURNS integer LANGUAGE sql AS 'SELECT 1';"
            f" UPDATE {schema}.meta SET version = {version}"  # type: ignore[arg-type]
        )
        store = Subject(PostgreSQLBackend(postgresql_url, schema=schema).blocking())
        assert step(store.value(KEY, token)) == 1
        assert step(store.commit({KEY: Put(codec.freeze(2))})).token.incarnation == token.incarnation
        found = connection.execute(f"{functions} AND p.proname = 'commit_group'").fetchall()  # type: ignore[arg-type]
        assert found == [(commit_group,)]
        assert connection.execute(f"SELECT count(*) FROM {schema}.entries").fetchone() == (1,)  # type: ignore[arg-type]
    step(store.backend.close())
