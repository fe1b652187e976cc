"""What sessions should do, in plain Python: the oracle of the session machine.

A transaction is a list of calls. Its `Program` can be laid over any state: `view` is what it would see there, `effect`
what it would leave there. So a snapshot is the state that it read, a commit is an effect on the newest one, and a
committed serializable transaction is explained if, replayed on the state just before its commit, it sees again exactly
what it saw.

Each key has, besides its value, a stamp: the number of the commit that last changed it. Where it depends on details
that users are not promised (how far ahead a range was read) whether a commit may be refused, `Conflicts` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Call = tuple[Any, ...]
Values = dict[str, int]

READS = ("read", "read_many", "scan")


@dataclass(frozen=True)
class State:
    """The store after one commit: values, and for each key the commit that last touched it (also by removing it)."""

    values: Values
    stamps: dict[str, int]

    def same(self, other: State, key: str) -> bool:
        """Whether a key is the same there: absent in both, or of the same stamp."""
        if key not in self.values and key not in other.values:
            return True
        return key in self.values and key in other.values and self.stamps[key] == other.stamps[key]


def inside(key: str, start: str | None, stop: str | None) -> bool:
    """Whether a key lies in a range."""
    return (start is None or start <= key) and (stop is None or key < stop)


@dataclass
class Conflicts:
    """What a transaction relied on: certainly (``keys``, ``spans``) and perhaps (``near_keys``, ``near_spans``)."""

    keys: set[str] = field(default_factory=set)
    spans: set[tuple[str | None, str | None]] = field(default_factory=set)
    near_keys: set[str] = field(default_factory=set)
    near_spans: set[tuple[str | None, str | None]] = field(default_factory=set)


class Program:
    """The calls of one transaction, with what each returned."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.calls: list[Call] = []
        self.results: list[Any] = []
        self.effects: list[Call] = []
        self.relied = Conflicts()
        self._marks: list[int] = []

    # -- what it sees and leaves ---------------------------------------------------------------------------------------
    def view(self, base: Values) -> Values:
        """The state ``base`` as the transaction sees it."""
        return apply(base, self.effects)

    def expected(self, call: Call, base: Values) -> Any:
        """What a call returns to a transaction that reads from ``base``."""
        return answer(call, self.view(base))

    def note(self, call: Call, result: Any, base: Values) -> None:
        """A call was made, and returned what was expected."""
        self._rely(call, base)
        self.calls.append(call)
        self.results.append(result)
        self.effects += effects_of(call, self.view(base))

    def mark(self) -> None:
        """A savepoint begins."""
        self._marks.append(len(self.effects))
        self.calls.append(("mark",))
        self.results.append(None)

    def back(self, undo: bool) -> None:
        """The innermost savepoint ends, well or by an error."""
        place = self._marks.pop()
        if undo:
            del self.effects[place:]
        self.calls.append(("back", undo))
        self.results.append(None)

    def replayed(self, base: Values) -> list[Any]:
        """What the same calls return to a transaction that runs alone on ``base``."""
        again = Program(self.mode)
        for call in self.calls:
            if call[0] == "mark":
                again.mark()
            elif call[0] == "back":
                again.back(call[1])
            else:
                again.note(call, again.expected(call, base), base)
        return again.results

    # -- what it relied on ---------------------------------------------------------------------------------------------
    def decided(self, key: str) -> bool:
        """Whether the value of a key does not depend on the state below: put, deleted or cleared here."""
        return kinds(self.effects).get(key, "") in ("put", "delete") or any(
            effect[0] == "clear" and inside(key, *effect[1:]) for effect in self.effects
        )

    def _rely(self, call: Call, base: Values) -> None:
        name = call[0]
        if name in ("read", "update", "read_many"):
            wanted = call[1] if name == "read_many" else [call[1]]
            self.relied.keys |= {key for key in wanted if not self.decided(key)}
        elif name == "scan":
            _, start, stop, limit, reverse = call
            rows = answer(call, self.view(base))
            if limit is not None and len(rows) == limit and not reverse:
                self._rely_on_range(start, rows[-1][0] + "\0", base)
            elif limit is not None and len(rows) == limit:
                self._rely_on_range(rows[-1][0], stop, base)
            else:
                self._rely_on_range(start, stop, base)
            self._rely_on_range(start, stop, base, near=True)
        elif name == "update_where":
            self._rely_on_range(call[1], call[2], base)

    def _rely_on_range(self, start: str | None, stop: str | None, base: Values, near: bool = False) -> None:
        merged = {effect[1] for effect in self.effects if effect[0] == "add" and not self.decided(effect[1])}
        found = {key for key in base.keys() | merged if inside(key, start, stop)}
        if near:
            self.relied.near_keys |= found
            self.relied.near_spans.add((start, stop))
        else:
            self.relied.keys |= found if self.mode != "serializable" else set()
            self.relied.spans.add((start, stop))

    def broken(self, then: State, now: State) -> tuple[bool, bool]:
        """Whether something that was read at ``then`` is another at ``now``: certainly, and perhaps."""
        must = any(not then.same(now, key) for key in self.relied.keys)
        may = must or any(not then.same(now, key) for key in self.relied.near_keys)
        if any(span_changed(then, now, span) for span in self.relied.spans):
            must = must or self.mode == "serializable"
            may = True
        touched = self.relied.spans | self.relied.near_spans
        return must, may or any(span_touched(then, now, span) for span in touched)

    def refused(self, then: State, now: State) -> tuple[bool, bool]:
        """Whether a commit has to be refused, and whether it may be."""
        if self.mode == "none" or not self.effects:
            return False, False
        if self.mode in ("serializable", "optimistic"):
            must, may = self.broken(then, now)
            may = may if self.mode == "serializable" else must or self._near_changed(then, now)
        else:
            both = {key for key in self.relied.keys if self._written(key)}
            must = any(not then.same(now, key) for key in both)
            may = must or any(not then.same(now, key) for key in self.relied.near_keys if self._written(key))
        if self.mode in ("snapshot", "optimistic"):
            blind = {key for key, kind in kinds(self.effects).items() if kind != "add"} - self.relied.keys
            late = {key for key in blind if now.stamps.get(key, 0) > then.stamps.get(key, 0)}
            must = must or bool(late - self.relied.near_keys)
            may = may or bool(late)
        return must, may or must

    def _near_changed(self, then: State, now: State) -> bool:
        return any(not then.same(now, key) for key in self.relied.near_keys)

    def _written(self, key: str) -> bool:
        return key in kinds(self.effects) or any(
            effect[0] == "clear" and inside(key, *effect[1:]) for effect in self.effects
        )


