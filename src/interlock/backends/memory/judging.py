"""Whether a commit request holds against the newest state. Nothing here changes anything.

`judge` is the whole rule; `plain` recognises the common request before it comes here.
"""

from __future__ import annotations

from typing import Final

from interlock.backends.memory.state import State
from interlock.errors import SnapshotTooOldError
from interlock.model import (
    ABSENT,
    UNCHANGED,
    Clash,
    CommitRefused,
    CommitRequest,
    DuplicateTransaction,
    Entry,
    Expectation,
    Key,
    Span,
    Version,
)

_SHOWN_BYTES: Final = 1024


def judge(state: State, request: CommitRequest, now: float) -> dict[Key, Version] | None:
    """Check all that can refuse a request, its merges excepted. Returns the versions of tombstones read as absent.

    Raises `CommitRefused`, `DuplicateTransaction`, `SnapshotTooOldError` or `UsageError`."""
    if request.writes or request.clears:
        if state.record_of(request.transaction) is not None:
            raise DuplicateTransaction(committed=True)
        if request.transaction in state.fences:
            raise DuplicateTransaction(committed=False)
        if request.transaction <= state.forgotten_fence:
            raise SnapshotTooOldError("the transaction began before the oldest that the store still knows of")
    snapshot = state.position_of(request.snapshot)
    tombstones: dict[Key, Version] = {}
    clashes: list[Clash] = []
    for expectations in (request.reads, request.guards):
        for key, expected in expectations.items():
            entry = state.current.get(key)
            if expected is ABSENT and entry is not None:
                tombstones[key] = entry.version
            expires_at = None if entry is None or key not in request.alive else entry.expires_at
            expired = expires_at is not None and expires_at <= now
            if expired or not _holds(state, key, entry, expected, snapshot):
                clashes.append(_clash(state, key, "write" if expected is UNCHANGED else "read"))
    for span in request.spans:
        changed = state.changed_in(span, snapshot)
        if changed is not None:
            clashes.append(_clash(state, changed, "range", span))
    if clashes:
        raise CommitRefused(tuple(clashes))
    return tombstones or None


def _holds(state: State, key: Key, entry: Entry | None, expected: Expectation, snapshot: int) -> bool:
    if expected is ABSENT:
        return entry is None or entry.value is None
    if expected is UNCHANGED:
        return not state.is_newer(key, snapshot)
    return entry is not None and entry.value is not None and entry.version == expected


def _clash(state: State, key: Key, kind: str, span: Span | None = None) -> Clash:
    entry = state.current.get(key)
    if entry is None:
        return Clash(key, kind, None, None, span)
    author = state.author(entry.version)
    if entry.value is not None and len(entry.value) > _SHOWN_BYTES:
        entry = Entry(entry.version, None, entry.expires_at)
    return Clash(key, kind, entry, author, span)
