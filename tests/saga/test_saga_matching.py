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
    assert not matching.is_plain(wrapped)
    assert not matching.is_plain(signed)


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
    assert not matching.is_plain(marked)
