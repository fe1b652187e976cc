"""The newest rows in memory: never older than the last commit of any process, and not trusted by those who judge."""

from __future__ import annotations

import mmap
import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlite_support import Store, Worker, add, delete, ended, go, in_threads, key, number, opened, step, told

from interlock.backends.sqlite import newest
from interlock.backends.sqlite.locking import COMMITTER
from interlock.errors import BackendUnavailableError
from interlock.model import ABSENT, CommitRefused, Put, Token


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with opened(path) as made:
        yield made


@pytest.fixture
def other(path: Path) -> Iterator[Store]:
    """A store of its own on the same file, with a writer of its own, as another process has."""
    with opened(path) as made:
        yield made


def kept(store: Store, name: bytes, at: Token | None = None) -> bool:
    """Whether a key is answered from memory."""
    return store.backend._engine.newest.read((name,), at) is not None


def committer(path: Path) -> bytes:
    return Path(f"{path}-queue").read_bytes()[COMMITTER]


def test_what_was_written_is_kept_and_what_is_absent_too(store: Store) -> None:
    a, b = key("a"), key("b")
    assert not kept(store, a)
    reply = store.commit({a: number(1)}, reads={}, guards={})
    assert kept(store, a)
    assert not kept(store, b)
    assert kept(store, a, reply.token)
    assert store.backend._engine.newest.token() == reply.token == store.snapshot()
    store.commit({a: delete(), b: delete()})
    assert kept(store, b)
    assert store.value(b) is None
    assert not kept(store, a, reply.token), "an older snapshot is looked up"
    assert store.value(a, reply.token) == 1


def test_a_commit_of_another_writer_is_seen_at_once(store: Store, other: Store) -> None:
    a = key("a")
    store.commit({a: number(0)})
    for turn in range(1, 40, 2):
        assert kept(store, a)
        other.commit({a: number(turn)})
        assert not kept(store, a)
        assert store.value(a) == turn
        assert kept(other, a)
        store.commit({a: number(turn + 1)})
        assert not kept(other, a)
        assert other.value(a) == turn + 1


@pytest.mark.parametrize("seed", range(3))
def test_many_stores_on_one_file_agree(path: Path, seed: int) -> None:
    """Random commits and reads by three writers: every read shows the last commit, wherever it was made."""
    chance = random.Random(seed)
    stores = [Store(path) for _ in range(3)]
    state: dict[bytes, int] = {}
    names = [key("n", part) for part in range(8)]
    hits = 0
    for _ in range(600):
        store = chance.choice(stores)
        name = chance.choice(names)
        what = chance.random()
        if what < 0.2:
            store.commit({name: number(chance.randrange(100))} if chance.random() < 0.7 else {name: delete()})
            entry = store.entry(name)
            state.pop(name, None)
            if entry is not None and entry.value is not None:
                state[name] = int(entry.value[1:])
        elif what < 0.25:
            step(store.backend.compact(step(store.backend.now()) + 1))
        else:
            hits += kept(store, name)
            assert store.value(name) == state.get(name)
            token = store.snapshot()
            assert [store.value(name, token) for name in names] == [state.get(name) for name in names]
    assert hits > 10
    for store in stores:
        store.close()


def test_nobody_reads_what_is_older_than_what_somebody_has_read(store: Store, other: Store) -> None:
    """Two writers and six readers on one counter, in threads: after a read has ended, none that begins shows less."""
    counter = key("counter")
    store.commit({counter: number(0)})
    seen = 0
    lock = threading.Lock()
    done = threading.Event()

    def write(mine: Store) -> None:
        for _ in range(300):
            mine.commit({counter: add(1)})

    def read(mine: Store) -> None:
        nonlocal seen
        while not done.is_set():
            with lock:
                least = seen
            value = mine.value(counter)
            assert value is not None
            assert value >= least
            with lock:
                seen = max(seen, value)

    def job(index: int) -> None:
        if index < 2:
            write((store, other)[index])
            finished[index].set()
            if all(event.is_set() for event in finished):
                done.set()
        else:
            read((store, other)[index % 2])

    finished = [threading.Event(), threading.Event()]
    in_threads(8, job)
    assert store.value(counter) == other.value(counter) == 600


def test_a_commit_of_another_process_is_seen_at_once(store: Store, path: Path, worker: Worker) -> None:
    counter = key("counter")
    store.commit({counter: number(0)})
    assert kept(store, counter)
    process = worker("increments", path, 5)
    told(process, "ready")
    go(process)
    told(process, "done")
    assert store.value(counter) == 5
    ended(process)


