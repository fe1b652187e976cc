"""A resource as the core knows it: its keys' prefix, its rules, its merge functions, and handles with a value type.

`Space` is one per resource name and store object; `Resource` is a view of it with a value type, so that the same data
can be read typed and untyped. The rules of a space (the isolation floor and the names of its invariants) are
published in the store under one system key, and every commit that touches the space expects the version of that key
that it knows. So a rule binds every process from the commit that publishes it: whoever has not learnt it yet is
refused by the expectation, learns it, and is then held to it. A process that writes without having declared one of
the invariants is refused: it could not check it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from interlock import codec, keys
from interlock.core import isolation as modes
from interlock.core.typed import ValueType
from interlock.errors import InvariantError, IsolationError, SchemaMismatchError, UsageError
from interlock.model import ABSENT, Entry, Expectation, Key, Put, Span

if TYPE_CHECKING:
    from interlock.core.engine import Engine

Check = Callable[[Any], Awaitable[bool] | bool]
MergeFunction = Callable[[Any, Any], Any]

_KEY_CACHE = 4096
_RULES_FORM = 1


class Space:
    """A named keyspace of one store object, with its rules as far as this process knows them."""

    __slots__ = (
        "_declared_floor",
        "_published",
        "cache",
        "engine",
        "expected_rules",
        "floor",
        "foreign_invariants",
        "invariants",
        "merges",
        "name",
        "pending",
        "prefix",
        "ruled",
        "rules_key",
    )

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.prefix = keys.resource_space(name)
        self.rules_key: Key = keys.SYSTEM + b"rules" + self.prefix
        self.invariants: dict[str, tuple[Check, Resource]] = {}
        self.merges: dict[str, MergeFunction] = {}
        self.floor = modes.NONE
        self.pending = False
        self.expected_rules: Expectation = ABSENT
        self.foreign_invariants: frozenset[str] = frozenset()
        self._declared_floor = modes.NONE
        self._published: tuple[int, frozenset[str]] = (modes.NONE, frozenset())
        self.cache: dict[str, Key] = {}
        self.ruled = False

    def encode(self, key: Any) -> Key:
        """The stored key. Only texts are cached: ("a", 1) and ("a", True) are equal to a dict."""
        if type(key) is str:
            found = self.cache.get(key)
            if found is None:
                if len(self.cache) >= _KEY_CACHE:
                    self.cache.clear()
                found = self.cache[key] = self.prefix + keys.encode(key)
            return found
        return self.prefix + keys.encode(key)

    def decode(self, raw: Key) -> keys.UserKey:
        """The key whose stored form this is."""
        return keys.decode(raw[len(self.prefix) :])

    def span(self, prefix: Any, start: Any, stop: Any) -> Span:
        """The range that a prefix, or a start and a stop, mean."""
        if prefix is not None and (start is not None or stop is not None):
            raise UsageError("a range is given by a prefix, or by start and stop, not by both")
        if prefix is not None:
            return keys.prefix_span(self.prefix, prefix)
        return keys.range_span(self.prefix, start, stop)

    # -- rules ---------------------------------------------------------------------------------------------------------
    def require(self, mode: int) -> None:
        """Declare a floor; it is published with the next commit."""
        self._declared_floor = max(self._declared_floor, mode)
        self._settle_rules()

    def declare_invariant(self, name: str, check: Check, resource: Resource) -> None:
        """Declare an invariant. Raises `UsageError` if the name is taken by another check."""
        keys.check_name("an invariant's name", name)
        if not callable(check):
            raise UsageError(f"invariant {name!r}: the check is a function of a view, not {type(check).__name__}")
        if name in self.invariants and self.invariants[name][0] is not check:
            raise UsageError(f"resource {self.name!r} already has an invariant {name!r}")
        self.invariants[name] = (check, resource)
        self._settle_rules()

    def _settle_rules(self) -> None:
        floor, names = self._published
        self.floor = max(floor, self._declared_floor)
        self.foreign_invariants = names - self.invariants.keys()
        self.pending = self._declared_floor > floor or not names.issuperset(self.invariants)
        self.ruled = self.pending or bool(self.invariants) or bool(self.foreign_invariants)

    def learn(self, entry: Entry | None) -> None:
        """Take over the rules that the store holds."""
        self.expected_rules = modes.expectation(entry)
        if entry is None or entry.value is None:
            self._published = (modes.NONE, frozenset())
        else:
            stored = codec.thaw(entry.value)
            if stored["form"] != _RULES_FORM or stored["floor"] not in modes.RANKS:
                raise SchemaMismatchError(
                    f"the rules of resource {self.name!r} come from a newer version of Interlock; upgrade this one"
                )
            self._published = (modes.RANKS[stored["floor"]], frozenset(stored["invariants"]))
        self._settle_rules()

    def publication(self) -> Put:
        """What the rules become when this process's declarations are added to what is published."""
        floor, names = self._published
        weakest = {rank: name for name, rank in modes.RANKS.items()}
        form = {
            "form": _RULES_FORM,
            "floor": weakest[max(floor, self._declared_floor)],
            "invariants": sorted(names.union(self.invariants)),
        }
        return Put(codec.freeze(form))

    def admit(self, mode: int, isolation: str) -> None:
        """Raises `IsolationError` for a session that is weaker than the floor."""
        if mode < self.floor:
            names = {rank: name for name, rank in modes.RANKS.items()}
            raise IsolationError(
                f"resource {self.name!r} requires isolation {names[self.floor]!r}; this session is {isolation!r}"
            )

    def admit_writer(self) -> None:
        """Raises `InvariantError` if the store holds an invariant that this process cannot check."""
        if self.foreign_invariants:
            name = min(self.foreign_invariants)
            raise InvariantError(
                f"invariant {name!r} of resource {self.name!r} is not registered here, so it cannot be checked; "
                "declare it in this process before writing",
                invariant=name,
                resource=self.name,
            )


class Resource:
    """A space seen through a value type."""

    __slots__ = ("element", "encode", "freeze", "space", "thaw", "type")

    def __init__(self, space: Space, type: ValueType) -> None:
        self.space = space
        self.type = type
        self.encode = space.encode
        self.freeze = type.freeze
        self.thaw = type.thaw
        self.element = type.element
