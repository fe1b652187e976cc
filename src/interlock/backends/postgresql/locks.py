"""Which advisory locks a commit takes, in one order for everybody.

Four rules make commits that touch each other wait for each other, and no others:

- a key that is written is locked exclusively, one that is only read is locked shared;
- whoever locks a key also locks, shared, every prefix of it that a span can stand on: its resource, and for a tuple
  each beginning of it;
- a span (validated or cleared) is locked exclusively on the longest prefix that all its keys have in common, and shared
  on the prefixes above;
- a lock that is wanted twice is taken once, in the stronger mode, and all are taken in the order of their numbers.

So nobody writes a key that somebody reads, nobody enters a range that somebody has scanned, and nobody ever waits for
a lock whose number is smaller than one that he holds: there is no deadlock. Numbers are hashes; two that collide only
wait for each other. The depth is the upper part of the number, so that a collision cannot break the order.

Locks live in a table of the server that all its connections share. A commit with many keys under one prefix locks that
prefix exclusively instead, which excludes everybody that the single locks would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from interlock import keys
from interlock.errors import UsageError
from interlock.model import Key, Span

KEYS_PER_PREFIX: Final = 64
"""More locks of keys under one prefix than these become one lock of the prefix."""
LOCKS: Final = 256
"""More locks than these become locks of whole resources."""

_TUPLE = 0x05
_TEXT, _NEGATIVE, _NUMBER = 0x02, 0x1F, 0x20
_KEY_LEVEL = 127


def _part_end(raw: bytes, place: int) -> int:
    """Where the part that begins at a place ends; -1 if it does not end, or is no part."""
    if place >= len(raw):
        return -1
    kind = raw[place]
    if kind == _TEXT:
        return raw.find(b"\0", place) + 1 or -1
    if kind not in (_NUMBER, _NEGATIVE) or place + 1 >= len(raw):
        return -1
    end = place + 2 + (raw[place + 1] if kind == _NUMBER else 255 - raw[place + 1])
    return end if end <= len(raw) else -1


@lru_cache(4096)
def cuts(raw: bytes) -> tuple[bytes, ...]:
    """The prefixes of a key, or of an end of a span, that spans can stand on; the shortest first."""
    place = _part_end(raw, 1)
    if place < 0:
        return ()
    found = [raw[:place]]
    if place < len(raw) and raw[place] == _TUPLE:
        place = _part_end(raw, place + 1)
        while place > 0:
            found.append(raw[:place])
            place = _part_end(raw, place)
    return tuple(found)


def covering(span: Span) -> tuple[bytes, ...]:
    """The prefixes that all keys of a span begin with, the longest last. Raises `UsageError` if there is none."""
    found = cuts(span.start)
    while found and span.stop > keys.following(found[-1]):
        found = found[:-1]
    if not found:
        raise UsageError("a span lies within one resource")
    return found


def ranges(spans: Iterable[Span]) -> list[bytes]:
    """What spans are locked by, exclusively. Two commits that have one of these in common cannot both be under way.
    Raises `UsageError` as `covering` does."""
    return [covering(span)[-1] for span in spans if span.start < span.stop]


class Plan:
    """The locks of one commit; ``salt`` keeps stores of one database apart."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._prefixes: dict[bytes, bool] = {}
        self._keys: dict[Key, bool] = {}

    def key(self, key: Key, *, exclusive: bool) -> None:
        """Lock a key."""
        self._keys[key] = exclusive or self._keys.get(key, False)

    def span(self, span: Span) -> None:
        """Lock a range against everybody else."""
        if span.start < span.stop:
            *above, last = covering(span)
            self._prefix(above, exclusive=False)
            self._prefixes[last] = True

    def _prefix(self, prefixes: Iterable[bytes], *, exclusive: bool) -> None:
        for prefix in prefixes:
            self._prefixes[prefix] = exclusive or self._prefixes.get(prefix, False)

    def numbers(self) -> list[int]:
        """The locks in their order; odd numbers are exclusive."""
        above = {key: cuts(key) for key in self._keys}
        if len(above) > KEYS_PER_PREFIX:
            self._escalate(above)
        for prefixes in above.values():
            self._prefix(prefixes, exclusive=False)
        if len(self._prefixes) + len(self._keys) > LOCKS:
            self._prefixes = dict.fromkeys({cuts(prefix)[0] for prefix in self._prefixes}, True)
            self._keys = {key: mode for key, mode in self._keys.items() if not above.get(key)}
        wanted: dict[int, bool] = {}
        for prefix, exclusive in self._prefixes.items():
            self._want(wanted, len(cuts(prefix)), prefix, exclusive)
        for key, exclusive in self._keys.items():
            self._want(wanted, _KEY_LEVEL, key, exclusive)
        return [number | exclusive for number, exclusive in sorted(wanted.items())]

    def _escalate(self, above: dict[Key, tuple[bytes, ...]]) -> None:
        """Lock a prefix instead of many keys directly below it."""
        parents = {
            key: prefixes[-2] if len(prefixes) > 1 else prefixes[-1] for key, prefixes in above.items() if prefixes
        }
        crowded = {parent for parent, count in Counter(parents.values()).items() if count > KEYS_PER_PREFIX}
        for key, parent in parents.items():
            if parent in crowded:
                del self._keys[key]
                prefixes = above[key]
                above[key] = prefixes[: prefixes.index(parent)]
        self._prefix(crowded, exclusive=True)

    def _want(self, wanted: dict[int, bool], level: int, raw: bytes, exclusive: bool) -> None:
        number = _number(self._salt, min(level, _KEY_LEVEL), raw)
        wanted[number] = exclusive or wanted.get(number, False)


