"""Which transactions must have come before which, and the search for a circle among them.

After Adya ("Weak consistency", 1999), as Elle applies it to recorded histories (Kingsbury and Alvaro, VLDB 2020):

- ``ww``: the second wrote the version that follows the first's;
- ``wr``: the second read what the first wrote;
- ``rw``: the first read the version that the second replaced, so it came before it;
- ``rt``: the first had ended when the second began, on a clock that both share.

What a circle means depends on the promise. For *strict serialisability* every arrow is one of a single order, so any
circle is a violation. For *strong snapshot isolation* a transaction is two points, its snapshot and its commit:
``ww``, ``wr`` and ``rt`` lead from a commit to a snapshot, ``rw`` from a snapshot to a commit, and each snapshot
precedes its own commit; then again any circle is a violation, and write skew, which this level allows, is none. *Read
committed* looks at ``ww`` and ``wr`` alone. So one search serves all: Tarjan's strongly connected components, without
recursion, then a shortest circle inside one by breadth first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from interlock.testing.histories.records import History, Transaction

Model = Literal["read-committed", "strong-snapshot-isolation", "strict-serializable"]

MODELS: Final[dict[str, Model]] = {
    "none": "read-committed",
    "snapshot": "strong-snapshot-isolation",
    "optimistic": "strict-serializable",
    "serializable": "strict-serializable",
    "pessimistic": "strict-serializable",
}
"""Isolation mode -> what its histories have to be."""

Kind = Literal["ww", "wr", "rw", "rt"]

_STARTS: Final = 25
"""How many members of a component are tried as the start of a short circle; any circle proves the violation."""


@dataclass(frozen=True)
class Edge:
    """Why one transaction came before another: ``because`` is a clause about both."""

    before: int
    after: int
    kind: Kind
    because: str


@dataclass
class Dependencies:
    """The arrows of a history. Of several from one transaction to another the first of each kind is kept."""

    edges: dict[tuple[int, int, Kind], Edge] = field(default_factory=dict)

    def add(self, before: Transaction, after: Transaction, kind: Kind, because: str) -> None:
        """Note an arrow; none from a transaction to itself."""
        if before.number != after.number:
            key = (before.number, after.number, kind)
            if key not in self.edges:
                self.edges[key] = Edge(before.number, after.number, kind, because)

    def add_real_time(self, history: History) -> None:
        """The ``rt`` arrows, without those that follow from others: at each beginning only from the latest ends, those
        after which nothing has both begun and ended."""
        events: list[tuple[int, int, Transaction]] = []
        for each in history.transactions:
            if each.ending == "fail":
                continue
            events.append((each.begun, 1, each))
            if each.ending == "ok":
                events.append((each.ended, 0, each))
        events.sort(key=lambda event: event[:2])
        frontier: dict[int, Transaction] = {}
        behind: dict[int, tuple[int, ...]] = {}
        for _time, begins, each in events:
            if begins:
                behind[each.number] = tuple(frontier)
                for earlier in frontier.values():
                    self.add(earlier, each, "rt", f"T{earlier.number} had ended before T{each.number} began")
            else:
                for number in behind.pop(each.number, ()):
                    frontier.pop(number, None)  # whatever comes behind this one comes behind those too
                frontier[each.number] = each


@dataclass(frozen=True)
class Circle:
    """A violation: each transaction came before the next, and the last before the first."""

    name: str
    edges: tuple[Edge, ...]

    def explain(self) -> str:
        """The circle in words."""
        lines = [f"{self.name}: a circle of {len(self.edges)} transactions"]
        lines += [f"  T{edge.before} came before T{edge.after}: {edge.because}" for edge in self.edges]
        return "\n".join([*lines, "  so each of them came before itself, which is impossible"])


def circles(dependencies: Dependencies, model: Model, *, limit: int = 10) -> list[Circle]:
    """A shortest circle of each group of transactions that hang together, at most ``limit``."""
    split = model == "strong-snapshot-isolation"
    arrows: dict[int, list[tuple[int, Edge | None]]] = {}
    for edge in dependencies.edges.values():
        if model == "read-committed" and edge.kind in ("rw", "rt"):
            continue
        if not split:
            arrows.setdefault(edge.before, []).append((edge.after, edge))
            continue
        # 2n is the snapshot of transaction n, 2n + 1 its commit.
        source, target = (2 * edge.before, 2 * edge.after + 1) if edge.kind == "rw" else (
            2 * edge.before + 1, 2 * edge.after)  # fmt: skip
        arrows.setdefault(source, []).append((target, edge))
    if split:
        for number in {each for edge in dependencies.edges.values() for each in (edge.before, edge.after)}:
            arrows.setdefault(2 * number, []).append((2 * number + 1, None))
    found = []
    for component in _components(arrows):
        edges = _shortest(arrows, component)
        found.append(Circle(_name(edges), edges))
        if len(found) >= limit:
            break
    return found


def _components(arrows: dict[int, list[tuple[int, Edge | None]]]) -> Iterator[set[int]]:
    """The strongly connected components of more than one node (Tarjan 1972, with a stack of its own)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    for root in arrows:
        if root in index:
            continue
        work: list[tuple[int, Iterator[tuple[int, Edge | None]]]] = [(root, iter(arrows[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor, _edge in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(arrows.get(successor, ()))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        yield component


def _shortest(arrows: dict[int, list[tuple[int, Edge | None]]], component: set[int]) -> tuple[Edge, ...]:
    """A shortest circle through some member; in large components only some members are tried."""
    best: tuple[Edge, ...] | None = None
    for start in list(component)[:_STARTS]:
        back: dict[int, tuple[int, Edge | None]] = {}
        queue = deque([start])
        while queue and start not in back:
            node = queue.popleft()
            for successor, edge in arrows.get(node, ()):
                if successor in component and successor not in back:
                    back[successor] = (node, edge)
                    queue.append(successor)
        path: list[Edge] = []
        node = start
        while True:
            node, edge = back[node]
            if edge is not None:
                path.append(edge)
            if node == start:
                break
        if best is None or len(path) < len(best):
            best = tuple(reversed(path))
        if len(best) == 2:
            break
    assert best is not None
    return best


def _name(edges: Iterable[Edge]) -> str:
    """Adya's name of a circle, as Elle writes it."""
    kinds = [edge.kind for edge in edges]
    behind = "-realtime" if "rt" in kinds else ""
    reads = kinds.count("rw")
    if reads == 0:
        return ("G0" if "wr" not in kinds else "G1c") + behind
    return ("G-single" if reads == 1 else "G2-item") + behind
