"""The state of a call that may need several attempts: what `run` and `attempts` have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.core import isolation as modes
from interlock.core.calls import COMMITTED
from interlock.core.engine import Engine
from interlock.core.locking import Footprint, footprint_of
from interlock.core.options import Chosen
from interlock.core.refusals import transaction_text
from interlock.core.retry import RetryPolicy, backoff_seconds, escalates, retryable_cause
from interlock.core.space import Resource
from interlock.core.transaction import Transaction
from interlock.errors import (
    BackendUnavailableError,
    CommitUnknownError,
    ConflictError,
    DeadlineExceededError,
    InterlockError,
    RetriesExhaustedError,
)
from interlock.model import Change, Key, Reply, Settled

_SETTLE_SECONDS = 30.0


class _Progress(msgspec.Struct, eq=False, kw_only=True):
    attempt: int = 0
    started: float = 0.0
    deadline: float | None = None
    hot: Key | None = None
    last: InterlockError | None = None
    memos: dict[Any, Any] | None = None
    born: int = 0
    burnt_seconds: float = 0.0
    begun: float = 0.0
    footprint: Footprint | None = None


class Retrying(_Progress, eq=False):
    """Counts attempts, judges failures, waits, settles lost replies."""

    engine: Engine
    home: Resource | None
    chosen: Chosen

    @property
    def policy(self) -> RetryPolicy:
        """The policy of the call, or of the store."""
        return self.chosen.retry or self.engine.retry

    def first(self) -> Transaction:
        """The transaction of the first attempt; starts the clocks."""
        txn = self.engine.start(self.home, self.chosen, None)
        self.attempt = 1
        self.started = self.begun = self.engine.runtime.monotonic()
        self.deadline = txn.deadline
        return txn

    async def begin(self) -> Transaction:
        """The transaction of the next attempt. After a conflict on a key it first waits its turn at the key's gate."""
        if not self.attempt:
            return self.first()
        txn = self.engine.start(self.home, self.chosen, None)
        self.attempt += 1
        txn.attempt = self.attempt
        if self.deadline is not None:
            txn.deadline, txn.plain = self.deadline, False
        txn.memos, txn.born = self.memos, self.born
        self.begun = self.engine.runtime.monotonic()
        if self.footprint is not None and self.engine.locking is not None:
            try:
                if await self.engine.locking.shield(txn, self.footprint):
                    return txn
            except BaseException:
                txn.rollback()
                raise
        if self.hot is not None:
            hot, self.hot = self.hot, None
            await txn.queue_for(hot)
        return txn

    def judge(self, error: BaseException, txn: Transaction) -> None:
        """Raises, unless another attempt may follow."""
        cause = retryable_cause(error)
        if cause is None:
            raise error
        self.last = cause
        self.memos, self.born = txn.memos, self.born or txn.id
        self.burnt_seconds += self.engine.runtime.monotonic() - self.begun
        seconds = self.engine.runtime.monotonic() - self.started
        if self.attempt >= self.policy.max_attempts or seconds >= self.policy.max_seconds:
            raise RetriesExhaustedError(
                f"gave up after {self.attempt} attempts: {cause}",
                transaction_id=transaction_text(txn.id),
                attempts=self.attempt,
                last=cause,
            ) from error
        self.hot = self._hot_key(cause)
        if txn.mode == modes.PESSIMISTIC or escalates(self.policy, self.attempt, self.burnt_seconds):
            self.footprint = footprint_of(txn, self.footprint)

    def _hot_key(self, cause: InterlockError) -> Key | None:
        """The key to queue for after a conflict: the first one that others have changed."""
        if isinstance(cause, ConflictError):
            for conflict in cause.conflicts:
                if conflict.kind != "range" and conflict.resource:
                    return self.engine.resource(conflict.resource).encode(conflict.key)
        return None

    async def pause(self) -> None:
        """Wait before the next attempt. Raises `DeadlineExceededError` if there is no time for it."""
        runtime = self.engine.runtime
        seconds = backoff_seconds(self.policy, self.attempt, runtime.uniform)
        if self.deadline is not None and runtime.monotonic() + seconds >= self.deadline:
            raise DeadlineExceededError(
                f"timeout_seconds ran out after {self.attempt} attempts; nothing was written"
            ) from self.last
        if seconds > 0:
            await runtime.sleep(seconds)

    async def settle(self, txn: Transaction, unknown: CommitUnknownError) -> None:
        """Find out whether a commit with a lost reply has happened. `ConflictError`: it never will.

        Raises ``unknown`` again if that cannot be found out in time, or if it is not this transaction's."""
        if unknown is not txn.unsettled:
            raise unknown
        runtime = self.engine.runtime
        until = runtime.monotonic() + min(self.policy.max_seconds, _SETTLE_SECONDS)
        if self.deadline is not None:
            until = min(until, self.deadline)
        settled, change = await self._ask_outcome(txn, unknown, until)
        if settled is Settled.FENCED:
            raise ConflictError(
                "the reply to a commit was lost; it had not happened, and cannot any more",
                transaction_id=transaction_text(txn.id),
            ) from unknown
        if settled is not Settled.COMMITTED:
            raise unknown
        txn.state, txn.error = COMMITTED, None
        if change is not None:
            txn.reply = Reply(change.version, change.token, change.at)

    async def _ask_outcome(
        self, txn: Transaction, unknown: CommitUnknownError, until: float
    ) -> tuple[Settled, Change | None]:
        runtime = self.engine.runtime
        failures = 1
        while True:
            try:
                return await txn.backend.outcome(txn.id, fence=True)
            except (BackendUnavailableError, CommitUnknownError) as error:
                failures += 1
                seconds = backoff_seconds(self.policy, failures, runtime.uniform)
                if runtime.monotonic() + seconds >= until:
                    raise unknown from error
                await runtime.sleep(seconds)
