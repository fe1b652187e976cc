"""What a backend refused, in the words of the public errors: pure functions.

A backend knows bytes; only here are they turned into resources, keys and values that a person or a model can read.
Values are shown in the plain domain (a dataclass as the dict of its fields)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from interlock import codec, keys
from interlock.errors import (
    Conflict,
    ConflictError,
    InvariantError,
    RangeConflict,
    ReadConflict,
    ValueRefusedError,
    WriteConflict,
)
from interlock.model import BoundBroken, Clash, Entry, Key, MergeRefused, TransactionId, Version

_CLASSES = {"read": ReadConflict, "write": WriteConflict, "range": RangeConflict}


def version_text(version: Version | None) -> str | None:
    """A version as people see it: the position and the nonce."""
    return None if version is None else f"{version[0]}-{version[1]:016x}"


def transaction_text(transaction: TransactionId) -> str:
    """A transaction's id as people see it."""
    return f"{transaction:032x}"


def place(key: Key) -> tuple[str, Any]:
    """The resource and the key of a stored key; system keys are shown as bytes of the resource ""."""
    found = keys.split(key)
    return ("", key) if found is None else found


def conflict_error(
    clashes: Sequence[Clash], reads: Mapping[Key, Entry | None], transaction: TransactionId
) -> ConflictError:
    """The `ConflictError` for clashes; of the narrower class where all are of one kind."""
    conflicts = tuple(_conflict(clash, reads.get(clash.key)) for clash in clashes)
    kinds = {clash.kind for clash in clashes}
    kind = _CLASSES[kinds.pop()] if len(kinds) == 1 else ConflictError
    first = conflicts[0] if conflicts else None
    if first is None:
        message = "what this session relied on has changed"
    else:
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        message = f"{first.kind} conflict on {first.key!r} in resource {first.resource!r}{more}"
    return kind(message, transaction_id=transaction_text(transaction), conflicts=conflicts)


def _conflict(clash: Clash, read: Entry | None) -> Conflict:
    resource, key = place(clash.key)
    current = clash.current
    live = current is not None and current.value is not None
    author = clash.author
    return Conflict(
        resource=resource,
        key=key,
        kind=clash.kind,
        read_version=None if read is None or read.value is None else version_text(read.version),
        current_version=version_text(current.version) if current is not None and live else None,
        read_value=_shown(read),
        current_value=_shown(current),
        committed_by="" if author is None else author.agent,
        transaction_id="" if author is None else transaction_text(author.transaction),
    )


def _shown(entry: Entry | None) -> Any:
    if entry is None or not entry.value or len(entry.value) > 1024:
        return None
    return codec.thaw(entry.value)


def merge_error(refused: BoundBroken | MergeRefused, transaction: TransactionId) -> InvariantError | ValueRefusedError:
    """The public error for a merge that could not be applied."""
    resource, key = place(refused.key)
    if isinstance(refused, MergeRefused):
        return ValueRefusedError(f"key {key!r} in resource {resource!r}: {refused.reason}")
    operation = refused.operation
    amount = codec.thaw(operation.operand)
    down = amount < 0
    bound = codec.thaw((operation.floor if down else operation.ceiling) or b"i0")
    current = 0 if refused.before is None else codec.thaw(refused.before)
    name = "floor" if down else "ceiling"
    return InvariantError(
        f"adding {amount} to {key!r} in resource {resource!r}, which is {current}, would cross its {name} {bound}",
        transaction_id=transaction_text(transaction),
        invariant=name,
        resource=resource,
        key=key,
        current=current,
        bound=bound,
    )
