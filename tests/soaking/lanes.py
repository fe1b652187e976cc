"""What a long run does at once, each lane in a process of its own until its time is over: simulations, recorded
histories over the engines, fuzzing, and the tests whose findings depend on chance."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.damage import FuzzError, meet_batch
from fuzz.shapes import Target
from fuzz.targets import TARGETS
from interlock.core.isolation import Isolation
from interlock.testing.conformance.world import EXAMPLES
from interlock.testing.histories import WORKLOADS, Settings, Verdict, run, simulate
from interlock.testing.histories.simulated import Simulated
from interlock.testing.histories.troubles import FaultKind
from redis_servers import redis_server
from servers import postgresql_server
from soaking.results import Report

ROOT: Final = Path(__file__).parents[2]
MODES: Final[tuple[Isolation, ...]] = ("none", "snapshot", "optimistic", "serializable", "pessimistic")
ENGINES: Final = ("memory", "sqlite", "postgresql", "redis")
_SHARES: Final[dict[Isolation, int]] = {"serializable": 12, "optimistic": 3, "snapshot": 3, "none": 1, "pessimistic": 2}
"""Of each round of simulations, how many go to a mode."""
_SLICE_SECONDS: Final = 1.0
_TRANSACTIONS: Final = 40
"""Of each agent of a simulation: longer runs than in the tests, since most of a short one is its beginning."""
_RUN_SECONDS: Final = 18.0
"""What a recorded history over an engine is worth, with its processes and faults."""
_BESIDES_SECONDS: Final = 4.0
"""What it takes besides: to start and end its processes, and to judge it; measured then, run by run."""
_FAULT_SECONDS: Final = 1.3
"""What a fault takes, where the machine has nothing else to do; a slower one gets fewer of them in a run."""
_SLOWEST_SECONDS: Final = 20.0
_CHUNK: Final = 50
"""So many inputs Hypothesis makes for a target in its turn,"""
_BATCHES: Final = 50
"""and so many batches of damaged samples it gets then, if that takes it"""
_TURN_SECONDS: Final = 0.5
"""no longer than this."""
_PACE: Final = 1200
"""How many inputs a second are enough, twice what a long run demands: the time that is left is the other lanes'."""
_FULL_SOAK_SECONDS: Final = 7200.0
"""How long a soak has to be for the tests of chance to make all their rounds."""
_MACHINES: Final = 12
"""How many times the examples of an ordinary run the random machines of the conformance suite then try."""
SERVER_FAULTS: Final[tuple[FaultKind, ...]] = (
    "kill", "cut", "lost-reply", "reset", "syscall-kill", "silence", "stop", "restart", "delay", "clock",
)  # fmt: skip
FILE_FAULTS: Final[tuple[FaultKind, ...]] = ("kill", "syscall-kill", "stop", "io-error", "full-disk", "clock")


def promised(name: str, mode: Isolation) -> bool:
    """Whether a mode promises what a workload is judged by."""
    return MODES.index(mode) >= MODES.index(WORKLOADS[name].weakest)


def simulations(report: Report, until: float, first_seed: int) -> None:
    """Each workload in turn, in every mode that promises what it is judged by, for equal times."""
    seeds = itertools.count(first_seed)
    modes = [mode for mode, share in _SHARES.items() for _ in range(share)]
    random.Random(first_seed).shuffle(modes)
    for mode, name in ((mode, name) for mode in itertools.cycle(modes) for name in WORKLOADS if promised(name, mode)):
        if time.monotonic() >= until:
            return
        told, stop = Simulated(), min(until, time.monotonic() + _SLICE_SECONDS)
        while time.monotonic() < stop:
            told.add(simulate(name, mode, next(seeds), transactions=_TRANSACTIONS, deaths=0.0006)[0])
        report.add(
            "history", backend="simulation", mode=mode, workload=name, counts=told.counts, faults=told.faults,
            seeds=told.seeds, steps=told.steps,
        )  # fmt: skip
        for number, finding in told.violations[:3]:
            report.add("failure", what=f"simulation of {name}, {mode}, seed {number}: {finding.explanation}")


