"""Coordinators killed with SIGKILL at every write of their saga, and so between any two acts, recovered by another
process that may be killed in its turn.

A child process runs the saga of `bank` and kills itself before or after its n-th commit, for n = 1, 2, ... until a run
needs none: over SQLite, each time in a new file, and over the servers, each time as another saga of one store. Then
recovery runs, and the service's own log must show that everything was done once, or that everything that was done has
been undone; and the store must agree."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock.sync
from cases.faults import Wrapped, is_commit
from interlock import RecoveryReport, SagaError
from interlock.opening import backend_for
from interlock.runtime import BlockingRuntime
from saga import bank
from soak import moments

LEASE_SECONDS = 30.0
"""No machine is so slow that a living coordinator loses its lease; a dead one's ends by the observer's own clock."""


class Killing(Wrapped):
    """Kills the process at a commit."""

    end = signal.SIGKILL

    def __init__(self, inner: Any, at: int, behind: bool) -> None:
        super().__init__(inner)
        self.at = at
        self.behind = behind
        self.count = itertools.count(1)

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Before it has arrived, or behind it."""
        if not is_commit(name, args) or next(self.count) != self.at:
            return await call()
        done = await call() if self.behind else None
        os.kill(os.getpid(), self.end)
        return done if self.behind else await call()  # it was only stopped


