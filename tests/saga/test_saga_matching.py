"""What a saga takes a function's parameters to be."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from interlock import Saga
from interlock.saga import matching


def charge(order: str, cents: int = 1) -> str:
    """A tool."""
    return f"{order} {cents}"


def test_attributes_that_tools_leave_on_functions_make_no_step_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    def decorated(order: str, cents: int = 1) -> str:
        return charge(order, cents)

    decorated.tool_name = "charge"  # type: ignore[attr-defined]  # as frameworks register what they are given

    def never(*args: Any, **named: Any) -> None:
        raise AssertionError("the signature was made anew")

    monkeypatch.setattr(inspect, "signature", never)

    def refund(result: str) -> None:
        """Nothing to undo here."""

    with Saga() as saga:
        assert saga.step(decorated, "a", undo=refund) == "a 1"
    assert matching.shape_of(decorated) == matching.shape_of(charge)


def test_a_function_that_says_it_is_another_is_believed() -> None:
    @functools.wraps(charge)
    def wrapped(*args: Any, **named: Any) -> str:
        return charge(*args, **named)

    def signed(*args: Any, **named: Any) -> str:
        return charge(*args, **named)

    signed.__signature__ = inspect.signature(charge)  # type: ignore[attr-defined]
    assert matching.shape_of(wrapped) == matching.shape_of(signed) == matching.shape_of(charge)
    assert not matching.is_bare(wrapped)
    assert not matching.is_bare(signed)


def test_what_a_decorated_function_shows_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it shows something else."""

    @functools.wraps(charge)
    def wrapped(*args: Any, **named: Any) -> str:
        return charge(*args, **named)

    @functools.wraps(wrapped)
    def twice(*args: Any, **named: Any) -> str:
        return wrapped(*args, **named)

    def refund(result: str, order: str) -> None:
        """Nothing to undo here."""

    def other(*, person: str = "b") -> str:
        """What may be wrapped as well."""
        return person

    asked = []
    real = inspect.signature

    def counted(fn: Any) -> inspect.Signature:
        asked.append(fn)
        return real(fn)

    monkeypatch.setattr(inspect, "signature", counted)
    for _ in range(3):
        with Saga() as saga:
            assert saga.step(twice, "a", undo=refund) == "a 1"
    assert asked == [twice]
    changes = (
        lambda: setattr(wrapped, "__wrapped__", other),
        lambda: setattr(twice, "__signature__", real(charge)),
        lambda: setattr(twice, "__signature__", real(other)),
        lambda: delattr(twice, "__signature__"),
        lambda: setattr(other, "__kwdefaults__", {"person": "c"}),
        lambda: setattr(wrapped, "__wrapped__", charge),
        lambda: delattr(twice, "__wrapped__"),
    )
    for change in changes:
        change()
        shown = real(twice)
        assert matching.shape_of(twice) == matching._shape_of_signature(shown)
        bound = shown.bind(*["x"][: "order" in shown.parameters])
        bound.apply_defaults()
        expected = {name: value for name, value in bound.arguments.items() if name != "named"}
        assert matching.bind(twice, bound.args, bound.kwargs) == expected


def test_a_function_that_is_marked_as_asynchronous_is() -> None:
    def marked() -> None:
        """Returns an awaitable, says its author."""

    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is None:  # before 3.12 asyncio has the only mark
        import asyncio.coroutines

        marked._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
        assert not inspect.iscoroutinefunction(marked)  # which inspect does not look at
    else:
        mark(marked)
        assert matching.is_async(marked)
    assert not matching.is_bare(marked)
