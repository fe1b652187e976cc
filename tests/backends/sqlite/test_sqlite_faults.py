"""COMMIT that raises. Nobody knows then what is in the file, so it is decided anew before anybody is answered."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlite_support import Store, add, key, number, opened, step
from test_sqlite_batches import together

from interlock.backends.sqlite import writer as writers
from interlock.errors import BackendUnavailableError, CommitUnknownError
from interlock.model import ABSENT, CommitRefused, DuplicateTransaction, Reply, Settled


class Failing:
    """A connection whose COMMITs fail for a while: before they have happened, or after, or for want of room."""

    def __init__(self, inner: sqlite3.Connection, plan: list[str]) -> None:
        self._inner = inner
        self._plan = plan

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        how = self._plan.pop(0) if statement == "COMMIT" and self._plan else "well"
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL if how == "full" else sqlite3.SQLITE_IOERR_FSYNC
        if how == "before":
            self._inner.execute("ROLLBACK")
        elif how == "after" or how == "well":
            cursor = self._inner.execute(statement, *arguments)
        if how == "well":
            return cursor
        raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def plan() -> list[str]:
    """What the next COMMITs of the store do."""
    return []


@pytest.fixture
def store(tmp_path: Path, plan: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    real: Callable[..., sqlite3.Connection] = writers.connect
    monkeypatch.setattr(writers, "connect", lambda *a, **more: Failing(real(*a, **more), plan))
    with opened(tmp_path / "store.db") as made:
        made.commit({key("a"): number(0)})
        yield made


def test_a_commit_that_did_not_happen_is_fenced(store: Store, plan: list[str]) -> None:
    requests = [store.request({key("a"): add(1)}) for _ in range(3)]
    plan += ["before"]
    results = together(store, *requests)
    assert [type(result) for result in results] == [BackendUnavailableError] * 3
    assert store.value(key("a")) == 0
    for request in requests:
        assert step(store.backend.outcome(request.transaction, fence=False)) == (Settled.FENCED, None)
        with pytest.raises(DuplicateTransaction):
            step(store.backend.commit(request))
    store.commit({key("a"): add(1)})
    assert store.value(key("a")) == 1
    assert len(store.feed()) == 2


def test_a_commit_that_happened_is_acknowledged(store: Store, plan: list[str]) -> None:
    requests = [store.request({key("a"): add(1)}) for _ in range(3)]
    plan += ["after"]
    results = together(store, *requests)
    assert [type(result) for result in results] == [Reply] * 3
    assert store.value(key("a")) == 3
    assert store.value(key("a"), results[1].token) == 2
    assert [change.version for change in store.feed()][1:] == [result.version for result in results]


def test_refusals_of_such_a_batch_are_not_believed(store: Store, plan: list[str]) -> None:
    """They may rest on what did not happen."""
    token = store.snapshot()
    first = store.request({key("a"): number(1)}, snapshot=token)
    second = store.request({key("b"): number(1)}, guards={key("a"): store.entry(key("a")).version}, snapshot=token)  # type: ignore[union-attr]
    plan += ["before"]
    results = together(store, first, second)
    assert [type(result) for result in results] == [BackendUnavailableError] * 2
    step(store.backend.commit(store.request(second.writes, guards=second.guards, snapshot=token)))


def test_questions_of_such_a_batch_are_answered_by_the_file(store: Store, plan: list[str]) -> None:
    request = store.request({key("a"): number(1)})
    plan += ["before"]
    results = together(store, request, lambda: step(store.backend.outcome(request.transaction, fence=True)))
    assert isinstance(results[0], BackendUnavailableError)
    assert results[1] == (Settled.FENCED, None)
    again = store.request({key("a"): number(1)})
    plan += ["after"]
    results = together(store, again, lambda: step(store.backend.outcome(again.transaction, fence=True)))
    assert isinstance(results[0], Reply)
    assert results[1][0] is Settled.COMMITTED


def test_a_quiet_commit_of_such_a_batch(store: Store, plan: list[str]) -> None:
    plan += ["before"]
    with pytest.raises(BackendUnavailableError):
        store.commit({key("lock"): number(1)}, quiet=True)
    plan += ["after"]
    store.commit({key("lock"): number(2)}, quiet=True)
    assert store.value(key("lock")) == 2


@pytest.mark.parametrize("how", ["before", "after"])
def test_if_that_fails_too_nobody_knows(store: Store, plan: list[str], how: str) -> None:
    """A fence asked for later settles it, whatever had happened."""
    request = store.request({key("a"): number(1)})
    plan += [how, "well", "before"]  # the well one is the opening of the new connection
    with pytest.raises(CommitUnknownError) as caught:
        step(store.backend.commit(request))
    assert caught.value.maybe_committed
    assert caught.value.transaction_id == f"{request.transaction:032x}"
    settled, _ = step(store.backend.outcome(request.transaction, fence=True))
    assert settled is (Settled.FENCED if how == "before" else Settled.COMMITTED)
    assert store.value(key("a")) == (0 if how == "before" else 1)


def test_a_full_disk_is_a_definite_no(store: Store, plan: list[str]) -> None:
    """The frame that makes a batch valid was not written, so nothing has to be fenced, and all may be sent again."""
    request = store.request({key("a"): add(1)})
    refused = store.request({key("b"): number(1)}, reads={key("a"): ABSENT})
    plan += ["full"]
    results = together(store, request, refused)
    assert [type(result) for result in results] == [BackendUnavailableError] * 2
    assert "the disk is full" in str(results[0])
    assert step(store.backend.outcome(request.transaction, fence=False)) == (Settled.UNSEEN, None)
    assert isinstance(step(store.backend.commit(request)), Reply)
    assert store.value(key("a")) == 1


def test_who_was_refused_in_a_batch_that_is_unknown_has_written_nothing(store: Store, plan: list[str]) -> None:
    request = store.request({key("a"): add(1)})
    refused = store.request({key("b"): number(1)}, reads={key("a"): ABSENT})
    plan += ["before", "well", "before"]
    results = together(store, request, refused)
    assert [type(result) for result in results] == [CommitUnknownError, BackendUnavailableError]
    assert step(store.backend.outcome(request.transaction, fence=True)) == (Settled.FENCED, None)
    assert (store.value(key("a")), store.value(key("b"))) == (0, None)


def test_a_log_that_cannot_be_copied_leaves_it_unknown(
    tmp_path: Path, plan: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync nothing is believed before the database itself has it; a reader can be in the way of that."""
    real: Callable[..., sqlite3.Connection] = writers.connect
    monkeypatch.setattr(writers, "connect", lambda *a, **more: Failing(real(*a, **more), plan))
    with opened(tmp_path / "store.db", busy_seconds=0.05) as store:
        store.commit({key("a"): number(0)})
        reader = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM feed").fetchone()[0] > 0
        store.commit({key("a"): number(1)})
        request = store.request({key("a"): add(1)})
        plan += ["before"]
        with pytest.raises(CommitUnknownError, match="checkpoint"):
            step(store.backend.commit(request))
        reader.close()
        assert step(store.backend.outcome(request.transaction, fence=True)) == (Settled.FENCED, None)
        assert store.value(key("a")) == 1
        store.commit({key("a"): add(1)})
        assert store.value(key("a")) == 2


