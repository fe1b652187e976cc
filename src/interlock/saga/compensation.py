"""How a frame ends: joined to its parent, committed, or undone in reverse order of completion.

`finish` is what every exit calls; it returns the exception that the exit has to raise, and nothing is undone anywhere
else. The rollback is one coroutine in the world's shield, and goes through every step that was or may have been done:

1. Steps that still run elsewhere are awaited, for ``shield_seconds`` at most; then they count as UNKNOWN.
2. Each step by falling ``order``: an UNKNOWN one is settled by its ``verify`` first. Its undo is tried as its policy
   says. Whatever happens, the next step is undone too.
3. The state is restored, the earliest snapshot last: so whatever undos did to it, it is as it was.
4. The original exception goes on unchanged. If undos failed, `CompensationError` is raised from it, unless the original
   means that the program is to stop (`CancelledError`, `KeyboardInterrupt`, ...): then that one goes on and carries
   the other as its context, with a note.

A state is changed only after what it stands for has happened, so a rollback that was broken off can be run again; it
goes on with the steps that are still DONE or UNKNOWN.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from interlock.core.retry import backoff_seconds
from interlock.core.transaction import current as open_session
from interlock.errors import InterlockError, UsageError
from interlock.saga.deferred import drop, run_deferred
from interlock.saga.errors import CompensationError, SagaClosedError, StepFailedError
from interlock.saga.frames import CLOSING, COMMITTED, INCOMPLETE, JOINED, OPEN, UNDOING, UNDONE, Frame, current
from interlock.saga.matching import call_undo, name_of
from interlock.saga.records import FailedUndo, State, StepRecord
from interlock.saga.verifying import settle
from interlock.wording import error_text

_STANDING = (State.UNKNOWN, State.UNDO_FAILED)


async def finish(frame: Frame, error: BaseException | None) -> BaseException | None:
    """End a frame; what its exit raises (``error`` itself: let it go on)."""
    ready = False
    if error is None:
        ready = _close_at_once(frame)
        if frame.status == COMMITTED:
            return None
        error = frame.doomed
    if error is None:
        late: BaseException | None = None
        try:
            if not ready:
                await _make_ready(frame)
            if frame.parent is not None:
                _join(frame, frame.parent)
            elif frame.course.recorder is not None:
                acts = [each._record for each in frame.deferred]
                _, late = await frame.world.shielded(frame.course.recorder.decide(acts))
        except BaseException as wrong:
            error = wrong
        else:
            return None if frame.parent is not None else await _commit(frame) or late
    return await roll_back(frame, error)


def _close_at_once(frame: Frame) -> bool:
    """Close a root with nothing to wait for, to check or to run, and without a journal commit it; False for others, of
    which nothing has changed."""
    recorder = frame.course.recorder
    if frame.invariants or frame.parent is not None or (recorder is not None and recorder.has_unreached):
        return False
    for call in frame.calls:
        if call.cr_frame is not None:
            return False
    with frame.course.lock:
        if frame.running or frame.children or frame.doubtful or frame.deferred or frame.doomed is not None:
            return False
        frame.status = COMMITTED if recorder is None else CLOSING
    return True


def _close(frame: Frame) -> list[Frame]:
    """No step begins from here on; the frames below that are still open."""
    with frame.course.lock:
        return _set_closing(frame)


def _set_closing(frame: Frame) -> list[Frame]:
    below = [each for each in frame.tree() if each is not frame]
    for each in (frame, *below):
        each.status = CLOSING
    return below


async def _make_ready(frame: Frame) -> None:
    """Everything that has to hold before a frame may join or commit."""
    if _close(frame):
        raise UsageError("a nested saga or savepoint is still open in another task or thread; await it first")
    _refuse_forgotten_calls(frame)
    await _await_running(frame, None)
    if frame.parent is None:
        for record in frame.records:
            if record.state is State.UNKNOWN:
                await settle(frame, record)
        frame.records = [record for record in frame.records if record.state is not State.FAILED]
        if frame.course.recorder is not None:
            frame.course.recorder.refuse_unreached(frame)
    await frame.check()


def _refuse_forgotten_calls(frame: Frame) -> None:
    forgotten = [call for call in frame.calls if inspect.getcoroutinestate(call) == inspect.CORO_CREATED]
    frame.calls.clear()
    for call in forgotten:
        call.close()
    if forgotten:
        names = ", ".join(f"saga.{call.__name__.partition('_')[0]}" for call in forgotten)
        raise UsageError(f"never awaited: {names}. The saga was undone; put an await in front")


def _join(frame: Frame, parent: Frame) -> None:
    """Hand everything over to the parent, as if it had been done there."""
    with frame.course.lock:
        parent.admit()
        parent.records += frame.records
        parent.restores += frame.restores
        if frame.snapshot is not None and frame.base is frame:
            parent.restores.append((frame.number, frame.snapshot))
        parent.deferred += frame.deferred
        parent.doubtful = parent.doubtful or frame.doubtful
        parent.failures += frame.failures
        parent.children.remove(frame)
        frame.status = JOINED


async def _commit(frame: Frame) -> BaseException | None:
    """The end of a root that has succeeded: the deferred acts, forward only."""
    if not frame.deferred:
        frame.status = COMMITTED
        return None
    failed, interruption = await frame.world.shielded(go_forward(frame))
    frame.status = COMMITTED if failed is None else INCOMPLETE
    if interruption is not None:
        if failed is not None:
            interruption.__cause__ = failed
            interruption.add_note(f"interlock: {failed}")
        return interruption
    return failed


async def go_forward(frame: Frame) -> StepFailedError | None:
    """Run the deferred acts, as part of no saga and no session."""
    outer, session = current.set(UNDOING), open_session.set(None)
    try:
        failed = await run_deferred(frame)
        if frame.course.recorder is not None and failed is None:
            await frame.course.recorder.committed()
        return failed
    finally:
        open_session.reset(session)
        current.reset(outer)


async def _await_running(frame: Frame, seconds: float | None) -> None:
    """Wait for the steps that have begun elsewhere, at most ``seconds``; the rest is UNKNOWN from then on."""
    course, runtime = frame.course, frame.world.runtime
    until = None if seconds is None else runtime.monotonic() + seconds
    own = None if runtime.suspends else threading.get_ident()
    while True:
        with course.lock:
            left = None if until is None else until - runtime.monotonic()
            if not _still_running(frame, own, over=left is not None and left <= 0):
                return
            waiter = runtime.waiter()
            course.waiters.append(waiter)
        try:
            await waiter.wait(left)
        finally:
            with course.lock:
                course.waiters.remove(waiter)


def _still_running(frame: Frame, own: int | None, *, over: bool) -> bool:
    """Whether there are steps to wait for; those that are not waited for are UNKNOWN."""
    course = frame.course
    running = [(each, record) for each in frame.tree() for record in each.running]
    for each, record in running:
        if over or record.thread == own:  # of this very thread: interrupted between two lines of ours
            each.running.discard(record)
            record.state, record.order = State.UNKNOWN, course.next_order
            course.next_order += 1
            each.records.append(record)
    return not over and any(each.running for each, _ in running)


async def roll_back(frame: Frame, error: BaseException) -> BaseException:
    """Undo everything in a frame; what its exit raises."""
    _close(frame)
    before = len(frame.failures)
    _, interruption = await frame.world.shielded(_undo_all(frame, error))
    failures = frame.failures[before:]
    failed = None if not failures else _compensation_error(frame, failures, error)
    parent = frame.parent
    if parent is not None:
        left = [each for each in frame.records if each.state in _STANDING]
        with frame.course.lock:
            parent.failures += frame.failures
            parent.records += left
            parent.doubtful = parent.doubtful or bool(left)
            if frame in parent.children:
                parent.children.remove(frame)
    if not isinstance(error, Exception):
        if failed is not None:
            _attach(error, failed)
        return error
    if interruption is not None:
        interruption.__cause__ = failed or error
        if failed is not None:
            interruption.add_note(f"interlock: {failed}")
        return interruption
    return failed or error


async def _undo_all(frame: Frame, error: BaseException) -> None:
    outer, session = current.set(UNDOING), open_session.set(None)
    try:
        await _await_running(frame, frame.course.shield_seconds)
        _absorb(frame)
        whole = await _undo_steps(frame, error)
        _restore(frame, error)
        drop(frame.deferred)
        frame.records = [record for record in frame.records if record.state is not State.FAILED]
        whole = whole and not frame.failures and not any(each.state in _STANDING for each in frame.records)
        frame.status = UNDONE if whole else INCOMPLETE
    finally:
        open_session.reset(session)
        current.reset(outer)


async def _undo_steps(frame: Frame, error: BaseException) -> bool:
    """Undo every step, newest first; False: it had to be left to whoever holds the saga's journal."""
    recorder = frame.course.recorder
    if recorder is None:
        for record in reversed(frame.all_records()):
            await _undo_one(frame, record, error)
        return True
    if recorder.lost:
        return False
    try:
        await recorder.roll_back(frame)
        for record in reversed(frame.all_records()):
            await _undo_one(frame, record, error)
        if frame.parent is None:
            left = any(each.state in _STANDING for each in frame.records)
            await recorder.ended(not left)
    except InterlockError as failure:
        failed = FailedUndo(frame.course.id, "writing the journal", {}, None, failure, error)
        if not recorder.lost:
            frame.failures.append(failed)
        return False
    return True


