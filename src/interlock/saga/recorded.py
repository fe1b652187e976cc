"""A step as its record in the journal, and a record as a step again.

`facts_of` is what is written before a step is called: all that its undo needs, exact or refused. `record_from` makes a
step of it that has no functions yet; `interlock.saga.recording` finds them when they are needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from hashlib import blake2b
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from interlock import codec
from interlock.core.retry import RetryPolicy
from interlock.errors import UsageError
from interlock.saga.kinds import label_of, name_in, pack
from interlock.saga.matching import GIVEN, Plan, name_of, unwrapped
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
_PLAIN = frozenset((str, int, bool, type(None)))


def _nothing() -> None:
    """In the place of a reference to a function."""


class _Template:
    """What the records of all steps with the same functions say. It is found by the identities of the functions and of
    the plan. It holds the plan, so that its identity stays its own, but no function that would go otherwise: the weak
    references tell whether an identity still is that function's."""

    __slots__ = ("facts", "functions", "kept", "plan", "positional", "undo")

    def __init__(self, facts: dict[str, Any], plan: Plan | None) -> None:
        self.functions: list[Callable[[], Any]] = []
        self.plan = plan
        self.facts = facts
        self.undo = facts.get("undo")
        self.kept: tuple[str, ...] = ()
        """The arguments that the undo asks for by name."""
        self.positional = 0
        """How many it gets by position."""
        if plan is not None:
            self.kept = tuple(name for name in (*plan.positional, *plan.keywords) if name not in GIVEN)
            self.positional = max(0, plan.count - 1)


_templates: dict[tuple[int, int, int, int], _Template] = {}
_TEMPLATES = 4096


def names_of(record: StepRecord) -> _Names:
    """The names of a step's function, undo and verify. Raises `UsageError` where no other process would."""
    functions = record.source, record.undo_source, record.verify_source
    for what, fn in zip(("step", "undo", "verify"), functions, strict=True):
        if fn is not None:
            _check_found_again(what, fn)
    source, undo, verify = functions
    return path_of(source), None if undo is None else path_of(undo), None if verify is None else path_of(verify)


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
    """What a step's record says before it is called: all that its undo needs. Raises `UsageError` for functions that no
    other process could find again, `ValueRefusedError` for arguments that cannot be kept."""
    template = _template(record)
    arguments = record.arguments
    given = {name: value for name, value in record.named.items() if name != "idempotency_key"} if record.named else None
    if not given and _PLAIN.issuperset(map(type, arguments)):  # there is nothing to be put in order
        raw = pack(arguments)
    else:
        raw = codec.canonical([list(arguments), given or {}])
    facts = template.facts.copy()
    facts["print"] = blake2b(raw, digest_size=16).digest()
    if record.given_key is not None:
        facts["key"] = frame.step_key(record)
    elif record.takes_key:
        frame.step_key(record)
    if record.step_id is not None:
        facts.pop("label", None)
    if record.undo is None:
        return facts
    if template.kept:
        facts["kept"] = kept = {}
        bound = record.bound
        for name in template.kept:
            kept[name] = store_value(bound[name], _hint(record, name), what_of(record.undo, name))
    if template.positional:
        facts["positional"] = [
            store_value(each, no_hint, "an argument") for each in record.arguments[: template.positional]
        ]
    if record.undo_unknown:
        facts["undo_unknown"] = True
    if record.undo_retry is not None:
        policy = record.undo_retry
        facts["retry"] = [policy.max_attempts, policy.max_seconds, policy.base_seconds, policy.cap_seconds]
    return facts


def _template(record: StepRecord) -> _Template:
    """See `_Template`. Raises `UsageError`."""
    functions = source, undo_source, verify_source = record.source, record.undo_source, record.verify_source
    key = id(source), id(undo_source), id(verify_source), id(record.plan)
    template = _templates.get(key)
    if template is not None:
        one, other, third = template.functions
        if (
            one() is source
            and (undo_source is None or other() is undo_source)
            and (verify_source is None or third() is verify_source)
        ):
            if template.undo is not None:
                note_undo(undo_source, template.undo)
            return template
    check_durable(record)
    path, undo, verify = names_of(record)
    label = record.name or name_of(record.fn)
    facts: dict[str, Any] = {"fn": path}  # what is empty, or can be told from the rest, is left out
    if label != name_in(path):
        facts["label"] = label
    if verify is not None:
        facts["verify"] = verify
    plan = record.plan if record.undo is not None else None
    if plan is not None:
        facts["undo"] = undo
        facts["plan"] = [plan.count, list(plan.positional), list(plan.keywords)]
    template = _Template(facts, record.plan)
    try:
        template.functions = [_nothing if fn is None else weakref.ref(fn) for fn in functions]
    except TypeError:  # an object that nothing can refer to weakly
        return template
    if len(_templates) >= _TEMPLATES:
        _templates.clear()
    _templates[key] = template
    return template


def _hint(record: StepRecord, name: str) -> Callable[[], Any]:
    """The declared type of an argument, looked for only when its value is no plain data."""

    def look() -> Any:
        hints = hints_of(record.undo)
        return hints[name] if name in hints else hints_of(record.fn).get(name)

    return look


def record_from(place: Place, value: dict[str, Any], key: str) -> StepRecord:
    """A recorded step with its key, without its functions; `interlock.saga.recovery` finds them when it needs them."""
    record = StepRecord(unknown_function, (), {})
    record.name = label_of(place, value)
    if type(place) is str:
        record.step_id = place
    else:
        record.position = int(place)
    record.key = record.given_key = key
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
