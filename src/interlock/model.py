"""Plain data that crosses the port: keys, versions, tokens, operations, the commit request. No behaviour.

Everything here is immutable once handed over; a request is built by a session, judged by a backend, and (in memory)
kept as the feed record itself. Sessions never pass Python values through here: keys and values are already bytes, in
the forms that `interlock.keys` and `interlock.codec` define, so that a backend needs no knowledge of either.

A version is ``(position, nonce)``. The position is where in the engine's order the commit lies; the nonce is 64 bits of
the committing transaction's id. Validation compares the whole pair, so that no lost tail, failover or restored file can
give two different values the same version. Versions are never reused, also after delete and re-creation.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import msgspec

Key = bytes
"""A stored key: ordered bytes, see `interlock.keys`."""

Version = tuple[int, int]
"""(position, nonce)."""

TransactionId = int
"""128 bits: 48 bits of milliseconds, then 80 random bits, so that ids are ordered roughly by time."""

NONCE_MASK: Final = (1 << 64) - 1


class Mark(enum.Enum):
    """An expectation that is not a version."""

    ABSENT = "absent"
    """No live entry."""
    UNCHANGED = "unchanged"
    """Not changed since the request's snapshot, whatever it is."""


ABSENT: Final = Mark.ABSENT
UNCHANGED: Final = Mark.UNCHANGED

Expectation = Version | Mark


