"""Recorded histories with everything that may go wrong meanwhile, on each engine: clean, and every fault has fired."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import interlock
import tally
from interlock.errors import UsageError
from interlock.testing.histories import WORKLOADS, Settings, run
from interlock.testing.histories.troubles import FAULTS, NETWORK, FaultKind, Troubles
from interlock.testing.histories.worker import Part, work
from redis_servers import redis_server
from servers import missing, postgresql_server
from soak import usual

SERVER_FAULTS: tuple[FaultKind, ...] = (
    "cut", "reset", "lost-reply", "silence", "delay", "restart", "kill", "stop", "syscall-kill", "clock",
)  # fmt: skip
FILE_FAULTS: tuple[FaultKind, ...] = ("kill", "stop", "syscall-kill", "io-error", "clock")


def judged(settings: Settings, directory: Path, backend: str) -> None:
    """Run it; it has to be clean, and no fault may be missing."""
    verdict = run(settings, directory)
    assert verdict.findings.violations == []
    assert verdict.vacuous == []
    assert all(verdict.fired[name] for name in settings.faults)
    tally.note(backend, verdict.counts, verdict.fired)


def faulty(url: str, faults: tuple[FaultKind, ...], **more: Any) -> Settings:
    """Two processes of three agents, and each fault once."""
    each, fault_seconds, least = usual((1.0, 0.4, 100), (0.6, 0.25, 50))
    return Settings(
        "list-append", url, seconds=each * (len(faults) + 2), threads=3, faults=faults, fault_seconds=fault_seconds,
        least=least, control=False, **more,
    )  # fmt: skip


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB; where none may be mounted, an ordinary directory, where writes are refused instead."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)]
    mounted = not os.geteuid() and not subprocess.run(mount, capture_output=True, check=False).returncode
    yield place
    if mounted:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def traced(request: pytest.FixtureRequest) -> None:
    """strace, which has to be there and to be allowed."""
    done = subprocess.run(["sh", "-c", "strace -o /dev/null true"], capture_output=True, check=False)
    if done.returncode:
        missing("strace", done.stderr.decode(errors="replace").strip())


@pytest.mark.usefixtures("traced")
def test_postgresql_with_every_fault(tmp_path: Path) -> None:
    with postgresql_server() as server:
        judged(
            faulty(server.url, SERVER_FAULTS, restart=lambda: (server.kill(), server.start())), tmp_path, "postgresql"
        )


@pytest.mark.usefixtures("traced")
def test_redis_with_every_fault(tmp_path: Path) -> None:
    with redis_server() as server:
        judged(faulty(server.url, SERVER_FAULTS, restart=lambda: (server.kill(), server.start())), tmp_path, "redis")


@pytest.mark.usefixtures("traced")
def test_sqlite_with_every_fault_of_processes_and_files(tmp_path: Path) -> None:
    judged(faulty(f"sqlite:///{tmp_path}/store.db", FILE_FAULTS), tmp_path / "out", "sqlite")


@pytest.mark.usefixtures("traced")
def test_sqlite_on_a_disk_that_is_full_at_times(tmp_path: Path) -> None:
    """Of whatever size: its room is refused, and not taken."""
    judged(faulty(f"sqlite:///{tmp_path}/store.db", ("full-disk", "kill")), tmp_path / "out", "sqlite")


@pytest.mark.usefixtures("traced")
def test_sqlite_on_a_small_disk_that_is_full_at_times(small_disk: Path, tmp_path: Path) -> None:
    judged(faulty(f"sqlite:///{small_disk}/store.db", ("full-disk", "kill")), tmp_path / "out", "sqlite")


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "redis"])
def test_every_workload_on_every_engine(
    workload: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In threads of one process, briefly: how many conflicts there are is a matter of the longer runs."""
    url = f"sqlite:///{tmp_path}/store.db" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    settings = Settings(workload, url, seconds=usual(0.5, 0.2), processes=1, threads=6, control=False)
    verdict = run(settings, tmp_path / "out")
    assert verdict.findings.violations == []
    assert verdict.counts["ok"] > 0
    tally.note(engine, verdict.counts)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The sources of today under an earlier number. One whose stores have another form is refused, which has a test of
    its own in each engine's."""
    place = tmp_path / "earlier"
    place.mkdir()
    source = Path(interlock.__file__).parents[1]
    shutil.copytree(source / "interlock", place / "interlock", ignore=shutil.ignore_patterns("__pycache__"))
    init = place / "interlock" / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "', '__version__ = "0.0.'))
    return place


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "redis"])
def test_w19_two_versions_over_one_store(
    engine: str, earlier: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/store.db" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    sources = str(earlier), str(Path(interlock.__file__).parents[1])
    seconds, least = usual((5.0, 20), (1.5, 4))
    settings = Settings("list-append", url, seconds=seconds, processes=2, threads=3, least=least, control=False)
    verdict = run(replace(settings, sources=sources), tmp_path / "out")
    assert verdict.findings.violations == []
    assert verdict.vacuous == []
    tally.note(engine, verdict.counts)


@pytest.mark.parametrize(
    ("url", "faults", "said"),
    [
        ("sqlite:///x.db", ("cut",), "faults of a network"),
        ("redis://localhost", ("restart",), "say how"),
        ("postgresql://localhost/x", ("io-error",), "SQLite's file"),
        ("redis://localhost", ("full-disk",), "SQLite's file"),
    ],
)
def test_a_fault_that_cannot_meet_the_store_is_refused(
    url: str, faults: tuple[FaultKind, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        run(Settings("bank", url, faults=faults), tmp_path)


def test_a_large_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can refuse the writes, nothing is done."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"total": 1 << 40}))
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(UsageError, match="larger than 256 MiB"):
        run(Settings("bank", f"sqlite:///{tmp_path}/x.db", faults=("full-disk",)), tmp_path)


def test_every_fault_is_fired_by_some_test() -> None:
    assert {*SERVER_FAULTS, *FILE_FAULTS, "full-disk"} == set(FAULTS)
    assert set(SERVER_FAULTS) > NETWORK


def test_a_worker_that_finds_no_server_until_its_time_is_over_has_done_nothing(tmp_path: Path) -> None:
    part = Part(
        workload="bank", mode="serializable", url="redis://127.0.0.1:1", resource="r", directory=str(tmp_path),
        name="late", first=0, threads=2, stride=4, seed=0, until=0.0, think_seconds=0.0,
    )  # fmt: skip
    work(part)
    assert (tmp_path / "late.jsonl").read_text() == ""


def test_a_worker_that_dies_at_its_call_while_strace_lets_it_go_is_not_killed_again() -> None:
    class Late:
        ends: list[int | None] = [None, -signal.SIGKILL]  # noqa: RUF012
        replaced = 0

        def wait(self, place: int, seconds: float) -> int | None:
            return self.ends.pop(0)

        def replace(self, place: int) -> None:
            self.replaced += 1

    troubles: Any = object.__new__(Troubles)
    troubles._workers, troubles._url, troubles._random = Late(), "sqlite:///x.db", random.Random(0)
    troubles._traced = lambda places, what: contextlib.nullcontext()
    assert troubles._kill_at_a_syscall(0) == 1
    assert (troubles._workers.ends, troubles._workers.replaced) == ([], 1)
