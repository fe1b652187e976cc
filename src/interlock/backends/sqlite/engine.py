"""What the leaves of one SQLite store share: the writer, the readers, the news; opening, closing, interrupts, forks.

**Why no interleaving breaks the store.** All that is ever written to the file is written in a transaction begun
with BEGIN IMMEDIATE by a connection that holds the queue lock, so the file's states follow each other, each made by
one batch. A batch looks up the newest state after BEGIN, inside the transaction, and decides from it and from its
own earlier decisions alone; so between the check of an expectation and the application of what it guards no other
commit can come, of whatever thread or process. COMMIT makes the batch visible and durable as a whole, or not at
all. Positions are given out in that order, one for each commit, so position order is commit order, versions of a
key grow, and the feed cannot have gaps that are filled later.

A commit is answered after COMMIT returned, and a read begins after it was called: SQLite lets every read that
begins after a COMMIT see it, on every connection; and what `interlock.backends.sqlite.newest` answers without SQLite
is the newest state too. A snapshot is a position and the id of the row there. What it
shows never changes (see `interlock.backends.sqlite.reading`), and it is refused once that row is gone: compaction
removes rows only from the old end and never the last one, a lost tail or a restored file has another id there.
Spans are checked before the lock is taken, up to a position; inside the batch only what came after that position is
looked at, and nothing can come after the look.

Whoever asks for a commit waits for its job's answer, or is the writer for that long
(`interlock.backends.sqlite.straight`). The job is either taken back before the writer has taken it (then nothing was
written), or answered by the writer (then the answer is true); see `interlock.backends.sqlite.jobs`. An interrupt that
comes while the writer has the job waits for the answer, up to ``grace_seconds``, and then goes on with a note that says
what it was.

**Forks.** SQLite keeps, for each file and process, what the process has locked. A child inherits that knowledge
but not the locks, so a connection of its own would think that it holds what it does not. Therefore whoever forks
first waits until no connection is in use (each use holds a lock), and the child closes what it inherited, idle as
it is, before anything else: that clears SQLite's knowledge, cannot checkpoint (the parent still holds its lock on
the file), and leaves the parent untouched. Then it opens its own at first use. Jobs that were waiting are the
parent's. If the wait before a fork takes too long, the child gets a `UsageError` instead of a store that might be
wrong.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from interlock.backends.sqlite import locking
from interlock.backends.sqlite.connection import CLOSED, Options
from interlock.backends.sqlite.jobs import CommitJob, Job, StopJob
from interlock.backends.sqlite.newest import Newest
from interlock.backends.sqlite.reading import Reader
from interlock.backends.sqlite.schema import Opened
from interlock.backends.sqlite.waiting import News
from interlock.backends.sqlite.writer import Writer
from interlock.errors import UsageError
from interlock.model import CommitRequest, Reply
from interlock.ports import Runtime

_FORKED: Final = (
    "this process was forked while its parent was busy in the store, so the store cannot be used here;"
    " start the process with 'spawn', or fork when nobody uses the store"
)
_FORK_SECONDS: Final = 5.0


class Local(threading.local):
    """``reader``: the calling thread's reader, once it has one."""

    reader: Reader


