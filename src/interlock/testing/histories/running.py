"""Runs a workload in several processes, with faults, and says what its history is worth.

Each run writes under a resource name of its own, ``histories-...``, and leaves what it wrote there.

A run proves something only if it could have failed. So the verdict is not just the judge's: a run with few
transactions, few conflicts or hardly any overlap, one whose faults did not fire, and one whose *positive control* - the
same workload in a mode that does not promise what is judged - came out clean, is *vacuous*, and that is a failure.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

import interlock
import interlock.sync
from interlock.core import isolation as modes
from interlock.core.isolation import Isolation
from interlock.errors import UsageError
from interlock.testing.histories import records
from interlock.testing.histories.findings import Findings
from interlock.testing.histories.graph import MODELS
from interlock.testing.histories.records import History, Recorder
from interlock.testing.histories.worker import READY, Part, work
from interlock.testing.histories.workloads import WORKLOADS, Workload, final_read

FaultKind = Literal["kill", "stop"]
FAULTS: Final[tuple[FaultKind, ...]] = ("kill", "stop")
"""What can be done to a worker: SIGKILL and a new one in its place; SIGSTOP for a while."""

STEP_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Settings:
    """A run. ``seconds`` of work in ``processes`` processes of ``threads`` threads; ``faults``: what is done to them,
    in turn, about every ``fault_seconds``; ``least``: how many acknowledged transactions make a run count."""

    workload: str
    url: str
    mode: Isolation = "serializable"
    seconds: float = 10.0
    processes: int = 2
    threads: int = 4
    seed: int = 0
    faults: tuple[FaultKind, ...] = ()
    fault_seconds: float = 1.0
    think_seconds: float = 0.002
    least: int = 1000
    control: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def check(self) -> Workload:
        """Raises `UsageError` for a run that cannot be."""
        workload = WORKLOADS.get(self.workload)
        if workload is None:
            raise UsageError(f"no workload {self.workload!r}; there are {', '.join(WORKLOADS)}")
        if modes.rank(self.mode) < modes.rank(workload.weakest):
            raise UsageError(
                f"{self.workload} asks for {workload.weakest!r} or more; {self.mode!r} does not promise it"
            )
        if self.processes < 1 or self.threads < 1 or self.seconds <= 0:
            raise UsageError("a run has at least one process, one thread and some time")
        if self.url.startswith("memory:") and (self.processes > 1 or self.faults):
            raise UsageError("a memory store is one process's; use processes=1 and no faults")
        unknown = set(self.faults) - set(FAULTS)
        if unknown:
            raise UsageError(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
        return workload


@dataclass
class Verdict:
    """What a run showed. ``vacuous`` says why it proves nothing; empty if it does prove something."""

    settings: Settings
    counts: dict[str, int]
    overlapping: float
    fired: dict[str, int]
    findings: Findings
    vacuous: list[str]
    path: Path
    control_violations: int | None = None

    @property
    def passed(self) -> bool:
        """No violation, and not for want of trying."""
        return not self.findings.violations and not self.vacuous


def overlapping(history: History) -> float:
    """The share of the transactions during which another one was under way."""
    events = []
    for each in history.transactions:
        events += [(each.begun, each.number, 1), (each.ended, each.number, 0)]
    events.sort()
    under_way: set[int] = set()
    met: set[int] = set()
    for _time, number, begins in events:
        if begins:
            if under_way:
                met.add(number)
                met |= under_way
            under_way.add(number)
        else:
            under_way.discard(number)
    return len(met) / max(1, len(history.transactions))


class _Processes:
    """The worker processes of a run and what is done to them. Only these are ever signalled."""

    def __init__(self, settings: Settings, resource: str, directory: Path, until: float) -> None:
        self.settings = settings
        self.resource = resource
        self.directory = directory
        self.until = until
        self.stride = settings.processes * settings.threads
        self.fired: dict[str, int] = dict.fromkeys(settings.faults, 0)
        self._random = random.Random(f"{settings.seed} faults")
        self._incarnations = [0] * settings.processes
        self._running: list[subprocess.Popen[bytes]] = []
        self._complaints: Any = None

    def part(self, place: int) -> Part:
        """The next incarnation of one process; its threads have numbers that nobody has had."""
        s = self.settings
        incarnation = self._incarnations[place]
        self._incarnations[place] += 1
        first = place * s.threads + incarnation * 1000 * self.stride
        return Part(
            s.url, self.resource, s.workload, s.mode, str(self.directory), f"process-{place}-{incarnation}", first,
            s.threads, self.stride, s.seed, self.until, s.think_seconds, s.options,
        )  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        """A process that comes up, and then waits to be told its part."""
        here = str(Path(interlock.__file__).absolute().parents[1])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [sys.executable, "-m", "interlock.testing.histories.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def begin(self, process: subprocess.Popen[bytes], place: int) -> None:
        """Give a process that has come up its part."""
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self.part(place)) + b"\n")
        process.stdin.close()

    def await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Raises `RuntimeError` if the process ends instead of coming up."""
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline() != READY:
                raise RuntimeError(f"a worker did not come up: {self._said()}")

    def run(self, on_progress: Callable[[float], None]) -> None:
        s = self.settings
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 -- closed below
        try:
            for _ in range(s.processes):
                self._running.append(self.start())
            for process in self._running:
                self.await_ready(process)
            self.until = time.monotonic() + s.seconds  # the time to come up is not the run's
            for place, process in enumerate(self._running):
                self.begin(process, place)
            next_fault, number = time.monotonic() + s.fault_seconds, 0
            while (now := time.monotonic()) < self.until:
                on_progress(self.until - now)
                time.sleep(min(STEP_SECONDS, self.until - now))
                if s.faults and time.monotonic() >= next_fault and self.until - time.monotonic() > 0.5:
                    self._fire(s.faults[number % len(s.faults)], self._random.randrange(s.processes))
                    number += 1
                    next_fault = time.monotonic() + s.fault_seconds
            for process in self._running:
                if process.wait(timeout=60):
                    raise RuntimeError(f"a worker ended with status {process.returncode}: {self._said()}")
        finally:
            for process in self._running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            self._complaints.close()

    def _fire(self, fault: FaultKind, place: int) -> None:
        process = self._running[place]
        if process.poll() is not None:
            raise RuntimeError(f"a worker ended before its time: {self._said()}")
        if fault == "kill":
            process.send_signal(signal.SIGKILL)
            process.wait()
            self._running[place] = self.start()
            self.await_ready(self._running[place])
            self.begin(self._running[place], place)
        else:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2 + self._random.random() * 0.3)
            process.send_signal(signal.SIGCONT)
        self.fired[fault] += 1

    def _said(self) -> str:
        self._complaints.seek(0)
        return str(self._complaints.read().decode("utf-8", "replace"))[-2000:].strip()


