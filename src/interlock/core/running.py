"""Running a function as a transaction, again after each conflict, until it commits or the policy ends it.

One attempt is: a fresh transaction, the look-up of the idempotency record, the function, the commit. Everything of a losing
attempt is dropped; only `memo` results are kept, because they were paid for. A lost reply to a commit is settled here by asking
for the outcome with a fence: the transaction has committed, or it never will and may run again.

The function comes in two colours. The loop calls it and awaits what it returns only where the handle's world is asynchronous; in
the synchronous world nothing in here suspends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from interlock.core import idempotency
from interlock.core.commit import Replay, commit
from interlock.core.engine import Engine
from interlock.core.idempotency import Record
from interlock.core.options import Chosen
from interlock.core.refusals import transaction_text
from interlock.core.retry import RetryPolicy, backoff_seconds, retryable_cause
from interlock.core.space import Resource
from interlock.core.transaction import Transaction
from interlock.core.writing import Mark
from interlock.errors import (
    BackendUnavailableError,
    CommitUnknownError,
    ConflictError,
    DeadlineExceededError,
    IdempotencyMismatchError,
    InterlockError,
    RetriesExhaustedError,
    SnapshotTooOldError,
    UsageError,
)
from interlock.model import Key, Settled

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


class Running:
    """One call of `run`: its options, its key, and what is kept between attempts."""

    __slots__ = (
        "arguments",
        "attempt",
        "chosen",
        "deadline",
        "engine",
        "fingerprint",
        "fn",
        "handle",
        "home",
        "hot",
        "last",
        "memos",
        "named",
        "operation",
        "policy",
        "record",
        "started",
    )

    def __init__(
        self,
        engine: Engine,
        home: Resource | None,
        handle: Callable[[Transaction, Resource | None], Any],
        fn: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        chosen: Chosen,
    ) -> None:
        if not callable(fn):
            raise UsageError(f"run takes a function and its arguments, not {type(fn).__name__}")
        self.engine = engine
        self.home = home
        self.handle = handle
        self.fn = fn
        self.arguments = arguments
        self.named = named
        self.chosen = chosen
        self.policy: RetryPolicy = chosen.retry or engine.retry
        self.operation = idempotency.operation_name(fn)
        self.attempt = 0
        self.started = 0.0
        self.deadline: float | None = None
        self.hot: Key | None = None
        self.last: InterlockError | None = None
        self.memos: dict[Any, Any] = {}
        self.record: Key | None = None
        self.fingerprint = b""

    async def run(self) -> Committed[Any]:
        """Joins the transaction that is open in this task, or makes attempts until one commits."""
        chosen = self.chosen
        parent = self.engine.parent(detached=chosen.detached, isolation=chosen.isolation)
        if chosen.idempotency_key is not None:
            self._identify(chosen.idempotency_key, parent)
        if parent is not None:
            return await self._nested(parent)
        if self.record is None:
            return await self._attempts()
        with _KeyInUse(self.engine, self.record, self.fingerprint, chosen.idempotency_key or ""):
            return await self._attempts()

    def _identify(self, key: str, parent: Transaction | None) -> None:
        name = "" if self.home is None else self.home.space.name
        self.record = idempotency.record_key(name, self.operation, key)
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
            await self._pause()

    async def _one_attempt(self) -> Committed[Any] | None:
        """None after a failure that allows another attempt."""
        engine = self.engine
        txn = engine.start(self.home, self.chosen, None)
        self.attempt += 1
        txn.operation, txn.attempt, txn.memos = self.operation, self.attempt, self.memos
        if self.chosen.timeout_seconds is not None:
            self.deadline = txn.deadline = self.deadline or txn.deadline
        if self.hot is not None:
            hot, self.hot = self.hot, None
            await txn.queue_for(hot)
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
            txn.replayed = True
            return Committed(replay.result, transaction_text(txn.id), self.attempt - 1, True, None)
        except CommitUnknownError as unknown:
            if not await self._settle(txn, unknown):
                return None
            return Committed(value, transaction_text(txn.id), self.attempt, False, None)
        except BaseException as error:
            txn.rollback()
            self._judge(error, txn)
            return None
        finally:
            txn.leave_context()
        if reply is not None:
            await engine.housekeep()
        cursor = None if reply is None else reply.token
        return Committed(value, transaction_text(txn.id), self.attempt, False, None if cursor is None else cursor_of(cursor))

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
            if not self.engine.runtime.suspends:
                if inspect.iscoroutine(value):
                    value.close()
                raise UsageError(f"{self.operation} is an async function; use interlock instead of interlock.sync")
            value = await value
        elif self.engine.runtime.suspends and not hasattr(value, "__await__"):
            raise UsageError(f"{self.operation} is not an async function; write `async def`, or use interlock.sync")
        return value

    def _add_record(self, txn: Transaction, value: Any) -> None:
        if self.record is not None:
            record = Record(
                self.chosen.idempotency_key or "", self.fingerprint, value, self.engine.idempotency_ttl_seconds
            )
            txn.records = {**(txn.records or {}), self.record: record}

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
            parent.settle_calls()
            self._add_record(parent, value)
        except BaseException:
            mark.restore()
            raise
        return Committed(value, transaction_text(parent.id), 1, False, None)

    def _judge(self, error: BaseException, txn: Transaction) -> None:
        """Raises unless another attempt may follow."""
        cause = retryable_cause(error)
        if cause is None:
            raise error
        self.last = cause
        now = self.engine.runtime.monotonic()
        self.started = self.started or now
        if self.attempt >= self.policy.max_attempts or now - self.started >= self.policy.max_seconds:
            raise exhausted(self.attempt, cause, transaction_text(txn.id)) from error
        self.hot = hot_key(self.engine, cause)

    async def _pause(self) -> None:
        seconds = backoff_seconds(self.policy, self.attempt, self.engine.runtime.uniform)
        if self.deadline is not None and self.engine.runtime.monotonic() + seconds >= self.deadline:
            raise DeadlineExceededError(
                f"timeout_seconds ran out after {self.attempt} attempts; nothing was written"
            ) from self.last
        if seconds > 0:
            await self.engine.runtime.sleep(seconds)

    async def _settle(self, txn: Transaction, unknown: CommitUnknownError) -> bool:
        """Find out whether a commit with a lost reply has happened; False: it never will, and may run again."""
        runtime = self.engine.runtime
        until = runtime.monotonic() + min(self.policy.max_seconds, 30.0)
        if self.deadline is not None:
            until = min(until, self.deadline)
        failures = 0
        while True:
            try:
                settled, _ = await txn.backend.outcome(txn.id, fence=True)
            except (BackendUnavailableError, CommitUnknownError) as error:
                failures += 1
                if runtime.monotonic() >= until:
                    raise unknown from error
                await runtime.sleep(backoff_seconds(self.policy, failures + 1, runtime.uniform))
                continue
            if settled is Settled.COMMITTED:
                return True
            if settled is Settled.FENCED:
                self._judge(_NeverCommitted("the reply to a commit was lost; it has not happened"), txn)
                return False
            raise unknown


class _NeverCommitted(ConflictError):
    """A commit whose reply was lost and that has been fenced since."""


class _KeyInUse:
    """Within the process: a key that runs with one fingerprint is refused with another one at once."""

    __slots__ = ("_engine", "_fingerprint", "_key", "_record")

    def __init__(self, engine: Engine, record: Key, fingerprint: bytes, key: str) -> None:
        self._engine, self._record, self._fingerprint, self._key = engine, record, fingerprint, key

    def __enter__(self) -> None:
        running = self._engine.running_keys
        fingerprint, count = running.get(self._record, (self._fingerprint, 0))
        if fingerprint != self._fingerprint:
            raise IdempotencyMismatchError(
                f"idempotency key {self._key!r} is being used at this moment with other arguments",
                idempotency_key=self._key,
            )
        running[self._record] = (fingerprint, count + 1)

    def __exit__(self, *_: object) -> None:
        running = self._engine.running_keys
        fingerprint, count = running.get(self._record, (b"", 1))
        if count > 1:
            running[self._record] = (fingerprint, count - 1)
        else:
            running.pop(self._record, None)


def exhausted(attempts: int, last: InterlockError, transaction_id: str) -> RetriesExhaustedError:
    """The error at the end of a retry policy."""
    return RetriesExhaustedError(
        f"gave up after {attempts} attempts: {last}", transaction_id=transaction_id, attempts=attempts, last=last
    )


def hot_key(engine: Engine, cause: InterlockError) -> Key | None:
    """The key to queue for after a conflict: the first one that others changed under us."""
    if isinstance(cause, ConflictError):
        for conflict in cause.conflicts:
            if conflict.kind != "range" and conflict.resource:
                return engine.resource(conflict.resource).encode(conflict.key)
    return None


__all__ = ["Committed", "Running", "SnapshotTooOldError", "exhausted", "hot_key"]
