"""What an undo is called with: pure decisions, made when the undo is declared.

An undo names what it needs. Its parameters are matched **by name** against the step's own arguments and against
``result``, ``state``, ``error``, ``idempotency_key`` (the undo's own: ``"<step key>:undo"``) and ``step_key``. So
``undo(amount, account)`` gets the right values whatever the order was in the step. Position is used only when no name
fits at all: then the required parameters get the step's result, and after it the step's arguments in their order.

Everything that can go wrong with a signature goes wrong here, before the step is called: a required parameter that
nothing fits, more required parameters than there are values, a name that means two things. A rollback therefore never
meets a signature that it cannot satisfy; what `call_undo` does later depends on nothing but the plan made here.
"""

from __future__ import annotations

import functools
import inspect
import operator
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final

from interlock.errors import UsageError

GIVEN: Final = ("result", "state", "error", "idempotency_key", "step_key")
"""What an undo may ask for besides the step's arguments."""
NOTHING: Final[Mapping[str, Any]] = {}

_AMBIGUOUS = frozenset(("result", "state", "error", "step_key"))
_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a callable: positional ones in order, keyword-only ones, and whether there is a rest."""

    names: tuple[str, ...]
    required: int
    positional_only: int = 0
    keywords: tuple[str, ...] = ()
    required_keywords: tuple[str, ...] = ()
    rest: bool = False
    named_rest: bool = False

    def takes(self, name: str) -> bool:
        """Whether there is a parameter of this name that can be given by keyword."""
        return name in self.keywords or name in self.names[self.positional_only :]


@dataclass(frozen=True, slots=True)
class Plan:
    """How an undo is called: with the first ``count`` of (result, arguments), or with values by name."""

    count: int = 0
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


def unwrapped(fn: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function inside partials, with the arguments that they give."""
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        arguments, named = (*fn.args, *arguments), {**fn.keywords, **named}
        fn = fn.func
    return fn, arguments, named


_DISGUISES: Final = frozenset(
    ("__wrapped__", "__signature__", "__text_signature__", "_partialmethod", "__partialmethod__", "_is_coroutine",
     "_is_coroutine_mark", "_is_coroutine_marker")
)  # fmt: skip
"""The attributes by which a function can say that it takes, or is, something else than its code does."""
_OPAQUE: Final = _DISGUISES - {
    "__wrapped__",
    "__signature__",
    "_is_coroutine",
    "_is_coroutine_mark",
    "_is_coroutine_marker",
}
_LAYERS: Final = 64
"""How much of a chain of decorators is looked at."""


def is_bare(fn: FunctionType) -> bool:
    """Whether a function's code tells all about how it is called; attributes of other kinds do not matter."""
    attributes = fn.__dict__
    return not attributes or attributes.keys().isdisjoint(_DISGUISES)


def name_of(fn: Any) -> str:
    """What a report calls a function."""
    inner = unwrapped(fn)[0]
    name = getattr(inner, "__name__", None)
    return name if isinstance(name, str) else type(inner).__name__


def is_async(fn: Any) -> bool:
    """Whether calling it can only give an awaitable."""
    if type(fn) is FunctionType and is_bare(fn):
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    inner = unwrapped(fn)[0]
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


def shape_of(fn: Any) -> Shape | None:
    """The parameters of a callable, partials looked through; None where Python does not know them."""
    if type(fn) is FunctionType:
        if is_bare(fn):
            return _shape_of_code(fn)
        face = _face_of(fn)
        if face is not None:
            return face.shape
    if type(fn) is MethodType and type(fn.__func__) is FunctionType and is_bare(fn.__func__):
        whole = _shape_of_code(fn.__func__)
        if whole.names:
            count, positional_only = max(0, whole.required - 1), max(0, whole.positional_only - 1)
            keywords, required = whole.keywords, whole.required_keywords
            return Shape(whole.names[1:], count, positional_only, keywords, required, whole.rest, whole.named_rest)
    try:
        return _shape_of_signature(inspect.signature(fn))
    except (TypeError, ValueError):
        return None


class _Face:
    """What a decorated function shows of its parameters, which takes Python a while to find out. ``facts`` is all that
    it depends on; as long as every one of them is the same object, the face is, too."""

    __slots__ = ("__weakref__", "facts", "shape", "signature")

    def __init__(self, facts: tuple[Any, ...], signature: inspect.Signature) -> None:
        self.facts = facts
        self.signature = signature
        self.shape = _shape_of_signature(signature)


_faces: weakref.WeakKeyDictionary[FunctionType, _Face] = weakref.WeakKeyDictionary()


