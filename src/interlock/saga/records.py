"""Steps as a saga keeps them, and what it reports about them.

A step is declared (checked, before anything is called), runs, and ends in one of the states of `State`:

    RUNNING -> DONE -> UNDONE | UNDO_FAILED
            -> FAILED                            it raised: by its own word it did not happen
            -> UNKNOWN -> DONE | FAILED          settled by its ``verify``
                       -> UNDONE | UNDO_FAILED   only with ``undo_unknown=True``

UNKNOWN is every end that does not tell whether the act took place: a cancellation, Ctrl-C, a timeout, a reply that was
lost. `may_have_happened` is the one place that decides it. A report is clean only if nothing is UNKNOWN and no undo
has failed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal

from interlock.core.retry import RetryPolicy
from interlock.errors import InterlockError, UsageError
from interlock.keys import check_name
from interlock.saga import matching
from interlock.saga.matching import Plan

if TYPE_CHECKING:
    from interlock.saga.transacting import Transacting

Kind = Literal["reversible", "compensable"]
Undo = Callable[..., object]

KINDS: Final = ("reversible", "compensable")
DECLARED: Final = "__interlock_compensable__"
"""The attribute in which a function decorated with `compensable` carries its declaration."""


class State(enum.Enum):
    """Where a step stands; see the module."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    UNDONE = "undone"
    UNDO_FAILED = "undo failed"


@dataclass(frozen=True, slots=True)
class FailedUndo:
    """An undo that did not succeed: the step still stands.

    ``arguments`` are the step's, by name; ``result`` is what the step returned; ``error`` what the undo raised last,
    ``cause`` what made the saga roll back. ``dead_letter`` is the id under which a durable saga keeps it for another
    try, None in memory."""

    saga_id: str | None
    step: str
    arguments: Mapping[str, object]
    result: object
    error: BaseException
    cause: BaseException | None
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True)
class SagaReport:
    """What became of a saga.

    ``status``: ``"running"``, ``"committed"``, ``"undone"``, or ``"incomplete"`` where something still stands.
    ``clean``: it has ended, nothing is unknown and no undo has failed. ``steps`` are the names of the steps that were,
    or may have been, done, in order of completion; ``undone`` those taken back since; ``unknown`` those of which nobody
    knows; ``kept`` the places in the state that were kept by reference and not restored."""

    status: Literal["running", "committed", "undone", "incomplete"]
    clean: bool
    steps: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    failed_undos: tuple[FailedUndo, ...] = ()
    undone: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declared:
    """What `compensable` was told about a function."""

    fn: Callable[..., Any]
    undo: Undo | None
    kind: str
    key: Callable[..., str] | None
    verify: Callable[[str], Any] | None
    name: str | None
    outside: str


def declared(fn: Any) -> Declared | None:
    """The declaration that a decorated function carries."""
    if type(fn) is FunctionType and not fn.__dict__:
        return None
    found = getattr(fn, DECLARED, None)
    return found if type(found) is Declared else None


def plain(fn: Any) -> Any:
    """A decorated function's own function: an undo is called directly, and never becomes a step itself."""
    found = declared(fn)
    return fn if found is None else found.fn


