"""What each isolation mode validates: pure functions from a session's sets to a request's expectations.

=============  ======================  ==================================================================
mode           reads from              validated at commit
=============  ======================  ==================================================================
none           the newest state        nothing
snapshot       one snapshot            keys written (unchanged since the snapshot: first committer wins)
optimistic     one snapshot            keys read and keys written
serializable   one snapshot            keys and ranges read
pessimistic    the newest, under       keys and ranges read, and that its locks are still its own
               locks
=============  ======================  ==================================================================

Why that is enough. A backend judges and applies a commit at one point of its order. If everything that a serializable
session read, keys, absences and ranges, is the same at that point as in its snapshot, the session might as well have
run there whole, so all commits are equivalent to running one after another in commit order, which is also an order of
real time. Optimistic leaves ranges out and so allows phantoms. Snapshot validates only what is written: two sessions
never both change one key from the same snapshot (no lost update), but each may change what the other read (write
skew). A blind write in serializable mode needs no validation: nothing was decided on what it replaces. What an
invariant reads is validated in every mode. Pessimistic mode validates all the same and waits beforehand, see
`interlock.core.locking`.

Keys that were read as absent are expected ABSENT, not at the version of a tombstone, because two absences are equal;
a key with a value is compared by version and never by value, so that changed-and-changed-back is a conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

from interlock.errors import UsageError
from interlock.model import ABSENT, UNCHANGED, Entry, Expectation, Key, Merge, Span, Version, Write

Isolation = Literal["none", "snapshot", "optimistic", "serializable", "pessimistic"]

NONE, SNAPSHOT, OPTIMISTIC, SERIALIZABLE, PESSIMISTIC = range(5)
RANKS: Final[dict[str, int]] = {
    "none": NONE,
    "snapshot": SNAPSHOT,
    "optimistic": OPTIMISTIC,
    "serializable": SERIALIZABLE,
    "pessimistic": PESSIMISTIC,
}


def rank(isolation: object) -> int:
    """The mode's place in the order of strength. Raises `UsageError` naming the modes that exist."""
    found = RANKS.get(isolation) if type(isolation) is str else None
    if found is None:
        raise UsageError(f"unknown isolation {isolation!r}; there are {', '.join(RANKS)}")
    return found


def expectation(entry: Entry | None) -> Expectation:
    """What must still hold of a key that was read as ``entry``."""
    return ABSENT if entry is None or entry.value is None else entry.version


def read_expectations(
    mode: int,
    reads: Mapping[Key, Entry | None],
    writes: Mapping[Key, Write],
    invariant_reads: Iterable[Key] = (),
    chains: Collection[Key] = (),
    clears: Collection[Span] = (),
) -> dict[Key, Expectation]:
    """The ``reads`` of a commit request. In snapshot mode what was read counts where it is also written: put, deleted,
    merged (``chains`` are merges too) or cleared."""
    if mode >= OPTIMISTIC:
        out = {key: expectation(entry) for key, entry in reads.items()}
    else:
        out = {key: expectation(reads[key]) for key in invariant_reads}
        if mode == SNAPSHOT:
            written = writes.keys() | chains
            out.update(
                (key, expectation(entry))
                for key, entry in reads.items()
                if key in written or any(span.start <= key < span.stop for span in clears)
            )
    if mode in (SNAPSHOT, OPTIMISTIC):
        for key, write in writes.items():
            if key not in reads and type(write) is not Merge:
                out[key] = UNCHANGED
    return out


def observed_reads(reads: Mapping[Key, Entry | None], expected: Mapping[Key, Expectation]) -> dict[Key, Version | None]:
    """What was read but is not validated by version: for the feed record, so that an audit can judge every mode."""
    return {
        key: None if entry is None else entry.version
        for key, entry in reads.items()
        if key not in expected or (entry is not None and entry.value is None)
    }


def validated_spans(mode: int, spans: Iterable[Span], invariant_spans: Iterable[Span]) -> tuple[Span, ...]:
    """The ``spans`` of a commit request, those that lie within another left out."""
    wanted = set(invariant_spans)
    if mode >= SERIALIZABLE:
        wanted.update(spans)
    out: list[Span] = []
    for span in sorted(wanted):
        if out and span.start <= out[-1].stop:
            if span.stop > out[-1].stop:
                out[-1] = Span(out[-1].start, span.stop)
        else:
            out.append(span)
    return tuple(out)