def _face_of(fn: FunctionType) -> _Face | None:
    """The face of a function that was decorated on; None where it may change unseen, or Python cannot tell it."""
    facts: list[Any] = []
    inner: Any = fn
    while True:
        if type(inner) is not FunctionType or len(facts) > _LAYERS:
            return None
        attributes, keywords = inner.__dict__, inner.__kwdefaults__
        facts += (inner.__code__, inner.__defaults__)
        if keywords:
            facts += (*keywords, *keywords.values())
        shown = attributes.get("__signature__")
        if not _OPAQUE.isdisjoint(attributes) or not (shown is None or type(shown) is inspect.Signature):
            return None
        facts.append(shown)
        if shown is not None or "__wrapped__" not in attributes:
            break
        inner = attributes["__wrapped__"]
    known = _faces.get(fn)
    if known is not None and len(known.facts) == len(facts) and all(map(operator.is_, known.facts, facts)):
        return known
    try:
        face = _Face(tuple(facts), inspect.signature(fn))
    except (TypeError, ValueError):
        return None
    _faces[fn] = face
    return face


def _shape_of_code(fn: FunctionType) -> Shape:
    code = fn.__code__
    defaults = fn.__kwdefaults__
    return _cached_shape(code, len(fn.__defaults__ or ()), None if defaults is None else tuple(defaults))


@functools.lru_cache(maxsize=2048)
def _cached_shape(code: Any, defaults: int, keyword_defaults: tuple[str, ...] | None) -> Shape:
    count, only = code.co_argcount, code.co_kwonlyargcount
    keywords = code.co_varnames[count : count + only]
    return Shape(
        code.co_varnames[:count],
        count - defaults,
        code.co_posonlyargcount,
        keywords,
        tuple(name for name in keywords if name not in (keyword_defaults or ())),
        bool(code.co_flags & inspect.CO_VARARGS),
        bool(code.co_flags & inspect.CO_VARKEYWORDS),
    )


