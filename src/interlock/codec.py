"""Values as stored bytes and back: exact, or refused with the path before anything is written.

What comes back has the same type and value as what went in. The domain: None, bool, int of any size up to 4,000 digits,
finite float, str, bytes, list, tuple, dict with str keys, set, frozenset, Decimal, UUID, date, time, datetime and
timedelta with their zone. Subclasses (an OrderedDict, an IntEnum) are outside it, because they would come back as
something else. Never pickle.

The stored form begins with a tag byte and is chosen so that an engine can merge without knowing Python:

- ``i``: an int in decimal digits; ``d``: a Decimal in its own text;
- ``l``: a list, each element as its length (4 bytes, big end first) and its msgpack; appending is concatenation;
- ``s``: a set of str, bytes and int, framed the same, sorted and unique;
- ``m``: msgpack for everything else, with extension types for what msgpack lacks.

Equal values have equal bytes, except that a dict keeps the order of its keys; `canonical` ignores that order, for
fingerprints.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from interlock.errors import BackendCorruptError, LimitExceededError, ValueRefusedError

DIGITS: Final = 4000
"""The most decimal digits that an int may have (Python itself refuses to print more than 4,300)."""
DEPTH: Final = 100
"""The deepest nesting of containers."""
VALUE_BYTES: Final = 1 << 20
"""The most bytes of one stored value."""

_I64 = 1 << 63
_COPIED_BYTES = 4096  # below this a copy is cheaper than a view
_TOO_LARGE = 10**DIGITS
_Ext = msgspec.msgpack.Ext
_INT, _DECIMAL, _UUID, _TUPLE, _SET, _FROZENSET, _DATETIME, _DATE, _TIME, _TIMEDELTA = range(1, 11)
_ELEMENTS = frozenset((str, bytes, int))
_AS_THEY_ARE = frozenset((bool, type(None), bytes))
_NEVER_LOWERED = frozenset((str, bool, type(None), bytes))
_PLAIN = frozenset((str, int, bool, type(None), bytes, float))


def _raise_up(code: int, data: memoryview) -> Any:
    build = _BUILD.get(code)
    if build is None:
        raise ValueError(f"unknown extension type {code}")
    return build(bytes(data))


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(ext_hook=_raise_up).decode


def _zone_form(zone: dt.tzinfo | None, path: str) -> Any:
    """None, ["z", key] or ["o", microseconds, name or None]; refused where the zone could not come back exactly."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return ["o", offset // dt.timedelta(microseconds=1), None if dt.timezone(offset).tzname(None) == name else name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return ["z", zone.key]
    raise ValueRefusedError(f"a zone of class {type(zone).__qualname__} cannot be stored", path=path)


def _zone(form: Any) -> dt.tzinfo | None:
    if form is None:
        return None
    if form[0] == "z":
        return ZoneInfo(form[1])
    offset = dt.timedelta(microseconds=form[1])
    return dt.timezone(offset) if form[2] is None else dt.timezone(offset, form[2])


def _datetime(raw: bytes) -> dt.datetime:
    year, month, day, hour, minute, second, micro, fold, zone = _unpack(raw)
    return dt.datetime(year, month, day, hour, minute, second, micro, _zone(zone), fold=fold)


def _time(raw: bytes) -> dt.time:
    hour, minute, second, micro, fold, zone = _unpack(raw)
    return dt.time(hour, minute, second, micro, _zone(zone), fold=fold)


_BUILD: Final[dict[int, Any]] = {
    _INT: int,
    _DECIMAL: lambda raw: Decimal(raw.decode()),
    _UUID: lambda raw: UUID(bytes=raw),
    _TUPLE: lambda raw: tuple(_unpack(raw)),
    _SET: lambda raw: set(_unpack(raw)),
    _FROZENSET: lambda raw: frozenset(_unpack(raw)),
    _DATETIME: _datetime,
    _DATE: lambda raw: dt.date(*_unpack(raw)),
    _TIME: _time,
    _TIMEDELTA: lambda raw: dt.timedelta(*_unpack(raw)),
}


