"""Runs a workload in several processes, with faults, and says what its history is worth.

Each run writes under a resource name of its own, ``histories-...``, and leaves what it wrote there.

A run proves something only if it could have failed. So the verdict is not just the judge's: a run with few
transactions, few conflicts or hardly any overlap, one whose faults did not fire, and one whose *positive control* - the
same workload in a mode that does not promise what is judged - came out clean, is *vacuous*, and that is a failure.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import interlock.sync
from interlock.core import isolation as modes
from interlock.core.isolation import Isolation
from interlock.errors import UsageError
from interlock.testing.histories import records, troubles
from interlock.testing.histories.findings import Findings
from interlock.testing.histories.graph import MODELS
from interlock.testing.histories.processes import Workers
from interlock.testing.histories.records import History, Recorder
from interlock.testing.histories.troubles import FaultKind, Troubles
from interlock.testing.histories.worker import Part, work
from interlock.testing.histories.workloads import LISTS, WORKLOADS, Workload, final_read
from interlock.testing.proxies import FaultyProxy

STEP_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Settings:
    """A run. ``seconds`` of work in ``processes`` processes of ``threads`` threads; ``faults`` (`troubles.FAULTS`):
    what is done to them, in turn, ``fault_seconds`` after each other; ``restart``: the command or function that kills
    the server, starts it and waits until it answers; ``least``: how many acknowledged transactions make a run count;
    ``sources``: directories from which the processes take the library, in turn, to run several versions over one store;
    default: that of this process."""

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
    restart: str | Callable[[], object] | None = None
    sources: tuple[str, ...] = ()
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
        troubles.check(self.faults, self.url, self.restart is not None)
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


class _Parts:
    """What the processes of a run do, one incarnation after the other, each with numbers that nobody has had."""

    def __init__(self, settings: Settings, url: str, resource: str, directory: Path) -> None:
        self.settings = settings
        self.url = url
        self.resource = resource
        self.directory = directory
        self.start = time.monotonic()
        self.until = self.start + settings.seconds
        self._incarnations = [0] * settings.processes

    def begin(self) -> None:
        """The time runs from now: that to come up is not the run's."""
        self.start = time.monotonic()
        self.until = self.start + self.settings.seconds

    def next(self, place: int) -> Part:
        """The next incarnation of one process."""
        s = self.settings
        incarnation = self._incarnations[place]
        self._incarnations[place] += 1
        stride = s.processes * s.threads
        first = place * s.threads + incarnation * 1000 * stride
        jumps = []
        if "clock" in s.faults:
            jumps = troubles.clock_jumps(s.seed, place, self.start, self.until, s.fault_seconds)
        return Part(
            self.url, self.resource, s.workload, s.mode, str(self.directory), f"process-{place}-{incarnation}", first,
            s.threads, stride, s.seed, self.until, s.think_seconds, s.options, jumps,
        )  # fmt: skip


def _in_processes(parts: _Parts, on_progress: Callable[[float], None]) -> dict[str, int]:
    """Run the workers and fire the faults; returns how often each has."""
    s = parts.settings
    with contextlib.ExitStack() as stack:
        proxy = None
        if troubles.NETWORK & set(s.faults):
            proxy = stack.enter_context(FaultyProxy(troubles.with_port(s.url)))
            parts.url = proxy.url
        workers = stack.enter_context(Workers(s.processes, parts.next, s.sources))
        trouble = Troubles(s.faults, s.seed, s.url, workers, proxy, s.restart, parts.directory)
        workers.come_up()
        parts.begin()
        workers.begin()
        next_fault = time.monotonic() + s.fault_seconds
        while (now := time.monotonic()) < parts.until:
            on_progress(parts.until - now)
            time.sleep(min(STEP_SECONDS, parts.until - now))
            if time.monotonic() >= next_fault and parts.until - time.monotonic() > 0.5:
                trouble.fire_next()
                next_fault = time.monotonic() + s.fault_seconds
        workers.wait_for_all()
        trouble.finish(workers.clock_jumps)
        return trouble.fired


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
            parts = _Parts(own, own.url, name, directory)
            alone = own.processes == 1 and not own.faults and not own.sources
            fired = (_in_this_process if alone else _in_processes)(parts, on_progress)
            keys = sorted(_keys_of(directory) | {key for key, _value in _everything(resource)})
            recorder.begin(2_000_000_001, [["r", key, None] for key in keys], "final")
            steps = final_read(resource, keys)
            if workload.name in LISTS:
                steps = [[what, key, value or []] for what, key, value in steps]
            recorder.end(2_000_000_001, "ok", steps, f="final")
        finally:
            recorder.close()
    history = records.merge(directory, directory / "history.jsonl")
    findings = workload.judge(history, MODELS[judged_as or own.mode])
    share = overlapping(history)
    reasons = _vacuous(own, workload, history, share, fired)
    return Verdict(own, history.counts, share, fired, findings, reasons, directory / "history.jsonl")


def _in_this_process(parts: _Parts, on_progress: Callable[[float], None]) -> dict[str, int]:
    """All threads here, for stores that only this process has."""
    failures: list[BaseException] = []

    def body() -> None:
        try:
            work(parts.next(0))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    while thread.is_alive():
        on_progress(max(0.0, parts.until - time.monotonic()))
        thread.join(STEP_SECONDS)
    if failures:
        raise failures[0]
    return {}


def _recorded(recorder: Recorder, process: int, f: str, resource: Any, body: Callable[[Any, list[Any]], None]) -> None:
    recorder.begin(process, [], f)
    with resource.session() as session:
        body(session, [])
    recorder.end(process, "ok", [], f=f)


def _everything(resource: Any) -> Sequence[tuple[str, Any]]:
    return list(resource.scan())


def _keys_of(directory: Path) -> set[str]:
    """Every key that a transaction named or touched."""
    return {step[1] for line in records.lines_of(directory) for step in line.value if step[0] != "rp" and step[1]}


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