# -- engines -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Planned:
    """A recorded history over an engine."""

    engine: str
    name: str
    mode: Isolation
    faults: tuple[FaultKind, ...]

    def with_faults(self, count: int, first: int) -> Planned:
        """With so many of the faults, which are others from run to run."""
        turned = [*self.faults[first % max(1, len(self.faults)) :], *self.faults]
        return replace(self, faults=tuple(turned[: min(count, len(self.faults))]))


def plans(seed: int, seconds: float) -> list[Planned]:
    """Every workload on every engine, with faults where there is something to disturb, and then two in every other
    mode; as many of them as the time is enough for."""
    made: list[Planned] = []
    for engine in ENGINES:
        faults = {"memory": (), "sqlite": FILE_FAULTS}.get(engine, SERVER_FAULTS)
        made += [Planned(engine, name, "serializable", faults) for name in WORKLOADS]
        for mode in MODES:
            if mode != "serializable":
                made += [Planned(engine, name, mode, ()) for name in ("list-append", "rw-register")]
    random.Random(seed).shuffle(made)
    made.sort(key=lambda plan: plan.mode != "serializable")
    return made[: max(len(ENGINES), int(seconds / _RUN_SECONDS))]


def wanted(seconds: float) -> list[tuple[str, str]]:
    """(backend, workload) of everything that a run of such a length has to prove."""
    planned = [(each.engine, each.name) for each in plans(0, seconds)]
    everything = [(engine, name) for engine in ENGINES for name in WORKLOADS]
    return [each for each in everything if each in planned] if len(plans(0, seconds)) == len(plans(0, 1e9)) else []


