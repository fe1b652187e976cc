"""The state of a memory engine, how a decided commit is put in place, and how an old version is found.

Callers hold the lock, except to look at ``token``. Invariants:

- ``current`` has the newest entry of each key, tombstones included; ``chains`` the superseded ones that some snapshot
  at or above ``horizon`` may still need, oldest first; ``torn`` the position of a key's last replacement that kept
  nothing (a quiet commit).
- ``log`` has one record for each position above ``horizon``, quiet ones included. It is the feed, the outcome of each
  transaction, the authors, and often the shortest way to learn what changed in a span.
- ``records`` finds those of ``log`` by transaction, as far as the position ``indexed``; the rest is added when somebody
  asks (`State.record_of`), because few commits are ever asked for.
- ``grown`` counts up before a key gets its first entry: as long as it stays the same, what had none has none.
- ``pending`` is a commit that was decided but perhaps not wholly put in place. `State.apply` may be repeated, and
  begun again from the middle, without harm.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from heapq import heappush
from typing import ClassVar, Final

import msgspec

from interlock.backends.memory.order import KeyOrder
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.model import (
    ABSENT,
    Author,
    Change,
    CommitRequest,
    Entry,
    Key,
    Reply,
    Span,
    Token,
    TransactionId,
    Version,
    Write,
)
from interlock.ports import Waiter

INCARNATION: Final = 1
"""Memory cannot be restored to an earlier state, so it has one incarnation only."""
_SHORT_WALK: Final = 64


def _position(entry: Entry) -> int:
    return entry.version[0]


def older(chain: list[Entry], position: int) -> int:
    """How many entries of a chain are not newer than a position."""
    return bisect_right(chain, position, key=_position)


class Record(msgspec.Struct, frozen=True, gc=False):
    """One position of the log: what was asked for, and what came of it besides.

    A quiet commit is here only for its author and its keys (``quiet_keys``), so its request is kept without the values
    that it wrote."""

    version: Version
    token: Token
    at: float
    request: CommitRequest
    cleared: tuple[Key, ...] = ()
    tombstones: dict[Key, Version] | None = None
    quiet_keys: tuple[Key, ...] = ()

    @property
    def transaction(self) -> TransactionId:
        """Whose commit it was."""
        return self.request.transaction

    @property
    def agent(self) -> str:
        """Who made it."""
        return self.request.agent

    @property
    def quiet(self) -> bool:
        """Whether no superseded versions are kept, and the feed has no record."""
        return self.request.quiet

    @property
    def keys(self) -> Collection[Key]:
        """The keys that were written one by one."""
        return self.quiet_keys or self.request.writes

    def change(self) -> Change | None:
        """The feed record, made when somebody asks for it; None for a quiet commit."""
        request = self.request
        if request.quiet:
            return None
        reads: dict[Key, Version | None] = {} if request.observed is None else dict(request.observed)
        tombstones = self.tombstones or {}
        for key, expected in request.reads.items():
            reads[key] = tombstones.get(key) if expected is ABSENT else expected if type(expected) is tuple else None
        return Change(
            self.version,
            self.token,
            request.transaction,
            self.at,
            request.agent,
            request.isolation,
            request.operation,
            request.run_id,
            request.attempt,
            reads,
            request.spans,
            request.writes,
            request.clears,
            self.cleared,
        )


class PlainRecord(Reply, frozen=True, gc=False):
    """The same of a commit that came by `interlock.ports.Direct`, and its reply in one: an object less to make and to
    keep. ``reads`` has the entries as they were found, which are those that were there at the commit."""

    transaction: TransactionId = 0
    agent: str = ""
    isolation: str = ""
    reads: Mapping[Key, Entry | None] = {}
    writes: Mapping[Key, Write] = {}
    operation: str | None = None
    run_id: str | None = None
    attempt: int = 1

    cleared: ClassVar[tuple[Key, ...]] = ()
    quiet: ClassVar[bool] = False

    @property
    def keys(self) -> Collection[Key]:
        """The keys that were written."""
        return self.writes

    def change(self) -> Change | None:
        """The feed record, made when somebody asks for it."""
        reads = {key: None if entry is None else entry.version for key, entry in self.reads.items()}
        return Change(
            self.version,
            self.token,
            self.transaction,
            self.at,
            self.agent,
            self.isolation,
            self.operation,
            self.run_id,
            self.attempt,
            reads,
            (),
            dict(self.writes),
            (),
            (),
        )


class State:
    """Everything that a memory engine knows."""

    def __init__(self, store: int, clock: Callable[[], float]) -> None:
        self.lock = threading.Lock()
        self.clock = clock
        self.last_time = clock()
        self.token = Token(store, INCARNATION, 0)
        self.version: Version = (0, 0)
        self.current: dict[Key, Entry] = {}
        self.chains: dict[Key, list[Entry]] = {}
        self.torn: dict[Key, int] = {}
        self.order = KeyOrder()
        self.log: dict[int, Record | PlainRecord] = {}
        self.records: dict[TransactionId, Record | PlainRecord] = {}
        self.indexed = 0
        self.grown = 0
        self.fences: dict[TransactionId, float] = {}
        self.expiring: list[tuple[float, Key]] = []
        self.pending: tuple[Record | PlainRecord, dict[Key, Entry]] | None = None
        self.horizon = 0
        self.swept = 0
        self.forgotten: TransactionId = -1
        self.forgotten_fence: TransactionId = -1
        self.waiters: dict[Waiter, None] = {}

    def time(self) -> float:
        """The engine's clock, which never runs backwards."""
        now = self.clock()
        if now < self.last_time:
            return self.last_time
        self.last_time = now
        return now

    def position_of(self, at: Token) -> int:
        """The position of a token; refused if it is another store's or too old."""
        token = self.token
        position = at.position
        if at.store != token.store or at.incarnation != token.incarnation or position > token.position:
            raise UsageError("the token belongs to another store")
        if position < self.horizon:
            raise SnapshotTooOldError(f"the snapshot at {position} lies below {self.horizon}, the oldest that is kept")
        return position

    def as_of(self, key: Key, position: int) -> Entry | None:
        """The entry of a key that a snapshot shows."""
        entry = self.current.get(key)
        if entry is not None and entry.version[0] <= position:
            return entry
        if self.torn and self.torn.get(key, 0) > position:
            raise SnapshotTooOldError("a version that the snapshot shows was replaced by a commit that keeps none")
        chain = self.chains.get(key)
        if chain is None:
            return None
        place = older(chain, position)
        return chain[place - 1] if place else None

    def record_of(self, transaction: TransactionId) -> Record | PlainRecord | None:
        """What is in the log of a transaction."""
        position = self.token.position
        if self.indexed < position:
            records, log = self.records, self.log
            for place in range(max(self.indexed, self.swept) + 1, position + 1):
                record = log.get(place)
                if record is not None:  # None: compaction was interrupted just behind dropping it
                    records[record.transaction] = record
            self.indexed = position
        return self.records.get(transaction)

    def author(self, version: Version) -> Author | None:
        """Who committed a version, where the log still has it."""
        record = self.log.get(version[0])
        return None if record is None else Author(record.transaction, record.agent, record.at)

    def is_newer(self, key: Key, snapshot: int) -> bool:
        """Whether a key has changed since a snapshot."""
        entry = self.current.get(key)
        return (entry is not None and entry.version[0] > snapshot) or self.torn.get(key, 0) > snapshot

    def changed_in(self, span: Span, snapshot: int) -> Key | None:
        """A listed key of the span that has changed since the snapshot: found by walking the log from there, or the
        keys of the span, whichever is shorter."""
        start, stop = span
        budget, counted = _SHORT_WALK, False
        for position in range(snapshot + 1, self.token.position + 1):
            record = self.log[position]
            budget -= 1 + len(record.keys) + len(record.cleared)
            if budget < 0 and not counted:
                budget += self.order.count(span)
                counted = True
            if budget < 0:
                return next((key for key in self.order.walk(span) if self.is_newer(key, snapshot)), None)
            for keys in (record.keys, record.cleared):
                for key in keys:
                    if start <= key < stop and self.is_newer(key, snapshot) and key in self.order:
                        return key
        return None

    def apply(self, record: Record | PlainRecord, new: dict[Key, Entry]) -> None:
        """Put a decided commit in place. Doing it again, or again from the middle, does no harm."""
        quiet = record.quiet
        current, chains = self.current, self.chains
        self.grown += 1
        for key, entry in new.items():
            old = current.get(key)
            if old is not None and old is not entry:
                if quiet:
                    self.torn[key] = record.version[0]
                else:
                    chain = chains.get(key)
                    if chain is None:
                        chains[key] = [old]
                    elif chain[-1] is not old:
                        chain.append(old)
            if entry.expires_at is not None:
                heappush(self.expiring, (entry.expires_at, key))
            if quiet and entry.value is None:
                current.pop(key, None)
                chains.pop(key, None)
            else:
                current[key] = entry
        self.log[record.version[0]] = record
        self.version = record.version
        self.token = record.token
        self.pending = None
