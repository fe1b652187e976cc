"""Workloads in simulation: thousands of short runs, each in an order of calls that its seed decides.

A run that shows a violation shows it again with the same seed, whatever the machine does; ``python -m
interlock.testing.histories simulate --first-seed N --seeds 1`` tells it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import interlock.sync
from interlock.core.isolation import Isolation
from interlock.testing.histories.findings import Finding
from interlock.testing.histories.graph import MODELS
from interlock.testing.histories.records import Line, Recording, of_lines
from interlock.testing.histories.worker import make_one
from interlock.testing.histories.workloads import LISTS, WORKLOADS, Agent, final_read
from interlock.testing.simulation import Simulation


@dataclass
class Simulated:
    """What a number of seeds showed."""

    seeds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Finding]] = field(default_factory=list)
    """(seed, what it showed)."""

    def add(self, other: Simulated) -> None:
        """Add what other seeds showed."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.counts += other.counts
        self.faults += other.faults
        self.violations += other.violations


def simulate(
    workload_name: str,
    mode: Isolation,
    seed: int,
    *,
    agents: int = 4,
    transactions: int = 12,
    lost_replies: float = 0.03,
    deaths: float = 0.002,
    judged_as: Isolation | None = None,
) -> tuple[Simulated, list[Line]]:
    """One run: every agent makes so many transactions. Returns what it showed, and the history's lines.

    ``judged_as``: the mode whose promise it is judged by, if that is not ``mode``."""
    workload = WORKLOADS[workload_name]
    simulation = Simulation(seed, lost_replies=lost_replies, deaths=deaths)
    ticks = itertools.count(1)
    recording = Recording(agents, lambda: next(ticks))
    store = interlock.sync.Store(simulation.backend, agent="simulation", isolation="none", runtime=simulation.runtime)
    resource = store.resource("history")
    if workload.setup is not None:
        recording.begin(2_000_000_000, [], "setup")
        with resource.session() as session:
            workload.setup(session, [])
        recording.end(2_000_000_000, "ok", [], f="setup")

    def body(number: int) -> Callable[[], None]:
        own = interlock.sync.Store(simulation.backend, agent=f"agent-{number}", runtime=simulation.runtime)
        resource = own.resource("history")

        def work() -> None:
            # Ten times slower, so that what is new every tenth of a second is shared by some transactions.
            agent = Agent(
                number, number, agents, random.Random(f"{seed} {number}"), mode != "snapshot",
                lambda: simulation.monotonic() / 10,
            )  # fmt: skip
            for _ in range(transactions):
                make_one(workload, agent, resource, mode, recording, lambda randomness: simulation.switch())

        return work

    for number in range(agents):
        simulation.add(f"agent {number}", body(number))
    simulation.run()
    touched: set[str] = {step[1] for line in recording.lines for step in line.value if step[0] != "rp" and step[1]}
    keys = sorted(touched | {str(key) for key, _value in resource.scan()})
    recording.begin(2_000_000_001, [["r", key, None] for key in keys], "final")
    steps = final_read(resource, keys)
    if workload.name in LISTS:
        steps = [[what, key, value or []] for what, key, value in steps]
    recording.end(2_000_000_001, "ok", steps, f="final")
    store.close()
    history = of_lines(recording.lines)
    findings = workload.judge(history, MODELS[judged_as or mode])
    told = Simulated(1, simulation.steps, Counter(history.counts), Counter(simulation.faults))
    told.violations = [(seed, each) for each in findings.violations]
    return told, recording.lines


def simulate_many(
    workload_name: str,
    mode: Isolation,
    seeds: range,
    *,
    on_progress: Callable[[int], None] = lambda seed: None,
    judged_as: Isolation | None = None,
) -> Simulated:
    """Many runs; ``on_progress`` is called with each seed."""
    total = Simulated()
    for seed in seeds:
        on_progress(seed)
        total.add(simulate(workload_name, mode, seed, judged_as=judged_as)[0])
    return total