def answer(call: Call, values: Values) -> Any:
    """What a call returns where this is what is seen."""
    match call:
        case ("read", key):
            return values.get(key)
        case ("read_many", wanted):
            return {key: values[key] for key in wanted if key in values}
        case ("scan", start, stop, limit, reverse):
            rows = sorted((key, value) for key, value in values.items() if inside(key, start, stop))
            return (rows[::-1] if reverse else rows)[:limit]
        case ("update", key, amount):
            return values.get(key, 0) + amount
        case ("update_where", *_):
            return len(effects_of(call, values))
        case _:
            return None


def effects_of(call: Call, values: Values) -> list[Call]:
    """What a call does, with everything computed that it computed from what was seen."""
    match call:
        case ("update", key, amount):
            return [("put", key, values.get(key, 0) + amount)]
        case ("update_where", start, stop, amount):
            changed = {key: value + amount for key, value in values.items() if inside(key, start, stop)}
            kept = [("put", key, value) for key, value in changed.items() if value % 3 and amount]
            return kept + [("delete", key) for key, value in changed.items() if not value % 3]
        case ("write", key, value):
            return [("put", key, value)]
        case ("delete" | "add" | "clear", *_):
            return [call]
        case _:
            return []


def apply(base: Values, effects: list[Call]) -> Values:
    """A state after effects, one after the other."""
    values = dict(base)
    for effect in effects:
        match effect:
            case ("put", key, value):
                values[key] = value
            case ("delete", key):
                values.pop(key, None)
            case ("add", key, amount):
                values[key] = values.get(key, 0) + amount
            case ("clear", start, stop):
                values = {key: value for key, value in values.items() if not inside(key, start, stop)}
    return values


def kinds(effects: list[Call]) -> dict[str, str]:
    """What each key's effects come down to: put, delete, or only additions. A later clear takes it out."""
    found: dict[str, str] = {}
    cleared: list[Call] = []
    for effect in effects:
        if effect[0] == "clear":
            found = {key: kind for key, kind in found.items() if not inside(key, *effect[1:])}
            cleared.append(effect)
        elif effect[0] == "add":
            key = effect[1]
            below = any(inside(key, *clear[1:]) for clear in cleared)
            found[key] = "put" if found.get(key) in ("put", "delete") or below else "add"
        else:
            found[effect[1]] = effect[0]
    return found


def after(state: State, program: Program, number: int) -> State:
    """The state that commit ``number`` leaves."""
    values = apply(state.values, program.effects)
    stamps = dict(state.stamps)
    decided = kinds(program.effects)
    for key in state.values.keys() | values.keys():
        put = decided.get(key) == "put"
        if put or state.values.get(key) != values.get(key):
            stamps[key] = number
    return State(values, stamps)


def span_changed(then: State, now: State, span: tuple[str | None, str | None]) -> bool:
    """Whether a range visibly holds something else."""
    return any(
        then.values.get(key) != now.values.get(key)
        for key in then.values.keys() | now.values.keys()
        if inside(key, *span)
    )


def span_touched(then: State, now: State, span: tuple[str | None, str | None]) -> bool:
    """Whether anything has happened in a range, seen or unseen."""
    return any(inside(key, *span) and stamp != then.stamps.get(key) for key, stamp in now.stamps.items())
