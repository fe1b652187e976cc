"""Judges histories of registers and of predicates over them.

``["w", key, value]`` with values that are written once, ``["r", key, value]`` (None: absent), ``["rp", group, {key:
value}]`` for a scan of all keys ``group/...``.

A register does not show its past. Known of the order of its versions is: absent comes first; what a transaction read
and then replaced comes before what it wrote; and, where real time counts, of two writers of which one ended before
the other began the first one's version is older. In the *closed predicate* workload each key is inserted at most once
and then written at most once, by one owner, and never deleted: so what a scan does *not* show dates it as well as
what it does.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import Any

from interlock.testing.histories.findings import Findings
from interlock.testing.histories.graph import Dependencies, Model
from interlock.testing.histories.records import History, Transaction

ABSENT = None


class _Successors:
    """The writers of one key, to ask who came after a moment. Real time leads from those that are named to all others
    of which the same could be said, so that the rest need no arrows of their own and a history costs n log n."""

    def __init__(self, writers: list[Transaction]) -> None:
        self._writers = sorted(writers, key=lambda writer: writer.begun)
        self._begun = [writer.begun for writer in self._writers]
        self._earliest: list[Transaction] = []
        """Of the writers from this place on: the one that ended first."""
        for writer in reversed(self._writers):
            soonest = self._earliest[-1] if self._earliest else writer
            self._earliest.append(writer if writer.ended <= soonest.ended else soonest)
        self._earliest.reverse()
        until = min((writer.ended for writer in writers), default=0)
        self.first = self._writers[: bisect.bisect_right(self._begun, until)]
        """Those that began before any had ended: every other one came after one of these."""

    def after(self, time: int) -> Transaction | None:
        """Of those that began after a moment, the one that ended first."""
        place = bisect.bisect_right(self._begun, time)
        return self._earliest[place] if place < len(self._earliest) else None


class _Registers:
    def __init__(self, history: History, findings: Findings) -> None:
        self.history = history
        self.findings = findings
        self.writers: dict[tuple[str, Any], Transaction] = {}
        self.final_of: dict[tuple[int, str], Any] = {}
        self.next_of: dict[tuple[str, Any], list[Transaction]] = defaultdict(list)
        self.made = Dependencies()
        for each in history.transactions:
            for what, key, value in each.steps:
                if what == "w":
                    self.writers[key, value] = each
                    self.final_of[each.number, key] = value

    def happened(self, each: Transaction) -> bool:
        """Whether its writes are known to be in the store: it said so, or somebody saw one."""
        return each.ending == "ok" or each.number in self.seen

    def collect(self) -> None:
        """First pass: the direct violations, who was seen, and which version follows which."""
        self.seen: set[int] = set()
        for each in self.history.ok():
            own: dict[str, Any] = {}
            read: dict[str, Any] = {}
            for what, key, value in each.steps:
                if what == "w":
                    if key in read and key not in own:
                        self.next_of[key, read[key]].append(each)
                    own[key] = value
                elif what == "r":
                    self._judge_read(each, key, value, own, read)
                elif what == "rp":
                    for found, held in value.items():
                        self._judge_read(each, found, held, own, read)

    def _judge_read(self, each: Transaction, key: str, value: Any, own: dict[str, Any], read: dict[str, Any]) -> None:
        if key in own:
            if own[key] != value:
                self.findings.add("internal", f"{each} reads {value!r} in {key} after having written {own[key]!r}")
            return
        if key in read and read[key] != value:
            self.findings.add("internal", f"{each} reads {key} as {read[key]!r} and as {value!r}")
        read[key] = value
        if value is ABSENT:
            return
        writer = self.writers.get((key, value))
        if writer is None:
            self.findings.add("value from nowhere", f"{each} reads {value!r} in {key}, which nobody wrote")
            return
        self.seen.add(writer.number)
        if writer.ending == "fail":
            self.findings.add("G1a", f"{each} reads {value!r} in {key}, written by {writer}, which was refused")
        elif writer is not each and self.final_of[writer.number, key] != value:
            self.findings.add("G1b", f"{each} reads {value!r} in {key}, in the middle of {writer}")

    def judge_updates(self) -> None:
        """No two of those that happened replaced the same version (a lost update, P4)."""
        for (key, value), replacing in self.next_of.items():
            happened = [each for each in replacing if self.happened(each)]
            if len(happened) > 1:
                both = f"{happened[0]} and {happened[1]}"
                self.findings.add("lost update", f"{both} both read {value!r} in {key} and replaced it")

    def arrows_of_reads(self) -> None:
        """``wr`` to whoever read a version, ``rw`` from it to whoever replaced that version."""
        by_key: dict[str, list[Transaction]] = defaultdict(list)
        for (key, value), writer in self.writers.items():
            if value is not ABSENT and self.happened(writer):
                by_key[key].append(writer)
        lives = {key: _Successors(writers) for key, writers in by_key.items()}
        nobody = _Successors([])
        for each in self.history.ok():
            own: set[str] = set()
            for what, key, value in each.steps:
                if what == "w":
                    own.add(key)
                elif what == "r" and key not in own:
                    self._arrows_of_read(each, key, value, lives.get(key, nobody))

    def _arrows_of_read(self, each: Transaction, key: str, value: Any, life: _Successors) -> None:
        origin = self.writers.get((key, value)) if value is not ABSENT else None
        if origin is not None:
            self.made.add(origin, each, "wr", f"the second read {value!r} in {key}, which the first wrote")
        for following in self.next_of.get((key, value), ()):
            if self.happened(following):
                self.made.add(each, following, "rw", f"the first read {value!r} in {key}, which the second replaced")
                if origin is not None:
                    self.made.add(origin, following, "ww", f"the second replaced {value!r} of the first in {key}")
        if value is ABSENT:
            for writer in life.first:
                self.made.add(each, writer, "rw", f"the first read {key} as absent, the second wrote it")
        elif origin is not None:
            newer = life.after(origin.ended)
            if newer is not None:
                self.made.add(
                    each, newer, "rw",
                    f"the first read {value!r} in {key}, and the second wrote it after that version's writer had ended",
                )  # fmt: skip


def judge(history: History, model: Model) -> Findings:
    """Judge a history of registers by a model."""
    findings = Findings()
    registers = _Registers(history, findings)
    registers.collect()
    if model != "read-committed":
        registers.judge_updates()
    registers.arrows_of_reads()
    findings.dependencies = registers.made
    if model == "read-committed":
        findings.violations = [each for each in findings.violations if each.name != "internal"]
    findings.search_circles(history, model)
    return findings


def judge_predicates(history: History, model: Model) -> Findings:
    """Judge a history of the closed predicate workload by a model."""
    findings = Findings()
    registers = _Registers(history, findings)
    registers.collect()
    if model != "read-committed":
        registers.judge_updates()
    registers.arrows_of_reads()
    lives: dict[str, list[tuple[Any, Transaction]]] = defaultdict(list)
    for each in history.transactions:
        for what, key, value in each.steps:
            if what == "w" and registers.happened(each):
                lives[key].append((value, each))
    groups: dict[str, list[str]] = defaultdict(list)
    for key in lives:
        groups[key.partition("/")[0]].append(key)
    for each in history.ok():
        own = {key for what, key, _value in each.steps if what == "w"}
        for what, group, shown in each.steps:
            if what == "rp":
                for key in groups[group]:
                    if key not in own:
                        _date(registers.made, each, key, shown.get(key), lives[key])
    findings.dependencies = registers.made
    if model == "read-committed":
        findings.violations = [each for each in findings.violations if each.name != "internal"]
    findings.search_circles(history, model)
    return findings


def _date(made: Dependencies, each: Transaction, key: str, value: Any, life: list[tuple[Any, Transaction]]) -> None:
    """Arrows between a scan and the life of one key: what it saw came before it, what it did not see after it."""
    values = [version for version, _writer in life]
    if value is not ABSENT and value not in values:
        return  # judged where values are
    place = -1 if value is ABSENT else values.index(value)
    if place >= 0:
        made.add(life[place][1], each, "wr", f"the second's scan saw {key} as the first left it ({value!r})")
    if place + 1 < len(life):
        following = life[place + 1][1]
        made.add(each, following, "rw", f"the first's scan saw {key} as {value!r}, before the second changed it")