def _absorb(frame: Frame) -> None:
    """Take over what the frames below hold that are still open, in other tasks and threads: they end with this one."""
    with frame.course.lock:
        frame.absorb()


async def _undo_one(frame: Frame, record: StepRecord, error: BaseException) -> None:
    recorder = frame.course.recorder
    if recorder is not None and record.state in (State.DONE, State.UNKNOWN):
        recorder.find_functions(record)
    if record.state is State.UNKNOWN:
        await settle(frame, record)
    if record.state is State.UNKNOWN and not record.undo_unknown and recorder is not None:
        await recorder.left(record, record.error)
    if record.state is not State.DONE and not (record.state is State.UNKNOWN and record.undo_unknown):
        return
    if record.undo is None and record.undo_error is None:
        record.state = State.UNDONE
        return
    if recorder is not None and record.undo is not None:
        await recorder.undoing(record)
    failure = record.undo_error or await _attempts(frame, record, error)
    if failure is None:
        record.state = State.UNDONE
        if recorder is not None:
            await recorder.undone(record)
        return
    record.state, record.undo_error = State.UNDO_FAILED, failure
    letter = None
    try:
        if recorder is not None:
            letter = await recorder.left(record, failure)
    finally:  # that it failed is told also where the journal could not be
        await _report_failure(frame, record, failure, error, letter)


