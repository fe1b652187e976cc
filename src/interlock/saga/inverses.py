"""The inverse of a transaction, derived from what it replaced.

`capture` runs behind the transaction's function and before its commit. For each key that it writes, deletes, clears or
merges it notes how to take that back:

- ``add`` is taken back by the opposite ``add`` under the same bounds, and needs to know nothing; members that really
  were added to a set, or removed from it, likewise (the set is read for that).
- Every other key is read first, so that the value noted is the very value that the commit replaces: the key is part of
  the read set then, and a change in between is a conflict of the forward transaction.

`apply` is itself a validated transaction. A value is put back only if the key still holds what the transaction wrote:
a version carries the nonce of the transaction that made it, so it is known for certain who wrote last. If anybody else
did, nothing at all is put back, and the `ConflictError` says who.

A saga may write a key more than once. What its undos put back counts as written by whoever wrote it first: an inverse
notes the nonce of the version that it replaces, and `PutBack` says which nonce stands behind the version that an undo
has made. So the undo of an earlier step finds its own value again, and somebody else's is told from it even where a
later step had covered it. For that a merge of a key whose earlier value the saga has noted is noted as a value, too.

The opposite of an ``add`` must not be applied twice:
whoever may come again (a recovery) lets the undo's own commit say that it has happened, by ``note``.

The record of an idempotency key is taken back with the transaction, so that a later run under the same key does its
work again instead of being answered with what was undone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine
from typing import Any, Final

from interlock import codec, keys, merges
from interlock.core import refusals
from interlock.core.engine import Engine
from interlock.core.options import choose
from interlock.core.running import Running
from interlock.core.transaction import DELETE, MISSING, Transaction
from interlock.errors import ConflictError, InterlockError, UnsupportedError
from interlock.model import NONCE_MASK, Clash, Entry, Key, Merge, Operation, Put, Write
from interlock.stepping import step

Piece = list[Any]
"""["value", key, previous or None, nonce of its version], ["add", key, operations], ["set", key, to add, to remove], or
["record", key]."""

PutBack = dict[tuple[Key, int], int | None]
"""Key and nonce of an undo's transaction -> the nonce of the version that it stands for."""

VALUE, ADD, SET, RECORD = "value", "add", "set", "record"
_PAGE: Final = 500


async def capture(txn: Transaction, noted: Container[Key] = ()) -> list[Piece]:
    """How to take back what a transaction is going to commit. ``noted``: keys whose values earlier steps put back."""
    pieces: list[Piece] = []
    for key, write in list(txn.writes.items()):
        if key[:1] == keys.USER:
            pieces.append(await _capture_one(txn, key, write, noted))
    pieces += [await _value_piece(txn, key) for key in txn.chains or ()]
    for span in txn.clears or ():
        txn.plain = False
        txn.spans = [*(txn.spans or ()), span]
        start = span.start
        while True:
            page = await txn.backend.scan(span._replace(start=start), await _token(txn), limit=_PAGE)
            pieces += [
                [VALUE, key, entry.value, entry.version[1]] for key, entry in page.items if key not in txn.writes
            ]
            if not page.more:
                break
            start = page.items[-1][0] + b"\0"
    return pieces


async def _token(txn: Transaction) -> Any:
    if txn.token is None:
        await txn.need_token()
    return txn.token


async def _entry(txn: Transaction, key: Key) -> Entry | None:
    entry = txn.reads.get(key, MISSING)
    found: Entry | None = await txn.fetch(key) if entry is MISSING else entry
    return found


async def _value_piece(txn: Transaction, key: Key) -> Piece:
    entry = await _entry(txn, key)
    return [VALUE, key, None, None] if entry is None else [VALUE, key, entry.value, entry.version[1]]


async def _capture_one(txn: Transaction, key: Key, write: Write, noted: Container[Key]) -> Piece:
    if isinstance(write, Merge) and key not in noted:
        kinds = {operation.kind for operation in write.operations}
        if kinds == {"add"}:
            return [ADD, key, [_opposite(operation) for operation in reversed(write.operations)]]
        if kinds <= {"set_add", "set_remove"}:
            entry = await _entry(txn, key)
            before = None if entry is None else entry.value
            members = set() if before is None else codec.thaw(before)
            after = codec.thaw(merges.apply(before, write.operations))
            return [SET, key, sorted(map(codec.freeze_member, members - after)),
                    sorted(map(codec.freeze_member, after - members))]  # fmt: skip
    return await _value_piece(txn, key)


def _opposite(operation: Operation) -> list[Any]:
    back = merges.add_operation(-codec.thaw(operation.operand), None, None)
    return [back.operand, operation.floor, operation.ceiling]


