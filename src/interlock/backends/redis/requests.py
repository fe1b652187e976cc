"""A commit request as its part of a call of `commit.lua`, as it goes over the connection, and its answer as ours.

A merge that the script does not compute (Lua has no dates; a long list or set would hold everybody up) or that it would
have to refuse comes back with the value it was to be applied to. `compute` applies it with the same algebra as
everybody else, which raises what has to be raised, and the request goes out again with the result and the version that
it belongs to: if that has changed meanwhile, it comes back once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from interlock import merges
from interlock.backends.redis.record import MICRO, author_of, encode, entry_of, form_of
from interlock.backends.redis.scripts import DONE, HEADS, Part, piece
from interlock.errors import LimitExceededError
from interlock.model import (
    ABSENT,
    UNCHANGED,
    BoundBroken,
    Clash,
    CommitRefused,
    CommitRequest,
    Delete,
    Entry,
    Expectation,
    Key,
    Limits,
    Merge,
    Merged,
    MergeRefused,
    Put,
    Write,
)

CLASHES, ELSEWHERE, TOO_OLD, KNOWN, TOO_MANY, OUTSIDE = range(DONE + 1, DONE + 7)
"""What an answer of `commit.lua` that does not say `DONE` begins with."""

LIMITS: Final = Limits(writes=10_000, reads=20_000, spans=200, commit_bytes=32 << 20)
"""One script holds up everybody, so it may not take long."""
CLEARED_KEYS: Final = 10_000
FETCHED_KEYS: Final = 2_000
SHOWN_BYTES: Final = 1024

_KINDS: Final = {
    "add": b"a", "append": b"p", "set_add": b"s", "set_remove": b"r", "maximum": b">", "minimum": b"<", "last": b"l",
}  # fmt: skip
_FEW: Final = 100

# The fixed words of a call and the rows of its plan, as `commit.lua` describes them.
_HEAD: Final = Struct(">QQcQIIHHH").pack
_BEFORE_TRANSACTION: Final = HEADS[17] + b"x"
_ROW: Final = Struct(">BBQQ").pack
_MARKED: Final = Struct(">BB16x").pack
_VERSION, _ALIVE, _ABSENT, _UNCHANGED, _UNCHANGED_ALIVE, _NONE = b"v!auU-"
_PUT, _PUT_UNLISTED, _PUT_FOR, _DELETE, _MERGE, _MERGE_COMPUTED = b"potdmM"
_ABSENT_GUARD: Final = b"g-" + bytes(16)


_named: Final[dict[Key, bytes]] = {}
"""Keys that are guarded again and again, as words; forgotten when they become many."""
_MOST_NAMED: Final = 1024


def _name(key: Key) -> bytes:
    if len(_named) >= _MOST_NAMED:
        _named.clear()
    word = _named[key] = HEADS[len(key)] + key
    return word


def check(request: CommitRequest) -> None:
    """Raises `LimitExceededError` for more than one script should do."""
    if len(request.writes) + len(request.reads) + len(request.guards) < _FEW and not (
        request.spans or request.clears or request.fetch
    ):
        return
    for limit, found, allowed in (
        ("writes", len(request.writes), LIMITS.writes),
        ("reads", len(request.reads) + len(request.guards), LIMITS.reads),
        ("fetched", len(request.fetch), FETCHED_KEYS),
        ("spans", len(request.spans) + len(request.clears), LIMITS.spans),
    ):
        if found > allowed:
            raise LimitExceededError(
                f"a commit with {found} {limit}; one may have {allowed} on Redis",
                limit=limit,
                allowed=allowed,
                found=found,
            )


def packed_commit(request: CommitRequest, computed: dict[Key, bytes] | None = None) -> Part:
    """Its part of a call of `commit.lua`. ``computed`` holds merges that were computed here."""
    writes, reads, guards, alive = request.writes, request.reads, request.guards, request.alive
    transaction = request.transaction.to_bytes(16, "big")
    forms: dict[Key, Any] = {}
    parts = [_BEFORE_TRANSACTION, transaction]  # before each word stands its head
    plan: list[bytes] = []
    given: list[bytes] = []
    for key, expected in reads.items():
        parts += (HEADS[len(key)], key)
        write = writes.get(key)
        if type(write) is Put and write.ttl_seconds is None and write.listed:
            mark = _PUT
            given += (HEADS[len(write.value)], write.value)
        else:
            mark = _NONE if write is None else _operation(key, write, computed, forms, given)
        if type(expected) is tuple:
            plan.append(_ROW(_ALIVE if key in alive else _VERSION, mark, *expected))
        else:
            plan.append(_MARKED(_mark_of(key, expected, _ABSENT, alive), mark))
    for key, expected in guards.items():
        write = writes.get(key)
        if write is None and expected is ABSENT:  # the rules and locks of a resource, for each of its commits
            parts.append(_named.get(key) or _name(key))
            plan.append(_ABSENT_GUARD)
            continue
        parts += (HEADS[len(key)], key)
        mark = _NONE if write is None or key in reads else _operation(key, write, computed, forms, given)
        if type(expected) is tuple:
            plan.append(_ROW(_ALIVE if key in alive else _VERSION, mark, *expected))
        else:
            plan.append(_MARKED(_mark_of(key, expected, _ABSENT_GUARD[0], alive), mark))
    if len(given) < 2 * len(writes):
        for key, write in writes.items():
            if key not in reads and key not in guards:
                parts += (HEADS[len(key)], key)
                plan.append(_MARKED(_NONE, _operation(key, write, computed, forms, given)))
    planned, recorded = b"".join(plan), encode(request, transaction, forms)
    rest = [HEADS[len(planned)], planned, HEADS[len(recorded)], recorded, *given]
    token, spans, clears, fetch = request.snapshot, request.spans, request.clears, request.fetch
    rows, operations, others, alone = len(plan), len(given) // 2, 0, False
    if spans or clears or fetch:
        words = [*(bound for span in (*spans, *clears) for bound in span), *fetch]
        rest.append(piece(words))
        others, alone = len(words), True
    mode = b"v" if not (writes or clears) else b"q" if request.quiet else b"w"
    head = _HEAD(
        token.store, token.incarnation, mode, token.position, rows, operations, len(spans), len(clears), len(fetch)
    )
    return head, b"".join(parts), b"".join(rest), alone, 3 + rows + operations + others


def _mark_of(key: Key, expected: Expectation, absent: int, alive: frozenset[Key]) -> int:
    return absent if expected is ABSENT else _UNCHANGED_ALIVE if key in alive else _UNCHANGED


def _operation(
    key: Key, write: Write, computed: dict[Key, bytes] | None, forms: dict[Key, Any], given: list[bytes]
) -> int:
    """The mark of an operation; its argument and the record's form of it go to their places."""
    if type(write) is Put:
        mark, argument = _PUT if write.listed else _PUT_UNLISTED, write.value
        if write.ttl_seconds is not None:
            mark, argument = _PUT_FOR, _before_value(mark, write.ttl_seconds) + argument
        if mark != _PUT:
            forms[key] = form_of(write)
    else:
        forms[key] = form_of(write)
        if type(write) is Delete:
            mark, argument = _DELETE, b""
        else:
            assert type(write) is Merge
            if computed is not None and key in computed:
                mark, argument = _MERGE_COMPUTED, computed[key]
            else:
                steps = [_step(step.kind, step.operand, step.floor, step.ceiling) for step in write.operations]
                mark, argument = _MERGE, b"".join(steps)
    given += (HEADS[len(argument)], argument)
    return mark


