"""Callers that go away while their commit is on its way: taken back, or told what became of it."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import threading
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from sqlite_support import (
    PATIENCE_SECONDS,
    Store,
    add,
    key,
    new_transaction,
    number,
    opened,
    queue_held,
    step,
    value_of,
    wait_until,
)

from interlock.backends.sqlite import SQLiteBackend
from interlock.errors import UsageError
from interlock.model import CommitRequest, Settled, Span, Token

TAKEN_BACK = "taken back"
COMMITTED = "COMMITTED"


def notes(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


@contextmanager
def slow_batches(backend: SQLiteBackend) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Batches stop before COMMIT: the first event says that one has, the second lets them go on."""
    writer = backend._engine._writer
    assert writer is not None
    inner: Any = writer.connection
    begun, allowed = threading.Event(), threading.Event()

    class Slow:
        def execute(self, statement: str, *arguments: Any) -> Any:
            if statement == "COMMIT":
                begun.set()
                allowed.wait(PATIENCE_SECONDS)
            return inner.execute(statement, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    writer.connection = Slow()  # type: ignore[assignment]
    try:
        yield begun, allowed
    finally:
        allowed.set()
        writer.connection = inner


def request_of(token: Token, count: int = 1) -> CommitRequest:
    return CommitRequest(new_transaction(), "t", "none", token, {}, {key("a", count): number(count)}, {})


def test_a_cancelled_commit_that_waits_is_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF")
        request = request_of(await backend.snapshot())
        with queue_held(tmp_path / "store.db"):
            task = asyncio.create_task(backend.commit(request))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert TAKEN_BACK in notes(caught.value)
        assert (await backend.outcome(request.transaction, fence=True))[0] is Settled.FENCED
        await backend.close()

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_commit_that_has_begun_is_waited_for(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF", grace_seconds=PATIENCE_SECONDS)
        request = request_of(await backend.snapshot())
        with slow_batches(backend) as (begun, allowed):
            task = asyncio.create_task(backend.commit(request))
            await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            assert not task.done()
            allowed.set()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert COMMITTED in notes(caught.value)
        assert (await backend.outcome(request.transaction, fence=True))[0] is Settled.COMMITTED
        await backend.close()

    asyncio.run(main())


def test_an_interrupted_caller_does_not_wait_longer_than_grace_seconds(tmp_path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF", grace_seconds=0.05)
        request = request_of(await backend.snapshot())
        with slow_batches(backend) as (begun, _):
            task = asyncio.create_task(backend.commit(request))
            await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert "not known" in notes(caught.value)
        await backend.close()

    asyncio.run(main())


def test_trio_works_and_its_cancellation_waits_too(tmp_path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF")
        token = await backend.snapshot()
        await backend.commit(request_of(token))
        request = request_of(token, 2)
        with slow_batches(backend) as (begun, allowed):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.commit, request)
                await trio.to_thread.run_sync(begun.wait, PATIENCE_SECONDS)
                nursery.cancel_scope.cancel()
                threading.Timer(0.05, allowed.set).start()
            assert nursery.cancel_scope.cancelled_caught
            assert allowed.is_set()
        entries = (await backend.read([key("a", 1), key("a", 2)])).entries
        assert [value_of(entry) for entry in entries] == [1, 2]
        with queue_held(tmp_path / "store.db"), trio.move_on_after(0.02):
            await backend.commit(request_of(token, 3))
        assert (await backend.read([key("a", 3)])).entries == [None]
        assert not await backend.wait(await backend.snapshot(), 0.01)
        await backend.close()

    trio.run(main)


def test_cancelled_at_any_moment_notes_are_true(tmp_path: Path) -> None:
    """600 commits, each cancelled after a random number of steps of the loop."""
    chance = random.Random(5)

    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF")
        token = await backend.snapshot()
        seen = {TAKEN_BACK: 0, COMMITTED: 0, "": 0}

        async def one(count: int) -> None:
            request = request_of(token, count)
            task = asyncio.create_task(backend.commit(request))
            for _ in range(chance.randrange(1, 40)):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
                said = ""
            except asyncio.CancelledError as error:
                said = next(word for word in (TAKEN_BACK, COMMITTED) if word in notes(error))
            settled, _ = await backend.outcome(request.transaction, fence=True)
            assert settled is (Settled.FENCED if said == TAKEN_BACK else Settled.COMMITTED)
            seen[said] += 1

        for turn in range(75):
            await asyncio.gather(*(one(turn * 8 + part) for part in range(8)))
        assert seen[TAKEN_BACK] > 0
        assert seen[COMMITTED] > 0
        await backend.close()

    asyncio.run(main())


class Interrupt(BaseException):
    """What the signal handler of these tests raises."""


def _is_dropped(frame: types.FrameType | None) -> bool:
    """Whether Python drops what is raised here, with a word on stderr: the collector has called, for an object or for a
    weak reference."""
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_remove", "remove", "_cleanup"):
            return True
        frame = frame.f_back
    return False


class Strikes:
    """A signal comes to the main thread again and again, at random times; its handler raises, once for each `aim`."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._aimed = False

    @property
    def go_on(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self._end

    def aim(self) -> None:
        """From now on the handler raises."""
        self._aimed = True

    def rest(self) -> None:
        """From now on it does not."""
        self._aimed = False

    def _strike(self, number: int, frame: types.FrameType | None) -> None:
        if self._aimed and not _is_dropped(frame):
            self._aimed = False
            raise Interrupt

    def _shoot(self) -> None:
        chance = random.Random(11)
        main = threading.main_thread().ident
        assert main is not None
        while not self._over.wait(chance.uniform(0.0002, 0.004)):
            signal.pthread_kill(main, signal.SIGUSR1)

    def __enter__(self) -> Strikes:
        self._over = threading.Event()
        self._before = signal.signal(signal.SIGUSR1, self._strike)
        self._thread = threading.Thread(target=self._shoot)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)


def test_ctrl_c_at_any_moment_loses_nothing_and_notes_are_true(tmp_path: Path) -> None:
    """A handler raises out of blocking commits for a while, as Ctrl-C does."""
    with opened(tmp_path / "store.db") as store:
        token = store.snapshot()
        said: list[tuple[CommitRequest, str]] = []

        def enough() -> bool:
            hit = sum(TAKEN_BACK in note or COMMITTED in note for _, note in said)
            return hit > 5 and sum(note == "returned" for _, note in said) > 5

        with Strikes(1.5) as strikes:
            while strikes.go_on or not enough():
                request = request_of(token, len(said))
                try:
                    strikes.aim()
                    step(store.backend.commit(request))
                    said.append((request, "returned"))
                    strikes.rest()
                except Interrupt as error:
                    if not said or said[-1][0] is not request:
                        said.append((request, notes(error)))
        for request, note in said:
            settled, _ = step(store.backend.outcome(request.transaction, fence=True))
            if note == "returned" or COMMITTED in note:
                assert settled is Settled.COMMITTED
            elif TAKEN_BACK in note:
                assert settled is Settled.FENCED
        store.increment(key("after"))


def test_ctrl_c_during_reads_leaks_nothing(tmp_path: Path) -> None:
    """A strike may come when a coroutine has been made and its first step is still to come; then the call has not
    begun, and Python says so. No strike leaves more than the one that it hit, and nothing else leaves any."""
    gc.collect()  # what other tests have left is not ours
    with opened(tmp_path / "store.db") as store, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # an error that is raised while an object goes would reach nobody
        store.commit({key("a", part): number(part) for part in range(50)})
        old = store.snapshot()
        store.commit({key("a", part): add(1) for part in range(50)})
        rounds = struck = 0
        with Strikes(0.7) as strikes:
            while strikes.go_on or rounds <= 5:
                try:
                    strikes.aim()
                    assert store.value(key("a", 3), old) == 3
                    assert len(store.feed()) == 2
                    store.commit(reads={key("a", 1): store.entry(key("a", 1)).version})  # type: ignore[union-attr]
                    rounds += 1
                    strikes.rest()
                except Interrupt:
                    struck += 1
        assert store.value(key("a", 3)) == 4
        reader = store.backend._engine.local.reader
        assert not reader.connection.in_transaction
        store.increment(key("a", 1))
        gc.collect()  # what lies in a circle says so now, not in another test
        assert len(said) <= struck
        assert all("was never awaited" in str(each.message) for each in said), [str(each.message) for each in said]


def test_closing_wakes_and_answers_everybody(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    token = store.snapshot()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            step(store.backend.wait(token, PATIENCE_SECONDS))
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(store.backend._engine.news._waiting))
    store.close()
    store.close()
    thread.join(PATIENCE_SECONDS)
    assert len(errors) == 1
    for call in (store.snapshot, lambda: store.feed(), lambda: store.commit({}, snapshot=token)):
        with pytest.raises(UsageError, match="closed"):
            call()
    assert not (tmp_path / "store.db-wal").exists()


def test_what_was_asked_before_closing_is_done(tmp_path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF")
        token = await backend.snapshot()
        with queue_held(tmp_path / "store.db"):
            tasks = [asyncio.create_task(backend.commit(request_of(token, count))) for count in range(300)]
            await asyncio.sleep(0)
            closing = asyncio.create_task(backend.close())
            await asyncio.sleep(0)
        await closing
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(getattr(result, "version", None) or isinstance(result, UsageError) for result in results)
        done = sum(not isinstance(result, BaseException) for result in results)
        assert done >= 128
        with pytest.raises(UsageError):
            await backend.commit(request_of(token))

    asyncio.run(main())
    with opened(tmp_path / "store.db") as store:
        assert len(store.feed()) >= 128


def test_a_store_that_is_forgotten_holds_up_nobody(tmp_path: Path) -> None:
    """A program may end, or drop a store, without closing it."""
    store = Store(tmp_path / "store.db")
    store.increment(key("a"))
    del store
    with opened(tmp_path / "store.db") as again:
        again.increment(key("a"))
        assert again.value(key("a")) == 2


def test_a_transaction_that_an_interrupt_has_left_open_shows_nothing_old(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db") as store:
        store.commit({key("a"): number(1)})
        reader = store.backend._engine.local.reader
        looks = (
            lambda: store.value(key("a")),
            lambda: len(store.feed()),
            lambda: store.snapshot().position,
            lambda: len(step(store.backend.history(key("a")))),
            lambda: value_of(step(store.backend.scan(Span(key("a"), key("b")))).items[0][1]),
        )
        for count, look in enumerate(looks, 2):
            reader.connection.execute("BEGIN")
            assert reader.connection.execute("SELECT count(*) FROM feed").fetchone() == (count,)
            store.commit({key("a"): add(1)})
            store.backend._engine.newest.forget()
            assert look() == count
