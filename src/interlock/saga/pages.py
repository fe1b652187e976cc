"""The steps of a run as they lie in the store: several to a page, a page a record.

What a step's act hangs on is one commit, and what that commit costs is mostly the number of its records. So a step
that begins goes into a page that has room, together with the result of the step before it, and one record is written
where there would be two. A page is written whole; it keeps each step's stored form, so only what has changed is
encoded.

- A page is in one commit at a time (`Page.writing`); a step that begins meanwhile takes another page, so parallel
  steps do not wait for each other.
- What a step says is kept short: SQLite stores the end of a row of more than some 1,000 bytes in a page of the database
  of its own, which is then written with every change.
- A page takes steps until it has `PAGE_BYTES`; what is written for one step of many is bounded by that.
- A step whose record has grown too large for a page that it shares moves to a page of its own. Of two records of one
  step the one in the later page is the newer one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from interlock import codec
from interlock.model import ABSENT, Expectation, Key, Put
from interlock.saga.kinds import PAGES, pack

PAGE_BYTES: Final = 1 << 11
"""The bytes behind which a page takes no further step."""
_FRAME_BYTES: Final = 1 << 10
"""What a page may need besides its steps."""
_LOOKED_AT: Final = 8
"""How many of the latest pages are looked at for room."""

_encode = msgspec.msgpack.Encoder().encode

Place = int | str


class Page:
    """One record: the stored forms of some steps, as they are known here."""

    __slots__ = ("dirty", "key", "number", "own", "size", "steps", "unsure", "unsynced", "version", "writing")

    def __init__(self, number: int, key: Key, *, own: bool = False) -> None:
        self.number = number
        self.key = key
        self.own = own
        """Whether no further step comes here."""
        self.steps: dict[Place, bytes] = {}
        self.size = 0
        self.version: Expectation = ABSENT
        self.writing = False
        """Whether a commit with it is on its way."""
        self.dirty = False
        """Whether something has changed since it was last put into a commit."""
        self.unsynced = False
        """Whether its version may be lost in a crash of the engine."""
        self.unsure = False
        """Whether nobody knows if the last commit with it has happened."""

    def set(self, place: Place, raw: bytes) -> None:
        """Put a step's form in."""
        steps = self.steps
        before = steps.get(place)
        self.size += len(raw) if before is None else len(raw) - len(before)
        steps[place] = raw
        self.dirty = True

    def remove(self, place: Place) -> None:
        """Take a step out."""
        self.size -= len(self.steps.pop(place))
        self.dirty = True

    def put(self, ttl_seconds: float | None = None) -> Put:
        """The write of the record."""
        return Put(codec.freeze_plain((PAGES.name, PAGES.schema, list(self.steps.values()))), ttl_seconds)


def with_room(pages: list[Page]) -> Page | None:
    """A page that the next step may go to."""
    for page in pages[: -_LOOKED_AT - 1 : -1] if len(pages) > 1 else pages:
        if not page.writing and not page.own and page.size < PAGE_BYTES:
            return page
    return None


def encoded(place: Place, step: dict[str, Any]) -> bytes:
    """The stored form of a step. What `interlock.saga.recorded` and `interlock.saga.recording` put into one is plain; a
    transaction's inverse need not be. Raises `ValueRefusedError`, `LimitExceededError`."""
    try:  # as `pack`, which would be one more call for each record of a step
        raw = codec.freeze((place, step)) if "inverse" in step else _encode((place, step))
    except (UnicodeEncodeError, OverflowError):
        raw = pack((place, step))
    if len(raw) > codec.VALUE_BYTES - _FRAME_BYTES:
        raise codec.too_large(len(raw))
    return raw
