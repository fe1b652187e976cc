"""The PostgreSQL backend as a port. A leaf is a driver and a runtime; what both do is here.

Every method is one statement, except where it says so. A token that a statement makes carries the epoch of the
connection that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from interlock.backends.postgresql import groups, reads, requests
from interlock.backends.postgresql import record as records
from interlock.backends.postgresql.failures import DuplicateId
from interlock.backends.postgresql.guesses import Guesses
from interlock.backends.postgresql.home import DURABILITIES, LOCKINGS, Driver, Home, Options, Row
from interlock.backends.postgresql.reads import check_horizon
from interlock.backends.postgresql.record import token_of, version
from interlock.backends.postgresql.requests import Answer
from interlock.backends.postgresql.scans import Wanted
from interlock.backends.postgresql.statements import ROWS_READ_BY_POSITION, quoted
from interlock.backends.postgresql.tokens import (
    NOTHING,
    Snapshot,
    advanced,
    clamped,
    contains,
    from_detail,
    parsed,
)
from interlock.backends.postgresql.waiting import News
from interlock.errors import UsageError
from interlock.model import (
    Author,
    Change,
    CommitRefused,
    CommitRequest,
    Delete,
    DuplicateTransaction,
    Entry,
    Expectation,
    Key,
    Limits,
    Page,
    Reading,
    Reply,
    Settled,
    Span,
    Token,
    TransactionId,
)
from interlock.ports import Capability, Runtime
from interlock.runtime import AsyncRuntime, BlockingRuntime

SHORTEST_SILENCE_SECONDS: Final = 1.0
"""How long a waiting caller's look at the store may take at least, however little time it has."""
SYSTEM_AGENT: Final = "interlock"
"""The agent in whose name expired entries are deleted."""


