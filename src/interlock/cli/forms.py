"""Keys and values as texts: how the command line reads and writes what JSON lacks, without losing anything.

A value is JSON. What JSON has no form for is an object with a single name that begins with ``$``:

    {"$decimal": "1.20"}   {"$bytes": "aGk="}   {"$uuid": "..."}   {"$tuple": [1, 2]}   {"$set": [1, 2]}
    {"$frozenset": []}     {"$date": "2026-11-30"}                 {"$timedelta": [days, seconds, microseconds]}
    {"$time": "10:00:00"}  {"$datetime": "2026-11-30T10:00:00+00:00"}
    {"$datetime": {"iso": "2026-11-30T10:00:00", "zone": "Europe/Berlin", "fold": 1}}     also with "name" of an offset

and a dict that happens to look like one of these is wrapped: {"$dict": {"$set": 1}}. Whole numbers are numbers, however
large. So `from_form(to_form(value))` is the value, with its type, for every value that a store can hold.

A key is written as itself. An argument that begins with ``[`` is a JSON list, the tuple key of those parts; one that
begins with ``"`` is a JSON text, for keys that could not be typed otherwise. `shown_key` writes a key so that
`parse_key` reads it.
"""

from __future__ import annotations

import datetime as dt
import json
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from interlock.codec import DEPTH
from interlock.errors import UsageError
from interlock.keys import UserKey

_BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


# --- writing ----------------------------------------------------------------------------------------------------------


def to_form(value: Any) -> Any:
    """A value of the store in what JSON has."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [to_form(item) for item in value]
    if kind is dict:
        form = {name: to_form(item) for name, item in value.items()}
        return {"$dict": form} if _looks_tagged(form) else form
    name, lower = _LOWER[kind]
    return {name: lower(value)}


def _looks_tagged(form: dict[str, Any]) -> bool:
    return len(form) == 1 and next(iter(form)).startswith("$")


def _items(value: Any) -> list[Any]:
    return [to_form(item) for item in value]


def _sorted_items(value: Any) -> list[Any]:
    """The elements of a set in an order that does not change from call to call."""
    return sorted(_items(value), key=json.dumps)


def _time_form(value: Any) -> Any:
    """An ISO text where that says everything, else an object with the zone, the offset's name or the fold."""
    zone = value.tzinfo
    more: dict[str, Any] = {"fold": 1} if value.fold else {}
    if isinstance(zone, ZoneInfo):
        more["zone"] = zone.key
        value = value.replace(tzinfo=None)
    elif zone is not None and (name := zone.tzname(None)) != dt.timezone(zone.utcoffset(None)).tzname(None):
        more["name"] = name
    return {"iso": value.isoformat(), **more} if more else value.isoformat()


_LOWER: Final[dict[type, tuple[str, Callable[[Any], Any]]]] = {
    Decimal: ("$decimal", str),
    bytes: ("$bytes", lambda value: b64encode(value).decode()),
    UUID: ("$uuid", str),
    tuple: ("$tuple", _items),
    set: ("$set", _sorted_items),
    frozenset: ("$frozenset", _sorted_items),
    dt.date: ("$date", dt.date.isoformat),
    dt.time: ("$time", _time_form),
    dt.datetime: ("$datetime", _time_form),
    dt.timedelta: ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
}


