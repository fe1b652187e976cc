"""The synchronous scope of a saga: the same calls, each stepped to its end on the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

from typing_extensions import deprecated

from interlock.core.options import Options
from interlock.core.retry import RetryPolicy
from interlock.errors import Conflict, UsageError
from interlock.saga.compensation import finish, is_over
from interlock.saga.deferred import Deferred
from interlock.saga.frames import Frame, open_frame
from interlock.saga.records import Kind, Undo, declare
from interlock.saga.scope import Scope, Step, Verify, check_options, declare_all, deferred_record, savepoint_frame
from interlock.saga.transacting import Transacting
from interlock.saga.worlds import Blocking
from interlock.saga.writing import plainly
from interlock.stepping import AgentSession, AsyncFunctionInSyncCode, step
from interlock.wording import error_text

if TYPE_CHECKING:
    from interlock.sync.store import SharedResource

S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
Ts = TypeVarTuple("Ts")

_ATTEMPTS = 100
"""How often an exit that was interrupted between two lines of ours goes on."""


class SagaScope(Scope[S]):
    """A running saga in plain synchronous code: what ``with Saga(...) as saga`` gives."""

    __slots__ = ()

    @overload
    @deprecated("async function in synchronous code: use `async with Saga(...)`")
    def step(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, Any]],
        *args: *Ts,
        undo: Undo | None = None,
        kind: Kind = "compensable",
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        undo_retry: RetryPolicy | None = None,
        undo_unknown: bool = False,
        step_id: str | None = None,
    ) -> AsyncFunctionInSyncCode: ...
    @overload
    def step(
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

        Everything is as with `AsyncSagaScope.step`; an async function is refused before it is called."""
        check_options(options)
        frame = self._frame.innermost()
        record = declare(fn, args, {}, frame.state, **options)
        frame.refuse_async(record)
        call = frame.start(record, False)
        return step(call) if frame.course.recorder is None else plainly(call)

    @overload
    def parallel(self, first: Step[T1], second: Step[T2], /) -> tuple[T1, T2]: ...
    @overload
    def parallel(self, first: Step[T1], second: Step[T2], third: Step[T3], /) -> tuple[T1, T2, T3]: ...
    @overload
    def parallel(self, *steps: Step[T]) -> tuple[T, ...]: ...
    def parallel(self, *steps: Step[Any]) -> Any:
        """Run steps side by side and wait for all of them, also where one fails; their results in order.

        Each runs in a thread of its own, with a copy of the caller's context."""
        frame = self._frame.innermost()
        records = declare_all(frame, steps)
        for record in records:
            frame.refuse_async(record)
        return plainly(frame.parallel(records, Blocking()))

    @overload
    @deprecated("async function in synchronous code: use `async with Saga(...)`")
    def defer(  # type: ignore[overload-overlap]
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, Any]],
        *args: *Ts,
        idempotency_key: str | None = None,
        verify: Verify | None = None,
        step_id: str | None = None,
    ) -> AsyncFunctionInSyncCode: ...
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
    ) -> Any:
        """Hold an irreversible act back until everything else, invariants included, has succeeded.

        Everything is as with `AsyncSagaScope.defer`."""
        frame = self._frame.innermost()
        record = deferred_record(frame, fn, args, idempotency_key=idempotency_key, verify=verify, step_id=step_id)
        if not frame.world.runtime.suspends:
            frame.refuse_async(record)
        return frame.defer(record)

    @overload
    @deprecated("async function in synchronous code: use `async with Saga(...)`")
    def transact(
        self,
        target: SharedResource[V],
        fn: Callable[[AgentSession[V], *Ts], Coroutine[Any, Any, Any]],
        *args: *Ts,
        on_conflict: Callable[[Conflict], bool | None] | None = None,
        **options: Unpack[Options],
    ) -> AsyncFunctionInSyncCode: ...
    @overload
    def transact(
        self,
        target: SharedResource[V],
        fn: Callable[[AgentSession[V], *Ts], T],
        *args: *Ts,
        on_conflict: Callable[[Conflict], bool | None] | None = None,
        **options: Unpack[Options],
    ) -> T: ...
    def transact(  # type: ignore[misc]
        self,
        target: SharedResource[V],
        fn: Callable[..., Any],
        *args: Any,
        on_conflict: Callable[[Conflict], bool | None] | None = None,
        **options: Unpack[Options],
    ) -> Any:
        """Run ``fn(session, *args)`` as a transaction of its own, which the saga takes back if it fails later.

        Everything is as with `AsyncSagaScope.transact`."""
        frame = self._frame.innermost()
        handle, home, engine = AgentSession, target._resource, target._engine
        work = Transacting(frame, engine, handle, home, fn, args, dict(options), on_conflict)
        return step(frame.start(work.record, False))

    def savepoint(self) -> AbstractContextManager[SagaScope[S], None]:
        """An exception that leaves the block undoes the steps inside it, and restores the state as it was at its
        beginning; then it goes on."""
        return Savepoint(self)

    def check(self) -> None:
        """Check the invariants now. Raises `InvariantError`."""
        step(self._frame.innermost().check())


class Savepoint(AbstractContextManager[SagaScope[S], None]):
    """See `SagaScope.savepoint`."""

    __slots__ = ("_frame", "_scope")

    def __init__(self, scope: SagaScope[S]) -> None:
        self._scope = scope
        self._frame: Frame | None = None

    def __enter__(self) -> SagaScope[S]:
        if self._frame is not None:
            raise UsageError("a savepoint is entered once")
        self._frame = savepoint_frame(self._scope._frame.innermost(), Blocking())
        self._frame.enter_context()
        return self._scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._frame is not None
        leave(self._frame, error)


def leave(frame: Frame, error: BaseException | None) -> None:
    """The exit of every synchronous frame. An interrupt between two lines of ours is what the saga is undone for."""
    ending = error
    for attempt in range(_ATTEMPTS):
        try:
            final = step(finish(frame, ending))
            break
        except BaseException as interrupt:
            if is_over(frame) or attempt == _ATTEMPTS - 1:
                frame.leave_context()
                raise
            if ending is None:
                ending = interrupt
            elif ending is not interrupt:
                ending.add_note(f"interlock: the exit of the saga was interrupted: {error_text(interrupt)}")
    else:
        final = None
    frame.leave_context()
    if final is not None and final is not error:
        raise final


def current_saga() -> SagaScope[Any] | None:
    """The saga that is open in this thread, as a scope; None where there is none."""
    frame = open_frame()
    return None if frame is None else SagaScope(frame.base)
