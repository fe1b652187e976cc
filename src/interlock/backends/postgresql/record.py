"""The form of a feed record, and how rows become changes.

The record holds what the request said. What only the engine knows (positions, cleared keys, the versions of tombstones)
lies in columns beside it. Values that were put are not in the record: a version that is the newest is in ``entry``, any
older one in ``superseded``, under the record's own position, so each value is stored once.

A row that somebody has changed is a row like any other to the server: what does not fit together raises
`BackendCorruptError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Final

import msgspec

from interlock.backends.postgresql.tokens import ROOM, Snapshot
from interlock.errors import BackendCorruptError
from interlock.model import (
    NONCE_MASK,
    Change,
    CommitRequest,
    Delete,
    Key,
    Merge,
    Operation,
    Put,
    Span,
    Token,
    Version,
    Write,
)

_SIGN: Final = 1 << 63


class Record(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a request."""

    isolation: str
    operation: str | None
    run_id: str | None
    attempt: int
    reads: list[tuple[Key, tuple[int, int] | None]]
    observed: list[tuple[Key, tuple[int, int] | None]]
    spans: list[tuple[Key, Key]]
    clears: list[tuple[Key, Key]]
    writes: list[tuple[Key, Any]]
    """A key and: (seconds to live, listed) for a put, None for a delete, a list of operations for a merge."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Record).decode


def signed(nonce: int) -> int:
    """A nonce as a bigint."""
    return nonce - (1 << 64) if nonce & _SIGN else nonce


def version(position: int, nonce: int) -> Version:
    """A version from two bigints."""
    return position, nonce & NONCE_MASK


def encode(request: CommitRequest) -> bytes:
    """The record of a request."""
    return _encode(
        Record(
            request.isolation,
            request.operation,
            request.run_id,
            request.attempt,
            [(key, found if type(found) is tuple else None) for key, found in request.reads.items()],
            list(request.observed.items()) if request.observed else [],
            list(request.spans),
            list(request.clears),
            [(key, _form(write)) for key, write in request.writes.items()],
        )
    )


def _form(write: Write) -> Any:
    if type(write) is Put:
        return (write.ttl_seconds, write.listed)
    if type(write) is Merge:
        return [(step.kind, step.operand, step.floor, step.ceiling) for step in write.operations]
    return None


_Life = tuple[float | None, bool]
_Steps = list[tuple[str, bytes, bytes | None, bytes | None]]
_DAMAGE: Final = (ValueError, TypeError, LookupError, StopIteration)


def change(row: Sequence[Any], token: Token) -> Change:
    """The change of a row of ``transaction``; see ``statements.RECORD`` for its columns. Raises `BackendCorruptError`
    for what is no record."""
    try:
        return _change(row, token)
    except _DAMAGE as error:
        raise BackendCorruptError(
            f"the record at position {row[0]} cannot be read; restore the database from a backup ({error!r})"
        ) from error


def _change(row: Sequence[Any], token: Token) -> Change:
    position, identity, at, agent, raw, cleared, absent, absent_position, absent_nonce, values, _, rest = row[:12]
    record = _decode(raw)
    transaction = int.from_bytes(identity, "big")
    scale = ROOM if rest < 0 else 1  # a record of schema version 1 says positions without places
    reads = {key: _scaled(found, scale) for key, found in record.reads}
    for place, found, nonce in zip(absent or (), absent_position or (), absent_nonce or (), strict=True):
        reads[record.reads[place - 1][0]] = version(index(found), nonce)
    reads.update((key, _scaled(found, scale)) for key, found in record.observed)
    put = iter(values)
    writes: dict[Key, Write] = {key: _write(form, put) for key, form in record.writes}
    return Change(
        (position, transaction & NONCE_MASK),
        token,
        transaction,
        at,
        agent,
        record.isolation,
        record.operation,
        record.run_id,
        record.attempt,
        reads,
        tuple(Span(*span) for span in record.spans),
        writes,
        tuple(Span(*span) for span in record.clears),
        tuple(map(bytes, cleared or ())),
    )


def _scaled(found: tuple[int, int] | None, scale: int) -> Version | None:
    return None if found is None else (found[0] * scale, found[1])


def _write(form: Any, values: Any) -> Write:
    if form is None:
        return Delete()
    if form and type(form[0]) is list:
        return Merge(tuple(Operation(*step) for step in msgspec.convert(form, _Steps)))
    return Put(_checked(next(values)), *msgspec.convert(form, _Life))


def _checked(value: Any) -> bytes:
    """A value that is there: the server gives NULL where its entry is gone."""
    if type(value) is not bytes:
        raise TypeError("the value that was put is not there")
    return value


def token_of(store: int, epoch: int, snapshot: Snapshot) -> Token:
    """The token of a snapshot."""
    return Token(store, epoch, snapshot.stop, snapshot.detail())
