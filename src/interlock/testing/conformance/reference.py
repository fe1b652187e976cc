"""What a store should do, in plain Python: the oracle that random steps are compared with.

It keeps a full copy of the state after each commit and works on Python values. It shares no code with any backend,
nor with the merge algebra that they use. It cannot know the versions that a store gives out: it takes each from the
reply, and from then on says where that version must be seen.

Names that begin with ``u`` are unlisted. Where two answers are right, the reference says so: whether a store may
refuse (`Verdict.may`) or has to (`Verdict.must`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from interlock.model import TransactionId, Version

ABSENT = "absent"
UNCHANGED = "unchanged"
SEEN = "seen"
OTHER = "other"


@dataclass(frozen=True)
class Step:
    """One operation of a merge on Python values, or with ``kind`` "put" or "delete" an ordinary write."""

    kind: str
    value: Any = None
    floor: int | None = None
    ceiling: int | None = None


@dataclass(frozen=True)
class Row:
    """What a name holds. ``value`` is None for a tombstone."""

    value: Any
    version: Version


State = dict[str, Row]


@dataclass(frozen=True)
class Attempt:
    """A commit to be judged. ``reads`` says how each name is expected; spans and clears are pairs of names."""

    snapshot: int
    reads: dict[str, str]
    writes: dict[str, tuple[Step, ...]]
    spans: tuple[tuple[str, str], ...] = ()
    clears: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Recorded:
    """A commit that happened, as the feed should tell it; ``index`` counts the states."""

    index: int
    transaction: TransactionId
    version: Version
    names: frozenset[str]
    cleared: frozenset[str]


@dataclass
class Verdict:
    """What should become of an attempt.

    ``must``: names whose expectations do not hold. ``must_spans`` and ``may_spans``: spans that have visibly changed,
    and spans in which something happened that left no visible change. ``merges``: names whose merges are refused,
    with "bound" or "kind".
    """

    must: set[str] = field(default_factory=set)
    must_spans: set[tuple[str, str]] = field(default_factory=set)
    may_spans: set[tuple[str, str]] = field(default_factory=set)
    merges: dict[str, str] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)


class Refused(Exception):
    """A merge that cannot be applied: "bound" or "kind"."""


def listed(name: str) -> bool:
    """Whether scans show the name."""
    return not name.startswith("u")


def live(row: Row | None) -> Any:
    """The value of a row, None if there is none."""
    return None if row is None else row.value


class Reference:
    """All states of a store so far."""

    def __init__(self) -> None:
        self.states: list[State] = [{}]
        self.feed: list[Recorded] = []

    @property
    def newest(self) -> State:
        """The state now."""
        return self.states[-1]

    def shown(self, index: int, start: str, stop: str) -> dict[str, Row]:
        """What a scan shows of a state."""
        state = self.states[index]
        return {
            name: state[name]
            for name in sorted(state)
            if start <= name < stop and listed(name) and state[name].value is not None
        }

    def judge(self, attempt: Attempt) -> Verdict:
        """What should become of an attempt."""
        verdict = Verdict()
        before = self.states[attempt.snapshot]
        for name, expected in attempt.reads.items():
            now, then = self.newest.get(name), before.get(name)
            if expected == SEEN:
                expected = ABSENT if live(then) is None else SEEN
            holds = {
                ABSENT: live(now) is None,
                UNCHANGED: now == then,
                SEEN: now == then,
                OTHER: False,
            }[expected]
            if not holds:
                verdict.must.add(name)
        for start, stop in attempt.spans:
            if self.shown(attempt.snapshot, start, stop) != self.shown(len(self.states) - 1, start, stop):
                verdict.must_spans.add((start, stop))
            elif any(start <= name < stop and before.get(name) != row for name, row in self.newest.items()):
                verdict.may_spans.add((start, stop))
        self._write(attempt, verdict)
        return verdict

    def _write(self, attempt: Attempt, verdict: Verdict) -> None:
        values = {name: row.value for name, row in self.newest.items()}
        for start, stop in attempt.clears:
            for name, value in values.items():
                if start <= name < stop and listed(name) and value is not None:
                    values[name] = None
                    verdict.cleared.add(name)
        verdict.changed |= verdict.cleared
        for name, steps in attempt.writes.items():
            old = values.get(name)
            try:
                values[name] = applied(old, steps)
            except Refused as refused:
                verdict.merges[name] = str(refused)
                continue
            if steps[0].kind == "put" or not same(values[name], old):
                verdict.changed.add(name)
        verdict.after = {name: value for name, value in values.items() if name in verdict.changed}

    def commit(self, attempt: Attempt, verdict: Verdict, transaction: TransactionId, version: Version) -> None:
        """The attempt has been accepted and has got this version."""
        rows = {name: Row(value, version) for name, value in verdict.after.items()}
        self.states.append(self.newest | rows)
        self.feed.append(
            Recorded(len(self.states) - 1, transaction, version, frozenset(attempt.writes), frozenset(verdict.cleared))
        )

    def quietly(self, name: str, value: Any, version: Version) -> None:
        """A quiet write has been accepted: a new state without a feed record; a delete leaves nothing."""
        state = dict(self.newest)
        if value is None:
            state.pop(name, None)
        else:
            state[name] = Row(value, version)
        self.states.append(state)


def same(left: Any, right: Any) -> bool:
    """Equal and of one type, as stored forms would be."""
    return type(left) is type(right) and bool(left == right)


def applied(value: Any, steps: Sequence[Step]) -> Any:
    """The value after an ordinary write or a merge. Raises `Refused`."""
    for step in steps:
        value = _applied(value, step)
    return value


def _applied(value: Any, step: Step) -> Any:
    if step.kind == "put" or step.kind == "last":
        return step.value
    if step.kind == "delete":
        return None
    if step.kind == "add":
        return _added(value, step)
    if step.kind == "append":
        return [*_of(list, value), step.value]
    if step.kind == "set_add":
        return _of(set, value) | {step.value}
    if step.kind == "set_remove":
        return _of(set, value) - {step.value}
    if value is None:
        return step.value
    if type(value) is not type(step.value):
        raise Refused("kind")
    return max(value, step.value) if step.kind == "maximum" else min(value, step.value)


def _added(value: Any, step: Step) -> int:
    total: int = _of(int, value) + step.value
    if step.floor is not None and step.value < 0 and total < step.floor:
        raise Refused("bound")
    if step.ceiling is not None and step.value > 0 and total > step.ceiling:
        raise Refused("bound")
    return total


def _of(kind: type, value: Any) -> Any:
    if value is None:
        return kind()
    if type(value) is not kind:
        raise Refused("kind")
    return value