class Token(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A snapshot: everything committed up to a point. Also a cursor of the feed: ``changes(since=token)`` gives exactly
    what the snapshot does not contain. Opaque to everybody but the backend that made it."""

    store: int
    incarnation: int
    position: int
    detail: bytes = b""


class Span(NamedTuple):
    """The keys from ``start`` up to, but not including, ``stop``."""

    start: Key
    stop: Key


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a value. ``ttl_seconds``: the entry expires that long after the commit, by the engine's clock. ``listed``:
    False keeps it out of the ordered index, so that spans and scans never see it (records that are only looked up)."""

    value: bytes
    ttl_seconds: float | None = None
    listed: bool = True


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove a value; no effect where there is none."""


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One step of a merge. Operand and bounds are stored forms; ``kind`` is one of `interlock.merges.KINDS`."""

    kind: str
    operand: bytes
    floor: bytes | None = None
    ceiling: bytes | None = None


class Merge(msgspec.Struct, frozen=True, gc=False):
    """Operations that the engine applies, in order, to the newest value."""

    operations: tuple[Operation, ...]


Write = Put | Delete | Merge


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A version of a key. ``value`` is None for a tombstone. ``expires_at`` is in the engine's seconds."""

    version: Version
    value: bytes | None
    expires_at: float | None = None


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What `Backend.read` found: an entry (None: no version known) for each key, in the order asked.

    ``superseded``: at least one entry is no longer the newest, which a session has no other way to learn."""

    entries: list[Entry | None]
    token: Token
    at: float
    superseded: bool = False


class Page(msgspec.Struct, frozen=True, gc=False):
    """What `Backend.scan` found, in key order. ``more``: the span goes on behind the last item."""

    items: list[tuple[Key, Entry]]
    token: Token
    more: bool
    superseded: bool = False


class CommitRequest(msgspec.Struct, frozen=True, gc=False):
    """What a session wants done, all or nothing.

    - ``snapshot``: what the session read from; every request carries one, blind writes too.
    - ``reads``: key -> what it must still be. These go into the feed record.
    - ``spans``: ranges whose membership and content must be unchanged since the snapshot.
    - ``guards``: like ``reads``, but not reads of the agent: rules, records, locks. Not in the feed record.
    - ``alive``: keys among reads and guards that must not have expired either.
    - ``observed``: keys that were read but are not validated, for the feed record only.
    - ``clears`` delete every live key of a range; they are applied before ``writes``.
    - ``durable=False``: the engine may lose it in a crash. ``quiet=True``: no feed record, no superseded version kept.
    - ``fetch``: entries to return as they are after the commit.

    A request without writes and clears is a pure validation: nothing is recorded, whoever sent it.
    """

    transaction: TransactionId
    agent: str
    isolation: str
    snapshot: Token
    reads: dict[Key, Expectation]
    writes: dict[Key, Write]
    guards: dict[Key, Expectation]
    spans: tuple[Span, ...] = ()
    clears: tuple[Span, ...] = ()
    operation: str | None = None
    run_id: str | None = None
    attempt: int = 1
    observed: dict[Key, Version | None] | None = None
    alive: frozenset[Key] = frozenset()
    durable: bool = True
    quiet: bool = False
    fetch: tuple[Key, ...] = ()


class Merged(NamedTuple):
    """What a merge did: whether it changed anything, and the value before it (None: absent)."""

    changed: bool
    before: bytes | None


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A commit that happened. For a pure validation ``version`` is the one that was newest at that moment."""

    version: Version
    token: Token
    at: float
    merged: dict[Key, Merged] | None = None
    fetched: tuple[Entry | None, ...] = ()


class Author(msgspec.Struct, frozen=True, gc=False):
    """Who committed a version, and when (the engine's seconds)."""

    transaction: TransactionId
    agent: str
    at: float


class Clash(msgspec.Struct, frozen=True):
    """One expectation that did not hold, as a backend reports it.

    ``kind`` is "read" (a version or absence), "write" (UNCHANGED) or "range"; for a range ``key`` is one key that
    changed. ``current`` is the newest entry, its value left out (b"" kept as None) when over a kilobyte."""

    key: Key
    kind: str
    current: Entry | None
    author: Author | None = None
    span: Span | None = None


class CommitRefused(Exception):
    """Raised by `Backend.commit` when an expectation did not hold; names every one. Nothing was written.

    Sessions turn it into `ConflictError`: only they know the keys' and values' own forms."""

    def __init__(self, clashes: tuple[Clash, ...]) -> None:
        super().__init__(clashes)
        self.clashes = clashes


class BoundBroken(Exception):
    """Raised by merge algebra and `Backend.commit` when a floor or ceiling would be broken. Nothing was written."""

    def __init__(self, operation: Operation, before: bytes | None, key: Key = b"") -> None:
        super().__init__(operation, before, key)
        self.operation = operation
        self.before = before
        self.key = key


class MergeRefused(Exception):
    """Raised by merge algebra and `Backend.commit` when the stored value is not of the operation's kind."""

    def __init__(self, reason: str, key: Key = b"") -> None:
        super().__init__(reason, key)
        self.reason = reason
        self.key = key


class DuplicateTransaction(Exception):
    """Raised by `Backend.commit` when the transaction's id is already recorded: as committed, or as fenced."""

    def __init__(self, committed: bool) -> None:
        super().__init__(committed)
        self.committed = committed


class Change(msgspec.Struct, frozen=True, gc=False):
    """A feed record: one committed transaction. ``token`` is the cursor just behind it.

    ``writes`` holds what was asked for (merges with their operands); ``cleared`` the keys that its clears removed."""

    version: Version
    token: Token
    transaction: TransactionId
    at: float
    agent: str
    isolation: str
    operation: str | None
    run_id: str | None
    attempt: int
    reads: dict[Key, Version | None]
    spans: tuple[Span, ...]
    writes: dict[Key, Write]
    clears: tuple[Span, ...]
    cleared: tuple[Key, ...]


class Settled(enum.Enum):
    """What became of a transaction id."""

    COMMITTED = "committed"
    FENCED = "fenced"
    """Not committed, and it never will be."""
    UNSEEN = "unseen"
    """No trace of it yet; it may still commit (only without a fence)."""
    FORGOTTEN = "forgotten"
    """The id is older than what the store still keeps."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Bounds on one request, checked before anything is sent. Counts of keys; sizes in bytes of stored forms."""

    writes: int = 10_000
    reads: int = 100_000
    spans: int = 1_000
    commit_bytes: int = 64 << 20
