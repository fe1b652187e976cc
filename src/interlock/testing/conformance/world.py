"""The two worlds of the suite, and shorthands for the store under test.

Each test body is one async function. In the world ``awaited`` it runs on an asyncio event loop over the backend as it
was made; in the world ``stepped`` it is driven to its end by a single ``send(None)``, over the backend's blocking
leaf (or a bridge, where the backend has none). A body therefore awaits nothing but the port.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import pytest

from interlock import codec, keys
from interlock.backends.bridges import Bridged
from interlock.errors import UnsupportedError
from interlock.model import (
    Change,
    Clash,
    CommitRefused,
    CommitRequest,
    Entry,
    Expectation,
    Key,
    Put,
    Reply,
    Span,
    Token,
    TransactionId,
    Version,
    Write,
)
from interlock.ports import Backend, Capability

T = TypeVar("T")

PATIENCE_SECONDS: Final = 30.0
"""How long a test waits for something that should come at once."""

EXAMPLES: Final = "INTERLOCK_CONFORMANCE_EXAMPLES"
"""The environment variable that makes the random tests longer: how many times as many examples as usual."""

SPACE: Final = keys.resource_space("conformance")
EVERYTHING: Final = keys.prefix_span(SPACE, None)

_serial = itertools.count()


def key(*parts: str | int) -> Key:
    """The stored form of a key: one text, or a tuple."""
    return SPACE + keys.encode(parts[0] if len(parts) == 1 and type(parts[0]) is str else parts)


def span(start: str | None, stop: str | None) -> Span:
    """The texts from ``start`` up to, but not including, ``stop``."""
    return keys.range_span(SPACE, start, stop)


def put(value: Any, *, ttl_seconds: float | None = None, listed: bool = True) -> Put:
    """A put of a Python value."""
    return Put(codec.freeze(value), ttl_seconds, listed)


def thawed(entry: Entry | None) -> Any:
    """The Python value of an entry; None for a tombstone or no entry."""
    return None if entry is None or entry.value is None else codec.thaw(entry.value)


def examples(usual: int) -> int:
    """How many examples a random test makes in this run."""
    return max(1, round(usual * float(os.environ.get(EXAMPLES, "1"))))


def new_transaction() -> TransactionId:
    """A transaction id in the order of time, as sessions make them."""
    return (int(time.time() * 1000) << 80) | ((next(_serial) & 0xFFFF) << 64) | int.from_bytes(os.urandom(8), "big")


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that does not suspend to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("the blocking leaf has suspended")


class Subject:
    """A store under test: its backend, and what tests do with it all the time."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def request(
        self,
        writes: Mapping[Key, Write] | None = None,
        *,
        reads: Mapping[Key, Expectation] | None = None,
        guards: Mapping[Key, Expectation] | None = None,
        snapshot: Token | None = None,
        transaction: TransactionId | None = None,
        agent: str = "tester",
        **more: Any,
    ) -> CommitRequest:
        """A commit request: a new transaction on the newest snapshot unless said otherwise."""
        return CommitRequest(
            new_transaction() if transaction is None else transaction,
            agent,
            "serializable",
            await self.backend.snapshot() if snapshot is None else snapshot,
            dict(reads or {}),
            dict(writes or {}),
            dict(guards or {}),
            **more,
        )

    async def commit(self, writes: Mapping[Key, Write] | None = None, **more: Any) -> Reply:
        """Commit that, see `request`."""
        return await self.backend.commit(await self.request(writes, **more))

    async def refused(self, writes: Mapping[Key, Write] | None = None, **more: Any) -> dict[Key, Clash]:
        """Commit that, which must be refused; the clashes by key."""
        before = await self.backend.snapshot()
        with pytest.raises(CommitRefused) as caught:
            await self.commit(writes, **more)
        assert await self.feed(before) == [], "a refused commit is in the feed"
        clashes = {clash.key: clash for clash in caught.value.clashes}
        assert len(clashes) == len(caught.value.clashes), "a key is named twice"
        return clashes

    async def entry(self, which: Key, at: Token | None = None) -> Entry | None:
        """The entry of a key."""
        return (await self.backend.read((which,), at)).entries[0]

    async def value(self, which: Key, at: Token | None = None) -> Any:
        """The value of a key; None if it is absent."""
        return thawed(await self.entry(which, at))

    async def version(self, which: Key) -> Version:
        """The version of a key that has a value."""
        entry = await self.entry(which)
        assert entry is not None
        assert entry.value is not None
        return entry.version

    async def listing(self, at: Token | None = None, where: Span = EVERYTHING, **more: Any) -> dict[Key, Any]:
        """What a scan shows, in its order."""
        page = await self.backend.scan(where, at, **{"limit": 10_000, **more})
        assert not page.more or "limit" in more
        return {found: thawed(entry) for found, entry in page.items}

    async def feed(self, since: Token | None = None) -> list[Change]:
        """All feed records behind a cursor."""
        return (await self.backend.changes(since, limit=1_000_000))[0]

    async def compact_all(self) -> int:
        """Compact until nothing is left to drop, up to the present."""
        reply = await self.commit({key("compaction"): put("mark")})
        dropped = 0
        while count := await self.backend.compact(reply.at + 1):
            dropped += count
        return dropped

    async def lacks(self, capability: Capability, use: Callable[[], Awaitable[object]]) -> bool:
        """False if the capability is declared. Otherwise using it must be refused by its name, and that is the test."""
        if capability in self.backend.capabilities:
            return False
        with pytest.raises(UnsupportedError) as caught:
            await use()
        assert caught.value.capability == capability.value
        return True


