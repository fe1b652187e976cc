"""The engine of sagas: a tree of frames, each a saga or a savepoint, and the steps in them.

A root saga is a frame; a nested saga and a savepoint are frames below it. What holds at every moment:

- A step belongs to exactly one frame, the innermost one open in the *context* of its caller (a ContextVar), so sagas
  that overlap in threads or tasks never see each other's steps.
- A step is in ``running`` before its function is called, and in ``records`` when it has ended DONE or UNKNOWN: there is
  no moment in which an effect may exist that a rollback does not know of. ``order`` is given at the end, so reverse
  order is reverse order of completion.
- Once a frame is CLOSING no step begins in it or below it (`SagaClosedError`), and its end waits for those that have
  begun. Both are decided under one lock, so a step is either refused or waited for.
- A frame ends once: it joins its parent with everything it holds, commits (a root), or is rolled back.

The coroutines here await only the frame's world (`interlock.saga.worlds`) and the functions of the program, so that
they are awaited in asynchronous programs and stepped to their end in synchronous ones.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from contextvars import Token as ContextToken
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from interlock.errors import InvariantError, UsageError
from interlock.ports import Waiter
from interlock.saga.contents import shown
from interlock.saga.deferred import Deferred
from interlock.saga.errors import SagaAbortedError, SagaClosedError
from interlock.saga.matching import is_async, name_of
from interlock.saga.records import SagaReport, State, StepRecord, labels, may_have_happened
from interlock.saga.snapshot import Snapshot
from interlock.saga.worlds import World

if TYPE_CHECKING:
    from interlock.saga.recording import Recorder

OPEN, CLOSING, COMMITTED, JOINED, UNDONE, INCOMPLETE = range(6)
_STATUS: Final[dict[int, Literal["running", "committed", "undone", "incomplete"]]] = {
    OPEN: "running", CLOSING: "running", COMMITTED: "committed", JOINED: "committed", UNDONE: "undone",
    INCOMPLETE: "incomplete",
}  # fmt: skip

Invariant = Callable[[Any], object]


def open_frame() -> Frame | None:
    """The innermost saga or savepoint of this context; None where there is none, or it has ended."""
    frame = current.get()
    return frame if isinstance(frame, Frame) and frame.status in (OPEN, CLOSING) else None


class Undoing:
    """What the context holds while an undo runs: its calls are part of no saga."""


UNDOING: Final = Undoing()

current: ContextVar[Frame | Undoing | None] = ContextVar("interlock_saga", default=None)


class Course:
    """What all frames of one root share: the lock, the order of steps, who waits, the id, the journal."""

    __slots__ = (
        "id", "key_prefix", "key_suffix", "lock", "next_order", "next_position", "put_back", "recorder",
        "shield_seconds", "waiters",
    )  # fmt: skip

    def __init__(self, shield_seconds: float, saga_id: str | None = None, recorder: Recorder | None = None) -> None:
        self.lock = threading.Lock()
        self.next_order = 0
        self.next_position = 0
        self.put_back: dict[Any, Any] = {}
        self.waiters: list[Waiter] = []
        self.shield_seconds = shield_seconds
        self.id = self.key_prefix = saga_id
        self.key_suffix = ""
        self.recorder = recorder

    def number(self) -> int:
        """The next number in the order of what happens."""
        with self.lock:
            self.next_order += 1
            return self.next_order


def _refuse_awaitable(record: StepRecord, value: Any) -> NoReturn:
    """Raises `UsageError` for what a step has returned where nothing can be awaited."""
    if type(value) is CoroutineType:
        value.close()
    raise UsageError(f"step {record.label()} returned an awaitable in plain synchronous code; use `async with`")


class Frame:
    """A saga, a nested saga or a savepoint while it runs. Not for users: the scopes are."""

    __slots__ = (
        "_base",
        "calls",
        "children",
        "context",
        "course",
        "deferred",
        "doomed",
        "doubtful",
        "failures",
        "hook",
        "invariants",
        "left_elsewhere",
        "number",
        "parent",
        "records",
        "restores",
        "running",
        "snapshot",
        "state",
        "status",
        "world",
    )

    def __init__(
        self,
        world: World,
        course: Course,
        parent: Frame | None,
        state: Any,
        invariants: Sequence[Invariant],
        hook: Callable[[Any], object] | None,
        base: Frame | None = None,
    ) -> None:
        self.world = world
        self.course = course
        self.parent = parent
        self._base = base
        self.state = state
        self.snapshot = None if state is None else Snapshot(state)
        self.invariants = invariants
        self.hook = hook
        self.number = course.number()
        self.status = OPEN
        self.running: set[StepRecord] = set()
        self.records: list[StepRecord] = []
        self.children: list[Frame] = []
        self.restores: list[tuple[int, Snapshot]] = []
        self.deferred: list[Deferred[Any]] = []
        self.failures: list[Any] = []
        self.calls: list[Any] = []
        self.doomed: BaseException | None = None
        self.context: ContextToken[Frame | Undoing | None] | None = None
        self.left_elsewhere = False
        self.doubtful = False

    @property
    def base(self) -> Frame:
        """The saga that this is a part of: itself, or that of a savepoint. Not kept for itself, or only the collector
        would free what has ended."""
        return self if self._base is None else self._base

    # -- context -------------------------------------------------------------------------------------------------------
    def enter_context(self) -> None:
        """Make this the current frame of the calling task or thread."""
        if self.parent is not None:
            with self.course.lock:
                self.parent.admit()
                self.parent.children.append(self)
        self.context = current.set(self)

    def leave_context(self) -> None:
        """Undo `enter_context`, also from another context (a generator's finaliser)."""
        token, self.context = self.context, None
        if token is not None:
            try:
                current.reset(token)
            except ValueError:
                self.left_elsewhere = True
                if current.get() is self:
                    current.set(self.parent)

    def innermost(self) -> Frame:
        """The frame that a step of this saga belongs to: this one, or a savepoint of it that is open here."""
        frame = current.get()
        if frame is self:
            return self
        while isinstance(frame, Frame):
            if frame.base is self:
                return frame
            frame = frame.parent
        return self

    # -- steps ---------------------------------------------------------------------------------------------------------
    def admit(self) -> None:
        """Raises `SagaClosedError` if this frame or one around it has ended or is ending."""
        frame: Frame | None = self
        while frame is not None:
            if frame.status != OPEN:
                raise SagaClosedError("the saga has ended, or is ending: this step came too late and was not run")
            frame = frame.parent

    def begin(self, record: StepRecord) -> None:
        """A step begins; from here on a rollback waits for it."""
        course = self.course
        record.thread = threading.get_ident()
        with course.lock:
            if self.status != OPEN or self.parent is not None:
                self.admit()
            if record.position < 0:
                record.position = course.next_position
                course.next_position += 1
            self.running.add(record)

    def ended(self, record: StepRecord, state: State, *, keep: bool = True) -> None:
        """A step has ended. Raises `SagaClosedError` if the saga had to end without it."""
        course = self.course
        with course.lock:
            waited_for = record in self.running
            self.running.discard(record)
            record.state = state if waited_for else State.UNKNOWN
            record.order = course.next_order
            course.next_order += 1
            if waited_for and keep and state is not State.FAILED:
                self.records.append(record)
                self.doubtful = self.doubtful or state is State.UNKNOWN
            waiters = tuple(course.waiters) if course.waiters else ()
        for waiter in waiters:
            waiter.wake()
        if not waited_for and state is not State.FAILED:
            raise SagaClosedError(
                f"step {record.label()} ended when its saga had already gone on without it; what it did stands"
            )

    def step_key(self, record: StepRecord) -> str:
        """The step's idempotency key: the caller's, or one made of saga and place, of which `Journal` relies on the
        form."""
        if record.key is None:
            course = self.course
            if course.id is None:
                course.id = course.key_prefix = f"{self.world.runtime.random_bits(64):016x}"
            made = record.given_key or f"{course.key_prefix}:{record.step_id or record.position}"
            record.key = made + course.key_suffix
        return record.key

    def start(self, record: StepRecord, awaits: bool) -> Coroutine[Any, Any, Any]:
        """Run a declared step, then check the invariants; ``awaits`` is False where the caller steps."""
        if self.invariants or self.parent is not None:
            return self.step_and_check(record, awaits)
        return self.step(record, awaits)

    async def step_and_check(self, record: StepRecord, awaits: bool) -> Any:
        """See `start`."""
        value = await self.step(record, awaits)
        await self.check(record)
        return value

    async def parallel(self, records: Sequence[StepRecord], world: World) -> tuple[Any, ...]:
        """Run declared steps side by side and wait for all of them, however one ends; then check the invariants.

        Raises the error of the one that failed, or a group where several did."""
        awaits = world.runtime.suspends
        with self.course.lock:
            first = self.course.next_position
            self.course.next_position += len(records)
        for position, record in enumerate(records, first):  # in their own order, whoever begins first
            record.position = position
        outcomes = await world.together([functools.partial(self.step, record, awaits) for record in records])
        errors = [error for _, error in outcomes if error is not None]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup(f"{len(errors)} parallel steps failed", errors)
        await self.check(records[-1] if records else None)
        return tuple(value for value, _ in outcomes)

    async def step(self, record: StepRecord, awaits: bool) -> Any:
        """Run a declared step and keep what became of it."""
        self.begin(record)
        recorder = self.course.recorder
        try:
            if recorder is not None and await recorder.begin(self, record):
                self.ended(record, State.DONE, keep=not recorder.settled)
                return record.result
            record.called = True
            if record.takes_key:
                record.named = {**record.named, "idempotency_key": self.step_key(record)}
            value = record.fn(*record.arguments, **record.named)
            if type(value) is CoroutineType or hasattr(type(value), "__await__"):
                value = await value if awaits else _refuse_awaitable(record, value)
        except BaseException as error:
            record.error = error
            self.ended(record, State.UNKNOWN if record.called and may_have_happened(error) else State.FAILED)
            if recorder is not None and record.state is State.FAILED and not recorder.lost:
                recorder.failed(record)
            raise
        record.result = value
        self.ended(record, State.DONE)
        if recorder is not None:
            recorder.done(self, record)
        return value

    def defer(self, record: StepRecord) -> Deferred[Any]:
        """Keep an irreversible act for the end."""
        deferred: Deferred[Any] = Deferred(record)
        with self.course.lock:
            self.admit()
            record.position = self.course.next_position
            self.course.next_position += 1
            self.deferred.append(deferred)
        if self.course.recorder is not None:
            self.course.recorder.admit_deferred(self, record)
        return deferred

    def refuse_async(self, record: StepRecord) -> None:
        """Raises `UsageError` for an async function in synchronous code, before it is called."""
        if is_async(record.fn):
            raise UsageError(f"{name_of(record.fn)} is an async function; use `async with Saga(...)`")

    # -- invariants ----------------------------------------------------------------------------------------------------
    async def check(self, record: StepRecord | None = None) -> None:
        """Check the invariants of this frame and of those around it. Raises `InvariantError`."""
        frame: Frame | None = self
        while frame is not None:
            for place, invariant in enumerate(frame.invariants):
                await frame._check_one(place, invariant, record)
            frame = frame.parent

    async def _check_one(self, place: int, invariant: Invariant, record: StepRecord | None) -> None:
        holds = invariant(self.state)
        name = name_of(invariant)
        if hasattr(type(holds), "__await__"):
            holds = await self.world.settle(holds, f"the invariant {name}")
        if holds is None:
            raise UsageError(f"the invariant {name} returned None; it returns True where it holds")
        if holds:
            return
        name = f"{name} (number {place + 1})" if name == "<lambda>" else name
        difference = [] if self.snapshot is None else self.snapshot.diff()
        after = "at the end" if record is None else f"after step {record.label()}"
        said = "; ".join(difference) or f"nothing has changed, it did not hold before: {shown(self.state)}"
        raise InvariantError(
            f"the invariant {name} does not hold {after}: {said}",
            invariant=name,
            step="" if record is None else record.label(),
            difference=difference,
        )

    # -- what there is -------------------------------------------------------------------------------------------------
    def tree(self) -> Iterator[Frame]:
        """This frame and those below it that have not joined it."""
        yield self
        for child in tuple(self.children):
            if child.status in (OPEN, CLOSING):
                yield from child.tree()

    def absorb(self) -> None:
        """Take over what is held by those below it, which end with this one."""
        for each in self.tree():
            if each is self:
                continue
            self.records += each.records
            self.restores += each.restores
            if each.snapshot is not None:
                self.restores.append((each.number, each.snapshot))
            self.deferred += each.deferred
            each.records, each.restores, each.deferred, each.snapshot = [], [], [], None
            each.doomed = SagaClosedError("the saga around this one has been undone, and this one with it")

    def all_records(self) -> list[StepRecord]:
        """Steps that were or may have been done, by order of completion."""
        found = [record for frame in self.tree() for record in frame.records]
        found.sort(key=lambda record: record.order)
        return found

    def doom(self, error: BaseException) -> None:
        """From now on the frame cannot commit; its exit raises ``error``."""
        if self.doomed is None:
            self.doomed = error

    def abort(self, reason: str) -> SagaAbortedError:
        """The error to raise; also who swallows it cannot commit."""
        error = SagaAbortedError(f"the saga was aborted: {reason}", reason=reason)
        self.doom(error)
        return error

    def report(self) -> SagaReport:
        """What became of everything so far."""
        records = self.all_records()
        names = labels(records)
        unknown = [name for name, each in zip(names, records, strict=True) if each.state is State.UNKNOWN]
        undone = [name for name, each in zip(names, records, strict=True) if each.state is State.UNDONE]
        status = _STATUS[self.status]
        clean = status in ("committed", "undone") and not unknown and not self.failures
        kept = () if self.snapshot is None else self.snapshot.kept
        return SagaReport(status, clean, tuple(names), tuple(unknown), tuple(self.failures), tuple(undone), kept)
