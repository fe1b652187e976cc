"""asyncpg for callers on asyncio. Reads and commits that come at once go together (`gathering`, `groups`).

A commit that was sent is never cancelled. It is sent from a task that is not the caller's; a caller who is cancelled
takes it back if it has not been sent, and otherwise waits for the answer, at most ``grace_seconds``, and the
cancellation then carries a note that says how the commit ended.

What goes together may fail together: if the server reports an error for a group, nothing of it was written, and each is
sent again by itself. If the connection breaks, nobody can tell of any of them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from interlock.backends.postgresql import failures, groups, reads
from interlock.backends.postgresql.connections import ERRORS, Connection, LoopPool, is_unsent, translated
from interlock.backends.postgresql.elsewhere import ThreadedDriver
from interlock.backends.postgresql.groups import Job
from interlock.backends.postgresql.home import REPEATS, TURNS, Home, Options, Row
from interlock.backends.postgresql.loops import KEYS_TOGETHER, Asked, Loop, together
from interlock.backends.postgresql.reads import Look, Shown
from interlock.backends.postgresql.scans import Wanted
from interlock.backends.postgresql.statements import statements
from interlock.errors import InterlockError, UsageError
from interlock.model import Key, Page, Reply, Token


class AsyncDriver:
    """The asynchronous leaf's connections, for any number of event loops."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._texts = statements(options.schema, pooler=options.pooler)
        self._loops: dict[asyncio.AbstractEventLoop, Loop] = {}
        self._elsewhere: ThreadedDriver | None = None
        self._closed = False

    async def _loop(self, loop: asyncio.AbstractEventLoop) -> Loop:
        if self._closed:
            raise UsageError("this store is closed")
        mine = self._loops.get(loop)
        if mine is None or mine.pool.closed:
            for other in [each for each in list(self._loops) if each.is_closed()]:  # other threads add to it meanwhile
                self._loops.pop(other, None)
            mine = self._loops[loop] = Loop(self, self._options, self._texts)
            await mine.pool.begin()
        return mine

    def _other_loop(self) -> ThreadedDriver:
        if self._closed:
            raise UsageError("this store is closed")
        if self._elsewhere is None:
            self._elsewhere = ThreadedDriver(self._options)
        return self._elsewhere

    async def ask(self, seconds: float, name: str, arguments: Sequence[Any], *, at: Token) -> list[Row]:
        """See `interlock.backends.postgresql.home.Driver`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return (await self._other_loop().fetch(name, arguments, at=at))[0]
        for _ in range(1 + REPEATS):
            try:
                async with asyncio.timeout(seconds):
                    return (await self.fetch(name, arguments, at=at))[0]
            except TimeoutError:
                (await self._loop(loop)).pool.distrust()
        raise failures.unreachable(f"no answer for {seconds:g} seconds, again and again")

    async def look(self, keys: Sequence[Key]) -> Look:
        """See `interlock.backends.postgresql.reads.look`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await reads.look(self._other_loop(), keys)
        gatherer = (await self._loop(loop)).reads
        if gatherer.is_idle or len(keys) > KEYS_TOGETHER:
            with gatherer.alone():
                return await reads.look(self, keys)
        return await together(gatherer, Asked(keys, loop.create_future(), False))

    async def read_at(self, keys: Sequence[Key], at: Token) -> Shown:
        """See `interlock.backends.postgresql.reads.read_at`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await reads.read_at(self._other_loop(), keys, at)
        gatherer = (await self._loop(loop)).reads
        if not (gatherer.is_idle or len(keys) > KEYS_TOGETHER):
            shown = reads.as_of(await together(gatherer, Asked(keys, loop.create_future(), True)), at)
            if shown is not None:
                return shown
        with gatherer.alone():
            return await reads.read_at(self, keys, at)

    async def scan(self, wanted: Wanted) -> Page:
        """See `interlock.backends.postgresql.scans.page`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await self._other_loop().scan(wanted)
        return await (await self._loop(loop)).scans.page(wanted)

    async def commit(self, job: Job) -> Reply:
        """See `interlock.backends.postgresql.groups.commit_alone`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await groups.commit_alone(self._other_loop(), job)
        mine = self._loops.get(loop)
        if mine is None or mine.pool.closed:
            mine = await self._loop(loop)
        commits = mine.commits(job)
        job.future = loop.create_future()
        commits.add(job)
        try:
            answer: Reply | Exception = await job.future
        except asyncio.CancelledError as cancelled:
            if not job.taken:
                commits.withdraw(job)
                raise
            if job.answer is None:
                job.future = loop.create_future()  # the cancellation has ended the one before
                await _wait_out(job.future, self._options.grace_seconds)
            cancelled.add_note(_ending(job.answer))
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fetch(
        self, name: str, arguments: Sequence[Any], *, at: Token | None = None, commits: bool = False, soft: bool = False
    ) -> tuple[list[Row], Home]:
        """See `interlock.backends.postgresql.home.Driver`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await self._other_loop().fetch(name, arguments, at=at, commits=commits, soft=soft)
        repeats, turns = REPEATS, TURNS
        while True:
            pool = (await self._loop(loop)).pool
            connection = pool.take() or await pool.acquire()
            task: asyncio.Task[list[Row]] | None = None
            try:
                if at is not None:
                    connection.home.admit(at)
                if not commits:
                    return await connection.fetch(name, arguments), connection.home
                if soft:
                    await connection.soften()
                await connection.prepare(name)
                task = asyncio.ensure_future(connection.fetch(name, arguments))
                return await self._to_the_end(task), connection.home
            except ERRORS as error:
                lost, repeat = pool.judge(connection, error)
                sent = task is not None and not is_unsent(error)
                if repeat and turns > 0:
                    turns -= 1
                elif lost and not sent and repeats > 0:
                    repeats -= 1
                else:
                    raise translated(error, commits=sent) from None
            except BaseException as error:
                if task is None and not isinstance(error, Exception):  # it ends in the middle of a statement
                    connection.raw.terminate()
                raise
            finally:
                if task is None or task.done():
                    pool.release(connection)
                else:
                    task.add_done_callback(functools.partial(_release_late, pool, connection))

    async def _to_the_end(self, task: asyncio.Task[list[Row]]) -> list[Row]:
        """Wait for a commit; who is cancelled meanwhile learns how it ended, if it ends in time."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError as cancelled:
            await _wait_out(task, self._options.grace_seconds)
            cancelled.add_note(_ending_of(task))
            raise

    def cut(self) -> None:
        """See `interlock.backends.postgresql.home.Driver`, as for `close`."""
        self._closed = True
        if self._elsewhere is not None:
            self._elsewhere.cut()
        loops, self._loops = self._loops, {}
        for loop, mine in loops.items():
            try:
                loop.call_soon_threadsafe(mine.pool.abandon)
            except RuntimeError:  # it has ended, and closed its connections itself
                pass

    async def close(self) -> None:
        """Those of other loops are cut."""
        try:
            own = self._loops.pop(asyncio.get_running_loop(), None)
        except RuntimeError:  # trio
            own = None
        self.cut()
        if own is not None:
            await own.pool.close()


def _release_late(pool: LoopPool, connection: Connection, task: asyncio.Task[Any]) -> None:
    """A commit that nobody waits for any more has ended."""
    if not task.cancelled():
        task.exception()
    pool.release(connection)


async def _wait_out(future: asyncio.Future[Any], seconds: float) -> None:
    try:
        await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:  # cancelled once more; the first cancellation is the one that goes on
        pass


def _ending(answer: Reply | Exception | None) -> str:
    if answer is None:
        return "the commit had begun and has not ended yet; it may or may not happen"
    ended = f"raised {answer!r}" if isinstance(answer, Exception) else "was done"
    return f"the commit had begun and was not abandoned: it {ended}"


def _ending_of(task: asyncio.Task[Any]) -> str:
    if not task.done() or task.cancelled():
        return _ending(None)
    error = task.exception()
    if error is None:
        ended = "was done" if task.result()[0][0] == 0 else "was refused"
        return f"the commit had begun and was not abandoned: it {ended}"
    shown = error if isinstance(error, InterlockError) else translated(error, commits=True)
    return f"the commit had begun and was not abandoned: it raised {shown!r}"
