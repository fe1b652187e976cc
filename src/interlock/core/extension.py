"""Snapshot extension: moving a snapshot forward while everything that was read is still unchanged.

An agent thinks for seconds between its reads; when it then meets something newer than its snapshot, it is better to
learn at once whether the ground still holds than at the commit, after more thinking. So in the modes that validate
what was read, such a read validates everything read so far. If it holds, the transaction might as well have begun now,
and its snapshot moves there. If not, it can never commit a write: one that has written conflicts at once, one that has
not goes on with its old snapshot (who only reads never aborts) and conflicts when it first writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import isolation as modes
from interlock.core.calls import BUSY
from interlock.errors import BackendUnavailableError, CommitUnknownError
from interlock.model import CommitRefused, CommitRequest, Reply

if TYPE_CHECKING:
    from interlock.core.transaction import Transaction


async def extend(txn: Transaction, *, always_raise: bool = False) -> bool:
    """Move the snapshot forward if everything read still holds; else conflict, or go on with the old one.

    In optimistic mode a range that has changed is no conflict; it only keeps the snapshot where it is, because a
    transaction never sees two states."""
    if txn.stale is None and (always_raise or not txn.pinned):
        token = await txn.need_token()
        expected = txn.expectations({})
        spans = modes.validated_spans(modes.SERIALIZABLE, txn.spans or (), ())
        request = CommitRequest(txn.id, txn.agent, txn.isolation, token, expected, {}, {}, spans)
        try:
            reply = await _validate(txn, request)
        except CommitRefused as refused:
            clashes, txn.plain = refused.clashes, False
            if txn.mode < modes.SERIALIZABLE:
                clashes = tuple(clash for clash in clashes if clash.kind != "range")
                txn.pinned = True
            txn.stale = clashes or None
        else:
            txn.token, txn.pinned = reply.token, False
            return True
    if txn.stale and (txn.writes or txn.clears or txn.chains or txn.records or always_raise):
        raise txn.conflict(txn.stale)
    return False


async def check(txn: Transaction) -> None:
    """Conflict now if anything read has changed, else move the snapshot forward. No effect in mode ``none``."""
    if txn.state:
        txn.refuse("check")
    try:
        txn.check_time()
        if txn.mode == modes.SNAPSHOT:
            await _check_written(txn)
        elif txn.mode != modes.NONE:
            await extend(txn, always_raise=True)
    except BaseException as error:
        txn.doom(error)
        raise


async def _check_written(txn: Transaction) -> None:
    token = await txn.need_token()
    expected = txn.expectations(txn.writes)
    try:
        await _validate(txn, CommitRequest(txn.id, txn.agent, txn.isolation, token, expected, {}, {}))
    except CommitRefused as refused:
        raise txn.conflict(refused.clashes) from None


async def _validate(txn: Transaction, request: CommitRequest) -> Reply:
    """Send a request that writes nothing. If its reply is lost, nothing is unknown."""
    before, txn.state = txn.state, BUSY
    try:
        return await txn.backend.commit(request)
    except CommitUnknownError as error:
        raise BackendUnavailableError("the reply to a validation was lost; nothing was written") from error
    finally:
        if txn.state == BUSY:
            txn.state = before
