"""Carry out a request that was judged and found good: what changes, the record of it, and the reply.

Everything is computed before anything is changed, because merges may still refuse. Clears come before writes.
"""

from __future__ import annotations

from interlock import merges
from interlock.backends.memory.state import INCARNATION, Record, State
from interlock.model import (
    NONCE_MASK,
    BoundBroken,
    CommitRequest,
    Entry,
    Key,
    Merge,
    Merged,
    MergeRefused,
    Put,
    Reply,
    Span,
    Token,
    Version,
)


def perform(state: State, request: CommitRequest, now: float, tombstones: dict[Key, Version] | None) -> Reply:
    """Apply a request. Raises `BoundBroken` or `MergeRefused`, and then nothing has changed."""
    position = state.token.position + 1
    version = (position, request.transaction & NONCE_MASK)
    current = state.current
    new: dict[Key, Entry] = {}
    fresh: list[Key] | None = None
    merged: dict[Key, Merged] | None = None
    cleared = _clear(state, request.clears, version, new) if request.clears else ()
    for key, write in request.writes.items():
        if type(write) is Put:
            expires_at = None if write.ttl_seconds is None else now + write.ttl_seconds
            new[key] = Entry(version, write.value, expires_at)
            listed = write.listed
        else:
            old = new.get(key) or current.get(key)
            if type(write) is Merge:
                merged = {} if merged is None else merged
                entry, merged[key] = _merge(key, write, version, old)
            else:
                entry = None if old is None or old.value is None else Entry(version, None)
            if entry is None:
                continue
            new[key] = entry
            listed = True
        if listed and key not in current:
            fresh = [] if fresh is None else fresh
            fresh.append(key)
    if fresh is not None:
        state.order.fresh.update(fresh)
    token = Token(state.token.store, INCARNATION, position)
    if request.quiet:
        kept = CommitRequest(
            request.transaction, request.agent, request.isolation, request.snapshot, {}, {}, {}, quiet=True
        )
        record = Record(version, token, now, kept, cleared, tombstones, tuple(new))
    else:
        record = Record(version, token, now, request, cleared, tombstones)
    state.pending = (record, new)
    state.apply(record, new)
    return Reply(version, token, now, merged, fetched(state, request) if request.fetch else ())


def fetched(state: State, request: CommitRequest) -> tuple[Entry | None, ...]:
    """The entries that the request wants to see, as they are now."""
    return tuple([state.current.get(key) for key in request.fetch])


def _clear(state: State, spans: tuple[Span, ...], version: Version, new: dict[Key, Entry]) -> tuple[Key, ...]:
    """Put a tombstone into ``new`` for every live listed key of the spans; returns the keys."""
    tombstone = Entry(version, None)
    for span in spans:
        for key in state.order.walk(span):
            entry = state.current.get(key)
            if entry is not None and entry.value is not None:
                new[key] = tombstone
    return tuple(new)


def _merge(key: Key, write: Merge, version: Version, old: Entry | None) -> tuple[Entry | None, Merged]:
    """What a merge makes of an entry (None: it stays as it is). An expiry stays with the value."""
    before = None if old is None else old.value
    try:
        after = merges.apply(before, write.operations)
    except (BoundBroken, MergeRefused) as refusal:
        refusal.key = key
        raise
    if after == before:
        return None, Merged(False, before)
    expires_at = None if old is None or before is None else old.expires_at
    return Entry(version, after, expires_at), Merged(True, before)
