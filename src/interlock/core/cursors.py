"""Cursors: tokens as texts that users keep. Opaque; a snapshot's token and a feed's cursor are the same thing."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from interlock.errors import UsageError
from interlock.model import Token

_LAST_POSITION = (1 << 63) - 1
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Token).decode


def cursor_of(token: Token) -> str:
    """The text of a token."""
    return urlsafe_b64encode(_encode(token)).rstrip(b"=").decode()


def token_of(cursor: str) -> Token:
    """The token of a text. Raises `UsageError` for what is not a cursor."""
    if type(cursor) is not str:
        raise UsageError(f"a cursor is a str, not {type(cursor).__name__}")
    try:
        token = _decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if min(token.store, token.incarnation, token.position) < 0 or token.position > _LAST_POSITION:
            raise ValueError("numbers that no token has")
    except (ValueError, msgspec.DecodeError):
        raise UsageError(f"not a cursor of a feed: {cursor[:60]!r}") from None
    return token