@lru_cache(_FEW)  # the records of idempotency keys all live equally long
def _before_value(mark: int, seconds: float) -> bytes:
    return bytes((mark,)) + _life(seconds).to_bytes(8, "big")


def _life(seconds: float) -> int:
    """Microseconds to live; a longer life than Lua can count is one of 142 years."""
    return max(0, min(round(min(seconds, 1e12) * MICRO), 1 << 52))


def _step(kind: str, operand: bytes, floor: bytes | None, ceiling: bytes | None) -> bytes:
    parts = [_KINDS[kind], len(operand).to_bytes(4, "big"), operand]
    for bound in (floor, ceiling):
        parts += (b"\0\0\0\0",) if bound is None else ((len(bound) + 1).to_bytes(4, "big"), bound)
    return b"".join(parts)


def row_keys(request: CommitRequest) -> list[Key]:
    """The keys in the order of the script's rows."""
    rows = [*request.reads, *request.guards]
    known = set(rows)
    rows += [key for key in request.writes if key not in known]
    return rows


def compute(request: CommitRequest, outside: Sequence[Any]) -> dict[Key, bytes]:
    """Apply the merges that came back. Raises `BoundBroken` or `MergeRefused` for one that cannot be applied."""
    keys = row_keys(request)
    done: dict[Key, bytes] = {}
    for row, stamp, present, before in outside:
        key = keys[row - 1]
        write = request.writes[key]
        assert type(write) is Merge
        try:
            done[key] = stamp + merges.apply(before if present else None, write.operations)
        except (BoundBroken, MergeRefused) as refusal:
            refusal.key = key
            raise
    return done


def merged(request: CommitRequest, rows: Sequence[Any]) -> dict[Key, Merged]:
    """What the merges did."""
    keys = row_keys(request)
    return {keys[row - 1]: Merged(bool(changed), before if present else None) for row, changed, present, before in rows}


def clashes(request: CommitRequest, rows: Sequence[Any]) -> CommitRefused:
    """The refusal that `commit.lua` reports."""
    expected = [*request.reads.values(), *request.guards.values()]
    found: dict[tuple[Key, int], Clash] = {}
    for row, key, raw, at, record, large in rows:
        span = request.spans[-row - 1] if row < 0 else None
        kind = "range" if row < 0 else "write" if expected[row - 1] is UNCHANGED else "read"
        current = _shown(raw, bool(large))
        found.setdefault((key, min(row, 0)), Clash(key, kind, current, author_of(at, record), span))
    return CommitRefused(tuple(found.values()))


def _shown(raw: bytes, large: bool) -> Entry | None:
    """The newest entry in a clash, without a large value."""
    if not raw:
        return None
    entry = entry_of(raw)
    assert entry is not None
    hidden = large or raw[16] & 2 or (entry.value is not None and len(entry.value) > SHOWN_BYTES)
    return Entry(entry.version, None, entry.expires_at) if hidden else entry