@lru_cache(8192)
def _number(salt: bytes, level: int, raw: bytes) -> int:
    hashed = blake2b(raw, digest_size=7, key=salt).digest()
    return level << 55 | (int.from_bytes(hashed, "big") >> 2) << 1


@lru_cache(8192)
def _of_key(salt: bytes, key: Key) -> tuple[int, ...]:
    """The locks of a key: those of its prefixes, then its own."""
    found = [_number(salt, min(len(cuts(prefix)), _KEY_LEVEL), prefix) for prefix in cuts(key)]
    return (*found, _number(salt, _KEY_LEVEL, key))


@lru_cache(1024)
def _of_span(salt: bytes, start: Key, stop: Key) -> tuple[int, ...]:
    """The locks of a span: those of the prefixes above, then the one that is its own."""
    return tuple([_number(salt, min(len(cuts(prefix)), _KEY_LEVEL), prefix) for prefix in covering(Span(start, stop))])


FEW_KEYS: Final = KEYS_PER_PREFIX // 2
FEW_SPANS: Final = 4
"""Where no commit has more keys and spans than these, there is nothing to escalate (`of_few`)."""


def numbers(salt: bytes, written: Iterable[Key], read: Iterable[Key], spans: Sequence[Span]) -> list[int]:
    """The locks of a commit that writes and reads these keys and validates or clears these spans."""
    written, read = list(written), list(read)
    if len(spans) <= FEW_SPANS and len(written) + len(read) <= FEW_KEYS:
        return of_few(salt, written, read, spans)
    plan = Plan(salt)
    for key in written:
        plan.key(key, exclusive=True)
    for key in read:
        plan.key(key, exclusive=False)
    for span in spans:
        plan.span(span)
    return plan.numbers()


def of_few(salt: bytes, written: Iterable[Key], read: Iterable[Key], spans: Iterable[Span] = ()) -> list[int]:
    """What `Plan` says where there is nothing to escalate, for the common commit, or for several such together."""
    wanted = {number: number for key in read for number in _of_key(salt, key)}
    for key in written:
        *prefixes, own = _of_key(salt, key)
        for number in prefixes:
            wanted.setdefault(number, number)
        wanted[own] = own | 1
    for span in spans:
        if span.start < span.stop:
            *prefixes, own = _of_span(salt, span.start, span.stop)
            for number in prefixes:
                wanted.setdefault(number, number)
            wanted[own] = own | 1
    return sorted(wanted.values())


def want(wanted: dict[int, int], number: int) -> None:
    """Add a lock to those that are wanted, by their numbers in shared mode; each in the stronger mode."""
    if number & 1:
        wanted[number - 1] = number
    else:
        wanted.setdefault(number, number)
