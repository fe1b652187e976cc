"""Judges of workloads that keep something true: what their transactions read must never contradict it.

They look at values only and know no order but real time, so they need no inference and cannot be argued with: an
account went below zero, nobody was on call, two bookings overlap.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from interlock.testing.histories.findings import Findings
from interlock.testing.histories.graph import Model
from interlock.testing.histories.records import History, Transaction

ACCOUNTS = tuple(f"account-{number}" for number in range(8))
TOTAL = 80
DOCTORS = 3
"""How many share a shift."""


def _reads(each: Transaction) -> dict[str, Any]:
    return {key: value for what, key, value in each.steps if what == "r"}


def judge_bank(history: History, model: Model) -> Findings:
    """Every transaction that has read all accounts saw the whole sum, and none below zero."""
    findings = Findings()
    whole = 0
    for each in history.ok():
        read = _reads(each)
        for account, value in read.items():
            if value is not None and value < 0:
                findings.add("below zero", f"{each}: {account} holds {value}")
        if len(read) == len(ACCOUNTS):
            whole += 1
            found = sum(value or 0 for value in read.values())
            if found != TOTAL:
                findings.add("sum", f"{each}: the accounts hold {found}, not {TOTAL}")
    findings.counts["whole reads"] = whole
    return findings


def judge_doctors(history: History, model: Model) -> Findings:
    """In every shift that anybody has read as a whole, somebody is on call."""
    findings = Findings()
    whole = 0
    for each in history.ok():
        shifts: dict[str, list[Any]] = defaultdict(list)
        for key, value in _reads(each).items():
            shifts[key.partition("/")[0]].append(value)
        for shift, on_call in shifts.items():
            if len(on_call) == DOCTORS:
                whole += 1
                if not any(on_call):
                    findings.add("nobody on call", f"{each}: nobody is on call in {shift}")
    findings.counts["whole reads"] = whole
    return findings


def judge_slots(history: History, model: Model) -> Findings:
    """No two bookings of a day overlap, in whatever anybody has read."""
    findings = Findings()
    for each in history.ok():
        for what, day, booked in each.steps:
            if what == "rp":
                spans = sorted((start, stop) for start, stop in booked.values())
                for (start, stop), (next_start, next_stop) in itertools.pairwise(spans):
                    if next_start < stop:
                        what_is = f"{start}-{stop} and {next_start}-{next_stop}"
                        findings.add("double booking", f"{each}: {what_is} overlap on {day}")
    return findings


def judge_counter(history: History, model: Model) -> Findings:
    """Between as many as were acknowledged and as many as may have happened."""
    findings = Findings()
    sure: dict[str, int] = defaultdict(int)
    possible: dict[str, int] = defaultdict(int)
    for each in history.transactions:
        for what, key, value in each.steps:
            if what == "add" and each.ending != "fail":
                possible[key] += value
                sure[key] += value if each.ending == "ok" else 0
    final = {} if history.final is None else _reads(history.final)
    for key in possible:
        found = final.get(key) or 0
        if not sure[key] <= found <= possible[key]:
            findings.add(
                "count", f"{key} ends at {found}; {sure[key]} were acknowledged, {possible[key]} can have happened"
            )
    findings.counts["acknowledged"] = sum(sure.values())
    return findings


def judge_monotonic(history: History, model: Model) -> Findings:
    """A number that only grows is never seen older than it was before this transaction began."""
    findings = Findings()
    ends: list[tuple[int, str, int, Transaction]] = []
    for each in history.ok():
        for what, key, value in each.steps:
            if what in ("r", "w"):
                ends.append((each.ended, key, value or 0, each))
    ends.sort(key=lambda event: event[0])
    newest: dict[str, tuple[int, Transaction]] = {}
    place = 0
    for each in sorted(history.ok(), key=lambda each: each.begun):
        while place < len(ends) and ends[place][0] < each.begun:
            _ended, key, value, source = ends[place]
            if key not in newest or newest[key][0] < value:
                newest[key] = value, source
            place += 1
        for key, value in _reads(each).items():
            if key in newest and (value or 0) < newest[key][0]:
                findings.add("stale read", f"{each} came after {newest[key][1]} and reads {value!r} in {key}")
    return findings


def judge_opacity(history: History, model: Model) -> Findings:
    """x + y is constant in everything that was read, in transactions that were refused in the end too."""
    findings = Findings()
    for each in history.transactions:
        read = _reads(each)
        if read.get("x") is not None and read.get("y") is not None and read["x"] + read["y"] != TOTAL:
            findings.add("inconsistent read", f"{each}: x + y is {read['x'] + read['y']}, not {TOTAL}")
    return findings


def judge_ids(history: History, model: Model) -> Findings:
    """No number was given twice."""
    findings = Findings()
    taken: dict[Any, Transaction] = {}
    for each in history.ok():
        for what, _key, number in each.steps:
            if what == "take":
                if number in taken:
                    findings.add("given twice", f"{number} was given to {taken[number]} and to {each}")
                taken[number] = each
    findings.counts["numbers"] = len(taken)
    return findings


def judge_claims(history: History, model: Model) -> Findings:
    """Each task belongs to one, and to the one whose claim was acknowledged."""
    findings = Findings()
    owners: dict[str, Transaction] = {}
    for each in history.ok():
        for what, task, _worker in each.steps:
            if what == "claim":
                if task in owners:
                    findings.add("claimed twice", f"{task} was given to {owners[task]} and to {each}")
                owners[task] = each
    final = {} if history.final is None else _reads(history.final)
    for task, owner in owners.items():
        held = next(value for what, key, value in owner.steps if what == "claim" and key == task)
        if final and final.get(task) != held:
            findings.add("lost claim", f"{task} was given to {held} and belongs to {final.get(task)!r} in the end")
    findings.counts["claims"] = len(owners)
    return findings
