"""The form of a feed record: what a commit did, and the image of every version that it replaced.

One msgpack array for each position. ``written`` has an entry for each key that the commit asked to change, with
the image of the version that it replaced, so that a snapshot from before finds that version in the record of the
commit that ended it. New values are not in the record: the newest value of a key is in ``current``, and any earlier
one is the image in the next record that wrote the key. So each value is stored once while it is new and once when
it is old. `changes` puts them together.

A quiet commit has only ``written``, for those who look whether a range has changed. It marks its own version with
`trail.QUIET`, so that no snapshot reads past it, and keeps a hollow image (without the value) of a version that was
quiet itself: the feed never needs that one's value, only the way past it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.backends.sqlite.statements import POSITION, UNLISTED, VALUE, FeedRow, Row
from interlock.model import NONCE_MASK, Change, Delete, Key, Merge, Operation, Put, Span, Token, Version, Write

PUT, PUT_UNLISTED, DELETE, MERGE, CLEAR = range(5)

NOTHING: Final = 0
"""Instead of an image: the write had no effect, the version before is still the newest."""
Image = tuple[int, int, bytes | None, float, int | bytes, int]
"""A row of ``current`` without its key."""


class Written(msgspec.Struct, array_like=True, gc=False):
    """What a commit did to a key. ``image`` is None where the key had no row before."""

    kind: int
    ttl_seconds: float | None
    operations: list[tuple[str, bytes, bytes | None, bytes | None]] | None
    expires_at: float | None
    image: Image | int | None


class Record(msgspec.Struct, array_like=True, gc=False):
    """A feed record, decoded. Without an agent it is a quiet commit's."""

    written: dict[bytes, Written]
    agent: str | None = None
    isolation: str = ""
    operation: str | None = None
    run_id: str | None = None
    attempt: int = 1
    reads: dict[bytes, tuple[int, int] | None] = {}
    spans: list[tuple[bytes, bytes]] = []
    clears: list[tuple[bytes, bytes]] = []
    cleared: list[bytes] = []


class Replaced(msgspec.Struct, array_like=True, gc=False):
    """The beginning of a record, for whoever looks for the images of a few of its keys, which may be thousands."""

    written: dict[bytes, msgspec.Raw]


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(Record).decode
decode_replaced: Final = msgspec.msgpack.Decoder(Replaced).decode
_decode_written: Final = msgspec.msgpack.Decoder(Written).decode

EXPIRES: Final = 1
BURIES: Final = 2
SILENT: Final = 4
"""What a feed row says of its record in ``marks``, so that compaction has to decode few of them: something was written
that expires; something was deleted; the commit was quiet, so that its id is nobody's transaction."""


def marks_of(written: Mapping[Key, tuple[int, float | None, Any, float | None, Any]]) -> int:
    """The marks of a record, from the stored form of what is written."""
    marks = 0
    for kind, _, _, expires_at, _ in written.values():
        if expires_at is not None:
            marks |= EXPIRES
        if kind in (DELETE, CLEAR):
            marks |= BURIES
    return marks


def operations_form(write: Merge) -> list[tuple[str, bytes, bytes | None, bytes | None]]:
    """The operations of a merge as they are stored."""
    return [(step.kind, step.operand, step.floor, step.ceiling) for step in write.operations]


def listed_keys(record: Record) -> Iterable[Key]:
    """The keys that a commit changed in the ordered index; at most too many, never too few."""
    for key, written in record.written.items():
        image = written.image
        if isinstance(image, int):
            continue
        listed = written.kind in (PUT, MERGE) if image is None else written.kind == PUT or image[5] != UNLISTED
        if listed:
            yield key


def image_of(key: Key, record: Record) -> Row | None:
    """The row of a key that the commit of a record replaced, or None where there was none. Raises `KeyError`."""
    return _row(key, record.written[key].image)


def replaced_of(key: Key, replaced: Replaced) -> Row | None:
    """As `image_of`, from the beginning of a record."""
    return _row(key, _decode_written(replaced.written[key]).image)


def _row(key: Key, image: Image | int | None) -> Row | None:
    if type(image) is int:
        raise KeyError(key)
    return None if image is None else (key, *image)  # type: ignore[misc]


def changes(rows: Sequence[FeedRow], store: int, newest: Callable[[list[Key]], dict[Key, Row | None]]) -> list[Change]:
    """The changes of consecutive feed rows. ``newest`` gives the rows of keys as of the last of them."""
    records = [None if row[3] is None else decode(row[3]) for row in rows]
    put: dict[Key, None] = {}
    for record in records:
        if record is not None and record.agent is not None:
            put.update(dict.fromkeys(key for key, written in record.written.items() if written.kind <= PUT_UNLISTED))
    later = newest(list(put)) if put else {}
    found = []
    for row, record in zip(reversed(rows), reversed(records), strict=True):
        if record is None:
            continue
        if record.agent is not None:
            found.append(_change(row, record, store, later))
        for key, written in record.written.items():
            if type(written.image) is not int:
                later[key] = image_of(key, record)
    found.reverse()
    return found


def _change(row: FeedRow, record: Record, store: int, later: dict[Key, Row | None]) -> Change:
    position, identity, at, _ = row
    transaction = int.from_bytes(identity, "big")
    writes: dict[Key, Write] = {}
    for key, written in record.written.items():
        if written.kind <= PUT_UNLISTED:
            writes[key] = Put(_value(later.get(key), position), written.ttl_seconds, written.kind == PUT)
        elif written.kind == DELETE:
            writes[key] = Delete()
        elif written.kind == MERGE:
            writes[key] = Merge(tuple(Operation(*form) for form in written.operations or ()))
    reads: dict[Key, Version | None] = dict(record.reads)
    return Change(
        (position, transaction & NONCE_MASK),
        Token(store, 1, position, identity),
        transaction,
        float(at),
        record.agent or "",
        record.isolation,
        record.operation,
        record.run_id,
        record.attempt,
        reads,
        tuple(Span(*span) for span in record.spans),
        writes,
        tuple(Span(*span) for span in record.clears),
        tuple(record.cleared),
    )


def _value(row: Row | None, position: int) -> bytes:
    """The value that was put at a position, from the row that was there until the next write of the key."""
    if row is None or row[POSITION] != position or row[VALUE] is None:
        raise ValueError(f"the value that was put at position {position} is not there")
    return row[VALUE]
