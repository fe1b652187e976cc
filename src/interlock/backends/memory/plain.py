"""The plain commit in one flat function: nearly every request is one, and on a hot path calls are what costs.

A request is plain if it only puts values, expects keys to be at a version or absent without a trace,
and holds. For anything else `commit_plainly` does nothing and says None, and `judging` and `performing`, which know
the whole rule, take over. So this is a shorter way to the same end, never another rule; the conformance suite takes
both ways.
"""

from __future__ import annotations

from heapq import heappush

from interlock.backends.memory.state import INCARNATION, PlainRecord, Record, State
from interlock.model import ABSENT, NONCE_MASK, CommitRequest, Entry, Key, Put, Reply, Token


def commit_plainly(state: State, request: CommitRequest, now: float) -> Reply | None:
    """Judge and apply a request if it is plain and holds; None, and nothing done, if not. The caller holds the lock."""
    transaction, token, writes = request.transaction, state.token, request.writes
    if request.spans or request.clears or request.alive or request.fetch or request.quiet or not writes:
        return None
    if state.record_of(transaction) is not None or transaction in state.fences or transaction <= state.forgotten_fence:
        return None
    if request.snapshot is not token:
        state.position_of(request.snapshot)
    current = state.current
    get = current.get
    for key, expected in request.reads.items():
        entry = get(key)
        if entry is None:
            if expected is not ABSENT:
                return None
        elif (entry.version is not expected and entry.version != expected) or entry.value is None:
            return None
    for key, expected in request.guards.items():
        entry = get(key)
        if entry is None:
            if expected is not ABSENT:
                return None
        elif entry.version != expected or entry.value is None:
            return None
    position = token.position + 1
    version = (position, transaction & NONCE_MASK)
    new: dict[Key, Entry] = {}
    fresh: list[Key] = []
    for key, write in writes.items():
        if type(write) is not Put:
            return None
        ttl_seconds = write.ttl_seconds
        new[key] = (
            Entry(version, write.value) if ttl_seconds is None else Entry(version, write.value, now + ttl_seconds)
        )
        if key not in current and write.listed:
            fresh.append(key)
    if fresh:
        state.order.fresh.update(fresh)
    after = Token(token.store, INCARNATION, position)
    record = Record(version, after, now, request)
    put_in_place(state, record, new)
    return Reply(version, after, now)


def put_in_place(state: State, record: Record | PlainRecord, new: dict[Key, Entry]) -> None:
    """`State.apply` for the first time, without looking for what a time before may have left, and not for a quiet
    commit."""
    state.pending = (record, new)
    current, chains = state.current, state.chains
    for key, entry in new.items():
        old = current.get(key)
        if old is not None:
            chain = chains.get(key)
            if chain is None:
                chains[key] = [old]
            else:
                chain.append(old)
        else:
            state.grown += 1
        if entry.expires_at is not None:
            heappush(state.expiring, (entry.expires_at, key))
        current[key] = entry
    state.log[record.version[0]] = record
    state.version = record.version
    state.token = record.token
    state.pending = None
