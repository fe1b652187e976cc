"""Backends and clocks that get in the way: calls that are held, replies that are lost, time that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from interlock.errors import BackendUnavailableError, CommitUnknownError
from interlock.model import (
    Author,
    Change,
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
from interlock.ports import Backend, Runtime
from interlock.runtime import AsyncRuntime, BlockingRuntime
from interlock.testing.conformance.sessions.desk import Desk

T = TypeVar("T")


class Passing:
    """A backend before another one: passes everything on. Subclasses change `around`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.inner: Backend = desk.backend
        self.suspends = desk.awaited
        self.blocks = False
        self.capabilities = self.inner.capabilities
        self.limits = self.inner.limits

    async def around(self, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make the call of that name."""
        return await call()

    async def snapshot(self) -> Token:
        """See `interlock.ports.Backend`, as for the other methods."""
        return await self.around("snapshot", self.inner.snapshot)

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys."""
        return await self.around("read", lambda: self.inner.read(keys, at))

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Entries of a range."""
        return await self.around("scan", lambda: self.inner.scan(span, at, limit=limit, reverse=reverse))

    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply."""
        return await self.around("commit", lambda: self.inner.commit(request))

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction."""
        return await self.around("outcome", lambda: self.inner.outcome(transaction, fence=fence))

    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records."""
        return await self.around("changes", lambda: self.inner.changes(since, limit=limit))

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait for something newer."""
        return await self.around("wait", lambda: self.inner.wait(since, timeout_seconds, keys))

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key."""
        return await self.around("history", lambda: self.inner.history(key, limit=limit))

    async def now(self) -> float:
        """The engine's clock."""
        return await self.around("now", self.inner.now)

    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop what is old."""
        return await self.around("compact", lambda: self.inner.compact(before, limit=limit))

    async def close(self) -> None:
        """Close the inner one."""
        await self.inner.close()

    def blocking(self) -> Passing:
        """The world is the desk's already."""
        return self


class Held(Passing):
    """Holds the next call of a kind until it is told to go on."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.go_on()

    def hold(self, *names: str) -> None:
        """Hold the next call, or the next one of these names."""
        self._names = names
        self._reached, self._released, self._armed = self.desk.flag(), self.desk.flag(), True

    def go_on(self) -> None:
        """Let go whoever is held, and hold nobody any more."""
        if hasattr(self, "_released"):
            self._released.lift()
        self._armed = False

    async def reached(self) -> None:
        """Wait until somebody is held."""
        await self._reached.wait()

    async def around(self, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Hold it if it is the one."""
        if self._armed and (not self._names or name in self._names):
            self._armed = False
            self._reached.lift()
            await self._released.wait()
        return await call()


class Lossy(Passing):
    """Loses replies to commits, and refuses to answer, as it is told.

    ``lose`` is a list of what happens to the next commits: "landed" (done, and the reply lost), "lost" (never done, and
    nobody can tell), or "" (nothing). ``silent`` is how many of the next questions for an outcome go unanswered."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.lose: list[str] = []
        self.silent = 0
        self.asked: list[TransactionId] = []
        self.pure = False
        """Whether pure validations count as commits."""

    async def commit(self, request: CommitRequest) -> Reply:
        """Commit, perhaps, and answer, perhaps."""
        wanted = bool(request.writes or request.clears) or self.pure
        fate = self.lose.pop(0) if self.lose and wanted else ""
        reply = None if fate == "lost" else await self.inner.commit(request)
        if fate or reply is None:
            raise CommitUnknownError("the reply was lost", transaction_id=f"{request.transaction:032x}")
        return reply

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """Answer, perhaps."""
        self.asked.append(transaction)
        if self.silent:
            self.silent -= 1
            raise BackendUnavailableError("no answer")
        return await self.inner.outcome(transaction, fence=fence)


class Clock:
    """A runtime whose monotonic time stands still unless somebody moves it or sleeps; everything else is real."""

    def __init__(self, desk: Desk) -> None:
        self.inner: Runtime = AsyncRuntime() if desk.awaited else BlockingRuntime()
        self.suspends = desk.awaited
        self.seconds = 1000.0
        self.slept: list[float] = []
        self.time = self.inner.time
        self.random_bits = self.inner.random_bits
        self.waiter = self.inner.waiter

    def monotonic(self) -> float:
        """What the clock shows."""
        return self.seconds

    def uniform(self, low: float, high: float) -> float:
        """Always the most."""
        return high

    async def sleep(self, seconds: float) -> None:
        """Time passes at once."""
        self.slept.append(seconds)
        self.seconds += seconds