class Stuck:
    """A connection that cannot roll back and ends with an error, as long as ``stuck`` says so."""

    def __init__(self, inner: sqlite3.Connection, stuck: list[str]) -> None:
        self._inner = inner
        self._stuck = stuck

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if statement in self._stuck:
            raise sqlite3.OperationalError("disk I/O error")
        return self._inner.execute(statement, *arguments)

    def close(self) -> None:
        self._inner.close()
        if self._stuck:
            raise sqlite3.OperationalError("unable to close")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_connection_that_cannot_roll_back_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., sqlite3.Connection] = writers.connect
    stuck: list[str] = []
    made: list[Stuck] = []

    def connect(*arguments: Any, **more: Any) -> Stuck:
        made.append(Stuck(real(*arguments, **more), stuck))
        return made[-1]

    monkeypatch.setattr(writers, "connect", connect)
    with opened(tmp_path / "store.db") as store:
        store.commit({key("a"): number(0)})
        stuck += ["ROLLBACK"]
        with pytest.raises(CommitRefused):
            store.commit({key("a"): number(1)}, reads={key("a"): ABSENT})
        writer: Any = store.backend._engine._writer
        assert writer.connection is None
        stuck.clear()
        store.commit({key("a"): add(5)})
        assert store.value(key("a")) == 5
        assert len(made) == 2


def test_a_disk_that_stays_broken(store: Store, plan: list[str]) -> None:
    plan += ["before"] * 20
    for _ in range(3):
        with pytest.raises((CommitUnknownError, BackendUnavailableError)):
            store.commit({key("a"): add(1)})
    assert store.value(key("a")) == 0
    plan.clear()
    store.commit({key("a"): add(1)})
    assert store.value(key("a")) == 1


def test_a_compaction_of_such_a_batch(store: Store, plan: list[str]) -> None:
    for _ in range(5):
        store.commit({key("a"): add(1)})
    before = step(store.backend.now()) + 1
    plan += ["before"]
    with pytest.raises(BackendUnavailableError):
        step(store.backend.compact(before))
    assert step(store.backend.compact(before)) == 6
    assert store.value(key("a")) == 5