def run(settings: Settings, directory: Path, *, on_progress: Callable[[float], None] | None = None) -> Verdict:
    """Run a workload and judge its history; files go to ``directory``, the merged one is ``history.jsonl``.

    ``on_progress`` is called a few times a second with the seconds that are left. Raises `UsageError` for settings that
    make no sense, `RuntimeError` if a worker process ends by itself."""
    workload = settings.check()
    verdict = _one_run(settings, workload, directory / "run", on_progress or (lambda left: None))
    weaker: Any = workload.control
    if weaker is not None and modes.rank(weaker) >= modes.rank(settings.mode):
        weaker = "none"
    if settings.control and weaker is not None and weaker != settings.mode:
        control = replace(settings, mode=weaker, seconds=min(settings.seconds, 5.0), faults=(), control=False)
        told = _one_run(control, workload, directory / "control", on_progress or (lambda left: None), settings.mode)
        verdict.control_violations = len(told.findings.violations)
        if not told.findings.violations:
            verdict.vacuous.append(f"the control under {weaker!r} shows no violation")
    return verdict


def _one_run(
    settings: Settings, workload: Workload, directory: Path, on_progress: Callable[[float], None],
    judged_as: Isolation | None = None,
) -> Verdict:  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    own, name = settings, f"histories-{secrets.token_hex(8)}"
    with interlock.sync.open(own.url, agent="history", isolation="none", **own.options) as store:
        resource = store.resource(name)
        recorder = Recorder(directory, "supervisor", 1)
        try:
            if workload.setup is not None:
                _recorded(recorder, 2_000_000_000, "setup", resource, workload.setup)
            processes = _Processes(own, name, directory, time.monotonic() + own.seconds)
            if own.processes == 1 and not own.faults:
                _in_process(processes, on_progress)
            else:
                processes.run(on_progress)
            keys = sorted(_keys_of(directory) | {key for key, _value in _everything(resource)})
            recorder.begin(2_000_000_001, [["r", key, None] for key in keys], "final")
            steps = final_read(resource, keys)
            if workload.name == "list-append":
                steps = [[what, key, value or []] for what, key, value in steps]
            recorder.end(2_000_000_001, "ok", steps, f="final")
        finally:
            recorder.close()
    records.merge(directory, directory / "history.jsonl")
    history = records.load(directory / "history.jsonl")
    findings = workload.judge(history, MODELS[judged_as or own.mode])
    share = overlapping(history)
    reasons = _vacuous(own, workload, history, share, processes.fired)
    return Verdict(own, history.counts, share, processes.fired, findings, reasons, directory / "history.jsonl")


def _in_process(processes: _Processes, on_progress: Callable[[float], None]) -> None:
    """All threads here, for stores that only this process has."""
    failures: list[BaseException] = []

    def body() -> None:
        try:
            work(processes.part(0))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    while thread.is_alive():
        on_progress(max(0.0, processes.until - time.monotonic()))
        thread.join(STEP_SECONDS)
    if failures:
        raise failures[0]


def _recorded(recorder: Recorder, process: int, f: str, resource: Any, body: Callable[[Any, list[Any]], None]) -> None:
    recorder.begin(process, [], f)
    with resource.session() as session:
        body(session, [])
    recorder.end(process, "ok", [], f=f)


def _everything(resource: Any) -> Sequence[tuple[str, Any]]:
    return list(resource.scan())


def _keys_of(directory: Path) -> set[str]:
    """Every key that a transaction named or touched."""
    history = records.load(directory)
    return {key for each in history.transactions for what, key, _value in each.steps if what not in ("rp",) and key}


def _vacuous(
    settings: Settings, workload: Workload, history: History, share: float, fired: dict[str, int]
) -> list[str]:
    reasons = []
    counts = history.counts
    if counts["ok"] < settings.least:
        reasons.append(f"only {counts['ok']} transactions were acknowledged, fewer than {settings.least}")
    conflicting = workload.name not in ("escrow", "monotonic", "long-fork") and settings.mode != "none"
    if conflicting and counts["fail"] < 0.05 * (counts["ok"] + counts["fail"]):
        reasons.append(f"only {counts['fail']} of {sum(counts.values())} transactions were refused, fewer than 5 %")
    if share < 0.5:
        reasons.append(f"only {share:.0%} of the transactions overlapped another")
    reasons += [f"the fault {name!r} never fired" for name, count in fired.items() if not count]
    if history.torn_lines:
        reasons.append(f"{history.torn_lines} lines of the history are torn")
    return reasons
