"""The asynchronous scope of a saga, what both scopes share, and the savepoint.

A scope is a thin shell over a frame (`interlock.saga.frames`): it declares steps, which checks them at once, and hands
out the coroutine that runs them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, TypeVarTuple, Unpack, overload

from interlock.core.options import Options
from interlock.core.retry import RetryPolicy
from interlock.core.session import AgentSession
from interlock.errors import Conflict, UsageError
from interlock.layers.effects.answers import Answer
from interlock.saga import matching
from interlock.saga.compensation import finish
from interlock.saga.deferred import Deferred
from interlock.saga.frames import Frame, open_frame
from interlock.saga.records import Kind, SagaReport, StepRecord, Undo, declare
from interlock.saga.transacting import Transacting
from interlock.saga.worlds import AWAITING, World

if TYPE_CHECKING:
    from interlock.store import SharedResource

S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
Ts = TypeVarTuple("Ts")

Verify = Callable[[str], Awaitable[Answer[Any]] | Answer[Any]]


class Scope(Generic[S]):
    """What the scopes of both worlds share."""

    __slots__ = ("_frame",)

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    @property
    def state(self) -> S:
        """The state that the saga guards."""
        value: S = self._frame.state
        return value

    @property
    def id(self) -> str | None:
        """The saga's id; None in memory, until a step asked for its key."""
        return self._frame.course.id

    @property
    def report(self) -> SagaReport:
        """What has become of every step so far; final once the saga has ended."""
        return self._frame.report()

    def abort(self, reason: str) -> NoReturn:
        """Undo everything: raises `SagaAbortedError`, and the exit raises it again if it is swallowed."""
        raise self._frame.abort(reason)

    def __repr__(self) -> str:
        report = self._frame.report()
        return f"<{type(self).__name__} {report.status}, {len(report.steps)} steps>"


class Step(Generic[T]):
    """A step for `parallel`: a function, its arguments, and the keywords of `AsyncSagaScope.step`."""

    __slots__ = ("arguments", "fn", "options")

    @overload
    def __init__(
        self: Step[T],
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        undo: Undo | None = None,
        kind: Kind = "compensable",
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        undo_retry: RetryPolicy | None = None,
        undo_unknown: bool = False,
        step_id: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Step[T],
        fn: Callable[[*Ts], T],
        *args: *Ts,
        undo: Undo | None = None,
        kind: Kind = "compensable",
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        undo_retry: RetryPolicy | None = None,
        undo_unknown: bool = False,
        step_id: str | None = None,
    ) -> None: ...
    def __init__(self, fn: Callable[..., Any], *args: Any, **options: Any) -> None:  # type: ignore[misc]
        self.fn = fn
        self.arguments = args
        self.options = options
        check_options(options)

    def declared(self, state: Any) -> StepRecord:
        """The step, checked."""
        return declare(self.fn, self.arguments, {}, state, **self.options)


OPTIONS = frozenset(inspect.signature(declare).parameters) - {"fn", "arguments", "named", "state"}


def check_options(options: dict[str, Any]) -> None:
    """Raises `UsageError` for a keyword that `step` does not have."""
    if not options.keys() <= OPTIONS:
        unknown = sorted(options.keys() - OPTIONS)
        raise UsageError(
            f"unknown option {unknown[0]!r}; there are {', '.join(sorted(OPTIONS))}. A function's own keywords go "
            f"through functools.partial(fn, {unknown[0]}=...)"
        )


def declare_all(frame: Frame, steps: tuple[Step[Any], ...]) -> list[StepRecord]:
    """Check the steps of `parallel`, all before the first is called."""
    for each in steps:
        if type(each) is not Step:
            raise UsageError(f"parallel takes steps: saga.parallel(Step(fn, ...), ...), not {type(each).__name__}")
    return [each.declared(frame.state) for each in steps]


def deferred_record(frame: Frame, fn: Callable[..., Any], arguments: tuple[Any, ...], **options: Any) -> StepRecord:
    """Check an act for `defer`, its arguments included: it may be the last chance to do so."""
    record = declare(fn, arguments, {}, frame.state, kind="irreversible", **options)
    inner = record.fn
    matching.bind(inner, arguments, {"idempotency_key": ""} if record.takes_key else {})
    return record


