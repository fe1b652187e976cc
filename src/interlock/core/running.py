"""Running a function as a transaction, again after each conflict, until it commits or the policy ends it.

One attempt is: a fresh transaction, the look-up of the idempotency record, the function, the commit. Everything of a
losing attempt is dropped; only `memo` results are kept, because they were paid for. A lost reply to a commit is
settled here by asking for the outcome with a fence: the transaction has committed, or it never will and may run
again.

Nearly always the first attempt of a `run` is the only one, and is made in place, without anything of this: by
`interlock.store.Sessions.run` and `interlock.sync.running.run_in_place`. If it fails, `after_failure` goes on.

The function comes in two colours. The loop calls it and awaits what it returns only where the handle's world is
asynchronous; in the synchronous world nothing in here suspends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from interlock.core import idempotency
from interlock.core import isolation as modes
from interlock.core.carrying import fence
from interlock.core.commit import Replay, commit
from interlock.core.cursors import cursor_of
from interlock.core.engine import Engine
from interlock.core.extension import extend
from interlock.core.foresight import FRESH_SECONDS, Ahead, foresee, learn
from interlock.core.idempotency import Record
from interlock.core.locking import let_go
from interlock.core.options import DEFAULTS, Chosen
from interlock.core.refusals import transaction_text
from interlock.core.retrying import Retrying
from interlock.core.space import Resource
from interlock.core.straight import commit_now, look_now
from interlock.core.transaction import Transaction, current
from interlock.core.writing import Mark
from interlock.errors import CommitUnknownError, ConflictError, UsageError
from interlock.model import Key

T_co = TypeVar("T_co", covariant=True)


class Committed(msgspec.Struct, Generic[T_co], frozen=True):
    """A transaction that was done: what its function returned, and how.

    ``attempts`` counts the runs of the function (0 if it was found done before it ran); ``replayed``: the work had
    been done before under the same idempotency key, by ``transaction_id``; ``cursor`` is the place in the feed just
    behind it (None for a transaction that only read, and for a replay)."""

    value: T_co
    transaction_id: str
    attempts: int
    replayed: bool
    cursor: str | None


class Running(Retrying, eq=False):
    """One call of `run`. After `run`: what `detailed` makes of the last attempt."""

    handle: Callable[[Transaction, Resource | None], Any]
    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any] = msgspec.field(default_factory=dict)
    operation: str = ""
    record: Key | None = None
    fingerprint: bytes = b""
    replay: Replay | None = None
    last_transaction: Transaction | None = None

    def run(self) -> Coroutine[Any, Any, Any]:
        """Join the transaction that is open in this task, or make attempts until one commits; the function's result."""
        plain = self.chosen is DEFAULTS and current.get() is None
        return self._attempts() if plain else self._run()

    async def _run(self) -> Any:
        chosen, engine = self.chosen, self.engine
        parent = None if current.get() is None else engine.parent(chosen)
        key = chosen.idempotency_key
        if key is not None:
            self.identify(key, parent)
        if parent is not None:
            return await self._nested(parent)
        record = self.record
        if record is None:
            return await self._attempts()
        engine.keys_in_use.enter(record, self.fingerprint, key or "")
        try:
            return await self._attempts()
        finally:
            engine.keys_in_use.leave(record)

    def detailed(self, value: Any) -> Committed[Any]:
        """What `run` has done, after it."""
        if self.replay is not None:
            runs = self.attempt if self.replay.ran else self.attempt - 1
            return Committed(value, self.replay.transaction_id, runs, True, None)
        txn = self.last_transaction
        assert txn is not None
        cursor = None if txn.reply is None else cursor_of(txn.reply.token)
        return Committed(value, transaction_text(txn.id), self.attempt, False, cursor)

    def identify(self, key: str, parent: Transaction | None) -> Key:
        """Where the record of the key lies, and what it is used for."""
        name = "" if self.home is None else self.home.space.name
        self.operation = idempotency.operation_name(self.fn)
        self.record = record = idempotency.record_key(name, self.operation, key)
        if self.chosen.idempotency_fingerprint is not None:
            self.fingerprint = idempotency.given_fingerprint(self.chosen.idempotency_fingerprint)
        else:
            agent = self.chosen.agent or (parent.agent if parent is not None else self.engine.agent) or ""
            self.fingerprint = idempotency.call_fingerprint(agent, self.fn, self.arguments, self.named)
        return record

    async def _attempts(self) -> Any:
        engine = self.engine
        operation = self.operation or idempotency.operation_name(self.fn)
        value: Any = None
        while True:
            txn = self.last_transaction = await self.begin() if self.attempt else self.first()
            txn.operation = operation
            try:
                txn.context = current.set(txn)
                if self.record is not None and not look_now(txn, self.record):
                    await self._look_up(txn, self.record)
                value = self.fn(self.handle(txn, self.home), *self.arguments, **self.named)
                if type(value) is CoroutineType and engine.suspends:
                    value = await value
                else:
                    value = await other_colour(self.fn, value, engine.suspends)
                if self.record is not None:
                    self.add_record(txn, self.record, value)
                try:
                    if not commit_now(txn):
                        await commit(txn)
                except CommitUnknownError as unknown:
                    await self.settle(txn, unknown)
                if self.record is not None and engine.direct is None:
                    learn(self.home, operation, self.arguments, txn)
                return value
            except Replay as replay:
                txn.rollback()
                self.replay = replay
                return replay.result
            except BaseException as error:
                await self._take_failure(error, txn)
            finally:
                txn.leave_context()
            await self.pause()

    async def _take_failure(self, error: BaseException, txn: Transaction) -> None:
        """Roll back; raises, unless another attempt may follow."""
        txn.rollback(keep_locks=True)
        if txn.held is not None:
            await let_go(txn)
        self._check_function(error)
        self.judge(error, txn)

    async def go_on(self, txn: Transaction, begun: float, error: BaseException, value: Any) -> Any:
        """What comes after a first attempt that was made without a `Running` and has failed; ``value`` is what the
        function returned, if it was the commit that failed."""
        self.last_transaction, self.attempt, self.started, self.begun = txn, 1, begun, begun
        try:
            if type(error) is Replay:
                txn.rollback()
                self.replay = error
                return error.result
            unknown = txn.unsettled
            if unknown is not None and error is unknown:
                try:
                    await self.settle(txn, unknown)
                    return value
                except BaseException as unsettled:
                    error = unsettled
            await self._take_failure(error, txn)
        finally:
            txn.leave_context()
        await self.pause()
        return await self._attempts()

    def _check_function(self, error: BaseException) -> None:
        if not callable(self.fn):
            raise UsageError(f"run takes a function and its arguments, not {type(self.fn).__name__}") from error

    def _look_up(self, txn: Transaction, record: Key) -> Coroutine[Any, Any, None]:
        key = self.chosen.idempotency_key or ""
        return look_up(txn, self.home, self.operation, self.arguments, record, self.fingerprint, key)

    def add_record(self, txn: Transaction, record: Key, value: Any, nested: bool = False) -> None:
        """Have the commit write the record of the key."""
        key, ttl_seconds = self.chosen.idempotency_key or "", self.engine.idempotency_ttl_seconds
        made = Record(key, self.fingerprint, value, ttl_seconds, self.home, nested)
        txn.records = {record: made} if txn.records is None else {**txn.records, record: made}

    async def _nested(self, parent: Transaction) -> Any:
        """Run as part of the open transaction; an error that its caller catches takes back only this part."""
        self.last_transaction, self.attempt = parent, 1
        mark = Mark(parent)
        try:
            if self.chosen.fence is not None:
                fence(parent, self.chosen.fence)
            earlier = None if self.record is None or parent.records is None else parent.records.get(self.record)
            if earlier is not None:
                idempotency.check_fingerprint(
                    earlier.fingerprint or b"", self.fingerprint, self.chosen.idempotency_key or ""
                )
                self.replay = Replay(earlier.result, transaction_text(parent.id), ran=False)
                return earlier.result
            if self.record is not None:
                stored = await self._look_up_nested(parent, self.record)
                if stored is not None:
                    self.replay = Replay(stored.result, stored.transaction_id, ran=False)
                    return stored.result
            value = self.fn(self.handle(parent, self.home), *self.arguments, **self.named)
            value = await other_colour(self.fn, value, self.engine.suspends)
            if self.record is not None:
                self.add_record(parent, self.record, value, nested=True)
            return value
        except BaseException as error:
            mark.restore()
            self._check_function(error)
            raise

    async def _look_up_nested(self, parent: Transaction, record: Key) -> idempotency.Stored | None:
        """The record as the parent's snapshot has it; a newer one is a conflict at once, as it would be at the
        commit."""
        at = None if parent.mode == modes.NONE else parent.token
        reading = await parent.alone(parent.backend.read((record,), at))
        if at is None:
            parent.token = reading.token
        elif reading.superseded and parent.mode >= modes.OPTIMISTIC and await extend(parent):
            reading = await parent.alone(parent.backend.read((record,), parent.token))
        stored = idempotency.read_record(reading.entries[0], reading.at, self.home)
        key = self.chosen.idempotency_key or ""
        if stored is not None:
            idempotency.check_fingerprint(stored.fingerprint, self.fingerprint, key)
        elif reading.superseded:
            raise ConflictError(
                f"idempotency key {key!r} was used by another transaction meanwhile",
                transaction_id=transaction_text(parent.id),
            )
        return stored