def in_child(body: Callable[[], None]) -> bool:
    """Run something in a forked child; whether it was killed. Any other death fails the test."""
    _, status = os.waitpid(begin_child(body), 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child has failed"
    return os.WIFSIGNALED(status)


def begin_child(body: Callable[[], None]) -> int:
    """Begin something in a forked child; its id."""
    child = os.fork()
    if not child:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:
            sys.__stderr__.write(f"in the child: {error!r}\n")  # type: ignore[union-attr]
        finally:
            os._exit(code)
    return child


class Later(BlockingRuntime):
    """A monotonic clock that a test can put forward: an observer of a dead coordinator's lease for whom time flies."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_seconds = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        """The time that this process sees."""
        return time.monotonic() + self.ahead_seconds


Place = tuple[str, str]
"""The URL of a store, and the id of the saga in it."""


def open_store(place: Place, at: int = 0, behind: bool = False, runtime: BlockingRuntime | None = None) -> Any:
    """A store that kills its process at a commit; 0: never."""
    killing = Killing(backend_for(place[0], {}), at, behind)
    return interlock.sync.Store(killing, agent="coordinator", runtime=runtime)


def coordinate(place: Place, at: int, behind: bool, fails: bool, probed: bool, **options: Any) -> None:
    """The child: run the saga."""
    with open_store(place, at, behind) as store:
        try:
            bank.run(store, place[1], fails=fails, probed=probed, lease_seconds=LEASE_SECONDS, **options)
        except (bank.Refused, SagaError):
            pass


def recover(place: Place, at: int = 0, behind: bool = False) -> RecoveryReport:
    """Recover until no dead coordinator's lease is in the way."""
    runtime = Later()
    with open_store(place, at, behind, runtime) as store:
        return recover_until_quiet(store, runtime)


def recover_until_quiet(store: Any, runtime: Later, **options: Any) -> RecoveryReport:
    """Recover; a dead coordinator's lease is in the way until it has been seen unchanged for as long as it is good, on
    the clock of ``runtime``, which is the store's."""
    for _ in range(3):
        report: RecoveryReport = store.recover(older_than_seconds=0, lease_seconds=LEASE_SECONDS, **options)
        if not report.live:
            return report
        runtime.ahead_seconds += LEASE_SECONDS
    raise AssertionError("a dead coordinator's lease does not end")


def when_free(runtime: Later, act: Callable[[], object]) -> None:
    """Act; a second time where a dead coordinator's lease is in the way of the first."""
    try:
        act()
    except interlock.LeaseUnavailableError:
        runtime.ahead_seconds += LEASE_SECONDS
        act()


def status(place: Place) -> Any:
    """What the journal says in the end."""
    from interlock.layers.ledger import Ledger
    from interlock.saga.journal import SAGAS

    with open_store(place) as store:
        (found,) = interlock.stepping.step(Ledger(store._engine).read(SAGAS, [SAGAS.key("order", place[1])])).records
        return found.value["status"] if found.value is not None else None


Places = Callable[[], Place]
on_every_engine = pytest.mark.parametrize("url", ["sqlite", "postgresql", "redis"], indirect=True)
"""Memory is gone with its process."""
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def places(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A new place and a new outside world for each run."""
    serial = itertools.count()

    def make() -> Place:
        number = next(serial)
        monkeypatch.setenv("INTERLOCK_TEST_BANK", str(tmp_path / f"bank{number}.log"))
        return (f"sqlite:///{tmp_path}/saga{number}.db", "o1") if url.startswith("sqlite") else (url, f"o{number}")

    return make


@on_every_engine
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("fails", [False, True], ids=["commits", "fails"])
def test_a_coordinator_killed_at_every_write(places: Places, fails: bool, behind: bool) -> None:
    outcomes = set()
    for at in moments():
        place = places()
        killed = in_child(lambda place=place, at=at: coordinate(place, at, behind, fails, True))  # type: ignore[misc]
        report = recover(place)
        assert not report.unknown
        assert not report.dead_letters
        outcome = bank.judge()
        found = status(place)
        assert found in ((None, "undone") if outcome == "undone" else ("committed",)), (at, found, outcome)
        outcomes.add(outcome)
        if not killed:
            assert at > 9
            break
    assert outcomes == ({"undone"} if fails else {"done", "undone"})


@on_sqlite
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_without_a_probe_the_interrupted_step_is_a_dead_letter(places: Places, behind: bool) -> None:
    for at in moments():
        place = places()
        killed = in_child(lambda place=place, at=at: coordinate(place, at, behind, True, False))  # type: ignore[misc]
        report = recover(place)
        assert len(report.unknown) == len(report.dead_letters) <= 1
        done = [line for line in bank.lines() if line.startswith("do ")]
        left = [line for line in done if line.replace("do", "undo") not in bank.lines()]
        assert len(left) <= len(report.unknown), left  # all the others are undone
        if report.dead_letters:
            with open_store(place) as store:
                letters = list(store.dead_letters.list())
                assert [letter.dead_letter for letter in letters] == list(report.dead_letters)
                assert not store.dead_letters.retry(report.dead_letters[0])
                store.dead_letters.skip(report.dead_letters[0], reason="looked at the bank")
                assert list(store.dead_letters.list()) == []
            assert status(place) == "undone"
        if not killed:
            break


@on_every_engine
@pytest.mark.parametrize("first", [5, 7, 10])
def test_recovery_is_killed_at_every_write_too(places: Places, first: int) -> None:
    """The undo itself is killed; whoever comes next goes on with it. An undo may run twice, under one key."""
    for at in moments():
        place = places()
        assert in_child(lambda place=place: coordinate(place, first, True, True, True))  # type: ignore[misc]
        killed = in_child(lambda place=place, at=at: (recover(place, at, bool(at % 2)), None)[1])  # type: ignore[misc]
        report = recover(place)
        assert not report.dead_letters
        assert bank.judge() == "undone"
        assert status(place) == "undone"
        if not killed:
            break


@on_every_engine
def test_resumed_where_it_stopped(places: Places) -> None:
    for at in moments():
        place = places()
        killed = in_child(
            lambda place=place, at=at: coordinate(place, at, True, False, True, on_crash="resume")  # type: ignore[misc]
        )
        runtime = Later()
        with open_store(place, runtime=runtime) as store:
            resume = {"on_crash": "resume", "lease_seconds": LEASE_SECONDS}
            when_free(runtime, lambda: bank.run(store, place[1], fails=False, probed=True, **resume))  # noqa: B023
        assert bank.judge() == "done"
        assert status(place) == "committed"
        if not killed:
            break
