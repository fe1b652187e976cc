"""Recorded histories of random workloads, and what they prove.

``python -m interlock.testing.histories run --workload list-append --url sqlite:///test.db`` runs agents in several
processes over one store, writes down what each began and how it ended, and judges the whole by what the isolation mode
promises: violations are explained in words, and a run that could not have failed is a failure. The format is the one
that Elle and its relatives read, so that others can judge the same histories with checkers of their own.

`simulated` runs the same workloads over a memory store in virtual time, in orders that a seed decides. `records` is the
format, `workloads` what the agents do, `worker` and `running` how they are run, `graph` the search for
circles, `appends`, `registers` and `states` the judges.
"""

from __future__ import annotations

from interlock.testing.histories.findings import Finding, Findings
from interlock.testing.histories.graph import MODELS, Circle
from interlock.testing.histories.records import History, Recorder, Transaction, load
from interlock.testing.histories.running import Settings, Verdict, run
from interlock.testing.histories.simulated import Simulated, simulate, simulate_many
from interlock.testing.histories.workloads import WORKLOADS, Workload

__all__ = [
    "MODELS", "WORKLOADS", "Circle", "Finding", "Findings", "History", "Recorder", "Settings", "Simulated",
    "Transaction", "Verdict", "Workload", "load", "run", "simulate", "simulate_many",
]  # fmt: skip
