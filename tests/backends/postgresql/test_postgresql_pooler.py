"""Behind a transaction pooler, where every statement may find another session of the server.

With a pgbouncer on this machine (on the path, or named by ``INTERLOCK_TEST_PGBOUNCER``) the tests run behind it, too.
There is none among pip's packages; what only a real one shows (prepared statements, the protocol) is tested only there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import interlock
from interlock import sync
from interlock.backends.postgresql import PostgreSQLBackend
from interlock.backends.postgresql.statements import statements
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.testing.conformance.world import Subject, key, put, step
from servers import free_port, missing

PGBOUNCER = "INTERLOCK_TEST_PGBOUNCER"
PATIENCE_SECONDS = 20.0


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        pytest.fail("pgbouncer does not start")
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def pooled_url(postgresql_url: str) -> Iterator[str]:
    """The same database through pgbouncer, with fewer sessions of the server than clients."""
    program = os.environ.get(PGBOUNCER) or shutil.which("pgbouncer")
    if program is None:
        missing("pgbouncer", f"none on the path, and {PGBOUNCER} names none")
    assert program is not None
    server = urlsplit(postgresql_url)
    port = free_port()
    directory = Path(tempfile.mkdtemp(prefix="interlock-pgbouncer-", dir="/tmp"))
    (directory / "users").write_text(f'"{server.username}" "{server.password or ""}"\n')
    (directory / "settings").write_text(
        f"[databases]\n* = user={server.username} host={server.hostname} port={server.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {directory}/users\npool_mode = transaction\ndefault_pool_size = 3\nserver_round_robin = 1\n"
    )
    identity: dict[str, object] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        user = pwd.getpwnam("nobody")
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        for place in (directory, *directory.iterdir()):
            os.chown(place, user.pw_uid, user.pw_gid)
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen([program, str(directory / "settings")], stdout=log, stderr=log, cwd="/", **identity)  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _answers(port, process):
            assert time.monotonic() < deadline, (directory / "log").read_text()
        yield f"postgresql://{server.username}@127.0.0.1:{port}{server.path}"
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        shutil.rmtree(directory, ignore_errors=True)


def test_stores_work_behind_pgbouncer(pooled_url: str, schema: str) -> None:
    async def program(number: int) -> int:
        async with interlock.open(pooled_url, agent=f"a{number}", schema=schema, pooler=True) as store:
            resource = store.resource("r", int)

            async def work(session: interlock.AgentSession[int]) -> None:
                await session.add("sum", 1)
                mine = await session.read(("own", number), 0)
                await session.write(("own", number), mine + 1)

            await asyncio.gather(*(resource.run(work) for _ in range(10)))
            seen = [change.agent async for change in store.log.changes()]
            return len(seen)

    async def run() -> list[int]:
        return list(await asyncio.gather(*map(program, range(6))))

    assert max(asyncio.run(run())) == 60
    with sync.open(pooled_url, agent="judge", schema=schema, pooler=True) as store:
        resource = store.resource("r", int)
        assert resource.read("sum") == 60
        assert [resource.read(("own", number)) for number in range(6)] == [10] * 6
        for _ in range(20):
            resource.run(lambda session: session.add("sum", 1))
        assert resource.read("sum") == 80


@pytest.mark.parametrize("blocking", [False, True])
def test_without_the_option_the_error_names_it(
    pooled_url: str, postgresql_url: str, schema: str, blocking: bool
) -> None:
    async def run() -> None:
        backend = PostgreSQLBackend(pooled_url, schema=schema)
        leaf = backend.blocking() if blocking else backend
        await leaf.snapshot()
        _end_sessions(postgresql_url, schema)
        try:
            await leaf.snapshot()
        finally:
            await backend.close()

    with pytest.raises(UsageError, match="pooler=True"):
        asyncio.run(run())


def _end_sessions(url: str, schema: str) -> None:
    """End the sessions of the server that a schema's statements were sent to; wait until they are gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        theirs = "FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid() AND state = 'idle'"
        like = (f'%"{schema}"%',)
        while connection.execute(f"SELECT count(pg_terminate_backend(pid)) {theirs}", like).fetchone() != (0,):  # type: ignore[arg-type]
            pass


def test_a_crash_of_the_server_behind_the_pooler_is_noticed(postgresql_url: str, schema: str) -> None:
    """The connection to a pooler outlives the server. Here the volatile table is emptied instead, as a crash does."""
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema, pooler=True).blocking())
    soft = step(store.commit({key("a"): put(1)}, durable=False)).token
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {schema}.alive")  # type: ignore[arg-type]
    with pytest.raises(SnapshotTooOldError):  # something that it shows may have been lost
        step(store.backend.read([key("a")], soft))
    assert step(store.value(key("a"))) == 1
    before = step(store.backend.snapshot())
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {schema}.alive")  # type: ignore[arg-type]
    reply = step(store.commit({key("a"): put(2)}, snapshot=before))  # refused, and sent again to the new epoch
    assert reply.token.incarnation == before.incarnation + 1
    assert step(store.value(key("a"), before)) == 1
    step(store.backend.close())


def test_an_asynchronous_store_notices_it_too(postgresql_url: str, schema: str) -> None:
    async def run() -> None:
        store = Subject(PostgreSQLBackend(postgresql_url, schema=schema, pooler=True))
        before = (await store.commit({key("a"): put(1)})).token
        connection = await asyncio.to_thread(psycopg.connect, postgresql_url, autocommit=True)
        await asyncio.to_thread(connection.execute, f"DELETE FROM {schema}.alive")
        replies = await asyncio.gather(
            *[store.commit({key("n", number): put(number)}, snapshot=before) for number in range(5)]
        )
        assert {reply.token.incarnation for reply in replies} == {before.incarnation + 1}
        await asyncio.to_thread(connection.execute, f"DELETE FROM {schema}.alive")
        assert await store.value(key("n", 3)) == 3
        await asyncio.to_thread(connection.close)
        await store.backend.close()

    asyncio.run(run())


def test_no_statement_needs_what_another_left_in_the_session(postgresql_url: str, schema: str) -> None:
    """Sessions are reset to nothing between any two statements, as another client of the pooler might leave them."""
    store = Subject(PostgreSQLBackend(postgresql_url, schema=schema, pooler=True).blocking())
    for number in range(5):
        step(store.commit({key("a"): put(number)}, durable=bool(number % 2)))
        _end_sessions(postgresql_url, schema)
        assert step(store.value(key("a"))) == number
    texts = statements(schema, pooler=True)
    assert all("same_epoch" in text for name, text in texts.items() if name not in ("hello", "soften"))
    step(store.backend.close())


def test_serializable_needs_a_session_of_its_own(postgresql_url: str) -> None:
    with pytest.raises(UsageError, match="pooler"):
        PostgreSQLBackend(postgresql_url, pooler=True, locking="serializable")
