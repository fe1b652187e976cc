"""A commit request as the arguments of `commit.lua`, and its answers as ours.

A merge that the script does not compute (Lua has no dates; a long list or set would hold everybody up) or that it would
have to refuse comes back with the value it was to be applied to. `compute` applies it with the same algebra as
everybody else, which raises what has to be raised, and the request goes out again with the result and the version that
it belongs to: if that has changed meanwhile, it comes back once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from interlock import merges
from interlock.backends.redis.record import MICRO, author_of, encode, entry_of, form_of, pack_pair
from interlock.backends.redis.scripts import Command
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

DONE, CLASHES, ELSEWHERE, TOO_OLD, KNOWN, TOO_MANY, OUTSIDE = range(1, 8)
"""What `commit.lua` answers first."""

LIMITS: Final = Limits(writes=10_000, reads=20_000, spans=200, commit_bytes=32 << 20)
"""One script holds up everybody, so it may not take long."""
CLEARED_KEYS: Final = 10_000
FETCHED_KEYS: Final = 2_000
SHOWN_BYTES: Final = 1024

_KINDS: Final = {
    "add": b"a", "append": b"p", "set_add": b"s", "set_remove": b"r", "maximum": b">", "minimum": b"<", "last": b"l",
}  # fmt: skip
_FEW: Final = 100
_NOTHING: Final = b""
_PLAIN_PUT: Final = b"p"


def check(request: CommitRequest) -> None:
    """Raises `LimitExceededError` for more than one script should do."""
    if (
        len(request.writes) + len(request.reads) + len(request.guards) + len(request.spans) + len(request.clears) < _FEW
        and not request.fetch
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


def arguments(request: CommitRequest, identity: bytes, computed: dict[Key, bytes] | None = None) -> list[bytes]:
    """The arguments of `commit.lua`. ``computed`` holds merges that were computed here."""
    writes, guards, alive = request.writes, request.guards, request.alive
    count = len(request.reads)
    forms: dict[Key, Any] = {}
    out: list[bytes] = [
        identity,
        _NOTHING,
        b"%d" % request.snapshot.position,
        b"q" if request.quiet else b"w" if writes or request.clears else b"v",
        _NOTHING,
        _NOTHING,
        b"%d" % len(request.spans),
        b"%d" % len(request.clears),
        b"%d" % len(request.fetch),
    ]
    for key, expected in request.reads.items():
        write = writes.get(key)
        if type(expected) is tuple and not alive:
            wanted = pack_pair(*expected)
        else:
            wanted = _expectation(key, expected, b"a", alive)
        if write is None:
            out += (key, wanted, _NOTHING, _NOTHING)
        elif type(write) is Put and write.ttl_seconds is None and write.listed:
            forms[key] = True
            out += (key, wanted, _PLAIN_PUT, write.value)
        else:
            forms[key] = form_of(write)
            out += (key, wanted, *_operation(key, write, computed))
    for key, expected in guards.items():
        wanted = b"g" if expected is ABSENT else _expectation(key, expected, b"g", alive)
        count += 1
        write = writes.get(key)
        if write is None or key in forms:
            out += (key, wanted, _NOTHING, _NOTHING)
        else:
            forms[key] = form_of(write)
            out += (key, wanted, *_operation(key, write, computed))
    if len(forms) < len(writes):
        for key, write in writes.items():
            if key not in forms:
                forms[key] = form_of(write)
                count += 1
                out += (key, _NOTHING)
                out += _operation(key, write, computed)
    for span in (*request.spans, *request.clears):
        out += span
    out += request.fetch
    out[1] = request.transaction.to_bytes(16, "big")
    out[4] = encode(request, forms)
    out[5] = b"%d" % count
    return out


def _expectation(key: Key, expected: Expectation, absent: bytes, alive: frozenset[Key]) -> bytes:
    if type(expected) is tuple:
        return pack_pair(*expected) + b"!" if key in alive else pack_pair(*expected)
    if expected is ABSENT:
        return absent
    return b"U" if key in alive else b"u"


def _operation(key: Key, write: Write, computed: dict[Key, bytes] | None) -> Command:
    if type(write) is Put:
        mark = b"p" if write.listed else b"o"
        if write.ttl_seconds is None:
            return mark, write.value
        return b"t", mark + _life(write.ttl_seconds).to_bytes(8, "big") + write.value
    if type(write) is Delete:
        return b"d", _NOTHING
    assert type(write) is Merge
    if computed is not None and key in computed:
        return b"M", computed[key]
    return b"m", b"".join([_step(step.kind, step.operand, step.floor, step.ceiling) for step in write.operations])


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


def merged(request: CommitRequest, rows: Sequence[Any]) -> dict[Key, Merged] | None:
    """What the merges did."""
    if not rows:
        return None
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
