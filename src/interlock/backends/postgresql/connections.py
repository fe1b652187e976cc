"""asyncpg's connections of one event loop: kept, last in first out, with prepared statements.

A connection belongs to an event loop, so each loop that uses the store has connections of its own. They are closed with
the store, or when the loop ends: an asynchronous generator waits in each loop for nothing else. asyncpg's own pool
would send one more statement at every release and prepare nothing.

asyncpg asks of every element of an array whether it is a container, which takes longer than everything else that it
does for a commit. The arrays of numbers of the commit functions therefore go as texts, and the server reads them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from interlock.backends.postgresql import failures, types
from interlock.backends.postgresql.home import ISOLATE, Home, Options, Row, check_server, welcome
from interlock.backends.postgresql.schema import ensure
from interlock.backends.postgresql.statements import array_text, as_texts

BROKEN: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""What says that a connection is of no use any more."""
ERRORS: Final = (asyncpg.PostgresError, *BROKEN)
"""What the driver raises."""
_MANY: Final = ("commit", "commit_group")
"""The statements that take many arrays."""

Error = TypeVar("Error", bound=BaseException)


class Connection:
    """A connection, its prepared statements, and the store behind it."""

    def __init__(self, raw: Any, texts: dict[str, str], options: Options) -> None:
        self.raw = raw
        self._texts = texts
        self._options = options
        self._prepared: dict[str, Any] = {}
        self._texts_of: dict[str, list[int]] = {}
        self.home = Home(0, 0, 0)
        self.softened = False

    def fetch(self, name: str, arguments: Sequence[Any]) -> Coroutine[Any, Any, list[Row]]:
        """Execute a statement."""
        prepared = self._prepared.get(name)
        if prepared is None:
            return self._fetch_anew(name, arguments)
        if name in _MANY:
            arguments = list(arguments)
            for place in self._texts_of[name]:
                if arguments[place] is not None:
                    arguments[place] = array_text(arguments[place])
        rows: Coroutine[Any, Any, list[Row]] = prepared.fetch(*arguments)
        return rows

    async def _fetch_anew(self, name: str, arguments: Sequence[Any]) -> list[Row]:
        if not self._options.pooler:
            await self.prepare(name)
            return await self.fetch(name, arguments)
        more = () if name in ("hello", "soften") else (self.home.epoch,)
        pooled: list[Row] = await self.raw.fetch(self._texts[name], *arguments, *more)
        return pooled

    def is_prepared(self, name: str) -> bool:
        """Whether `prepare` has nothing to do."""
        return name in self._prepared

    async def prepare(self, name: str) -> Any:
        """Prepare a statement if it is not; before a commit, so that a failure of this is known to be harmless."""
        prepared = self._prepared.get(name)
        if prepared is None and not self._options.pooler:
            # By name: without one, asyncpg would have the server parse and plan the statement at every execution.
            text = self._texts[name]
            if name in _MANY:
                text, self._texts_of[name] = as_texts(text)
            prepared = self._prepared[name] = await self.raw.prepare(text, name=f"interlock_{name}")
        return prepared

    async def greet(self) -> None:
        """Make the schema if it is missing, and learn about the store. Raises what `welcome` raises."""
        options = self._options
        await check_server(self.raw.fetchrow, options, self.raw.get_server_pid())
        await ensure(options, self.raw.fetchrow, self.raw.execute)
        (row,) = await self.fetch("hello", ())
        self.home = welcome(row, options)
        if options.durability == "none":
            await self.soften()
        if options.locking == "serializable":
            await self.raw.execute(ISOLATE)

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
        self._places = options.connections
        self._waiting: deque[asyncio.Future[None]] = deque()  # for a place, in the order in which they came
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
        connection = self.take()
        if connection is not None:
            return connection
        await self._place()
        try:
            connection = self._usable() or await self._connect()
        except BaseException:
            self._give_place()
            raise
        self._used.add(connection)
        return connection

    def take(self) -> Connection | None:
        """A free connection that is not known to be broken, if there is one and nobody waits for it."""
        connection = self._usable() if self._has_place() else None
        if connection is not None:
            self._places -= 1
            self._used.add(connection)
        return connection

    def _has_place(self) -> bool:
        """Whether there is a place that nobody else waits for; who was cancelled waits no more."""
        return self._places > 0 and not (self._waiting and any(not turn.done() for turn in self._waiting))

    async def _place(self) -> None:
        if self._has_place():
            self._places -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                self._waiting.remove(turn)
            else:  # the place was given before the cancellation came
                self._give_place()
            raise

    def _give_place(self) -> None:
        """To the first who waits and was not cancelled meanwhile."""
        for turn in self._waiting:
            if not turn.done():
                self._waiting.remove(turn)
                turn.set_result(None)
                return
        self._places += 1

    def _usable(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.raw.is_closed():
                return connection
        return None

    async def _connect(self) -> Connection:
        options = self._options
        try:
            raw = await _connected(options)
        except asyncpg.PostgresError as error:
            raise failures.unreachable(str(error)) from None
        except (*BROKEN, ValueError) as error:
            raise failures.unreachable(str(error) or type(error).__name__) from None
        connection = Connection(raw, self._texts, options)
        try:
            await connection.greet()
        except BaseException as error:
            raw.terminate()
            raise translated(error, commits=False) from None
        return connection

    def release(self, connection: Connection) -> None:
        """Give a connection back."""
        self._used.discard(connection)
        self._give_place()
        if self.closed:
            connection.raw.terminate()
        elif not connection.raw.is_closed():
            self._free.append(connection)

    def judge(self, connection: Connection, error: Exception) -> tuple[bool, bool]:
        """Whether an error leaves open what became of the statement, and whether the statement may just be sent again.
        A connection that is of no use any more is ended."""
        state = getattr(error, "sqlstate", None)
        lost, stale = failures.is_lost(state), failures.is_stale(state)
        if lost or stale:
            connection.raw.terminate()
            self.distrust()
        return lost, stale or failures.is_to_repeat(state, getattr(error, "constraint_name", None))

    def distrust(self) -> None:
        """One connection was found broken: the others are probably, too."""
        free, self._free = self._free, []
        for connection in free:
            connection.raw.terminate()

    async def close(self) -> None:
        """Close the connections, on their own loop."""
        await self._guard.aclose()

    async def _close_all(self) -> None:
        """Also if this is cancelled no connection is left open: what was not closed in time is ended."""
        self.closed = True
        free, self._free = self._free, []  # nobody shall take one that is about to be closed
        try:
            while free:
                connection = free.pop()
                try:
                    await connection.raw.close(timeout=2.0)
                except (asyncpg.PostgresError, *BROKEN):
                    connection.raw.terminate()
        finally:
            for connection in [*free, *self._used]:
                connection.raw.terminate()

    def abandon(self) -> None:
        """End the connections without waiting; on their own loop, where others may still use them."""
        self.closed = True
        for connection in [*self._free, *self._used]:
            connection.raw.terminate()


async def _connected(options: Options) -> Any:
    """A new connection of the driver. If the caller is cancelled meanwhile the driver goes on to its end by itself:
    interrupted there, it would leave an error behind that nobody retrieves, which asyncio reports as a fault. What it
    then has made is ended, however the caller went: a coroutine that is closed gets no cancellation."""
    made = asyncpg.connect(
        options.dsn, timeout=options.connect_seconds, statement_cache_size=0, connection_class=types.Connection
    )
    task = asyncio.ensure_future(made)
    try:
        return await asyncio.shield(task)
    except BaseException:
        task.add_done_callback(_unwanted)
        raise


def _unwanted(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def is_unsent(error: Exception) -> bool:
    """Whether the driver has refused to begin a statement, so that nothing was sent: on a connection that is closed, or
    that has been told of its end and not been closed yet. Between the two may lie a while."""
    if isinstance(error, asyncpg.InternalClientError):
        return str(error).startswith(("cannot switch to state", "not connected"))
    return isinstance(error, asyncpg.InterfaceError) and "is closed" in str(error)


def translated(error: Error, *, commits: bool) -> Error | Exception:
    """Our error for the driver's; anything else as it is."""
    if isinstance(error, asyncpg.PostgresError):
        if commits and getattr(error, "constraint_name", None) == failures.ONCE:
            return failures.DuplicateId()
        return failures.failure(error.sqlstate, str(error), commits=commits)
    if isinstance(error, BROKEN):
        return failures.failure(None, str(error) or type(error).__name__, commits=commits)
    return error
