"""Irreversible acts: held back until everything else has succeeded, and then run forward only.

`defer` checks an act and notes it. Nothing is called before the body of the outermost saga has ended, its steps have
been awaited and its invariants hold; until then a rollback merely drops the act. From the first act on there is no way
back, so they run in the order in which they were deferred, shielded from cancellation, and the first that fails ends
it with `StepFailedError`: what was to come after it may rely on it.
"""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from interlock.errors import UsageError
from interlock.layers.effects.answers import NOT_HAPPENED, Happened
from interlock.saga.errors import SagaClosedError, StepFailedError
from interlock.saga.records import State, StepRecord, may_have_happened
from interlock.saga.verifying import ask
from interlock.wording import message_of

if TYPE_CHECKING:
    from interlock.saga.frames import Frame

T_co = TypeVar("T_co", covariant=True)


class Deferred(Generic[T_co]):
    """An irreversible act that waits for the end of its saga. As a text it says so, for a model that reads it."""

    __slots__ = ("_dropped", "_record")

    def __init__(self, record: StepRecord) -> None:
        self._record = record
        self._dropped = False

    @property
    def done(self) -> bool:
        """Whether the act has run and succeeded."""
        return self._record.state is State.DONE

    def result(self) -> T_co:
        """What the act returned.

        Raises: `UsageError` before the saga has ended, `SagaClosedError` if it was undone and the act never ran,
            `StepFailedError` if the act failed."""
        record = self._record
        if record.state is State.DONE:
            value: T_co = record.result
            return value
        raise self._refusal(record)

    def _refusal(self, record: StepRecord) -> Exception:
        name = record.label()
        if self._dropped:
            return SagaClosedError(f"{name} was never run: its saga was undone, or stopped before it")
        if record.state is State.RUNNING:
            return UsageError(
                f"{name} has not run yet: it is irreversible, and runs when everything else in its saga has succeeded. "
                "Ask for result() behind the saga"
            )
        doubt = "may or may not have happened" if record.state is State.UNKNOWN else "failed"
        error = StepFailedError(f"the deferred act {name} {doubt}: {message_of(record.error)}", step=name)
        error.__cause__ = record.error
        return error

    def __str__(self) -> str:
        name = self._record.label()
        if self.done:
            return f"{name} has run: {self._record.result}"
        if self._dropped:
            return f"{name} was not run, because the saga was undone."
        if self._record.state is State.RUNNING:
            return f"{name} is scheduled. It cannot be undone, so it runs once everything else here has succeeded."
        return f"{name} failed: {message_of(self._record.error)}"

    def __repr__(self) -> str:
        return f"<Deferred {self}>"


def drop(deferred: list[Deferred[Any]]) -> None:
    """They will never run."""
    for each in deferred:
        if each._record.state is State.RUNNING:
            each._dropped = True


async def run_deferred(frame: Frame) -> StepFailedError | None:
    """Run the acts of a root in order; the error that ends it at the first that fails."""
    waiting = list(frame.deferred)
    recorder = frame.course.recorder
    for place, each in enumerate(waiting):
        record = each._record
        await _run(frame, record)
        if record.state is not State.DONE:
            if recorder is not None and not recorder.lost:
                await recorder.deferred_failed(record)
            rest = waiting[place + 1 :]
            drop(rest)
            name, left = record.label(), [later._record.label() for later in rest]
            doubt = "may or may not have happened" if record.state is State.UNKNOWN else "failed"
            behind = f"; not run after it: {', '.join(left)}" if left else ""
            error = StepFailedError(
                f"the deferred act {name} {doubt}: {message_of(record.error)}{behind}", step=name, not_run=left
            )
            error.__cause__ = record.error
            return error
        frame.records.append(record)
    return None


async def _run(frame: Frame, record: StepRecord) -> None:
    if record.takes_key:
        record.named = {**record.named, "idempotency_key": frame.step_key(record)}
    recorder = frame.course.recorder

    async def act() -> Any:
        value = record.fn(*record.arguments, **record.named)
        if type(value) is CoroutineType or hasattr(type(value), "__await__"):
            value = await frame.world.settle(value, f"the deferred act {record.label()}")
        return value

    try:
        if recorder is None:
            record.result = await frame.world.limited(act, frame.course.shield_seconds)
        elif not await recorder.begin_deferred(frame, record):
            record.result = await frame.world.limited(act, frame.course.shield_seconds)
            recorder.done(frame, record)
        record.state = State.DONE
    except BaseException as error:
        record.error = error
        record.state = State.UNKNOWN if may_have_happened(error) else State.FAILED
        if record.state is State.UNKNOWN:
            verdict = await ask(frame, record)
            if isinstance(verdict, Happened):
                record.result, record.state = verdict.result, State.DONE
            elif verdict is NOT_HAPPENED:
                record.state = State.FAILED
    record.order = frame.course.next_order
    frame.course.next_order += 1
