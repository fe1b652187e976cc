"""What callers ask of the writer: one object for each request, and the token that says whose it is.

A job's token is taken exactly once. Whoever takes it owns the job: the writer, who then must answer it, or the
caller (cancelled, interrupted, out of time), who then knows that nothing was and nothing will be written. So
withdrawal, the busy timeout, Ctrl-C and cancellation are one operation, and no job is both carried out and given
up.
"""

from __future__ import annotations

import time
from typing import Any

from interlock.backends.sqlite import compaction, quiet
from interlock.backends.sqlite.batch import Batch
from interlock.backends.sqlite.validation import collect
from interlock.model import CommitRequest, Key, TransactionId
from interlock.ports import Waiter
from interlock.runtime import wake_all


class Job:
    """Something for the writer to do. This one only makes sure that the store is open."""

    __slots__ = ("_token", "answer", "answered", "durable", "since", "waiter")

    def __init__(self, waiter: Waiter, *, durable: bool = True) -> None:
        self.waiter = waiter
        self.durable = durable
        self.since = time.monotonic()
        self.answer: Any = None
        """The result, or the exception to raise."""
        self.answered = False
        self._token = [True]

    def take(self) -> bool:
        """Take the token; False if somebody else has."""
        try:
            self._token.pop()
        except IndexError:
            return False
        return True

    def collect(self, wanted: set[Key]) -> None:
        """Add the keys that `perform` will look at."""

    def perform_alone(self, batch: Batch) -> Any:
        """Decide the only job of a batch without `collect`, if there is a short way; else None."""

    def perform(self, batch: Batch) -> Any:
        """Decide the job inside a batch. What it raises is its answer."""


class CommitJob(Job):
    """A commit whose spans hold up to the position ``checked``."""

    __slots__ = ("checked", "request")

    def __init__(self, waiter: Waiter, request: CommitRequest, checked: int) -> None:
        super().__init__(waiter, durable=request.durable)
        self.request = request
        self.checked = checked

    def collect(self, wanted: set[Key]) -> None:
        """Everything that is read, guarded, written or fetched."""
        wanted |= collect(self.request)

    def perform_alone(self, batch: Batch) -> Any:
        """A `Reply` to a quiet request that only puts."""
        return quiet.decide(batch, self.request, blind=False) if self.request.quiet else None

    def perform(self, batch: Batch) -> Any:
        """A `Reply`, or a refusal."""
        return batch.commit(self.request, self.checked)


class FenceJob(Job):
    """Settle a transaction for good."""

    __slots__ = ("transaction",)

    def __init__(self, waiter: Waiter, transaction: TransactionId) -> None:
        super().__init__(waiter)
        self.transaction = transaction

    def perform(self, batch: Batch) -> Any:
        """What became of it: never `Settled.UNSEEN`."""
        return batch.fence(self.transaction)


class CompactJob(Job):
    """Drop a small batch of what is old."""

    __slots__ = ("before", "limit")

    def __init__(self, waiter: Waiter, before: float, limit: int) -> None:
        super().__init__(waiter)
        self.before = before
        self.limit = limit

    def perform(self, batch: Batch) -> Any:
        """How many things were dropped."""
        return compaction.compact(batch, self.before, self.limit)


class StopJob(Job):
    """Close the store after what was asked before."""

    __slots__ = ()


Answers = list[tuple[Job, Any]]


def wake(answers: Answers) -> None:
    """Give the jobs their answers and let their callers go on."""
    waiters = []
    for job, answer in answers:
        job.answer = answer
        job.answered = True
        waiters.append(job.waiter)
    if len(waiters) == 1:
        waiters[0].wake()
    else:
        wake_all(waiters)
