"""Where the bodies of the session tests work: stores of their world, and several agents at once.

A `Desk` belongs to one test. Every store that it opens is a store object of its own over the same engine, as if each
were another process with its own knowledge of rules; `Desk.elsewhere` gives another engine.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar, cast

import pytest

import interlock
import interlock.sync
from interlock.ports import Backend
from interlock.testing.conformance.sessions.dress import Dressed
from interlock.testing.conformance.world import PATIENCE_SECONDS, World, step

T = TypeVar("T")

MODES: Final[tuple[interlock.Isolation, ...]] = ("none", "snapshot", "optimistic", "serializable")
"""The modes in which nobody waits for anybody, so that one thread can play several agents."""
EVERY_MODE: Final[tuple[interlock.Isolation, ...]] = (*MODES, "pessimistic")
VALIDATING: Final = MODES[1:]


class Desk:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.awaited = world.name == "awaited"
        self._backend: Backend | None = None
        self._stores: list[Any] = []

    @property
    def backend(self) -> Backend:
        """The engine of this test, as the port shows it."""
        if self._backend is None:
            self._backend = self.world.open().backend
        return self._backend

    def open(self, **settings: Any) -> interlock.Store:
        """A store object of its own over this test's engine; ``backend`` puts something before the engine."""
        backend = settings.pop("backend", None) or self.backend
        settings.setdefault("agent", "tester")
        if self.awaited:
            store: Any = interlock.Store(backend, **settings)
        else:
            store = Dressed(interlock.sync.Store(backend, **settings))
        self._stores.append(store)
        return cast(interlock.Store, store)

    def elsewhere(self, **settings: Any) -> interlock.Store:
        """A store over another engine."""
        return self.open(backend=self.world.open().backend, **settings)

    def resource(self, name: str = "things", **settings: Any) -> interlock.SharedResource[Any]:
        """A resource of a new store object over this test's engine."""
        return self.open(**settings).resource(name)

    async def give_way(self) -> None:
        """Let others go first, for a moment."""
        if self.awaited:
            await asyncio.sleep(0)
        else:
            time.sleep(0)

    async def together(self, *jobs: Callable[[], Awaitable[T]]) -> list[T]:
        """Run jobs at the same time: tasks of this loop, or threads; their results, or the first error."""
        found = await self.gathered(*jobs)
        for result in found:
            if isinstance(result, BaseException):
                raise result
        return cast(list[T], found)

    async def gathered(self, *jobs: Callable[[], Awaitable[T]]) -> list[T | BaseException]:
        """The same, with errors in the place of results. Tasks and threads begin with a copy of this context."""
        if self.awaited:
            return await asyncio.gather(*[_ending(job) for job in jobs], return_exceptions=True)
        results: list[T | BaseException] = [AssertionError("a thread does not come to its end")] * len(jobs)

        def work(place: int, job: Callable[[], Awaitable[T]]) -> None:
            try:
                results[place] = step(cast(Coroutine[Any, Any, T], job()))
            except BaseException as error:
                results[place] = error

        threads = []
        for place, job in enumerate(jobs):
            context = contextvars.copy_context()
            threads.append(threading.Thread(target=context.run, args=(work, place, job), daemon=True))
            threads[-1].start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return results

    def flag(self) -> Flag:
        """Something that one job waits for and another one raises."""
        return Flag(self.awaited)

    def close(self) -> None:
        """Close every store that was opened."""
        for store in self._stores:
            self.world.call(store.close())


async def _ending(job: Callable[[], Awaitable[T]]) -> T:
    """A cancellation that is an error of the job, not of the test, comes back as one."""
    return await job()


class Flag:
    """An event of the world: raised by anybody, waited for by anybody."""

    def __init__(self, awaited: bool) -> None:
        self._event: Any = asyncio.Event() if awaited else threading.Event()
        self.awaited = awaited

    @property
    def raised(self) -> bool:
        """Whether it has been raised."""
        return bool(self._event.is_set())

    def lift(self) -> None:
        """Let those who wait go on; from the loop's own thread."""
        self._event.set()

    async def wait(self) -> None:
        """Wait, but not for ever."""
        if self.awaited:
            await asyncio.wait_for(self._event.wait(), PATIENCE_SECONDS)
        else:
            assert self._event.wait(PATIENCE_SECONDS), "nobody came"


@pytest.fixture
def desk(world: World) -> Iterator[Desk]:
    """A desk for each test, in both worlds."""
    made = Desk(world)
    yield made
    made.close()


def at_desk(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of an async body, to run in both worlds."""

    @functools.wraps(body)
    def test(**arguments: Any) -> None:
        arguments["desk"].world.call(body(**arguments))

    return test


async def listed(rows: Any) -> list[Any]:
    """Everything that an asynchronous iterator gives."""
    return [row async for row in rows]


async def contents(place: interlock.SharedResource[Any] | interlock.AgentSession[Any]) -> dict[Any, Any]:
    """What a resource holds now, or what a session sees of it."""
    return dict(await listed(place.scan()))


async def fill(resource: interlock.SharedResource[Any], rows: dict[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
    """Write some rows in one transaction."""
    async with resource.session(agent="filler") as session:
        for key, value in dict(rows).items():
            await session.write(key, value)
