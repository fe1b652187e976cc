"""The memory backend as a port: who may call it, waiting, closing, named stores and forks.

A store without a name belongs to its backend object and to the leaves made of it by `MemoryBackend.blocking`. A named
one (``memory://name``) is shared by everybody in the process who opens that name, and lives as long as the process,
as an in-memory database server would: closing one backend object makes that object refuse, and harms neither the data
nor anybody else.

No call suspends or starts a task, and none waits for anything but the engine's lock, which is held for microseconds.
The one exception is `MemoryBackend.wait`, which waits as its runtime does: by suspending, or in the leaf for stepped
callers by blocking.

A forked child has a copy of the parent's memory that nobody else sees, perhaps copied in the middle of a commit.
Using that as if it were shared would be a silent mistake, so every backend object that was made before a fork refuses
in the child.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from interlock.backends.memory.direct import Direct
from interlock.backends.memory.engine import Engine
from interlock.errors import UnsupportedError, UsageError
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
from interlock.ports import Capability, Runtime, Waiter
from interlock.runtime import AsyncRuntime, BlockingRuntime

_CLOSED: Final = "this store is closed"
_FORKED: Final = (
    "this memory store was opened before os.fork() and is not shared with the parent; open one in the child"
)


class _Process:
    """What all memory stores of one process share: the named engines, and who must be told of a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.named: dict[str, Engine] = {}
        self.backends: weakref.WeakSet[MemoryBackend] = weakref.WeakSet()

    def engine(self, name: str | None, runtime: Runtime, clock: Callable[[], float] | None) -> Engine:
        """The engine of that name, made if there is none; a new one without a name."""
        if name is None:
            return Engine(runtime.random_bits(64), clock or time.time)
        with self.lock:
            engine = self.named.get(name)
            if engine is None:
                engine = self.named[name] = Engine(runtime.random_bits(64), clock or time.time)
            elif clock is not None and clock is not engine.state.clock:
                raise UsageError(f"the memory store {name!r} is open already, with another clock")
            return engine

    def forked(self) -> None:
        """In the child: every store made so far refuses from now on."""
        for backend in list(self.backends):
            backend.refuse(_FORKED)
        self.lock = threading.Lock()
        self.named = {}


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)


class MemoryBackend:
    """A store in the memory of this process; see `interlock.ports.Backend` for the methods.

    ``name`` shares it with everybody in the process who gives the same name. ``runtime`` is how `wait` waits
    (default: by suspending on asyncio or trio). ``clock`` gives seconds since 1970 and is for tests; the engine never
    lets it run backwards.
    """

    suspends = False
    blocks = False
    capabilities: frozenset[Capability] = frozenset(
        (Capability.CLOCK, Capability.EXPIRY, Capability.HISTORY, Capability.TOTAL_ORDER)
    )
    limits = Limits()

    def __init__(
        self, name: str | None = None, *, runtime: Runtime | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._runtime: Runtime = AsyncRuntime() if runtime is None else runtime
        self._join(name, _process.engine(name, self._runtime, clock), [])

    def _join(self, name: str | None, engine: Engine, family: list[MemoryBackend]) -> None:
        self.name = name
        self._engine = engine
        self._family = family  # a backend and its blocking leaves: closed together
        family.append(self)
        self._waiting: set[Waiter] = set()
        self._refusal: str | None = None
        self._direct = Direct(engine.state)
        _process.backends.add(self)

    def __repr__(self) -> str:
        return f"MemoryBackend({'' if self.name is None else repr(self.name)})"

    def __reduce__(self) -> Any:
        raise UnsupportedError("a memory store belongs to one process", capability=Capability.PROCESSES.value)

    def refuse(self, reason: str) -> None:
        """Make every later call a `UsageError` that says why; the first reason stays."""
        if self._refusal is None:
            self._refusal = self._direct.refusal = reason

    def direct(self) -> Direct | None:
        """The short way into the store; None from a subclass, whose own methods it would pass by."""
        return self._direct if type(self) is MemoryBackend else None

    async def snapshot(self) -> Token:
        """A token of everything committed so far."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.state.token

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys as of a snapshot, or the newest."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.read(keys, at)

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Live, listed entries of a range in key order."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.scan(span, at, limit, reverse)

    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply, atomically."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.commit(request)

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.outcome(transaction, fence)

    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records behind a cursor, and the cursor behind the last of them."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.changes(since, limit)

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait until something newer than ``since`` is committed; False when the time ran out."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        waiter = self._runtime.waiter()
        if not self._engine.enlist(waiter, since):
            return True
        self._waiting.add(waiter)
        try:
            woken = await waiter.wait(timeout_seconds)
        finally:
            self._waiting.discard(waiter)
            self._engine.dismiss(waiter)
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return woken

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key, newest first."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.history(key, limit)

    async def now(self) -> float:
        """Seconds since 1970 by the engine's clock, which never runs backwards."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.time()

    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop what is older than ``before``, and what has expired, in one small batch."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        return self._engine.compact(before, limit, self._runtime.random_bits)

    async def close(self) -> None:
        """Make this object and its leaves refuse; whoever waits through them is woken. The data goes when nobody can
        reach it any more."""
        for member in self._family:
            member.refuse(_CLOSED)
            for waiter in list(member._waiting):
                waiter.wake()

    def blocking(self) -> MemoryBackend:
        """The same store for callers that step."""
        if self._refusal is not None:
            raise UsageError(self._refusal)
        leaf = MemoryBackend.__new__(MemoryBackend)
        leaf._runtime = BlockingRuntime()
        leaf._join(self.name, self._engine, self._family)
        return leaf