class Engine:
    """One open store of this process."""

    def __init__(self, path: str, options: Options, random_bits: Callable[[int], int]) -> None:
        self.path = path
        self.options = options
        self.random_bits = random_bits
        self.local = Local()
        self.refusal: str | None = None
        """Why every call is refused, once it is closed."""
        self._leaked: list[Any] = []
        self._reset()
        _forks.engines.add(self)

    def _reset(self) -> None:
        self.opened: Opened | None = None
        self.news = News(self._new_reader)
        self.newest = Newest()
        self._lock = threading.Lock()
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._writer: Writer | None = None
        self._paused: list[Any] = []

    # -- access --------------------------------------------------------------------------------------------------------
    async def admit(self, runtime: Runtime) -> Reader:
        """The calling thread's reader; opens the store if it is not open. Raises `UsageError` once it is closed."""
        local = self.local  # closing puts another one in its place, first of all
        self.check()
        if self.opened is None:
            await self.submit(Job(runtime.waiter()))
        reader = self._new_reader()
        local.reader = reader
        return reader

    def check(self) -> None:
        """Raises `UsageError` once the store is closed."""
        if self.refusal is not None:
            raise UsageError(self.refusal)

    def now(self) -> float:
        """The store's time."""
        assert self.opened is not None
        return self.opened.now()

    def _new_reader(self) -> Reader:
        opened = self.opened
        assert opened is not None
        with self._lock:
            self.check()
            reader = Reader(self.path, self.options.busy_seconds, opened.store, opened.now, self.newest)
            self._readers.add(reader)
        return reader

    def _set_opened(self, opened: Opened) -> None:
        self.opened = opened

    def _started(self) -> Writer:
        with self._lock:
            self.check()
            if self._writer is None:
                self._writer = Writer(
                    self.path, self.options, self.random_bits, self.newest, self._set_opened, self.news.tell
                )
            return self._writer

    def straight(self, request: CommitRequest, checked: int, runtime: Runtime) -> Reply | None:
        """Commit on the calling thread, if it may (`interlock.backends.sqlite.straight`); None if it may not."""
        if runtime.suspends:
            if request.durable or not request.quiet:
                return None
        elif threading.get_ident() == threading.main_thread().ident:
            return None
        self.check()
        writer = self._writer
        return None if writer is None else writer.straight.commit(request, checked, runtime)

    # -- jobs ----------------------------------------------------------------------------------------------------------
    async def submit(self, job: Job) -> Any:
        """Have the writer do a job, and wait for its answer."""
        self.check()
        writer = self._writer or self._started()
        writer.straight.refuse_inside()
        accepted = True
        try:
            accepted = writer.put(job)
            if accepted:
                await job.waiter.wait()
        except BaseException as error:
            await self._interrupted(job, error)
            raise
        if not accepted:
            raise UsageError(CLOSED)
        if isinstance(job.answer, BaseException):
            raise job.answer
        return job.answer

    async def _interrupted(self, job: Job, error: BaseException) -> None:
        """Take the job back, or wait for its answer a little longer; the error says what became of a commit."""
        if job.take():
            if isinstance(job, CommitJob):
                error.add_note("interlock: the commit was taken back before it began; nothing was written")
            return
        if isinstance(error, GeneratorExit):  # nobody looks at the answer, and nothing may be awaited here
            return
        try:
            await job.waiter.wait(self.options.grace_seconds, shielded=True)
        except BaseException as again:  # Ctrl-C once more
            _note_outcome(job, again)
            raise
        finally:
            _note_outcome(job, error)

    async def close(self, runtime: Runtime) -> None:
        """Finish what was asked for, then close the file. Later calls do nothing."""
        with self._lock:
            if self.refusal is not None:
                return
            self.refusal = CLOSED
            self.local = Local()
            readers, writer = list(self._readers), self._writer
        self.news.close()
        for reader in readers:
            reader.close()
        if writer is not None:
            job = StopJob(runtime.waiter())
            writer.put(job)
            await job.waiter.wait(self.options.busy_seconds)

    # -- forks ---------------------------------------------------------------------------------------------------------
    def pause(self, deadline: float) -> None:
        """Before a fork: wait until no connection is in use, and keep it so."""
        locks: list[Any] = [self._lock]
        if _acquire(self._lock, deadline):
            self._paused.append(self._lock)
            locks = [reader.lock for reader in self._readers]
            if self._writer is not None:
                locks.insert(0, self._writer.working)
            self._paused += [lock for lock in locks if _acquire(lock, deadline)]
            locks.append(self._lock)
        self._clean = len(self._paused) == len(locks)

    def resume(self) -> None:
        """After a fork, in the parent."""
        paused, self._paused = self._paused, []
        for lock in reversed(paused):
            lock.release()

    def adopt(self) -> None:
        """After a fork, in the child: give up what was inherited and begin anew."""
        readers, writer = list(self._readers), self._writer
        if writer is not None:
            writer.lock.forget()
        if self._clean:
            if writer is not None and writer.connection is not None:
                writer.connection.close()
            for reader in readers:
                reader.connection.close()
        else:
            self.refusal = self.refusal or _FORKED
        self.newest.close()
        self._leaked += [readers, writer, self.news]
        vars(self.local).clear()
        self._reset()


def _note_outcome(job: Job, error: BaseException) -> None:
    if not isinstance(job, CommitJob):  # a fence or a batch of compaction: nothing that the caller has to know
        return
    if not job.answered:
        error.add_note("interlock: it is not known whether the commit happened; ask for the transaction's outcome")
    elif isinstance(job.answer, Reply):
        error.add_note(f"interlock: the commit had begun and was COMMITTED at position {job.answer.version[0]}")
    else:
        error.add_note("interlock: the commit had begun and was refused; nothing was written")


def _acquire(lock: Any, deadline: float) -> bool:
    acquired: bool = lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
    return acquired


class _Forks:
    """Every engine of this process, for the hooks of `os.fork`."""

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._forking = threading.Lock()
        self._held: list[Engine] = []

    def before(self) -> None:
        self._forking.acquire()
        deadline = time.monotonic() + _FORK_SECONDS
        self._held = sorted(self._all(), key=id)
        for engine in self._held:
            engine.pause(deadline)
        locking.descriptors.acquire()

    def _all(self) -> list[Engine]:
        """Every engine. A thread that opens a store at this very moment may change the set while it is gone through;
        the hook would then be left, and the fork not prepared."""
        while True:
            try:
                return list(self.engines)
            except RuntimeError:
                continue

    def in_parent(self) -> None:
        locking.descriptors.release()
        for engine in self._held:
            engine.resume()
        self._held = []
        self._forking.release()

    def in_child(self) -> None:
        locking.descriptors.release()
        for engine in self._held:
            engine.adopt()
        self._held = []
        self._forking.release()


_forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.before, after_in_parent=_forks.in_parent, after_in_child=_forks.in_child)
