"""Trails: how a read of an old snapshot finds its version without walking through all that came after.

Each version of a key is the next link of a chain: the commit that replaced it keeps its image in the feed record
(see `interlock.backends.sqlite.record`). A version is numbered along its chain, and its trail holds, beside the
number, where the nearest earlier version lies whose number is a multiple of 16, of 256, of 4096, and so on. So a
read that has to go back n versions looks at about 15 of them on each level: 10^5 versions back are some 60 steps.

A trail is the number alone as long as there is nothing else to say, then msgpack: ``[number, position, position,
...]``. `QUIET` marks a version whose predecessor was not kept: a chain ends there, and older snapshots are refused.
"""

from __future__ import annotations

from typing import Final

import msgspec

QUIET: Final = 0
FIRST: Final = 2
"""The trail of a chain's first version; not less, so that the next hundred take the same room in a row."""

Trail = int | bytes

_STEP: Final = 16
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


def following(trail: Trail, position: int) -> Trail:
    """The trail of the version that replaces one with ``trail`` at ``position``."""
    if type(trail) is int:
        number = max(trail - FIRST, 0)
        if number % _STEP or not number:
            return number + 1 + FIRST
        skips = []
    else:
        number, *skips = _decode(trail)  # type: ignore[arg-type]
    level, rest = 0, number
    while rest % _STEP == 0:
        rest //= _STEP
        skips[level : level + 1] = [position]
        level += 1
    return _encode([number + 1, *skips])


def back(trail: Trail, position: int, snapshot: int) -> int:
    """Where to look next for the version that a snapshot shows, from a newer one at ``position`` with ``trail``.

    The answer is the position of a version newer than the snapshot; the record there holds the one before it."""
    if type(trail) is not int:
        for skip in reversed(_decode(trail)[1:]):  # type: ignore[arg-type]
            if skip > snapshot:
                return skip
    return position
