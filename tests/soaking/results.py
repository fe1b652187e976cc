"""What the lanes of a long run report, as JSON lines, and the summary of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table


class Report:
    """A lane's file, to which it adds what it has done. Each line is whole, whenever the lane may end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, **facts: Any) -> None:
        """Add a line."""
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, **facts}) + "\n")


@dataclass
class Summary:
    """The sums of all lanes. ``ended``: (backend, mode) -> how transactions ended; ``failures``: what was found."""

    ended: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    workloads: dict[str, set[str]] = field(default_factory=dict)
    fuzzed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    """Runs that proved nothing; their transactions are not counted."""
    steps: int = 0
    seeds: int = 0
    tests: str = ""

    @property
    def transactions(self) -> int:
        """All that were recorded and judged."""
        return sum(sum(counts.values()) for counts in self.ended.values())

    def missing(self, wanted: Iterable[tuple[str, str]]) -> list[str]:
        """Which of the wanted (backend, workload) no run has proved."""
        return [f"{name} on {backend}" for backend, name in wanted if name not in self.workloads.get(backend, ())]

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "transactions": self.transactions,
            "ended": {f"{backend} {mode}": dict(counts) for (backend, mode), counts in sorted(self.ended.items())},
            "faults": dict(self.faults), "fuzzed": dict(self.fuzzed), "simulated_seeds": self.seeds,
            "simulated_steps": self.steps, "tests": self.tests, "proved_nothing": self.idle, "failures": self.failures,
        }  # fmt: skip

    def table(self) -> Table:
        """For a person."""
        table = Table("backend", "mode", "acknowledged", "refused", "unknown", "workloads", title="Recorded and judged")
        for (backend, mode), counts in sorted(self.ended.items()):
            names = len(self.workloads.get(backend, ()))
            table.add_row(backend, mode, *(f"{counts[how]:,}" for how in ("ok", "fail", "info")), str(names))
        return table

    def lines(self) -> list[str]:
        """What else there is to say."""
        faults = ", ".join(f"{name} {count:,}" for name, count in sorted(self.faults.items()))
        told = [
            f"transactions: {self.transactions:,}",
            f"faults fired: {faults or 'none'}",
            f"simulated: {self.seeds:,} seeds, {self.steps:,} steps",
            f"fuzzed: {sum(self.fuzzed.values()):,} inputs to {len(self.fuzzed)} decoders and parsers",
            f"tests of chance: {self.tests or 'not run'}",
        ]
        told += [f"proved nothing, not counted: {each}" for each in self.idle]
        told.append(f"violations and failures: {len(self.failures)}")
        return told + self.failures


def summed(paths: Iterable[Path]) -> Summary:
    """The summary of the lanes' files."""
    summary = Summary()
    for path in paths:
        for line in path.read_text().splitlines():
            _take(summary, json.loads(line))
    return summary


def _take(summary: Summary, line: dict[str, Any]) -> None:
    match line["kind"]:
        case "history":
            summary.ended.setdefault((line["backend"], line["mode"]), Counter()).update(line["counts"])
            summary.workloads.setdefault(line["backend"], set()).add(line["workload"])
            summary.faults.update(line["faults"])
            summary.seeds += line.get("seeds", 0)
            summary.steps += line.get("steps", 0)
        case "idle":
            summary.idle.append(line["what"])
        case "fuzz":
            summary.fuzzed[line["target"]] += line["count"]
        case "tests":
            summary.tests = line["what"]
        case "failure":
            summary.failures.append(line["what"])
