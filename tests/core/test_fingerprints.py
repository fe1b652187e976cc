"""The fingerprint of a call: one form for every way to give the same arguments, and the same in every version."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from interlock.core.idempotency import call_fingerprint, identify
from interlock.errors import UsageError


def one(session: object, name: object) -> None: ...


def three(session: object, name: object, amount: object, at: object = None) -> None: ...


def none(session: object) -> None: ...


Call = tuple[Callable[..., None], tuple[Any, ...]]


@pytest.mark.parametrize(
    ("call", "names", "values"),
    [
        ((none, ()), (), ()),
        ((one, ("apples",)), ("name",), ("apples",)),
        ((one, (None,)), ("name",), (None,)),
        ((three, ("apples", 2, True)), ("amount", "at", "name"), (2, True, "apples")),
        ((three, ("apples", 2)), ("amount", "at", "name"), (2, None, "apples")),
        ((functools.partial(three, at=7), ("apples", 2)), ("amount", "at", "name"), (2, 7, "apples")),
    ],
)
def test_a_plain_call_is_kept_as_it_is(call: Call, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Records outlive the version that wrote them, so the bytes are fixed."""
    found = call_fingerprint("a", *call, {})
    assert found == msgspec.msgpack.encode(("plain call", "a", names, values))
    assert identify("a", None, *call, "key")[2] == found


@pytest.mark.parametrize("value", [1.5, 1 << 70, [1], ("a", 1), {"a": 1}, "x" * 200])
def test_both_ways_to_a_fingerprint_agree(value: object) -> None:
    for agent in ("a", "b"):
        assert identify(agent, None, one, (value,), "key")[2] == call_fingerprint(agent, one, (value,), {})
    assert call_fingerprint("a", one, (value,), {}) != call_fingerprint("b", one, (value,), {})


@pytest.mark.parametrize(("agent", "name"), [("\ud800", "apples"), ("a", "\ud800")])
def test_half_a_surrogate_pair_is_refused(agent: str, name: str) -> None:
    with pytest.raises(UsageError, match="fingerprint"):
        identify(agent, None, one, (name,), "key")
