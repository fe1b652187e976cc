"""Trails: how a read of an old snapshot finds its version without walking through all that came after.

Each version of a key is the next link of a chain: the commit that replaced it keeps its image in the feed record
(see `interlock.backends.sqlite.record`). A version is numbered along its chain, and its trail says, beside the
number, where the versions lie whose numbers one meets when the number is counted up digit by digit in base 4: 27 is
123 in base 4, so the trail of the version behind 27 names 16 (100), 20 (110), 24 (120), 25 (121), 26 (122), 27 (123).
A read takes the oldest of these that is newer than its snapshot. The image that lies there is that of the number just
before, whose trail divides what is left of the way into four. So 10^5 versions are some ten steps, and each step
leads to a version newer than the snapshot, so none can lead past the one that is sought.

A trail is the number alone up to 4, then msgpack: ``[number, position, distance, distance,
...]``, oldest first, each distance from the position before. `QUIET` marks a version whose predecessor was not kept:
a chain ends there, and older snapshots are refused.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

import msgspec

QUIET: Final = 0
FIRST: Final = 2
"""The trail of a chain's first version; not less, so that the next few take the same room in a row."""

Trail = int | bytes

_BASE: Final = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


def following(trail: Trail, position: int) -> Trail:
    """The trail of the version that replaces one with ``trail`` at ``position``."""
    if type(trail) is int:
        number = max(trail - FIRST, 0)
        if number < _BASE:
            return number + 1 + FIRST
        return _encode([number + 1, position])  # its number is 4: those before are not named
    number, *way = _decode(trail)  # type: ignore[arg-type]
    if number < _BASE:
        raise ValueError(f"a trail with the number {number}")  # of a damaged file: counting up would not end
    rest = number
    while rest % _BASE == 0:
        rest //= _BASE
        del way[1 - _BASE :]
    way.append(position - sum(way))
    return _encode([number + 1, *way])


def back(trail: Trail, position: int, snapshot: int) -> int:
    """Where to look next for the version that a snapshot shows, from a newer one at ``position`` with ``trail``.

    The answer is the position of a version newer than the snapshot; the record there holds the one before it."""
    if type(trail) is not int:
        for step in accumulate(_decode(trail)[1:]):  # type: ignore[arg-type]
            if step > snapshot:
                return step
    return position