def _lower(value: Any, path: str, depth: int) -> Any:
    """The value in types that msgpack keeps exactly; the object itself where nothing has to change."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value, path)
        return value
    if kind is int:
        return value if -_I64 <= value < _I64 else _Ext(_INT, _digits(value, path))
    if value is None or kind is bool or kind is bytes:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueRefusedError(f"{value} cannot be stored: only finite floats are equal to themselves", path=path)
        return value
    if depth > DEPTH:
        raise ValueRefusedError(f"nested deeper than {DEPTH} levels, or a cycle", path=path)
    lower = _LOWER.get(kind)
    if lower is None:
        raise ValueRefusedError(_why_not(value), path=path)
    return lower(value, path, depth)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueRefusedError("half a surrogate pair cannot be stored", path=path) from None


def _digits(value: int, path: str) -> bytes:
    if abs(value) >= _TOO_LARGE:
        raise ValueRefusedError(f"an int of more than {DIGITS} digits cannot be stored", path=path)
    return b"%d" % value


def _why_not(value: Any) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    for base in kind.__mro__[1:]:
        if base in _LOWER or base in (str, int, float, bytes):
            return f"a {name} cannot be stored exactly: it would come back as a {base.__name__}; convert it first"
    return (
        f"a {name} cannot be stored; give the resource a type (dataclass, pydantic model, msgspec struct) or convert it"
    )


def _lower_dict(value: dict[Any, Any], path: str, depth: int) -> Any:
    out = value
    for key, item in value.items():
        if type(key) is not str:
            raise ValueRefusedError(f"the keys of a dict are str, not {type(key).__name__}{_brief(key)}", path=path)
        if not key.isascii():
            _check_text(key, path)
        kind = type(item)
        if kind in _AS_THEY_ARE or (kind is str and item.isascii()) or (kind is int and -_I64 <= item < _I64):
            continue
        low = _lower(item, f"{path}.{key}", depth + 1)
        if low is not item:
            if out is value:
                out = dict(value)
            out[key] = low
    return out


def _brief(key: Any) -> str:
    try:
        return f" ({key!r:.40})"
    except Exception:  # an int of more digits than Python prints, or a repr of the user's that fails
        return ""


def _lower_items(value: Any, path: str, depth: int) -> list[Any]:
    out = []
    for place, item in enumerate(value):
        kind = type(item)
        if kind in _AS_THEY_ARE or (kind is str and item.isascii()) or (kind is int and -_I64 <= item < _I64):
            out.append(item)
        else:
            out.append(_lower(item, f"{path}[{place}]", depth + 1))
    return out


def _lower_set(value: Any, path: str, depth: int) -> bytes:
    """Sorted by stored form, so that equal sets have equal bytes."""
    rows = sorted(_pack(_lower(item, path + "{}", depth + 1)) for item in value)
    return _header(len(rows)) + b"".join(rows)


def _header(count: int) -> bytes:
    return bytes((0xDD,)) + count.to_bytes(4, "big")  # msgpack: array 32


def _lower_decimal(value: Decimal, path: str, depth: int) -> Any:
    return _Ext(_DECIMAL, _decimal_text(value, path))


def _decimal_text(value: Decimal, path: str) -> bytes:
    if not value.is_finite():
        raise ValueRefusedError(f"Decimal('{value}') cannot be stored: only finite numbers can", path=path)
    text = str(value)
    if len(text) > DIGITS:
        raise ValueRefusedError(f"a Decimal of more than {DIGITS} characters cannot be stored", path=path)
    return text.encode()


def _lower_datetime(value: dt.datetime, path: str, depth: int) -> Any:
    parts = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold]
    return _Ext(_DATETIME, _pack([*parts, _zone_form(value.tzinfo, path)]))


def _lower_time(value: dt.time, path: str, depth: int) -> Any:
    parts = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    return _Ext(_TIME, _pack([*parts, _zone_form(value.tzinfo, path)]))


_LOWER: Final[dict[type, Any]] = {
    dict: _lower_dict,
    list: _lower_items,
    tuple: lambda value, path, depth: _Ext(_TUPLE, _pack(_lower_items(value, path, depth))),
    set: lambda value, path, depth: _Ext(_SET, _lower_set(value, path, depth)),
    frozenset: lambda value, path, depth: _Ext(_FROZENSET, _lower_set(value, path, depth)),
    Decimal: _lower_decimal,
    UUID: lambda value, path, depth: _Ext(_UUID, value.bytes),
    dt.datetime: _lower_datetime,
    dt.date: lambda value, path, depth: _Ext(_DATE, _pack([value.year, value.month, value.day])),
    dt.time: _lower_time,
    dt.timedelta: lambda value, path, depth: _Ext(_TIMEDELTA, _pack([value.days, value.seconds, value.microseconds])),
}


def _pack_plainly(value: tuple[Any, ...]) -> bytes | None:
    """A tuple of what msgpack keeps as it is; None if a text is not one, which is then refused with its path."""
    try:
        return b"m" + _pack(_Ext(_TUPLE, _pack(value)))
    except UnicodeEncodeError:
        return None


def freeze(value: Any) -> bytes:
    """The stored form of a value. Raises `ValueRefusedError` with the path, `LimitExceededError` over `VALUE_BYTES`."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value, "$")
        raw = b"m" + _pack(value)
    elif kind is int:
        return b"i" + (b"%d" % value if -_I64 <= value < _I64 else _digits(value, "$"))
    elif kind is tuple and _NEVER_LOWERED.issuperset(map(type, value)) and (plain := _pack_plainly(value)) is not None:
        raw = plain
    elif kind is list:
        raw = b"l" + frame(_pack(_lower(item, f"$[{i}]", 1)) for i, item in enumerate(value))
    elif kind is Decimal:
        raw = b"d" + _decimal_text(value, "$")
    elif kind is set and all(type(item) in _ELEMENTS for item in value):
        raw = b"s" + frame(sorted(_pack(_lower(item, "${}", 1)) for item in value))
    else:
        raw = b"m" + _pack(_lower(value, "$", 0))
    size = len(raw)
    if size > VALUE_BYTES:
        del raw  # or the error's traceback would keep it in memory for as long as anybody keeps the error
        raise too_large(size)
    return raw


