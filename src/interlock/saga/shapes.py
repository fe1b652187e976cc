"""What a record of the journal must look like, field by field.

The journal is data that somebody else may have written, or a disk may have lost some of. Everything that recovery takes
out of it is checked here, where it is read: a damaged step is a `BackendCorruptError` there, never a `KeyError` in the
middle of an undo. Whatever passes can be used without another look: `interlock.saga.recorded`, `recording`,
`transacting`, `inverses` and `receipts` index these fields as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from interlock import codec, keys
from interlock.core.retry import RetryPolicy
from interlock.errors import BackendCorruptError, UsageError

Check = Callable[[Any], bool]

_SEQUENCES: Final = (list, tuple)
_BOUND: Final = (bytes, type(None))


def _text(value: Any) -> bool:
    return type(value) is str


def _bytes(value: Any) -> bool:
    return type(value) is bytes


def _stored(value: Any) -> bool:
    """A value as `interlock.saga.storing` keeps it."""
    return type(value) in _SEQUENCES and len(value) == 2 and type(value[0]) is bool and type(value[1]) is bytes


def _all_of(check: Check) -> Check:
    return lambda value: type(value) in _SEQUENCES and all(map(check, value))


def _plan(value: Any) -> bool:
    return (
        type(value) in _SEQUENCES
        and len(value) == 3
        and type(value[0]) is int
        and value[0] >= 0
        and all(map(_all_of(_text), value[1:]))
    )


def _kept(value: Any) -> bool:
    return type(value) is dict and all(map(_text, value)) and all(map(_stored, value.values()))


def _retry(value: Any) -> bool:
    if type(value) not in _SEQUENCES or len(value) != 4:
        return False
    try:
        RetryPolicy(*value)
    except UsageError:
        return False
    return True


def _transaction(value: Any) -> bool:
    try:
        return type(value) is str and 0 <= int(value, 16) < 1 << 128
    except ValueError:
        return False


def _piece(piece: Any) -> bool:
    """See `interlock.saga.inverses.Piece`."""
    if type(piece) not in _SEQUENCES or not piece:
        return False
    kind, *rest = piece
    if not rest:
        return bool(kind == "replayed")
    key, *rest = rest
    if type(key) is not bytes:
        return False
    if kind == "record":
        return not rest
    return _is_users(key) and _taken_back(kind, rest)


def _taken_back(kind: Any, rest: list[Any]) -> bool:
    if kind == "value" and len(rest) == 2:
        return type(rest[0]) in _BOUND and (rest[1] is None or type(rest[1]) is int)
    if kind == "add" and len(rest) == 1:
        return _all_of(_addition)(rest[0])
    return kind == "set" and len(rest) == 2 and all(map(_all_of(_bytes), rest))


def _is_users(key: bytes) -> bool:
    try:
        return key[:1] == keys.USER and keys.split(key) is not None
    except BackendCorruptError:
        return False


def _addition(value: Any) -> bool:
    """An operand and two bounds."""
    return type(value) in _SEQUENCES and len(value) == 3 and value[0] is not None and all(map(_amount, value))


def _amount(value: Any) -> bool:
    """A stored number, or no bound."""
    try:
        return value is None or (type(value) is bytes and type(codec.thaw(value)) in (int, Decimal))
    except (BackendCorruptError, ValueError):
        return False


_STEP: Final[Mapping[str, Check]] = {
    "plan": _plan,
    "kept": _kept,
    "positional": _all_of(_stored),
    "arguments": _all_of(_stored),
    "result": _stored,
    "retry": _retry,
    "undo_unknown": lambda value: type(value) is bool,
    "print": _bytes,
    "inverse": _all_of(_piece),
    "transaction": _transaction,
    "undo_transaction": _transaction,
    "agent": _text,
    "store": _text,
    "receipt": _text,
    "url": lambda value: value is None or type(value) is str,
}
"""Field of a step -> what its value must be like, where there is one."""

_RECEIPT: Final[Mapping[str, Check]] = {
    "result": _stored,
    "inverse": _all_of(_piece),
    "transaction": _transaction,
    "undo": lambda value: type(value) is int,
    "put_back": _all_of(lambda each: type(each) in _SEQUENCES and len(each) == 2 and type(each[0]) is bytes
                        and (each[1] is None or type(each[1]) is int)),
}  # fmt: skip
_NEEDED_OF_RECEIPTS: Final = {"done": ("inverse", "transaction"), "undone": ("undo", "put_back"), "void": ()}


def check_step(step: Mapping[str, Any]) -> None:
    """Raises `BackendCorruptError` for a step of a journal that cannot be gone on with, replayed or undone."""
    kind, needed = step.get("kind"), ["fn"]
    if step["status"] == "done":
        needed.append("result")
    if step.get("undo") is not None:
        needed.append("plan")
    if kind == "deferred":
        needed.append("arguments")
    if kind == "transact":
        needed.append("label")
        if "store" in step:
            needed.append("receipt")
        elif "inverse" in step:
            needed += ("agent", "transaction")
    if "undo_transaction" in step:
        needed.append("inverse")
    _check(step, _STEP, needed, "a step in a saga's journal")


def check_receipt(receipt: Any) -> None:
    """Raises `BackendCorruptError` for what is no receipt of a transaction."""
    if type(receipt) is not dict or receipt.get("status") not in ("done", "undone", "void"):
        raise BackendCorruptError("a receipt of a transaction says nothing that is known here")
    _check(receipt, _RECEIPT, _NEEDED_OF_RECEIPTS[receipt["status"]], "a receipt of a transaction")


def _check(record: Mapping[str, Any], checks: Mapping[str, Check], needed: Any, what: str) -> None:
    for name in needed:
        if record.get(name) is None:
            raise BackendCorruptError(f"{what} has no {name!r}")
    for name, check in checks.items():
        if name in record and not check(record[name]):
            raise BackendCorruptError(f"{what} has no good {name!r}")
