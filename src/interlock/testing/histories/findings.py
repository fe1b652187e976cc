"""What a judge of a history returns: violations with their explanations, and what it has counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from interlock.testing.histories.graph import Dependencies, Model, circles
from interlock.testing.histories.records import History


@dataclass(frozen=True)
class Finding:
    """A violation: its name in the literature (or a plain word), and a sentence for a person."""

    name: str
    explanation: str


@dataclass
class Findings:
    """What was found. ``dependencies`` is None for judges that look at values only."""

    violations: list[Finding] = field(default_factory=list)
    dependencies: Dependencies | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, explanation: str) -> None:
        """Note a violation."""
        self.violations.append(Finding(name, explanation))

    def search_circles(self, history: History, model: Model) -> None:
        """Add real time to the dependencies and look for circles."""
        assert self.dependencies is not None
        self.dependencies.add_real_time(history)
        self.counts["arrows"] = len(self.dependencies.edges)
        for circle in circles(self.dependencies, model):
            self.add(circle.name, circle.explain())


Judge = Callable[[History, Model], Findings]
"""Judges a history by a model."""
