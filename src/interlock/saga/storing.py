"""How arguments and results lie in a journal: exact, or refused before anything is done.

Plain data is kept as it is. Anything else (a dataclass, a struct, a pydantic model) needs a declared type, from which
it can be built again: the annotation of the parameter or of the result. Nothing is ever looked up by a name that stands
in the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from interlock import codec
from interlock.core.typed import value_type
from interlock.errors import InterlockError, UsageError, ValueRefusedError
from interlock.saga.matching import name_of, unwrapped

Stored = list[Any]
"""[typed, raw]"""


def hints_of(fn: Any) -> dict[str, Any]:
    """The annotations of a function; none where they cannot be evaluated."""
    inner = unwrapped(fn)[0]
    try:
        return get_type_hints(inner)
    except Exception:
        return {}


def store_value(value: Any, hint: Callable[[], Any], what: str) -> Stored:
    """The stored form. Raises `ValueRefusedError` where there is none."""
    try:
        return [False, codec.freeze(value)]
    except ValueRefusedError as refused:
        declared = hint()
        if declared is None or declared is Any:
            raise ValueRefusedError(
                f"{what} cannot be kept in the saga's journal: {refused.args[0]}; use plain data, or annotate it with "
                "its type",
                path=refused.path,
            ) from refused
        try:
            return [True, value_type(declared).freeze(value)]
        except UsageError as unknown:
            raise ValueRefusedError(f"{what} cannot be kept in the saga's journal: {unknown}") from unknown


def load_value(stored: Stored, hint: Callable[[], Any], what: str) -> Any:
    """The value again. Raises `UsageError` where its type is not declared any more."""
    typed, raw = stored
    if not typed:
        return codec.thaw(raw)
    declared = hint()
    if declared is None or declared is Any:
        raise UsageError(f"{what} was kept as a typed value, and its annotation is gone")
    try:
        return value_type(declared).thaw(raw)
    except InterlockError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} cannot be built again as {declared}: {error}") from error


def what_of(fn: Any, name: str) -> str:
    """How an error calls an argument."""
    return f"{name!r} of {name_of(fn)}"