class StepRecord:
    """One step: its declaration, its outcome and its place."""

    __slots__ = (
        "arguments",
        "called",
        "error",
        "fn",
        "given_key",
        "key",
        "loaded",
        "name",
        "named",
        "order",
        "plan",
        "position",
        "result",
        "source",
        "state",
        "step_id",
        "stored",
        "takes_key",
        "thread",
        "transacting",
        "undo",
        "undo_error",
        "undo_retry",
        "undo_source",
        "undo_unknown",
        "verify",
        "verify_source",
    )

    def __init__(self, fn: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.fn = self.source = fn
        self.arguments = arguments
        self.named = named
        self.takes_key = False
        self.plan: Plan | None = None
        self.undo: Undo | None = None
        self.undo_source: Undo | None = None
        self.undo_retry: RetryPolicy | None = None
        self.undo_unknown = False
        self.undo_error: BaseException | None = None
        self.verify: Callable[[str], Any] | None = None
        self.verify_source: Callable[[str], Any] | None = None
        self.given_key: str | None = None
        self.key: str | None = None
        self.stored: dict[str, Any] | None = None
        self.loaded: dict[str, Any] | None = None
        self.called = False
        self.transacting: Transacting | None = None
        self.step_id: str | None = None
        self.name: str | None = None
        self.state = State.RUNNING
        self.result: Any = None
        self.error: BaseException | None = None
        self.position = -1
        self.order = -1
        self.thread = 0

    @property
    def bound(self) -> dict[str, Any]:
        """The arguments by name. Raises `UsageError` where they do not fit the function."""
        if self.loaded is not None:  # known from a journal, not from a call
            return self.loaded
        named = self.named
        if self.takes_key and "idempotency_key" not in named:  # it is filled in when the step begins
            named = {**named, "idempotency_key": self.key}
        return matching.bind(self.fn, self.arguments, named)

    def label(self) -> str:
        """What a report calls it; two steps of the same function get numbers from `labels`."""
        return self.step_id or self.name or matching.name_of(self.fn)


def declare(
    fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    state: Any,
    *,
    undo: Undo | None = None,
    kind: str = "compensable",
    idempotency_key: str | None = None,
    verify: Callable[[str], Any] | None = None,
    undo_retry: RetryPolicy | None = None,
    undo_unknown: bool = False,
    step_id: str | None = None,
) -> StepRecord:
    """Check a step and everything about its undo; nothing has been called when this raises `UsageError`."""
    if not callable(fn):
        raise UsageError(f"a step is a function and its arguments, not {type(fn).__name__}")
    record = StepRecord(fn, arguments, named)
    own = None if type(fn) is FunctionType and not fn.__dict__ else declared(fn)
    if own is not None:
        record.fn, record.name = own.fn, own.name
        undo = own.undo if undo is None else undo
        verify = own.verify if verify is None else verify
        if own.kind == "irreversible" and kind != "irreversible":
            raise UsageError(f"{matching.name_of(fn)} is irreversible: use saga.defer, which holds it back to the end")
        if own.key is not None and idempotency_key is None:
            idempotency_key = own.key(*arguments, **named)
    if kind == "irreversible":
        if undo is not None or undo_unknown:
            raise UsageError("an irreversible act has no undo")
    elif kind not in KINDS:
        raise UsageError(f"the kind of a step is one of {', '.join(KINDS)}, not {kind!r}; see defer for irreversible")
    if idempotency_key is not None:
        record.given_key = check_name("idempotency_key", idempotency_key)
    if step_id is not None:
        record.step_id = check_name("step_id", step_id)
    if verify is not None and not callable(verify):
        raise UsageError(f"verify is a function of the idempotency key, not {type(verify).__name__}")
    if undo_retry is not None and type(undo_retry) is not RetryPolicy:
        raise UsageError(f"undo_retry is a RetryPolicy, not {type(undo_retry).__name__}")
    if undo_unknown and undo is None:
        raise UsageError("undo_unknown=True needs an undo")
    record.verify_source, record.undo_retry, record.undo_unknown = verify, undo_retry, undo_unknown
    record.verify = None if verify is None else plain(verify)
    record.undo_source = undo
    record.undo = None if undo is None else plain(undo)
    if not named:
        found = matching.fit_of(record.fn, len(arguments), record.undo)
        if found is not None:
            record.takes_key, record.plan = found.takes_key, found.plan
            return record
    _fit(record, state)
    return record


def _fit(record: StepRecord, state: Any) -> None:
    """Find out how the undo will be called, and whether the function takes a key."""
    fn, undo, count = record.fn, record.undo, len(record.arguments)
    record.takes_key = matching.takes_key(fn, record.arguments, record.named)
    lasting = not record.named
    if undo is not None:
        record.plan = matching.plan_undo(undo, record.bound, count, state)
        lasting = lasting and matching.depends_on_names_only(record.bound)
    if lasting:
        matching.remember_fit(fn, count, undo, record.takes_key, record.plan)


def may_have_happened(error: BaseException) -> bool:
    """Whether an act that ended with this error may have taken place all the same.

    Cancellation, Ctrl-C and timeouts say nothing about the far side, nor does a lost reply. Any other exception is the
    act's own word that it did not happen: a step that fails half-way cleans up what it has begun before it raises."""
    if isinstance(error, BaseExceptionGroup):
        return any(may_have_happened(inner) for inner in error.exceptions)
    if isinstance(error, InterlockError):
        return error.maybe_committed
    return not isinstance(error, Exception) or isinstance(error, TimeoutError)


def labels(records: list[StepRecord]) -> list[str]:
    """Their names; the second step of one name is ``name#2``."""
    seen: dict[str, int] = {}
    found = []
    for record in records:
        name = record.label()
        seen[name] = count = seen.get(name, 0) + 1
        found.append(name if count == 1 else f"{name}#{count}")
    return found
