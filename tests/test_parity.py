"""`interlock` and `interlock.sync` are one API: the same names, parameters, defaults and documentation in short."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import interlock
import interlock.sync

PAIRS = (
    "AgentSession",
    "AgentView",
    "Attempt",
    "DeadLetters",
    "EffectStore",
    "IdempotentExecutor",
    "Lease",
    "Lock",
    "SharedResource",
    "Store",
    "TransactionLog",
)
WORDS = (  # what the two worlds have to say differently
    ("plain synchronous", "such"),
    ("asynchronous", "such"),
    ("synchronous", "such"),
    ("async with", "with"),
    ("async for", "for"),
    ("Await ", "Call "),
    ("await ", ""),
)
CONTEXT = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def members(kind: type) -> dict[str, Any]:
    """The public members of a class and of its bases of ours, context managers under their synchronous names."""
    found = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("interlock"):
            continue
        own = {name: each for name, each in vars(base).items() if not name.startswith("_") or name == "__init__"}
        found.update(own)
    return found


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults, of the implementation."""
    signature = inspect.signature(function)
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


def in_short(thing: Any) -> str:
    """The first paragraph of the documentation, in the words of neither world."""
    line = (inspect.getdoc(thing) or "").split("\n\n")[0]
    for one, other in WORDS:
        line = line.replace(one, other)
    return " ".join(line.split()).lower()


def differences(one: type, other: type) -> list[str]:
    """What the two classes do not have in common."""
    mine, theirs = members(one), members(other)
    said = [f"{one.__name__}.{name} is in one world only" for name in sorted(mine.keys() ^ theirs.keys())]
    for name in sorted(mine.keys() & theirs.keys()):
        a, b = mine[name], theirs[name]
        if isinstance(a, property) or isinstance(b, property):
            if type(a) is not type(b):
                said.append(f"{one.__name__}.{name} is a property in one world only")
        elif callable(a) and parameters(a) != parameters(b):
            said.append(f"{one.__name__}.{name} takes {parameters(a)} here and {parameters(b)} there")
        if in_short(a) != in_short(b):
            said.append(f"{one.__name__}.{name}: {in_short(a)!r} here and {in_short(b)!r} there")
    return said


def test_both_worlds_have_the_same_names() -> None:
    only_here = set(interlock.__all__) - set(interlock.sync.__all__)
    assert not only_here, only_here


def test_open_is_the_same() -> None:
    assert parameters(interlock.open) == parameters(interlock.sync.open)
    assert in_short(interlock.open) == in_short(interlock.sync.open)


@pytest.mark.parametrize("name", PAIRS)
def test_both_worlds_have_the_same_members(name: str) -> None:
    assert differences(getattr(interlock, name), getattr(interlock.sync, name)) == []


@pytest.mark.parametrize("name", ["Store", "AgentSession", "Attempt"])
def test_each_world_has_its_own_context_manager(name: str) -> None:
    asynchronous, synchronous = getattr(interlock, name), getattr(interlock.sync, name)
    for theirs, ours in CONTEXT.items():
        assert inspect.iscoroutinefunction(getattr(asynchronous, theirs))
        assert not inspect.iscoroutinefunction(getattr(synchronous, ours))


def test_a_difference_is_found() -> None:
    class One:
        """A pair."""

        def read(self, key: str, default: int = 0) -> None:
            """Read it."""

        def only(self) -> None:
            """Here."""

    class Other:
        """A pair."""

        def read(self, key: str, default: int = 1) -> None:
            """Write it."""

    One.__module__ = Other.__module__ = "interlock.pair"
    assert len(differences(One, Other)) == 3


def test_both_scopes_of_a_saga_have_the_same_calls() -> None:
    """They are one engine's; their classes have two names, because one `Saga` gives either."""
    asynchronous, synchronous = members(interlock.AsyncSagaScope), members(interlock.SagaScope)
    assert asynchronous.keys() == synchronous.keys()
    for name in ("parallel", "defer", "savepoint", "check", "transact", "abort"):
        assert parameters(asynchronous[name]) == parameters(synchronous[name]), name
        assert in_short(asynchronous[name]) == in_short(synchronous[name]), name
