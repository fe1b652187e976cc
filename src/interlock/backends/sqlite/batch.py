"""What one batch of commits does: each job is judged against the newest state and what the jobs before it have
decided.

Nothing is written before every job is decided, so a refused job needs nothing undone, and the whole batch is a few
statements however many jobs it has: one that looks up every key, some that put the newest row of each changed key
(one row, though ten jobs of the batch may have changed it), some that put the feed's rows. `perform` builds
everything that a job changes before it changes anything of the batch, so that a merge that is refused midway leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from interlock import merges
from interlock.backends.sqlite import record as records
from interlock.backends.sqlite import trail as trails
from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.record import Written
from interlock.backends.sqlite.statements import (
    COLUMNS,
    EXPIRES_AT,
    IN_ORDER,
    KEY,
    LEFT_ORDER,
    LISTED,
    NONCE,
    POSITION,
    TRAIL,
    UNLISTED,
    VALUE,
    FeedRow,
    Row,
    put_current,
    put_feed,
)
from interlock.backends.sqlite.validation import State, author_of
from interlock.errors import SnapshotTooOldError
from interlock.model import (
    ABSENT,
    NONCE_MASK,
    Author,
    BoundBroken,
    CommitRefused,
    CommitRequest,
    Key,
    Merge,
    Merged,
    MergeRefused,
    Put,
    Reply,
    Settled,
    Span,
    Token,
    TransactionId,
    Version,
    Write,
)

_SIGN = 1 << 63

Image = records.Image | int | None


class Batch(State):
    """The newest state, overlaid by the decisions of a batch. Used inside one write transaction."""

    def __init__(
        self,
        connection: Connection,
        store: int,
        now: float,
        known: Mapping[int, bytes],
        new_id: Callable[[float], bytes],
    ) -> None:
        super().__init__(connection, store, now, known)
        self.new_id = new_id
        self.changed: dict[Key, Row] = {}
        self.feed: list[FeedRow] = []
        self.ids: dict[bytes, bool] = {}
        """Ids that this batch records -> whether as committed."""
        self.careful = False
        """Look for duplicates before anything else, because writing has met one."""
        self.compacted = False

    @property
    def position(self) -> int:
        """The position of the newest commit, those of this batch included."""
        return self.head + len(self.feed)

    # -- judging -------------------------------------------------------------------------------------------------------
    def commit(self, request: CommitRequest, checked: int) -> Reply:
        """Judge a request and decide what it changes. Raises what `Backend.commit` raises, then nothing has
        changed."""
        identity = request.transaction.to_bytes(16, "big")
        if self.careful or request.quiet or identity in self.ids:
            self.refuse_duplicate(identity)
        if self.forgotten_fence is not None and identity <= self.forgotten_fence:
            raise SnapshotTooOldError("the transaction began before the oldest that the store still knows of")
        try:
            self.admit(request)
            self.judge(request, checked)
            return self.perform(request, identity)
        except (CommitRefused, SnapshotTooOldError, BoundBroken, MergeRefused):
            self.refuse_duplicate(identity)
            raise

    def settled(self, identity: bytes) -> Settled | None:
        """As `State.settled`, with what this batch has decided."""
        committed = self.ids.get(identity)
        if committed is None:
            return super().settled(identity)
        return Settled.COMMITTED if committed else Settled.FENCED

    def fence(self, transaction: TransactionId) -> Settled:
        """Record that a transaction will never commit, unless it is recorded already."""
        identity = transaction.to_bytes(16, "big")
        settled = self.settled(identity)
        if settled is None:
            self.feed.append((self.position + 1, identity, self.now, None))
            self.ids[identity] = False
            settled = Settled.FENCED
        return settled

    def changed_in(self, span: Span, checked: int) -> Key | None:
        """As `State.changed_in`, with what this batch has decided."""
        start, stop = span
        for key, row in self.changed.items():
            if start <= key < stop and row[LISTED] != UNLISTED:
                return key
        return super().changed_in(span, checked)

    def author(self, position: int) -> Author | None:
        """As `State.author`, with what this batch has decided."""
        if position > self.head:
            return author_of(*self.feed[position - self.head - 1][1:])
        return super().author(position)

    # -- performing ----------------------------------------------------------------------------------------------------
    def perform(self, request: CommitRequest, identity: bytes) -> Reply:
        """Decide what a request changes that was judged and found good."""
        nonce = request.transaction & NONCE_MASK
        position = self.position + 1
        change = _Change(self, request, position, nonce if nonce < _SIGN else nonce - 2 * _SIGN)
        if request.clears:
            change.clear(request.clears)
        for key, write in request.writes.items():
            change.write(key, write)
        if request.quiet:
            identity = self.new_id(self.now)
            record = records.encode((change.written,))
        else:
            self.ids[identity] = True
            record = records.encode(_record(request, change, self.rows))
        self.feed.append((position, identity, self.now, record))
        self.rows.update(change.rows)
        self.changed.update(change.rows)
        token = Token(self.store, 1, position, identity)
        return Reply((position, nonce), token, self.now, change.merged, self.fetched(request))

    def flush(self) -> None:
        """Write everything that was decided. Raises ``sqlite3.IntegrityError`` if an id is recorded already."""
        if self.changed:
            put_current(self.connection, self.changed.values())
        if self.feed:
            put_feed(self.connection, self.feed)


class _Change:
    """What one request changes: the rows that it makes, and what its record says of each key."""

    __slots__ = ("before", "cleared", "merged", "nonce", "now", "position", "quiet", "rows", "state", "written")

    def __init__(self, state: Batch, request: CommitRequest, position: int, nonce: int) -> None:
        self.state = state
        self.before = state.rows
        self.position = position
        self.nonce = nonce
        self.now = state.now
        self.quiet = request.quiet
        self.rows: dict[Key, Row] = {}
        self.written: dict[Key, Written] = {}
        self.merged: dict[Key, Merged] | None = None
        self.cleared: tuple[Key, ...] = ()

    def write(self, key: Key, write: Write) -> None:
        """Apply one write."""
        old = self.before.get(key)
        if type(write) is Put:
            ttl_seconds = write.ttl_seconds
            expires_at = None if ttl_seconds is None else self.now + ttl_seconds
            kind = records.PUT if write.listed else records.PUT_UNLISTED
            listed = IN_ORDER if write.listed else UNLISTED if old is None or not old[LISTED] else LEFT_ORDER
            image = self._row(key, old, write.value, expires_at or 0, listed)
            self.written[key] = Written(kind, ttl_seconds, None, expires_at, image)
            return
        now = self.rows.get(key, old)
        value = None if now is None else now[VALUE]
        listed = IN_ORDER if old is None else old[LISTED]
        if type(write) is Merge:
            self._merge(key, write, old, value, listed)
        elif value is not None:
            self.written[key] = Written(records.DELETE, None, None, None, self._row(key, old, None, 0, listed))
        elif key not in self.rows:
            self.written[key] = Written(records.DELETE, None, None, None, records.NOTHING)
        else:
            self.written[key].kind = records.DELETE

    def _merge(self, key: Key, write: Merge, old: Row | None, value: bytes | None, listed: int) -> None:
        try:
            after = merges.apply(value, write.operations)
        except (BoundBroken, MergeRefused) as refusal:
            refusal.key = key
            raise
        if self.merged is None:
            self.merged = {}
        self.merged[key] = Merged(after != value, value)
        image: Image = records.NOTHING
        expires_at = 0.0
        if after != value:
            expires_at = 0.0 if old is None or value is None else old[EXPIRES_AT]
            image = self._row(key, old, after, expires_at, listed)
        self.written[key] = Written(records.MERGE, None, records.operations_form(write), expires_at or None, image)

    def _row(self, key: Key, old: Row | None, value: bytes | None, expires_at: float, listed: int) -> Image:
        """Make the new row of a key; the image of the old one."""
        if old is None:
            self.rows[key] = (key, self.position, self.nonce, value, expires_at, trails.FIRST, listed)
            return None
        trail: trails.Trail
        image: Image = old[1:]
        if self.quiet and old[VALUE] is not None:
            trail = trails.QUIET
            if old[TRAIL] == trails.QUIET:
                image = (old[POSITION], old[NONCE], None, 0, trails.QUIET, old[LISTED])
        else:
            trail = trails.following(old[TRAIL], old[POSITION])
        self.rows[key] = (key, self.position, self.nonce, value, expires_at, trail, listed)
        return image

    def clear(self, spans: Iterable[Span]) -> None:
        """Tombstones for every live listed key of the spans."""
        state = self.state
        for start, stop in spans:
            found = state.connection.execute(
                f"SELECT {COLUMNS} FROM current WHERE key >= ? AND key < ? AND value IS NOT NULL AND listed = 1",
                (start, stop),
            )
            for row in found.fetchall():
                state.rows.setdefault(row[KEY], row)
            for key in sorted(key for key in state.rows.keys() - self.rows.keys() if start <= key < stop):
                old = state.rows[key]
                if old[VALUE] is not None and old[LISTED] == IN_ORDER:
                    image = self._row(key, old, None, 0, IN_ORDER)
                    self.written[key] = Written(records.CLEAR, None, None, None, image)
        self.cleared = tuple(self.rows)


def _record(request: CommitRequest, change: _Change, rows: Mapping[Key, Row]) -> tuple[object, ...]:
    """The feed record of a request."""
    reads: dict[Key, Version | None] = dict(request.observed or ())
    for key, expected in request.reads.items():
        if type(expected) is tuple:
            reads[key] = expected
        elif expected is ABSENT and (row := rows.get(key)) is not None:
            reads[key] = (row[POSITION], row[NONCE] & NONCE_MASK)
        else:
            reads[key] = None
    return (
        change.written,
        request.agent,
        request.isolation,
        request.operation,
        request.run_id,
        request.attempt,
        reads,
        request.spans,
        request.clears,
        change.cleared,
    )
