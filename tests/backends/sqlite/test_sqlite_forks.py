"""R144: a process that forks while a store is open. The child opens its own; nothing of the parent's is touched."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlite_support import (
    PATIENCE_SECONDS,
    Store,
    add,
    in_threads,
    key,
    number,
    opened,
    queue_held,
    step,
    value_of,
    wait_until,
)

from interlock.backends.sqlite import engine as engines
from interlock.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def child(body: Callable[[], None]) -> int:
    """Fork; run the body in the child. The child's process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        body()
        status = 0
    finally:
        os._exit(status)


def ended(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store.db") as made:
        made.increment(key("counter"))
        yield made


def descriptors(path: Path) -> list[str]:
    return [name for name in map(os.readlink, open_files()) if name.startswith(str(path))]


def open_files() -> list[str]:
    return [
        f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")
    ]


def test_r144_parent_and_child_both_write(store: Store, tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(1000):
            store.commit({key("counter"): add(1)})

    pid = child(lambda: (work(), store.close())[0])
    work()
    ended(pid)
    assert store.value(key("counter")) == 2001
    assert len(store.feed()) == 2001
    store.close()
    connection = sqlite3.connect(tmp_path / "store.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_the_child_inherits_no_descriptor(store: Store, tmp_path: Path) -> None:
    """Neither the queue file, whose lock it would keep from everybody, nor SQLite's files."""
    in_threads(3, lambda index: store.value(key("counter")))
    assert descriptors(tmp_path)

    def look() -> None:
        assert descriptors(tmp_path) == []
        assert store.value(key("counter")) == 1
        assert descriptors(tmp_path)

    ended(child(look))
    store.increment(key("counter"))


def test_a_child_that_lives_on_holds_nobody_up(store: Store, tmp_path: Path) -> None:
    """The parent is killed inside its batch; its forked child lives."""
    told, tell = os.pipe()
    wait, go_on = os.pipe()

    def parent() -> None:
        store.increment(key("counter"))
        writer = store.backend._engine._writer
        assert writer is not None
        writer.lock.acquire()
        if os.fork() == 0:
            os.close(go_on)
            os.read(wait, 1)
            os._exit(0)
        os.write(tell, b"x")
        os.read(wait, 1)

    pid = child(parent)
    os.read(told, 1)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    store.increment(key("counter"))
    assert store.value(key("counter")) == 3
    for descriptor in (told, tell, wait, go_on):
        os.close(descriptor)


def test_jobs_that_wait_belong_to_the_parent(store: Store, tmp_path: Path) -> None:
    engine = store.backend._engine
    thread = threading.Thread(target=store.increment, args=(key("counter"),))
    with queue_held(tmp_path / "store.db"):
        thread.start()
        writer = engine._writer
        assert writer is not None
        wait_until(lambda: writer._watchdog._waiting is not None)
        pid = os.fork()
        if not pid:
            os._exit(0)  # with its queue, if it had one
        ended(pid)
    thread.join(PATIENCE_SECONDS)
    assert store.value(key("counter")) == 2


def test_a_fork_waits_for_a_batch(store: Store) -> None:
    """Threads commit and read all the time; every child finds a store that works."""
    stop = threading.Event()

    def work(part: int) -> None:
        while not stop.is_set():
            store.commit({key("busy", part): add(1)})
            store.value(key("busy", part))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            ended(child(lambda: store.commit({key("counter"): add(1)}) and None))
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert store.value(key("counter")) == 11


def test_a_fork_inside_a_running_loop(tmp_path: Path, store: Store) -> None:
    async def main() -> None:
        backend = type(store.backend)(store.backend.path, synchronous="OFF")
        await backend.snapshot()
        ended(child(lambda: store.increment(key("counter")) and None))
        assert value_of((await backend.read([key("counter")])).entries[0]) == 2
        await backend.close()

    asyncio.run(main())


def test_the_parent_may_end_before_its_child(tmp_path: Path) -> None:
    """The parent closes as the last one it knows of, which removes the log; the child must have its own lock."""
    path = tmp_path / "store.db"
    wait, go_on = os.pipe()
    closed, tell = os.pipe()

    def parent() -> None:
        store = Store(path)
        store.increment(key("counter"))

        def grandchild() -> None:
            store.increment(key("counter"))
            os.write(tell, b"1")
            os.read(wait, 1)
            assert store.value(key("counter")) == 2
            for _ in range(10):
                store.increment(key("counter"))
            store.close()

        pid = child(grandchild)
        os.read(closed, 1)
        store.close()
        os.write(go_on, b"x")
        ended(pid)

    ended(child(parent))
    with opened(path) as store:
        assert store.value(key("counter")) == 12
    for descriptor in (wait, go_on, closed, tell):
        os.close(descriptor)


def test_a_closed_store_stays_closed_in_the_child(store: Store, tmp_path: Path) -> None:
    """And its descriptor, by now perhaps somebody else's, is left alone."""
    store.close()
    read, write = os.pipe()

    def body() -> None:
        os.write(write, b"still open")
        with pytest.raises(UsageError):
            store.snapshot()

    ended(child(body))
    assert os.read(read, 100) == b"still open"
    os.close(read)
    os.close(write)


def test_a_store_that_was_not_open_is_opened_on_each_side(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    pid = child(lambda: store.increment(key("counter")) and None)
    store.increment(key("counter"))
    ended(pid)
    assert store.value(key("counter")) == 2
    store.close()


def test_a_fork_in_the_midst_of_something_refuses_the_child_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_FORK_SECONDS", 0.05)
    writer = store.backend._engine._writer
    assert writer is not None
    release = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with writer.working:
            held.set()
            release.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE_SECONDS)

    def body() -> None:
        for _ in range(2):
            with pytest.raises(UsageError, match=r"forked.*spawn"):
                store.snapshot()

    pid = child(body)
    release.set()
    thread.join(PATIENCE_SECONDS)
    ended(pid)
    store.commit({key("counter"): number(5)})
    assert store.value(key("counter")) == 5


def test_waiting_in_parent_and_child(store: Store) -> None:
    token = store.snapshot()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(step(store.backend.wait(token, PATIENCE_SECONDS))))
    thread.start()
    wait_until(lambda: bool(store.backend._engine.news._waiting))

    def body() -> None:
        here = store.snapshot()
        assert not step(store.backend.wait(here, 0.01))
        store.increment(key("counter"))
        assert step(store.backend.wait(here, PATIENCE_SECONDS))

    ended(child(body))
    thread.join(PATIENCE_SECONDS)
    assert results == [True]


def test_a_store_that_is_opened_while_another_thread_forks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set of engines grows while the hook goes through it: it is gone through again, and all are paused."""

    class Growing(weakref.WeakSet[engines.Engine]):
        grown = False

        def __iter__(self) -> Iterator[engines.Engine]:
            for each in super().__iter__():
                yield each
                if not self.grown:
                    self.grown = True
                    raise RuntimeError("Set changed size during iteration")

    every = Growing(engines._forks.engines)
    monkeypatch.setattr(engines._forks, "engines", every)
    ended(child(lambda: store.increment(key("counter"))))
    assert every.grown
    assert value_of(step(store.backend.read((key("counter"),))).entries[0]) == 2