def freeze_plain(value: tuple[Any, ...]) -> bytes:
    """The stored form of a tuple in which there is nothing below the top that msgpack does not keep as it is: the bytes
    of `freeze`, for a caller who knows that. Raises as `freeze` does."""
    try:
        raw = b"m" + _pack(_Ext(_TUPLE, _pack(value)))
    except (UnicodeEncodeError, OverflowError):
        return freeze(value)
    if len(raw) > VALUE_BYTES:
        raise too_large(len(raw))
    return raw


def too_large(size: int) -> LimitExceededError:
    """The error for a stored value of ``size`` bytes."""
    return LimitExceededError(
        f'a stored value of {size} bytes is larger than {VALUE_BYTES}; split it over keys, as in ("log", n)',
        limit="value_bytes",
        allowed=VALUE_BYTES,
        found=size,
    )


def freeze_element(value: Any, path: str = "$") -> bytes:
    """The form of one element of a stored list or set: msgpack without a tag."""
    raw: bytes = _pack(_lower(value, path, 1))
    if len(raw) > VALUE_BYTES:
        raise too_large(len(raw))
    return raw


def freeze_member(value: Any) -> bytes:
    """The form of one element of a set that is merged: only str, bytes and int, which every engine can compare."""
    if type(value) not in _ELEMENTS:
        raise ValueRefusedError(f"merged sets hold str, bytes and int, not {type(value).__name__}")
    return freeze_element(value)


def frame(rows: Any) -> bytes:
    """Rows, each behind its length in 4 bytes."""
    return b"".join([part for row in rows for part in (len(row).to_bytes(4, "big"), row)])


def unframe(raw: bytes, place: int = 1) -> list[bytes]:
    """The rows of a framed form. Raises `ValueError` if it is torn."""
    rows = []
    while place < len(raw):
        end = place + 4 + int.from_bytes(raw[place : place + 4], "big")
        if end > len(raw):
            raise ValueError("a stored list or set is torn")
        rows.append(raw[place + 4 : end])
        place = end
    return rows


def thaw(raw: bytes) -> Any:
    """The value of a stored form: a new object at each call. Raises `BackendCorruptError` for bytes that `freeze` never
    makes."""
    try:
        if raw[0] == 0x6D:  # b"m"; cheaper than a slice
            return _unpack(raw[1:]) if len(raw) < _COPIED_BYTES else _unpack(memoryview(raw)[1:])
        tag = raw[:1]
        if tag == b"i":
            return int(raw[1:])
        if tag == b"l":
            return [_unpack(row) for row in unframe(raw)]
        if tag == b"d":
            return Decimal(raw[1:].decode())
        if tag == b"s":
            return {_unpack(row) for row in unframe(raw)}
    except (ValueError, ArithmeticError, TypeError, RecursionError, LookupError) as error:
        raise BackendCorruptError(f"a stored value cannot be read, its bytes are damaged: {error}") from error
    raise BackendCorruptError(f"a stored value cannot be read, it begins with {tag!r}")


def canonical(value: Any) -> bytes:
    """Bytes that are equal for equal values, whatever the order of a dict's keys: for fingerprints.

    Dataclasses, msgspec structs and pydantic models count by class name and fields. Raises `ValueRefusedError`."""
    return freeze(_sorted(value, "$", 0))


def _sorted(value: Any, path: str, depth: int) -> Any:
    if depth > DEPTH:
        raise ValueRefusedError(f"nested deeper than {DEPTH} levels, or a cycle", path=path)
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        if any(type(key) is not str for key in value):
            raise ValueRefusedError("the keys of a dict are str", path=path)
        return {key: _sorted(value[key], f"{path}.{key}", depth + 1) for key in sorted(value)}
    if kind in (list, tuple):
        return kind(_sorted(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value))
    fields = fields_of(value)
    if fields is not None:
        named = {name: _sorted(item, f"{path}.{name}", depth + 1) for name, item in sorted(fields.items())}
        return (f"{kind.__module__}.{kind.__qualname__}", named)
    return value


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass instance, msgspec struct or pydantic model; None for anything else."""
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__ if hasattr(value, name)}
    if hasattr(kind, "__struct_fields__"):
        return {name: getattr(value, name) for name in kind.__struct_fields__}
    if hasattr(kind, "model_fields") and hasattr(kind, "model_validate"):
        return {name: getattr(value, name) for name in kind.model_fields}
    return None
