"""Transactions as steps, their coordinators killed with SIGKILL at every write to either store, recovered by another
process that may be killed in its turn: over one store, and over two of different engines.

What is compared in the end is the stores themselves. Adds are used throughout, because an ``add`` that is taken back
twice, or not at all, shows."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock.sync
from cases.faults import is_commit
from interlock import BackendUnavailableError, SagaError
from saga.test_saga_kills import LEASE_SECONDS, Killing, Later, begin_child, in_child, recover_until_quiet, when_free
from soak import moments, usual

PLACES = ("here", "there", "both")


class Refused(Exception):
    """What makes the saga fail."""


class Steady(Killing):
    """Does not count the renewals of leases, which come when they like."""

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        if is_commit(name, args) and all(key.startswith(b"\0pulse") for key in args[0].writes):
            return await call()
        return await super().around(name, args, call)


class Counter:
    """Counts the commits to both stores in one order."""

    def __init__(self, at: int, behind: bool) -> None:
        self.count = itertools.count(1)
        self.at = at
        self.behind = behind

    def over(self, backend: Any) -> Any:
        """The backend, counted."""
        killing = Steady(backend, self.at, self.behind)
        killing.count = self.count
        return killing


class Two:
    """The store with the journal, and another one on an engine of its own."""

    def __init__(self, here: Path, there: str, at: int = 0, behind: bool = False) -> None:
        counter = Counter(at, behind)
        self.runtime = Later()
        journal = counter.over(interlock.SQLiteBackend(here))
        self.here = interlock.sync.Store(journal, agent="coordinator", runtime=self.runtime)
        self.there = interlock.sync.Store(counter.over(interlock.opening.backend_for(there, {})), agent="coordinator")

    def __enter__(self) -> Two:
        return self

    def __exit__(self, *error: object) -> None:
        self.here.close()
        self.there.close()

    def state(self) -> list[Any]:
        """What both hold."""
        return [list(store.resource("goods").scan()) for store in (self.here, self.there)]


def fill(session: Any) -> None:
    """What there is before."""
    session.write("count", 10)
    session.write("list", [1])


def take(session: Any, amount: int) -> int:
    """A transaction with merges and writes."""
    session.add("count", -amount, floor=0)
    session.append("list", amount)
    session.write("new", amount)
    return amount


def run(two: Two, where: str, fails: bool, dies: bool = False, **options: Any) -> None:
    """Transactions on one store, on the other, or on both in turn."""
    with two.here.saga("move", id="m1", lease_seconds=LEASE_SECONDS, stores=[two.there], **options) as saga:
        stores = {"here": [two.here], "there": [two.there], "both": [two.there, two.here, two.there]}[where]
        for number, store in enumerate(stores):
            assert saga.transact(store.resource("goods"), take, number + 1) == number + 1
        if fails:
            raise Refused
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def places(tmp_path: Path, url: str) -> Callable[[], tuple[Path, str]]:
    """A new file for the journal, and a new place in the other engine."""
    serial = itertools.count()

    def make() -> tuple[Path, str]:
        number = next(serial)
        there = url
        if url.startswith("sqlite"):
            there = f"sqlite:///{tmp_path / f'there{number}.db'}"
        return tmp_path / f"here{number}.db", there

    return make


def prepared(places: Callable[[], tuple[Path, str]]) -> tuple[tuple[Path, str], list[Any]]:
    """Two filled stores, and what they hold."""
    paths = places()
    with Two(*paths) as two:
        for store in (two.here, two.there):
            resource = store.resource("goods")
            resource.run(lambda session: session.clear())
            resource.run(fill)
        return paths, two.state()


def coordinate(paths: tuple[Path, str], at: int, behind: bool, where: str, fails: bool, **options: Any) -> None:
    """The child: run the saga."""
    with Two(*paths, at, behind) as two:
        try:
            run(two, where, fails, **options)
        except (Refused, SagaError):
            pass


def recover(paths: tuple[Path, str], at: int = 0, behind: bool = False) -> Any:
    """Recover with both stores at hand."""
    with Two(*paths, at, behind) as two:
        return recover_until_quiet(two.here, two.runtime, stores=[two.there])


def every(url: str, numbers: Any) -> Any:
    """Each boundary on files; some on servers, where a child takes its time to connect."""
    return numbers if url.startswith("sqlite") else itertools.islice(numbers, usual(2, 1), None, usual(6, 3))


on_every_engine = pytest.mark.parametrize("url", ["sqlite", "postgresql", "redis"], indirect=True)
"""Memory is gone with its process."""


@on_every_engine
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("where", PLACES)
def test_a_coordinator_killed_at_every_write(url: str, places: Any, where: str, behind: bool) -> None:
    for at in every(url, moments()):
        paths, before = prepared(places)
        killed = in_child(lambda: coordinate(paths, at, behind, where, fails=True))  # noqa: B023
        report = recover(paths)
        assert not report.dead_letters
        assert not report.unknown
        with Two(*paths) as two:
            assert two.state() == before, (at, killed)
            assert list(two.here.dead_letters.list()) == []
        if not killed:
            break


def die_undecided(paths: tuple[Path, str], where: str) -> None:
    """The child: do everything, and be killed before anything is decided."""
    with Two(*paths) as two:
        run(two, where, False, dies=True)


@on_every_engine
@pytest.mark.parametrize("where", PLACES)
def test_recovery_is_killed_at_every_write_too(url: str, places: Any, where: str) -> None:
    for at in every(url, moments()):
        paths, before = prepared(places)
        assert in_child(lambda: die_undecided(paths, where))  # noqa: B023
        killed = in_child(lambda: (recover(paths, at, bool(at % 2)), None)[1])  # type: ignore[func-returns-value]  # noqa: B023
        report = recover(paths)
        assert not report.dead_letters
        with Two(*paths) as two:
            assert two.state() == before, at
        if not killed:
            break


class Stopping(Steady):
    """Stops the process at a commit instead of killing it."""

    end = signal.SIGSTOP


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("where", "behind"), [("here", False), ("here", True), ("both", True)])
def test_a_recovery_that_is_stopped_takes_nothing_back_twice(
    url: str, places: Any, where: str, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes over meanwhile; the first goes on, and has nothing to say any more."""
    for at in moments(2):
        paths, before = prepared(places)
        assert in_child(lambda: die_undecided(paths, where))  # noqa: B023
        with monkeypatch.context() as patched:
            patched.setattr(sys.modules[__name__], "Steady", Stopping)
            child = begin_child(lambda: (recover(paths, at, behind), None)[1])  # type: ignore[func-returns-value]  # noqa: B023
        _, status = os.waitpid(child, os.WUNTRACED)
        stopped = os.WIFSTOPPED(status)
        if stopped:
            with contextlib.suppress(BackendUnavailableError):  # stopped while it held the file
                assert not recover(paths).dead_letters
            os.kill(child, signal.SIGCONT)
            os.waitpid(child, 0)
        recover(paths)
        with Two(*paths) as two:
            assert two.state() == before, at
            assert list(two.here.dead_letters.list()) == []
        if not stopped and at > 3:
            break


@on_every_engine
@pytest.mark.parametrize("where", PLACES)
def test_resumed_where_it_stopped(url: str, places: Any, where: str) -> None:
    for at in every(url, moments()):
        paths, _ = prepared(places)
        killed = in_child(lambda: coordinate(paths, at, True, where, fails=False, on_crash="resume"))  # noqa: B023
        with Two(*paths) as two:
            when_free(two.runtime, lambda: run(two, where, False, on_crash="resume"))
            counts = [dict(rows)["count"] for rows in two.state()]
            assert counts == {"here": [9, 10], "there": [10, 9], "both": [10 - 2, 10 - 1 - 3]}[where], at
        if not killed:
            break
