"""What the tests of this folder share: the worlds, and the store objects that a test opens in them.

A world is an engine (memory, SQLite, PostgreSQL, Redis) and a colour (async, sync). Each test body is written once, as
an async function over the names of `interlock`. In an async world it is awaited on asyncio. In a sync world the very
same body runs over `interlock.sync`, whose objects are lifted into awaitable ones that are ready at once, and is driven
to its end by one ``send(None)``. A body therefore awaits nothing but stores, and gives way by `World.give_way`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pytest

import interlock
import interlock.sync
from interlock.opening import backend_for

T = TypeVar("T")
Body = Callable[..., Coroutine[Any, Any, None]]

PATIENCE_SECONDS: Final = 60.0
"""How long a test waits for something that should come at once."""

LOOK_SECONDS: Final = 0.001
"""How often a test looks whether something that takes its time has happened."""

_serial = itertools.count()


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that does not suspend to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a synchronous world has suspended")


class Sunk:
    """An async function of a test, as the plain function that the synchronous API takes.

    It keeps the name, the signature and the closure of the original, which idempotency fingerprints look at."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.__closure__ = getattr(fn, "__closure__", None)
        self.__code__ = getattr(fn, "__code__", None)
        self._fn = fn

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sunk) and other._fn == self._fn

    def __hash__(self) -> int:
        return hash(self._fn)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return step(self._fn(*map(lift, args), **named))


def sink(fn: Any) -> Any:
    """A function for the synchronous API; what is not async stays as it is."""
    if isinstance(fn, functools.partial):
        return functools.partial(sink(fn.func), *fn.args, **fn.keywords)
    return Sunk(fn) if inspect.iscoroutinefunction(fn) else fn


_LIFTED: Final = (
    interlock.sync.Store,
    interlock.sync.SharedResource,
    interlock.sync.AgentView,
    interlock.sync.Attempt,
    interlock.sync.Lease,
    interlock.sync.Lock,
    interlock.sync.TransactionLog,
    interlock.sync.EffectStore,
    interlock.sync.IdempotentExecutor,
)
_PLAIN: Final = {
    "resource",
    "on",
    "doom",
    "fence",
    "lease",
    "lock",
    "guards",
    "savepoint",
    "session",
    "require",
    "register_merge",
}
_ROWS: Final = {"scan", "history", "changes", "attempts"}


def lift(value: Any) -> Any:
    """An object of the synchronous API with the asynchronous one's colour; anything else as it is."""
    return Lifted(value) if isinstance(value, _LIFTED) else value


