"""The engine of the memory backend: a versioned store behind one lock.

Why no interleaving of threads breaks it. Every method holds the lock from its first look at the state to its last,
so that calls are serial, in the order in which they got it: a commit is judged and applied at one point. Positions
are handed out under the lock, one for each writing commit, so the order of positions is the order of commits. What a
call returns is immutable or its own. The only look without the lock is at ``token``, a single reference that is
replaced after everything that it covers is in place. Waiters are woken after the lock is released, so that nobody
wakes up to wait for it.

Why an exception out of nowhere breaks nothing (Ctrl-C runs its handler between any two steps of the main thread). A
commit first computes all that it will change, then notes that in ``pending``, then applies it. Applying twice is the
same as applying once, and whoever takes the lock next applies a pending commit before anything else. So no commit is
ever seen half: before the note nothing has happened, after it everything will have.

Why a snapshot never changes. A superseded entry goes to its key's chain and stays there while a snapshot at or above
the horizon may need it. Where a quiet commit kept nothing, or compaction has dropped something, reading from before
that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from interlock.backends.memory.compaction import compact
from interlock.backends.memory.judging import judge
from interlock.backends.memory.performing import fetched, perform
from interlock.backends.memory.plain import commit_plainly
from interlock.backends.memory.state import State
from interlock.errors import UsageError
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
from interlock.ports import Waiter
from interlock.runtime import wake_all


class Engine:
    """What `Backend` promises, as synchronous calls that never wait for anything but the lock."""

    def __init__(self, store: int, clock: Callable[[], float]) -> None:
        self.state = State(store, clock)

    def read(self, keys: Sequence[Key], at: Token | None) -> Reading:
        """Entries of several keys as of a snapshot, or the newest."""
        with self.state.lock:
            return self._read(keys, at)

    def _read(self, keys: Sequence[Key], at: Token | None) -> Reading:
        state = self.state
        if state.pending is not None:
            state.apply(*state.pending)
        get = state.current.get
        entries = [get(keys[0])] if len(keys) == 1 else [get(key) for key in keys]  # a comprehension is a call
        token = state.token
        if at is None or at is token:
            now = state.clock()
            if now < state.last_time:
                now = state.last_time
            else:
                state.last_time = now
            return Reading(entries, token, now)
        position = state.position_of(at)
        if position < token.position:
            for entry in entries:
                if state.torn if entry is None else entry.version[0] > position:
                    shown = [state.as_of(key, position) for key in keys]
                    superseded = any(old is not new for old, new in zip(shown, entries, strict=True))
                    return Reading(shown, at, state.time(), superseded)
        return Reading(entries, at, state.time())

    def scan(self, span: Span, at: Token | None, limit: int, reverse: bool) -> Page:
        """Live, listed entries of a range."""
        with self.state.lock:
            return self._scan(span, at, limit, reverse)

    def _scan(self, span: Span, at: Token | None, limit: int, reverse: bool) -> Page:
        state = self.state
        if state.pending is not None:
            state.apply(*state.pending)
        token = state.token if at is None else at
        position = state.position_of(token)
        get = state.current.get
        items: list[tuple[Key, Entry]] = []
        superseded = False
        for key in state.order.walk(span, reverse=reverse):
            newest = entry = get(key)
            if newest is None or newest.version[0] > position:
                entry = state.as_of(key, position)
                superseded = superseded or entry is not newest
            if entry is not None and entry.value is not None:
                if len(items) == limit:
                    return Page(items, token, True, superseded)
                items.append((key, entry))
        return Page(items, token, False, superseded)

    def history(self, key: Key, limit: int) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key, newest first."""
        with self.state.lock:
            return self._history(key, limit)

    def _history(self, key: Key, limit: int) -> list[tuple[Entry, Author | None]]:
        state = self.state
        if state.pending is not None:
            state.apply(*state.pending)
        newest = state.current.get(key)
        entries = [] if newest is None else [newest]
        entries += state.chains.get(key, [])[: -limit - 1 : -1]
        return [(entry, state.author(entry.version)) for entry in entries[:limit]]

    def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply."""
        state = self.state
        waiters: list[Waiter] = []
        try:
            with state.lock:
                if state.pending is not None:
                    state.apply(*state.pending)
                now = state.clock()
                if now < state.last_time:
                    now = state.last_time
                else:
                    state.last_time = now
                reply = commit_plainly(state, request, now)
                if reply is not None and not state.waiters:
                    return reply
                if reply is None:
                    tombstones = judge(state, request, now)
                    if not request.writes and not request.clears:
                        return Reply(state.version, state.token, now, None, fetched(state, request))
                    reply = perform(state, request, now, tombstones)
                waiters = list(state.waiters)
        finally:
            if waiters:
                wake_all(waiters)
        return reply

    def changes(self, since: Token | None, limit: int) -> tuple[list[Change], Token]:
        """The next feed records."""
        with self.state.lock:
            return self._changes(since, limit)

    def _changes(self, since: Token | None, limit: int) -> tuple[list[Change], Token]:
        state = self.state
        if state.pending is not None:
            state.apply(*state.pending)
        position = state.horizon if since is None else state.position_of(since)
        found: list[Change] = []
        for place in range(position + 1, state.token.position + 1):
            record = state.log[place]
            change = record.change()
            if change is not None:
                found.append(change)
                if len(found) == limit:
                    return found, record.token
        return found, state.token

    def outcome(self, transaction: TransactionId, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction."""
        state = self.state
        with state.lock:
            if state.pending is not None:
                state.apply(*state.pending)
            record = state.record_of(transaction)
            if record is not None:
                return Settled.COMMITTED, record.change()
            if transaction in state.fences:
                return Settled.FENCED, None
            if transaction <= state.forgotten:
                return Settled.FORGOTTEN, None
            if not fence:
                return Settled.UNSEEN, None
            state.fences[transaction] = state.time()
            return Settled.FENCED, None

    def time(self) -> float:
        """The engine's clock."""
        with self.state.lock:
            return self.state.time()

    def compact(self, before: float, limit: int, random_bits: Callable[[int], int]) -> int:
        """Drop what is old, in one small batch."""
        state = self.state
        waiters: list[Waiter] = []
        try:
            with state.lock:
                if state.pending is not None:
                    state.apply(*state.pending)
                position = state.token.position
                dropped = compact(state, before, limit, random_bits)
                if state.token.position > position:
                    waiters = list(state.waiters)
        finally:
            wake_all(waiters)
        return dropped

    def enlist(self, waiter: Waiter, since: Token) -> bool:
        """Have a waiter woken by the next commit; False if something newer than ``since`` is there already."""
        state = self.state
        with state.lock:
            if state.pending is not None:
                state.apply(*state.pending)
            if since.store != state.token.store or since.position > state.token.position:
                raise UsageError("the token belongs to another store")
            if since.position < state.token.position:
                return False
            state.waiters[waiter] = None
            return True

    def dismiss(self, waiter: Waiter) -> None:
        """Forget a waiter whose caller goes on. Nobody else does, so that a wake-up which was interrupted is made up
        for by the next commit."""
        with self.state.lock:
            self.state.waiters.pop(waiter, None)