class AsyncSagaScope(Scope[S]):
    """A running saga in asynchronous code: what ``async with Saga(...) as saga`` gives."""

    __slots__ = ()

    @overload
    async def step(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        undo: Undo | None = None,
        kind: Kind = "compensable",
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        undo_retry: RetryPolicy | None = None,
        undo_unknown: bool = False,
        step_id: str | None = None,
    ) -> T: ...
    @overload
    async def step(
        self,
        fn: Callable[[*Ts], T],
        *args: *Ts,
        undo: Undo | None = None,
        kind: Kind = "compensable",
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        undo_retry: RetryPolicy | None = None,
        undo_unknown: bool = False,
        step_id: str | None = None,
    ) -> T: ...
    def step(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Call ``fn(*args)`` as a step that ``undo`` takes back if the saga fails later; returns its result.

        The undo's parameters are filled by name: the step's arguments, ``result``, ``state``, ``error``,
        ``idempotency_key`` (its own) and ``step_key``; by position, from (result, arguments), only if no name fits.

        Args:
            fn: the act; a plain function runs in place. Its own keywords go through `functools.partial`.
            undo: what takes the act back. Without one the step leaves nothing behind but the saga's state.
            kind: ``"compensable"``, or ``"reversible"`` for an act on the state alone.
            idempotency_key: filled into a parameter of that name; made by the saga where none is given.
            verify: asked with the key after an interruption, whether the act took place.
            undo_retry: how often a failing undo is tried.
            undo_unknown: the undo may also run where nobody knows whether the act took place.
            step_id: the step's name in reports.

        Raises: `UsageError` before anything is called for whatever cannot work, `SagaClosedError` if the saga is
            ending, `InvariantError` if an invariant does not hold behind the step, and what ``fn`` raises."""
        if not options.keys() <= OPTIONS:
            check_options(options)
        frame = self._frame.innermost()
        return remembered(frame, frame.start(declare(fn, args, {}, frame.state, **options), True))

    @overload
    async def parallel(self, first: Step[T1], second: Step[T2], /) -> tuple[T1, T2]: ...
    @overload
    async def parallel(self, first: Step[T1], second: Step[T2], third: Step[T3], /) -> tuple[T1, T2, T3]: ...
    @overload
    async def parallel(self, *steps: Step[T]) -> tuple[T, ...]: ...
    def parallel(self, *steps: Step[Any]) -> Any:
        """Run steps side by side and wait for all of them, also where one fails; their results in order.

        Raises: the error of the step that failed, a group of errors where several did."""
        frame = self._frame.innermost()
        return remembered(frame, frame.parallel(declare_all(frame, steps), AWAITING))

    @overload
    def defer(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        step_id: str | None = None,
    ) -> Deferred[T]: ...
    @overload
    def defer(
        self,
        fn: Callable[[*Ts], T],
        *args: *Ts,
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        step_id: str | None = None,
    ) -> Deferred[T]: ...
    def defer(  # type: ignore[misc]
        self,
        fn: Callable[..., Any],
        *args: Any,
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        step_id: str | None = None,
    ) -> Deferred[Any]:
        """Hold an irreversible act back until everything else, invariants included, has succeeded.

        Then the acts run in this order, and forward only: the first that fails raises `StepFailedError` and nothing is
        undone. If the saga fails before, they never run."""
        frame = self._frame.innermost()
        return frame.defer(
            deferred_record(frame, fn, args, idempotency_key=idempotency_key, verify=verify, step_id=step_id)
        )

    async def transact(
        self,
        target: SharedResource[V],
        fn: Callable[[AgentSession[V], *Ts], Awaitable[T]],
        *args: *Ts,
        on_conflict: Callable[[Conflict], bool | None] | None = None,
        **options: Unpack[Options],
    ) -> T:
        """Run ``fn(session, *args)`` as a transaction of its own, which the saga takes back if it fails later.

        The inverse comes from what the commit replaced: values are put back where nobody has changed them since,
        ``add`` and set members are taken back by the opposite merge. Works on every store, also on several.

        Args:
            target: a resource, or a store.
            fn, args, options: as for `SharedResource.run`.
            on_conflict: asked, while undoing, about each value that somebody else has changed since: True puts the
                earlier one back all the same, False leaves it, None is a failed undo with the `ConflictError`.

        Raises: as `SharedResource.run`."""
        frame = self._frame.innermost()
        handle, home, engine = AgentSession, target._resource, target._engine
        work = Transacting(frame, engine, handle, home, fn, args, dict(options), on_conflict)
        value: T = await frame.start(work.record, True)
        return value

    def savepoint(self) -> AbstractAsyncContextManager[AsyncSagaScope[S], None]:
        """An exception that leaves the block undoes the steps inside it, and restores the state as it was at its
        beginning; then it goes on."""
        return AsyncSavepoint(self)

    def check(self) -> Awaitable[None]:
        """Check the invariants now. Raises `InvariantError`."""
        frame = self._frame.innermost()
        call: Awaitable[None] = remembered(frame, frame.check())
        return call


def remembered(frame: Frame, call: Any) -> Any:
    """Note a coroutine that is given out: one that is never awaited fails the saga."""
    calls = frame.calls
    if len(calls) > 32:
        calls[:] = [each for each in calls if each.cr_frame is not None]
    calls.append(call)
    return call


def savepoint_frame(frame: Frame, world: World) -> Frame:
    """A frame below another one of the same saga."""
    return Frame(world, frame.course, frame, frame.state, (), None, base=frame.base)


class AsyncSavepoint(AbstractAsyncContextManager[AsyncSagaScope[S], None]):
    """See `AsyncSagaScope.savepoint`."""

    __slots__ = ("_frame", "_scope")

    def __init__(self, scope: AsyncSagaScope[S]) -> None:
        self._scope = scope
        self._frame: Frame | None = None

    async def __aenter__(self) -> AsyncSagaScope[S]:
        if self._frame is not None:
            raise UsageError("a savepoint is entered once")
        self._frame = savepoint_frame(self._scope._frame.innermost(), AWAITING)
        self._frame.enter_context()
        return self._scope

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._frame is not None
        await leave(self._frame, error)


async def leave(frame: Frame, error: BaseException | None) -> None:
    """The exit of every asynchronous frame."""
    try:
        final = await finish(frame, error)
    finally:
        frame.leave_context()
    if final is not None and final is not error:
        raise final


def current_saga() -> AsyncSagaScope[Any] | None:
    """The saga that is open in this task, as a scope; None where there is none."""
    frame = open_frame()
    if frame is None:
        return None
    if not frame.world.runtime.suspends:
        raise UsageError("the current saga was entered with a plain `with`; use interlock.sync.current_saga()")
    return AsyncSagaScope(frame.base)
