"""Callers who are alone commit on their own thread; nobody gets ahead of anybody by it, and nothing is lost."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlite_support import Store, add, in_threads, key, number, opened, queue_held

from interlock.backends.sqlite import turns
from interlock.backends.sqlite.straight import WRITER
from interlock.errors import BackendUnavailableError, UsageError
from interlock.model import ABSENT, CommitRefused


class Watched:
    """A connection that calls ``before`` and ``after`` around each COMMIT."""

    def __init__(self, inner: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._inner, self._before, self._after = inner, before, after

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if statement != "COMMIT":
            return self._inner.execute(statement, *arguments)  # type: ignore[no-any-return]
        self._before()
        cursor = self._inner.execute(statement)
        self._after()
        return cursor  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def nothing() -> None:
    pass


@contextmanager
def watched(store: Store, before: Callable[[], None] = nothing, after: Callable[[], None] = nothing) -> Iterator[None]:
    writer = store.backend._engine._writer
    assert writer is not None
    inner = writer.connection
    writer.connection = Watched(inner, before, after)  # type: ignore[assignment]
    try:
        yield
    finally:
        writer.connection = inner


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store.db") as made:
        made.commit({key("a"): number(0)})
        yield made


def committers(store: Store, job: Callable[[], object]) -> list[str]:
    """The threads that commit while a thread of its own does a job."""
    names: list[str] = []
    with watched(store, before=lambda: names.append(threading.current_thread().name)):
        in_threads(1, lambda _: job())
    return names


def test_who_is_alone_commits_itself_but_not_on_the_main_thread(store: Store) -> None:
    assert committers(store, lambda: store.commit({key("a"): number(1)})) != [WRITER]
    names: list[str] = []
    with watched(store, before=lambda: names.append(threading.current_thread().name)):
        store.commit({key("a"): number(2)})
    assert names == [WRITER]
    assert store.value(key("a")) == 2


@pytest.mark.parametrize("why", ["a conflict", "a commit of another process"])
def test_after_a_meeting_nobody_is_alone_for_a_while(store: Store, why: str) -> None:
    def refused() -> None:
        with pytest.raises(CommitRefused):
            store.commit({key("a"): number(1)}, reads={key("a"): ABSENT})

    if why == "a conflict":
        in_threads(1, lambda _: refused())
    else:
        with opened(store.backend.path) as other:
            other.commit({key("a"): number(9)})
        store.commit({key("a"): number(1)})
    names = committers(store, lambda: [store.commit({key("a"): number(1)}) for _ in range(turns._SHARED_BATCHES + 2)])
    assert names.count(WRITER) >= turns._SHARED_BATCHES - 1
    assert WRITER not in names[-2:]


def test_a_caller_does_not_wait_for_another_process_itself(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db", busy_seconds=0.4) as store:
        store.commit({key("a"): number(0)})

        def late() -> None:
            with pytest.raises(BackendUnavailableError, match="nothing was written"):
                store.commit({key("a"): number(1)})

        with queue_held(tmp_path / "store.db"):
            in_threads(1, lambda _: late())
        in_threads(1, lambda _: store.commit({key("b"): number(1)}))
        assert store.value(key("a")) == 0


@pytest.mark.parametrize("committed", [False, True])
def test_what_is_raised_into_a_turn_leaves_nothing_wrong_behind(store: Store, committed: bool) -> None:
    """Somebody raises an exception in the caller's thread, as only tricks can do."""

    def stop() -> None:
        raise SystemExit

    def interrupted() -> None:
        with pytest.raises(SystemExit) as raised:
            store.commit({key("a"): add(1)})
        assert "it is not known whether the commit happened" in raised.value.__notes__[0]

    when: dict[str, Callable[[], None]] = {"after" if committed else "before": stop}
    assert store.value(key("a")) == 0
    with watched(store, **when):
        in_threads(1, lambda _: interrupted())
    assert store.value(key("a")) == committed
    for count in range(3):
        in_threads(1, lambda _: store.commit({key("a"): add(1)}))
        assert store.value(key("a")) == committed + count + 1


def test_closing_waits_for_a_turn(store: Store) -> None:
    begun, allowed = threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        assert allowed.wait(30)

    def job(index: int) -> object:
        if index == 0:
            return store.commit({key("a"): number(7)})
        assert begun.wait(30)
        threading.Timer(0.05, allowed.set).start()
        return store.close()

    with watched(store, before=pause):
        reply, _ = in_threads(2, job)
    assert reply
    with pytest.raises(UsageError):
        store.commit({key("a"): number(8)})
    with opened(store.backend.path) as again:
        assert again.value(key("a")) == 7


def test_callers_and_the_thread_take_turns(store: Store) -> None:
    """In a crowd, part of which always goes by the thread, and then alone: nothing is lost, and both ways are gone."""
    names: list[str] = []
    done: list[object] = []

    def work(index: int) -> None:
        for part in range(60):
            store.commit({key("a"): add(1), key("own", index): number(part)})

    with watched(store, before=lambda: names.append(threading.current_thread().name)):
        crowd = threading.Thread(target=lambda: done.extend(in_threads(3, work)))
        crowd.start()
        for _ in range(60):
            store.commit({key("a"): add(1)})
        crowd.join()
        in_threads(1, work)
    assert len(done) == 3
    assert WRITER in names
    assert names[-1] != WRITER
    assert store.value(key("a")) == 5 * 60
