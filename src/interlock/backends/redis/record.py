"""The forms in which entries and feed records lie on the server.

An **entry** is position (8 bytes, big end first), nonce (8), flags (1), for an expiring one its end in microseconds
(8), and the value. The first sixteen bytes are the version, so that a script compares them as they are.

The **head** (field ``s``) is the newest position, its time in microseconds and its nonce. **Meta** (field ``m``) is
the store's id, the incarnation, the horizon, and two transaction ids of sixteen bytes that `compact.lua` keeps.

A **record** is the transaction's id, a byte that says whether the commit was quiet, and msgpack of what the request
said. What only the script knows stands beside it in the stream: which keys were changed and how, which were cleared,
and the tombstones of keys that were read as absent. Values that were put are not in the record: a version lies in the
entries or in the history for as long as its record does.

What comes back from the server is believed only as far as its form goes: bytes that are no entry or no record raise
`BackendCorruptError`, whoever has damaged them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

import msgspec

from interlock.errors import BackendCorruptError
from interlock.model import (
    NONCE_MASK,
    Author,
    Change,
    CommitRequest,
    Delete,
    Entry,
    Key,
    Merge,
    Operation,
    Put,
    Span,
    Token,
    Version,
    Write,
)

MICRO: Final = 1_000_000
TOMBSTONE: Final = 1
LARGE: Final = 2
EXPIRING: Final = 4

_LOUD: Final = b"."
_QUIET: Final = b"q"
_HEADER: Final = Struct(">QQB")
_NUMBER: Final = Struct(">Q")
_PAIR: Final = Struct(">QQ")
_encode: Final = msgspec.msgpack.Encoder().encode


class _Signed(msgspec.Struct, array_like=True, gc=False):
    """The beginning of every record."""

    agent: str


class _Record(_Signed, array_like=True, gc=False):
    """A record that is not quiet."""

    isolation: str
    operation: str | None
    run_id: str | None
    attempt: int
    reads: dict[bytes, tuple[int, int] | str]
    observed: dict[bytes, tuple[int, int] | None] | None
    spans: list[tuple[bytes, bytes]]
    clears: list[tuple[bytes, bytes]]
    forms: dict[bytes, list[Any] | None]


_decode_signed: Final = msgspec.msgpack.Decoder(_Signed).decode
_decode: Final = msgspec.msgpack.Decoder(_Record).decode
_Life = tuple[float | None, bool]
_Steps = list[tuple[str, bytes, bytes | None, bytes | None]]

DAMAGE: Final = (struct.error, ValueError, TypeError, LookupError)
"""What decoding raises where the server holds what was not written by us."""

pack_pair: Final[Callable[[int, int], bytes]] = _PAIR.pack
"""Two numbers as sixteen bytes: a version, or a store's id and incarnation."""
unpack_pair: Final[Callable[[bytes], tuple[int, int]]] = _PAIR.unpack_from

header_of: Final[Callable[[bytes], tuple[int, int, int]]] = _HEADER.unpack_from
"""Position, nonce and flags of an entry."""


def damaged(what: str, error: Exception) -> BackendCorruptError:
    """Our error for one of `DAMAGE`."""
    return BackendCorruptError(f"{what} on the server cannot be read; restore the store from a backup ({error!r})")


def entry_of(raw: bytes | None) -> Entry | None:
    """An entry, its large value appended if it has one. Raises `BackendCorruptError` for what is none."""
    if raw is None:
        return None
    try:
        position, nonce, flags = _HEADER.unpack_from(raw)
        if not flags & (TOMBSTONE | EXPIRING):
            return Entry((position, nonce), raw[17:])
        if flags & TOMBSTONE:
            return Entry((position, nonce), None)
        return Entry((position, nonce), raw[25:], _NUMBER.unpack_from(raw, 17)[0] / MICRO)
    except DAMAGE as error:
        raise damaged("an entry", error) from error


