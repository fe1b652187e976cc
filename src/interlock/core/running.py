"""Running a function as a transaction, again after each conflict, until it commits or the policy ends it.

One attempt is: a fresh transaction, the look-up of the idempotency record, the function, the commit. Everything of a
losing attempt is dropped; only `memo` results are kept, because they were paid for. A lost reply to a commit is
settled here by asking for the outcome with a fence: the transaction has committed, or it never will and may run
again.

The function comes in two colours. The loop calls it and awaits what it returns only where the handle's world is
asynchronous; in the synchronous world nothing in here suspends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from interlock.core import idempotency
from interlock.core.commit import Replay, commit
from interlock.core.cursors import cursor_of
from interlock.core.engine import Engine
from interlock.core.idempotency import Record
from interlock.core.options import Chosen
from interlock.core.refusals import transaction_text
from interlock.core.retrying import Retrying
from interlock.core.space import Resource
from interlock.core.transaction import Transaction
from interlock.core.writing import Mark
from interlock.errors import CommitUnknownError, UsageError
from interlock.model import Key

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Committed(Generic[T_co]):
    """A transaction that was done: what its function returned, and how.

    ``attempts`` counts the runs of the function (0 for a replay); ``replayed``: the work had been done before under the
    same idempotency key; ``cursor`` is the place in the feed just behind it (None for a read-only one or a replay)."""

    value: T_co
    transaction_id: str
    attempts: int
    replayed: bool
    cursor: str | None


class Running(Retrying):
    """One call of `run`."""

    __slots__ = ("arguments", "fingerprint", "fn", "handle", "named", "record")

    def __init__(
        self,
        engine: Engine,
        home: Resource | None,
        chosen: Chosen,
        handle: Callable[[Transaction, Resource | None], Any],
        fn: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        if not callable(fn):
            raise UsageError(f"run takes a function and its arguments, not {type(fn).__name__}")
        super().__init__(engine, home, chosen)
        self.handle = handle
        self.fn = fn
        self.arguments = arguments
        self.named = named
        self.record: Key | None = None
        self.fingerprint = b""

    async def run(self) -> Committed[Any]:
        """Join the transaction that is open in this task, or make attempts until one commits."""
        chosen, engine = self.chosen, self.engine
        parent = engine.parent(detached=chosen.detached, isolation=chosen.isolation)
        key = chosen.idempotency_key
        if key is not None:
            self._identify(key, parent)
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

    def _identify(self, key: str, parent: Transaction | None) -> None:
        name = "" if self.home is None else self.home.space.name
        self.record = idempotency.record_key(name, idempotency.operation_name(self.fn), key)
        if self.chosen.idempotency_fingerprint is not None:
            self.fingerprint = idempotency.given_fingerprint(self.chosen.idempotency_fingerprint)
            return
        agent = self.chosen.agent or (parent.agent if parent is not None else self.engine.agent) or ""
        self.fingerprint = idempotency.call_fingerprint(agent, self.fn, self.arguments, self.named)

    async def _attempts(self) -> Committed[Any]:
        while True:
            done = await self._one_attempt()
            if done is not None:
                return done
            await self.pause()

    async def _one_attempt(self) -> Committed[Any] | None:
        """None after a failure that allows another attempt."""
        txn = await self.begin()
        txn.operation = idempotency.operation_name(self.fn)
        txn.enter_context()
        value: Any = None
        try:
            if self.record is not None:
                await self._look_up(txn, self.record)
            value = await self._call(txn)
            self._add_record(txn, value)
            reply = await commit(txn)
        except Replay as replay:
            txn.rollback()
            return Committed(replay.result, transaction_text(txn.id), self.attempt - 1, True, None)
        except CommitUnknownError as unknown:
            if not await self.settle(txn, unknown):
                return None
            return Committed(value, transaction_text(txn.id), self.attempt, False, None)
        except BaseException as error:
            txn.rollback()
            self.judge(error, txn)
            return None
        finally:
            txn.leave_context()
        cursor = None
        if reply is not None:
            cursor = cursor_of(reply.token)
            await self.engine.housekeep()
        return Committed(value, transaction_text(txn.id), self.attempt, False, cursor)

    async def _look_up(self, txn: Transaction, record: Key) -> None:
        reading = await txn.backend.read((record,))
        txn.token = reading.token
        stored = idempotency.read_record(reading.entries[0], reading.at)
        if stored is not None:
            idempotency.check_fingerprint(stored[0], self.fingerprint, self.chosen.idempotency_key or "")
            raise Replay(stored[1])

    async def _call(self, txn: Transaction) -> Any:
        value = self.fn(self.handle(txn, self.home), *self.arguments, **self.named)
        if hasattr(value, "__await__"):
            if self.engine.runtime.suspends:
                return await value
            if inspect.iscoroutine(value):
                value.close()
            raise UsageError(f"{self.fn!r} is an async function; use interlock instead of interlock.sync")
        if self.engine.runtime.suspends:
            raise UsageError(f"{self.fn!r} is not an async function; write `async def`, or use interlock.sync")
        return value

    def _add_record(self, txn: Transaction, value: Any) -> None:
        if self.record is not None:
            key, ttl_seconds = self.chosen.idempotency_key or "", self.engine.idempotency_ttl_seconds
            txn.records = {**(txn.records or {}), self.record: Record(key, self.fingerprint, value, ttl_seconds)}

    async def _nested(self, parent: Transaction) -> Committed[Any]:
        """Run as part of the open transaction; an error that its caller catches takes back only this part."""
        mark = Mark(parent)
        try:
            if self.record is not None:
                reading = await parent.backend.read((self.record,))
                stored = idempotency.read_record(reading.entries[0], reading.at)
                if stored is not None:
                    idempotency.check_fingerprint(stored[0], self.fingerprint, self.chosen.idempotency_key or "")
                    return Committed(stored[1], transaction_text(parent.id), 0, True, None)
            value = await self._call(parent)
            self._add_record(parent, value)
        except BaseException:
            mark.restore()
            raise
        return Committed(value, transaction_text(parent.id), 1, False, None)
