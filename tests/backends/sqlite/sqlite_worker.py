"""The other processes of the tests: each function is one, run as ``python -m sqlite_worker NAME ARGUMENT...``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from sqlite_support import PATIENCE_SECONDS, Store, add, key, new_transaction, number, step

from interlock.backends.sqlite import SQLiteBackend
from interlock.model import CommitRequest


def say(*words: object) -> None:
    """A line for the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def await_go() -> None:
    """Wait for the test's word."""
    assert sys.stdin.readline() == "go\n"


def increments(path: str, count: str, synchronous: str = "FULL") -> None:
    """Increment one key, with default settings; say when it was done and the times."""
    store = Store(path, synchronous=synchronous, busy_seconds=5.0)
    store.snapshot()
    say("ready")
    await_go()
    failures = 0
    for _ in range(int(count)):
        failures += store.increment(key("counter"))
    say("done", time.monotonic(), failures)
    store.close()


def open_new(path: str) -> None:
    """Open a store that may not be there yet, write, close."""
    store = Store(path)
    say("ready")
    await_go()
    store.increment(key("counter"))
    store.close()


def acknowledge(path: str, name: str) -> None:
    """Commit for ever from four tasks; write each key to standard output once its commit has returned."""

    async def task(backend: SQLiteBackend, part: int) -> None:
        token = await backend.snapshot()
        count = 0
        while True:
            which = key(name, part, count)
            writes = {which: number(count), key(name, part, count, "twin"): number(count), key("sum"): add(1)}
            await backend.commit(CommitRequest(new_transaction(), name, "none", token, {}, writes, {}))
            os.write(1, b"%d %d\n" % (part, count))
            count += 1

    async def main() -> None:
        backend = SQLiteBackend(path, busy_seconds=PATIENCE_SECONDS)
        await asyncio.gather(*(task(backend, part) for part in range(4)))

    asyncio.run(main())


def acknowledgers(path: str) -> None:
    """For each line, a name and a named pipe: a child that says its number into the pipe, then does as `acknowledge`.

    Children are forked where no store is open yet, so each opens its own; only Python's start is spared."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        name, pipe = line.split()
        if os.fork() == 0:
            try:
                os.dup2(os.open(pipe, os.O_WRONLY), 1)
                os.write(1, b"%d\n" % os.getpid())
                acknowledge(path, name)  # until it is killed, or nobody reads any more
            finally:
                os._exit(1)


def puts(path: str, count: str) -> None:
    """Commit one key again and again, each when told; say the clock just before."""
    store = Store(path)
    store.snapshot()
    say("ready")
    for turn in range(int(count)):
        await_go()
        store.commit({key("news"): number(turn)})
        say("committed", time.monotonic())
    store.close()


def stop_in_batch(path: str) -> None:
    """Be stopped by the system while the queue lock is held and a transaction is open."""
    store = Store(path)
    store.increment(key("a"))
    writer = store.backend._engine._writer
    assert writer is not None
    inner = writer.connection

    class Stopping:
        def execute(self, statement: str, *arguments: object) -> object:
            if statement == "COMMIT":
                say("stopping")
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread goes no further
            return inner.execute(statement, *arguments)  # type: ignore[union-attr]

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

    writer.connection = Stopping()  # type: ignore[assignment]
    store.increment(key("a"))
    say("went on")


def follow(path: str, count: str) -> None:
    """Read the feed from its beginning until so many records came; say whether each came once and in order."""
    store = Store(path)
    cursor, seen, last = None, set(), -1
    say("ready")
    while len(seen) < int(count):
        changes, token = step(store.backend.changes(cursor, limit=50))
        for change in changes:
            assert change.version[0] > last
            last = change.version[0]
            seen.add(change.transaction)
        cursor = token
        if not changes:
            step(store.backend.wait(token, PATIENCE_SECONDS))
    say("seen", len(seen))
    store.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
