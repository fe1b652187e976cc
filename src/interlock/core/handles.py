"""What the session handles of both worlds share: opening, joining, ending, and the calls that only need reads.

Coroutines that suspend only where the backend does, so that the asynchronous handle awaits them and the synchronous
one steps them."""

from __future__ import annotations

import copy
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from interlock.core import idempotency, writing
from interlock.core.calls import ACTIVE, BUSY, CHECKING, COMMITTED, ENDED, LEFT, READY, ROLLED_BACK, SENDING
from interlock.core.commit import Replay, commit
from interlock.core.cursors import cursor_of
from interlock.core.engine import Engine
from interlock.core.locking import let_go
from interlock.core.options import Chosen
from interlock.core.refusals import transaction_text
from interlock.core.retrying import Retrying
from interlock.core.running import Committed
from interlock.core.space import Resource
from interlock.core.transaction import MISSING, Settle, Transaction, current
from interlock.errors import CommitUnknownError, TransactionError, UsageError
from interlock.model import Reply


class Handle(msgspec.Struct, eq=False):
    """What the handles of both worlds share: a transaction, and the resource that calls without `on` mean. A struct,
    because one is made for each session without running any Python."""

    _txn: Transaction
    _home: Resource | None
    _mark: writing.Mark | None = None

    def _sibling(self, resource: Resource) -> Any:
        """The same session on another resource; one that has joined its parent ends with this one."""
        handle = type(self)(self._txn, resource)
        if self._mark is not None:
            handle._mark = self._mark
            self._mark.handles.append(handle)
        return handle

    def _bound(self, call: str) -> Resource:
        if self._home is None:
            raise UsageError(f"session.{call}: a store's session is bound to no resource; use session.on(resource)")
        return self._home

    def __repr__(self) -> str:
        name = None if self._home is None else self._home.space.name
        return f"<{type(self).__name__} {transaction_text(self._txn.id)} of {self._txn.agent!r} on {name!r}>"


H = TypeVar("H", bound=Handle)


async def expect(txn: Transaction, resource: Resource, key: Any) -> Any:
    """The value of a key, or `NotFoundError`, which dooms the session."""
    value = await txn.read(resource, key, MISSING)
    if value is MISSING:
        error = writing.not_found(resource, key)
        txn.doom(error)
        raise error
    return value


async def exists(txn: Transaction, resource: Resource, key: Any) -> bool:
    """Whether a key has a value."""
    return await txn.read(resource, key, MISSING) is not MISSING


def doom(txn: Transaction, reason: str) -> None:
    """`AgentSession.doom` of both worlds."""
    if txn.state:
        txn.refuse("doom")
    txn.doom(TransactionError(f"doomed: {reason}", transaction_id=transaction_text(txn.id)))


def stage(txn: Transaction, effect: str, payload: Any, key: str) -> Coroutine[Any, Any, None]:
    """`AgentSession.stage` of both worlds."""
    staging = txn.engine.stage
    if staging is None:
        raise UsageError("this store keeps no effects")
    return staging(txn, effect, payload, key)


def finish(txn: Transaction) -> Coroutine[Any, Any, Reply | None]:
    """Commit; a replay ends the session without writing."""
    if txn.settle is not None:
        return _finish_settled(txn, txn.settle)
    return commit(txn) if txn.records is None else _finish_keyed(txn)


async def _finish_keyed(txn: Transaction) -> Reply | None:
    try:
        return await commit(txn)
    except Replay:
        txn.replayed, txn.error = True, None
        return None


async def _finish_settled(txn: Transaction, settle: Settle) -> Reply | None:
    """Commit; a lost reply is settled here, so that a `return` on the way out of the session is not lost with it."""
    try:
        return await _finish_keyed(txn)
    except CommitUnknownError as unknown:
        await settle(txn, unknown)
        return txn.reply


def leave(txn: Transaction, error: BaseException | None) -> Coroutine[Any, Any, Reply | None] | None:
    """What the exit of a session still has to await. Raises again what an explicit commit has raised and the body has
    swallowed."""
    if error is not None:
        txn.rollback(keep_locks=True)
        return None if txn.held is None else let_go(txn)
    if txn.state not in (COMMITTED, ROLLED_BACK):
        return finish(txn)
    if txn.error is not None:
        raise txn.error
    return None


def committed(txn: Transaction, reply: Reply | None) -> Committed[None]:
    """What `commit` returns."""
    cursor = None if reply is None else cursor_of(reply.token)
    return Committed(None, transaction_text(txn.id), txn.attempt, txn.replayed, cursor)


