"""Drop what no snapshot needs any more, a bounded batch at a time. Callers hold the lock.

The horizon is raised first. From then on nothing below it can be reached: reads, cursors and commits from there are
refused. What lies below is then swept away position by position, and a sweep that was interrupted goes on where it
was.

Two ids outlive their records. Whoever asks about a transaction without a trace that is not younger than ``forgotten``
hears that it is forgotten, never that it did not happen. A commit not younger than ``forgotten_fence`` is refused,
because its fence may have been among those dropped. (A commit that happened needs no such memory: sent again, its
snapshot lies below the horizon.)
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from interlock.backends.memory.performing import perform
from interlock.backends.memory.state import PlainRecord, Record, State, older
from interlock.model import CommitRequest, Delete, Key, Write

SYSTEM_AGENT: Final = "interlock"
"""The agent in whose name expired entries are deleted."""
_RANDOM_BITS: Final = 80
_KEYS_PER_RECORD: Final = 10
"""Large commits make a batch end earlier: after about ten times as many keys as it may have records."""


def compact(state: State, before: float, limit: int, random_bits: Callable[[int], int]) -> int:
    """Delete expired entries, then drop log records from before ``before`` and the versions that only they needed."""
    dropped = _expire(state, limit, random_bits)
    horizon, work = state.horizon, 0
    while horizon < state.token.position and horizon - state.swept < limit and work < _KEYS_PER_RECORD * limit:
        record = state.log[horizon + 1]
        if record.at >= before:
            break
        work += len(record.keys) + len(record.cleared)
        horizon += 1
    for transaction, at in list(islice(state.fences.items(), limit)):
        if at < before:
            state.forgotten_fence = max(state.forgotten_fence, transaction)
            state.forgotten = max(state.forgotten, transaction)
            del state.fences[transaction]
            dropped += 1
    state.horizon = horizon
    while state.swept < horizon:
        swept = state.log.get(state.swept + 1)
        if swept is not None:  # None: an interrupted sweep came as far as this
            dropped += _drop(state, swept)
        state.swept += 1
    return dropped


def _expire(state: State, limit: int, random_bits: Callable[[int], int]) -> int:
    """Delete up to ``limit`` expired entries by an ordinary commit."""
    now = state.time()
    due: list[tuple[float, Key]] = []
    try:
        while state.expiring and len(due) < limit and state.expiring[0][0] <= now:
            due.append(state.expiring[0])
            heappop(state.expiring)
        expired: dict[Key, Write] = {}
        for expires_at, key in due:
            entry = state.current.get(key)
            if entry is not None and entry.value is not None and entry.expires_at == expires_at:
                expired[key] = Delete()
        if expired:
            transaction = (int(now * 1000) << _RANDOM_BITS) | random_bits(_RANDOM_BITS)
            request = CommitRequest(
                transaction, SYSTEM_AGENT, "none", state.token, {}, expired, {}, operation="compact"
            )
            perform(state, request, now, None)
        return len(expired)
    except BaseException:
        for item in due:
            heappush(state.expiring, item)
        raise


def _drop(state: State, record: Record | PlainRecord) -> int:
    """Drop one log record, and of the keys that it changed whatever is now below the horizon and superseded there."""
    dropped = 1
    horizon = state.horizon
    for keys in (record.keys, record.cleared):
        for key in keys:
            dropped += _trim(state, key, horizon)
    state.forgotten = max(state.forgotten, record.transaction)
    state.records.pop(record.transaction, None)
    state.log.pop(record.version[0], None)
    return dropped


def _trim(state: State, key: Key, horizon: int) -> int:
    """Drop the versions of a key that no snapshot at or above the horizon shows."""
    newest = state.current.get(key)
    chain = state.chains.get(key)
    dropped = 0
    if chain is not None:
        needless = older(chain, horizon)
        if newest is not None and newest.version[0] > horizon:
            needless -= 1  # the last of them is what a snapshot at the horizon shows
        if needless > 0:
            del chain[:needless]
            dropped = needless
        if not chain:
            del state.chains[key]
    if state.torn.get(key, horizon + 1) <= horizon:
        del state.torn[key]
    if key in state.torn or key in state.chains:
        return dropped
    if newest is None:
        state.order.discard(key)
    elif newest.value is None and newest.version[0] <= horizon:
        del state.current[key]
        state.order.discard(key)
        dropped += 1
    return dropped
