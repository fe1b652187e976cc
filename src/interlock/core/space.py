"""A resource as the core knows it: its keys' prefix, its rules, its merge functions, and handles with a value type.

`Space` is one per resource name and store object; `Resource` is a view of it with a value type, so that the same data
can be read typed and untyped. The rules of a space (the isolation floor and the names of its invariants) are
published in the store under one system key, and every commit that touches the space expects the version of that key
that it knows. So a rule binds every process from the commit that publishes it: whoever has not learnt it yet is
refused by the expectation, learns it, and is then held to it. A process that writes without having declared one of
the invariants is refused: it could not check it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from interlock import keys
from interlock.core import isolation as modes
from interlock.core.rules import Check, Published, Rules, published_in
from interlock.core.typed import ValueType
from interlock.errors import UsageError
from interlock.model import Entry, Key, Span

if TYPE_CHECKING:
    from interlock.core.engine import Engine

MergeFunction = Callable[[Any, Any], Any]

_KEY_CACHE = 4096


class Space:
    """A named keyspace of one store object, with its rules as far as this process knows them."""

    __slots__ = (
        "_floor",
        "_invariants",
        "_published",
        "cache",
        "engine",
        "foreseen",
        "locks_key",
        "merges",
        "name",
        "prefix",
        "rules",
        "rules_key",
    )

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.prefix = keys.resource_space(name)
        self.rules_key: Key = keys.SYSTEM + b"rules" + self.prefix
        self.locks_key: Key = keys.SYSTEM + b"lock" + keys.encode((name,))
        """Where the locks of the space are; absent while there are none."""
        self.merges: dict[str, MergeFunction] = {}
        self.cache: dict[str, Key] = {}
        self.foreseen: dict[str, tuple[int, ...]] = {}
        """The places of the arguments that an operation reads, see `interlock.core.foresight`."""
        self._floor = modes.NONE
        self._invariants: dict[str, tuple[Check, Resource]] = {}
        self._published = Published()
        self.rules = Rules(self, self._published, self._floor, {})

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
        self._floor = max(self._floor, mode)
        self._settle()

    def declare_invariant(self, name: str, check: Check, resource: Resource) -> None:
        """Declare an invariant. Raises `UsageError` if the name is taken by another check."""
        keys.check_name("an invariant's name", name)
        if not callable(check):
            raise UsageError(f"invariant {name!r}: the check is a function of a view, not {type(check).__name__}")
        if self._invariants.setdefault(name, (check, resource))[0] is not check:
            raise UsageError(f"resource {self.name!r} already has an invariant {name!r}")
        self._settle()

    def learn(self, entry: Entry | None, *, newest: bool = False) -> Rules:
        """Take over what the store holds, unless something newer is known here already (``newest``: it is not)."""
        published, known = published_in(entry, self.name), self._published
        older = type(known.expected) is tuple and (
            type(published.expected) is not tuple or published.expected <= known.expected
        )
        if newest or not older:
            self._published = published
            self._settle()
        return self.rules

    def _settle(self) -> None:
        """Make the rules of what is declared and published. Again, if another thread has added to either meanwhile."""
        while True:
            published, floor, count = self._published, self._floor, len(self._invariants)
            self.rules = Rules(self, published, floor, dict(self._invariants))
            if published is self._published and floor == self._floor and count == len(self._invariants):
                return


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
