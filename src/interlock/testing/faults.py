"""What goes wrong between a program and its store, made to happen when a test wants it.

`FaultyBackend` wraps a real backend and hands every call on; a commit that writes is first offered to the faults that
are set at the moment. A fault does what reality does, as far as that is possible: a lost race is a real commit by
somebody else, a lost reply is the reply of a commit that really landed. So what a test sees (the error's facts, the
feed, the history) is what it would see in production.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import interlock
from interlock import codec, keys, sync
from interlock.errors import BackendCorruptError, CommitUnknownError, UsageError
from interlock.keys import UserKey
from interlock.model import (
    ABSENT,
    Author,
    Change,
    Clash,
    CommitRefused,
    CommitRequest,
    Delete,
    Entry,
    Expectation,
    Key,
    Page,
    Put,
    Reading,
    Reply,
    Settled,
    Span,
    Token,
    TransactionId,
    Version,
    Write,
)
from interlock.ports import Backend

RIVAL: Final = "rival"
"""The agent that wins the races of `conflicts`."""
RIVAL_OPERATION: Final = "interlock.testing.conflicts"
_TRIES: Final = 100


class Fault(Protocol):
    """Something that may happen to a commit."""

    def claim(self, request: CommitRequest) -> bool:
        """Whether it happens to this one; counts it."""

    async def meet(self, backend: Backend, request: CommitRequest) -> Reply:
        """Let it happen: what the caller gets instead of ``backend.commit(request)``."""


class FaultyBackend:
    """A backend that hands everything on to ``inner``, and commits first to the ``faults`` that are set.

    ``leaf`` is what stands under `blocking`; default: the leaf of ``inner``. Both share their faults."""

    def __init__(self, inner: Backend, *, leaf: Backend | None = None, faults: list[Fault] | None = None) -> None:
        self.inner = inner
        self.faults: list[Fault] = [] if faults is None else faults
        self.suspends = inner.suspends
        self.blocks = inner.blocks
        self.capabilities = inner.capabilities
        self.limits = inner.limits
        self._leaf = leaf

    def __repr__(self) -> str:
        return f"FaultyBackend({self.inner!r})"

    async def snapshot(self) -> Token:
        """See `interlock.ports.Backend`, as for the other methods."""
        return await self.inner.snapshot()

    async def read(self, keys: Sequence[Key], at: Token | None = None) -> Reading:
        """Entries of several keys."""
        return await self.inner.read(keys, at)

    async def scan(self, span: Span, at: Token | None = None, *, limit: int = 1000, reverse: bool = False) -> Page:
        """Entries of a range."""
        return await self.inner.scan(span, at, limit=limit, reverse=reverse)

    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply; unless a fault claims it."""
        if request.writes or request.clears:
            for fault in tuple(self.faults):
                if fault.claim(request):
                    return await fault.meet(self.inner, request)
        return await self.inner.commit(request)

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction."""
        return await self.inner.outcome(transaction, fence=fence)

    async def changes(self, since: Token | None, *, limit: int = 1000) -> tuple[list[Change], Token]:
        """The next feed records."""
        return await self.inner.changes(since, limit=limit)

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """Wait for something newer."""
        return await self.inner.wait(since, timeout_seconds, keys)

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """The kept versions of a key."""
        return await self.inner.history(key, limit=limit)

    async def now(self) -> float:
        """The engine's clock."""
        return await self.inner.now()

    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop what is old."""
        return await self.inner.compact(before, limit=limit)

    async def close(self) -> None:
        """Close the inner backend."""
        await self.inner.close()

    def blocking(self) -> FaultyBackend:
        """The same engine, with the same faults, for callers that step."""
        return FaultyBackend(self.inner.blocking() if self._leaf is None else self._leaf, faults=self.faults)


class Faults:
    """What `conflicts` and `lost_replies` give: how often it has happened, and to whom."""

    def __init__(self, times: int | None) -> None:
        if times is not None and (type(times) is not int or times < 1):
            raise UsageError(f"times is a whole number from 1, or None for every commit, not {times!r}")
        self.left = times
        """How often it is still to happen; None: at every commit."""
        self.transaction_ids: list[str] = []
        """The transactions that it happened to, in this order."""
        self._lock = threading.Lock()

    def claim(self, request: CommitRequest) -> bool:
        """Whether it happens to this commit; counts it."""
        if not self.concerns(request):
            return False
        with self._lock:
            if self.left == 0:
                return False
            if self.left is not None:
                self.left -= 1
            self.transaction_ids.append(f"{request.transaction:032x}")
            return True

    def give_back(self, request: CommitRequest) -> None:
        """It did not happen to this commit after all."""
        with self._lock:
            if self.left is not None:
                self.left += 1
            self.transaction_ids.remove(f"{request.transaction:032x}")

    def concerns(self, request: CommitRequest) -> bool:
        """Whether it can happen to this commit."""
        return True


class LostReplies(Faults):
    """The reply to a commit is lost: after it has landed, or before it got there."""

    def __init__(self, times: int | None, *, landed: bool) -> None:
        super().__init__(times)
        self._landed = landed

    async def meet(self, backend: Backend, request: CommitRequest) -> Reply:
        """Commit, and forget the answer. What is refused is refused, and does not count."""
        if self._landed:
            try:
                await backend.commit(request)
            except BaseException:
                self.give_back(request)
                raise
        raise CommitUnknownError(
            "the reply to the commit was lost (a fault set by a test)", transaction_id=f"{request.transaction:032x}"
        )


class Races(Faults):
    """Somebody else commits first."""

    def __init__(self, times: int | None, key: UserKey | None) -> None:
        super().__init__(times)
        if key is not None:
            keys.encode(key)
        self._key = key

    def concerns(self, request: CommitRequest) -> bool:
        """Only commits that can conflict, and that read or write the key that was named."""
        return request.isolation != "none" and (
            any(self._wanted(key) for key in (*request.reads, *request.writes))
            or (self._key is None and bool(request.spans or request.clears))
        )

    def _wanted(self, key: Key) -> bool:
        place = keys.split(key)
        return place is not None and (self._key is None or place[1] == self._key)

    async def meet(self, backend: Backend, request: CommitRequest) -> Reply:
        """Commit something that the request cannot live with, then the request; take back what was made for it."""
        key = await self._target(backend, request)
        if key is None:
            raise CommitRefused((await self._made_up(backend, request),))
        made = await _change(backend, request, key)
        try:
            return await backend.commit(request)
        finally:
            if made is not None:
                await _take_back(backend, request, key, made)

    async def _target(self, backend: Backend, request: CommitRequest) -> Key | None:
        """The key that the rival changes: one that was read, with a value if there is one; else one in a range."""
        read = [key for key in request.reads if self._wanted(key)]
        if read:
            entries = (await backend.read(read)).entries
            live = (key for key, entry in zip(read, entries, strict=True) if entry is not None and entry.value)
            return next(live, read[0])
        for span in request.spans if self._key is None else ():
            page = await backend.scan(span, limit=1)
            if page.items:
                return page.items[0][0]
            return _key_in(span)
        return None

    async def _made_up(self, backend: Backend, request: CommitRequest) -> Clash:
        """Where nothing was read there is nothing to change: a refusal that no engine would give."""
        written = [key for key in request.writes if self._wanted(key)]
        key = written[0] if written else _key_in(request.clears[0])
        return Clash(key, "write", (await backend.read((key,))).entries[0])


def _key_in(span: Span) -> Key:
    """A key that a range could hold: where it begins, or just behind."""
    for tail in (b"", b"\0", keys.encode(RIVAL)):
        try:
            keys.split(span.start + tail)
        except BackendCorruptError:
            continue
        return span.start + tail
    raise AssertionError(f"no key fits into {span}")


async def _change(backend: Backend, request: CommitRequest, key: Key) -> Version | None:
    """Write a key's own value once more, which is a new version; the version where there was no value before."""
    for _ in range(_TRIES):
        reading = await backend.read((key,))
        entry = reading.entries[0]
        expected: Expectation = ABSENT
        put = _value_for(request, key)
        if entry is not None and entry.value is not None:
            expected, put = entry.version, Put(entry.value)
        try:
            reply = await backend.commit(_rival(request, reading.token, {key: expected}, {key: put}))
        except CommitRefused:  # somebody else was faster; look again
            continue
        return reply.version if expected is ABSENT else None
    raise AssertionError(f"no race could be lost: others changed {key!r} {_TRIES} times meanwhile")


