"""The ports: everything that the core asks of the outside world. Read this first.

Two protocols. `Backend` is an ordered, versioned key-value engine with ONE atomic conditional write; all IO lives
behind it. `Runtime` is how this world waits: asynchronous programs suspend, synchronous ones block. The core and all
layers are written once as ``async def`` and await nothing but these two, so that the same code is awaited on an event
loop or stepped to its end by one ``send(None)`` in plain synchronous code (`interlock.sync`).

What a backend must keep, whoever calls it from however many threads, loops and processes:

1. A commit is judged and applied at one point. Every expectation is checked against the newest committed state, and no
   other commit can come between the check and the application.
2. Commits that touch each other have one order, and versions of a key grow along it. A commit that returned is in every
   snapshot taken after it returned.
3. A snapshot never changes: the same read at the same token gives the same answer, or `SnapshotTooOldError`.
4. The feed holds each committed transaction once, after all that it depends on.
5. What is refused has written nothing; what is acknowledged is kept, as far as the backend's documentation says.

A backend knows keys, versions and expiring entries. It does not know resources, sessions, leases or sagas.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

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
    Write,
)


class Capability(enum.Enum):
    """What a backend may or may not offer. Using an undeclared one raises `UnsupportedError` naming it."""

    CLOCK = "clock"
    """`now()` gives the engine's own time."""
    EXPIRY = "expiry"
    """``Put(ttl_seconds=...)`` is honoured."""
    HISTORY = "history"
    """`history()` lists the versions of one key."""
    PROCESSES = "processes"
    """Several processes can share the store; it can be pickled as its URL."""
    DURABLE = "durable"
    """Acknowledged commits survive the death of every process that uses the store."""
    TOTAL_ORDER = "total_order"
    """The feed has one order, whoever reads it from wherever. Without it, commits that overlapped and do not depend on
    each other may come in another order to another reader; each still comes once, behind all that it depends on."""


@runtime_checkable
class Waiter(Protocol):
    """One waiting caller; made by its runtime, woken by anybody."""

    def wake(self) -> None:
        """Let the caller go on. From any thread; never blocks; more than once has no further effect."""

    async def wait(self, timeout_seconds: float | None = None, *, shielded: bool = False) -> bool:
        """Wait to be woken; False when the time ran out first. May be called again after that, or after a cancellation.

        ``shielded``: neither a cancellation that has already reached the caller nor further ones end this wait."""

    async def wait_out(self) -> None:
        """Wait to be woken even if the caller is cancelled or interrupted meanwhile, which is raised only then: for
        work that has begun elsewhere and cannot be taken back."""


class Job(Protocol):
    """Work that goes on in the background; made by `Runtime.spawn`."""

    def alive(self) -> bool:
        """Whether it still goes on, or will. False once it has ended, and when whatever ran it is gone: its event loop
        is closed, or this is a forked child."""

    def cancel(self) -> None:
        """Ask it to end, from any thread; never blocks. A task is cancelled; a thread ends by itself only, so work
        that may run in one looks for a sign of its own."""


class Canceller(Protocol):
    """Cancels the body of one ``async with`` from outside; made by `Runtime.canceller`."""

    def enter(self) -> None:
        """At the beginning of the body, in its task."""

    def cancel(self) -> None:
        """Cancel the body, from any thread. No effect once it has ended."""

    def leave(self, error: BaseException | None) -> bool:
        """At the end of the body. True if ``error`` is nothing but this cancellation, which is over then."""


@runtime_checkable
class Runtime(Protocol):
    """How this world waits, and where its time and randomness come from."""

    suspends: bool
    """True: waiting suspends the coroutine (an event loop is needed). False: waiting blocks the thread."""

    def monotonic(self) -> float:
        """Seconds that only grow; for deadlines and back-off."""

    def time(self) -> float:
        """Wall-clock seconds since 1970; only for what people read and for ordering ids roughly."""

    def random_bits(self, count: int) -> int:
        """An integer of ``count`` random bits, different in every process and forked child."""

    def uniform(self, low: float, high: float) -> float:
        """A random number between ``low`` and ``high``."""

    def shield(self) -> contextlib.AbstractContextManager[object]:
        """While it is entered, what is awaited is not ended again by a cancellation that was raised before: for putting
        things in order on the way out. (Where each cancellation is raised once, it does nothing.)"""

    async def sleep(self, seconds: float) -> None:
        """Wait. A blocking runtime waits in slices, so that Ctrl-C is prompt."""

    def waiter(self) -> Waiter:
        """A new waiter for the calling task or thread."""

    def wake_all(self, waiters: Iterable[Waiter]) -> None:
        """Wake many of this world's waiters, which may be cheaper than one after another."""

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Job:
        """Start work in the background, in a context of its own: a task of the running event loop, or a daemon thread.
        It never keeps a loop or the interpreter from ending. ``work`` catches its own errors."""

    def blocking(self) -> Runtime:
        """The runtime of a thread that goes on where no event loop does; perhaps itself."""

    def canceller(self) -> Canceller | None:
        """Something to cancel the calling task's body with; None where waiting blocks a thread, which nobody can
        cancel."""


