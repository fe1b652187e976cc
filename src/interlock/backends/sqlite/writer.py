"""The writer: the one thread of a process that commits, a whole batch with one sync of the disk.

A turn: wait for a job; take the queue lock (`interlock.backends.sqlite.locking`), so that the processes take
turns; begin the write transaction; only then empty the queue, so that whatever arrived while this process waited
for its turn rides along; take each job's token (`interlock.backends.sqlite.jobs`); decide all
(`interlock.backends.sqlite.batch`), write, COMMIT; give the lock to the next process; answer. Nothing is answered
before COMMIT has returned, refusals neither, because they may rest on what the batch itself has decided.

A job fails alone if it is refused. If SQLite fails before COMMIT, everything is rolled back and every job of the
batch hears that nothing was written. If COMMIT itself fails: a full disk is a definite no, since the frame that
would make the batch valid was not written in full; anything else is decided by
`interlock.backends.sqlite.settling`.

Whoever holds ``_turn`` is the writer: the thread, or a caller who is alone and commits on its own thread
(`interlock.backends.sqlite.straight`). Only the thread waits for SQLite's own lock: the connection's timeout is 0 but
for that moment.

When a turn begins or is kept and when a caller counts as alone is in `interlock.backends.sqlite.turns`; when the
write-ahead log is copied into the database, in `interlock.backends.sqlite.log`.
"""

from __future__ import annotations

import copy
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from interlock.backends.sqlite import settling
from interlock.backends.sqlite.batch import Batch
from interlock.backends.sqlite.connection import (
    BUSY,
    CLOSED,
    FULL,
    Connection,
    Options,
    begin,
    code_of,
    connect,
    failure,
    refuse_place,
    set_patience,
)
from interlock.backends.sqlite.jobs import Answers, Job, StopJob, wake
from interlock.backends.sqlite.locking import QueueLock
from interlock.backends.sqlite.log import Log
from interlock.backends.sqlite.newest import Newest
from interlock.backends.sqlite.schema import Opened, prepare
from interlock.backends.sqlite.straight import REFUSALS, WRITER, Straight
from interlock.backends.sqlite.turns import Turns
from interlock.backends.sqlite.validation import Known
from interlock.backends.sqlite.watching import Watchdog
from interlock.errors import BackendUnavailableError, InterlockError, UsageError
from interlock.model import CommitRefused, Key, Token

_BATCH: Final = 128
_IDS_KNOWN: Final = 4096