class Engines:
    """The engines of a run, each started once. ``with`` stops them."""

    def __init__(self, directory: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._directory = directory
        self.urls: dict[str, str] = {"memory": "memory://soak", "sqlite": f"sqlite:///{directory}/soak.db"}
        self.restarts: dict[str, Callable[[], object]] = {}

    def __enter__(self) -> Engines:
        for name, server in (("postgresql", postgresql_server()), ("redis", redis_server())):
            started: Any = self._stack.enter_context(server)
            self.urls[name] = started.url
            self.restarts[name] = lambda started=started: (started.kill(), started.start())  # type: ignore[misc]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def record(self, plan: Planned, seconds: float, seed: int, directory: Path) -> Verdict:
        """One run."""
        alone = plan.engine == "memory"
        processes, threads = (1, 8) if alone else (2, 4)
        made = Settings(
            plan.name, self.urls[plan.engine], plan.mode, seconds, processes, threads, seed, plan.faults,
            fault_seconds=0.4, least=20 if plan.mode == "pessimistic" else 100, control=alone,
            restart=self.restarts.get(plan.engine),
        )  # fmt: skip
        return run(made, directory)


def histories(report: Report, until: float, seed: int) -> None:
    """All plans in equal parts of the time; runs that proved nothing once more, for twice as long."""
    with tempfile.TemporaryDirectory(prefix="interlock-soak-") as place, Engines(Path(place)) as engines:
        waiting = plans(seed, until - time.monotonic())[::-1]
        again: list[Planned] = []
        number, pace, besides = 0, _FAULT_SECONDS, _BESIDES_SECONDS
        while waiting or again:
            if time.monotonic() >= until:
                report.add("idle", what=f"{len(waiting) + len(again)} runs over engines: the time was over before")
                return
            planned, factor = (waiting.pop(), 1) if waiting else (again.pop(), 2)
            began = time.monotonic()
            share = (until - began) / (len(waiting) + factor + 2 * len(again))
            seconds = max(4.0, share * factor - besides)
            number += 1
            planned = planned.with_faults(max(1, int((seconds - 2.0) / pace)), number)
            with tempfile.TemporaryDirectory(dir=place) as directory:
                try:
                    verdict = engines.record(planned, seconds, seed + number, Path(directory))
                except Exception as error:  # the others are tried all the same
                    report.add("failure", what=f"{planned}, seed {seed + number}: {error!r}")
                    continue
                besides += (time.monotonic() - began - seconds - besides) / 3
                late = any(not verdict.fired[name] for name in planned.faults)
                pace = min(2 * pace, _SLOWEST_SECONDS) if late else max(0.8 * pace, _FAULT_SECONDS)
                _report(report, planned, verdict, f"seed {seed + number}", again if factor == 1 else None)


def _report(report: Report, planned: Planned, verdict: Verdict, seed: str, again: list[Planned] | None) -> None:
    what = f"{planned.name} on {planned.engine}, {planned.mode}, {seed}"
    for finding in verdict.findings.violations[:3]:
        report.add("failure", what=f"{what}: {finding.explanation}")
    if verdict.vacuous:
        report.add("idle", what=f"{what}: {'; '.join(verdict.vacuous)}")
        if again is not None:
            again.append(planned)
        return
    report.add(
        "history", backend=planned.engine, mode=planned.mode, workload=planned.name, counts=verdict.counts,
        faults=verdict.fired,
    )  # fmt: skip


# -- fuzzing, and the tests of chance ----------------------------------------------------------------------------------
def _chunks(first: int) -> Iterator[tuple[int, Any]]:
    for number in itertools.count(first):
        yield from ((number, target) for target in TARGETS)


_FUZZ: Final = settings(
    max_examples=_CHUNK, deadline=None, database=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)  # fmt: skip


def _meeting(target: Target, met: list[None]) -> Callable[[Any], None]:
    def meet(made: Any) -> None:
        met.append(None)
        target.meet(made)

    return meet


def fuzzing(report: Report, until: float, first_seed: int) -> None:
    """Every target in turn, each time from other seeds: some inputs of Hypothesis, then many damaged samples."""
    with tempfile.TemporaryDirectory(prefix="interlock-fuzz-") as place, contextlib.chdir(place):
        began, made = time.monotonic(), 0
        for number, target in _chunks(first_seed):
            time.sleep(max(0.0, min(made / _PACE, until - began) - (time.monotonic() - began)))
            if time.monotonic() >= until:
                return
            met: list[None] = []
            try:
                seed(number)(_FUZZ(given(target.inputs)(_meeting(target, met))))()
            except Exception as error:
                report.add("failure", what=f"fuzzing {target.name}, Hypothesis's seed {number}: {error!r}")
            count, stop = len(met), min(until, time.monotonic() + _TURN_SECONDS)
            for turn in range(_BATCHES):
                try:
                    count += meet_batch(target, number * _BATCHES + turn)
                except FuzzError as error:
                    report.add("failure", what=f"fuzzing {error}")
                if time.monotonic() >= stop:
                    break
            report.add("fuzz", target=target.name, count=count)
            made += count


def chance(report: Report, until: float, seconds: float) -> None:
    """The tests that carry the mark ``soak``, with so many rounds as the time is worth."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "soak",
        "-n",
        "1",
        "--timeout",
        "3600",
        "-p",
        "no:cacheprovider",
    ]
    worth = min(1.0, seconds / _FULL_SOAK_SECONDS)
    told = {"INTERLOCK_SOAK": str(worth), EXAMPLES: str(max(1, round(_MACHINES * worth)))}
    tests = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **told}, stdout=subprocess.PIPE, text=True)
    try:
        said, _ = tests.communicate()
    finally:
        if tests.poll() is None:  # the lane is told to end
            tests.send_signal(signal.SIGINT)
            tests.communicate()
    ended = re.findall(r"^\d+ .*(?:passed|failed).*$", said, re.MULTILINE)
    report.add("tests", what=ended[-1] if ended else f"status {tests.returncode}")
    if tests.returncode:
        report.add("failure", what=f"the tests of chance: {said[-3000:]}")


LANES: Final[dict[str, Callable[[Report, float, int], None]]] = {
    "simulations": simulations, "histories": histories, "fuzzing": fuzzing,
}  # fmt: skip