async def other_colour(fn: Callable[..., Any], value: Any, suspends: bool) -> Any:
    """The result of a function that returned something else than a plain coroutine on an event loop."""
    if hasattr(value, "__await__"):
        if suspends:
            return await value
        if inspect.iscoroutine(value):
            value.close()
        raise UsageError(f"{fn!r} is an async function; use interlock instead of interlock.sync")
    if suspends:
        raise UsageError(f"{fn!r} is not an async function; write `async def`, or use interlock.sync")
    return value


async def look_up(
    txn: Transaction,
    home: Resource | None,
    operation: str,
    arguments: tuple[Any, ...],
    record: Key,
    fingerprint: bytes,
    key: str,
) -> None:
    """Take the snapshot in which the idempotency key has no record, and what the function is foreseen to read there.
    Raises `Replay` if there is a record."""
    keys = foresee(home, operation, arguments)
    reading = await txn.backend.read((record, *keys))
    txn.token = token = reading.token
    entry = reading.entries[0]
    stored = None if entry is None else idempotency.read_record(entry, reading.at, home)
    if stored is not None:
        idempotency.check_fingerprint(stored.fingerprint, fingerprint, key)
        raise Replay(stored.result, stored.transaction_id, ran=False)
    if keys:
        runtime = txn.engine.runtime
        entries = dict(zip(keys, reading.entries[1:], strict=True))
        txn.ahead = Ahead(token, runtime.monotonic() + FRESH_SECONDS, runtime, entries)


def after_failure(
    engine: Engine,
    home: Resource | None,
    handle: Callable[[Transaction, Resource | None], Any],
    fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    key: str | None,
    operation: str,
    record: Key | None,
    fingerprint: bytes,
) -> Running:
    """What goes on where the first attempt of a `run` with no option, or an idempotency key alone, was made in place
    and has failed."""
    chosen = DEFAULTS if key is None else Chosen(idempotency_key=key, usual=True)
    return Running(engine, home, chosen, handle, fn, arguments, {}, operation, record, fingerprint)
