"""The SQLite backend as a port: one leaf for callers that suspend and one for callers that block, over the same
engine.

A leaf is an engine and a runtime. Reads run inline on the caller's thread (some microseconds), and what this process
has written last is read from its memory (see `interlock.backends.sqlite.newest`); a commit is handed
to the writer's thread and waited for as the runtime waits. The file is opened at first use, by the writer, so that
constructing a backend does no IO and opening never blocks an event loop.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from interlock.backends.sqlite.connection import Options, checked_path
from interlock.backends.sqlite.direct import Direct
from interlock.backends.sqlite.engine import Engine
from interlock.backends.sqlite.jobs import CommitJob, CompactJob, FenceJob
from interlock.backends.sqlite.reading import Reader
from interlock.errors import UsageError
from interlock.model import (
    Author,
    Change,
    CommitRequest,
    Entry,
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

_SYNCHRONOUS: Final = ("FULL", "NORMAL", "OFF")


class SQLiteBackend:
    """A store in one SQLite file, for many threads and processes of one machine; see `interlock.ports.Backend` for
        the methods.

    ``path`` is made if it is missing; its directory is not. ``busy_seconds`` is how long a commit waits for other
    processes before it gives up with `BackendUnavailableError`; ``grace_seconds`` how long an interrupted caller waits
    for the answer to a commit that has begun. ``synchronous="FULL"`` keeps what was acknowledged through a loss of
    power; "NORMAL" keeps it through the death of any process, and a loss of power may cost the last commits; "OFF" is
    for tests. ``runtime`` is how callers wait (default: by suspending on asyncio or trio). Raises `UsageError` for
    paths that cannot be shared, such as ``:memory:``.
    """

    capabilities: frozenset[Capability] = frozenset(Capability)
    limits = Limits()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_seconds: float = 5.0,
        grace_seconds: float = 5.0,
        synchronous: str = "FULL",
        runtime: Runtime | None = None,
    ) -> None:
        if not busy_seconds > 0 or not grace_seconds >= 0:
            raise UsageError("busy_seconds must be more than 0, grace_seconds at least 0")
        if synchronous not in _SYNCHRONOUS:
            raise UsageError(f"synchronous is one of {', '.join(_SYNCHRONOUS)}, not {synchronous!r}")
        runtime = AsyncRuntime() if runtime is None else runtime
        options = Options(float(busy_seconds), float(grace_seconds), synchronous)
        self._join(Engine(checked_path(path), options, runtime.random_bits), runtime)

    def _join(self, engine: Engine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime
        self.path = engine.path
        self.suspends = runtime.suspends
        self.blocks = not runtime.suspends

    def __repr__(self) -> str:
        return f"SQLiteBackend({self.path!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (self.path, self._engine.options, self.suspends)

    def direct(self) -> Direct | None:
        """The short way to what is in memory; None from a subclass, whose own methods it would pass by."""
        return Direct(self._engine, self._runtime) if type(self) is SQLiteBackend else None

    async def snapshot(self) -> Token:
        """A token of everything committed so far."""
        try:
            reader = self._engine.local.reader
        except AttributeError:
            reader = await self._engine.admit(self._runtime)
        return self._engine.newest.token() or reader.head()

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys as of a snapshot, or the newest."""
        try:
            reader = self._engine.local.reader
        except AttributeError:
            reader = await self._engine.admit(self._runtime)
        return self._engine.newest.read(keys, at) or reader.read(keys, at)

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Live, listed entries of a range in key order."""
        try:
            reader = self._engine.local.reader
        except AttributeError:
            reader = await self._engine.admit(self._runtime)
        return reader.scan(span, at, limit, reverse)

    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply, atomically. A request that writes nothing is judged on the caller's own thread."""
        checked = request.snapshot.position
        if request.spans or not (request.writes or request.clears):
            try:
                reader = self._engine.local.reader
            except AttributeError:
                reader = await self._engine.admit(self._runtime)
            if not (request.writes or request.clears):
                return reader.validate(request)
            checked = reader.check_spans(request)
        reply = self._engine.straight(request, checked, self._runtime)
        if reply is None:
            reply = await self._engine.submit(CommitJob(self._runtime.waiter(), request, checked))
        return reply

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction; with ``fence`` for good."""
        reader = await self._reader()
        settled, change = reader.outcome(transaction)
        if settled is Settled.UNSEEN and fence:
            settled = await self._engine.submit(FenceJob(self._runtime.waiter(), transaction))
            if settled is Settled.COMMITTED:
                return reader.outcome(transaction)
        return settled, change

    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records behind a cursor, and the cursor behind the last of them."""
        return (await self._reader()).changes(since, limit)

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait until something newer than ``since`` is committed, by any process; False when the time ran out."""
        reader = await self._reader()
        woken = await self._engine.news.wait(self._runtime, reader, since, timeout_seconds)
        self._engine.check()
        return woken

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key, newest first."""
        return (await self._reader()).history(key, limit)

    async def now(self) -> float:
        """Seconds since 1970 or later by the store's own clock, which no process and no change of the wall clock
        turns back."""
        await self._reader()
        return self._engine.now()

    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop what is older than ``before``, and what has expired, in one small batch."""
        await self._reader()
        dropped: int = await self._engine.submit(CompactJob(self._runtime.waiter(), before, limit))
        return dropped

    async def close(self) -> None:
        """Finish what was asked for and close the file, for every leaf of this store."""
        await self._engine.close(self._runtime)

    def blocking(self) -> SQLiteBackend:
        """The same store for callers that step; closing either closes both."""
        if not self.suspends:
            return self
        leaf = SQLiteBackend.__new__(SQLiteBackend)
        leaf._join(self._engine, BlockingRuntime())
        return leaf

    async def _reader(self) -> Reader:
        try:
            return self._engine.local.reader
        except AttributeError:
            return await self._engine.admit(self._runtime)


def _rebuild(path: str, options: Options, suspends: bool) -> SQLiteBackend:
    return SQLiteBackend(
        path,
        busy_seconds=options.busy_seconds,
        grace_seconds=options.grace_seconds,
        synchronous=options.synchronous,
        runtime=AsyncRuntime() if suspends else BlockingRuntime(),
    )