def _value_for(request: CommitRequest, key: Key) -> Put:
    """A value for a key that has none: what the request itself would write, so that it is of the right type."""
    write = request.writes.get(key)
    return Put(write.value) if isinstance(write, Put) else Put(codec.freeze(None))


async def _take_back(backend: Backend, request: CommitRequest, key: Key, version: Version) -> None:
    try:
        await backend.commit(_rival(request, await backend.snapshot(), {key: version}, {key: Delete()}))
    except CommitRefused:  # it belongs to somebody else by now
        pass


def _rival(
    request: CommitRequest, snapshot: Token, reads: dict[Key, Expectation], writes: dict[Key, Write]
) -> CommitRequest:
    """A commit of the rival. Its id follows from the request's, so that a test replays, and is of the same time."""
    seed = b"%d %d" % (request.transaction, snapshot.position)
    low = int.from_bytes(hashlib.blake2b(seed, digest_size=10).digest(), "big")
    transaction = (request.transaction >> 80 << 80) | low
    return CommitRequest(transaction, RIVAL, "serializable", snapshot, reads, writes, {}, operation=RIVAL_OPERATION)


@contextmanager
def conflicts(
    store: interlock.Store | sync.Store, times: int | None = 1, key: UserKey | None = None
) -> Iterator[Faults]:
    """The next commits of a store lose a race, once each.

    Just before the commit an agent named "rival" really changes a key that the transaction has read (by writing its
    value once more; a key without a value gets one, which is removed afterwards), or a key in a range that it has
    scanned, so that the commit is refused as it would be in production. A commit that has read nothing is refused for
    no reason. Commits in mode "none" never conflict, here either.

    Args:
        store: opened with `open_store`.
        times: how many commits lose; None: every one inside the ``with``.
        key: only commits that read or write this key, in any resource.

    Raises: `AssertionError` at the end if fewer commits came than were to lose; `UsageError`."""
    with _set(store, Races(times, key)) as faults:
        yield faults


