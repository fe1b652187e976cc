"""A quiet request that only puts, judged and decided in one go: what layers send all the time.

`decide` does to a `Batch` what `Batch.look` and `Batch.commit` would do, in one flat function, and is sure of each step
or says None. Then nothing has changed, and the general way judges the request and says what is wrong with it. So
nothing here refuses anything, and nothing but time depends on it.

What it is sure of: where the feed begins and ends, because the writer has kept that from its own last commit
(`Newest.ends`) and SQLite has said in this transaction that nobody has committed since; that the id is new, because it
is neither among those that are kept nor low enough to be in the table; that the snapshot is a state of this store; and
of every key the newest row, from memory or by looking it up. A key that is expected to be absent, and of which nothing
is known, is not looked up if it is put: it is inserted without replacing, so SQLite refuses it if it has a row
(``batch.fresh``), and whoever makes the turn starts again by the general way.
"""

from __future__ import annotations

from interlock.backends.sqlite import record as records
from interlock.backends.sqlite import trail as trails
from interlock.backends.sqlite.batch import SIGN, Batch
from interlock.backends.sqlite.change import Rows, Written
from interlock.backends.sqlite.statements import (
    IN_ORDER,
    LEFT_ORDER,
    LISTED,
    NONCE,
    POSITION,
    TRAIL,
    UNLISTED,
    VALUE,
    find,
)
from interlock.model import ABSENT, NONCE_MASK, CommitRequest, Put, Reply, Token


def decide(batch: Batch, request: CommitRequest, *, blind: bool) -> Reply | None:
    """Decide the only request of a batch; None if it is not as described above. ``blind``: keys may be left for SQLite
    to refuse."""
    identity = request.transaction.to_bytes(16, "big")
    if not _is_sure(batch, request, identity):
        return None
    _look(batch, request, blind)
    rows, now = batch.rows, batch.now
    for key, expected in request.guards.items():
        row = rows.get(key)
        if row is None:
            if expected is not ABSENT:
                return None
        elif type(expected) is not tuple or (
            row[POSITION] != expected[0] or row[NONCE] & NONCE_MASK != expected[1] or row[VALUE] is None
        ):
            return None
    position = batch.head + 1
    nonce = request.transaction & NONCE_MASK
    signed = nonce if nonce < SIGN else nonce - 2 * SIGN
    trail: trails.Trail
    image: records.Image | None
    changed: Rows = {}
    written: Written = {}
    for key, write in request.writes.items():
        if type(write) is not Put:
            return None
        old, ttl_seconds = rows.get(key), write.ttl_seconds
        expires_at = None if ttl_seconds is None else now + ttl_seconds
        kind = records.PUT if write.listed else records.PUT_UNLISTED
        listed = IN_ORDER if write.listed else UNLISTED if old is None or not old[LISTED] else LEFT_ORDER
        if old is None:
            trail, image = trails.FIRST, None
        elif old[VALUE] is None:
            trail, image = trails.following(old[TRAIL], old[POSITION]), old[1:]
        elif old[TRAIL] == trails.QUIET:
            trail, image = trails.QUIET, (old[POSITION], old[NONCE], None, 0, trails.QUIET, old[LISTED])
        else:
            trail, image = trails.QUIET, old[1:]
        changed[key] = (key, position, signed, write.value, expires_at or 0, trail, listed)
        written[key] = (kind, ttl_seconds, None, expires_at, image)
    identity = batch.new_id(now)
    record = records.encode((written,))
    batch.feed.append((position, identity, now, record, records.marks_of(written) | records.SILENT))
    batch.bytes += len(record)
    rows.update(changed)
    batch.changed = changed
    return Reply((position, nonce), Token(batch.store, 1, position, identity), now)


def _is_sure(batch: Batch, request: CommitRequest, identity: bytes) -> bool:
    """Whether the request is quiet and plain, its id new, its snapshot kept, and the end of the feed known."""
    ends, known, token = batch.newest.ends, batch.known, request.snapshot
    if not request.quiet or ends is None or known.horizon != ends[2] or not known.outcomes.is_new(identity, ends[0]):
        return False
    if request.reads or request.spans or request.clears or request.alive or request.fetch:
        return False
    batch.head, batch.head_id, batch.horizon = ends
    detail = batch.head_id if token.position == batch.head else known.ids.get(token.position)
    return (
        token.store == batch.store
        and token.incarnation == 1
        and detail == token.detail
        and token.position >= batch.horizon
        and identity > known.forgotten_fence
    )


def _look(batch: Batch, request: CommitRequest, blind: bool) -> None:
    """Look up the keys. Only keys that are put are left for SQLite to refuse."""
    writes, guards = request.writes, request.guards
    missing = batch.newest.look(writes, batch.rows)
    if not guards.keys() <= writes.keys():
        others = batch.newest.look(guards.keys() - writes.keys(), batch.rows)
        if others:
            blind = False
            missing += others
    if missing:
        if blind and len(missing) == len(writes) and all(guards.get(key) is ABSENT for key in missing):
            batch.fresh = True
        else:
            find(batch.connection, missing, batch.rows, with_feed=False)
