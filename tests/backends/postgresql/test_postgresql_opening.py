"""Opening a store: who comes first makes the schema, and a server that cannot keep promises is refused."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from typing import Any

import asyncpg
import psycopg
import pytest
import trio

import interlock
import zygote
from complaints import complaints
from interlock import sync
from interlock.backends.postgresql import PostgreSQLBackend
from interlock.errors import BackendError, BackendUnavailableError, SchemaMismatchError, UsageError
from interlock.testing.conformance.world import EVERYTHING, Subject, key, put

_OPEN = """
import sys
from interlock import sync
with sync.open(sys.argv[1], agent="p" + sys.argv[3], schema=sys.argv[2]) as store:
    store.resource("r").run(lambda session: session.add("opened", 1))
"""


def test_twenty_processes_open_a_new_schema_at_once(postgresql_url: str, schema: str) -> None:
    processes = [
        zygote.start("-c", _OPEN, postgresql_url, schema, str(number), stderr=subprocess.PIPE) for number in range(20)
    ]
    ended = [(process.communicate(timeout=100)[1], process.returncode) for process in processes]
    assert [code for _, code in ended] == [0] * 20, ended
    with sync.open(postgresql_url, agent="judge", schema=schema) as store:
        assert store.resource("r").read("opened") == 20


def test_both_worlds_share_a_store(postgresql_url: str, schema: str) -> None:
    async def run() -> None:
        async with interlock.open(postgresql_url, agent="a", schema=schema) as store:
            await store.resource("r", int).run(_put_one)

    async def _put_one(session: interlock.AgentSession[int]) -> None:
        await session.write("k", 1)

    asyncio.run(run())
    with sync.open(postgresql_url, agent="b", schema=schema) as store:
        assert store.resource("r", int).read("k") == 1


def test_trio_is_served_too(postgresql_url: str, schema: str) -> None:
    async def run() -> None:
        async with interlock.open(postgresql_url, agent="a", schema=schema) as store:
            resource = store.resource("r", int)
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(resource.run, _add_one)
            assert await resource.read("k") == 8

    async def _add_one(session: interlock.AgentSession[int]) -> None:
        await session.write("k", await session.read("k", 0) + 1)

    trio.run(run)


def test_a_cancelled_commit_is_not_abandoned(postgresql_url: str, schema: str) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(postgresql_url, schema=schema))
        await store.commit({key("a"): put(0)})
        done = 0
        for turn in range(40):
            request = await store.request({key("n", turn): put(turn)})
            task = asyncio.ensure_future(store.backend.commit(request))
            for _ in range(turn % 8):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
                done += 1
            except asyncio.CancelledError as cancelled:
                done += any("it was done" in note for note in getattr(cancelled, "__notes__", ()))
        assert len(await store.listing()) == done + 1
        await store.backend.close()

    asyncio.run(run())


def test_a_coroutine_that_is_closed_leaves_no_connection_behind(postgresql_url: str, schema: str) -> None:
    """It gets no cancellation. A connection that nobody has is a warning, and a warning fails a test here."""

    async def run() -> None:
        begun: Any
        for connects in (False, True):
            backend = PostgreSQLBackend(postgresql_url, schema=schema)
            store = Subject(backend)
            if not connects:
                await store.commit({key("a"): put(1)})
            for begun in (backend.read([key("a")]), backend.scan(EVERYTHING, limit=9)):
                begun.send(None)
                begun.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait(others)  # the driver connects to the end
            gc.collect()
            assert await store.value(key("a")) == 1
            assert list(await store.listing()) == [key("a")]
            await backend.close()

    asyncio.run(run())
    gc.collect()
    assert all("closed in the middle of operation" in each for each in complaints.taken()), "nobody retrieves that"


def test_a_server_that_does_not_sync_is_refused(postgresql_url: str, schema: str) -> None:
    separator = "&" if "?" in postgresql_url else "?"
    url = f"{postgresql_url}{separator}options=-csynchronous_commit%3Doff"
    leaf = PostgreSQLBackend(url, schema=schema).blocking()
    with pytest.raises(UsageError, match="synchronous_commit"):
        _step(leaf.snapshot())
    willing = PostgreSQLBackend(url, schema=schema, durability="none").blocking()
    _step(willing.snapshot())
    _step(willing.close())
    _step(leaf.close())


def test_a_read_only_connection_is_refused(postgresql_url: str, schema: str) -> None:
    separator = "&" if "?" in postgresql_url else "?"
    _open_once(postgresql_url, schema)
    url = f"{postgresql_url}{separator}options=-cdefault_transaction_read_only%3Don"
    leaf = PostgreSQLBackend(url, schema=schema).blocking()
    with pytest.raises(BackendUnavailableError, match="read-only"):
        _step(leaf.snapshot())
    _step(leaf.close())


def test_a_schema_of_another_version_is_refused(postgresql_url: str, schema: str) -> None:
    _open_once(postgresql_url, schema)
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.meta SET version = 999")  # type: ignore[arg-type]
    leaf = PostgreSQLBackend(postgresql_url, schema=schema).blocking()
    with pytest.raises(SchemaMismatchError, match="999"):
        _step(leaf.snapshot())
    _step(leaf.close())


def test_nobody_at_the_address_is_unavailable() -> None:
    backend = PostgreSQLBackend("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(BackendUnavailableError):
        asyncio.run(backend.snapshot())
    with pytest.raises(BackendUnavailableError):
        _step(backend.blocking().snapshot())


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "{x}", "50%", "a$$b", 7])
def test_a_strange_schema_name_is_refused(name: Any) -> None:
    with pytest.raises(UsageError):
        _step(PostgreSQLBackend("postgresql://x@127.0.0.1/x", schema=name).blocking().close())


def test_a_quoted_schema_name_works(postgresql_url: str) -> None:
    name = 'Strange "name"; --'
    try:
        _open_once(postgresql_url, name)
    finally:
        with psycopg.connect(postgresql_url, autocommit=True) as connection:
            connection.execute('DROP SCHEMA IF EXISTS "Strange ""name""; --" CASCADE')


@pytest.mark.parametrize("module", ["asyncpg", "psycopg"])
def test_a_missing_driver_names_the_extra(module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import interlock\n"
        "from interlock import sync\n"
        "try:\n"
        f"    {'interlock' if module == 'asyncpg' else 'sync'}.open('postgresql://x@127.0.0.1/x', agent='a')\n"
        "except interlock.UsageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "interlock[postgresql]" in done.stdout, done


def test_the_feed_flows_while_a_foreign_transaction_idles(postgresql_url: str, schema: str) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(postgresql_url, schema=schema))
        await store.commit({key("a"): put(0)})
        foreign = await asyncpg.connect(postgresql_url)
        await foreign.execute("BEGIN; SELECT pg_current_xact_id()")
        cursor = await store.backend.snapshot()
        for number in range(5):
            reply = await store.commit({key("a"): put(number)})
            changes, cursor = await store.backend.changes(cursor)
            assert [change.version for change in changes] == [reply.version]
            assert await store.backend.compact(reply.at - 3600) == 0
        await foreign.execute("ROLLBACK")
        await foreign.close()
        assert await store.backend.changes(cursor) == ([], cursor)
        await store.backend.close()

    asyncio.run(run())


def test_views_show_values_as_json(postgresql_url: str, schema: str) -> None:
    values = {"n": 7, "t": "text", "m": {"list": [1, -5, 2.5, None, True], "big": 10**30}, "l": ["a", 1], "none": None}
    with sync.open(postgresql_url, agent="zoë", schema=schema) as store:
        resource = store.resource("stock")
        with resource.session() as session:
            for name, value in values.items():
                session.write(name, value)
            session.write(("log", -3), "deep")
        with resource.session() as session:
            session.delete("t")
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        rows = connection.execute(f"SELECT key::text, value::text, agent FROM {schema}.entries").fetchall()  # type: ignore[arg-type]
        versions = connection.execute(
            f"SELECT value::text FROM {schema}.versions WHERE key = '\"t\"'"  # type: ignore[arg-type]
        ).fetchall()
        transactions = connection.execute(f"SELECT agent, changed FROM {schema}.transactions").fetchall()  # type: ignore[arg-type]
    shown = {json.dumps(json.loads(name)): json.loads(value) for name, value, _ in rows}
    assert shown == {json.dumps(name): value for name, value in values.items() if name != "t"} | {'["log", -3]': "deep"}
    assert {agent for _, _, agent in rows} == {"zoë"}
    assert versions == [(None,), ('"text"',)]
    assert [agent for agent, _ in transactions] == ["zoë", "zoë"]


def test_drivers_errors_never_leave_the_backend(postgresql_url: str, schema: str) -> None:
    _open_once(postgresql_url, schema)
    backend = PostgreSQLBackend(postgresql_url, schema=schema)
    leaf = backend.blocking()
    _step(leaf.snapshot())
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {schema}.entry RENAME TO elsewhere")  # type: ignore[arg-type]
    with pytest.raises(BackendError):
        _step(leaf.read([key("a"), key("b")]))
    with pytest.raises(BackendError):
        asyncio.run(backend.read([key("a"), key("b")]))
    _step(leaf.close())


def _open_once(url: str, schema: str) -> None:
    leaf = PostgreSQLBackend(url, schema=schema).blocking()
    _step(leaf.snapshot())
    _step(leaf.close())


def _step(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the blocking leaf has suspended")
