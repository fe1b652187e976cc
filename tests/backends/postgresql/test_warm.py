"""A connection that a test has left behind is as good as a new one for the next; see `warm`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from interlock.backends.postgresql import PostgreSQLBackend, blocking, connections
from interlock.backends.postgresql.home import Options
from interlock.testing.conformance.world import Subject, key, put, step
from warm import FORGET, Warm

SETTINGS = "SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'transaction%' ORDER BY name"
REMEMBERED = (
    "SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
    " + (SELECT count(*) FROM pg_listening_channels()) + (SELECT count(*) FROM pg_prepared_statements WHERE name = 'a')"
    " + (SELECT count(*) FROM pg_cursors WHERE is_holdable)"
)
LEAVE = (
    "SELECT pg_advisory_lock(7); LISTEN news; SET jit = off; SET default_transaction_isolation = 'serializable';"
    " SET plan_cache_mode = 'force_generic_plan'; PREPARE a AS SELECT 1"
)


@pytest.fixture
def warm(postgresql_url: str) -> Iterator[Warm]:
    """Connections of earlier uses within the test."""
    made = Warm(postgresql_url)
    with made.connections():
        yield made
    made.close()


def options(url: str, schema: str) -> Options:
    return Options(url, schema, 8, "fsync", 5.0, 10.0)


def test_a_blocking_connection_forgets_what_it_was(postgresql_url: str, warm: Warm) -> None:
    def connect() -> Any:
        return warm._connect(postgresql_url, autocommit=True, prepare_threshold=5)

    first = connect()
    settings, process = first.execute(SETTINGS).fetchall(), first.info.backend_pid
    psycopg.ClientCursor(first).execute(LEAVE)
    first.close()
    assert first.closed
    with pytest.raises(psycopg.OperationalError):
        first.execute("SELECT 1")
    second = connect()
    assert second.info.backend_pid == process
    assert second.execute(REMEMBERED).fetchone() == (0,)
    assert second.execute(SETTINGS).fetchall() == settings
    first.close()  # once more: it has nothing to do with the second one
    assert second.execute("SELECT 1").fetchone() == (1,)
    second.close()


def test_an_awaited_connection_forgets_what_it_was(postgresql_url: str, warm: Warm) -> None:
    async def use(leave: bool) -> tuple[int, list[tuple[str, str]], int]:
        raw: Any = await connections._connected(options(postgresql_url, "unused"))
        settings = [(row["name"], row["setting"]) for row in await raw.fetch(SETTINGS)]
        remembered = await raw.fetchval(REMEMBERED)
        if leave:
            await raw.execute(LEAVE)
        await raw.close()
        assert raw.is_closed()
        return raw_process(raw), settings, remembered

    def raw_process(raw: Any) -> int:
        process: int = raw._protocol.backend_pid
        return process

    process, settings, _ = asyncio.run(use(True))
    assert asyncio.run(use(False)) == (process, settings, 0)


def test_a_session_that_the_server_has_ended_is_not_given_out(postgresql_url: str, schema: str, warm: Warm) -> None:
    async def use(subject: Subject) -> None:
        await subject.commit({key("a"): put(1)})
        await subject.backend.close()

    def open_one() -> PostgreSQLBackend:
        return PostgreSQLBackend(postgresql_url, schema=schema)

    asyncio.run(use(Subject(open_one())))
    step(use(Subject(open_one().blocking())))
    with psycopg.connect(postgresql_url, autocommit=True) as killer:
        ended = killer.execute(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(query, %s)",
            [FORGET.decode()],
        ).fetchall()
        assert len(ended) >= 2
        theirs = [process for process, _ in ended]
        while killer.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY (%s)", [theirs]).fetchone():
            pass  # 13 cannot wait for them itself
    asyncio.run(use(Subject(open_one())))
    step(use(Subject(open_one().blocking())))


def test_one_that_is_not_idle_is_ended(postgresql_url: str, warm: Warm) -> None:
    busy = warm._connect(postgresql_url, autocommit=True, prepare_threshold=5)
    busy.execute("BEGIN")
    busy.close()
    assert warm._inners.take() is None


def test_a_forked_child_is_given_nothing(postgresql_url: str, warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = warm._connect(postgresql_url, autocommit=True, prepare_threshold=5)
    kept.close()
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    assert warm._inners.take() is None
    monkeypatch.undo()


def test_another_url_has_nothing_to_do_with_it(postgresql_url: str, warm: Warm) -> None:
    other = f"{postgresql_url}?application_name=other"
    name = "SELECT current_setting('application_name')"

    async def use() -> None:
        names = []
        for url in (postgresql_url, other, postgresql_url, other):
            raw: Any = await connections._connected(options(url, "unused"))
            names.append(await raw.fetchval(name))
            await raw.close()
        assert names == ["", "other"] * 2
        assert len(warm._sessions._things) == 1

    asyncio.run(use())
    warm._connect(postgresql_url, autocommit=True, prepare_threshold=5).close()
    with warm._connect(other, autocommit=True, prepare_threshold=5) as raw:
        assert raw.execute(name).fetchone() == ("other",)
    assert len(warm._inners._things) == 1


def test_outside_nothing_is_changed(postgresql_url: str) -> None:
    plain = connections._connected
    with Warm(postgresql_url).connections():
        assert blocking.psycopg is not psycopg
        assert connections._connected is not plain
    assert blocking.psycopg is psycopg
    assert connections._connected is plain
