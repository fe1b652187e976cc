"""The straight way of a commit: a whole turn on the calling thread, without a job, a waiter or another thread.

Handing a commit to the writer's thread and waiting for its answer costs more processor time than the commit itself. So
a caller who is alone takes the turn, where it may:

- a caller that blocks anyway, on any thread but the main one, where the handler of a signal may run between any two
  steps and might ask for a commit itself;
- an event loop, for a commit that is quiet and not durable: it waits for no disk, and whoever sends a quiet commit can
  settle it by what it expects if something is raised in the middle (`interlock.layers.ledger`).

**Why this is a turn like any other.** `Writer._turn` is held from the first step to the last, and the queue lock from
before the transaction until after it, as the thread holds them; the batch has this one request and leaves the queue
alone. Nobody gets ahead of anybody: the caller does not try if the thread has a job in its hand or in its queue. It
waits for nobody, neither the turn, nor the queue lock, nor SQLite's own lock (`Writer` keeps the connection's timeout
at 0): where one of them is taken, and where the write-ahead log has to be copied and the caller may not wait for that,
the answer is None, nothing was done, and the request goes by the thread.

**If something is raised in the middle.** The transaction is rolled back unless COMMIT was done, and everything that is
remembered is forgotten before the next turn; the error says that the outcome is not known. The turn is a lock with an
owner and is given back whenever this thread has it, so it makes no difference at which step the interrupt came.

**If the thread comes again in the middle.** The collector of circles may run at any step, on a thread that has the turn
as on any other, and with it the end of a generator or coroutine that holds a session or a lock, which wants to commit.
That commit can neither be made inside of this one nor waited for, so it is refused (`Straight.refuse_inside`); who
gives something back does it later.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from interlock.backends.sqlite import quiet
from interlock.backends.sqlite.batch import Batch
from interlock.backends.sqlite.connection import BUSY, Connection, code_of
from interlock.backends.sqlite.jobs import Answers, CommitJob
from interlock.backends.sqlite.validation import collect
from interlock.errors import InterlockError, UsageError
from interlock.model import BoundBroken, CommitRefused, CommitRequest, DuplicateTransaction, Key, MergeRefused, Reply
from interlock.ports import Runtime

if TYPE_CHECKING:
    from interlock.backends.sqlite.writer import Writer

WRITER: Final = "interlock-sqlite-writer"
"""The name of writers' threads."""
REFUSALS: Final = (CommitRefused, DuplicateTransaction, BoundBroken, MergeRefused, InterlockError)
"""What is an answer to a request, in which nothing has failed."""


class Straight:
    """The straight way to one writer."""

    __slots__ = ("_inside", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._inside = 0
        """The thread that has a turn on this way; 0: none."""

    def refuse_inside(self) -> None:
        """Raises `UsageError` on the thread that has such a turn, and on those of writers, which must wait for none."""
        if self._inside == threading.get_ident() or threading.current_thread().name == WRITER:
            raise UsageError(
                "this thread is in the middle of a commit to the same store: what ends an object that is collected may "
                "not commit; end sessions and locks with their block, and not by dropping them"
            )

    def commit(self, request: CommitRequest, checked: int, runtime: Runtime) -> Reply | None:
        """As `Backend.commit`, of a request whose spans hold up to ``checked``; None: not this way. Raises as
        `refuse_inside`, too."""
        self.refuse_inside()
        writer = self._writer
        if not writer._turns.alone or writer._in_hand or not writer._queue.empty():
            return None
        turn, mine = writer._turn, None
        try:
            mine = turn.acquire(blocking=False)
            connection = writer.connection
            if not mine or writer._stopped or connection is None or (runtime.suspends and writer._log.is_due):
                return None
            self._inside = threading.get_ident()
            answer = self._take_turn(connection, request, checked, runtime)
        finally:
            if mine is not False:
                if self._inside == threading.get_ident():
                    self._inside = 0
                try:
                    turn.release()
                except RuntimeError:  # interrupted before it was known whose it is: somebody else's
                    pass
        if answer is None or type(answer) is Reply:
            return answer
        assert isinstance(answer, Exception)
        raise answer

    def _take_turn(
        self, connection: Connection, request: CommitRequest, checked: int, runtime: Runtime
    ) -> Reply | Exception | None:
        """With the turn: take the queue lock, carry out the batch, note what is known now."""
        writer, lock = self._writer, self._writer.lock
        held = True
        try:
            held = lock.try_acquire()
            if not held:
                return None
            with writer.working:
                answer = self._carry_out(connection, request, checked, runtime)
            if not writer._log.is_due:
                lock.release()
                held = False
            if writer._decided is not None:
                writer._note()
            if held and not runtime.suspends:
                writer._end_turn(False)
            return answer
        except Exception:
            raise
        except BaseException as error:
            writer._forget()
            error.add_note("interlock: it is not known whether the commit happened")
            raise
        finally:
            if held:
                lock.release()

    def _carry_out(
        self, connection: Connection, request: CommitRequest, checked: int, runtime: Runtime
    ) -> Reply | Exception | None:
        """A batch of one request; its answer, None where the general way has to be gone."""
        writer = self._writer
        try:
            writer._synchronize(connection, request.durable)
            connection.execute("BEGIN IMMEDIATE")
            batch = writer._new_batch(connection)
            wanted: Collection[Key] = request.writes
            try:
                reply = quiet.decide(batch, request, blind=True)
                if reply is None:
                    wanted = collect(request)
                    batch.look(list(wanted))
                    reply = batch.commit(request, checked)
            except REFUSALS as refusal:
                if type(refusal) is CommitRefused:
                    writer._turns.share()
                writer._decided = batch, wanted
                return refusal.with_traceback(None)
            batch.flush()
            writer._newest.hide(writer.lock)
            begun = time.perf_counter()
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                return self._decide_anew(error, batch, request, checked, reply, runtime)
            writer._turns.note(1, time.perf_counter() - begun)
            writer._log.note(batch)
            writer._decided = batch, wanted
            return reply
        except Exception as error:
            if isinstance(error, sqlite3.IntegrityError) or (
                isinstance(error, sqlite3.Error) and code_of(error) == BUSY
            ):
                return None
            return writer._failure(error)
        finally:
            writer._roll_back()

    def _decide_anew(
        self, error: sqlite3.Error, batch: Batch, request: CommitRequest, checked: int, reply: Reply, runtime: Runtime
    ) -> Reply | Exception:
        answers: Answers = []
        job = CommitJob(runtime.waiter(), request, checked)
        self._writer._decide_anew(error, batch, [(job, reply)], answers)
        answer: Reply | Exception = answers[0][1]
        return answer
