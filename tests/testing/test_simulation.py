"""Simulation: replays from its seed, finds what a weak mode allows, and finds nothing where a mode promises all."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import interlock.sync
import tally
from interlock.errors import InterlockError
from interlock.testing import simulation
from interlock.testing.histories import WORKLOADS, simulate, simulate_many
from interlock.testing.simulation import Deadlock, Simulation
from interlock.testing.stacks import choose_stacks
from soak import usual

SEEDS = {"slots": 150, "predicate": 150} | dict.fromkeys(("counter", "escrow", "monotonic", "long-fork"), 540)
"""How many seeds of each workload: more of those whose transactions are cheap. Together more than `tally.LEAST`. Not by
hand."""
ORDER = ("none", "snapshot", "optimistic", "serializable")


def test_a_seed_replays_whatever_the_hashes_are() -> None:
    program = (
        "from interlock.testing.histories import simulate\n"
        "for name in ('list-append', 'bank', 'slots'):\n"
        "    told, lines = simulate(name, 'serializable', 7)\n"
        "    print(told.steps, told.faults, lines)\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert simulate("bank", "serializable", 1)[1] != simulate("bank", "serializable", 2)[1]


@pytest.mark.parametrize("workload", ["list-append", "bank", "counter"])
def test_threads_and_greenlets_run_in_the_same_order(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}
    for greenlets in (False, True):
        monkeypatch.setattr(simulation, "choose_stacks", lambda _, kind=greenlets: choose_stacks(kind))
        told[greenlets] = [simulate(workload, "pessimistic", seed)[1] for seed in range(3)]
    assert told[False] == told[True]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_order_of_calls_breaks_what_is_promised(workload: str) -> None:
    told = simulate_many(workload, "serializable", range(usual(SEEDS.get(workload, 280), 30)))
    assert told.violations == []
    tally.note("simulation", told.counts, told.faults)
    assert told.faults["lost reply"] > 0
    assert told.faults["death"] > 0


@pytest.mark.parametrize("mode", ["none", "snapshot", "optimistic"])
def test_weaker_modes_keep_their_own_promises(mode: Any) -> None:
    for name, workload in WORKLOADS.items():
        if ORDER.index(mode) >= ORDER.index(workload.weakest):
            told = simulate_many(name, mode, range(10))
            assert told.violations == [], name
            tally.note("simulation", told.counts, told.faults)


@pytest.mark.parametrize("workload", [name for name, each in WORKLOADS.items() if each.control])
def test_the_control_fails(workload: str) -> None:
    control: Any = WORKLOADS[workload].control
    assert simulate_many(workload, control, range(25), judged_as="serializable").violations


@pytest.mark.parametrize("seed", range(40))
def test_keyed_runs_are_done_once_whatever_is_lost(seed: int) -> None:
    """Six agents ask for twelve keyed operations, each for half of them; replies are lost, agents die."""
    simulation = Simulation(seed, lost_replies=0.1, deaths=0.003)
    retry = interlock.RetryPolicy(max_attempts=200)
    store = interlock.sync.Store(simulation.backend, agent="test", runtime=simulation.runtime, retry=retry)
    counters = store.resource("counters", int)
    answers: dict[int, set[int]] = {}

    def increment(session: interlock.sync.AgentSession[int], name: str) -> int:
        count = session.read(name, 0) + 1
        session.write(name, count)
        return count

    def work(number: int) -> None:
        for key in range(12):
            if (key + number) % 2:
                answers.setdefault(key, set()).add(
                    counters.run(increment, f"c{key % 2}", idempotency_key=f"operation-{key}")
                )

    for number in range(6):
        simulation.add(f"agent {number}", lambda number=number: work(number))  # type: ignore[misc]
    simulation.run()
    total = sum(counters.read(f"c{number}", 0) for number in range(2))
    assert all(len(given) == 1 for given in answers.values()), answers
    assert len(answers) <= total <= 12
    for number in range(2):
        given = sorted(answer for key, (answer,) in answers.items() if key % 2 == number)
        assert len(set(given)) == len(given)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_locks_keep_every_promise(workload: str) -> None:
    """Under locks too, with holders that die and lock records whose commits are lost."""
    told = simulate_many(workload, "pessimistic", range(8))
    assert told.violations == []
    tally.note("simulation", told.counts, told.faults)
    assert told.faults["lost reply"] > 0
    assert told.faults["death"] > 0


def test_a_deadlock_is_reported_by_name() -> None:
    simulation = Simulation(0)
    store = interlock.sync.Store(simulation.backend, agent="test", runtime=simulation.runtime)
    waiter = simulation.runtime.waiter()

    def wait() -> None:
        from interlock.stepping import step

        store.resource("r").read("x")
        step(waiter.wait())

    simulation.add("forgotten", wait)
    with pytest.raises(Deadlock, match=r"forgotten \(waits to be woken\)"):
        simulation.run()


def test_time_jumps_only_when_all_wait() -> None:
    simulation = Simulation(3)
    store = interlock.sync.Store(simulation.backend, agent="test", runtime=simulation.runtime)
    data = store.resource("data", int)

    def expire() -> None:
        with pytest.raises(InterlockError), data.session(timeout_seconds=3600) as session:
            session.write("x", 1)
            store.log.wait(store.log.head(), timeout_seconds=7200)

    simulation.add("patient", expire)
    simulation.run()
    assert simulation.monotonic() >= 7200
    assert simulation.steps < 1000


def test_what_an_agent_raises_ends_the_run() -> None:
    simulation = Simulation(0)

    def fail() -> None:
        raise ValueError("mine")

    simulation.add("failing", fail)
    simulation.add("other", lambda: None)
    with pytest.raises(ValueError, match="mine"):
        simulation.run()