async def _attempts(frame: Frame, record: StepRecord, error: BaseException) -> BaseException | None:
    """Call the undo, again as its policy says; the last error, or None."""
    policy, runtime = record.undo_retry, frame.world.runtime
    begun, attempt = runtime.monotonic(), 0
    while True:
        attempt += 1
        try:
            await frame.world.limited(_undo_call(frame, record, error), frame.course.shield_seconds)
            return None
        except BaseException as failure:
            if policy is None or attempt >= policy.max_attempts or not isinstance(failure, Exception):
                return failure
            pause = backoff_seconds(policy, attempt, runtime.uniform)
            if runtime.monotonic() + pause - begun > policy.max_seconds:
                return failure
            if pause:
                await runtime.sleep(pause)


def _undo_call(frame: Frame, record: StepRecord, error: BaseException) -> Callable[[], Any]:
    async def call() -> None:
        assert record.undo is not None
        assert record.plan is not None
        wanted = (*record.plan.positional, *record.plan.keywords)
        key = frame.step_key(record) if "idempotency_key" in wanted or "step_key" in wanted else ""
        given = {
            "result": record.result,
            "state": frame.state,
            "error": error,
            "idempotency_key": f"{key}:undo",
            "step_key": key,
        }
        value = call_undo(record.undo, record.plan, record.bound, record.arguments, given)
        if hasattr(type(value), "__await__"):
            await frame.world.settle(value, f"the undo {name_of(record.undo)}")

    return call


async def _report_failure(
    frame: Frame, record: StepRecord, failure: BaseException, cause: BaseException, letter: str | None
) -> None:
    arguments = dict(record.bound)
    failed = FailedUndo(frame.course.id, record.label(), arguments, record.result, failure, cause, letter)
    frame.failures.append(failed)
    await _tell(frame, failed)


async def _tell(frame: Frame, failed: FailedUndo) -> None:
    """Call the hooks of this frame and of those around it; what a hook raises is noted, and stops nothing."""
    each: Frame | None = frame
    while each is not None:
        if each.hook is not None:
            try:
                value = each.hook(failed)
                if hasattr(type(value), "__await__"):
                    await frame.world.settle(value, "on_compensation_error")
            except Exception as error:
                failed.error.add_note(f"interlock: on_compensation_error itself failed: {error_text(error)}")
        each = each.parent


def _restore(frame: Frame, cause: BaseException) -> None:
    """Put the state back, the earliest snapshot last."""
    snapshots = [] if frame.snapshot is None else [(frame.number, frame.snapshot)]
    snapshots += frame.restores
    for _, snapshot in sorted(snapshots, key=lambda pair: -pair[0]):
        try:
            snapshot.restore()
        except Exception as failure:
            frame.failures.append(FailedUndo(frame.course.id, "restoring the state", {}, None, failure, cause))


def _compensation_error(frame: Frame, failures: list[FailedUndo], cause: BaseException) -> CompensationError:
    errors = [_as_exception(failed) for failed in failures]
    names = ", ".join(failed.step for failed in failures)
    error = CompensationError(
        f"{len(failures)} of the saga's undos failed: {names}", errors, failures=failures, cause=cause,
        report=frame.report(),
    )  # fmt: skip
    if isinstance(cause, Exception):
        error.__cause__ = cause
    return error


def _as_exception(failed: FailedUndo) -> Exception:
    """A group of exceptions holds no cancellations and interrupts: these are wrapped."""
    if isinstance(failed.error, Exception):
        return failed.error
    wrapped = SagaClosedError(f"the undo of {failed.step} was interrupted: {error_text(failed.error)}")
    wrapped.__cause__ = failed.error
    return wrapped


def _attach(error: BaseException, failed: CompensationError) -> None:
    failed.__context__ = error.__context__
    error.__context__ = failed
    error.add_note(f"interlock: {failed}")


def is_over(frame: Frame) -> bool:
    """Whether the frame has come to its end."""
    return frame.status not in (OPEN, CLOSING)
