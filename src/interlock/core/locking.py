"""Locks as the core sees them: when a session takes some, waits for those of others, and lets its own go.

How locks are kept is the business of `interlock.layers.locks`, which the core knows as `Locking`. What makes it right:

- **Safety is validation's.** A pessimistic session's commit validates all that a serializable one's does, and expects
  the tenure under which its locks are held. So a lock that was lost in whatever way costs a retry, never an anomaly.
- **Every writing commit of every mode** expects of each resource that it writes to that nobody holds a lock there: one
  expectation more on one key, ``Space.locks_key``, which is absent unless somebody does. If it is there, the session
  looks at the locks; it waits for those in its way and sends the same commit again, expecting the very state of the
  locks that it has seen: of ``locks_key``, and of every other record in which a lock on what it writes could lie. So
  between a grant and the end of the holder nobody writes what is locked: a commit from before the grant is in the state
  that the holder reads, and one from after it has seen the lock.
- **Reads move forward.** The commit that grants a lock is conditional on the tenure, so at its point all locks taken
  before are still held, and what was read under them is unchanged. The session's snapshot is therefore moved to that
  point, as `interlock.core.extension` does after a validation, and all that it reads is from one state.
- **Strict.** Nothing is let go before the commit has been answered or the transaction rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from interlock.core import isolation as modes
from interlock.core.calls import COMMITTED
from interlock.model import ABSENT, Entry, Expectation, Key, Reply, Span

if TYPE_CHECKING:
    from interlock.core.carrying import Guard
    from interlock.core.space import Space
    from interlock.core.transaction import Transaction


class Hold(Protocol):
    """The locks of one transaction."""

    def guards(self) -> dict[Key, Guard]:
        """What its commit expects besides."""


class Locking(Protocol):
    """The locks of one store object."""

    async def take(
        self, txn: Transaction, space: Space, spans: Sequence[Span], *, shared: bool, fetch: Sequence[Key] = ()
    ) -> Sequence[Entry | None]:
        """Get ranges of one space locked, all or none, and the entries of ``fetch`` as of that moment, to which the
        snapshot moves. Raises `LockTimeoutError`, `DeadlockError`, or `ConflictError` if earlier locks were lost."""

    async def shield(self, txn: Transaction, footprint: Footprint) -> bool:
        """Lock everything that earlier attempts have read and written, before anything is read. False if that was not
        to be had in time; then nothing is locked."""

    async def give_way(self, txn: Transaction, space: Space, spans: Sequence[Span]) -> Mapping[Key, Expectation]:
        """Wait until nobody else holds a lock on what is about to be written; what the commit has to expect then, of
        ``locks_key`` and of other records of locks (nothing: the transaction's own locks cover it). Raises
        `LockTimeoutError`."""

    async def let_go(self, txn: Transaction) -> None:
        """The transaction has ended: release its locks."""

    def drop(self, txn: Transaction) -> None:
        """The same where nothing can be awaited."""

    def close(self) -> None:
        """The store is being closed: nothing is held any more."""


Footprint = dict["Space", tuple[list[Span], list[Span]]]
"""For each space the ranges that were read, and those that were written."""


def key_span(raw: Key) -> Span:
    """The range of one key."""
    return Span(raw, raw + b"\0")


def space_of(txn: Transaction, raw: Key) -> Space:
    """The space that a key of a transaction belongs to."""
    return next(space for space in txn.spaces() if raw.startswith(space.prefix))


async def read_locked(txn: Transaction, raws: Sequence[Key]) -> None:
    """Lock keys for reading, and put them into the read set as they are under the locks."""
    spaces: dict[Space, list[Key]] = {}
    for raw in raws:
        spaces.setdefault(space_of(txn, raw), []).append(raw)
    for space, keys in spaces.items():
        entries = await lock(txn, space, [key_span(raw) for raw in keys], shared=True, fetch=keys)
        txn.reads.update(zip(keys, entries, strict=True))


async def lock(
    txn: Transaction, space: Space, spans: Sequence[Span], *, shared: bool = False, fetch: Sequence[Key] = ()
) -> Sequence[Entry | None]:
    """Have the ranges of a pessimistic transaction locked.

    What it wanted to write and did not get locked is part of its footprint. Of those who have all read a key and then
    want to write it, only one can go on; the others give way one by one, and would meet again like that if they did
    not ask for the stronger lock first."""
    if txn.deadline is not None:
        txn.check_time()
    locking = txn.engine.locking
    assert locking is not None
    try:
        return await txn.alone(locking.take(txn, space, spans, shared=shared, fetch=fetch))
    except BaseException:
        if not shared:
            txn.missed = space, tuple(spans)
        raise


async def give_way(txn: Transaction, space: Space) -> Mapping[Key, Expectation]:
    """Wait for the holders of locks on what a transaction writes to a space; see `Locking.give_way`."""
    locking = txn.engine.locking
    spans = written(txn, space)
    return {space.locks_key: ABSENT} if locking is None else await locking.give_way(txn, space, spans)


async def let_go(txn: Transaction) -> Reply | None:
    """Release the locks that a transaction holds, after its end. An interruption says that it has ended."""
    locking = txn.engine.locking
    assert locking is not None
    try:
        await locking.let_go(txn)
    except BaseException as interrupt:
        if txn.state == COMMITTED:
            interrupt.add_note("interlock: the transaction was COMMITTED; only releasing its locks was interrupted")
        raise
    return None


def written(txn: Transaction, space: Space) -> list[Span]:
    """The ranges of a space that a transaction writes."""
    prefix = space.prefix
    keys = [raw for raw in (*txn.writes, *(txn.chains or ())) if raw.startswith(prefix)]
    return [*map(key_span, keys), *(span for span in txn.clears or () if span.start.startswith(prefix))]


def footprint_of(txn: Transaction, earlier: Footprint | None) -> Footprint:
    """What a transaction has read and written, and what earlier attempts have."""
    found: Footprint = {} if earlier is None else dict(earlier)
    for space in txn.spaces():
        prefix = space.prefix
        reads = [key_span(raw) for raw in txn.reads if raw.startswith(prefix)]
        reads += modes.validated_spans(
            modes.SERIALIZABLE, [span for span in txn.spans or () if span.start.startswith(prefix)], ()
        )
        missed = txn.missed[1] if txn.missed is not None and txn.missed[0] is space else ()
        old_reads, old_writes = found.get(space, ([], []))
        merged = (
            list(dict.fromkeys([*old_reads, *reads])),
            list(dict.fromkeys([*old_writes, *written(txn, space), *missed])),
        )
        if merged[0] or merged[1]:
            found[space] = merged
    return found