class Backend(Protocol):
    """An ordered, versioned key-value engine. All methods raise `UsageError` once it is closed."""

    suspends: bool
    """Whether its coroutines may suspend. One that never does can be stepped by synchronous callers. (`wait` alone
    always waits as the backend's runtime does; whoever steps takes the leaf that `blocking` gives.)"""
    blocks: bool
    """Whether its coroutines may block their thread for longer than a short local read."""
    capabilities: frozenset[Capability]
    limits: Limits

    async def snapshot(self) -> Token:
        """A token of everything committed so far. Holds no connection and no open transaction."""

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys as of a snapshot, or the newest together with their token.

        Raises `SnapshotTooOldError` if ``at`` lies below the horizon, `UsageError` if it is another store's."""

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Live, listed entries of a range in key order, at most ``limit``. Raises as `read` does."""

    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply, atomically. A request that writes nothing is a pure validation.

        Raises `CommitRefused`, `BoundBroken`, `MergeRefused` or `DuplicateTransaction` (nothing written),
        `SnapshotTooOldError` (the request's snapshot is below the horizon, nothing written), `BackendUnavailableError`
        (nothing written) or `CommitUnknownError` (nobody can tell)."""

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction; the feed record where it committed and is still kept.

        With ``fence`` an id without a trace is recorded as FENCED, so that it can never commit after the answer."""

    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records behind ``since`` (None: from the oldest kept), and the cursor behind the last of them.

        The cursor also moves past commits that left no record. Raises `SnapshotTooOldError` if something behind
        ``since`` is no longer kept."""

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Returns True soon after something newer than ``since`` was committed by anyone in any process, False when the
        time ran out. ``keys`` is a hint which keys matter; waking for others is allowed."""

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key, newest first, tombstones included, each with its author where that is known."""

    async def now(self) -> float:
        """The engine's clock in seconds. It never runs backwards, not for any process that uses the store."""

    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop superseded versions and feed records older than ``before`` (engine's seconds), and entries that have
        expired (as ordinary deletes). At most about ``limit`` feed records; returns how many things were dropped.
        Snapshots that lie below what was dropped get `SnapshotTooOldError` from then on."""

    async def close(self) -> None:
        """Release everything. May be called again. Nothing acknowledged is lost."""

    def blocking(self) -> Backend:
        """The same store for callers that step: a backend with ``suspends`` False, perhaps itself. Closing either
        closes both. (Itself with ``suspends`` True: there is none, see `interlock.backends.bridges.Bridged`.)"""


class Direct(Protocol):
    """A short way into a backend whose calls are nothing but a little computing, as plain functions: a coroutine for
    each call would cost as much as the call.

    A backend that has one gives it out by a method ``direct()`` of its class, which may say None; `direct_way` asks for
    it. Its methods may say None at any time, and have done nothing then; the caller goes by `Backend.read` and
    `Backend.commit`, which alone say what was wrong. So nothing but time depends on this."""

    puts: bool
    """Whether `put` ever does anything; False where every commit has to wait."""
    sends: bool
    """Whether `send` ever does anything."""
    lock: contextlib.AbstractContextManager[object]
    """What the caller of `put` holds meanwhile, and as briefly as that. It is not held within `put`, because a function
    for that alone would be a call more in every commit."""

    def look(self, key: Key, at: Token | None) -> tuple[Entry | None, Token] | None:
        """What `Backend.read` finds under one key, and the token, if the entry is the newest of all."""

    def put(
        self,
        transaction: TransactionId,
        fresh: bool,
        agent: str,
        isolation: str,
        snapshot: Token,
        reads: Mapping[Key, Entry | None],
        writes: Mapping[Key, Write],
        absent: Iterable[Key],
        operation: str | None,
        run_id: str | None,
        attempt: int,
    ) -> Reply | None:
        """What `Backend.commit` does with a request that writes something, expects what was read to be as it was found
        here, and the keys ``absent`` to be absent. ``fresh``: the id was made for this call, so that it cannot have
        come before. The caller holds `lock`, and has read something by `look`, which says so if this process may not.

        Two calls with the very same ``absent`` mean the same keys, which the backend may use."""

    def send(self, request: CommitRequest) -> Reply | None:
        """`Backend.commit` of a quiet request, where that waits for nobody; raises what that raises."""


class Telling(Protocol):
    """A way to commit that says so before it returns: between the answer and the caller's next step lie a turn of the
    event loop and all that the caller does then, and somebody may be waiting for no more than the answer.

    A backend that has one has a method ``commit_telling`` of its class. ``tell`` is called with the reply of a commit
    that was done, on the caller's event loop, at most once, perhaps never, and perhaps after the caller was cancelled;
    it does not wait and does not raise. All else is as `Backend.commit` says."""

    def __call__(self, request: CommitRequest, tell: Callable[[Reply], object]) -> Coroutine[Any, Any, Reply]:
        """Commit."""


def telling_way(backend: Backend) -> Telling | None:
    """The telling commit of a backend, if its class has one of its own: a subclass may do something else to commits."""
    way: Telling | None = getattr(backend, "commit_telling", None)
    return way if "commit_telling" in vars(type(backend)) else None


def direct_way(backend: Backend) -> Direct | None:
    """The short way into a backend, if its class has one. What only passes calls on (a proxy) has none."""
    way: Callable[[Backend], Direct | None] | None = getattr(type(backend), "direct", None)
    return None if way is None else way(backend)
