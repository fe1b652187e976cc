"""Merge algebra on stored forms: pure, exact, the same for every backend and for a session's view of its own merges.

A merge takes no read dependency: the engine applies it to the newest value, so two agents that add to one counter never
conflict. With a floor or ceiling it is escrow (P. O'Neil, "The Escrow Transactional Method", TODS 1986, in the simple
form where the engine decides at commit): a step *towards* a bound that would cross it refuses the commit; a step away
from it never does. Bounds are checked after each operation, in program order.

An absent value counts as 0, [] or the empty set; for `maximum`, `minimum` and `last` the operand is the result. A
stored value of another kind refuses the commit and is never converted.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, Inexact
from typing import Any, Final

from interlock import codec
from interlock.errors import BackendCorruptError, ValueRefusedError
from interlock.model import BoundBroken, MergeRefused, Operation

KINDS: Final = frozenset(("add", "append", "set_add", "set_remove", "maximum", "minimum", "last"))

_EXACT = Context(prec=3 * codec.DIGITS, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact])
_ORDERED = (int, Decimal, float, str, bytes, dt.date, dt.timedelta)
_KIND_NAMES = {b"i": "an int", b"d": "a Decimal", b"l": "a list", b"s": "a set", b"m": "another kind of value"}


def apply(before: bytes | None, operations: Iterable[Operation]) -> bytes:
    """The stored form after the operations. Raises `BoundBroken` or `MergeRefused`, or `BackendCorruptError` where
    stored bytes are damaged; none leaves anything behind."""
    value = before
    try:
        for operation in operations:
            value = _APPLY[operation.kind](value, operation)
    except (ValueError, ArithmeticError, TypeError, LookupError) as error:
        raise BackendCorruptError(f"a merge cannot be applied, stored bytes are damaged: {error}") from error
    if value is None:
        raise MergeRefused("a merge without operations")
    return value


def _add(before: bytes | None, operation: Operation) -> bytes:
    tag = operation.operand[:1]
    if before is not None and before[:1] != tag:
        raise MergeRefused(f"add of {_KIND_NAMES[tag]} to {_KIND_NAMES.get(before[:1], 'another kind of value')}")
    if tag == b"i":
        amount = int(operation.operand[1:])
        total = amount if before is None else int(before[1:]) + amount
        low, high = operation.floor, operation.ceiling
        if low is not None and amount < 0 and total < int(low[1:]):
            raise BoundBroken(operation, before)
        if high is not None and amount > 0 and total > int(high[1:]):
            raise BoundBroken(operation, before)
        return _refused_if_large(total)
    return _add_decimal(before, operation)


def _add_decimal(before: bytes | None, operation: Operation) -> bytes:
    amount = Decimal(operation.operand[1:].decode())
    try:
        total = amount if before is None else _EXACT.add(Decimal(before[1:].decode()), amount)
    except ArithmeticError:
        raise MergeRefused("the sum of the Decimals has too many digits to be exact") from None
    if operation.floor is not None and amount < 0 and total < Decimal(operation.floor[1:].decode()):
        raise BoundBroken(operation, before)
    if operation.ceiling is not None and amount > 0 and total > Decimal(operation.ceiling[1:].decode()):
        raise BoundBroken(operation, before)
    return _refused_if_large(total)


def _refused_if_large(total: int | Decimal) -> bytes:
    try:
        return codec.freeze(total)
    except ValueRefusedError as error:
        raise MergeRefused(str(error.args[0])) from None


def _append(before: bytes | None, operation: Operation) -> bytes:
    if before is not None and before[:1] != b"l":
        raise MergeRefused("append to something that is not a list")
    return _bounded((b"l" if before is None else before) + codec.frame((operation.operand,)))


def _set(before: bytes | None, operation: Operation) -> bytes:
    if before is not None and before[:1] != b"s":
        raise MergeRefused(f"{operation.kind} on something that is not a set of str, bytes and int")
    rows = set() if before is None else set(codec.unframe(before))
    if operation.kind == "set_add":
        rows.add(operation.operand)
    else:
        rows.discard(operation.operand)
    return _bounded(b"s" + codec.frame(sorted(rows)))


def _bounded(raw: bytes) -> bytes:
    if len(raw) > codec.VALUE_BYTES:
        raise MergeRefused(str(codec.too_large(len(raw))))
    return raw


def _extreme(before: bytes | None, operation: Operation) -> bytes:
    if before is None:
        return operation.operand
    old, new = codec.thaw(before), codec.thaw(operation.operand)
    if type(old) is not type(new):
        raise MergeRefused(f"{operation.kind} of {type(new).__name__} and the stored {type(old).__name__}")
    try:
        better = new > old if operation.kind == "maximum" else new < old
    except TypeError as error:  # a naive and an aware datetime
        raise MergeRefused(f"{operation.kind}: {error}") from None
    return operation.operand if better else before


_APPLY: Final[dict[str, Any]] = {
    "add": _add,
    "append": _append,
    "set_add": _set,
    "set_remove": _set,
    "maximum": _extreme,
    "minimum": _extreme,
    "last": lambda before, operation: operation.operand,
}


def number_operand(value: Any, what: str) -> bytes:
    """The stored form of an amount or bound of `add`: an int (not bool) or a Decimal. Raises `ValueRefusedError`."""
    if type(value) not in (int, Decimal):
        raise ValueRefusedError(f"{what} is an int or a Decimal, not {type(value).__name__}: floats do not add exactly")
    return codec.freeze(value)


def add_operation(amount: Any, floor: Any, ceiling: Any) -> Operation:
    """`add` with its bounds. Raises `ValueRefusedError` if they are not all of one number type."""
    for name, bound in (("floor", floor), ("ceiling", ceiling)):
        if bound is not None and type(bound) is not type(amount):
            raise ValueRefusedError(f"{name} is a {type(bound).__name__} where the amount is a {type(amount).__name__}")
    return Operation(
        "add",
        number_operand(amount, "the amount of add"),
        None if floor is None else number_operand(floor, "floor"),
        None if ceiling is None else number_operand(ceiling, "ceiling"),
    )


def extreme_operation(kind: str, value: Any) -> Operation:
    """`maximum` or `minimum`. Raises `ValueRefusedError` for a type that has no order of its own."""
    if type(value) is bool or not isinstance(value, _ORDERED):
        raise ValueRefusedError(f"{kind} compares numbers, texts, bytes and times, not {type(value).__name__}")
    return Operation(kind, codec.freeze(value))


def fold(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The same operations with runs of unbounded `add` of one type joined, so that a loop of adds stays one
    operation."""
    out: list[Operation] = []
    for operation in operations:
        last = out[-1] if out else None
        if (
            last is not None
            and operation.kind == last.kind == "add"
            and operation.operand[:1] == last.operand[:1] == b"i"
            and operation.floor is operation.ceiling is last.floor is last.ceiling is None
        ):
            out[-1] = Operation("add", apply(last.operand, (operation,)))
        else:
            out.append(operation)
    return tuple(out)
