"""Both bridges pass the conformance suite, and abandon nothing when their caller is interrupted."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from interlock.backends import bridges
from interlock.backends.bridges import Bridged, Delegate, Threaded
from interlock.backends.memory import MemoryBackend
from interlock.backends.sqlite import SQLiteBackend
from interlock.errors import CommitUnknownError, UsageError
from interlock.model import CommitRequest, Token
from interlock.ports import Backend
from interlock.testing.conformance import *  # noqa: F403
from interlock.testing.conformance.world import Subject, World, key, put, step

T = TypeVar("T")


class Suspending(Delegate):
    """A backend for event loops only: the memory backend, whose every call gives way to others first and afterwards."""

    suspends = True
    blocks = False

    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            await asyncio.sleep(0)
        except BaseException:
            coroutine.close()
            raise
        result = await coroutine
        await asyncio.sleep(0)
        return result

    async def wait(self, since: Token, timeout_seconds: float, keys: Any = None) -> bool:
        """As the inner backend waits."""
        return await self._call("wait", self.inner.wait(since, timeout_seconds, keys))

    async def close(self) -> None:
        """Close the inner backend."""
        await self.inner.close()

    def blocking(self) -> Backend:
        """There is no blocking leaf."""
        return self


@pytest.fixture(params=["threaded", "bridged"])
def world(request: pytest.FixtureRequest, fast_path: Path) -> Iterator[World]:
    """Each bridge in the world that it is for; the other world would see only what lies behind it."""
    numbers = itertools.count()
    if request.param == "threaded":
        made = World("awaited", lambda: Threaded(SQLiteBackend(fast_path / f"{next(numbers)}.db").blocking()))
    else:
        made = World("stepped", lambda: Suspending(MemoryBackend()))
    yield made
    made.close()


class Held(Delegate):
    """A backend whose commits begin at once and end when they are let go: by blocking, or on a loop by suspending."""

    def __init__(self, inner: Backend, *, suspends: bool = False) -> None:
        super().__init__(inner)
        self.suspends = suspends
        self.blocks = not suspends
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        if name == "commit":
            self.begun.release()
            if self.suspends:
                try:
                    await asyncio.get_running_loop().run_in_executor(None, self.go.wait)
                except asyncio.CancelledError:
                    coroutine.close()
                    raise
            else:
                assert self.go.wait(30)
        return await coroutine

    async def wait(self, since: Token, timeout_seconds: float, keys: Any = None) -> bool:
        """As the inner backend waits."""
        return await self.inner.wait(since, timeout_seconds, keys)

    async def close(self) -> None:
        """The inner backend stays open, for the test to look at."""

    def blocking(self) -> Backend:
        """Itself, or nothing better."""
        return self


def _request(backend: Backend, name: str) -> CommitRequest:
    return step(Subject(backend).request({key(name): put(1)}))


def _present(backend: Backend, name: str) -> bool:
    return step(Subject(backend).value(key(name))) == 1


def test_a_commit_that_has_begun_is_not_abandoned_when_its_task_is_cancelled() -> None:
    memory = MemoryBackend().blocking()
    held = Held(memory)

    async def main() -> None:
        backend = Threaded(held)
        task = asyncio.create_task(backend.commit(_request(memory, "a")))
        await asyncio.to_thread(held.begun.acquire)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()
        assert not _present(memory, "a")
        held.go.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.__notes__ == ["commit had begun and was not abandoned: it returned"]
        assert _present(memory, "a")
        await backend.close()

    asyncio.run(main())


def test_a_commit_that_has_begun_is_not_abandoned_when_a_scope_is_cancelled() -> None:
    memory = MemoryBackend().blocking()
    held = Held(memory)

    async def main() -> None:
        backend = Threaded(held)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.commit, _request(memory, "a"))
                await trio.to_thread.run_sync(held.begun.acquire)
                scope.cancel()
                held.go.set()
        assert scope.cancelled_caught
        assert _present(memory, "a")
        await backend.close()

    trio.run(main)


def test_a_refusal_is_in_the_note_of_the_cancellation() -> None:
    memory = MemoryBackend().blocking()
    held = Held(memory)
    request = step(Subject(memory).request({key("a"): put(1)}, reads={key("b"): (1, 1)}))

    async def main() -> None:
        backend = Threaded(held)
        task = asyncio.create_task(backend.commit(request))
        await asyncio.to_thread(held.begun.acquire)
        task.cancel()
        await asyncio.sleep(0)
        held.go.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "it raised CommitRefused" in caught.value.__notes__[0]
        await backend.close()

    asyncio.run(main())


def test_a_call_that_nobody_has_begun_is_withdrawn() -> None:
    memory = MemoryBackend().blocking()
    held = Held(memory)

    async def main() -> None:
        backend = Threaded(held)
        busy = [asyncio.create_task(backend.commit(_request(memory, f"busy {n}"))) for n in range(bridges.WORKERS)]
        for _ in busy:
            await asyncio.to_thread(held.begun.acquire)
        late = asyncio.create_task(backend.commit(_request(memory, "late")))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await late
        assert not hasattr(caught.value, "__notes__")
        held.go.set()
        await asyncio.gather(*busy)
        await backend.close()

    asyncio.run(main())
    assert _present(memory, "busy 0")
    assert not _present(memory, "late")


def test_a_cancelled_wait_ends_soon_and_others_are_served_meanwhile() -> None:
    async def main() -> None:
        memory = MemoryBackend().blocking()
        backend = Threaded(memory)
        token = await backend.snapshot()
        waits = [asyncio.create_task(backend.wait(token, 3600.0)) for _ in range(2 * bridges.WORKERS)]
        await asyncio.sleep(0)
        assert await backend.snapshot() == token
        for task in waits[1:]:
            task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*waits[1:], return_exceptions=True), 30)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        await backend.commit(_request(memory, "a"))
        assert await asyncio.wait_for(waits[0], 30) is True
        await backend.close()

    asyncio.run(main())


def test_an_interrupted_stepped_commit_is_waited_for() -> None:
    """Ctrl-C in the main thread while the loop's thread is in the middle of a commit."""
    memory = MemoryBackend().blocking()
    held = Held(memory, suspends=True)
    backend = Bridged(held)
    request = _request(memory, "a")

    def interrupt() -> None:
        assert held.begun.acquire(timeout=30)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def handler(number: int, frame: object) -> None:
        held.go.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            step(backend.commit(request))
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    assert caught.value.__notes__ == ["commit had begun and was not abandoned: it returned"]
    assert _present(memory, "a")
    step(backend.close())


