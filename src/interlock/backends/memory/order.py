"""The listed keys in byte order, sorted only when somebody asks for the order.

New keys are put into a set, which costs the same however many keys there are; the next question about the order moves
them into place. Few are inserted one by one, many are merged in bulk. The sorted keys lie in chunks, so that an
insertion moves a thousand pointers and not a million.

Invariants: no chunk is empty; keys grow strictly within and across chunks; a key is in the set or in a chunk, or for
a moment in both. Each step changes one list or set by one call that cannot be interrupted midway, and doing a step
twice is the same as doing it once, so that an exception from a signal handler between two steps leaves nothing
broken. Callers hold the engine's lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

from interlock.model import Key, Span

_CHUNK: Final = 512
_BULK_SHARE: Final = 16
_first = itemgetter(0)


class KeyOrder:
    """A set of keys that can be walked in order."""

    __slots__ = ("_chunks", "_size", "fresh")

    def __init__(self) -> None:
        self.fresh: set[Key] = set()
        """Keys that are not in their place yet; the engine adds new ones here directly."""
        self._chunks: list[list[Key]] = []
        self._size = 0  # of the chunks together; only decides how fresh keys are merged

    def __contains__(self, key: Key) -> bool:
        if key in self.fresh:
            return True
        place = self._chunk(key)
        if place < 0:
            return False
        chunk = self._chunks[place]
        i = bisect_left(chunk, key)
        return i < len(chunk) and chunk[i] == key

    def discard(self, key: Key) -> None:
        """Forget a key."""
        self.fresh.discard(key)
        place = self._chunk(key)
        if place < 0:
            return
        chunk = self._chunks[place]
        i = bisect_left(chunk, key)
        if i == len(chunk) or chunk[i] != key:
            return
        self._size -= 1
        if len(chunk) == 1:
            del self._chunks[place]
        else:
            del chunk[i]

    def count(self, span: Span) -> int:
        """About how many keys lie in a span: exact to a few chunks."""
        self._settle()
        low, high = self._chunk(span.start), self._chunk(span.stop)
        if high < 0:
            return 0
        if low == high:
            chunk = self._chunks[low]
            return max(0, bisect_left(chunk, span.stop) - bisect_left(chunk, span.start))
        return max(0, high - low + 1) * _CHUNK

    def walk(self, span: Span, *, reverse: bool = False) -> Iterator[Key]:
        """The keys of a span in order. No key may be added or removed while the walk goes on."""
        self._settle()
        start, stop = span
        chunks = self._chunks
        low, high = max(0, self._chunk(start)), self._chunk(stop)
        for place in range(high, low - 1, -1) if reverse else range(low, high + 1):
            chunk = chunks[place]
            first = bisect_left(chunk, start) if place == low else 0
            last = bisect_left(chunk, stop) if place == high else len(chunk)
            yield from chunk[first:last][::-1] if reverse else chunk[first:last]

    def _chunk(self, key: Key) -> int:
        """The chunk in which the key lies or would lie; -1 if it comes before all of them."""
        return bisect_right(self._chunks, key, key=_first) - 1

    def _settle(self) -> None:
        fresh = self.fresh
        if not fresh:
            return
        if len(fresh) * _BULK_SHARE > self._size or not self._chunks:
            runs = sorted(chain(chain.from_iterable(self._chunks), sorted(fresh)))  # two sorted runs: a merge, no sort
            everything = [key for key, _ in groupby(runs)]
            self._chunks = [everything[i : i + _CHUNK] for i in range(0, len(everything), _CHUNK)]
            self._size = len(everything)
        else:
            for key in fresh:
                self._insert(key)
        fresh.clear()

    def _insert(self, key: Key) -> None:
        place = max(0, self._chunk(key))
        chunk = self._chunks[place]
        i = bisect_left(chunk, key)
        if i < len(chunk) and chunk[i] == key:
            return
        self._size += 1
        chunk.insert(i, key)
        if len(chunk) > 2 * _CHUNK:
            self._chunks[place : place + 1] = [chunk[:_CHUNK], chunk[_CHUNK:]]