def refuse_joined(session: Handle, call: str) -> None:
    """A nested session has no end of its own."""
    if session._mark is not None:
        raise UsageError(f"session.{call}: this session has joined its parent, which ends it")


def roll_back(session: Handle, *, keep_locks: bool = False) -> None:
    """`AgentSession.rollback` of both worlds."""
    if session._mark is not None:
        if session._txn.state in ENDED:
            session._txn.refuse("rollback")
        session._mark.restore()
        _leave_parent(session)
    elif session._txn.state in (*ENDED, BUSY, CHECKING, SENDING):
        session._txn.refuse("rollback")
    else:
        session._txn.rollback(keep_locks=keep_locks)


def open_context(session: Handle) -> None:
    """Entering: a new transaction becomes the current one, a joined one sets its mark."""
    txn = session._txn
    if session._mark is not None:
        if txn.state:
            txn.refuse("enter")
        session._mark = writing.Mark(txn)
        return
    txn.engine.check_open()
    if txn.state != READY:
        txn.refuse("enter")
    txn.state = ACTIVE
    txn.context = current.set(txn)


def close_joined(session: Handle, error: BaseException | None) -> None:
    """Leaving a joined session."""
    assert session._mark is not None
    if error is not None and session._txn.state not in ENDED:
        session._mark.restore()
    _leave_parent(session)


def _leave_parent(session: Handle) -> None:
    """A joined session and its handles of other resources end; the parent goes on."""
    assert session._mark is not None
    ended = copy.copy(session._txn)
    ended._id, ended.state = session._txn.id, LEFT
    for handle in (session, *session._mark.handles):
        handle._txn = ended


class Savepoint:
    """A mark inside a transaction; an exception on the way out rolls back to it."""

    __slots__ = ("_mark", "_txn")

    def __init__(self, transaction: Transaction) -> None:
        if transaction.state:
            transaction.refuse("savepoint")
        self._txn = transaction
        self._mark: writing.Mark | None = None

    def __enter__(self) -> None:
        self._mark = writing.Mark(self._txn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._mark is not None:
            self._mark.restore()


def prepare(session: Handle, resource: Resource | None, chosen: Any) -> None:
    """Give a new session its idempotency key."""
    key = chosen.idempotency_key
    if key is None:
        return
    txn = session._txn
    name = "" if resource is None else resource.space.name
    fingerprint = None
    if chosen.idempotency_fingerprint is not None:
        fingerprint = idempotency.given_fingerprint(chosen.idempotency_fingerprint)
    record = idempotency.Record(key, fingerprint, None, txn.engine.idempotency_ttl_seconds)
    txn.records = {idempotency.record_key(name, idempotency.SESSION, key): record}


def refuse_nested_attempts(engine: Engine, chosen: Chosen) -> None:
    """`attempts` begins transactions of its own. Raises `UsageError` inside an open session."""
    if engine.parent(chosen) is not None:
        raise UsageError(
            "attempts begins transactions of its own; inside a session use run or session, which join it, or pass "
            "detached=True"
        )


def judge(retrying: Retrying, error: BaseException, txn: Transaction) -> bool:
    """True where a failed attempt is followed by another; raises or returns False where its error goes on."""
    txn.rollback()
    try:
        retrying.judge(error, txn)
    except BaseException as verdict:
        if verdict is error:
            return False
        raise
    return True


def new_session(kind: type[H], engine: Engine, resource: Resource | None, chosen: Chosen) -> H:
    """A session that waits to be entered: one of its own, or one that joins its parent."""
    parent = None if current.get() is None else engine.parent(chosen)
    if parent is not None:
        if chosen.idempotency_key is not None:
            raise UsageError(
                "a session that joins its parent has no commit of its own to bind idempotency_key= to; use run, whose "
                "record the parent's commit writes, or pass detached=True"
            )
        if chosen.fence is not None:
            raise UsageError(
                "a session that joins its parent is fenced inside it, with session.fence(...), or pass detached=True"
            )
        session = kind(parent, resource)
        session._mark = writing.Mark(parent)
        return session
    txn = engine.start(resource, chosen, None)
    txn.state = READY
    session = kind(txn, resource)
    if chosen.idempotency_key is not None:
        prepare(session, resource, chosen)
    return session


def begin_session(kind: type[H], engine: Engine, resource: Resource | None, chosen: Chosen) -> H:
    """A session that is active at once and belongs to no ``with``."""
    session = kind(engine.start(resource, chosen, None), resource)
    prepare(session, resource, chosen)
    return session