def test_closing_a_bridge_ends_what_others_wait_for() -> None:
    backend = Bridged(Suspending(MemoryBackend()))
    token = step(backend.snapshot())
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            step(backend.wait(token, 3600.0))
        except UsageError as error:
            ends.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    step(backend.close())
    for thread in threads:
        thread.join(30)
    assert len(ends) == 3


def test_a_commit_that_closing_cuts_off_is_unknown() -> None:
    held = Held(MemoryBackend().blocking(), suspends=True)
    backend = Bridged(held)
    request = _request(held.inner, "a")
    ends: list[BaseException] = []

    def commit() -> None:
        try:
            step(backend.commit(request))
        except CommitUnknownError as error:
            ends.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    assert held.begun.acquire(timeout=30)
    closing = threading.Thread(target=lambda: step(backend.close()))
    closing.start()
    thread.join(30)
    held.go.set()
    closing.join(30)
    assert len(ends) == 1


def test_a_bridge_that_nobody_holds_ends_its_thread() -> None:
    others = set(threading.enumerate())
    backend = Bridged(Suspending(MemoryBackend()))
    step(backend.snapshot())
    (thread,) = [each for each in set(threading.enumerate()) - others if each.name == "interlock-loop"]
    del backend
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def _in_child(check: Callable[[], bool]) -> bool:
    """Fork, run the check in the child, and say what came of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads: as meant here
        child = os.fork()
    if child == 0:
        good = False
        try:
            good = check()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_bridge_refuses_in_a_forked_child() -> None:
    backend = Bridged(Suspending(MemoryBackend()))
    step(backend.snapshot())

    def check() -> bool:
        with pytest.raises(UsageError, match="open one in the child"):
            step(backend.snapshot())
        return True

    assert _in_child(check)
    step(backend.close())


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    backend = Threaded(SQLiteBackend(tmp_path / "store.db").blocking())
    store = Subject(backend)

    async def add(name: str) -> dict[bytes, Any]:
        await store.commit({key(name): put(1)})
        return await store.listing()

    asyncio.run(add("a"))
    assert _in_child(lambda: asyncio.run(add("b")) == {key("a"): 1, key("b"): 1})
    assert asyncio.run(add("c")) == {key("a"): 1, key("b"): 1, key("c"): 1}
    asyncio.run(backend.close())


def test_a_backend_that_suspends_needs_no_threads() -> None:
    with pytest.raises(UsageError):
        Threaded(Suspending(MemoryBackend()))


def test_a_backend_that_says_it_does_not_suspend_must_not() -> None:
    liar = Suspending(MemoryBackend())
    liar.suspends = False

    async def main() -> None:
        backend = Threaded(liar)
        with pytest.raises(UsageError, match="does not suspend"):
            await backend.snapshot()

    asyncio.run(main())


def test_bridges_show_what_they_bridge() -> None:
    assert repr(Threaded(MemoryBackend("x").blocking())) == "Threaded(MemoryBackend('x'))"
    assert repr(Bridged(Suspending(MemoryBackend()))) == "Bridged(Suspending(MemoryBackend()))"
