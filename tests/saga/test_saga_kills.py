"""Coordinators killed with SIGKILL at every write of their saga, and so between any two acts, recovered by another
process that may be killed in its turn.

A child process runs the saga of `bank` over SQLite and kills itself before or after its n-th commit, for n = 1, 2, ...
until a run needs none. Then recovery runs, and the service's own log must show that everything was done once, or that
everything that was done has been undone; and the store must agree."""

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
from interlock.runtime import BlockingRuntime
from saga import bank
from soak import moments

LEASE_SECONDS = 0.1


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


def open_store(path: Path, at: int = 0, behind: bool = False, runtime: BlockingRuntime | None = None) -> Any:
    """A store that kills its process at a commit; 0: never."""
    killing = Killing(interlock.SQLiteBackend(path), at, behind)
    return interlock.sync.Store(killing, agent="coordinator", runtime=runtime)


def coordinate(path: Path, at: int, behind: bool, fails: bool, probed: bool, **options: Any) -> None:
    """The child: run the saga."""
    with open_store(path, at, behind) as store:
        try:
            bank.run(store, "o1", fails=fails, probed=probed, lease_seconds=LEASE_SECONDS, **options)
        except (bank.Refused, SagaError):
            pass


def recover(path: Path, at: int = 0, behind: bool = False) -> RecoveryReport:
    """Recover until no dead coordinator's lease is in the way."""
    runtime = Later()
    with open_store(path, at, behind, runtime) as store:
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


def status(path: Path) -> Any:
    """What the journal says in the end."""
    from interlock.layers.ledger import Ledger
    from interlock.saga.journal import SAGAS

    with open_store(path) as store:
        found = interlock.stepping.step(Ledger(store._engine).scan(SAGAS)).records
        return found[0].value["status"] if found else None


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """New files for each run; the path of the store's."""
    serial = itertools.count()

    def make() -> Path:
        directory = tmp_path / str(next(serial))
        directory.mkdir()
        monkeypatch.setenv("INTERLOCK_TEST_BANK", str(directory / "bank.log"))
        return directory / "saga.db"

    return make


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("fails", [False, True], ids=["commits", "fails"])
def test_a_coordinator_killed_at_every_write(places: Callable[[], Path], fails: bool, behind: bool) -> None:
    outcomes = set()
    for at in moments():
        path = places()
        killed = in_child(lambda path=path, at=at: coordinate(path, at, behind, fails, True))  # type: ignore[misc]
        report = recover(path)
        assert not report.unknown
        assert not report.dead_letters
        outcome = bank.judge()
        found = status(path)
        assert found in ((None, "undone") if outcome == "undone" else ("committed",)), (at, found, outcome)
        outcomes.add(outcome)
        if not killed:
            assert at > 9
            break
    assert outcomes == ({"undone"} if fails else {"done", "undone"})


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_without_a_probe_the_interrupted_step_is_a_dead_letter(places: Callable[[], Path], behind: bool) -> None:
    for at in moments():
        path = places()
        killed = in_child(lambda path=path, at=at: coordinate(path, at, behind, True, False))  # type: ignore[misc]
        report = recover(path)
        assert len(report.unknown) == len(report.dead_letters) <= 1
        done = [line for line in bank.lines() if line.startswith("do ")]
        left = [line for line in done if line.replace("do", "undo") not in bank.lines()]
        assert len(left) <= len(report.unknown), left  # all the others are undone
        if report.dead_letters:
            with open_store(path) as store:
                letters = list(store.dead_letters.list())
                assert [letter.dead_letter for letter in letters] == list(report.dead_letters)
                assert not store.dead_letters.retry(report.dead_letters[0])
                store.dead_letters.skip(report.dead_letters[0], reason="looked at the bank")
                assert list(store.dead_letters.list()) == []
            assert status(path) == "undone"
        if not killed:
            break


@pytest.mark.parametrize("first", [5, 7, 10])
def test_recovery_is_killed_at_every_write_too(places: Callable[[], Path], first: int) -> None:
    """The undo itself is killed; whoever comes next goes on with it. An undo may run twice, under one key."""
    for at in moments():
        path = places()
        assert in_child(lambda path=path: coordinate(path, first, True, True, True))  # type: ignore[misc]
        killed = in_child(lambda path=path, at=at: (recover(path, at, bool(at % 2)), None)[1])  # type: ignore[misc]
        report = recover(path)
        assert not report.dead_letters
        assert bank.judge() == "undone"
        assert status(path) == "undone"
        if not killed:
            break


def test_resumed_where_it_stopped(places: Callable[[], Path]) -> None:
    for at in moments():
        path = places()
        killed = in_child(
            lambda path=path, at=at: coordinate(path, at, True, False, True, on_crash="resume")  # type: ignore[misc]
        )
        runtime = Later()
        with open_store(path, runtime=runtime) as store:
            try:
                bank.run(store, "o1", fails=False, probed=True, on_crash="resume", lease_seconds=LEASE_SECONDS)
            except interlock.LeaseUnavailableError:
                runtime.ahead_seconds += LEASE_SECONDS
                bank.run(store, "o1", fails=False, probed=True, on_crash="resume", lease_seconds=LEASE_SECONDS)
        assert bank.judge() == "done"
        assert status(path) == "committed"
        if not killed:
            break
