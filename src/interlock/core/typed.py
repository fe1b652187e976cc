"""Typed resources: how values of a declared type are frozen and thawed, exact or refused.

`ValueType` pairs a type with two functions. For the plain domain they are the codec's own, behind a check of the
type. For dataclasses, msgspec structs and pydantic models (also inside lists, dicts and unions) a value is first
taken apart into the plain domain and, when read, built again by msgspec or pydantic. What such libraries convert
silently (a tuple in a field declared as a list, a private attribute, an extra field) would come back as something
else; so each typed write is built again at once and compared with what was given, type by type, and refused with the
path where they differ. Nobody finds out later.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, get_args, get_origin
from uuid import UUID

import msgspec

from interlock import codec
from interlock.errors import UsageError, ValueRefusedError

_NATIVE = (bytes, Decimal, UUID, dt.datetime, dt.date, dt.time, dt.timedelta)
_SCALARS = (str, int, float, bool, bytes, Decimal, UUID, dt.datetime, dt.date, dt.time, dt.timedelta)


class ValueType:
    """A resource's type: ``freeze`` and ``thaw`` for its values, and the types of elements for merges."""

    __slots__ = ("declared", "element", "freeze", "thaw")

    def __init__(
        self,
        declared: Any,
        freeze: Callable[[Any], bytes],
        thaw: Callable[[bytes], Any],
        element: Callable[[Any], bytes],
    ) -> None:
        self.declared = declared
        self.freeze = freeze
        self.thaw = thaw
        self.element = element


PLAIN: Final = ValueType(Any, codec.freeze, codec.thaw, codec.freeze_element)


def value_type(declared: Any) -> ValueType:
    """How to store values of ``declared`` (None or Any: the plain domain).

    Raises `UsageError` for a type that cannot be stored."""
    if declared is None or declared is Any:
        return PLAIN
    if declared in _SCALARS:
        return _scalar(declared)
    shape = _Shape(declared)
    return ValueType(declared, shape.freeze, shape.thaw, _element_freezer(declared))


def _scalar(declared: type) -> ValueType:
    freeze_any, thaw_any, name = codec.freeze, codec.thaw, declared.__name__

    def freeze(value: Any) -> bytes:
        if type(value) is not declared:
            raise ValueRefusedError(f"the resource holds {name}, not {type(value).__name__}")
        return freeze_any(value)

    def thaw(raw: bytes) -> Any:
        value = thaw_any(raw)
        if type(value) is not declared:
            raise ValueRefusedError(f"the stored value is a {type(value).__name__}; the resource is declared as {name}")
        return value

    return ValueType(declared, freeze, thaw, codec.freeze_element)


def _element_freezer(declared: Any) -> Callable[[Any], bytes]:
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is not list or len(arguments) != 1 or arguments[0] is Any:
        return codec.freeze_element
    shape = value_type(arguments[0])
    inner = _Shape(arguments[0])

    def freeze(value: Any) -> bytes:
        shape.freeze(value)
        return codec.freeze_element(inner.take_apart(value))

    return freeze


class _Shape:
    """One declared type: taking values apart into the plain domain, building them again, comparing."""

    __slots__ = ("_adapter", "declared", "name")

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        self.name = str(declared) if get_origin(declared) else getattr(declared, "__qualname__", str(declared))
        self._adapter: Any = None
        if _mentions_model(declared):
            from pydantic import TypeAdapter  # installed, since a model of it was handed in

            self._adapter = TypeAdapter(declared)
            return
        try:
            msgspec.inspect.type_info(declared)
        except Exception as error:
            raise UsageError(f"values of type {self.name} cannot be stored: {error}") from error

    def take_apart(self, value: Any) -> Any:
        return _plain(value, "$", 0)

    def build(self, plain: Any) -> Any:
        if self._adapter is not None:
            return self._adapter.validate_python(plain)
        return msgspec.convert(plain, self.declared, builtin_types=_NATIVE)

    def freeze(self, value: Any) -> bytes:
        raw = codec.freeze(self.take_apart(value))
        try:
            again = self.build(codec.thaw(raw))
        except Exception as error:
            raise ValueRefusedError(f"the value is not a valid {self.name}: {error}") from error
        path = difference(value, again, "$", 0)
        if path is not None:
            raise ValueRefusedError(f"the value would not come back as it is from the type {self.name}", path=path)
        return raw

    def thaw(self, raw: bytes) -> Any:
        plain = codec.thaw(raw)
        try:
            return self.build(plain)
        except Exception as error:
            raise ValueRefusedError(f"the stored value is not a valid {self.name}: {error}") from error


def _mentions_model(declared: Any) -> bool:
    if isinstance(declared, type) and hasattr(declared, "model_validate") and hasattr(declared, "model_fields"):
        return True
    if dataclasses.is_dataclass(declared) and hasattr(declared, "__pydantic_validator__"):
        return True
    return any(_mentions_model(argument) for argument in get_args(declared))


def _plain(value: Any, path: str, depth: int) -> Any:
    """Take dataclasses, structs and models apart, at any depth; leave everything else as it is."""
    if depth > codec.DEPTH:
        raise ValueRefusedError(f"nested deeper than {codec.DEPTH} levels, or a cycle", path=path)
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        items = [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        return items if kind is list else kind(items)
    if kind is dict:
        return {
            key: _plain(item, f"{path}.{key}" if type(key) is str else path, depth + 1) for key, item in value.items()
        }
    fields = codec.fields_of(value)
    if fields is None:
        return value
    names = getattr(kind, "__struct_encode_fields__", None)
    if names is not None:
        fields = dict(zip(names, fields.values(), strict=True))
        tag = getattr(getattr(kind, "__struct_config__", None), "tag", None)
        if tag is not None:
            fields = {kind.__struct_config__.tag_field: tag, **fields}
    return {name: _plain(item, f"{path}.{name}", depth + 1) for name, item in fields.items()}


def difference(given: Any, again: Any, path: str, depth: int) -> str | None:
    """The path of the first place where two values differ in type or content; None where they are the same."""
    kind = type(given)
    if kind is not type(again):
        return path
    if kind in (list, tuple):
        if len(given) != len(again):
            return path
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(given, again, strict=True))]
    elif kind is dict:
        if list(given) != list(again):
            return path
        pairs = [(f"{path}.{key}", given[key], again[key]) for key in given]
    else:
        states = _state(given), _state(again)
        if states[0] is None or states[1] is None:
            return None if given == again and _types(given) == _types(again) else path
        if states[0].keys() != states[1].keys():
            odd = sorted(states[0].keys() ^ states[1].keys())[0]
            return f"{path}.{odd}"
        pairs = [(f"{path}.{name}", item, states[1][name]) for name, item in states[0].items()]
    for where, a, b in pairs:
        found = difference(a, b, where, depth + 1)
        if found is not None:
            return found
    return None


def _types(value: Any) -> Any:
    return sorted(type(item).__qualname__ for item in value) if type(value) in (set, frozenset) else None


def _state(value: Any) -> dict[str, Any] | None:
    """Everything that an instance of a dataclass, struct or model holds: also extra and private attributes."""
    fields = codec.fields_of(value)
    if fields is None:
        return None
    state = dict(fields)
    state.update(getattr(value, "__dict__", {}))
    for hidden in ("__pydantic_extra__", "__pydantic_private__"):
        state.update(getattr(value, hidden, None) or {})
    return state
