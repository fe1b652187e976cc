"""What the tests of the SQLite backend share: a plain synchronous view of a store, worker processes, a held queue."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import interlock
import zygote
from interlock import keys
from interlock.backends.sqlite import SQLiteBackend
from interlock.merges import add_operation
from interlock.model import ABSENT, CommitRefused, CommitRequest, Delete, Entry, Key, Merge, Put, Reply, Token, Write
from interlock.runtime import BlockingRuntime

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
SPACE = keys.resource_space("tests")

Worker = Callable[..., "subprocess.Popen[str]"]

_serial = itertools.count()


def key(*parts: str | int) -> Key:
    """The stored form of a key."""
    return SPACE + keys.encode(parts[0] if len(parts) == 1 and type(parts[0]) is str else parts)


def number(value: int) -> Put:
    """A put of a number."""
    return Put(b"i%d" % value)


def value_of(entry: Entry | None) -> int | None:
    """The number in an entry."""
    return None if entry is None or entry.value is None else int(entry.value[1:])


def add(amount: int, floor: int | None = None) -> Merge:
    """A merge that adds."""
    return Merge((add_operation(amount, floor, None),))


def delete() -> Delete:
    """A delete."""
    return Delete()


def new_transaction() -> int:
    """An id in the order of time."""
    return (time.time_ns() // 1_000_000 << 80) | ((next(_serial) & 0xFFFF) << 64) | int.from_bytes(os.urandom(8), "big")


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that blocks instead of suspending."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("the blocking leaf has suspended")


class Store:
    """A SQLite store for synchronous tests."""

    def __init__(self, path: Path | str, **options: Any) -> None:
        options.setdefault("synchronous", "OFF")
        options.setdefault("busy_seconds", PATIENCE_SECONDS)
        self.backend = SQLiteBackend(path, runtime=BlockingRuntime(), **options)

    def request(self, writes: Mapping[Key, Write] | None = None, **more: Any) -> CommitRequest:
        """A request on the newest snapshot unless said otherwise."""
        more.setdefault("snapshot", None)
        snapshot = more.pop("snapshot") or self.snapshot()
        transaction = more.pop("transaction", None) or new_transaction()
        reads, guards = more.pop("reads", {}), more.pop("guards", {})
        agent = more.pop("agent", "tester")
        return CommitRequest(transaction, agent, "serializable", snapshot, reads, dict(writes or {}), guards, **more)

    def commit(self, writes: Mapping[Key, Write] | None = None, **more: Any) -> Reply:
        """Commit that."""
        return step(self.backend.commit(self.request(writes, **more)))

    def snapshot(self) -> Token:
        """The newest token."""
        return step(self.backend.snapshot())

    def entry(self, which: Key, at: Token | None = None) -> Entry | None:
        """One entry."""
        return step(self.backend.read((which,), at)).entries[0]

    def value(self, which: Key, at: Token | None = None) -> int | None:
        """One number."""
        return value_of(self.entry(which, at))

    def increment(self, which: Key) -> int:
        """Read, add one, commit, again until nobody came between; how often that failed."""
        for failures in itertools.count():
            reading = step(self.backend.read((which,)))
            entry = reading.entries[0]
            expected = ABSENT if entry is None or entry.value is None else entry.version
            try:
                self.commit(
                    {which: number((value_of(entry) or 0) + 1)}, reads={which: expected}, snapshot=reading.token
                )
            except CommitRefused:
                continue
            return failures
        raise AssertionError

    def feed(self, since: Token | None = None) -> list[Any]:
        """Every record behind a cursor."""
        return step(self.backend.changes(since, limit=1_000_000))[0]

    def close(self) -> None:
        """Close it."""
        step(self.backend.close())


@contextmanager
def opened(path: Path | str, **options: Any) -> Iterator[Store]:
    """A store that is closed at the end."""
    store = Store(path, **options)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def queue_held(path: Path) -> Iterator[None]:
    """Hold the queue lock of a store as another process would that was stopped inside its batch."""
    descriptor = os.open(f"{path}-queue", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def wait_until(condition: Callable[[], bool]) -> None:
    """Give way until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0)


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A process that runs a function of `sqlite_worker`."""
    source = Path(interlock.__file__).parent.parent
    paths = source, Path(__file__).parent, Path(zygote.__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return zygote.start("-m", "sqlite_worker", *map(str, arguments), environment=environment, **options)


def told(process: subprocess.Popen[str], word: str) -> str:
    """The next line of a worker, which must begin with a word."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(word), f"the worker said {line!r} instead of {word!r}"
    return line.removeprefix(word).strip()


def go(process: subprocess.Popen[str]) -> None:
    """Let a worker go on."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[str]) -> None:
    """Wait for a worker, which must have had no trouble."""
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_SECONDS) == 0


def in_threads(count: int, job: Callable[[int], T]) -> list[T]:
    """Run a job in threads that begin together; the results. The first error is raised."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            barrier.wait(PATIENCE_SECONDS)
            results[index] = job(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "a thread does not come to its end"
    if errors:
        raise errors[0]
    return results