async def apply(
    engine: Engine,
    agent: str,
    pieces: list[Piece],
    transaction: int,
    force: Any = None,
    put_back: PutBack | None = None,
    note: Callable[[Transaction], None] | None = None,
    run_id: str | None = None,
) -> Transaction:
    """Take a transaction back. Raises `ConflictError`, naming who changed a value since; nothing is written then.

    ``force(conflict)``: asked about each; True puts the earlier value back all the same, False leaves that key.
    ``put_back``: of the saga's other undos on this store. ``note(txn)``: adds to the commit. Returns the transaction
    that has committed."""
    ours = Ours(transaction & NONCE_MASK, put_back or {})

    async def body(txn: Transaction) -> None:
        clashes: list[Clash] = []
        for piece in pieces:
            clash = await _take_back(txn, piece, ours, force)
            if clash is not None:
                clashes.append(clash)
        if clashes:
            raise _Changed(refusals.conflict_error(clashes, {}, txn.id))
        if note is not None:
            note(txn)

    def plain(txn: Transaction) -> None:
        step(body(txn))

    fn: Callable[[Transaction], Coroutine[Any, Any, None] | None] = body if engine.runtime.suspends else plain
    body.__qualname__ = plain.__qualname__ = "undo of a transaction"
    options = {"agent": agent, "detached": True, "isolation": "serializable", "run_id": run_id}
    chosen = choose(options, retries=True)
    running: Running = Running(engine, None, chosen, lambda txn, _home: txn, fn, ())
    try:
        await running.run()
    except _Changed as changed:
        raise changed.conflict from None
    committed = running.last_transaction
    assert committed is not None  # without an idempotency key there is no replay
    return committed


class _Changed(InterlockError):
    """Carries the conflict out of the retry loop, which would run a `ConflictError` again in vain."""

    def __init__(self, conflict: ConflictError) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


async def _take_back(txn: Transaction, piece: Piece, ours: Ours, force: Any) -> Clash | None:
    kind, key = piece[0], piece[1]
    if kind == RECORD:
        entry = await txn.fetch(key)
        if entry is not None and entry.value is not None and entry.version[1] == ours.nonce:
            txn.before_write()
            txn.writes[key] = DELETE
        return None
    found = keys.split(key)
    assert found is not None
    txn.touch(txn.engine.resource(found[0]).space)
    txn.before_write()
    if kind == ADD:
        txn.writes[key] = Merge(tuple(Operation("add", *each) for each in piece[2]))
    elif kind == SET:
        operations = [Operation("set_add", each) for each in piece[2]]
        operations += [Operation("set_remove", each) for each in piece[3]]
        if operations:
            txn.writes[key] = Merge(tuple(operations))
    else:
        entry = await txn.fetch(key)
        if not ours.left(key, entry, piece[2]):
            clash = await _clash(txn, key, entry, ours)
            answer = None if force is None else force(refusals.conflict_error([clash], {}, txn.id).conflicts[0])
            if answer is None:
                return clash
            if not answer:
                return None
        txn.writes[key] = DELETE if piece[2] is None else Put(piece[2])
    return None


class Ours:
    """What counts as written by the transaction that is taken back."""

    __slots__ = ("nonce", "put_back")

    def __init__(self, nonce: int, put_back: PutBack) -> None:
        self.nonce = nonce
        self.put_back = put_back

    def author_of(self, key: Key, entry: Entry) -> int | None:
        """The nonce that stands behind a version."""
        nonce: int | None = entry.version[1]
        while nonce is not None and (key, nonce) in self.put_back:
            nonce = self.put_back[key, nonce]
        return nonce

    def left(self, key: Key, entry: Entry | None, previous: bytes | None) -> bool:
        """Whether a key still is as the transaction left it; also where that is what it was before."""
        if entry is None:  # a tombstone may have been compacted away
            return True
        author = self.author_of(key, entry)
        if entry.value is None:
            return author is None or author == self.nonce or previous is None
        return author == self.nonce or entry.value == previous


def restored(pieces: list[Piece], undo: int) -> PutBack:
    """What an undo's transaction has put back, once it has committed."""
    return {(piece[1], undo & NONCE_MASK): piece[3] for piece in pieces if piece[0] == VALUE}


async def _clash(txn: Transaction, key: Key, entry: Entry | None, ours: Ours) -> Clash:
    """Who changed a key since, as far as the engine still knows."""
    try:
        history = await txn.backend.history(key, limit=_PAGE)
    except UnsupportedError:
        history = []
    author = None if entry is None else ours.author_of(key, entry)
    found = [each for each in history if each[0].version[1] == author] or history
    return Clash(key, "write", entry, found[0][1] if found else None)
