"""Reads: inline, on the caller's own thread, on a connection that only this thread uses.

A read at a snapshot is several statements, and others commit between them; yet it is exact. A row of ``current``
that is not newer than the snapshot is what the snapshot shows. A newer one leads to the records of the commits that
replaced its predecessors, and records never change; they only disappear, when the horizon passes them. So whatever
was read is right if the snapshot's token is still in the feed *afterwards*: the horizon only moves forward. That
check is the last statement of every such read, or part of the only one. A read of the newest state is one statement
that also gives its token.

`Reader.lock` is taken for every call. Nobody ever waits for it but whoever is about to fork, see
`interlock.backends.sqlite.engine`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence

from interlock.backends.sqlite import record as records
from interlock.backends.sqlite.connection import CLOSED, FAILURES, Connection, connect, failure
from interlock.backends.sqlite.newest import Newest, Shown
from interlock.backends.sqlite.outcomes import recorded
from interlock.backends.sqlite.past import Past
from interlock.backends.sqlite.statements import (
    COLUMNS,
    HEAD,
    HORIZON,
    IN_ORDER,
    LISTED,
    POSITION,
    READ_AROUND,
    READ_ONE,
    READ_ONE_AT,
    TRAIL,
    VALUE,
    FeedRow,
    Row,
    find,
)
from interlock.backends.sqlite.trail import QUIET
from interlock.backends.sqlite.validation import Known, State, author_of, check_store, entry_of, too_old
from interlock.errors import BackendCorruptError, InterlockError, SnapshotTooOldError, UsageError
from interlock.model import (
    NONCE_MASK,
    Author,
    Change,
    CommitRefused,
    CommitRequest,
    Entry,
    Key,
    Page,
    Reading,
    Reply,
    Settled,
    Span,
    Token,
    TransactionId,
)


class Reader:
    """A thread's view of the store. Methods are synchronous and short."""

    def __init__(self, path: str, busy_seconds: float, store: int, now: Callable[[], float], newest: Newest) -> None:
        self.path = path
        self.store = store
        self.now = now
        self._newest = newest
        self.lock = threading.RLock()
        self.closed = False
        self._token = Token(store, 1, -1)
        try:
            self.connection: Connection = connect(path, busy_seconds=busy_seconds, read_only=True)
        except sqlite3.Error as error:
            raise failure(error, path) from None
        self._execute = self.connection.execute
        self._past = Past(self._execute)

    def __del__(self) -> None:
        connection = getattr(self, "connection", None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close it, from whatever thread, after the call that may be going on."""
        with self.lock:
            self.closed = True
            self.connection.close()

    def failed(self, error: Exception) -> InterlockError:
        """Our error for one of `FAILURES`."""
        return UsageError(CLOSED) if self.closed else failure(error, self.path)

    # -- tokens --------------------------------------------------------------------------------------------------------
    def _token_of(self, position: int, identity: bytes) -> Token:
        token = self._token
        if token.position != position or token.detail != identity:
            token = self._token = Token(self.store, 1, position, identity)
        return token

    def _check(self, token: Token) -> None:
        """Raises `SnapshotTooOldError` if the token's row is not in the feed."""
        found = self._execute("SELECT id FROM feed WHERE position = ?", (token.position,)).fetchone()
        if found is None or found[0] != token.detail:
            raise too_old(token.position)

    def head(self) -> Token:
        """A token of everything committed so far."""
        try:
            with self.lock:
                self._fresh()
                return self._token_of(*self._execute(HEAD).fetchone())
        except FAILURES as error:
            raise self.failed(error) from error

    def data_version(self) -> int:
        """A number that changes whenever another connection has committed."""
        try:
            with self.lock:
                self._fresh()
                return int(self._execute("PRAGMA data_version").fetchone()[0])
        except FAILURES as error:
            raise self.failed(error) from error

    def is_behind(self, since: Token) -> bool:
        """Whether something is newer than a token."""
        check_store(since, self.store)
        return self.head().position != since.position

    # -- entries -------------------------------------------------------------------------------------------------------
    def read(self, keys: Sequence[Key], at: Token | None) -> Reading:
        """See `Backend.read`."""
        try:
            with self.lock:
                self._fresh()
                if at is not None:
                    check_store(at, self.store)
                if len(keys) == 1:
                    shown = self._newest.shown(at)
                    if shown is not None:
                        return self._read_and_learn(keys[0], at, shown)
                    return self._read_newest(keys[0]) if at is None else self._read_one(keys[0], at)
                return self._read_many(keys, at)
        except FAILURES as error:
            raise self.failed(error) from error

    def _read_and_learn(self, key: Key, at: Token | None, shown: Shown) -> Reading:
        wanted = (bytearray(key),) * 3
        head, identity, *columns, before, behind = self._execute(READ_AROUND, wanted).fetchone()
        row: Row | None = None if columns[0] is None else (key, *columns)
        token = self._token_of(head, identity)
        if token == shown.token:
            shown.learn(key, row, before, behind)
        elif at is not None:
            return self._read_one(key, at)
        return Reading([entry_of(row)], token, self.now())

    def _read_newest(self, key: Key) -> Reading:
        head, identity, position, nonce, value, expires_at, trail = self._execute(
            READ_ONE, (bytearray(key),)
        ).fetchone()
        token = self._token
        if token.position != head or token.detail != identity:
            token = self._token_of(head, identity)
        entry = None
        if position is not None and (value is not None or trail != QUIET):
            entry = Entry((position, nonce & NONCE_MASK), value, expires_at or None)
        return Reading([entry], token, self.now())

    def _read_one(self, key: Key, at: Token) -> Reading:
        found = self._execute(READ_ONE_AT, (bytearray(key), at.position)).fetchone()
        if found is None or found[0] != at.detail:
            raise too_old(at.position)
        if found[1] is None:
            return Reading([None], at, self.now())
        row: Row = (key, *found[1:])
        if row[POSITION] <= at.position:
            return Reading([entry_of(row)], at, self.now())
        old = self._past.as_of(row, at.position)
        self._check(at)
        return Reading([entry_of(old)], at, self.now(), True)

    def _read_many(self, keys: Sequence[Key], at: Token | None) -> Reading:
        token, rows = self._look(keys, at)
        superseded = False
        for key, row in rows.items():
            if row[POSITION] > token.position:
                superseded = True
                rows[key] = self._past.as_of(row, token.position)  # type: ignore[assignment]
        if at is not None or superseded:
            self._check(token)
        return Reading([entry_of(rows.get(key)) for key in keys], token, self.now(), superseded)

    def _look(self, keys: Sequence[Key], at: Token | None) -> tuple[Token, dict[Key, Row]]:
        """The newest rows of keys, and the token: the feed's head in the same statement as the first of them."""
        rows: dict[Key, Row] = {}
        ends = find(self.connection, keys, rows, with_feed=at is None)
        return self._token_of(*ends[:2]) if at is None else at, rows

    def scan(self, span: Span, at: Token | None, limit: int, reverse: bool) -> Page:
        """See `Backend.scan`."""
        try:
            with self.lock:
                self._fresh()
                if at is not None:
                    check_store(at, self.store)
                token = self._token_of(*self._execute(HEAD).fetchone()) if at is None else at
                items, superseded = self._scan(span, token.position, limit, reverse)
                self._check(token)
                return Page(items[:limit], token, len(items) > limit, superseded)
        except FAILURES as error:
            raise self.failed(error) from error

    def _scan(self, span: Span, snapshot: int, limit: int, reverse: bool) -> tuple[list[tuple[Key, Entry]], bool]:
        start, stop = span
        statement = (
            f"SELECT {COLUMNS} FROM current WHERE key >= ? AND key < ?"
            " AND (position > ? OR (value IS NOT NULL AND listed = 1))"
            f" ORDER BY key {'DESC' if reverse else 'ASC'} LIMIT ?"
        )
        items: list[tuple[Key, Entry]] = []
        superseded = False
        while len(items) <= limit:
            wanted = limit + 1 - len(items)
            rows: list[Row] = self._execute(statement, (start, stop, snapshot, wanted)).fetchall()
            for row in rows:
                shown: Row | None = row
                if row[POSITION] > snapshot:
                    superseded = True
                    shown = self._past.as_of(row, snapshot)
                if shown is not None and shown[VALUE] is not None and shown[LISTED] == IN_ORDER:
                    items.append((shown[0], Entry((shown[1], shown[2] & NONCE_MASK), shown[3], shown[4] or None)))
            if len(rows) < wanted:
                break
            if reverse:
                stop = rows[-1][0]
            else:
                start = rows[-1][0] + b"\0"
        return items, superseded

    def history(self, key: Key, limit: int) -> list[tuple[Entry, Author | None]]:
        """See `Backend.history`."""
        try:
            with self.lock:
                self._fresh()
                return self._history(key, limit)
        except FAILURES as error:
            raise self.failed(error) from error

    def _history(self, key: Key, limit: int) -> list[tuple[Entry, Author | None]]:
        horizon = self._execute(HORIZON).fetchone()[0]
        row: Row | None = self._execute(f"SELECT {COLUMNS} FROM current WHERE key = ?", (key,)).fetchone()
        found: list[tuple[Entry, Author | None]] = []
        while row is not None and len(found) < limit:
            kept = self._execute("SELECT id, at, record FROM feed WHERE position = ?", (row[POSITION],)).fetchone()
            entry = entry_of(row)
            if entry is not None:
                found.append((entry, author_of(*kept) if kept else None))
            if not kept or row[POSITION] <= horizon or row[TRAIL] == QUIET:
                break
            row = records.image_of(key, records.decode(kept[2]))
        return found

    # -- judging -------------------------------------------------------------------------------------------------------
    def validate(self, request: CommitRequest) -> Reply:
        """Judge a request that writes nothing against one committed state. Raises as `Backend.commit` does."""
        try:
            with self.lock:
                self._fresh()
                try:
                    self._execute("BEGIN")
                    state = State(self.connection, self.store, self.now(), Known())
                    state.look_all(request)
                    state.admit(request)
                    state.judge(request, request.snapshot.position)
                finally:
                    self._fresh()
                token = self._token_of(state.head, state.head_id)
                version = (state.head, int.from_bytes(state.head_id[8:], "big"))
                return Reply(version, token, state.now, None, state.fetched(request))
        except FAILURES as error:
            raise self.failed(error) from error

    def check_spans(self, request: CommitRequest) -> int:
        """Judge a request's spans ahead of its commit, without a lock; the position up to which they hold.

        Raises `CommitRefused`, naming all else that does not hold either, `SnapshotTooOldError` and
        `DuplicateTransaction`."""
        try:
            with self.lock:
                self._fresh()
                try:
                    self._execute("BEGIN")
                    state = State(self.connection, self.store, self.now(), Known())
                    state.look(())
                    try:
                        state.admit(request)
                        if state.changed_spans(request.spans, request.snapshot.position):
                            state.look_all(request)
                            state.judge(request, request.snapshot.position)
                    except (CommitRefused, SnapshotTooOldError):
                        state.refuse_duplicate(request.transaction.to_bytes(16, "big"))
                        raise
                finally:
                    self._fresh()
                return state.head
        except FAILURES as error:
            raise self.failed(error) from error

    def _fresh(self) -> None:
        """End a transaction that an interrupt has left open: whoever reads in it would never see anything new."""
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    # -- the feed ------------------------------------------------------------------------------------------------------
    def changes(self, since: Token | None, limit: int) -> tuple[list[Change], Token]:
        """See `Backend.changes`."""
        try:
            with self.lock:
                self._fresh()
                if since is not None:
                    check_store(since, self.store)
                begin = self._token_of(*self._execute(HORIZON).fetchone()) if since is None else since
                found, cursor = self._changes(begin, limit)
                self._check(begin)
                return found, cursor
        except FAILURES as error:
            raise self.failed(error) from error

    def _changes(self, begin: Token, limit: int) -> tuple[list[Change], Token]:
        found: list[Change] = []
        cursor = begin
        while len(found) < limit:
            wanted = limit - len(found)
            rows: list[FeedRow] = self._execute(
                "SELECT position, id, at, record FROM feed WHERE position > ? ORDER BY position LIMIT ?",
                (cursor.position, wanted),
            ).fetchall()
            if rows:
                found += self._changes_of(rows, begin)
                cursor = Token(self.store, 1, rows[-1][0], rows[-1][1])
            if len(rows) < wanted:
                break
        return found, cursor

    def _changes_of(self, rows: Sequence[FeedRow], begin: Token) -> list[Change]:
        last = rows[-1][0]

        def newest(keys: list[Key]) -> dict[Key, Row | None]:
            _, found = self._look(keys, begin)
            return {key: self._past.as_of(row, last, for_feed=True) for key, row in found.items()}

        try:
            return records.changes(rows, self.store, newest)
        except ValueError as error:
            self._check(begin)
            raise BackendCorruptError(f"{self.path}: {error}") from None

    def outcome(self, transaction: TransactionId) -> tuple[Settled, Change | None]:
        """What is recorded about a transaction."""
        identity = transaction.to_bytes(16, "big")
        try:
            with self.lock:
                self._fresh()
                row = recorded(self.connection, identity)
                if row is not None:
                    if row[3] is None:
                        return Settled.FENCED, None
                    return Settled.COMMITTED, self._change_of(row)
                forgotten = self._execute("SELECT value FROM facts WHERE name = 'forgotten'").fetchone()
                if forgotten is not None and identity <= forgotten[0]:
                    return Settled.FORGOTTEN, None
                return Settled.UNSEEN, None
        except FAILURES as error:
            raise self.failed(error) from error

    def _change_of(self, row: FeedRow) -> Change | None:
        """The change of one feed row; None if it is compacted just now."""
        try:
            found = self._changes_of([row], Token(self.store, 1, row[0], row[1]))
        except SnapshotTooOldError:
            return None
        return found[0] if found else None
