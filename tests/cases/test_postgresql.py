"""Cases of kind postgres: poolers, terminated connections, limits of the server, and who opens it first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import interlock
import interlock.sync
from cases.faults import Wrapped
from cases.support import (
    PATIENCE_SECONDS,
    World,
    awaited,
    drop_schema,
    in_worlds,
    increment,
    on_postgresql,
    put,
    put_all,
    rows,
)
from cases.workers import Worker, kill_after
from interlock import BackendUnavailableError, UsageError
from interlock.testing.proxies import FaultyProxy
from proxies import Lingering, Pooler
from schemas import Schemas
from servers import PostgreSQLServer, postgresql_server
from soak import rounds

MODES = ("none", "snapshot", "optimistic", "serializable")


@pytest.fixture
def schemas(postgresql_url: str) -> Iterator[Schemas]:
    """Tests of this file look at what lies on the server: each has a schema that nobody had before."""
    made = Schemas(postgresql_url, again=False)
    yield made
    made.close()


@pytest.fixture
def own_server() -> Iterator[PostgreSQLServer]:
    """A server that the test may stop."""
    with postgresql_server() as started:
        yield started


def with_setting(url: str, name: str, value: str) -> str:
    """The URL, with a setting for every session that is begun by it."""
    return f"{url}{'&' if '?' in url else '?'}options=-c%20{name}%3D{value}"


def sessions(world: World) -> str:
    """A condition that picks the server's sessions that have last worked on the world's store."""
    schema = world.options["schema"]
    return f"pid <> pg_backend_pid() AND query LIKE '%{schema}%'"


def ask(url: str, text: str) -> list[Any]:
    """What the server answers, on a connection of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(text).fetchall()  # type: ignore[arg-type]