class Writer:
    """The thread, its connection and its queue. ``on_open`` and ``on_commit`` are called on the thread."""

    def __init__(
        self,
        path: str,
        options: Options,
        random_bits: Callable[[int], int],
        newest: Newest,
        on_open: Callable[[Opened], None],
        on_commit: Callable[[int], None],
    ) -> None:
        self.path = path
        self.working = threading.Lock()
        """Held whenever the connection is in use."""
        self.connection: Connection | None = None
        self.lock = QueueLock(path + "-queue")
        self._options = options
        self._random_bits = random_bits
        self._newest = newest
        self._on_open = on_open
        self._on_commit = on_commit
        self._queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._watchdog = Watchdog(self._queue, options.busy_seconds, self._give_up)
        self._opened = Opened(0, 0.0)
        self._synchronous = options.synchronous
        self._known = Known()
        self._log = Log()
        self._decided: tuple[Batch, Collection[Key]] | None = None
        """The last batch, with the keys that it looked at, as long as nothing was noted of it."""
        self._conflict = False
        """Whether the batch has refused anybody for a conflict."""
        self._stops: list[Job] = []
        self._stopped = False
        self._turns = Turns()
        self._turn = threading.RLock()
        self.straight = Straight(self)
        self._in_hand = False
        """Whether the thread has a job that it has not answered yet."""
        threading.Thread(target=self._run, name=WRITER, daemon=True).start()

    def put(self, job: Job) -> bool:
        """Ask for something; False if the writer has stopped and will not answer."""
        self._queue.put(job)
        if self._turns.wanted and self._queue.qsize() >= self._turns.wanted:
            self._turns.tell()
        return not (self._stopped and job.take())

    # -- the turns -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._stopped:
            first = self._queue.get()
            self._in_hand = True
            self._turns.gather(self._queue)
            with self._turn:
                answers = self._take_turn(first)
            self._in_hand = False
            wake(answers)
        while not self._queue.empty():
            answers = []
            self._refuse([], UsageError(CLOSED), answers)
            self._answer(answers)

    def _take_turn(self, first: Job) -> Answers:
        """Carry out a batch, and what there is to do besides; the answers that are still to be given."""
        answers: Answers = []
        try:
            jobs = self._queue_up(first)
        except InterlockError as error:
            self._refuse([first], error, answers)
        else:
            answers = self._carry_out(jobs)
        if self._stops:
            self._stopped = True
            self.lock.close()
            self._newest.close()
            answers += [(job, None) for job in self._stops]
        return answers

    def _carry_out(self, jobs: list[Job]) -> Answers:
        """A batch of these and of what is queued. With the queue lock, which it gives back. Its answers, if there is
        nothing else to do: whoever is woken then finds the turn free, and may take it. Else they are given first."""
        held = True
        answers: Answers = []
        try:
            with self.working:
                self._batch(jobs, answers)
            kept = self._conflict and not self._stops and self._turns.keep()
            if kept or self._stops or self._log.is_due:
                self._answer(answers)
                answers = []
                self._end_turn(kept)
            else:
                self.lock.release()
                held = False
                self._note()
        finally:
            if held:
                self.lock.release()
        return answers

    def _end_turn(self, kept: bool) -> None:
        """What is done after the answers, with the queue lock in hand."""
        job = self._turns.next_job(self._queue) if kept else None
        if job is not None:
            answers: Answers = []
            with self.working:
                self._batch([job], answers)
            self._answer(answers)
        with self.working:
            if self._log.is_due and self.connection is not None:
                self._log.checkpoint(self.connection, self.lock, self._known.outcomes)
                self._roll_back()  # what it could not end
            if self._stops:
                self._drop_connection()

    def _queue_up(self, first: Job) -> list[Job]:
        """Take the queue lock; the jobs that were looked at meanwhile."""
        self.lock.open()
        if self.lock.try_acquire():
            return [first]
        self._watchdog.begin(first)
        try:
            self.lock.acquire()
        finally:
            jobs = self._watchdog.end()
        return jobs

    def _rest(self, count: int) -> list[Job]:
        """What is in the queue now. Nobody else takes anything out while the writer does not wait for its turn."""
        jobs: list[Job] = []
        while len(jobs) < count and not self._queue.empty():
            jobs.append(self._queue.get_nowait())
        return jobs

    def _taken(self, jobs: list[Job]) -> list[Job]:
        """The jobs that are the writer's from now on, requests to stop set aside."""
        taken = []
        for job in jobs:
            if type(job) is StopJob:
                self._stops.append(job)
            elif job.take():
                taken.append(job)
        return taken

    def _refuse(self, jobs: list[Job], error: InterlockError, answers: Answers) -> None:
        """Nothing was done for these, nor for whoever waits behind them."""
        for job in self._taken(jobs + self._rest(_BATCH)):
            answers.append((job, copy.copy(error)))

    def _give_up(self, late: list[Job]) -> None:
        """Answer jobs that the watchdog has taken."""
        held = (
            f"nothing was written: another process has held {self.lock.path} for longer than"
            f" {self._options.busy_seconds:g} seconds"
        )
        wake([(job, BackendUnavailableError(held)) for job in late])

    def _answer(self, answers: Answers) -> None:
        """Note what is known after a batch, and answer; from there on the callers compete for the interpreter."""
        self._note()
        wake(answers)

    def _note(self) -> None:
        """Let readers and writers know what a batch has decided."""
        self._show()
        self._on_commit(self._log.position)
        self._advance()

    # -- a batch -------------------------------------------------------------------------------------------------------
    def _batch(self, jobs: list[Job], answers: Answers) -> None:
        self._conflict = False
        try:
            connection = self.connection or self._open()
            if self._queue.empty():
                self._synchronize(connection, any(job.durable for job in jobs))
            begin(connection, self._options.busy_seconds)
        except Exception as error:
            self._refuse(jobs, self._failure(error), answers)
            return
        taken = self._taken(jobs + self._rest(_BATCH - len(jobs)))
        try:
            if taken:
                self._synchronize(connection, any(job.durable for job in taken))
                self._decide(connection, taken, answers)
        except Exception as error:  # a fault of ours must not leave anybody waiting either
            answers[:] = [(job, self._failure(error)) for job in taken]
        finally:
            self._roll_back()

    def _synchronize(self, connection: Connection, durable: bool) -> None:
        """A batch that the engine may lose in a crash is not synced; the next one that is brings it to the disk
        too. Between two transactions, or at the beginning of one, which is begun again if need be."""
        wanted = self._options.synchronous
        if wanted == "FULL" and not durable:
            wanted = "NORMAL"
        if wanted != self._synchronous:
            begun = connection.in_transaction
            if begun:
                connection.execute("ROLLBACK")
            connection.execute(f"PRAGMA synchronous={wanted}")
            self._synchronous = wanted
            if begun:
                begin(connection, self._options.busy_seconds)

    def _decide(self, connection: Connection, jobs: list[Job], answers: Answers) -> None:
        batch = self._new_batch(connection)
        results: Answers = []
        alone = jobs[0].perform_alone(batch) if len(jobs) == 1 else None
        if alone is not None:
            results, jobs = [(jobs[0], alone)], []
        wanted: set[Key] = set()
        for job in jobs:
            job.collect(wanted)
        if jobs:
            batch.look(list(wanted))
        for job in jobs:
            try:
                results.append((job, job.perform(batch)))
            except REFUSALS as refusal:
                if type(refusal) is CommitRefused:
                    self._conflict = True
                    self._turns.share()
                results.append((job, refusal.with_traceback(None)))
        if batch.feed or batch.compacted:
            batch.flush()
            self._newest.hide(self.lock)
            begun = time.perf_counter()
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._decide_anew(error, batch, results, answers)
                return
            self._turns.note(len(results), time.perf_counter() - begun)
        self._log.note(batch)
        self._decided = batch, wanted
        answers += results

    def _new_batch(self, connection: Connection) -> Batch:
        """At the beginning of a transaction."""
        if self._newest.check(connection):
            self._turns.share()
        return Batch(connection, self._opened.store, self._opened.now(), self._known, self._new_id, self._newest)

    def _show(self) -> None:
        """Let readers see what a batch has decided, before its callers are woken, who will ask for it."""
        if self._decided is None:
            return
        batch, wanted = self._decided
        try:
            position, identity = batch.end
            token = Token(batch.store, 1, position, identity)
            self._newest.show(wanted, batch.rows, token, (position, identity, batch.horizon))
        except Exception:  # without memory they have to be answered all the same
            self._newest.forget()

    def _advance(self) -> None:
        """Note what else is known after a batch."""
        if self._decided is None:
            return
        (batch, _), self._decided = self._decided, None
        ids = self._known.ids
        if len(ids) > _IDS_KNOWN:
            ids.clear()
        ids[batch.head] = batch.head_id
        if batch.feed:
            position, identity = batch.end
            ids[position] = identity
            self._known.outcomes.add(batch.feed)

    def _new_id(self, now: float) -> bytes:
        """An id that is nobody's transaction: ordered by time like the others, so that it goes to the end of the
        index."""
        return (int(now * 1000) << 80 | self._random_bits(80)).to_bytes(16, "big")

    def _failure(self, error: Exception) -> InterlockError:
        """Our error for whatever was raised where nothing was written."""
        return error if isinstance(error, InterlockError) else failure(error, self.path)

    # -- trouble -------------------------------------------------------------------------------------------------------
    def _decide_anew(self, error: sqlite3.Error, batch: Batch, results: Answers, answers: Answers) -> None:
        """COMMIT has raised."""
        self._forget()
        if code_of(error) in (FULL, BUSY):
            answers += [(job, failure(error, self.path)) for job, _ in results]
            return
        self._drop_connection()
        try:
            connection = self._open()
            set_patience(connection, self._options.busy_seconds)
            found = settling.settle(connection, batch.feed, batch.now)
            set_patience(connection, 0)
            for job, result in results:
                answer = settling.decided(connection, job, result, found, failure(error, self.path))
                answers.append((job, answer))
        except (sqlite3.Error, InterlockError) as second:
            self._drop_connection()
            answers[:] = [
                (job, settling.unknown(job, result, failure(error, self.path), second)) for job, result in results
            ]

    def _forget(self) -> None:
        """Nothing that is remembered can be relied on any more."""
        self._known = Known()
        self._newest.forget()
        self._decided = None
        self._roll_back()

    def _roll_back(self) -> None:
        if self.connection is not None and self.connection.in_transaction:
            try:
                self.connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # there is nothing more that can be done with it

    def _open(self) -> Connection:
        refuse_place(self.path)
        connection = connect(self.path, busy_seconds=self._options.busy_seconds, read_only=False)
        try:
            facts = prepare(connection, self.path, self._options.synchronous, self._random_bits(64))
            set_patience(connection, 0)
        except BaseException:
            connection.close()
            raise
        self._synchronous = self._options.synchronous
        self._opened = Opened(int.from_bytes(facts["store"], "big"), float(facts["base"]))
        self.connection = connection
        self._newest.open(self.lock, self._opened.now)
        self._on_open(self._opened)
        return connection
