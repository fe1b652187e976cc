"""The floors of effects and durable sagas: the least journal that keeps an act from being done twice.

One table in one SQLite file with the library's settings. An entry is inserted and synced before the act (its primary
key refuses a second one) and updated with the result behind it, without a sync: the next one brings it to the disk. No
leases, no claims that end, no fingerprints, no feed, nothing that anybody could wait for. So this is about what the
disk and Python's driver allow for one sync for each act.

`Inline` does it on the calling thread, for one caller. `Writer` is a thread that puts whatever is queued into one
transaction, for many callers.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.floors.sqlite import BATCH, connect
from benchmarks.workload import pack

_TABLE: Final = "CREATE TABLE entry (key TEXT PRIMARY KEY, status INTEGER, at REAL, result BLOB) WITHOUT ROWID"
_INTEND: Final = "INSERT INTO entry VALUES (?, 0, ?, NULL)"
_DONE: Final = "UPDATE entry SET status = 1, result = ? WHERE key = ? AND status = 0"

Answer = Callable[[BaseException | None], None]
Job = tuple[str, bytes | None, Answer, asyncio.AbstractEventLoop | None]
"""Key, result (None: the intent), whom to tell, and on which loop."""


class Entries:
    """The table and its two statements. Durable: whether the next transaction is synced."""

    def __init__(self, directory: Path) -> None:
        self.connection = connect(directory / "floor.db")
        self.connection.execute(_TABLE)
        self._durable = True

    def set_durable(self, durable: bool) -> None:
        """Between transactions."""
        if durable is not self._durable:
            self._durable = durable
            self.connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    def apply(self, key: str, result: bytes | None) -> None:
        """One entry. Raises ``sqlite3.IntegrityError`` for a key that is there."""
        if result is None:
            self.connection.execute(_INTEND, (key, time.time()))
        else:
            self.connection.execute(_DONE, (result, key))


class Inline:
    """On the calling thread, a transaction for each entry."""

    def __init__(self, directory: Path) -> None:
        self._entries = Entries(directory)

    def intend(self, key: str) -> None:
        """Before the act."""
        self._entries.set_durable(True)
        self._entries.apply(key, None)

    def done(self, key: str, result: object) -> None:
        """Behind it."""
        self._entries.set_durable(False)
        self._entries.apply(key, pack(result))

    def close(self) -> None:
        """Close the file."""
        self._entries.connection.close()


class Writer:
    """A thread that commits whatever is queued."""

    def __init__(self, directory: Path) -> None:
        self._entries = Entries(directory)
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="floor-journal")
        self._thread.start()

    def close(self) -> None:
        """Stop after what was asked before."""
        self._queue.put(None)
        self._thread.join()
        self._entries.connection.close()

    async def write(self, key: str, result: object = None) -> None:
        """Have an entry written, suspending; without a result the intent."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def answer(failure: BaseException | None) -> None:
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        self._queue.put((key, None if result is None else pack(result), answer, loop))
        await future

    def write_now(self, key: str, result: object = None) -> None:
        """The same, blocking the thread."""
        done = threading.Lock()
        done.acquire()
        failures: list[BaseException] = []

        def answer(failure: BaseException | None) -> None:
            if failure is not None:
                failures.append(failure)
            done.release()

        self._queue.put((key, None if result is None else pack(result), answer, None))
        done.acquire()
        if failures:
            raise failures[0]

    def _work(self) -> None:
        waiting = self._queue
        while (first := waiting.get()) is not None:
            batch = [first]
            while len(batch) < BATCH and not waiting.empty():
                job = waiting.get_nowait()
                if job is None:
                    waiting.put(None)
                    break
                batch.append(job)
            self._commit(batch)

    def _commit(self, batch: list[Job]) -> None:
        entries = self._entries
        entries.set_durable(any(result is None for _, result, _, _ in batch))
        answers: list[tuple[Answer, BaseException | None]] = []
        entries.connection.execute("BEGIN IMMEDIATE")
        for key, result, answer, _ in batch:
            failure: BaseException | None = None
            try:
                entries.apply(key, result)
            except Exception as error:
                failure = error
            answers.append((answer, failure))
        entries.connection.execute("COMMIT")
        loop = batch[0][3]
        if loop is None:
            _tell(answers)
        else:
            loop.call_soon_threadsafe(_tell, answers)


def _tell(answers: list[tuple[Answer, Any]]) -> None:
    for answer, failure in answers:
        answer(failure)