def json_text(form: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """JSON of a form. What could change how a terminal behaves or in which direction it writes is escaped."""
    text = json.dumps(form, ensure_ascii=ascii_only, indent=indent)
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character == "\n":  # only between the lines of an indented form; inside texts JSON has escaped it
        return character
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(character) in _BIDIRECTIONAL:
        return f"\\u{ord(character):04x}"
    return character


def printable(text: str) -> str:
    """A name as it is, or in quotes with escapes where it holds characters that a line cannot show."""
    return text if all(_visible(character) == character != "\n" for character in text) else json_text(text)


def shown_key(key: UserKey) -> str:
    """A key as `parse_key` reads it."""
    if type(key) is not str:
        return json_text(list(key))
    plain = printable(key)
    return plain if plain is key and key == key.strip() and key[:1] not in ('"', "[") else json_text(key)


def key_form(key: UserKey) -> Any:
    """A key in JSON: a text, or the list of its parts."""
    return key if type(key) is str else list(key)


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_key(text: str, *, raw: bool = False) -> UserKey:
    """The key that an argument means. Raises `UsageError`."""
    if raw or text[:1] not in ("[", '"'):
        return text
    try:
        form = _load(text)
    except UsageError as error:
        raise UsageError(
            f'{text!r:.80} is not a key: one that begins with [ or " is JSON ({error}); for the text as it stands add '
            "--raw-key"
        ) from None
    if isinstance(form, str):
        return form
    for part in form:
        if type(part) not in (str, int):
            raise UsageError(f"the parts of a key are texts and whole numbers, not {json.dumps(part):.80}")
    return tuple(form)


def parse_value(text: str) -> Any:
    """The value that a JSON text means. Raises `UsageError` with what is wrong and where."""
    return from_form(_load(text))


def _load(text: str) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(found)
        if len(out) < len(found):
            names = [name for name, _ in found]
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"the name {twice!r} occurs twice in one object")
        return out

    def constant(name: str) -> Any:
        raise UsageError(f"{name} cannot be stored: only finite numbers can")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise UsageError(f"not JSON: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, or nested too deeply
        raise UsageError(f"cannot be read: {error}") from None


def from_form(form: Any, path: str = "$", depth: int = 0) -> Any:
    """The value of a form. Raises `UsageError` naming the place of what has no meaning."""
    if depth > DEPTH:
        raise UsageError(f"{path}: nested deeper than {DEPTH} levels")
    if isinstance(form, list):
        return [from_form(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(form)]
    if not isinstance(form, dict):
        return form
    if not _looks_tagged(form):
        return {name: from_form(item, f"{path}.{name}", depth + 1) for name, item in form.items()}
    ((tag, inner),) = form.items()
    raise_up = _RAISE.get(tag)
    if raise_up is None:
        known = ", ".join(_RAISE)
        raise UsageError(f'{path}: no type {tag!r}; there are {known}; for a dict write {{"$dict": {{...}}}}')
    try:
        return raise_up(inner, path, depth)
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError) as error:
        raise UsageError(f"{path}: {json.dumps(inner):.80} is not a {tag[1:]} ({error})") from None


def _dict(form: Any, path: str, depth: int) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise TypeError("an object is needed")
    return {name: from_form(item, f"{path}.{name}", depth + 1) for name, item in form.items()}


def _list(form: Any, path: str, depth: int) -> list[Any]:
    if not isinstance(form, list):
        raise TypeError("a list is needed")
    return [from_form(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(form)]


def _set(form: Any, path: str, depth: int) -> set[Any]:
    out = set(items := _list(form, path, depth))
    if len(out) < len(items):
        raise ValueError("an element occurs twice")
    return out


def _text(form: Any) -> str:
    if not isinstance(form, str):
        raise TypeError("a text is needed")
    return form


def _moment(kind: Any) -> Callable[[Any, str, int], Any]:
    def build(form: Any, path: str, depth: int) -> Any:
        if isinstance(form, str):
            return kind.fromisoformat(form)
        if unknown := form.keys() - {"iso", "zone", "name", "fold"}:
            raise ValueError(f"unknown name {min(unknown)!r}")
        value = kind.fromisoformat(form["iso"]).replace(fold=form.get("fold", 0))
        if "zone" in form:
            return value.replace(tzinfo=ZoneInfo(form["zone"]))
        if "name" in form:
            return value.replace(tzinfo=dt.timezone(value.tzinfo.utcoffset(None), form["name"]))
        return value

    return build


def _timedelta(form: Any) -> dt.timedelta:
    days, seconds, microseconds = form
    return dt.timedelta(days=days, seconds=seconds, microseconds=microseconds)


_RAISE: Final[dict[str, Callable[[Any, str, int], Any]]] = {
    "$dict": _dict,
    "$decimal": lambda form, path, depth: Decimal(_text(form)),
    "$bytes": lambda form, path, depth: b64decode(_text(form), validate=True),
    "$uuid": lambda form, path, depth: UUID(_text(form)),
    "$tuple": lambda form, path, depth: tuple(_list(form, path, depth)),
    "$set": _set,
    "$frozenset": lambda form, path, depth: frozenset(_set(form, path, depth)),
    "$date": lambda form, path, depth: dt.date.fromisoformat(_text(form)),
    "$time": _moment(dt.time),
    "$datetime": _moment(dt.datetime),
    "$timedelta": lambda form, path, depth: _timedelta(form),
}
