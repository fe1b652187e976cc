"""What an object holds, kind by kind: how to copy it shallowly, put it back in place, and name its parts.

A snapshot never copies an object, only its *contents*: the items of a list, the attributes of an instance. Putting
the contents back leaves every object the one that it was, so identities, aliases, cycles and classes need no care of
their own. One `Kind` is chosen for each class and remembered. The base's own methods are used (``dict.update``, the
slot's descriptor), so that a subclass that guards its methods, or a frozen dataclass, is restored like any other.

An object is *kept by reference*, and named, where its contents are not Python's to see or not ours to turn back:
locks, sockets, files, generators, and everything else whose class is made in C; the classes of `RESOURCES`; and
whatever manages a resource, that is, can be closed or acquired and is a context manager.
"""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import enum
import fractions
import functools
import pathlib
import re
import types
import uuid
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

ATOMIC: Final = frozenset({
    bool, bytes, complex, float, int, str, type(None), type(...), type(NotImplemented), range, slice,
    dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone, decimal.Decimal, fractions.Fraction, uuid.UUID,
    type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, types.GenericAlias,
    types.MethodType, types.MethodWrapperType, types.WrapperDescriptorType, types.UnionType, re.Pattern, weakref.ref,
    property,
})  # fmt: skip
"""Classes whose objects never change, or are shared by the whole program."""

SHOWN: Final = 60
"""How much of a value's repr is shown."""

ATOMIC_BASES: Final = (
    bytes, complex, float, int, str, decimal.Decimal, fractions.Fraction, uuid.UUID, dt.date, dt.time,
)  # fmt: skip
"""The same for subclasses."""

RESOURCES: Final = frozenset({
    "aiohttp", "anyio", "asyncio", "asyncpg", "concurrent", "httpx", "interlock", "io", "logging", "multiprocessing",
    "psycopg", "queue", "redis", "requests", "selectors", "socket", "sqlite3", "ssl", "subprocess", "threading", "trio",
})  # fmt: skip
"""Packages whose objects manage something outside the state."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the objects of one class are handled.

    ``save`` makes a shallow copy of the contents, ``load`` puts one back in place, ``same`` says whether a copy still
    is what the object holds (by identity), ``parts`` gives (label, part) of a copy. ``children`` are the parts that a
    snapshot has to look into."""

    save: Callable[[Any], Any]
    load: Callable[[Any, Any], None]
    same: Callable[[Any, Any], bool]
    parts: Callable[[Any], Iterable[tuple[str, Any]]]
    children: Callable[[Any], Iterable[Any]]
    frozen: bool = False


def _identical(one: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))


def _same_list(one: Any, other: Any) -> bool:
    return len(one) == len(other) and _identical(one, other)