def terminate(world: World) -> int:
    """End every connection to the world's store, and see them gone; how many there were."""
    ended = ask(world.url, f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {sessions(world)}")
    theirs = ", ".join(["0", *[str(pid) for pid, _ in ended]])
    while ask(world.url, f"SELECT 1 FROM pg_stat_activity WHERE pid IN ({theirs})"):  # 13 cannot wait for them itself
        pass
    return len(ended)


# --- R128, R129: poolers ----------------------------------------------------------------------------------------------


@on_postgresql
async def test_R128_nothing_stays_locked_behind_a_pooler_when_clients_die(world: World) -> None:
    with Pooler(world.url) as pooler:
        place = (pooler.url, {**world.options, "pooler": True})
        ledger = world.keep_open(pooler.url, pooler=True).resource("ledger")
        breeder = Worker("write_until_killed", url=place)
        breeder.ready()
        for number in range(3):
            kill_after(breeder, f"victim {number}", 2 + number)
            await ledger.run(put, (f"victim {number}", "count"), -1)
        breeder.end()
        assert ask(world.url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
        assert pooler.handed_out > 10


@on_postgresql
async def test_R129_hundred_commits_of_two_stores_over_the_sessions_of_one_pooler(world: World) -> None:
    """The other store has the same statements with another schema in them: what one has prepared, the other must not
    execute."""
    other = {"schema": world.options["schema"] + "_other"}
    try:
        with Pooler(world.url) as pooler:
            counters = [world.keep_open(pooler.url, pooler=True, **more).resource("counters") for more in ({}, other)]

            async def count(number: int) -> None:
                for _ in range(25):
                    await counters[number % 2].run(increment, agent=f"agent {number}")

            world.together(4, count)
            assert [await each.read("n") for each in counters] == [50, 50]
            assert pooler.handed_out > 100
        assert await world.open().resource("counters").read("n") == 50
    finally:
        drop_schema(world.url, other["schema"])


@on_postgresql
async def test_R129_a_pooler_that_nobody_has_spoken_of_is_refused_at_once(world: World) -> None:
    with Pooler(world.url) as pooler:
        for _ in range(2):
            with pytest.raises(UsageError, match="pooler=True"):
                await world.keep_open(pooler.url).resource("counters").run(increment)
    assert not drop_schema(world.url, world.options["schema"]), "nothing was made there"


# --- R130: a connection that listens, or looks ------------------------------------------------------------------------


@on_postgresql
async def test_R130_waiters_wake_though_their_connections_were_terminated(world: World) -> None:
    store, other = world.open(), world.open()
    await store.resource("stock").run(put, "k", 1)
    cursor = await store.log.head()
    woken: list[bool] = []

    async def wait() -> None:
        woken.append(await waiting.log.wait(cursor, timeout_seconds=PATIENCE_SECONDS))

    waiting = world.open()
    assert await waiting.log.head() == cursor
    thread = world.thread(wait)
    for _ in range(3):
        until_somebody_looks(world)
        terminate(world)
    until_somebody_looks(world)
    assert not woken
    await other.resource("stock").run(put, "k", 2)
    thread.result()
    assert woken == [True]


def until_somebody_looks(world: World) -> None:
    """Wait until somebody has looked twice over one connection, which is not the work of opening it."""
    wanted = f"SELECT pid, query_start FROM pg_stat_activity WHERE {sessions(world)} AND query LIKE '%.transaction%'"
    deadline = time.monotonic() + PATIENCE_SECONDS
    first = {}
    while True:
        for pid, begun in ask(world.url, wanted):
            if first.setdefault(pid, begun) != begun:
                return
        assert time.monotonic() < deadline, "nobody looks any more"


@in_worlds("postgresql-async")
async def test_R130_waiters_wake_though_their_connections_have_fallen_silent(world: World) -> None:
    other = world.open()
    await other.resource("stock").run(put, "k", 1)
    with FaultyProxy(world.url) as relay:
        waiting = world.keep_open(relay.url, connect_seconds=0.5)
        cursor = await waiting.log.head()
        relay.silence()
        assert await waiting.log.wait(cursor, timeout_seconds=0.1) is False
        assert await waiting.log.head() == cursor
        relay.silence()
        wakes = asyncio.create_task(waiting.log.wait(cursor, timeout_seconds=PATIENCE_SECONDS))
        await other.resource("stock").run(put, "k", 2)
        assert await wakes is True
        assert relay.accepted >= 3
        await waiting.close()


# --- R132: the limit of idle transactions -----------------------------------------------------------------------------


@on_postgresql
async def test_R132_thinking_holds_no_transaction_open(world: World) -> None:
    """The server ends transactions that idle for 100 ms; the body thinks for longer, in every mode."""
    stock = world.keep_open(with_setting(world.url, "idle_in_transaction_session_timeout", "100")).resource("stock")
    idle: list[Any] = []

    async def think(session: Any, mode: str) -> None:
        await session.write(mode, await session.read(mode, 0) + 1)
        await rows(session.scan(("log",)))
        time.sleep(0.15)
        idle.extend(
            ask(world.url, f"SELECT pid FROM pg_stat_activity WHERE {sessions(world)} AND state LIKE 'idle in%'")
        )
        assert await session.read("other", 0) == 0

    for mode in MODES:
        done = await stock.run_detailed(think, mode, isolation=mode)
        assert done.attempts == 1
    assert idle == []
    assert dict(await rows(stock.scan())) == dict.fromkeys(MODES, 1)


# --- R133: opposite orders --------------------------------------------------------------------------------------------


@on_postgresql
async def test_R133_opposite_orders_never_deadlock(world: World) -> None:
    """200 pairs of commits that write {a, b} and {b, a}, each reading first, over two stores that know nothing of each
    other."""
    count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = ask(world.url, count)
    stocks = [world.open().resource("stock") for _ in range(2)]
    orders = (("a", "b"), ("b", "a"))

    async def both(session: Any, order: tuple[str, str]) -> None:
        values = {key: await session.read(key, 0) + 1 for key in order}
        await put_all(session, values)

    async def work(number: int) -> None:
        for _ in range(50):
            await stocks[number % 2].run(both, orders[number // 2 % 2], agent=f"agent {number}")

    world.together(8, work)
    assert dict(await rows(stocks[0].scan())) == {"a": 400, "b": 400}
    assert ask(world.url, count) == before, "other tests may have had some on this server"


# --- R134: a pool of one ----------------------------------------------------------------------------------------------


@on_postgresql
async def test_R134_a_pool_of_one_is_enough_for_calls_inside_calls(world: World) -> None:
    store = world.open(connections=1)
    stock, other = store.resource("stock"), store.resource("other")

    async def nested(session: Any) -> None:
        await session.write("k", await session.read("k", 0) + 1)
        await other.run(increment)  # joins
        await other.run(increment, "apart", detached=True)
        await session.on(other).read("apart")
        await store.log.head()
        await rows(store.log.changes())
        async for _ in session.scan():
            await session.check()

    done = await stock.run_detailed(nested)
    assert done.attempts == 1
    assert (await stock.read("k"), await other.read("n"), await other.read("apart")) == (1, 1, 1)


# --- R135: who opens it first -----------------------------------------------------------------------------------------


@pytest.mark.soak
def test_R135_twenty_processes_open_a_new_store_together(postgresql_url: str) -> None:
    """See `test_sqlite.test_R141_sixteen_processes_open_a_new_file_together` for SQLite."""
    times = rounds(1, 50)
    worker = Worker("open_together", url=postgresql_url, rounds=times, processes=20)
    worker.ready()
    assert worker.result() == [20] * times


# --- R137: replicas ---------------------------------------------------------------------------------------------------


class Lagging(Wrapped):
    """Some reads of the newest state show what was newest at an earlier time, as a replica does that lags."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.past: list[Any] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Answer from the past, as often as there is one."""
        if name == "read" and self.past and (len(args) == 1 or args[1] is None):
            return await self.inner.read(args[0], self.past.pop())
        return await call()


@awaited
async def test_R137_a_stale_read_has_no_second_effect(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    backend = Lagging(world.backend())
    lagging = world.over(backend).resource("stock")
    await stock.run(put, "n", 0)
    before = await backend.inner.snapshot()
    await stock.run(increment, idempotency_key="K")
    for stale in range(1, 7):
        backend.past = [before] * stale
        assert await lagging.read("n") == 0, "it lags"
        done = await lagging.run_detailed(increment, idempotency_key="K")
        assert (done.value, done.replayed) == (1, True)
    assert await stock.read("n") == 1


def test_R137_a_replica_is_refused(own_server: PostgreSQLServer) -> None:
    with interlock.sync.open(own_server.url, agent="tester") as store:
        store.resource("stock").run(lambda session: session.write("k", 1))
    own_server.become_replica()
    assert ask(own_server.url, "SELECT pg_is_in_recovery()") == [(True,)]
    with pytest.raises(BackendUnavailableError, match="replica"):
        interlock.sync.open(own_server.url, agent="tester").resource("stock").read("k")

    async def read() -> None:
        await interlock.open(own_server.url, agent="tester").resource("stock").read("k")

    with pytest.raises(BackendUnavailableError, match="replica"):
        asyncio.run(read())


# --- R138: connections that were ended while nobody looked ------------------------------------------------------------


async def hear(world: World) -> None:
    """Let the loop hear of the ends of connections, as it does in any pause."""
    for _ in range(5):
        await world.give_way()


@on_postgresql
async def test_R138_the_next_commit_works_after_every_connection_was_terminated(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    for number in range(5):
        done = await stock.run_detailed(increment)
        assert (done.value, done.attempts) == (number + 1, 1)
        assert terminate(world) >= 1
        await hear(world)
        session = await stock.begin()
        await session.write("begun", await session.read("begun", 0) + 1)
        terminate(world)
        await hear(world)
        await session.commit()
    assert (await stock.read("n"), await stock.read("begun")) == (5, 5)
    assert len(await rows(store.log.changes())) == 10


@on_postgresql
async def test_R138_a_connection_that_has_heard_of_its_end_and_is_not_closed_yet_is_left(world: World) -> None:
    """What the server says last may come a while before the end of the connection."""
    with Lingering(world.url) as relay:
        stock = world.keep_open(relay.url).resource("stock")

        async def end_all() -> None:
            before = relay.ended
            ended = terminate(world)
            assert ended >= 1
            while relay.ended < before + ended:
                await world.give_way()
            await hear(world)

        await stock.run(increment)
        for is_prepared in (False, True, False, True):
            await end_all()
            session = await stock.begin()
            await session.write("begun", await session.read("begun", 0) + 1)
            if is_prepared:
                await stock.run(increment)
            await end_all()
            await session.commit()
        assert (await stock.read("n"), await stock.read("begun")) == (3, 4)


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_R138_a_restart_between_two_commits(own_server: PostgreSQLServer, colour: str) -> None:
    def restart() -> None:
        own_server.kill()
        own_server.start()

    def in_steps() -> int:
        with interlock.sync.open(own_server.url, agent="tester") as store:
            stock = store.resource("stock")
            for _ in range(2):
                stock.run(lambda session: session.add("n", 1))
                with contextlib.ExitStack() as stack:
                    session = stack.enter_context(stock.session())
                    session.write("seen", session.read("n"))
                    restart()
            return int(stock.read("seen"))

    async def awaited_() -> int:
        async with interlock.open(own_server.url, agent="tester") as store:
            stock = store.resource("stock")
            for _ in range(2):
                await stock.run(increment)
                async with stock.session() as session:
                    await session.write("seen", await session.read("n"))
                    restart()
                    for _ in range(5):
                        await asyncio.sleep(0)
            return int(await stock.read("seen"))

    assert (asyncio.run(awaited_()) if colour == "async" else in_steps()) == 2
