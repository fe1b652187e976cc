"""A step as its record in the journal, and a record as a step again.

`facts_of` is what is written before a step is called: all that its undo needs, exact or refused. `record_from` makes a
step of it that has no functions yet; `interlock.saga.recording` finds them when they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from interlock import codec
from interlock.core.retry import RetryPolicy
from interlock.errors import UsageError
from interlock.saga.matching import Plan, name_of, unwrapped
from interlock.saga.pages import Place
from interlock.saga.records import State, StepRecord, declared
from interlock.saga.registry import note_undo, path_of
from interlock.saga.storing import Stored, hints_of, load_value, store_value, what_of

if TYPE_CHECKING:
    from interlock.saga.frames import Frame

_LAST = 1 << 40
"""A step that was only begun comes behind all that were done."""

STATES = {
    "begun": State.UNKNOWN, "done": State.DONE, "failed": State.FAILED, "undoing": State.DONE, "undone": State.UNDONE,
    "undo failed": State.DONE, "unknown": State.UNKNOWN, "skipped": State.UNDONE,
}  # fmt: skip


LEFT_ALONE = {State.DONE: State.UNDO_FAILED, State.UNKNOWN: State.UNDO_FAILED}
"""What counts as still standing while another step's dead letter is dealt with."""


def place_of(record: StepRecord) -> Place:
    """Where a step's record lies in its run."""
    return record.step_id if record.step_id is not None else record.position


def no_hint() -> Any:
    """Plain data only."""
    return None


def result_hint(fn: Any, undo: Any) -> Any:
    """The declared type of a step's result."""
    found = None if undo is None else hints_of(undo).get("result")
    return hints_of(fn).get("return") if found is None else found


def load_result(fn: Any, undo: Any, stored: Stored) -> Any:
    """A recorded result."""
    return load_value(stored, lambda: result_hint(fn, undo), f"the result of {name_of(fn)}")


_Names = tuple[str, str | None, str | None]
_names: dict[tuple[int, int, int], tuple[tuple[Any, Any, Any], _Names]] = {}
"""Under which names the functions of a step are found again: by the identities of the functions, which the entry holds,
so that these identities stay theirs. Only of functions that live as long as the process anyway."""
_NAMES = 4096
_PLAIN = frozenset((str, int, bool, type(None)))


def names_of(record: StepRecord) -> _Names:
    """The names of a step's function, undo and verify. Raises `UsageError` where no other process would."""
    functions = record.source, record.undo_source, record.verify_source
    key = id(functions[0]), id(functions[1]), id(functions[2])
    known = _names.get(key)
    if known is not None:
        return known[1]
    for what, fn in zip(("step", "undo", "verify"), functions, strict=True):
        if fn is not None:
            _check_found_again(what, fn)
    source, undo, verify = functions
    names = path_of(source), None if undo is None else path_of(undo), None if verify is None else path_of(verify)
    if all(fn is None or _stays(fn) for fn in functions):
        if len(_names) >= _NAMES:
            _names.clear()
        _names[key] = functions, names
    return names


def _check_found_again(what: str, fn: Any) -> None:
    own = declared(unwrapped(fn)[0])
    if own is not None and own.name is not None:
        return
    inner = unwrapped(fn)[0] if own is None else own.fn
    if (
        "<" in getattr(inner, "__qualname__", "<")
        or not _is_of_a_module(inner)
        or (fn is not inner and what != "step" and own is None)
    ):
        raise UsageError(
            f"the {what} {name_of(fn)} of a durable saga must be found again by its name from another process: use "
            "a function of a module, or @compensable(name=...)"
        )


def _stays(fn: Any) -> bool:
    """Whether a function is kept by its module, or by the registry."""
    return declared(fn) is not None or (type(fn) is FunctionType and fn.__closure__ is None)


def check_durable(record: StepRecord) -> None:
    """Raises `UsageError` for functions that no other process could find again."""
    names = names_of(record)
    if record.undo is not None:
        assert record.plan is not None
        if "state" in record.plan.positional or "state" in record.plan.keywords:
            raise UsageError("the undo of a durable saga may run in another process, where there is no state: pass ids")
        note_undo(record.undo_source, names[1])


def _is_of_a_module(fn: Any) -> bool:
    """Whether it is a function or class, and no method of some object."""
    return isinstance(fn, FunctionType | type) or isinstance(getattr(fn, "__self__", None), ModuleType)


def facts_of(frame: Frame, record: StepRecord) -> dict[str, Any]:
    """What a step's record says before it is called: all that its undo needs."""
    given = {name: value for name, value in record.named.items() if name != "idempotency_key"}
    call = [list(record.arguments), given]
    plain = not given and _PLAIN.issuperset(map(type, record.arguments))  # there is nothing to be put in order
    raw = codec.freeze(call) if plain else codec.canonical(call)
    path, undo, verify = names_of(record)
    record.key = frame.step_key(record)
    facts: dict[str, Any] = {
        "fn": path,
        "label": record.label(),
        "print": hashlib.blake2b(raw, digest_size=16).digest(),
        "key": record.key,
        "verify": verify,
    }
    plan = record.plan
    if record.undo is None or plan is None:
        return facts
    policy = record.undo_retry
    bound = record.bound
    wanted = [name for name in (*plan.positional, *plan.keywords) if name in bound and name != "idempotency_key"]
    kept = {}
    for name in wanted:
        kept[name] = store_value(bound[name], _hint(record, name), what_of(record.undo, name))
    facts |= {
        "undo": undo,
        "plan": [plan.count, list(plan.positional), list(plan.keywords)],
        "kept": kept,
        "positional": [
            store_value(each, no_hint, "an argument") for each in record.arguments[: max(0, plan.count - 1)]
        ],
        "undo_unknown": record.undo_unknown,
        "retry": None
        if policy is None
        else [policy.max_attempts, policy.max_seconds, policy.base_seconds, policy.cap_seconds],
    }
    return facts


def _hint(record: StepRecord, name: str) -> Callable[[], Any]:
    """The declared type of an argument, looked for only when its value is no plain data."""

    def look() -> Any:
        hints = hints_of(record.undo)
        return hints[name] if name in hints else hints_of(record.fn).get(name)

    return look


def record_from(place: Place, value: dict[str, Any]) -> StepRecord:
    """A recorded step without its functions, which `interlock.saga.recovery` finds when they are needed."""
    record = StepRecord(unknown_function, (), {})
    record.name = value["label"]
    if type(place) is str:
        record.step_id = place
    else:
        record.position = int(place)
    record.key = record.given_key = value["key"]
    record.order = value["order"] + (_LAST if value["status"] == "begun" else 0)
    record.state = STATES.get(value["status"], State.UNKNOWN)
    record.stored = value
    record.undo_unknown = value.get("undo_unknown", False)
    retry = value.get("retry")
    record.undo_retry = None if retry is None else RetryPolicy(*retry)
    if value.get("undo") is not None:
        count, positional, keywords = value["plan"]
        record.plan = Plan(count, tuple(positional), tuple(keywords))
    return record


def unknown_function() -> None:
    """Stands for the function of a step that is known from the journal only; it is never called."""
