"""From a commit request to the arguments of the commit function, and from its answer to a reply or a refusal.

The function itself applies the merges that programs under contention use: `add` of ints with bounds, `append` and
`last`. Any other merge is *computed*: the request says from which version, and the function takes the result only if
that is still the newest; otherwise it says what is, and the request is sent again (`Computed`). Somebody's commit has
gone through whenever that happens, so the store as a whole always makes progress. What a merge is computed from at
first is a guess (`guesses`), which is right as long as nobody else changes the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from interlock import merges
from interlock.backends.postgresql import locks
from interlock.backends.postgresql.home import Home
from interlock.backends.postgresql.record import signed, token_of, version
from interlock.backends.postgresql.tokens import Snapshot, behind_own, parsed
from interlock.errors import BackendCorruptError, SnapshotTooOldError, UsageError
from interlock.model import (
    ABSENT,
    NONCE_MASK,
    UNCHANGED,
    Author,
    BoundBroken,
    Clash,
    CommitRefused,
    CommitRequest,
    DuplicateTransaction,
    Entry,
    Expectation,
    Key,
    Merge,
    Merged,
    MergeRefused,
    Operation,
    Put,
    Reply,
)

DONE, CLASHES, MERGE_REFUSED, STALE, TOO_OLD, COMMITTED, FENCED = range(7)
"""What the commit function answers first."""

_ABSENT, _UNCHANGED, _UNKNOWN = -1, -2, -1


class Computed(NamedTuple):
    """A merge computed here: the version that it was computed from ((0, 0): none) and its result."""

    position: int
    nonce: int
    value: bytes | None


class Answer(NamedTuple):
    """The row of the commit function."""

    status: int
    own: int | None
    at: float | None
    snapshot: str | None
    newest: int | None
    x_i: list[int] | None
    x_key: list[bytes] | None
    x_position: list[int | None] | None
    x_nonce: list[int | None] | None
    x_value: list[bytes | None] | None
    x_expires_at: list[float | None] | None
    x_id: list[bytes | None] | None
    x_agent: list[str | None] | None
    x_at: list[float | None] | None
    b_i: int | None
    b_position: list[int] | None
    b_nonce: list[int] | None
    b_value: list[bytes | None] | None
    b_changed: list[bool] | None
    f_position: list[int | None] | None
    f_nonce: list[int | None] | None
    f_value: list[bytes | None] | None
    f_expires_at: list[float | None] | None


def expectations(request: CommitRequest) -> list[tuple[Key, Expectation]]:
    """The reads, then the guards."""
    return [*request.reads.items(), *request.guards.items()]


def judged(request: CommitRequest, expected: list[tuple[Key, Expectation]]) -> tuple[Any, ...]:
    """The arguments of ``judge`` behind the snapshot: what has to hold."""
    keys: list[Key] = []
    positions: list[int] = []
    nonces: list[int] = []
    for key, found in expected:
        keys.append(key)
        if type(found) is tuple:
            positions.append(found[0])
            nonces.append(signed(found[1]))
        else:
            positions.append(_ABSENT if found is ABSENT else _UNCHANGED)
            nonces.append(0)
    alive = [key in request.alive for key in keys] if request.alive else None
    spans = request.spans
    return (
        keys or None,
        positions or None,
        nonces or None,
        alive,
        [span.start for span in spans] if spans else None,
        [span.stop for span in spans] if spans else None,
    )


def is_native(operation: Operation) -> bool:
    """Whether the commit function can apply an operation."""
    return operation.kind in ("append", "last") or (operation.kind == "add" and operation.operand[:1] == b"i")


NATIVE: Final = {"add": 1, "append": 2, "last": 3}


def merged_keys(request: CommitRequest) -> list[tuple[Key, Merge]]:
    """The merges of a request."""
    return [(key, write) for key, write in request.writes.items() if type(write) is Merge]


def _merge_arguments(merging: list[tuple[Key, Merge]], computed: dict[Key, Computed]) -> tuple[Any, ...]:
    counts: list[int] = []
    bases: list[Computed] = []
    steps: list[Operation] = []
    for key, write in merging:
        if all(map(is_native, write.operations)):
            counts.append(len(write.operations))
            bases.append(Computed(0, 0, None))
            steps.extend(write.operations)
        else:
            counts.append(0)
            bases.append(computed.get(key, Computed(_UNKNOWN, 0, None)))
    return (
        [key for key, _ in merging],
        counts,
        [base.position for base in bases],
        [base.nonce for base in bases],
        [base.value for base in bases],
        [NATIVE[step.kind] for step in steps],
        [step.operand for step in steps],
        [step.floor for step in steps],
        [step.ceiling for step in steps],
    )


def arguments(
    request: CommitRequest,
    snapshot: Snapshot,
    computed: dict[Key, Computed],
    locking: list[int] | None,
    record: bytes | None,
) -> tuple[Any, ...]:
    """The arguments of the commit function. ``locking``: see `locks`; ``record``: what the feed is to say."""
    if "\0" in request.agent:
        raise UsageError("PostgreSQL cannot store the name of an agent with a NUL character")
    expected = expectations(request)
    plain = [(key, write) for key, write in request.writes.items() if type(write) is not Merge]
    merging = merged_keys(request)
    puts = [write if type(write) is Put else None for _, write in plain]
    clears = request.clears
    return (
        request.transaction.to_bytes(16, "big"),
        signed(request.transaction & ((1 << 64) - 1)),
        request.agent,
        (0 if request.durable else 1) | (2 if request.quiet else 0),
        record,
        snapshot.stop,
        list(snapshot.open),
        locking,
        len(request.reads),
        *judged(request, expected),
        [span.start for span in clears] if clears else None,
        [span.stop for span in clears] if clears else None,
        [key for key, _ in plain] if plain else None,
        [None if put is None else put.value for put in puts] if plain else None,
        [None if put is None else put.ttl_seconds for put in puts] if plain else None,
        [put is not None and put.listed for put in puts] if plain else None,
        *(_merge_arguments(merging, computed) if merging else (None,) * 9),
        list(request.fetch) if request.fetch else None,
    )


def lock_numbers(request: CommitRequest) -> list[int]:
    """The locks that a request takes."""
    read = [*request.reads, *request.guards]
    return locks.numbers(
        request.snapshot.store.to_bytes(8, "big"), request.writes, read, (*request.spans, *request.clears)
    )


def clashes(request: CommitRequest, columns: Sequence[Any]) -> CommitRefused:
    """The refusal that names every expectation that does not hold; ``columns`` are those of ``judge``."""
    expected = expectations(request)
    found = []
    for place, key, position, nonce, value, expires_at, identity, agent, at in zip(*columns, strict=True):
        kind, span = "range", None
        if place > 0:
            kind = "write" if expected[place - 1][1] is UNCHANGED else "read"
        else:
            span = request.spans[-place - 1]
        current = None if position is None else Entry(version(position, nonce), value, expires_at)
        author = None
        if current is not None and identity is not None:
            author = Author(int.from_bytes(identity, "big"), agent, at)
        found.append(Clash(key, kind, current, author, span))
    return CommitRefused(tuple(found))


def entries(columns: Iterable[Any]) -> tuple[Entry | None, ...]:
    """What was fetched; ``columns`` are those of ``fetched``."""
    positions, nonces, values, expiries = (column or () for column in columns)
    return tuple(
        None if position is None else Entry(version(position, nonce), value, expires_at)
        for position, nonce, value, expires_at in zip(positions, nonces, values, expiries, strict=True)
    )


def compute(request: CommitRequest, answer: Answer) -> dict[Key, Computed]:
    """Apply the merges that the commit function cannot to what it found. Raises `BoundBroken` or `MergeRefused`."""
    found = zip(merged_keys(request), answer.b_position or (), answer.b_nonce or (), answer.b_value or (), strict=True)
    return {
        key: Computed(position, nonce, applied(key, write, before)) for (key, write), position, nonce, before in found
    }


def applied(key: Key, write: Merge, before: bytes | None) -> bytes:
    """The value after a merge. Raises `BoundBroken` or `MergeRefused`, naming the key."""
    try:
        return merges.apply(before, write.operations)
    except (BoundBroken, MergeRefused) as refusal:
        refusal.key = key
        raise


def refuse_merge(request: CommitRequest, answer: Answer) -> NoReturn:
    """Raise the refusal of the merge that the commit function has refused."""
    assert answer.b_i is not None
    assert answer.b_value is not None
    key, write = merged_keys(request)[answer.b_i - 1]
    applied(key, write, answer.b_value[answer.b_i - 1])
    raise BackendCorruptError("the server has refused a merge that can be applied: are its functions of this version?")


def merged(request: CommitRequest, answer: Answer) -> dict[Key, Merged] | None:
    """What the merges did."""
    if not answer.b_changed:
        return None
    rows = zip(merged_keys(request), answer.b_changed, answer.b_value or (), strict=True)
    return {key: Merged(changed, before) for (key, _), changed, before in rows}


def settled(request: CommitRequest, answer: Answer, home: Home) -> Reply:
    """The reply to a commit that was done. Raises what `interlock.ports.Backend.commit` does for any other."""
    if answer.status == CLASHES:
        raise clashes(request, answer[5:14])
    if answer.status == MERGE_REFUSED:
        refuse_merge(request, answer)
    if answer.status == TOO_OLD:
        raise SnapshotTooOldError("the store no longer keeps the snapshot of this transaction")
    if answer.status != DONE:
        raise DuplicateTransaction(answer.status == COMMITTED)
    assert answer.own is not None
    assert answer.snapshot is not None
    assert answer.at is not None
    behind = behind_own(parsed(answer.snapshot), answer.newest, answer.own)
    return Reply(
        (answer.own, request.transaction & NONCE_MASK),
        token_of(home.store, home.epoch, behind),
        answer.at,
        merged(request, answer),
        entries(answer[-4:]) if request.fetch else (),
    )
