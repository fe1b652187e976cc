"""Snapshots of any Python object graph, restored in place with every identity kept.

`snapshot` walks the graph once and remembers, for each object that can change, a shallow copy of what it holds (see
`interlock.saga.contents`). `Snapshot.restore` puts those contents back into the very same objects. So two paths that
led to one object do so again, cycles close again, an alias that the program holds sees the restored data, and objects
made meanwhile simply fall away. What was saved is never handed out: contents are copied in both directions, so a
second restore gives the same as the first.

Cost: one step for each object that can change and one cheap test for each leaf; restoring writes only to objects whose
contents differ by identity. Python offers no way to be told of a change, so the comparison is linear in the graph.

Comparison never calls ``==`` on the program's objects: what has changed is decided by identity, and only leaves of
known classes are compared by value (NaN equals itself). Objects kept by reference are named in `Snapshot.kept`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from interlock.saga.contents import ATOMIC, EXACT, Kind, kind_of, shown

DIFFERENCES: Final = 100
"""How many differences are named; one more line says that there are others."""

_COMPARED = frozenset({bool, bytes, complex, float, int, str, type(None)})


def snapshot(state: object) -> Snapshot:
    """Remember everything that can be reached from an object; `Snapshot.restore` brings it back in place.

    Nothing is copied but contents: dicts, lists, sets, deques, instances (slotted, frozen, pydantic ones too) and numpy
    arrays. Locks, sockets, files, generators and clients are kept by reference and named in `Snapshot.kept`."""
    return Snapshot(state)


class Snapshot:
    """What an object graph was at one moment; made by `snapshot`."""

    __slots__ = ("_kept", "_kept_objects", "_root", "_saved")

    def __init__(self, state: object) -> None:
        self._root = state
        self._saved: dict[int, tuple[Any, Any, Kind]] = {}
        self._kept_objects: dict[int, Any] = {}
        self._kept: tuple[str, ...] | None = None
        self._take([state])

    def _take(self, stack: list[Any]) -> None:
        saved, kept = self._saved, self._kept_objects
        while stack:
            value = stack.pop()
            number = id(value)
            kind: Any = type(value)
            if number in saved or number in kept or kind in ATOMIC:
                continue
            handled = EXACT.get(kind) or kind_of(kind)
            if handled is None:
                kept[number] = value
                continue
            contents = handled.save(value)
            saved[number] = (value, contents, handled)
            stack.extend(handled.children(contents))

    @property
    def kept(self) -> tuple[str, ...]:
        """The paths of what is kept by reference: its own contents are not restored."""
        if self._kept is None:
            self._kept = tuple(self._paths_of_kept()) if self._kept_objects else ()
        return self._kept

    def _paths_of_kept(self) -> Iterator[str]:
        if id(self._root) in self._kept_objects:
            yield f"$ ({type(self._root).__name__})"
            return
        for path, entry in self._walk():
            _, contents, handled = entry
            for label, part in handled.parts(contents):
                if id(part) in self._kept_objects and type(part) not in ATOMIC:
                    yield f"{path}{label} ({type(part).__name__})"

    def _walk(self) -> Iterator[tuple[str, tuple[Any, Any, Kind]]]:
        """Every saved object once, with the shortest path to it as the state was."""
        seen = {id(self._root)}
        level: list[tuple[str, Any]] = [("$", self._root)]
        while level:
            below: list[tuple[str, Any]] = []
            for path, value in level:
                entry = self._saved.get(id(value))
                if entry is None:
                    continue
                yield path, entry
                for label, part in entry[2].parts(entry[1]):
                    if id(part) in self._saved and id(part) not in seen:
                        seen.add(id(part))
                        below.append((path + label, part))
            level = below

    def restore(self) -> None:
        """Put everything back, in place. May be called again, also after further changes.

        Every object is attempted; an `ExceptionGroup` says which could not be restored."""
        failures: list[Exception] = []
        for value, contents, handled in self._saved.values():
            if handled.frozen:
                continue
            try:
                if not handled.same(handled.save(value), contents):
                    handled.load(value, contents)
            except Exception as error:
                error.add_note(f"while restoring a {type(value).__qualname__}")
                failures.append(error)
        if failures:
            raise ExceptionGroup("part of the state could not be restored", failures)

    def changed(self) -> bool:
        """Whether anything differs from the snapshot, by identity."""
        return any(not handled.same(handled.save(value), contents) for value, contents, handled in self._saved.values())

    def diff(self) -> list[str]:
        """What differs now, one line for each place: ``$.orders[3].price: 5 -> 7``. At most a hundred lines."""
        found: list[str] = []
        for path, (value, contents, handled) in self._walk():
            now = handled.save(value)
            if handled.frozen or handled.same(now, contents):
                continue
            for line in _differences(path, dict(handled.parts(contents)), dict(handled.parts(now))):
                if len(found) == DIFFERENCES:
                    return [*found, "... and more"]
                found.append(line)
        return found


def _differences(path: str, before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for label, was in before.items():
        if label not in now:
            yield f"{path}{label}: {shown(was)} -> removed"
        elif not _equal(was, now[label]):
            yield f"{path}{label}: {shown(was)} -> {shown(now[label])}"
    for label, value in now.items():
        if label not in before:
            yield f"{path}{label}: added {shown(value)}"


def _equal(one: Any, other: Any) -> bool:
    """Whether two parts are the same, without asking the program's own ``==``."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in _COMPARED:
        return False
    return bool(one == other) or (one != one and other != other)
