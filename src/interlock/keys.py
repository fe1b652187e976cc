r"""Keys as ordered bytes: byte order is tuple order, no two keys collide, every character is literal.

A key is a ``str``, or a tuple of ``str`` and ``int`` for hierarchies. The encoding follows the idea of FoundationDB's
tuple layer, cut down to two types (https://github.com/apple/foundationdb/blob/main/design/tuple.md):

- a text is ``02``, its UTF-8 with ``00`` written as ``01 01`` and ``01`` as ``01 02``, and a final ``00``. UTF-8 keeps
  the order of code points, and the terminator sorts below every continuation, so a shorter text comes before a longer
  one that it begins. There is no ``00`` inside, so no text's bytes begin another's (with ``00 ff`` for ``00``, as in
  FoundationDB, those of ``"a"`` would begin those of ``"a\0"``, and so would everything under them);
- a whole number is ``20``, the count of its bytes, its bytes; a negative one is ``1f``, 255 minus the count, and the
  bytes of the number plus 256^count - 1, so that smaller numbers have smaller bytes;
- a tuple is ``05`` and its parts. A plain text has no ``05``, so the key ``"a"`` and the key ``("a",)`` differ.

Each part carries its own end, so parts can never run into each other: ``("a", "bc")`` and ``("ab", "c")`` differ, and
the bytes of ``("t", "a")`` begin those of ``("t", "a", "x")`` but not those of ``("t", "ab")``. A stored key is a
space byte (`SYSTEM` or `USER`), the resource's encoded name, and the encoded key. The order of parts is: texts before
numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from interlock.errors import BackendCorruptError, LimitExceededError, UsageError
from interlock.model import Key, Span

UserKey = str | tuple[str | int, ...]

KEY_BYTES: Final = 1024
"""The most that one encoded key may take."""
NAME_BYTES: Final = 255
"""The most that a resource's name, an agent's name or an idempotency key may take, in UTF-8."""

USER: Final = b"\x01"
SYSTEM: Final = b"\x00"

_TEXT, _TUPLE, _NEGATIVE, _NUMBER = 0x02, 0x05, 0x1F, 0x20
_NUMBER_BYTES = 200


def encode(key: object) -> bytes:
    """The ordered bytes of a key. Raises `UsageError` for what is not a key, `LimitExceededError` for a long one."""
    if type(key) is str:
        if not key:
            raise UsageError("a key must not be empty")
        raw = _text(key)
    elif type(key) is tuple:
        if not key:
            raise UsageError("a key must not be empty: () names nothing")
        raw = b"\x05" + b"".join([_part(part) for part in key])
    else:
        raise UsageError(f"a key is a str or a tuple of str and int, not {type(key).__name__}")
    if len(raw) > KEY_BYTES:
        raise _too_long(raw)
    return raw


def extended(raw: bytes, part: str | int) -> bytes:
    """The bytes of a tuple that has one more part than the one whose bytes these are. Raises as `encode` does."""
    longer = raw + _part(part)
    if len(longer) > KEY_BYTES:
        raise _too_long(longer)
    return longer


def _too_long(raw: bytes) -> LimitExceededError:
    return LimitExceededError(
        f"a key of {len(raw)} encoded bytes is longer than {KEY_BYTES}; store a hash of it",
        limit="key_bytes",
        allowed=KEY_BYTES,
        found=len(raw),
    )


def _part(part: object) -> bytes:
    if type(part) is str:
        return _text(part)
    if type(part) is int:
        return _number(part)
    raise UsageError(f"the parts of a key are str and int, not {type(part).__name__}")


def _text(text: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise UsageError("a key must not hold half a surrogate pair") from None
    if b"\0" in raw or b"\1" in raw:
        raw = raw.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
    return b"\x02" + raw + b"\0"


def _number(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    if size > _NUMBER_BYTES:
        raise LimitExceededError(
            f"a number of {size} bytes in a key is longer than {_NUMBER_BYTES}",
            limit="key_bytes",
            allowed=_NUMBER_BYTES,
            found=size,
        )
    if number >= 0:
        return bytes((_NUMBER, size)) + number.to_bytes(size, "big")
    return bytes((_NEGATIVE, 255 - size)) + (number + (1 << 8 * size) - 1).to_bytes(size, "big")


@lru_cache(maxsize=4096)  # whoever scans mostly meets the same keys again
def decode(raw: bytes) -> UserKey:
    """The key whose bytes these are. Raises `BackendCorruptError` for bytes that `encode` never makes."""
    try:
        if raw[0] == _TEXT:
            text, end = _read_text(raw, 0)
            if end == len(raw) and text:
                return text
        elif raw[0] == _TUPLE:
            parts: list[str | int] = []
            place = 1
            while place < len(raw):
                part, place = _read_part(raw, place)
                parts.append(part)
            if parts and place == len(raw):
                return tuple(parts)
    except (IndexError, ValueError):
        pass
    raise _damaged(raw)


def _damaged(raw: bytes) -> BackendCorruptError:
    return BackendCorruptError(f"a stored key cannot be read: {raw[:40].hex()}")


def _read_part(raw: bytes, place: int) -> tuple[str | int, int]:
    kind = raw[place]
    if kind == _TEXT:
        return _read_text(raw, place)
    if kind not in (_NUMBER, _NEGATIVE):
        raise ValueError(f"not the bytes of a key: {raw[:40].hex()}")
    size = raw[place + 1] if kind == _NUMBER else 255 - raw[place + 1]
    end = place + 2 + size
    if end > len(raw):
        raise IndexError
    number = int.from_bytes(raw[place + 2 : end], "big")
    return (number if kind == _NUMBER else number - (1 << 8 * size) + 1), end


def _read_text(raw: bytes, place: int) -> tuple[str, int]:
    end = raw.index(b"\0", place + 1)
    body = raw[place + 1 : end]
    if b"\1" in body:
        body = body.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1")
    return body.decode(), end + 1


def following(raw: bytes) -> bytes:
    """The least bytes that sort after everything beginning with ``raw``."""
    body = raw.rstrip(b"\xff")
    if not body:
        raise ValueError("nothing sorts after bytes that are all ff")
    return body[:-1] + bytes((body[-1] + 1,))


def prefix_span(space: bytes, prefix: object) -> Span:
    """All keys of ``space`` (a resource's own prefix) that begin with ``prefix``.

    A text takes every text that begins with it; a tuple takes itself and the tuples that begin with all its parts;
    None takes everything. An empty prefix is a `UsageError`: it is too easily "everything" by mistake."""
    if prefix is None:
        return Span(space, following(space))
    raw = space + encode(prefix)
    if type(prefix) is str:
        raw = raw[:-1]
    return Span(raw, following(raw))


def range_span(space: bytes, start: object, stop: object) -> Span:
    """All keys of ``space`` from ``start`` up to, but not including, ``stop``; None leaves that end open."""
    low = space if start is None else space + encode(start)
    high = following(space) if stop is None else space + encode(stop)
    return Span(low, max(low, high))


def resource_space(name: str) -> Key:
    """The prefix of every key of a resource."""
    return USER + _text(check_name("resource", name))


def split(key: Key) -> tuple[str, UserKey] | None:
    """The resource and the key of a stored user key; None for a system key. Raises `BackendCorruptError` for bytes that
    are neither."""
    if key[:1] != USER:
        return None
    try:
        name, end = _read_text(key, 1)
    except (IndexError, ValueError):
        raise _damaged(key) from None
    return name, decode(key[end:])


def check_name(what: str, name: object) -> str:
    """A name or id as it is, or `UsageError` / `LimitExceededError`: the one check for agents, resources and keys."""
    if type(name) is not str:
        raise UsageError(f"{what} is a str, not {type(name).__name__}")
    if not name or name.isspace():
        raise UsageError(f"{what} must not be empty or blank")
    size = len(name) if name.isascii() else len(name.encode(errors="surrogatepass"))
    if size > NAME_BYTES:
        raise LimitExceededError(
            f"{what} of {size} bytes is longer than {NAME_BYTES}", limit="name_bytes", allowed=NAME_BYTES, found=size
        )
    return name