class Lifted:
    """See `lift`."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not callable(value):
            return lift(value)
        if name in _ROWS:
            return lambda *args, **named: _rows(value, args, _bare_all(named))
        if name in _PLAIN:
            return lambda *args, **named: lift(value(*map(_bare, args), **_bare_all(named)))
        if name == "invariant":
            return lambda rule, check: value(rule, sink(check))
        if name == "handler":
            return lambda effect, act, **named: value(effect, sink(act), **_sunk_all(named))

        async def call(*args: Any, **named: Any) -> Any:
            return lift(value(*[sink(_bare(arg)) for arg in args], **_sunk_all(named)))

        return call

    async def __aenter__(self) -> Any:
        return lift(self.inner.__enter__())

    async def __aexit__(self, *error: Any) -> Any:
        return self.inner.__exit__(*error)


def _bare(value: Any) -> Any:
    return value.inner if isinstance(value, Lifted) else value


def _bare_all(named: dict[str, Any]) -> dict[str, Any]:
    return {name: _bare(value) for name, value in named.items()}


def _sunk_all(named: dict[str, Any]) -> dict[str, Any]:
    return {name: sink(value) for name, value in _bare_all(named).items()}


async def _rows(call: Callable[..., Iterator[Any]], args: Any, named: Any) -> AsyncIterator[Any]:
    for row in call(*args, **named):
        yield lift(row)


class World:
    """One engine in one colour, and the stores that a test opens there.

    ``server`` is the URL of the engine's server, if it has one: the world is then a store of its own there. A schema
    on PostgreSQL is lent to it: whoever made the world empties or removes it."""

    def __init__(self, name: str, directory: Path, server: str = "", schema: str = "") -> None:
        self.engine, self.colour = name.split("-")
        self.path = directory / "case.db"
        self.options: dict[str, Any] = {}
        self.url = server
        if self.engine == "memory":
            self.url = f"memory://case-{next(_serial)}"
        elif self.engine == "sqlite":
            self.url = f"sqlite:///{self.path}"
        elif self.engine == "postgresql":
            self.options = {"schema": schema}
        else:
            self.options = {"name": f"case_{os.getpid()}_{next(_serial)}"}
        self.awaits = self.colour == "async"
        self._opened: list[Any] = []
        self._runner: asyncio.Runner | None = None

    def open(self, **settings: Any) -> Any:
        """A store object; every one that is opened in this world sees the same data."""
        return self._keep(self._colour.open(self.url, **{"agent": "tester", **self.options, **settings}))

    def keep_open(self, url: str, **settings: Any) -> Any:
        """A store object that reaches the same data by another URL."""
        return self._keep(self._colour.open(url, **{"agent": "tester", **self.options, **settings}))

    def over(self, backend: Any, **settings: Any) -> Any:
        """A store object over a backend that the test has made."""
        return self._keep(self._colour.Store(backend, **{"agent": "tester", **settings}))

    def executor(self, store: Any, **settings: Any) -> Any:
        """An executor over a store of this world."""
        return lift(self._colour.IdempotentExecutor(_bare(store), **settings))

    def backend(self) -> Any:
        """A new backend object of the world's data, to be wrapped."""
        return backend_for(self.url, self.options)

    @property
    def place(self) -> tuple[str, dict[str, Any]]:
        """What another process needs to open the same store."""
        return self.url, self.options

    @property
    def is_server(self) -> bool:
        """Whether the engine is a process of its own, whose calls really wait."""
        return self.engine not in ("memory", "sqlite")

    @property
    def _colour(self) -> Any:
        return interlock if self.awaits else interlock.sync

    def _keep(self, store: Any) -> Any:
        self._opened.append(lift(store))
        return self._opened[-1]

    async def give_way(self) -> None:
        """Let other tasks run, where there are any."""
        if self.awaits:
            await asyncio.sleep(0)

    async def look_again(self) -> None:
        """Between two looks at what another thread will have done: for a moment the processor is left to it."""
        if self.awaits:
            await asyncio.sleep(LOOK_SECONDS)
        else:
            time.sleep(LOOK_SECONDS)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in this thread, in the way of this world."""
        if not self.awaits:
            return step(coroutine)
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    def thread(self, job: Callable[[], Coroutine[Any, Any, T]]) -> Thread[T]:
        """A thread that runs a job with an event loop of its own, or by stepping."""
        return Thread(lambda: asyncio.run(job()) if self.awaits else step(job()))

    def together(self, count: int, job: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
        """Run ``job(0)``, ``job(1)`` ... in as many threads, begun at one moment; their results."""
        barrier = threading.Barrier(count)

        async def begin(number: int) -> T:
            barrier.wait(PATIENCE_SECONDS)
            return await job(number)

        threads = [self.thread(functools.partial(begin, number)) for number in range(count)]
        return [thread.result() for thread in threads]

    def close(self) -> None:
        """Close everything that was opened."""
        try:
            for store in self._opened:
                self.call(store.close())
        finally:
            if self._runner is not None:
                self._runner.close()
            if self.engine == "redis":
                drop_keys(self.url, self.options["name"])


def drop_schema(url: str, name: str) -> bool:
    """Remove a PostgreSQL store; whether there was one."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", [name]).fetchone()
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))
    return found == (1,)


def drop_keys(url: str, name: str) -> bool:
    """Remove a Redis store; whether there was one."""
    import redis

    with redis.Redis.from_url(url) as client:
        keys = [key for key in client.scan_iter(count=10_000) if key.startswith(f"{{{name}}}:".encode())]
        return bool(keys and client.delete(*keys))


class Thread(Generic[T]):
    """A thread whose result, or error, can be asked for."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._job())
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """Wait for the thread; what its job returned or raised."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "a thread does not come to its end"
        if self._error is not None:
            raise self._error
        return self._results[0]


def in_worlds(*names: str) -> Callable[[Body], Callable[..., None]]:
    """Make a test of an async body, to run in each of these worlds."""

    def decorate(body: Body) -> Callable[..., None]:
        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            arguments["world"].call(body(**arguments))

        made: Callable[..., None] = pytest.mark.parametrize("world", names, indirect=True)(test)
        return made

    return decorate


ENGINES: Final = ("memory", "sqlite", "postgresql", "redis")

everywhere = in_worlds(*(f"{engine}-{colour}" for engine in ENGINES for colour in ("async", "sync")))
awaited = in_worlds(*(f"{engine}-async" for engine in ENGINES))
stepped = in_worlds(*(f"{engine}-sync" for engine in ENGINES))
between_processes = in_worlds(*(f"{engine}-sync" for engine in ENGINES if engine != "memory"))
on_sqlite = in_worlds("sqlite-async", "sqlite-sync")
on_postgresql = in_worlds("postgresql-async", "postgresql-sync")
on_redis = in_worlds("redis-async", "redis-sync")


async def increment(session: Any, key: str = "n") -> int:
    """Read, add one, write."""
    value: int = await session.read(key, 0) + 1
    await session.write(key, value)
    return value


async def put(session: Any, key: Any, value: Any) -> None:
    """Write one key, whatever is there."""
    await session.write(key, value)


async def put_all(session: Any, values: dict[Any, Any]) -> None:
    """Write several keys in one commit."""
    for key, value in values.items():
        await session.write(key, value)


async def rows(found: AsyncIterator[Any]) -> list[Any]:
    """All rows of a scan, a history or a feed."""
    return [row async for row in found]
