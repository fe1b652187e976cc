"""`Saga`: one class, entered by ``with`` or ``async with``, which give two typed scopes of one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from interlock.errors import UsageError
from interlock.saga import blocking, scope
from interlock.saga.blocking import SagaScope
from interlock.saga.frames import Course, Frame, Invariant, open_frame
from interlock.saga.records import FailedUndo
from interlock.saga.scope import AsyncSagaScope
from interlock.saga.worlds import AWAITING, Blocking, World

S = TypeVar("S")


class Saga(Generic[S]):
    """Steps that are undone in reverse order if anything goes wrong, around any Python state.

    ``with Saga(state) as saga`` gives a `SagaScope`, ``async with`` an `AsyncSagaScope`. An exception, a cancellation,
    Ctrl-C or a broken invariant undoes every step, restores the state in place, and goes on unchanged. Inside another
    saga it joins that one like a savepoint. A saga is entered once.

    Args:
        state: any object graph; None: only the steps are undone.
        invariants: functions of the state that return whether it is sound, checked after each step and at the end.
        on_compensation_error: called with a `FailedUndo` for each undo that failed.
        shield_seconds: how long one undo, or one deferred act, may take while nothing can interrupt it.

    Raises: `UsageError` for anything of another kind."""

    @overload
    def __init__(
        self: Saga[None],
        state: None = None,
        *,
        invariants: Sequence[Callable[[Any], object]] = (),
        on_compensation_error: Callable[[FailedUndo], object] | None = None,
        shield_seconds: float = 60,
    ) -> None: ...
    @overload
    def __init__(
        self,
        state: S,
        *,
        invariants: Sequence[Callable[[S], object]] = (),
        on_compensation_error: Callable[[FailedUndo], object] | None = None,
        shield_seconds: float = 60,
    ) -> None: ...
    def __init__(
        self,
        state: Any = None,
        *,
        invariants: Sequence[Invariant] = (),
        on_compensation_error: Callable[[FailedUndo], object] | None = None,
        shield_seconds: float = 60,
    ) -> None:
        if type(shield_seconds) not in (int, float) or not 0 < shield_seconds < float("inf"):
            raise UsageError(f"shield_seconds is a number of seconds above 0, not {shield_seconds!r}")
        if on_compensation_error is not None and not callable(on_compensation_error):
            raise UsageError("on_compensation_error is a function of a FailedUndo")
        if callable(invariants) or not all(callable(each) for each in invariants):
            raise UsageError("invariants is a list of functions of the state")
        self._state = state
        self._invariants = tuple(invariants)
        self._hook = on_compensation_error
        self._shield_seconds = float(shield_seconds)
        self._unused = [True]
        self._frame: Frame | None = None

    def _enter(self, world: World) -> Frame:
        try:
            self._unused.pop()
        except IndexError:
            raise UsageError("a saga is entered once; make another Saga(...) for another run") from None
        parent = open_frame()
        course = Course(self._shield_seconds) if parent is None else parent.course
        self._frame = Frame(world, course, parent, self._state, self._invariants, self._hook)
        self._frame.enter_context()
        return self._frame

    def __enter__(self) -> SagaScope[S]:
        return SagaScope(self._enter(Blocking()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._frame is not None
        blocking.leave(self._frame, error)

    async def __aenter__(self) -> AsyncSagaScope[S]:
        return AsyncSagaScope(self._enter(AWAITING))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._frame is not None
        await scope.leave(self._frame, error)