def pair_of(raw: bytes) -> tuple[int, int]:
    """Two numbers: of the head, of meta, of a version. Raises `BackendCorruptError` for bytes that are too short."""
    try:
        return unpack_pair(raw)
    except DAMAGE as error:
        raise damaged("the head of the store", error) from error


def encode(request: CommitRequest, transaction: bytes, forms: dict[Key, Any]) -> bytes:
    """The record of a request; ``forms`` as `form_of` makes them, for all that is no plain put."""
    if request.quiet:
        return transaction + _QUIET + _encode((request.agent,))
    return (
        transaction
        + _LOUD
        + _encode(
            (
                request.agent,
                request.isolation,
                request.operation,
                request.run_id,
                request.attempt,
                request.reads,
                request.observed,
                request.spans,
                request.clears,
                forms,
            )
        )
    )


def form_of(write: Write) -> Any:
    """How a record says what was asked of a key: (life, listed) for a put that is not plain, None for a delete, a list
    of operations for a merge. Of a plain put the stream says enough."""
    if type(write) is Put:
        return (write.ttl_seconds, write.listed)
    if type(write) is Merge:
        return [(step.kind, step.operand, step.floor, step.ceiling) for step in write.operations]
    return None


def _write_of(form: Any, value: bytes) -> Write:
    if form is None:
        return Delete()
    if form and type(form[0]) is list:
        return Merge(tuple([Operation(*step) for step in msgspec.convert(form, _Steps)]))
    return Put(value, *msgspec.convert(form, _Life))


def author_of(at: bytes, record: bytes) -> Author | None:
    """Who wrote a record; None where the feed has none any more. Raises `BackendCorruptError` for what is no record."""
    if not record:
        return None
    try:
        return Author(int.from_bytes(record[:16], "big"), _decode_signed(record[17:]).agent, int(at) / MICRO)
    except DAMAGE as error:
        raise damaged("a record of the feed", error) from error


def change_of(parts: Sequence[Any], store: int, incarnation: int) -> Change | None:
    """The change that one or several stream entries of one position tell; None for a quiet commit. Raises
    `BackendCorruptError` for what is no record."""
    try:
        return _change(parts, store, incarnation)
    except DAMAGE as error:
        raise damaged("a record of the feed", error) from error


def _change(parts: Sequence[Any], store: int, incarnation: int) -> Change | None:
    position, at, raw, _ = parts[0]
    kind = raw[16:17]
    if kind == _QUIET:
        return None
    if kind != _LOUD:
        raise ValueError(f"a record of the kind {kind!r}")
    record = _decode(raw[17:])
    seen: dict[Key, Version | None] = {
        key: found if type(found) is tuple else None for key, found in record.reads.items()
    }
    values: dict[Key, bytes] = {}
    cleared: list[Key] = []
    for part in parts:
        marks = part[3]
        for place in range(0, len(marks), 3):
            mark, key = marks[place], marks[place + 1]
            if mark in (b"p", b"o"):
                values[key] = marks[place + 2]
            elif mark == b"c":
                cleared.append(key)
            elif mark == b"a":
                seen[key[16:]] = unpack_pair(key)
    if record.observed:
        seen.update(record.observed)
    forms = record.forms
    writes: dict[Key, Write] = {key: Put(value) for key, value in values.items() if key not in forms}
    writes.update({key: _write_of(form, values.get(key, b"")) for key, form in forms.items()})
    transaction = int.from_bytes(raw[:16], "big")
    return Change(
        (position, transaction & NONCE_MASK),
        Token(store, incarnation, position),
        transaction,
        int(at) / MICRO,
        record.agent,
        record.isolation,
        record.operation,
        record.run_id,
        record.attempt,
        seen,
        tuple([Span(*span) for span in record.spans]),
        writes,
        tuple([Span(*span) for span in record.clears]),
        tuple(cleared),
    )