def _same_dict(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return len(one) == len(other) and _identical(one, other) and _identical(one.values(), other.values())


def _same_set(one: frozenset[Any], other: frozenset[Any]) -> bool:
    return len(one) == len(other) and {id(each) for each in one} == {id(each) for each in other}


def _list_parts(saved: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    return ((f"[{place}]", value) for place, value in enumerate(saved))


def _dict_parts(saved: dict[Any, Any]) -> Iterable[tuple[str, Any]]:
    return ((_key(key), value) for key, value in saved.items())


def _set_parts(saved: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    return ((f"{{{shown(value)}}}", value) for value in saved)


def shown(value: Any) -> str:
    """A short repr; that of the class where the object's own fails."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _key(key: Any) -> str:
    return f".{key}" if type(key) is str and key.isidentifier() else f"[{shown(key)}]"


def _dict_children(saved: dict[Any, Any]) -> Iterable[Any]:
    keys = [key for key in saved if type(key) not in ATOMIC]
    values = [value for value in saved.values() if type(value) not in ATOMIC]
    return keys + values if keys else values


def _children(saved: Iterable[Any]) -> Iterable[Any]:
    return [value for value in saved if type(value) not in ATOMIC]


def _load_dict(target: dict[Any, Any], saved: dict[Any, Any]) -> None:
    dict.clear(target)
    dict.update(target, saved)


def _load_ordered(target: collections.OrderedDict[Any, Any], saved: dict[Any, Any]) -> None:
    collections.OrderedDict.clear(target)
    for key, value in saved.items():
        collections.OrderedDict.__setitem__(target, key, value)


def _load_list(target: list[Any], saved: list[Any]) -> None:
    list.__setitem__(target, slice(None), saved)


def _load_set(target: set[Any], saved: frozenset[Any]) -> None:
    set.clear(target)
    set.update(target, saved)


def _load_deque(target: collections.deque[Any], saved: list[Any]) -> None:
    collections.deque.clear(target)
    collections.deque.extend(target, saved)


def _nothing(_target: Any, _saved: Any) -> None:
    """What never changes needs no restoring."""


def _always(_one: Any, _other: Any) -> bool:
    return True


def _no_parts(_saved: Any) -> Iterable[Any]:
    return ()


_save_dict: Callable[[Any], Any] = dict.copy
_save_list: Callable[[Any], Any] = list.copy

DICT: Final = Kind(_save_dict, _load_dict, _same_dict, _dict_parts, _dict_children)
LIST: Final = Kind(_save_list, _load_list, _same_list, _list_parts, _children)
SET: Final = Kind(frozenset, _load_set, _same_set, _set_parts, _children)
TUPLE: Final = Kind(lambda value: value, _nothing, _always, _list_parts, _children, frozen=True)
FROZEN_SET: Final = Kind(lambda value: value, _nothing, _always, SET.parts, _children, frozen=True)
DEQUE: Final = Kind(list, _load_deque, _same_list, _list_parts, _children)
BYTES: Final = Kind(
    bytes,
    lambda target, saved: target.__setitem__(slice(None), saved),
    lambda one, other: bool(one == other),
    lambda saved: [("", saved)],
    _no_parts,
)
ARRAY: Final = Kind(
    lambda value: value[:],
    BYTES.load,
    lambda one, other: bool(one.tobytes() == other.tobytes()),
    lambda saved: [("", saved)],
    _no_parts,
)
UNCHANGING: Final = Kind(lambda _value: (), _nothing, _always, _no_parts, _no_parts, frozen=True)
ORDERED: Final = Kind(
    lambda value: dict(value.items()),
    _load_ordered,
    _same_dict,
    _dict_parts,
    _dict_children,
)

BASES: Final[tuple[tuple[type, Kind], ...]] = (
    (collections.OrderedDict, ORDERED),
    (dict, DICT),
    (list, LIST),
    (set, SET),
    (tuple, TUPLE),
    (frozenset, FROZEN_SET),
    (collections.deque, DEQUE),
    (bytearray, BYTES),
    (array.array, ARRAY),
)
EXACT: Final[dict[type, Kind]] = dict(BASES)


def attributes_of(kind: type) -> Kind:
    """The kind of an instance's attributes: its ``__dict__`` and its slots."""
    slots = []
    for base in kind.__mro__:
        own = base.__dict__.get("__slots__", ())
        for name in (own,) if isinstance(own, str) else tuple(own):
            mangled = f"_{base.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name
            slot = base.__dict__.get(mangled)
            if isinstance(slot, types.MemberDescriptorType):
                slots.append((mangled, slot))
    named = tuple(slots)
    has_dict = kind.__dictoffset__ != 0

    def save(value: Any) -> dict[str, Any]:
        saved = dict.copy(value.__dict__) if has_dict else {}
        for name, slot in named:
            try:
                saved[name] = slot.__get__(value)
            except AttributeError:  # not set
                pass
        return saved

    def load(target: Any, saved: dict[str, Any]) -> None:
        left = dict(saved)
        for name, slot in named:
            if name in left:
                slot.__set__(target, left.pop(name))
            else:
                try:
                    slot.__delete__(target)
                except AttributeError:  # it is not set now either
                    pass
        if has_dict:
            _load_dict(target.__dict__, left)

    if not named and has_dict:
        return Kind(lambda value: dict.copy(value.__dict__), lambda target, saved: _load_dict(target.__dict__, saved),
                    _same_dict, _dict_parts, _dict_children)  # fmt: skip
    return Kind(save, load, _same_dict, _dict_parts, _dict_children)


def _struct_kind(kind: type[msgspec.Struct]) -> Kind:
    names = kind.__struct_fields__

    def save(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names if hasattr(value, name)}

    def load(target: Any, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            msgspec.structs.force_setattr(target, name, value)

    return Kind(save, load, _same_dict, _dict_parts, _dict_children)


def _with_attributes(kind: type, base: Kind) -> Kind:
    """A subclass of a container: its items and its own attributes."""
    own = attributes_of(kind)

    def load(target: Any, saved: tuple[Any, dict[str, Any]]) -> None:
        base.load(target, saved[0])
        own.load(target, saved[1])

    return Kind(
        lambda value: (base.save(value), own.save(value)),
        load,
        lambda one, other: base.same(one[0], other[0]) and own.same(one[1], other[1]),
        lambda saved: [*base.parts(saved[0]), *own.parts(saved[1])],
        lambda saved: [*base.children(saved[0]), *own.children(saved[1])],
    )


def _numpy_kind(kind: type) -> Kind | None:
    """Arrays of numpy, where the program has it: the buffer is copied, and written back in place."""
    if not any(base.__module__ == "numpy" and base.__name__ == "ndarray" for base in kind.__mro__):
        return None

    def load(target: Any, saved: Any) -> None:
        if target.shape != saved.shape:
            target.resize(saved.shape, refcheck=False)
        target[...] = saved

    def same(one: Any, other: Any) -> bool:
        return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())

    def children(saved: Any) -> Iterable[Any]:
        return _children(saved.flat) if saved.dtype.hasobject else ()

    return Kind(lambda value: value.copy(), load, same, lambda saved: [("", saved)], children)


def _manages_something(kind: type) -> bool:
    entered = hasattr(kind, "__enter__") or hasattr(kind, "__aenter__")
    ended = any(callable(getattr(kind, name, None)) for name in ("close", "aclose", "shutdown", "release", "terminate"))
    return entered and ended


def _made_in_python(kind: type) -> bool:
    """Whether every base down to `object` is a Python class; the test of `copyreg` for what can be rebuilt."""
    for base in kind.__mro__:
        if not base.__flags__ & (1 << 9):  # Py_TPFLAGS_HEAPTYPE
            return base is object
        made = base.__dict__.get("__new__")
        if isinstance(made, types.BuiltinFunctionType) and made.__self__ is base:
            return False
    return True


@functools.lru_cache(maxsize=4096)
def kind_of(kind: Any) -> Kind | None:
    """How objects of a class are handled; None: kept by reference. Atomic classes are not asked about."""
    found = EXACT.get(kind)
    if found is not None:
        return found
    if issubclass(kind, type | enum.Enum | pathlib.PurePath | dt.tzinfo):
        return UNCHANGING
    if issubclass(kind, msgspec.Struct):
        return _struct_kind(kind)
    numpy_kind = _numpy_kind(kind)
    if numpy_kind is not None:
        return numpy_kind
    for base, handled in BASES:
        if issubclass(kind, base):
            inner = handled if base is not tuple and base is not frozenset else _sequence(handled)
            return _with_attributes(kind, inner)
    if issubclass(kind, ATOMIC_BASES) or kind.__module__ == "numpy":  # numpy's scalars
        return UNCHANGING
    if kind.__module__.partition(".")[0] in RESOURCES or _manages_something(kind) or not _made_in_python(kind):
        return None
    if kind.__dictoffset__ == 0 and not any("__slots__" in base.__dict__ for base in kind.__mro__):
        return UNCHANGING if kind is object else None
    return attributes_of(kind)


def _sequence(handled: Kind) -> Kind:
    return Kind(handled.save, _nothing, _always, handled.parts, handled.children, frozen=True)
