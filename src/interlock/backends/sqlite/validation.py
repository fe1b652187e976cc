"""Whether a request holds against the newest state, as one connection sees it. Nothing here changes anything.

`State` is used twice. On a reader's connection it judges pure validations: nothing is written, so one consistent
look at the newest committed state is all that is needed, and no lock. In the writer it is the base of
`interlock.backends.sqlite.batch.Batch`, where the rows that were looked up are overlaid by what the batch has
decided so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from interlock.backends.sqlite import record as records
from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.outcomes import Outcomes, recorded
from interlock.backends.sqlite.statements import EXPIRES_AT, NONCE, POSITION, TRAIL, VALUE, Row, find
from interlock.backends.sqlite.trail import QUIET
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.model import (
    ABSENT,
    NONCE_MASK,
    UNCHANGED,
    Author,
    Clash,
    CommitRefused,
    CommitRequest,
    DuplicateTransaction,
    Entry,
    Expectation,
    Key,
    Settled,
    Span,
    Token,
)

_SHOWN_BYTES: Final = 1024
_SHORT_WALK: Final = 256


def entry_of(row: Row | None) -> Entry | None:
    """A row as the port shows it. What a quiet commit deleted has left nothing to see."""
    if row is None or (row[VALUE] is None and row[TRAIL] == QUIET):
        return None
    return Entry((row[POSITION], row[NONCE] & NONCE_MASK), row[VALUE], row[EXPIRES_AT] or None)


def too_old(position: int) -> SnapshotTooOldError:
    """The error for a snapshot or cursor that the store no longer keeps."""
    return SnapshotTooOldError(f"the store no longer keeps the snapshot at position {position}")


def collect(request: CommitRequest) -> set[Key]:
    """Every key that judging and performing a request looks at."""
    wanted = {*request.reads, *request.guards, *request.writes}
    wanted.update(request.fetch)
    return wanted


class Known:
    """What a writer remembers between batches, so as not to ask again."""

    __slots__ = ("forgotten", "forgotten_fence", "horizon", "ids", "outcomes")

    def __init__(self) -> None:
        self.ids: dict[int, bytes] = {}
        """Positions -> ids that were in the feed; one is still there if it is not below the horizon."""
        self.horizon = -1
        self.forgotten = self.forgotten_fence = b""
        """What compaction has forgotten when the horizon came there, see `compaction`."""
        self.outcomes = Outcomes()


class State:
    """The newest state: the rows that were looked up, and where the feed begins and ends."""

    def __init__(self, connection: Connection, store: int, now: float, known: Known) -> None:
        self.connection = connection
        self.store = store
        self.now = now
        self.known = known
        self.rows: dict[Key, Row] = {}
        self.head = -1
        self.head_id = b""
        self.horizon = 0

    def look(self, keys: Sequence[Key]) -> None:
        """Look up keys, and where the feed begins and ends."""
        ends = find(self.connection, keys, self.rows, with_feed=True)
        self.head, self.head_id, self.horizon = ends

    def look_all(self, request: CommitRequest) -> None:
        """Look up every key of a request."""
        self.look(list(collect(request)))

    def admit(self, request: CommitRequest) -> None:
        """Raises `UsageError` for a snapshot of another store, `SnapshotTooOldError` for one that is no longer
        kept."""
        token = request.snapshot
        check_store(token, self.store)
        position = token.position
        known = self.head_id if position == self.head else self.known.ids.get(position)
        if known is None:
            found = self.connection.execute("SELECT id FROM feed WHERE position = ?", (position,)).fetchone()
            known = found[0] if found else None
        if known != token.detail or position < self.horizon:
            raise too_old(position)

    def judge(self, request: CommitRequest, checked: int) -> None:
        """Raises `CommitRefused` naming everything that does not hold. Spans are known to hold up to ``checked``."""
        rows = self.rows
        holds = True
        for expectations in (request.reads, request.guards):
            for key, expected in expectations.items():
                row = rows.get(key)
                if row is None:
                    if expected is not ABSENT:
                        holds = False
                elif type(expected) is not tuple or (
                    row[POSITION] != expected[0] or row[NONCE] & NONCE_MASK != expected[1] or row[VALUE] is None
                ):
                    holds = False
        if not holds or request.spans or request.alive:
            self._judge_all(request, checked)

    def _judge_all(self, request: CommitRequest, checked: int) -> None:
        """The whole rule; `judge` recognises requests whose versions are all still the newest."""
        clashes: list[Clash] = []
        for expectations in (request.reads, request.guards):
            for key, expected in expectations.items():
                row = self.rows.get(key)
                expires_at = row[EXPIRES_AT] if row is not None and key in request.alive else 0
                expired = 0 < expires_at <= self.now
                if expired or not _holds(row, expected, request.snapshot.position):
                    clashes.append(self._clash(key, "write" if expected is UNCHANGED else "read"))
        clashes += self.changed_spans(request.spans, checked)
        if clashes:
            raise CommitRefused(tuple(clashes))

    def changed_spans(self, spans: Iterable[Span], checked: int) -> list[Clash]:
        """A clash for each span that has changed behind the position ``checked``."""
        clashes = []
        for span in spans:
            changed = self.changed_in(span, checked)
            if changed is not None:
                if changed not in self.rows:
                    self.look((changed,))
                clashes.append(self._clash(changed, "range", span))
        return clashes

    def changed_in(self, span: Span, checked: int) -> Key | None:
        """A key of the span that changed behind a position: by the feed or by the keys, whichever is shorter."""
        if self.head <= checked:
            return None
        start, stop = span
        if self.head - checked > _SHORT_WALK:
            found = self.connection.execute(
                "SELECT key FROM current WHERE key >= ? AND key < ? AND position > ? AND listed LIMIT 1",
                (start, stop, checked),
            ).fetchone()
            return found[0] if found else None
        walk = self.connection.execute("SELECT record FROM feed WHERE position > ? AND record IS NOT NULL", (checked,))
        for (raw,) in walk.fetchall():
            for key in records.listed_keys(records.decode(raw)):
                if start <= key < stop:
                    return key
        return None

    def author(self, position: int) -> Author | None:
        """Who committed what lies at a position, where the feed still tells."""
        found = self.connection.execute("SELECT id, at, record FROM feed WHERE position = ?", (position,)).fetchone()
        return author_of(*found) if found else None

    def settled(self, identity: bytes) -> Settled | None:
        """What is recorded about an id."""
        row = recorded(self.connection, identity)
        if row is None:
            return None
        return Settled.COMMITTED if row[3] is not None else Settled.FENCED

    def refuse_duplicate(self, identity: bytes) -> None:
        """Raises `DuplicateTransaction` if the id is recorded already."""
        settled = self.settled(identity)
        if settled is not None:
            raise DuplicateTransaction(committed=settled is Settled.COMMITTED)

    def fetched(self, request: CommitRequest) -> tuple[Entry | None, ...]:
        """The entries that the request wants to see, as they are now."""
        return tuple([entry_of(self.rows.get(key)) for key in request.fetch]) if request.fetch else ()

    def _clash(self, key: Key, kind: str, span: Span | None = None) -> Clash:
        entry = entry_of(self.rows.get(key))
        if entry is None:
            return Clash(key, kind, None, None, span)
        author = self.author(entry.version[0])
        if entry.value is not None and len(entry.value) > _SHOWN_BYTES:
            entry = Entry(entry.version, None, entry.expires_at)
        return Clash(key, kind, entry, author, span)


def _holds(row: Row | None, expected: Expectation, snapshot: int) -> bool:
    if expected is ABSENT:
        return row is None or row[VALUE] is None
    if expected is UNCHANGED:
        return row is None or row[POSITION] <= snapshot
    if row is None or row[VALUE] is None:
        return False
    return (row[POSITION], row[NONCE] & NONCE_MASK) == expected


def check_store(token: Token, store: int) -> None:
    """Raises `UsageError` for a token of another store."""
    if token.store != store or token.incarnation != 1:
        raise UsageError("the token belongs to another store")


def author_of(identity: bytes, at: float, raw: bytes | None) -> Author | None:
    """The author that a feed row names; None for a quiet commit's."""
    record = None if raw is None else records.decode(raw)
    if record is None or record.agent is None:
        return None
    return Author(int.from_bytes(identity, "big"), record.agent, at)