def test_the_number_of_one_that_died_keeps_the_others_from_their_memory(store: Store, path: Path) -> None:
    """A process is killed between writing its number and its COMMIT."""
    a = key("a")
    store.commit({a: number(1)})
    mine = committer(path)
    descriptor = os.open(f"{path}-queue", os.O_RDWR)
    os.pwrite(descriptor, b"\xff" * 8, COMMITTER.start)
    os.close(descriptor)
    assert not kept(store, a)
    assert store.value(a) == 1
    store.commit({a: number(2)})
    assert committer(path) == mine
    assert kept(store, a)


def test_writers_have_different_numbers(store: Store, other: Store, path: Path) -> None:
    numbers = set()
    for mine in (store, other, store):
        mine.commit({key("a"): number(1)})
        numbers.add(committer(path))
    assert len(numbers) == 2
    with opened(path) as third:
        third.commit({key("a"): number(1)})
        assert committer(path) not in numbers


def test_a_writer_that_cannot_tell_the_others_writes_nothing(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = key("a")
    store.commit({a: number(1)})
    other.commit({a: number(2)})

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(BackendUnavailableError, match="No space left"):
            store.commit({a: number(3)})
    assert store.value(a) == other.value(a) == 2
    store.commit({a: number(4)})
    assert store.value(a) == other.value(a) == 4


def test_without_a_view_of_the_queue_file_all_is_read_from_the_database(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any, **options: Any) -> mmap.mmap:
        raise OSError(19, "No such device")

    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", refused)
        store = Store(path)
        store.commit({key("a"): number(1)})
    with opened(path) as other:
        other.commit({key("a"): number(2)})
        assert not kept(store, key("a"))
        store.commit({key("a"): number(3)})
        assert not kept(other, key("a")), "a writer without a number of its own is noticed too"
        assert other.value(key("a")) == 3
    store.close()


def test_whoever_judges_asks_the_database_itself(store: Store, path: Path) -> None:
    """Somebody changes the file behind everybody's back; the queue file says nothing of it."""
    a = key("a")
    first = store.commit({a: number(1)})
    assert kept(store, a)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE current SET nonce = nonce + 1 WHERE key = ?", (a,))
    raw.close()
    with pytest.raises(CommitRefused):
        store.commit({a: number(2)}, reads={a: first.version})
    assert store.value(a) == 1


def test_a_bulk_load_pushes_nothing_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    often = key("often")
    store.commit({often: number(1)})
    many = [key("n", part) for part in range(2 * newest._BULK_ROWS)]
    store.commit({name: number(0) for name in many})
    assert kept(store, many[0]), "this many small ones are no bulk"
    monkeypatch.setattr(newest, "_HALF_BYTES", 8 * newest._BULK_ROWS * newest._ROW_BYTES)
    store.commit({many[0]: number(1)})
    store.commit({name: number(2) for name in many})
    assert kept(store, often)
    assert not kept(store, many[0])
    assert store.value(many[0]) == store.value(many[-1]) == 2


def test_memory_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "_HALF_BYTES", 20_000)
    monkeypatch.setattr(newest, "_LONG_BYTES", 2_000)
    often, large = key("often"), key("large")
    store.commit({large: number(1)})
    store.commit({large: Put(b"m" + b"x" * 3_000)})
    assert not kept(store, large)
    assert store.entry(large) is not None
    for part in range(300):
        store.commit({often: number(part), key("n", part): number(part)})
        assert kept(store, often)
        memory = store.backend._engine.newest
        assert len(memory._young) + len(memory._old) <= 2 * 20_000 // newest._ROW_BYTES + 2
    assert not kept(store, key("n", 0))
    assert kept(store, key("n", 299))
    assert store.value(key("n", 0)) == 0


def test_what_is_written_again_and_again_pushes_nothing_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "_HALF_BYTES", 20_000)
    once, often = key("once"), key("often")
    store.commit({once: number(1)})
    for part in range(200):
        store.commit({often: number(part)}, guards={key("rules"): ABSENT})
    assert kept(store, once)
    assert kept(store, key("rules"))


def test_the_short_way_says_what_a_read_says_or_nothing(store: Store, other: Store) -> None:
    a, b, c = key("a"), key("b"), key("c")
    first = store.commit({a: number(1), c: number(1)}, guards={b: ABSENT})
    direct = store.backend.direct()
    assert direct is not None
    assert direct.look(a, None) == (store.entry(a), first.token)
    assert direct.look(b, first.token) == (None, first.token)
    second = store.commit({a: delete()})
    assert direct.look(a, first.token) is None, "an older snapshot is looked up"
    assert direct.look(a, None) == (store.entry(a), second.token)
    other.commit({a: number(3)})
    assert direct.look(a, None) is None
    assert direct.look(c, second.token) is None
    store.commit({c: number(4)})
    assert direct.look(c, None) is not None
    store.close()
    assert direct.look(c, None) is None

    class Own(type(store.backend)):  # type: ignore[misc]
        pass

    assert Own(store.backend.path, synchronous="OFF").direct() is None
