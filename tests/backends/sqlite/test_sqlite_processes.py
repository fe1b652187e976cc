"""Many processes on one file: nothing lost, nobody starved, nobody waiting for ever."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from sqlite_support import (
    PATIENCE_SECONDS,
    Store,
    Worker,
    ended,
    go,
    key,
    number,
    opened,
    queue_held,
    step,
    told,
    wait_until,
)

from interlock.errors import BackendUnavailableError


def sound(path: Path) -> bool:
    """SQLite's own look at the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


def test_r139_processes_that_read_then_write_are_never_locked_out(tmp_path: Path, worker: Worker) -> None:
    """8 processes x 200 increments of one key, default settings: all there, none starved."""
    path = tmp_path / "store.db"
    with opened(path, synchronous="FULL") as store:
        processes = [worker("increments", path, 200) for _ in range(8)]
        for process in processes:
            told(process, "ready")
        begun = time.monotonic()
        for process in processes:
            go(process)
        times = [float(told(process, "done").split()[0]) - begun for process in processes]
        for process in processes:
            ended(process)
        assert store.value(key("counter")) == 1600
        assert len(store.feed()) == 1600
        assert max(times) < 5 * min(times)
    assert sound(path)


def test_r141_sixteen_processes_open_a_new_file_together(tmp_path: Path, worker: Worker) -> None:
    processes = [worker("open_new", tmp_path / "0.db") for _ in range(16)]
    for process in processes:
        told(process, "ready")
    for process in processes:
        go(process)
    for process in processes:
        ended(process)
    with opened(tmp_path / "0.db") as store:
        assert store.value(key("counter")) == 16


def test_r135_threads_open_new_files_together(tmp_path: Path) -> None:
    """As R141 with many more rounds: every store object is an engine of its own, as in as many processes."""
    from sqlite_support import in_threads

    for turn in range(10):
        stores = [Store(tmp_path / f"{turn}.db") for _ in range(8)]
        in_threads(8, lambda index, stores=stores: stores[index].increment(key("counter")))
        assert stores[0].value(key("counter")) == 8
        in_threads(8, lambda index, stores=stores: stores[index].close())


def test_nothing_acknowledged_is_lost_when_writers_are_killed(tmp_path: Path, worker: Worker) -> None:
    """30 kills with SIGKILL: what was acknowledged is there, whole, and once in the feed."""
    path = tmp_path / "store.db"
    chance = random.Random(7)
    acknowledged = 0
    breeder = worker("acknowledgers", path)
    assert breeder.stdin is not None
    with opened(path) as store, contextlib.ExitStack() as stack:
        for turn in range(15):
            names = [f"{turn}-{index}" for index in range(2)]
            for name in names:
                os.mkfifo(tmp_path / name)
                breeder.stdin.write(f"{name} {tmp_path / name}\n")
                breeder.stdin.flush()
            outputs = [stack.enter_context((tmp_path / name).open()) for name in names]
            for name, output in zip(names, outputs, strict=True):
                process = int(output.readline())
                lines = [output.readline() for _ in range(chance.randrange(1, 60))]
                os.kill(process, signal.SIGKILL)
                lines += output.read().splitlines(keepends=True)  # to the end, when the process is no more
                for line in lines:
                    if line.endswith("\n"):
                        part, count = map(int, line.split())
                        assert store.value(key(name, part, count)) == count, "an acknowledged commit is lost"
                        assert store.value(key(name, part, count, "twin")) == count, "a commit is torn"
                        acknowledged += 1
        feed = store.feed()
        assert acknowledged >= 30
        assert len(feed) == len({change.transaction for change in feed}) == store.value(key("sum"))
        assert [change.version[0] for change in feed] == list(range(1, len(feed) + 1))
        for change in feed:
            entries = step(store.backend.read(list(change.writes))).entries
            assert all(entry is not None for entry in entries)
    assert sound(path)


def test_the_feed_of_other_processes_is_complete_and_in_order(tmp_path: Path, worker: Worker) -> None:
    path = tmp_path / "store.db"
    with opened(path):
        follower = worker("follow", path, 300)
        told(follower, "ready")
        writers = [worker("increments", path, 100, "OFF") for _ in range(3)]
        for process in writers:
            told(process, "ready")
            go(process)
        assert told(follower, "seen") == "300"
        for process in (follower, *writers):
            ended(process)


def test_another_process_is_heard_of_within_20_ms(tmp_path: Path, worker: Worker) -> None:
    path = tmp_path / "store.db"
    rounds = 15
    with opened(path) as store:
        writer = worker("puts", path, rounds)
        told(writer, "ready")
        delays = []
        for _ in range(rounds):
            token = store.snapshot()
            woken: list[tuple[bool, float]] = []

            def wait(token: object = token, woken: list[tuple[bool, float]] = woken) -> None:
                woken.append((step(store.backend.wait(token, PATIENCE_SECONDS)), time.monotonic()))  # type: ignore[arg-type]

            thread = threading.Thread(target=wait)
            thread.start()
            wait_until(lambda: bool(store.backend._engine.news._waiting))
            go(writer)
            committed = float(told(writer, "committed"))
            thread.join(PATIENCE_SECONDS)
            assert woken[0][0] is True
            delays.append(woken[0][1] - committed)
        ended(writer)
        assert sorted(delays)[rounds // 2] < 0.02


def test_nobody_waits_longer_than_busy_seconds_for_a_stopped_process(tmp_path: Path, worker: Worker) -> None:
    path = tmp_path / "store.db"
    with opened(path, busy_seconds=0.3) as store:
        store.increment(key("a"))
        stopped = worker("stop_in_batch", path)
        told(stopped, "stopping")
        begun = time.monotonic()
        with pytest.raises(BackendUnavailableError, match=r"nothing was written.*-queue"):
            store.commit({key("b"): number(1)})
        assert 0.25 < time.monotonic() - begun < 3
        assert store.value(key("a")) == 2  # reads go on; the stopped process's second commit is not there
        late = Store(path, busy_seconds=0.3)
        with pytest.raises(BackendUnavailableError):
            late.snapshot()
        os.kill(stopped.pid, signal.SIGCONT)
        told(stopped, "went on")
        ended(stopped)
        store.increment(key("a"))
        assert store.value(key("a")) == 4
        assert store.entry(key("b")) is None
        assert late.value(key("a")) == 4
        late.close()


def test_a_dead_process_holds_nobody_up(tmp_path: Path, worker: Worker) -> None:
    path = tmp_path / "store.db"
    with opened(path) as store:
        store.increment(key("a"))
        stopped = worker("stop_in_batch", path)
        told(stopped, "stopping")
        os.kill(stopped.pid, signal.SIGKILL)
        stopped.wait()
        store.increment(key("a"))
        assert store.value(key("a")) == 3


def test_what_waits_for_the_queue_goes_on_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with opened(path) as store:
        store.increment(key("a"))
        with queue_held(path):
            thread = threading.Thread(target=store.increment, args=(key("a"),))
            thread.start()
            watchdog = store.backend._engine._writer._watchdog  # type: ignore[union-attr]
            wait_until(lambda: watchdog._waiting is not None)
            assert store.value(key("a")) == 1
        thread.join(PATIENCE_SECONDS)
        assert store.value(key("a")) == 2


def test_r140_a_program_that_holds_sqlites_own_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with opened(path, busy_seconds=0.2) as store:
        store.increment(key("a"))
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendUnavailableError, match="locked by a program that is not Interlock"):
            store.increment(key("a"))
        foreign.execute("ROLLBACK")
        store.increment(key("a"))
        assert store.value(key("a")) == 2
        foreign.close()
