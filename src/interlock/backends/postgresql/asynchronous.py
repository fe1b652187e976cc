"""asyncpg for callers on asyncio: connections of our own, last in first out, with kept prepared statements.

A connection belongs to an event loop, so each loop that uses the store has connections of its own. They are closed with
the store, or when the loop ends: an asynchronous generator waits in each loop for nothing else. asyncpg's own pool
would send one more statement at every release and prepare nothing.

A commit that was sent is never cancelled. Its statement runs in a task of its own; a caller who is cancelled waits for
the answer, at most ``grace_seconds``, and the cancellation then carries a note that says how the commit ended.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import asyncpg

from interlock.backends.postgresql import failures
from interlock.backends.postgresql.elsewhere import ThreadedDriver
from interlock.backends.postgresql.home import REPEATS, Home, Options, Row, check_server, welcome
from interlock.backends.postgresql.schema import ensure
from interlock.backends.postgresql.statements import statements
from interlock.errors import InterlockError, UsageError
from interlock.model import Token

_BROKEN: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class Connection:
    """A connection, its prepared statements, and the store behind it."""

    def __init__(self, raw: Any, texts: dict[str, str]) -> None:
        self.raw = raw
        self._texts = texts
        self.prepared: dict[str, Any] = {}
        self.home = Home(0, 0, 0)
        self.softened = False

    async def fetch(self, name: str, arguments: Sequence[Any]) -> list[Row]:
        """Execute a statement."""
        prepared = self.prepared.get(name)
        if prepared is None:
            prepared = self.prepared[name] = await self.raw.prepare(self._texts[name])
        rows: list[Row] = await prepared.fetch(*arguments)
        return rows

    async def greet(self, options: Options) -> None:
        """Make the schema if it is missing, and learn about the store. Raises what `welcome` raises."""
        await check_server(self.raw.fetchrow)
        await ensure(options.schema, self.raw.fetchrow, self.raw.execute)
        (row,) = await self.fetch("hello", ())
        self.home = welcome(row, options)
        if options.durability == "none":
            await self.soften()

    async def soften(self) -> None:
        """Note, durably, that from now on a crash may lose commits."""
        if not self.softened:
            await self.fetch("soften", (self.home.epoch,))
            self.softened = True


class LoopPool:
    """The connections of one event loop."""

    def __init__(self, options: Options, texts: dict[str, str]) -> None:
        self._options = options
        self._texts = texts
        self._places = asyncio.Semaphore(options.connections)
        self._free: list[Connection] = []
        self._used: set[Connection] = set()
        self.closed = False
        self._guard = self._until_the_end()

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._close_all()

    async def begin(self) -> None:
        """Have the loop close the connections when it ends."""
        await self._guard.__anext__()

    async def acquire(self) -> Connection:
        """A connection that is not known to be broken. Raises `BackendUnavailableError`."""
        await self._places.acquire()
        try:
            connection = self._usable() or await self._connect()
        except BaseException:
            self._places.release()
            raise
        self._used.add(connection)
        return connection

    def _usable(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.raw.is_closed():
                return connection
        return None

    async def _connect(self) -> Connection:
        options = self._options
        try:
            raw = await asyncpg.connect(options.dsn, timeout=options.connect_seconds, statement_cache_size=0)
        except asyncpg.PostgresError as error:
            raise failures.unreachable(str(error)) from None
        except (*_BROKEN, ValueError) as error:
            raise failures.unreachable(str(error) or type(error).__name__) from None
        connection = Connection(raw, self._texts)
        try:
            await connection.greet(options)
        except BaseException as error:
            raw.terminate()
            raise _translated(error, commits=False) from None
        return connection

    def release(self, connection: Connection) -> None:
        """Give a connection back."""
        self._used.discard(connection)
        self._places.release()
        if self.closed:
            connection.raw.terminate()
        elif not connection.raw.is_closed():
            self._free.append(connection)

    def distrust(self) -> None:
        """One connection was found broken: the others are probably, too."""
        free, self._free = self._free, []
        for connection in free:
            connection.raw.terminate()

    async def close(self) -> None:
        """Close the connections, on their own loop."""
        await self._guard.aclose()

    async def _close_all(self) -> None:
        self.closed = True
        free, self._free = self._free, []
        for connection in free:
            try:
                await connection.raw.close(timeout=2.0)
            except (asyncpg.PostgresError, *_BROKEN):
                connection.raw.terminate()
        for connection in list(self._used):
            connection.raw.terminate()

    def abandon(self) -> None:
        """From another thread, where the loop may still run: end the connections there."""
        self.closed = True
        for connection in [*self._free, *self._used]:
            connection.raw.terminate()


def _translated(error: BaseException, *, commits: bool) -> BaseException:
    """Our error for the driver's; anything else as it is."""
    if isinstance(error, asyncpg.PostgresError):
        if commits and getattr(error, "constraint_name", None) == failures.ONCE:
            return failures.DuplicateId()
        return failures.failure(error.sqlstate, str(error), commits=commits)
    if isinstance(error, _BROKEN):
        return failures.failure(None, str(error) or type(error).__name__, commits=commits)
    return error


