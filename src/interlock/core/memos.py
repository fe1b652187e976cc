"""`memo`: results that are paid for once, however often the function runs again.

Which call is which? A function that is defined anew at each attempt is the same one if its code is and what it closes
over: equal numbers and texts, the very same objects otherwise. Other callables are the same if they are equal. A
result is kept in its stored form, so that each attempt gets a copy of its own; what has no stored form is kept as it
is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any, Final

from interlock import codec
from interlock.core.transaction import Transaction
from interlock.errors import LimitExceededError, UsageError, ValueRefusedError

_SCALARS: Final = (str, int, float, bool, bytes, type(None))
_DEPTH: Final = 8
"""How deep functions may close over functions before only the very same one counts."""


async def memo(txn: Transaction, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The result of ``fn(*arguments)``, from this attempt or an earlier one."""
    if txn.state:
        txn.refuse("memo")
    try:
        key = memo_key(fn, arguments)
        if txn.memos is None:
            txn.memos = {}
        if key not in txn.memos:
            value = fn(*arguments)
            if hasattr(value, "__await__"):
                if not txn.engine.runtime.suspends:
                    if inspect.iscoroutine(value):
                        value.close()
                    raise UsageError("memo of an async function; use interlock instead of interlock.sync")
                value = await value
            txn.memos[key] = _kept(value)
        kept = txn.memos[key]
    except BaseException as error:
        txn.doom(error)
        raise
    return codec.thaw(kept.raw) if type(kept) is _Frozen else kept


class _Frozen:
    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


def _kept(value: Any) -> Any:
    try:
        return _Frozen(codec.freeze(value))
    except (ValueRefusedError, LimitExceededError):
        return value


def memo_key(fn: Any, arguments: tuple[Any, ...]) -> Any:
    """What two calls have in common that are the same. Raises `ValueRefusedError` for arguments without a stored
    form."""
    named: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        fn, arguments, named = fn.func, (*fn.args, *arguments), {**fn.keywords, **named}
    return _same(fn, 0), codec.canonical([*arguments, named])


class _Same:
    """An object as part of a key: equal to itself only."""

    __slots__ = ("what",)

    def __init__(self, what: object) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.what is self.what

    def __hash__(self) -> int:
        return id(self.what)


def _same(value: Any, depth: int) -> Any:
    """Something that is equal for what counts as the same."""
    kind = type(value)
    if kind in _SCALARS:
        return kind, value
    if kind is MethodType:
        return _same(value.__func__, depth), _Same(value.__self__)
    if kind is not FunctionType or depth > _DEPTH:
        return value if depth == 0 and kind.__hash__ is not None else _Same(value)
    inner = [_contents(cell) for cell in value.__closure__ or ()]
    inner += (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    inner.append(getattr(value, "__wrapped__", None))
    return value.__code__, tuple(_same(part, depth + 1) for part in inner)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
