"""`compensable`: a function that is a step wherever it is called; and `carry`, which takes a saga into a thread.

The current saga is in a ContextVar. Tasks, `asyncio.to_thread` and `carry` take it along; a bare thread or an executor
does not, and there a compensable function is refused, because to run it beside its saga would leave an effect that
nothing undoes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, Literal, ParamSpec, TypeVar

from interlock.errors import UsageError
from interlock.saga import matching
from interlock.saga.errors import SagaClosedError
from interlock.saga.frames import UNDOING, Frame, current, open_frame
from interlock.saga.records import DECLARED, KINDS, Declared, StepRecord, Undo, declare
from interlock.saga.registry import register
from interlock.saga.worlds import AWAITING
from interlock.saga.writing import plainly

P = ParamSpec("P")
T = TypeVar("T")

_KINDS: Final = (*KINDS, "irreversible")


def compensable(
    undo: Undo | None = None,
    *,
    kind: Literal["reversible", "compensable", "irreversible"] = "compensable",
    key: Callable[..., str] | None = None,
    verify: Callable[[str], Any] | None = None,
    name: str | None = None,
    outside: Literal["refuse", "run"] = "refuse",
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: each call of the function is a step of the current saga, with this undo.

    Signature, documentation and annotations stay as they are, so that a tool's schema does; only a parameter
    ``idempotency_key``, which the saga fills in, is hidden. The undo is matched as in `AsyncSagaScope.step`.

    Args:
        undo: what takes a call back.
        kind: ``"irreversible"``: a call returns a `Deferred` and the act runs when all else has succeeded.
        key: ``key(*arguments)`` gives the idempotency key of a call.
        verify: asked with the key, after an interruption, whether the act took place.
        name: how journals and reports call it; else its module and name.
        outside: what a call outside any saga does: ``"refuse"`` (`UsageError`) or ``"run"``.

    Raises: `UsageError` for an undo that could not be called, or a generator function."""
    if kind not in _KINDS:
        raise UsageError(f"kind is one of {', '.join(_KINDS)}, not {kind!r}")
    if outside not in ("refuse", "run"):
        raise UsageError(f"outside is 'refuse' or 'run', not {outside!r}")
    if kind == "irreversible" and undo is not None:
        raise UsageError("an irreversible act has no undo")

    def decorate(fn: Callable[P, T]) -> Callable[P, T]:
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise UsageError("compensable decorates a function or an async function, no generator")
        own = Declared(fn, undo, kind, key, verify, name, outside)
        _check_undo(own)
        made: Any = _async_tool(own) if matching.is_async(fn) else _sync_tool(own)
        setattr(made, DECLARED, own)
        _hide_key(made, fn)
        register(made, own)
        return made  # type: ignore[no-any-return]

    return decorate


def _check_undo(own: Declared) -> None:
    """What can be told of the undo without arguments: every parameter of the function will have a value."""
    shape = matching.shape_of(own.fn)
    if own.undo is None or shape is None:
        return
    bound = dict.fromkeys((*shape.names, *shape.keywords))
    undo = getattr(own.undo, DECLARED, None)
    matching.plan_undo(undo.fn if type(undo) is Declared else own.undo, bound, len(shape.names), None)


def _async_tool(own: Declared) -> Callable[..., Any]:
    @functools.wraps(own.fn)
    async def call(*args: Any, **named: Any) -> Any:
        frame = _frame_of_call(own)
        if frame is None:
            return await own.fn(*args, **_with_key(own, args, named))
        if not frame.world.runtime.suspends:
            raise UsageError(f"{matching.name_of(own.fn)} is async and its saga was entered with a plain `with`")
        record = _record(call, own, frame, args, named)
        return frame.defer(record) if own.kind == "irreversible" else await frame.start(record, True)

    return call


def _sync_tool(own: Declared) -> Callable[..., Any]:
    @functools.wraps(own.fn)
    def call(*args: Any, **named: Any) -> Any:
        frame = _frame_of_call(own)
        if frame is None:
            return own.fn(*args, **_with_key(own, args, named))
        record = _record(call, own, frame, args, named)
        if own.kind == "irreversible":
            return frame.defer(record)
        return plainly(frame.start(record, False))

    return call


def _record(fn: Any, own: Declared, frame: Frame, args: tuple[Any, ...], named: dict[str, Any]) -> StepRecord:
    kind = "irreversible" if own.kind == "irreversible" else own.kind
    return declare(fn, args, named, frame.state, kind=kind)


def _frame_of_call(own: Declared) -> Frame | None:
    """The frame that a call belongs to; None: it may run outside."""
    frame = current.get()
    if frame is UNDOING:
        return None
    if isinstance(frame, Frame) and not frame.left_elsewhere:
        return frame
    if own.outside == "run":
        return None
    raise UsageError(
        f"{matching.name_of(own.fn)} was called outside a saga, so nothing would undo it. Open one, take the current "
        "one along into a thread with interlock.carry(fn), or declare it with outside='run'"
    )


def _with_key(own: Declared, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    if not matching.takes_key(own.fn, args, named):
        return named
    made = own.key(*args, **named) if own.key is not None else f"{AWAITING.runtime.random_bits(64):016x}"
    return {**named, "idempotency_key": made}


def _hide_key(made: Any, fn: Any) -> None:
    signature = inspect.signature(fn)
    if "idempotency_key" not in signature.parameters:
        return
    rest = [each for name, each in signature.parameters.items() if name != "idempotency_key"]
    made.__signature__ = signature.replace(parameters=rest)
    made.__annotations__ = {name: each for name, each in fn.__annotations__.items() if name != "idempotency_key"}


def carry(fn: Callable[P, T]) -> Callable[P, T]:
    """The same function with the current saga, for a thread or executor that does not inherit the context.

    Raises: `UsageError` where no saga is open, `SagaClosedError` when it is called after the saga has ended."""
    frame = open_frame()
    if frame is None:
        raise UsageError("carry: no saga is open here, so there is nothing to take along")
    if matching.is_async(fn):

        @functools.wraps(fn)
        async def call_async(*args: Any, **named: Any) -> Any:
            token = _enter(frame)
            try:
                return await fn(*args, **named)  # type: ignore[misc]
            finally:
                current.reset(token)

        return call_async  # type: ignore[return-value]

    @functools.wraps(fn)
    def call(*args: P.args, **named: P.kwargs) -> T:
        token = _enter(frame)
        try:
            return fn(*args, **named)
        finally:
            current.reset(token)

    return call


def _enter(frame: Frame) -> Any:
    if open_frame() is not frame and frame.report().status != "running":
        raise SagaClosedError("the saga that was carried here has ended")
    return current.set(frame)
