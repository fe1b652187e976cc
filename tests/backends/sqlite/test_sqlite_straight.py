"""Commits on the calling thread: which of an event loop go that way; the short judgement is the general one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlite_support import Store, key, new_transaction, number, opened, queue_held, step, value_of
from test_sqlite_turns import Watched

from interlock.backends.sqlite import SQLiteBackend, quiet, straight
from interlock.backends.sqlite.batch import Batch
from interlock.backends.sqlite.straight import WRITER
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.model import ABSENT, CommitRefused, CommitRequest, Delete, Key, Put, Reply

A, B = key("a"), key("b")


class Looped:
    """A store of an event loop, and the threads that have committed."""

    def __init__(self, path: Path) -> None:
        self.backend = SQLiteBackend(path, synchronous="FULL")
        self.threads: list[str] = []

    async def open(self) -> None:
        """With one commit, and the connection watched."""
        await self.commit(A, b"i0", ABSENT)
        writer = self.backend._engine._writer
        assert writer is not None
        self.writer = writer
        inner = writer.connection
        writer.connection = Watched(inner, self._note, lambda: None)  # type: ignore[assignment]

    def _note(self) -> None:
        self.threads.append(threading.current_thread().name)

    async def commit(
        self, which: Key, value: bytes, expected: Any, *, quiet: bool = True, durable: bool = True
    ) -> Reply:
        """One put."""
        token = await self.backend.snapshot()
        return await self.backend.commit(
            CommitRequest(
                new_transaction(), "a", "serializable", token, {}, {which: Put(value)}, {which: expected},
                quiet=quiet, durable=durable,
            )
        )  # fmt: skip

    async def value(self, which: Key) -> int | None:
        """One number."""
        return value_of((await self.backend.read((which,))).entries[0])


def looped(body: Callable[[Looped], Any]) -> Callable[[Path], None]:
    """Run a test on a loop, over a store that is closed at the end."""

    def run(tmp_path: Path) -> None:
        async def main() -> None:
            store = Looped(tmp_path / "store.db")
            await store.open()
            try:
                await body(store)
            finally:
                await store.backend.close()

        asyncio.run(main())

    return run


@looped
async def test_a_loop_commits_itself_only_what_is_quiet_and_not_durable(store: Looped) -> None:
    me = threading.current_thread().name
    await store.commit(B, b"i1", ABSENT, durable=False)
    assert store.threads == [me]
    await store.commit(key("c"), b"i1", ABSENT)
    await store.commit(key("d"), b"i1", ABSENT, quiet=False, durable=False)
    assert store.threads == [me, WRITER, WRITER]
    assert store.writer.connection is not None
    await store.commit(key("e"), b"i1", ABSENT, durable=False)
    assert store.writer.connection.execute("PRAGMA synchronous").fetchone() == (1,)


@looped
async def test_a_loop_waits_for_nobody(store: Looped) -> None:
    """Neither for another process nor for another program nor for the log to be copied: the thread does."""
    path = Path(store.backend.path)
    with queue_held(path):
        task = asyncio.create_task(store.commit(B, b"i1", ABSENT, durable=False))
        await asyncio.sleep(0)
        assert not task.done()
    await task
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(store.commit(key("c"), b"i1", ABSENT, durable=False))
        await asyncio.sleep(0)
        assert not task.done()
        foreign.execute("ROLLBACK")
        await task
    store.writer._log._pages = 1_000_000
    store.writer._turns._shared = 0
    await store.commit(key("d"), b"i1", ABSENT, durable=False)
    await store.commit(key("e"), b"i1", ABSENT)  # the thread comes to it when it has ended the turn before
    assert store.threads == [WRITER] * 4
    assert not store.writer._log.is_due


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_raised_into_a_loops_turn_leaves_nothing_wrong_behind(tmp_path: Path, when: str) -> None:
    def strike() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        store = Looped(tmp_path / "store.db")
        await store.open()
        before, after = (strike, lambda: None) if when == "before" else (lambda: None, strike)
        watched = store.writer.connection
        assert isinstance(watched, Watched)
        watched._before, watched._after = before, after
        with pytest.raises(KeyboardInterrupt) as raised:
            await store.commit(B, b"i1", ABSENT, durable=False)
        assert "it is not known whether the commit happened" in raised.value.__notes__[0]
        watched._before = watched._after = lambda: None
        assert await store.value(B) == (None if when == "before" else 1)
        for number_ in range(3):
            await store.commit(key("own", number_), b"i1", ABSENT, durable=False)
        await store.commit(key("c"), b"i1", ABSENT)
        await store.backend.close()

    asyncio.run(main())


def test_a_turn_whose_owner_is_not_known_is_given_back(tmp_path: Path) -> None:
    """Interrupted between taking the turn and knowing it; and the turn of another is left alone."""
    with opened(tmp_path / "store.db") as store:
        store.commit({A: number(0)})
        writer = store.backend._engine._writer
        assert writer is not None
        turn = writer._turn

        class Struck:
            """Takes it, and is interrupted."""

            def __init__(self, *, takes: bool) -> None:
                self.takes = takes

            def acquire(self, *, blocking: bool) -> bool:
                assert not blocking
                if self.takes:
                    turn.acquire()
                raise KeyboardInterrupt

            def release(self) -> None:
                turn.release()

        for takes in (True, False):
            writer._turn = Struck(takes=takes)  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                writer.straight.commit(store.request({A: number(1)}), 0, store.backend._runtime)
            writer._turn = turn
            free = threading.Thread(target=lambda: (turn.acquire(), turn.release()))
            free.start()
            free.join(10)
            assert not free.is_alive()


def requests(seed: int) -> list[Callable[[Store], CommitRequest]]:
    """Quiet requests of all kinds on a few keys, the same for any store: what they expect is said by their place."""
    source = random.Random(seed)
    made: list[Callable[[Store], CommitRequest]] = []
    old: list[Any] = []
    for place in range(60):
        keys = source.sample([key("k", index) for index in range(6)], source.choice((1, 1, 2, 3)))
        plan = [
            (each, source.choice("vvvvvvas") + source.choice("pppppdnn"), source.choice((None, 5.0))) for each in keys
        ]
        silent, stale = source.random() < 0.9, source.random() < 0.1

        def request(
            store: Store, place: int = place, plan: Any = plan, silent: bool = silent, stale: bool = stale
        ) -> Any:
            writes: dict[Key, Any] = {}
            guards: dict[Key, Any] = {}
            for each, (expects, does), seconds in plan:
                entry = store.entry(each)
                guards[each] = ABSENT
                if entry is not None and entry.value is not None and expects != "a":
                    position, nonce = entry.version
                    guards[each] = (position, nonce ^ (expects == "s"))  # somebody else's version, or the right one
                if does != "n" or not writes:  # a key may be expected without being written
                    writes[each] = Delete() if does == "d" else Put(b"i%d" % place, seconds, place % 3 > 0)
            old.append(store.snapshot())
            snapshot = old[len(old) // 2] if stale else None
            return store.request(writes, guards=guards, quiet=silent, durable=place % 2 > 0, snapshot=snapshot)

        made.append(request)
    return made


def run(path: Path, seed: int) -> list[Any]:
    """What becomes of them, step by step."""
    found: list[Any] = []
    with opened(path) as store:
        store.commit({A: number(0)})

        def work() -> None:
            for make in requests(seed):
                try:
                    reply = step(store.backend.commit(make(store)))
                    found.append(reply.version[0])
                except (CommitRefused, SnapshotTooOldError) as error:
                    clashes = error.clashes if isinstance(error, CommitRefused) else ()
                    found.append((type(error).__name__, sorted((clash.key, clash.kind) for clash in clashes)))
                writer = store.backend._engine._writer
                assert writer is not None
                writer._turns._shared = 0
                entries = [store.entry(key("k", index)) for index in range(6)]
                found.append(
                    [
                        None if entry is None else (entry.version[0], entry.value, entry.expires_at is None)
                        for entry in entries
                    ]
                )
            found.extend((change.version[0], sorted(change.writes)) for change in store.feed())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found.append(connection.execute("SELECT key, position, value, trail, listed FROM current").fetchall())
            found.append(connection.execute("SELECT position, marks, length(record) FROM feed").fetchall())
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_short_judgement_is_the_general_one(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[bool] = []
    short = quiet.decide

    def counted(*args: Any, **named: Any) -> Reply | None:
        reply = short(*args, **named)
        decided.append(reply is not None)
        return reply

    monkeypatch.setattr(straight.quiet, "decide", counted)
    first = run(tmp_path / "short.db", seed)
    assert sum(decided) > 10
    assert not all(decided)
    monkeypatch.setattr(straight.quiet, "decide", lambda *args, **named: None)
    second = run(tmp_path / "general.db", seed)
    assert [each for each in first if type(each) is not list] == [each for each in second if type(each) is not list]
    assert first == second


def test_a_key_that_is_put_without_a_look_is_refused_if_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with opened(path) as other:
        other.commit({A: number(1), B: number(1)})
        other.commit({B: Delete()})

    def work() -> None:
        with opened(path) as store:
            store.commit({key("c"): number(0)})
            with pytest.raises(CommitRefused):
                store.commit({A: number(2)}, guards={A: ABSENT}, quiet=True)
            store.commit({B: number(3)}, guards={B: ABSENT}, quiet=True)
            assert (store.value(A), store.value(B)) == (1, 3)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_key_that_is_only_expected_to_be_absent_is_looked_up(tmp_path: Path) -> None:
    """Though as many keys are unknown as are put, and all of them are to be absent."""
    path, new = tmp_path / "store.db", key("a5")
    with opened(path) as other:
        other.commit({key("a0"): number(1), B: number(1)})

    def work() -> None:
        with opened(path) as store:
            store.commit({key("c"): number(0)})
            assert store.entry(new) is None  # the writer learns from this that there is none
            with pytest.raises(CommitRefused) as refused:
                store.commit({new: number(2)}, guards={new: ABSENT, B: ABSENT}, quiet=True)
            assert [clash.key for clash in refused.value.clashes] == [B]
            assert store.value(new) is None

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("where", ["caller", "writer"])
def test_what_the_collector_ends_in_the_middle_of_a_turn_does_not_commit(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator that would give something back is ended while this thread commits, or the writer's does."""
    flush = Batch.flush
    refused: list[tuple[str, UsageError]] = []
    with opened(tmp_path / "store.db") as store:
        store.commit({A: number(0)})

        def give_back(batch: Batch) -> None:
            monkeypatch.setattr(Batch, "flush", flush)
            try:
                store.commit({B: number(1)})
            except UsageError as error:
                refused.append((threading.current_thread().name, error))
            flush(batch)

        def commit() -> None:
            store.commit({A: number(2)}, quiet=True)

        monkeypatch.setattr(Batch, "flush", give_back)
        if where == "caller":
            caller = threading.Thread(target=commit, name="caller")
            caller.start()
            caller.join()
        else:
            commit()  # on the main thread, which does not go straight
        ((name, error),) = refused
        assert name == ("caller" if where == "caller" else WRITER)
        assert "in the middle of a commit" in str(error)
        assert (store.value(A), store.value(B)) == (2, None)
        store.commit({B: number(3)})
        assert store.value(B) == 3
