"""The rules of a resource: its isolation floor and its invariants, as one process knows them at one moment.

`Rules` never change; a space replaces its rules as a whole when it learns or declares something. So a commit that
picks them once judges by the same rules that its request expects to be in force, whatever other threads learn
meanwhile.

What is published lies in the store under one system key for each resource: the floor, and the names of all invariants
that any process has declared. A process adds its own with its next commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock import codec
from interlock.core import isolation as modes
from interlock.errors import BackendCorruptError, InvariantError, IsolationError, SchemaMismatchError
from interlock.model import ABSENT, Entry, Expectation, Key, Put

if TYPE_CHECKING:
    from interlock.core.space import Resource, Space

Check = Callable[[Any], Awaitable[bool] | bool]
Invariants = Mapping[str, "tuple[Check, Resource]"]

_FORM: Final = 1
_NAMES: Final = {rank: name for name, rank in modes.RANKS.items()}


class Published(msgspec.Struct, frozen=True):
    """What the store holds, and what a commit expects it to hold still."""

    expected: Expectation = ABSENT
    floor: int = modes.NONE
    names: frozenset[str] = frozenset()


def published_in(entry: Entry | None, resource_name: str) -> Published:
    """What an entry of the store says. Raises `SchemaMismatchError` if it is of a newer form, and
    `BackendCorruptError` if it is none."""
    if entry is None or entry.value is None:
        return Published()
    stored = codec.thaw(entry.value)
    if type(stored) is not dict or type(stored.get("form")) is not int or type(stored.get("floor")) is not str:
        raise _damaged(resource_name)
    if stored["form"] != _FORM or stored["floor"] not in modes.RANKS:
        raise SchemaMismatchError(
            f"the rules of resource {resource_name!r} come from a newer version of Interlock; upgrade this one"
        )
    names = stored.get("invariants")
    if type(names) is not list or not all(type(name) is str for name in names):
        raise _damaged(resource_name)
    return Published(entry.version, modes.RANKS[stored["floor"]], frozenset(names))


def _damaged(resource_name: str) -> BackendCorruptError:
    return BackendCorruptError(f"the rules of resource {resource_name!r} in the store are damaged")


class Rules:
    """What is in force for a space: published by anybody, or declared here and published with the next commit."""

    __slots__ = (
        "_declared_floor", "_published", "absent", "expected", "floor", "free", "invariants", "key", "locks_key",
        "pending", "ruled", "space",
    )  # fmt: skip

    def __init__(self, space: Space, published: Published, declared_floor: int, invariants: Invariants) -> None:
        self.space = space
        self.key: Key = space.rules_key
        self.locks_key: Key = space.locks_key
        self.expected = published.expected
        self.floor = max(published.floor, declared_floor)
        self.invariants = invariants
        self.pending = declared_floor > published.floor or not published.names.issuperset(invariants)
        self.ruled = bool(self.floor or invariants or published.names)
        self.free = not self.ruled and published.expected is ABSENT
        self.absent = (self.key, self.locks_key)
        """What is not in the store while a space has neither rules (`free`) nor locks."""
        self._published = published
        self._declared_floor = declared_floor

    def learnt(self, entry: Entry | None) -> Rules:
        """These declarations with what the store holds by now."""
        published = published_in(entry, self.space.name)
        return Rules(self.space, published, self._declared_floor, self.invariants)

    def publication(self) -> Put:
        """What the rules become when the declarations are added to what is published."""
        names = self._published.names.union(self.invariants)
        return Put(codec.freeze({"form": _FORM, "floor": _NAMES[self.floor], "invariants": sorted(names)}))

    def admit(self, mode: int, isolation: str) -> None:
        """Raises `IsolationError` for a session that is weaker than the floor."""
        if mode < self.floor:
            raise IsolationError(
                f"resource {self.space.name!r} requires isolation {_NAMES[self.floor]!r}; this session is {isolation!r}"
            )

    def admit_writer(self) -> None:
        """Raises `InvariantError` if the store holds an invariant that this process cannot check."""
        foreign = self._published.names - self.invariants.keys()
        if foreign:
            name = min(foreign)
            raise InvariantError(
                f"invariant {name!r} of resource {self.space.name!r} is not registered here, so it cannot be checked; "
                "declare it in this process before writing",
                invariant=name,
                resource=self.space.name,
            )
