"""What the asyncio leaf has of one event loop: connections, and who waits to go together.

Reads go together with reads, commits with commits, and scans with scans of the same page (`scans`).

Commits that validate ranges need locks that exclude every writer of a range, and may have to wait long for those of
other processes. Usually they do not, and go with all others: a call of their own would cost more than what they do.
Once a call that had any of them took much longer than calls take here (`SLOW`), the next `APART` of them go by a queue
of their own (`Loop.commits`), so that nobody else waits with them. Then it is tried again. Of the same process nobody
has to wait on a connection for a range: who writes into one that a call under way validates stays in the queue until
that has ended, and so does who validates the same one. Among themselves they gain most by going together.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from interlock.backends.postgresql import failures, groups, reads
from interlock.backends.postgresql.connections import ERRORS, LoopPool, is_unsent, translated
from interlock.backends.postgresql.gathering import Gatherer
from interlock.backends.postgresql.groups import Group, Job
from interlock.backends.postgresql.home import REPEATS, TURNS, Options
from interlock.backends.postgresql.reads import Look
from interlock.backends.postgresql.scans import Scans
from interlock.model import Key, Reply, Span

if TYPE_CHECKING:
    from interlock.backends.postgresql.home import Driver

KEYS_TOGETHER: Final = 256
"""The most keys that are read together."""
SLOW: Final = 4
"""A call that takes so many times what calls usually take was held up."""
SLOW_SECONDS: Final = 0.002
"""And no call that took less."""
APART: Final = 64
"""So many commits that validate ranges go by themselves after one was held up."""


class Asked:
    """A read that waits for others. ``is_kept``: it is one as of a snapshot."""

    __slots__ = ("future", "is_kept", "keys")

    def __init__(self, keys: Sequence[Key], future: asyncio.Future[Look | Exception], is_kept: bool) -> None:
        self.keys = keys
        self.future = future
        self.is_kept = is_kept


class Commits:
    """Commits that may go together, over the connections of one loop."""

    def __init__(self, pool: LoopPool, most: int, before: Gatherer[Any] | None = None) -> None:
        self._pool = pool
        self.gatherer: Gatherer[Job] = Gatherer(self._next, self._send, most, before)
        self._written: set[Key] = set()
        self._ranges: set[bytes] = set()
        self._spans: list[Span] = []
        self.apart = 0  # so many that validate ranges shall not come here

    def _next(self, queue: deque[Job]) -> list[Job]:
        """Those that may go together, in the order in which they came; the others stay.

        Who touches what is being written by a call under way stays, too, and who validates a range that one under way
        validates or writes into it: it would wait there for that call's locks, and all who go with it. It is in front
        when that call has ended, so it does not stay for ever."""
        busy, ranges, spans = self._written, self._ranges, self._spans
        if len(queue) == 1 and not busy and not ranges:  # most callers are alone
            alone = queue.popleft()
            alone.taken = True
            busy.update(alone.request.writes)
            ranges.update(alone.ranges)
            spans += alone.request.spans
            return [alone]
        group = Group()
        left: list[Job] = []
        while queue and not group.is_full():
            job = queue.popleft()
            if (
                (busy and job.touches(busy))
                or (ranges and not ranges.isdisjoint(job.ranges))
                or (spans and job.writes_into(spans))
                or not group.takes(job)
            ):
                left.append(job)
            else:
                job.taken = True
        queue.extendleft(reversed(left))
        busy.update(*[job.request.writes for job in group.jobs])
        ranges.update(*[job.ranges for job in group.jobs])
        spans += group.spans
        return group.jobs

    async def _send(self, jobs: list[Job]) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            answers = await self._answers(jobs)
            if answers is None:
                for job in jobs:
                    for answer in await self._answers([job]) or ():
                        _answer(job, answer)
                return
        except asyncio.CancelledError:  # the loop ends
            for job in jobs:
                if job.answer is None:
                    _answer(job, failures.failure(None, "the event loop has ended", commits=True))
            raise
        finally:
            self._written.difference_update(*[job.request.writes for job in jobs])
            self._ranges.difference_update(*[job.ranges for job in jobs])
            for job in jobs:
                for span in job.request.spans:
                    self._spans.remove(span)
        for job, answer in zip(jobs, answers, strict=True):
            _answer(job, answer)
        if len(jobs) > 1 and any(job.ranges for job in jobs):
            took = asyncio.get_running_loop().time() - begun
            if took > SLOW_SECONDS and took > SLOW * self.gatherer.usual_seconds:
                self.apart = APART

    async def _answers(self, jobs: list[Job]) -> Sequence[Reply | Exception] | None:
        """What to tell the callers; None: nothing was written, and each has to be sent by itself."""
        alone = len(jobs) == 1
        repeats, turns = REPEATS, TURNS
        while True:
            try:
                connection = self._pool.take() or await self._pool.acquire()
            except Exception as error:
                return [copy.copy(error) for _ in jobs]
            sent = False
            try:
                for job in jobs:
                    connection.home.admit(job.request.snapshot)
                name, wanted = groups.call(jobs)
                if not connection.is_prepared(name):
                    await connection.prepare(name)
                sent = True
                rows = await connection.fetch(name, wanted)
                return groups.outcomes(jobs, rows[0], connection.home)
            except ERRORS as error:
                lost, repeat = self._pool.judge(connection, error)
                sent = sent and not is_unsent(error)
                if repeat and turns > 0:
                    turns -= 1
                elif lost and not sent and repeats > 0:
                    repeats -= 1
                elif alone or lost:
                    shown = translated(error, commits=sent)
                    return [copy.copy(shown) for _ in jobs]
                else:
                    return None
            except Exception as error:  # mostly a token that the connection does not admit
                return [error] if alone else None
            except BaseException:  # whatever else ends this leaves the connection in the middle of a statement
                connection.raw.terminate()
                raise
            finally:
                self._pool.release(connection)


class Loop:
    """What the driver has of one event loop."""

    def __init__(self, driver: Driver, options: Options, texts: dict[str, str]) -> None:
        self._driver = driver
        self.pool = LoopPool(options, texts)
        self.reads: Gatherer[Asked] = Gatherer(_next_reads, self._send_reads, options.connections)
        self.scans = Scans(driver, options.connections)
        self._commits = Commits(self.pool, options.connections, self.reads)
        self._wide = Commits(self.pool, options.connections)

    def commits(self, job: Job) -> Gatherer[Job]:
        """The queue for a commit."""
        commits = self._commits
        if job.request.spans and commits.apart:
            commits.apart -= 1
            return self._wide.gatherer
        return commits.gatherer

    async def _send_reads(self, asked: list[Asked]) -> None:
        found: Look | Exception
        try:
            kept = any(each.is_kept for each in asked)
            found = await reads.look(self._driver, [key for each in asked for key in each.keys], kept=kept)
        except asyncio.CancelledError:  # the loop ends
            for each in asked:
                each.future.cancel()
            raise
        except Exception as error:
            found = error
        place = 0
        for each in asked:
            stop = place + len(each.keys)
            mine = copy.copy(found) if isinstance(found, Exception) else found._replace(rows=found.rows[place:stop])
            if not each.future.done():
                each.future.set_result(mine)
            place = stop


def _answer(job: Job, answer: Reply | Exception) -> None:
    job.answer = answer
    if job.tell is not None and type(answer) is Reply:
        job.tell(answer)
    if not job.future.done():
        job.future.set_result(answer)


def _next_reads(queue: deque[Asked]) -> list[Asked]:
    """Those who still wait: when the loop ends all have been cancelled, and nothing must be begun for them."""
    taken: list[Asked] = []
    count = 0
    while queue and count < KEYS_TOGETHER:
        asked = queue.popleft()
        if not asked.future.done():
            taken.append(asked)
            count += len(asked.keys)
    return taken


async def together(gatherer: Gatherer[Asked], asked: Asked) -> Look:
    """Wait until a read was made together with others."""
    gatherer.add(asked)
    found = await asked.future
    if isinstance(found, Exception):
        raise found
    return found
