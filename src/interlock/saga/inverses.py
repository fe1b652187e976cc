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
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
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
"""["value", key, previous or None], ["add", key, operations], or ["set", key, to add, to remove]."""

VALUE, ADD, SET = "value", "add", "set"
_PAGE: Final = 500


async def capture(txn: Transaction) -> list[Piece]:
    """How to take back what a transaction is going to commit."""
    pieces: list[Piece] = []
    for key, write in list(txn.writes.items()):
        if key[:1] == keys.USER:
            pieces.append(await _capture_one(txn, key, write))
    pieces += [[VALUE, key, await _value(txn, key)] for key in txn.chains or ()]
    for span in txn.clears or ():
        txn.plain = False
        txn.spans = [*(txn.spans or ()), span]
        start = span.start
        while True:
            page = await txn.backend.scan(span._replace(start=start), await _token(txn), limit=_PAGE)
            pieces += [[VALUE, key, entry.value] for key, entry in page.items if key not in txn.writes]
            if not page.more:
                break
            start = page.items[-1][0] + b"\0"
    return pieces


async def _token(txn: Transaction) -> Any:
    if txn.token is None:
        await txn.need_token()
    return txn.token


async def _value(txn: Transaction, key: Key) -> bytes | None:
    entry = txn.reads.get(key, MISSING)
    if entry is MISSING:
        entry = await txn.fetch(key)
    value: bytes | None = None if entry is None else entry.value
    return value


async def _capture_one(txn: Transaction, key: Key, write: Write) -> Piece:
    if isinstance(write, Merge):
        kinds = {operation.kind for operation in write.operations}
        if kinds == {"add"}:
            return [ADD, key, [_opposite(operation) for operation in reversed(write.operations)]]
        if kinds <= {"set_add", "set_remove"}:
            before = await _value(txn, key)
            members = set() if before is None else codec.thaw(before)
            after = codec.thaw(merges.apply(before, write.operations))
            return [SET, key, sorted(map(codec.freeze_member, members - after)),
                    sorted(map(codec.freeze_member, after - members))]  # fmt: skip
    return [VALUE, key, await _value(txn, key)]


def _opposite(operation: Operation) -> list[Any]:
    back = merges.add_operation(-codec.thaw(operation.operand), None, None)
    return [back.operand, operation.floor, operation.ceiling]


async def apply(engine: Engine, agent: str, pieces: list[Piece], transaction: int, force: Any = None) -> None:
    """Take a transaction back. Raises `ConflictError`, naming who changed a value since; nothing is written then.

    ``force(conflict)``: asked about each; True puts the earlier value back all the same, False leaves that key."""

    async def body(txn: Transaction) -> None:
        clashes: list[Clash] = []
        for piece in pieces:
            clash = await _take_back(txn, piece, transaction, force)
            if clash is not None:
                clashes.append(clash)
        if clashes:
            raise _Changed(refusals.conflict_error(clashes, {}, txn.id))

    def plain(txn: Transaction) -> None:
        step(body(txn))

    fn: Callable[[Transaction], Coroutine[Any, Any, None] | None] = body if engine.runtime.suspends else plain
    body.__qualname__ = plain.__qualname__ = "undo of a transaction"
    chosen = choose({"agent": agent, "detached": True, "isolation": "serializable"}, retries=True)
    try:
        await Running(engine, None, chosen, lambda txn, _home: txn, fn, ()).run()
    except _Changed as changed:
        raise changed.conflict from None


class _Changed(InterlockError):
    """Carries the conflict out of the retry loop, which would run a `ConflictError` again in vain."""

    def __init__(self, conflict: ConflictError) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


async def _take_back(txn: Transaction, piece: Piece, transaction: int, force: Any) -> Clash | None:
    kind, key = piece[0], piece[1]
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
        if not _is_ours(entry, transaction, piece[2]):
            clash = await _clash(txn, key, entry)
            answer = None if force is None else force(refusals.conflict_error([clash], {}, txn.id).conflicts[0])
            if answer is None:
                return clash
            if not answer:
                return None
        txn.writes[key] = DELETE if piece[2] is None else Put(piece[2])
    return None


def _is_ours(entry: Entry | None, transaction: int, previous: bytes | None) -> bool:
    """Whether a key still is as the transaction left it; also where that is what it was before."""
    if entry is None or entry.value is None:  # a tombstone may have been compacted away
        return entry is None or entry.version[1] == transaction & NONCE_MASK or previous is None
    return entry.version[1] == transaction & NONCE_MASK or entry.value == previous


async def _clash(txn: Transaction, key: Key, entry: Entry | None) -> Clash:
    try:
        history = await txn.backend.history(key, limit=1)
    except UnsupportedError:
        history = []
    author = history[0][1] if history else None
    return Clash(key, "write", entry, author)