class AsyncDriver:
    """The asynchronous leaf's connections, for any number of event loops."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._texts = statements(options.schema)
        self._pools: dict[asyncio.AbstractEventLoop, LoopPool] = {}
        self._elsewhere: ThreadedDriver | None = None
        self._closed = False

    async def _pool(self, loop: asyncio.AbstractEventLoop) -> LoopPool:
        if self._closed:
            raise UsageError("this store is closed")
        pool = self._pools.get(loop)
        if pool is None or pool.closed:
            for other in [each for each in list(self._pools) if each.is_closed()]:  # other threads add to it meanwhile
                self._pools.pop(other, None)
            pool = self._pools[loop] = LoopPool(self._options, self._texts)
            await pool.begin()
        return pool

    def _other_loop(self) -> ThreadedDriver:
        if self._closed:
            raise UsageError("this store is closed")
        if self._elsewhere is None:
            self._elsewhere = ThreadedDriver(self._options)
        return self._elsewhere

    async def fetch(
        self, name: str, arguments: Sequence[Any], *, at: Token | None = None, commits: bool = False, soft: bool = False
    ) -> tuple[list[Row], Home]:
        """See `interlock.backends.postgresql.home.Driver`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return await self._other_loop().fetch(name, arguments, at=at, commits=commits, soft=soft)
        repeats = REPEATS
        while True:
            pool = await self._pool(loop)
            connection = await pool.acquire()
            if commits:
                return await self._commit(pool, connection, name, arguments, at, soft)
            try:
                if at is not None:
                    connection.home.admit(at)
                return await connection.fetch(name, arguments), connection.home
            except asyncio.CancelledError:
                connection.raw.terminate()
                raise
            except (asyncpg.PostgresError, *_BROKEN) as error:
                lost = failures.is_lost(getattr(error, "sqlstate", None))
                if lost:
                    connection.raw.terminate()
                    pool.distrust()
                if repeats == 0 or not lost:
                    raise _translated(error, commits=False) from None
                repeats -= 1
            finally:
                pool.release(connection)

    async def _commit(
        self, pool: LoopPool, connection: Connection, name: str, arguments: Sequence[Any], at: Token | None, soft: bool
    ) -> tuple[list[Row], Home]:
        task: asyncio.Task[list[Row]] | None = None
        try:
            if at is not None:
                connection.home.admit(at)
            try:
                if soft:
                    await connection.soften()
                if name not in connection.prepared:
                    connection.prepared[name] = await connection.raw.prepare(self._texts[name])
            except BaseException as error:
                connection.raw.terminate()
                raise _translated(error, commits=False) from None
            task = asyncio.ensure_future(connection.fetch(name, arguments))
            try:
                return await asyncio.shield(task), connection.home
            except asyncio.CancelledError as cancelled:
                await _wait_out(task, self._options.grace_seconds)
                cancelled.add_note(_ending(task))
                raise
        except (asyncpg.PostgresError, *_BROKEN) as error:
            if failures.is_lost(getattr(error, "sqlstate", None)):
                connection.raw.terminate()
                pool.distrust()
            raise _translated(error, commits=True) from None
        finally:
            if task is None or task.done():
                pool.release(connection)
            else:
                task.add_done_callback(functools.partial(_release_late, pool, connection))

    def cut(self) -> None:
        """See `interlock.backends.postgresql.home.Driver`, as for `close`."""
        self._closed = True
        if self._elsewhere is not None:
            self._elsewhere.cut()
        pools, self._pools = self._pools, {}
        for loop, pool in pools.items():
            try:
                loop.call_soon_threadsafe(pool.abandon)
            except RuntimeError:  # it has ended, and closed its connections itself
                pass

    async def close(self) -> None:
        """Those of other loops are cut."""
        try:
            own = self._pools.pop(asyncio.get_running_loop(), None)
        except RuntimeError:  # trio
            own = None
        self.cut()
        if own is not None:
            await own.close()


def _release_late(pool: LoopPool, connection: Connection, task: asyncio.Task[Any]) -> None:
    """A commit that nobody waits for any more has ended."""
    if not task.cancelled():
        task.exception()
    pool.release(connection)


async def _wait_out(task: asyncio.Task[Any], seconds: float) -> None:
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:  # cancelled once more; the first cancellation is the one that goes on
        pass


def _ending(task: asyncio.Task[Any]) -> str:
    if not task.done() or task.cancelled():
        return "the commit had begun and has not ended yet; it may or may not happen"
    error = task.exception()
    if error is None:
        ended = "was done" if task.result()[0][0] == 0 else "was refused"
        return f"the commit had begun and was not abandoned: it {ended}"
    shown = error if isinstance(error, InterlockError) else _translated(error, commits=True)
    return f"the commit had begun and was not abandoned: it raised {shown!r}"