@contextmanager
def lost_replies(
    store: interlock.Store | sync.Store, times: int | None = 1, *, landed: bool = True
) -> Iterator[Faults]:
    """The replies to the next commits of a store are lost: `CommitUnknownError` from the backend.

    `run` and `attempts` settle that by asking for the outcome; a bare session passes it on.

    Args:
        store: opened with `open_store`.
        times: how many replies are lost; None: every one inside the ``with``.
        landed: whether the commit happened. False: it never got there.

    Raises: `AssertionError` at the end if fewer commits came than replies were to be lost; `UsageError`."""
    with _set(store, LostReplies(times, landed=landed)) as faults:
        yield faults


@contextmanager
def _set(store: interlock.Store | sync.Store, fault: Races | LostReplies) -> Iterator[Faults]:
    faults = _faults_of(store)
    faults.append(fault)
    try:
        yield fault
    finally:
        faults.remove(fault)
    if fault.left:
        done = len(fault.transaction_ids)
        raise AssertionError(f"{fault.left} of {fault.left + done} faults did not happen: too few commits came")


def _faults_of(store: interlock.Store | sync.Store) -> list[Fault]:
    backend: object = store._engine.backend
    while not isinstance(backend, FaultyBackend):
        backend = getattr(backend, "inner", None)
        if backend is None:
            raise UsageError("faults can be set on stores that were opened with interlock.testing.open_store")
    return backend.faults