class PostgreSQLBackend:
    """A store in a schema of a PostgreSQL database (13 or newer); see `interlock.ports.Backend` for the methods.

    ``dsn`` is a ``postgresql://`` URL. Nothing is connected before the first use; the schema is then made if it is
    missing. ``connections`` is the most connections of each event loop (of the blocking leaf: in all).
    ``durability="fsync"`` refuses a server that acknowledges commits before they are on disk; "none" takes any.
    ``grace_seconds`` is how long a cancelled caller waits for the answer to a commit that was sent,
    ``connect_seconds`` how long for a new connection. ``locking="serializable"`` is for servers that have no advisory
    locks: the server's SERIALIZABLE then orders the commits. ``pooler=True`` is for a transaction pooler (pgbouncer)
    between here and the server. Raises `UsageError` for options that make no sense.
    """

    capabilities = frozenset(Capability) - {Capability.TOTAL_ORDER}
    limits = Limits()

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "interlock",
        connections: int = 10,
        durability: str = "fsync",
        grace_seconds: float = 5.0,
        connect_seconds: float = 10.0,
        locking: str = "advisory",
        pooler: bool = False,
        runtime: Runtime | None = None,
    ) -> None:
        quoted(schema)
        if type(dsn) is not str or not dsn.startswith(("postgresql://", "postgres://")):
            raise UsageError("dsn is a URL such as 'postgresql://user@host/database'")
        if durability not in DURABILITIES:
            raise UsageError(f"durability is one of {', '.join(DURABILITIES)}, not {durability!r}")
        if connections < 1 or not grace_seconds >= 0 or not connect_seconds > 0:
            raise UsageError("connections is at least 1, grace_seconds at least 0, connect_seconds more than 0")
        if locking not in LOCKINGS or (pooler and locking != "advisory"):
            raise UsageError(
                f"locking is one of {', '.join(LOCKINGS)}, behind a pooler only the first, not {locking!r}"
            )
        seconds = float(grace_seconds), float(connect_seconds)
        options = Options(dsn, schema, connections, durability, *seconds, locking, bool(pooler))
        self._join(options, AsyncRuntime() if runtime is None else runtime, News(options), [])

    def _join(self, options: Options, runtime: Runtime, news: News, family: list[PostgreSQLBackend]) -> None:
        self._options = options
        self._locking = options.locking == "advisory"
        self._runtime = runtime
        self._news = news
        self._family = family  # a backend and its blocking leaf: closed together
        family.append(self)
        self._closed = False
        self._last_time = 0.0
        self._guesses = Guesses()
        self._driver: Driver = _driver(options, suspends=runtime.suspends)
        self.suspends = runtime.suspends
        self.blocks = not runtime.suspends

    def __repr__(self) -> str:
        return f"PostgreSQLBackend(schema={self._options.schema!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._options, self.suspends)

    # -- reading -------------------------------------------------------------------------------------------------------
    async def snapshot(self) -> Token:
        """A token of everything committed so far."""
        (row,), home = await self._driver.fetch("head", ())
        return self._token(row, home)

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys as of a snapshot, or the newest."""
        if at is None:
            found = await self._driver.look(keys)
            return Reading(reads.newest(found), found.token, self._time(found.clock))
        shown = await self._driver.read_at(keys, at)
        return Reading(shown.entries, at, self._time(shown.clock), shown.superseded)

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Live, listed entries of a range in key order."""
        return await self._driver.scan(Wanted(span.start, span.stop, at, limit, reverse))

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key, newest first."""
        rows, _ = await self._driver.fetch("history", (key, limit))
        return [
            (
                Entry(version(position, nonce), value, expires_at),
                None if identity is None else Author(int.from_bytes(identity, "big"), agent, at),
            )
            for position, nonce, value, expires_at, identity, agent, at in rows
        ]

    async def now(self) -> float:
        """The server's clock. A commit never has an earlier time than the one before it."""
        (row,), _ = await self._driver.fetch("head", ())
        return self._time(row[2])

    # -- writing -------------------------------------------------------------------------------------------------------
    def commit(self, request: CommitRequest) -> Coroutine[Any, Any, Reply]:
        """Validate, then apply, atomically: one round trip. Merges of Decimals, sets and extremes may take more where
        other processes merge the same key."""
        return self.commit_telling(request, None)

    async def commit_telling(self, request: CommitRequest, tell: Callable[[Reply], object] | None) -> Reply:
        """See `interlock.ports.Telling`."""
        if self._closed:
            raise UsageError("this store is closed")
        token = request.snapshot
        if not request.writes and not request.clears:
            return await self._validate(request, from_detail(token.position, token.detail))
        job = groups.job(request, locking=self._locking)
        try:
            if job is None:
                reply = await self._commit_alone(request)
            else:
                job.tell = tell
                reply = await self._driver.commit(job)
        except DuplicateId:
            settled, _ = await self.outcome(request.transaction, fence=False)
            raise DuplicateTransaction(settled is Settled.COMMITTED) from None
        self._news.tell()
        return reply

    async def _commit_alone(self, request: CommitRequest) -> Reply:
        token = request.snapshot
        snapshot = from_detail(token.position, token.detail)
        locking = requests.lock_numbers(request) if self._locking else None
        record = None if request.quiet else records.encode(request)
        computed = self._guesses.compute(request)
        while True:
            wanted = requests.arguments(request, snapshot, computed, locking, record)
            rows, home = await self._driver.fetch("commit", wanted, at=token, commits=True, soft=not request.durable)
            answer = Answer(*rows[0])
            if answer.status != requests.STALE:
                break
            computed = requests.compute(request, answer)
        reply = requests.settled(request, answer, home)
        self._guesses.learn(request, answer, computed)
        return reply

    async def _validate(self, request: CommitRequest, snapshot: Snapshot) -> Reply:
        """Judge on one snapshot, without locks: nothing depends on what happens after it."""
        judged = requests.judged(request, requests.expectations(request))
        wanted = (snapshot.stop, list(snapshot.open), *judged, list(request.fetch) or None)
        (row,), home = await self._driver.fetch("validate", wanted, at=request.snapshot)
        check_horizon(snapshot, *row[:2])
        if row[6] is not None:
            raise requests.clashes(request, row[6:15])
        newest = (0, 0) if row[3] is None else (row[3], int.from_bytes(row[5][8:], "big"))
        fetched = requests.entries(row[15:19]) if request.fetch else ()
        return Reply(newest, self._token(row[2:], home), self._time(row[4]), None, fetched)

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction; with ``fence`` for good. Three statements where it committed."""
        identity = transaction.to_bytes(16, "big")
        ((state,),), _ = await self._driver.fetch("settle", (identity, fence))
        if state <= 0:
            return {0: Settled.FENCED, -1: Settled.UNSEEN, -2: Settled.FORGOTTEN}[state], None
        (head,), home = await self._driver.fetch("until", ())
        rows, _ = await self._driver.fetch("outcome", (identity,))
        horizon = Snapshot(head[3], tuple(head[4]))
        if not rows or horizon.shows(rows[0][0]):
            return Settled.COMMITTED, None
        cursor = advanced(horizon, clamped(parsed(head[0]), head[1]), rows[0][0], rows[0][ROWS_READ_BY_POSITION + 1])
        return Settled.COMMITTED, records.change(rows[0], token_of(home.store, home.epoch, cursor))

    # -- the feed ------------------------------------------------------------------------------------------------------
    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records behind a cursor, and the cursor behind the last of them. Two statements: one says how
        far, one gives what lies between."""
        (head,), home = await self._driver.fetch("until", (), at=since)
        until = clamped(parsed(head[0]), head[1])
        horizon = Snapshot(head[3], tuple(head[4]))
        start = horizon if since is None else from_detail(since.position, since.detail)
        found: list[Change] = []
        behind = start
        while True:
            wanted = (behind.stop, list(behind.open), until.stop, list(until.open), limit - len(found))
            rows, home = await self._driver.fetch("changes", wanted, at=since)
            if since is None and not contains(behind, *rows[0][-2:]) and not found:
                return await self.changes(None, limit=limit)
            check_horizon(behind, *rows[0][-2:])
            seen = [row for row in rows if row[0] is not None]
            for row in seen:
                behind = advanced(behind, until, row[0], row[ROWS_READ_BY_POSITION + 1])
                if row[ROWS_READ_BY_POSITION] == 1:
                    found.append(records.change(row, token_of(home.store, home.epoch, behind)))
            if len(found) == limit:
                return found, found[-1].token
            if len(seen) < wanted[-1]:
                break
        if since is not None and behind == start:
            return found, since
        return found, token_of(home.store, home.epoch, behind)

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait until something newer than ``since`` is committed by anybody: looked for at short intervals."""
        snapshot = from_detail(since.position, since.detail)
        deadline = self._runtime.monotonic() + timeout_seconds

        async def look() -> bool:
            if self._closed:
                raise UsageError("this store is closed")
            left = max(deadline - self._runtime.monotonic(), SHORTEST_SILENCE_SECONDS)
            seconds = min(left, self._options.connect_seconds)
            return bool(await self._driver.ask(seconds, "news", (snapshot.stop, list(snapshot.open)), at=since))

        return await self._news.wait(self._runtime, look, deadline)

    # -- keeping -------------------------------------------------------------------------------------------------------
    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop what is older than ``before``, and what has expired, in one small batch."""
        dropped = await self._expire(limit)
        (head,), _ = await self._driver.fetch("until", ())
        until = clamped(parsed(head[0]), head[1])
        horizon = Snapshot(head[3], tuple(head[4]))
        due, _ = await self._driver.fetch("due", (until.stop, list(until.open), limit))
        raised = horizon
        for position, at, rest in due:
            if at >= before:
                break
            raised = advanced(raised, until, position, rest)
        if raised == NOTHING:
            return dropped
        wanted = (horizon.stop, list(horizon.open), raised.stop, list(raised.open), limit)
        ((count,),), _ = await self._driver.fetch("compact", wanted)
        return dropped + int(count)

    async def _expire(self, limit: int) -> int:
        """Delete up to ``limit`` expired entries by an ordinary commit."""
        token = await self.snapshot()
        rows, _ = await self._driver.fetch("expired", (limit,))
        if not rows:
            return 0
        reads: dict[Key, Expectation] = {key: version(position, nonce) for key, position, nonce in rows}
        now = int(self._runtime.time() * 1000)
        request = CommitRequest(
            now << 80 | self._runtime.random_bits(80),
            SYSTEM_AGENT,
            "none",
            token,
            {},
            {key: Delete() for key in reads},
            reads,
            operation="compact",
        )
        try:
            await self.commit(request)
        except CommitRefused:  # somebody has just renewed one of them; the next call looks again
            return 0
        return len(reads)

    async def close(self) -> None:
        """Close the connections, those of the other leaf too, and refuse more. The store is on the server and stays."""
        if not self._closed:
            for member in self._family:
                member._closed = True
                if member is not self:
                    member._driver.cut()
            self._news.close()
            await self._driver.close()

    def blocking(self) -> PostgreSQLBackend:
        """The same store for callers that step."""
        if self._closed:
            raise UsageError("this store is closed")
        for member in self._family:
            if not member.suspends:
                return member
        leaf = PostgreSQLBackend.__new__(PostgreSQLBackend)
        leaf._join(self._options, BlockingRuntime(), self._news, self._family)
        return leaf

    def _token(self, row: Row, home: Home) -> Token:
        return token_of(home.store, home.epoch, clamped(parsed(row[0]), row[1]))

    def _time(self, seen: float) -> float:
        self._last_time = max(self._last_time, seen)
        return self._last_time


def _driver(options: Options, *, suspends: bool) -> Driver:
    """The driver of a leaf, imported only now: programs of one world need only one."""
    try:
        if suspends:
            from interlock.backends.postgresql.asynchronous import AsyncDriver

            return AsyncDriver(options)
        from interlock.backends.postgresql.blocking import BlockingDriver

        return BlockingDriver(options)
    except ImportError as error:
        raise UsageError(
            f"PostgreSQL needs drivers that are not installed ({error.name}): pip install 'interlock[postgresql]'"
        ) from None


def _rebuild(options: Options, suspends: bool) -> PostgreSQLBackend:
    backend = PostgreSQLBackend.__new__(PostgreSQLBackend)
    backend._join(options, AsyncRuntime() if suspends else BlockingRuntime(), News(options), [])
    return backend