def _shape_of_signature(signature: inspect.Signature) -> Shape:
    every = list(signature.parameters.values())
    positional = [each for each in every if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    keywords = [each for each in every if each.kind is each.KEYWORD_ONLY]
    return Shape(
        tuple(each.name for each in positional),
        sum(each.default is each.empty for each in positional),
        sum(each.kind is each.POSITIONAL_ONLY for each in positional),
        tuple(each.name for each in keywords),
        tuple(each.name for each in keywords if each.default is each.empty),
        any(each.kind is each.VAR_POSITIONAL for each in every),
        any(each.kind is each.VAR_KEYWORD for each in every),
    )


def takes_key(fn: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a step's function has a parameter ``idempotency_key`` that its caller has not filled in."""
    inner, given, keywords = unwrapped(fn)
    shape = shape_of(inner)
    if shape is None or "idempotency_key" in named or "idempotency_key" in keywords:
        return False
    if "idempotency_key" in shape.keywords:
        return True
    places = shape.names[shape.positional_only :]
    if "idempotency_key" not in places:
        return False
    return shape.positional_only + places.index("idempotency_key") >= len(given) + len(arguments)


class Fit:
    """What a step's function and its undo have been found to be for each other; kept, because steps repeat."""

    __slots__ = ("plan", "sides", "takes_key")

    def __init__(self, sides: tuple[Any, Any], takes_key: bool, plan: Plan | None) -> None:
        self.sides = sides
        self.takes_key = takes_key
        self.plan = plan


_FITS = 4096
_fits: dict[tuple[int, ...], Fit] = {}


def fit_of(fn: Any, count: int, undo: Any) -> Fit | None:
    """The fit of two functions for a step with ``count`` positional arguments, if it has been found before.

    The key is made of identities; the entry holds what has them (code objects and faces, never a function that would
    go otherwise), so that these identities stay theirs."""
    key, _ = _fit_key(fn, count, undo)
    return None if key is None else _fits.get(key)


def remember_fit(fn: Any, count: int, undo: Any, takes_key: bool, plan: Plan | None) -> None:
    """Keep what was found out, if it depends on nothing but the two functions' parameters."""
    key, sides = _fit_key(fn, count, undo)
    if key is None:
        return
    if len(_fits) >= _FITS:
        _fits.clear()
    _fits[key] = Fit(sides, takes_key, plan)


def _side(fn: Any) -> tuple[Any, int]:
    """The object that stands for a function's parameters, and the number of its defaults; (None, 0): there is none."""
    if type(fn) is not FunctionType:
        return None, 0
    if fn.__dict__ and not is_bare(fn):
        return _face_of(fn), 0
    if fn.__kwdefaults__:
        return None, 0
    defaults = fn.__defaults__
    return fn.__code__, 0 if defaults is None else len(defaults)


def _fit_key(fn: Any, count: int, undo: Any) -> tuple[tuple[int, ...] | None, tuple[Any, Any]]:
    one, defaults = _side(fn)
    if one is None:
        return None, (None, None)
    if undo is None:
        return (count, id(one), defaults), (one, None)
    other, others = _side(undo)
    if other is None:
        return None, (None, None)
    return (count, id(one), defaults, id(other), others), (one, other)


def bind(fn: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """The step's arguments by name, defaults included; nothing for a builtin that has no names.

    Raises `UsageError` where they do not fit."""
    inner, given, keywords = unwrapped(fn)
    arguments, named = (*given, *arguments), {**keywords, **named}
    if type(inner) is FunctionType and is_bare(inner) and not named:
        code = inner.__code__
        count = code.co_argcount
        if not code.co_flags & _VARIABLE and not code.co_kwonlyargcount and len(arguments) <= count:
            missing = count - len(arguments)
            defaults = inner.__defaults__ or ()
            if missing <= len(defaults):
                whole = (*arguments, *defaults[len(defaults) - missing :]) if missing else arguments
                return dict(zip(code.co_varnames, whole, strict=False))
    face = _face_of(inner) if type(inner) is FunctionType else None
    try:
        signature = inspect.signature(inner) if face is None else face.signature
    except (TypeError, ValueError):
        return {}
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as wrong:
        raise UsageError(f"{name_of(fn)} cannot be called with these arguments: {wrong}") from None
    bound.apply_defaults()
    values = dict(bound.arguments)
    for name, each in signature.parameters.items():
        if each.kind is each.VAR_KEYWORD:
            values.update(values.pop(name, {}))
    return values


def depends_on_names_only(bound: Mapping[str, Any]) -> bool:
    """Whether a plan made for these arguments holds for others of the same names: no name has two meanings."""
    return _AMBIGUOUS.isdisjoint(bound)


def plan_undo(undo: Callable[..., Any], bound: Mapping[str, Any], count: int, state: Any) -> Plan:
    """How ``undo`` will be called for a step with these arguments, of which ``count`` were given by position.

    Raises `UsageError` for a signature that could not be satisfied."""
    if not callable(undo):
        raise UsageError(f"an undo is a function, not {type(undo).__name__}")
    shape = shape_of(undo)
    if shape is None:
        return Plan(count=1)
    positional = [name for name in shape.names if name in bound or name in GIVEN]
    keywords = [name for name in shape.keywords if name in bound or name in GIVEN]
    if positional or keywords:
        return _by_name(undo, shape, bound, state)
    return _by_position(undo, shape, bound, count)


def _by_name(undo: Any, shape: Shape, bound: Mapping[str, Any], state: Any) -> Plan:
    known = {*bound, *GIVEN}
    missing = [name for name in shape.names[: shape.required] if name not in known]
    missing += [name for name in shape.required_keywords if name not in known]
    if missing:
        raise UsageError(
            f"the undo {name_of(undo)} needs {missing[0]!r}, which is neither an argument of the step "
            f"({', '.join(bound) or 'it has none'}) nor one of {', '.join(GIVEN)}"
        )
    first = [name for name in shape.names[: shape.positional_only] if name in known]
    if first != list(shape.names[: len(first)]):
        raise UsageError(f"the undo {name_of(undo)} has a positional-only parameter that nothing fits")
    rest = [name for name in (*shape.names[shape.positional_only :], *shape.keywords) if name in known]
    for name in (*first, *rest):
        _refuse_two_meanings(undo, name, bound, state)
    if shape.named_rest:
        rest += [name for name in known if name not in rest and name not in first]
    return Plan(positional=tuple(first), keywords=tuple(rest))


def _refuse_two_meanings(undo: Any, name: str, bound: Mapping[str, Any], state: Any) -> None:
    if name not in bound or name not in GIVEN or name == "idempotency_key":
        return
    if name == "state" and bound[name] is state:
        return
    raise UsageError(
        f"the undo {name_of(undo)} asks for {name!r}, which is both an argument of the step and the saga's own; "
        "give the step's parameter another name, or bind the value with functools.partial"
    )


def _by_position(undo: Any, shape: Shape, bound: Mapping[str, Any], count: int) -> Plan:
    if shape.required_keywords:
        raise UsageError(
            f"the undo {name_of(undo)} needs {shape.required_keywords[0]!r}, which nothing fits: there are "
            f"{', '.join((*bound, *GIVEN))}"
        )
    if shape.required > 1 + count:
        raise UsageError(
            f"the undo {name_of(undo)} has {shape.required} required parameters, none of which has the name of an "
            f"argument; by position there are only the result and {count} arguments"
        )
    if not shape.required and not shape.names and shape.named_rest:
        return Plan(keywords=tuple({**bound, **dict.fromkeys(GIVEN)}))
    return Plan(count=shape.required or int(shape.rest and not shape.names))


def call_undo(
    undo: Callable[..., Any], plan: Plan, bound: Mapping[str, Any], positional: tuple[Any, ...], given: dict[str, Any]
) -> Any:
    """Call an undo by its plan; ``given`` has a value for each name of `GIVEN`."""
    if plan.count:
        return undo(*(given["result"], *positional)[: plan.count])
    values = {**bound, **given}
    return undo(*(values[name] for name in plan.positional), **{name: values[name] for name in plan.keywords})
