"""Cases of kind sqlite: tasks, threads, processes and forks on one file, and files that are not what they should be."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import interlock
import interlock.sync
from cases.faults import Counted
from cases.support import World, in_worlds, increment, on_sqlite, put, put_all, rows
from cases.workers import Worker
from interlock import (
    BackendCorruptError,
    BackendError,
    BackendUnavailableError,
    InterlockError,
    Outcome,
    RetriesExhaustedError,
    RetryPolicy,
    SchemaMismatchError,
    SQLiteBackend,
    UsageError,
)
from soak import usual

AT_ONCE = RetryPolicy(max_attempts=1)


def integrity(path: Path) -> str:
    """What SQLite itself says of the file."""
    with raw(path) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of the test's own, which waits for nobody."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


@on_sqlite
async def test_R139_read_modify_write_of_two_processes(world: World) -> None:
    counters = world.open().resource("counters")
    workers = [Worker("increment", url=world.url, key="n", times=100) for _ in range(2)]
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.go()
    for _ in range(50):
        await counters.run(increment)
    done = [worker.result() for worker in workers]
    assert [one["errors"] for one in done] == [[], []]
    assert await counters.read("n") == 250


@on_sqlite
async def test_R139_a_foreign_program_that_locks_the_file_gets_a_typed_error(world: World) -> None:
    store = world.over(SQLiteBackend(world.path, busy_seconds=0.05), retry=AT_ONCE)
    counters = store.resource("counters")
    await counters.run(increment)
    with raw(world.path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(RetriesExhaustedError) as caught:
            await counters.run(increment)
        assert isinstance(caught.value.last, BackendUnavailableError)
        assert await counters.read("n") == 1, "reading goes on"
        foreign.execute("ROLLBACK")
    assert await counters.run(increment) == 2


TABLES = ("current", "feed", "facts", "expiry")


async def failure(path: Callable[[], Awaitable[Any]]) -> InterlockError | None:
    """How a way to write fails; None if it does not."""
    try:
        answer = await path()
    except InterlockError as error:
        return getattr(error, "last", error)
    return BackendUnavailableError("the look-up failed") if answer is Outcome.UNKNOWN else None


@on_sqlite
async def test_R140_a_failing_statement_leaves_nothing_open_and_nothing_half_done(world: World) -> None:
    """Every write path, with every kind of statement on every table made to fail, one at a time."""
    store = world.open(retry=AT_ONCE, idempotency_ttl_seconds=0.001, history_seconds=0.001)
    items = store.resource("items")
    await items.run(put_all, {"a": 1, "b": 2, "list": [1]})
    await items.run(increment, idempotency_key="expires", idempotency_fingerprint=1)

    async def remove(session: Any) -> None:
        await session.delete("a")
        await session.write("b", 3)

    async def merge(session: Any) -> None:
        await session.append("list", 2)
        await session.add("n", 1)

    async def clear(session: Any) -> None:
        await session.clear()

    paths: dict[str, Any] = {
        "put": lambda: items.run(put_all, {"a": 7, "b": 8}),
        "delete": lambda: items.run(remove),
        "merge": lambda: items.run(merge),
        "clear": lambda: items.run(clear),
        "keyed": lambda: items.run(increment, idempotency_key="K", idempotency_fingerprint=1),
        "fence": lambda: store.outcome(f"{int(time.time() * 1000) << 80 | 5:032x}"),
        "compact": lambda: store.compact(),
    }
    with raw(world.path) as foreign:
        foreign.execute("CREATE TABLE fault (what TEXT)")
        for table in TABLES:
            for verb in ("INSERT", "UPDATE", "DELETE"):
                fault = f"SELECT 1 FROM fault WHERE what = '{table} {verb}'"
                foreign.execute(
                    f"CREATE TRIGGER fail_{table}_{verb} BEFORE {verb} ON {table} WHEN EXISTS ({fault})"
                    " BEGIN SELECT RAISE(ABORT, 'made to fail'); END"
                )
        failed: set[tuple[str, str]] = set()
        for table in TABLES:
            for verb in ("INSERT", "UPDATE", "DELETE"):
                for name, path in paths.items():
                    before = await rows(items.scan())
                    foreign.execute("INSERT INTO fault VALUES (?)", (f"{table} {verb}",))
                    error = await failure(path)
                    if error is not None:
                        assert isinstance(error, BackendError), f"{name}: {error!r}"
                        failed.add((name, table))
                        assert await rows(items.scan()) == before, f"{name} is half done"
                    foreign.execute("DELETE FROM fault")  # at once: nobody holds the file
                    await items.run(put_all, {"a": 1, "b": 2, "list": [1]})
    writing = set(paths) - {"fence", "compact"}
    assert failed >= {(name, table) for name in writing for table in ("current", "feed")}
    assert {"fence", "compact"} <= {name for name, _ in failed}
    worker = Worker("increment", url=world.url, key="after", times=1)
    worker.ready()
    worker.go()
    assert worker.result()["errors"] == []
    assert await items.read("after") is None
    assert await store.resource("counters").read("after") == 1


def test_R141_sixteen_processes_open_a_new_file_together(tmp_path: Path) -> None:
    times = usual(50, 8)
    worker = Worker("open_together", directory=str(tmp_path), rounds=times, processes=16)
    assert worker.result() == [16] * times


@on_sqlite
async def test_R142_twenty_at_once_through_one_store_object(world: World) -> None:
    items = world.open().resource("items")

    async def commit(session: Any, number: int) -> None:
        for part in range(10):
            await session.write((number, part), number)
            await world.give_way()
            if (number, part) == (7, 5):
                raise ZeroDivisionError("half-way")

    async def one(number: int) -> str:
        try:
            await items.run(commit, number, agent=f"task {number}")
        except ZeroDivisionError:
            return "failed"
        return "done"

    if world.awaits:
        ends = await asyncio.gather(*map(one, range(20)))
    else:
        ends = world.together(20, one)
    assert list(ends) == ["failed" if number == 7 else "done" for number in range(20)]
    expected = [((number, part), number) for number in range(20) if number != 7 for part in range(10)]
    assert await rows(items.scan()) == expected
    for change in await rows(world.open().log.changes()):
        assert len(change.writes) == 10, "a commit of several tasks' work"


@on_sqlite
async def test_R143_a_network_file_system_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("nfs4", "cifs", "fuse.sshfs"):
        monkeypatch.setattr("interlock.backends.sqlite.connection.file_system", lambda *_, kind=kind: kind)
        with pytest.raises(UsageError, match=f"network file system.*{kind}"):
            await world.open().resource("stock").run(put, "k", 1)
    assert not world.path.exists()


@on_sqlite
async def test_R143_no_write_ahead_log_means_no_store(world: World) -> None:
    Path(f"{world.path}-shm").mkdir()  # the shared index of the log cannot be made
    with pytest.raises(RetriesExhaustedError) as caught:
        await world.open(retry=AT_ONCE).resource("stock").run(put, "k", 1)
    assert isinstance(caught.value.last, BackendUnavailableError)
    Path(f"{world.path}-shm").rmdir()
    stock = world.open().resource("stock")
    assert await stock.read("k") is None
    await stock.run(put, "k", 2)


@on_sqlite
async def test_R143_a_locking_protocol_error_is_explained(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite3.connect

    def connect(*args: Any, **named: Any) -> sqlite3.Connection:
        error = sqlite3.OperationalError("locking protocol")
        error.sqlite_errorcode = sqlite3.SQLITE_PROTOCOL  # type: ignore[misc]
        raise error

    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(RetriesExhaustedError) as caught:
        await world.open(retry=AT_ONCE).resource("stock").run(put, "k", 1)
    assert isinstance(caught.value.last, BackendUnavailableError)
    assert "network file system" in str(caught.value.last)
    monkeypatch.setattr(sqlite3, "connect", real)
    await world.open().resource("stock").run(put, "k", 1)


def test_R144_a_forked_child_uses_the_file_by_itself(tmp_path: Path) -> None:
    worker = Worker("fork_and_write", url=f"sqlite:///{tmp_path}/case.db", times=1000)
    assert worker.result() == {"parent": 1000, "child": 1000, "total": 2000, "old session": "refused", "feed": 2002}
    assert integrity(tmp_path / "case.db") == "ok"


def test_R146_memory_of_sqlite_is_refused_at_construction() -> None:
    for opener in (interlock.open, interlock.sync.open):
        for url in (
            "sqlite:///:memory:",
            "sqlite://:memory:",
            "sqlite://",
            "sqlite:///",
            "sqlite:///file:x?mode=memory",
        ):
            with pytest.raises(UsageError):
                opener(url)
    for path in (":memory:", "", "file::memory:?cache=shared", "file:x?mode=memory"):
        with pytest.raises(UsageError):
            SQLiteBackend(path)


@in_worlds("memory-async", "memory-sync")
async def test_R146_the_memory_store_is_one_for_threads_and_loops(world: World) -> None:
    counters = world.open().resource("counters")
    world.together(8, lambda number: counters.run(increment, agent=f"of one store object {number}"))
    world.together(8, lambda number: world.open().resource("counters").run(increment, agent=f"of its own {number}"))
    assert await counters.read("n") == 16


@in_worlds("sqlite-async")
async def test_R148_a_store_with_a_long_past_commits_as_fast_and_is_pruned_in_small_batches(world: World) -> None:
    """20,000 used idempotency keys with their history; then everything becomes old at once."""
    backend = SQLiteBackend(world.path, synchronous="OFF")
    store = world.over(backend)
    items = store.resource("items")

    async def timed() -> float:
        took = []
        for number in range(150):
            begun = time.perf_counter()
            await items.run(increment, "timed", idempotency_key=os.urandom(8).hex(), idempotency_fingerprint=number)
            took.append(time.perf_counter() - begun)
        return statistics.median(took)

    await timed()
    before = min([await timed() for _ in range(3)])
    for batch in range(100):
        await asyncio.gather(
            *[
                items.run(put, ("item", number), batch, idempotency_key=f"{batch} {number}", idempotency_fingerprint=0)
                for number in range(200)
            ]
        )
    after = min([await timed() for _ in range(3)])
    assert after < 4 * before, "a commit costs what it did"

    stop = asyncio.Event()

    async def keep_committing() -> int:
        count = 0
        while not stop.is_set():
            await items.run(increment, "meanwhile")
            count += 1
        return count

    committing = asyncio.create_task(keep_committing())
    now = await backend.now()
    batches = []
    while dropped := await backend.compact(now, limit=500):
        batches.append(dropped)
    stop.set()
    committed = await committing
    assert committed > len(batches) / 2, "commits go on between the batches"
    assert max(batches) <= 1000
    assert sum(batches) > 20_000
    assert await items.read("meanwhile") == committed
    assert len(await rows(store.log.changes())) <= committed + 10


@on_sqlite
async def test_R148_a_store_prunes_itself(world: World) -> None:
    """Nobody has called for it: the commits that pass do it, a batch at a time."""
    counted = Counted(SQLiteBackend(world.path, synchronous="OFF"))
    store = world.over(counted, history_seconds=0.05, idempotency_ttl_seconds=0.05)
    for number in range(2100):
        await store.resource("items").run(put, "k", number, idempotency_key=f"K{number}", idempotency_fingerprint=0)
    assert counted.calls.count("compact") == 4
    assert len(await rows(store.log.changes())) < 1500
    assert len(await rows(store.resource("items").history("k"))) < 1500
    assert await store.resource("items").read("k") == 2099


def _spoil(path: Path, kind: str) -> None:
    if kind == "not a database":
        path.write_bytes(b"this is a text and no database\n" * 100)
    elif kind == "another application":
        with raw(path) as connection:
            connection.execute("CREATE TABLE theirs (x)")
            connection.execute("PRAGMA application_id = 77")
    elif kind == "no application":
        with raw(path) as connection:
            connection.execute("CREATE TABLE theirs (x)")
    elif kind == "a newer version":
        with interlock.sync.open(f"sqlite:///{path}", agent="tester") as store:
            store.resource("stock").run(lambda session: session.write("k", 1))
        with raw(path) as connection:
            connection.execute("PRAGMA user_version = 99")
    elif kind == "damaged":
        with interlock.sync.open(f"sqlite:///{path}", agent="tester") as store:
            store.resource("stock").run(
                lambda session: [session.write(("k", n), "x" * 900) for n in range(400)] and None
            )
        content = bytearray(path.read_bytes())
        content[8192:-4096] = b"\xa5" * (len(content) - 12288)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("not a database", BackendCorruptError),
        ("another application", BackendCorruptError),
        ("no application", BackendCorruptError),
        ("a newer version", SchemaMismatchError),
        ("damaged", BackendCorruptError),
    ],
)
@on_sqlite
async def test_files_that_are_not_a_store_of_ours_are_left_alone(
    world: World, kind: str, error: type[InterlockError]
) -> None:
    _spoil(world.path, kind)
    before = world.path.read_bytes()
    stock = world.open().resource("stock")

    async def rewrite_all(session: Any) -> int:
        changed: int = await session.update_where(lambda key, value: "y")
        await session.write("k", "written into a file that is not ours")
        return changed

    for _ in range(2):
        with pytest.raises(error):
            await stock.run(rewrite_all)
    assert world.path.read_bytes() == before, "the file was written to"


@on_sqlite
async def test_a_directory_that_is_not_there_or_not_ours(world: World, tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "case.db", Path("/proc/version/case.db")):
        with pytest.raises(RetriesExhaustedError) as caught:
            await world.over(SQLiteBackend(path), retry=AT_ONCE).resource("stock").run(put, "k", 1)
        assert isinstance(caught.value.last, BackendUnavailableError)
    with pytest.raises(UsageError):
        await world.over(SQLiteBackend(tmp_path)).resource("stock").run(put, "k", 1)