class World:
    """One way to run test bodies, and the stores that the body opens."""

    def __init__(self, name: str, factory: Callable[[], Backend]) -> None:
        self.name = name
        self._factory = factory
        self._subjects: list[Subject] = []
        self._runner: asyncio.Runner | None = None

    def open(self) -> Subject:
        """A new, empty store; closed at the end of the test."""
        subject = Subject(self._fitting(self._factory()))
        self._subjects.append(subject)
        return subject

    def _fitting(self, backend: Backend) -> Backend:
        if self.name == "awaited":
            return backend
        leaf = backend.blocking()
        return Bridged(backend) if leaf.suspends else leaf

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in this thread and in the way of this world."""
        if self.name == "stepped":
            return step(coroutine)
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    def in_thread(self, job: Callable[[], Coroutine[Any, Any, T]]) -> Thread[T]:
        """Start a thread that runs a job with an event loop of its own, or by stepping."""
        return Thread(self.name, job)

    def together(self, count: int, job: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
        """Run ``job(0)``, ``job(1)`` ... in as many threads, begun at one moment; their results."""
        barrier = threading.Barrier(count)

        def begin(number: int) -> Coroutine[Any, Any, T]:
            barrier.wait(PATIENCE_SECONDS)
            return job(number)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # threads take turns so often that what can go wrong between two steps does
        try:
            threads = [self.in_thread(functools.partial(begin, number)) for number in range(count)]
            return [thread.result() for thread in threads]
        finally:
            sys.setswitchinterval(interval)

    def close(self) -> None:
        """Close every store that was opened."""
        try:
            for subject in self._subjects:
                self.call(subject.backend.close())
        finally:
            if self._runner is not None:
                self._runner.close()


class Thread(Generic[T]):
    """A thread of a test; see `World.in_thread`."""

    def __init__(self, world: str, job: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._world = world
        self._job = job
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._world == "stepped":
                self._results.append(step(self._job()))
            else:
                with asyncio.Runner() as runner:
                    self._results.append(runner.run(self._job()))
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """Wait for the thread; what its job returned or raised."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "a thread does not come to its end"
        if self._error is not None:
            raise self._error
        return self._results[0]


@pytest.fixture(params=["awaited", "stepped"])
def world(request: pytest.FixtureRequest, backend: Callable[[], Backend]) -> Iterator[World]:
    """Each test of the suite in both worlds, over fresh stores."""
    made = World(request.param, backend)
    yield made
    made.close()


def in_both_worlds(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of an async body, to run in each `world`."""

    @functools.wraps(body)
    def test(**arguments: Any) -> None:
        arguments["world"].call(body(**arguments))

    return test
