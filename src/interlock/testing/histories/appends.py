"""Judges histories of lists: ``["append", key, value]`` and ``["r", key, [values]]``, no value twice in a key.

A list shows its whole past, so the order of its versions is known and not guessed: it is the longest list that
anybody read, and every other read of the key has to be a beginning of it. From that order follow all arrows of
`graph`. Before the search for circles come the violations that a single read shows: of aborted appends (G1a), of
appends in the middle of a transaction (G1b), of another order, of a transaction that does not see its own appends, of
lost and doubled appends.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from interlock.testing.histories.findings import Findings
from interlock.testing.histories.graph import Dependencies, Model
from interlock.testing.histories.records import History, Transaction, shown


class _Lists:
    """Who appended what, and in which order it lies."""

    def __init__(self, history: History, findings: Findings) -> None:
        self.findings = findings
        self.writers: dict[tuple[str, Any], Transaction] = {}
        self.last_of: dict[tuple[int, str], Any] = {}
        self.orders: dict[str, list[Any]] = {}
        for each in history.transactions:
            for what, key, value in each.steps:
                if what == "append":
                    if (key, value) in self.writers:
                        findings.add("unusable", f"{value!r} was appended to {key} by two transactions of the workload")
                    self.writers[key, value] = each
                    self.last_of[each.number, key] = value
        for each in history.ok():
            for what, key, value in each.steps:
                if what == "r" and len(value) > len(self.orders.get(key, ())):
                    self.orders[key] = list(value)

    def judge_orders(self) -> None:
        """Doubled appends, and those of transactions that were refused."""
        for key, order in self.orders.items():
            if len(set(order)) != len(order):
                self.findings.add("doubled append", f"{key} holds a value twice: {shown(order)}")
            for value in order:
                writer = self.writers.get((key, value))
                if writer is None:
                    self.findings.add("value from nowhere", f"{key} holds {value!r}, which nobody appended")
                elif writer.ending == "fail":
                    self.findings.add("G1a", f"{key} holds {value!r}, appended by {writer}, which was refused")

    def judge_reads(self, each: Transaction) -> None:
        """Whether the reads of one transaction agree with the order, with each other and with its own appends."""
        seen: dict[str, list[Any]] = {}
        own: dict[str, list[Any]] = defaultdict(list)
        for what, key, value in each.steps:
            if what == "append":
                own[key].append(value)
                continue
            mine = own[key]
            outside = value[: len(value) - len(mine)] if mine else value
            if mine and value[len(outside) :] != mine:
                self.findings.add("internal", f"{each} does not see its own appends {mine!r} at the end of {key}")
            elif key in seen and seen[key] != outside:
                self.findings.add(
                    "internal", f"{each} reads {key} twice, as {shown(seen[key])} and as {shown(outside)}"
                )
            seen[key] = outside
            if self.orders.get(key, [])[: len(outside)] != outside:
                others = shown(self.orders.get(key))
                self.findings.add("incompatible order", f"{each} reads {shown(outside)} in {key}, others {others}")
            elif outside:
                writer = self.writers.get((key, outside[-1]))
                if writer is not None and self.last_of[writer.number, key] != outside[-1]:
                    self.findings.add("G1b", f"{each} reads {key} in the middle of {writer}")

    def arrows(self, history: History) -> Dependencies:
        """All dependencies."""
        made = Dependencies()
        for key, order in self.orders.items():
            writers = [self.writers.get((key, value)) for value in order]
            for before, after, first, second in zip(writers, writers[1:], order, order[1:], strict=False):
                if before is not None and after is not None:
                    made.add(before, after, "ww", f"{key} has {first!r} of the first before {second!r} of the second")
        for each in history.ok():
            own: set[str] = set()
            for what, key, value in each.steps:
                if what == "append":
                    own.add(key)
                elif key not in own:
                    self._arrows_of_read(made, each, key, value)
        return made

    def _arrows_of_read(self, made: Dependencies, each: Transaction, key: str, value: list[Any]) -> None:
        if value:
            writer = self.writers.get((key, value[-1]))
            if writer is not None:
                made.add(writer, each, "wr", f"the second read {value[-1]!r} in {key}, which the first appended")
        order = self.orders.get(key, [])
        if len(value) < len(order):
            following = self.writers.get((key, order[len(value)]))
            if following is not None:
                made.add(
                    each, following, "rw",
                    f"the first read {key} without {order[len(value)]!r}, which the second appended",
                )  # fmt: skip


def judge(history: History, model: Model) -> Findings:
    """Judge a history of appends by a model."""
    findings = Findings()
    lists = _Lists(history, findings)
    lists.judge_orders()
    for each in history.ok():
        lists.judge_reads(each)
    if history.final is not None and history.final.ending == "ok":
        held = {key: set(value) for what, key, value in history.final.steps if what == "r"}
        for (key, value), writer in lists.writers.items():
            if writer.ending == "ok" and key in held and value not in held[key]:
                findings.add("lost append", f"{writer} was acknowledged, and {key} does not hold {value!r} in the end")
    findings.dependencies = lists.arrows(history)
    if model == "read-committed":
        findings.violations = [each for each in findings.violations if each.name not in ALLOWED_UNDER_READ_COMMITTED]
    findings.search_circles(history, model)
    return findings


ALLOWED_UNDER_READ_COMMITTED = frozenset({"incompatible order", "lost append", "internal", "doubled append"})
"""A list that is appended to by reading and writing loses updates without isolation; that is what it shows then."""
