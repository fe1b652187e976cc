"""What one batch of commits does: each job is judged against the newest state and what the jobs before it have
decided.

Nothing is written before every job is decided, so a refused job needs nothing undone, and the whole batch is a few
statements however many jobs it has: one that looks up every key, some that put the newest row of each changed key
(one row, though ten jobs of the batch may have changed it), some that put the feed's rows. `perform` builds
everything that a job changes before it changes anything of the batch, so that a merge that is refused midway leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from interlock.backends.sqlite import change as changes
from interlock.backends.sqlite import record as records
from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.newest import Newest
from interlock.backends.sqlite.statements import (
    LISTED,
    POSITION,
    UNLISTED,
    NewFeedRow,
    Row,
    find,
    put_current,
    put_feed,
    put_one_in_feed,
)
from interlock.backends.sqlite.validation import Known, State, author_of
from interlock.errors import SnapshotTooOldError
from interlock.model import (
    NONCE_MASK,
    Author,
    CommitRequest,
    Key,
    Reply,
    Settled,
    Span,
    Token,
    TransactionId,
)

SIGN = 1 << 63


class Batch(State):
    """The newest state, overlaid by the decisions of a batch. Used inside one write transaction."""

    def __init__(
        self,
        connection: Connection,
        store: int,
        now: float,
        known: Known,
        new_id: Callable[[float], bytes],
        newest: Newest,
    ) -> None:
        super().__init__(connection, store, now, known)
        self.newest = newest
        self.new_id = new_id
        self.changed: dict[Key, Row] = {}
        self.feed: list[NewFeedRow] = []
        self.ids: dict[bytes, bool] = {}
        """Ids that this batch records -> whether as committed."""
        self.forgotten = self.forgotten_fence = b""
        """The highest id of all, and of a fence, that compaction has dropped, this batch's included."""
        self.compacted = False
        self.fresh = False
        """Whether no changed key has had a row, which SQLite is to find out."""
        self.bytes = 0
        """About how many bytes the records take."""

    @property
    def position(self) -> int:
        """The position of the newest commit, those of this batch included."""
        return self.head + len(self.feed)

    @property
    def end(self) -> tuple[int, bytes]:
        """The newest position and its id, the commits of this batch included."""
        if self.feed:
            position, identity = self.feed[-1][:2]
            return position, identity
        return self.head, self.head_id

    def look(self, keys: Sequence[Key]) -> None:
        """As `State.look`, and what compaction has forgotten, if it has come further. What is known of the newest state
        is not asked again; nor does the feed begin earlier again once this batch has compacted it."""
        horizon, ends = self.horizon, self.newest.ends
        if ends is None:
            super().look(keys)
        else:
            self.head, self.head_id, self.horizon = ends
            missing = self.newest.look(keys, self.rows)
            if missing:
                find(self.connection, missing, self.rows, with_feed=False)
        self.horizon = max(self.horizon, horizon)
        known = self.known
        if known.horizon != self.horizon:
            facts = dict(
                self.connection.execute("SELECT name, value FROM facts WHERE name LIKE 'forgotten%'").fetchall()
            )
            known.forgotten, known.forgotten_fence = facts.get("forgotten", b""), facts.get("forgotten_fence", b"")
            known.horizon = self.horizon
        self.forgotten, self.forgotten_fence = known.forgotten, known.forgotten_fence
        known.outcomes.catch_up(self.connection, self.head)

    # -- judging -------------------------------------------------------------------------------------------------------
    def commit(self, request: CommitRequest, checked: int) -> Reply:
        """Judge a request and decide what it changes. Raises what `Backend.commit` raises, then nothing has
        changed."""
        identity = request.transaction.to_bytes(16, "big")
        self.refuse_duplicate(identity)
        if identity <= self.forgotten_fence:
            raise SnapshotTooOldError("the transaction began before the oldest that the store still knows of")
        self.admit(request)
        self.judge(request, checked)
        return self.perform(request, identity)

    def settled(self, identity: bytes) -> Settled | None:
        """As `State.settled`, with what this batch has decided."""
        committed = self.ids.get(identity)
        if committed is None:
            committed = self.known.outcomes.find(self.connection, identity)
        if committed is None:
            return None
        return Settled.COMMITTED if committed else Settled.FENCED

    def fence(self, transaction: TransactionId) -> Settled:
        """Record that a transaction will never commit, unless it is recorded already."""
        identity = transaction.to_bytes(16, "big")
        settled = self.settled(identity)
        if settled is None and identity <= self.forgotten:
            settled = Settled.FORGOTTEN
        if settled is None:
            self.feed.append((self.position + 1, identity, self.now, None, 0))
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
            return author_of(*self.feed[position - self.head - 1][1:4])
        return super().author(position)

    # -- performing ----------------------------------------------------------------------------------------------------
    def perform(self, request: CommitRequest, identity: bytes) -> Reply:
        """Decide what a request changes that was judged and found good."""
        position = self.head + len(self.feed) + 1
        nonce = request.transaction & NONCE_MASK
        signed = nonce if nonce < SIGN else nonce - 2 * SIGN
        merged, cleared = None, ()
        change = changes.plain(request, self.rows, position, signed, self.now)
        if change is not None:
            rows, written = change
        else:
            rows, written, merged, cleared = self._change(request, position, signed)
        marks = records.marks_of(written)
        if request.quiet:
            marks |= records.SILENT
            identity = self.new_id(self.now)
            record = records.encode((written,))
        else:
            self.ids[identity] = True
            record = changes.record(request, written, cleared, self.rows)
        self.feed.append((position, identity, self.now, record, marks))
        self.bytes += len(record)
        self.rows.update(rows)
        self.changed.update(rows)
        return Reply(
            (position, nonce), Token(self.store, 1, position, identity), self.now, merged, self.fetched(request)
        )

    def _change(self, request: CommitRequest, position: int, nonce: int) -> tuple[Any, ...]:
        change = changes.Change(self.rows, position, nonce, self.now, quiet=request.quiet)
        if request.clears:
            change.clear(request.clears, self.connection)
        for key, write in request.writes.items():
            change.write(key, write)
        return change.rows, change.written, change.merged, change.cleared

    def remove(self, key: Key, horizon: int) -> None:
        """A tombstone up to the horizon was removed: what is known of the key is that it has no row, unless this batch
        has written one."""
        self.newest.remove(key)
        row = self.rows.get(key)
        if row is not None and row[POSITION] <= horizon:
            del self.rows[key]

    def flush(self) -> None:
        """Write everything that was decided."""
        if self.changed:
            put_current(self.connection, self.changed.values(), fresh=self.fresh)
        if len(self.feed) == 1:
            put_one_in_feed(self.connection, self.feed[0])
        elif self.feed:
            put_feed(self.connection, self.feed)
