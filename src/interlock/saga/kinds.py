"""The sorts of records in the journal of a durable saga, and the fields that each of them has.

They are checked where a record is read, so that damage is a `BackendCorruptError` there and no surprise later on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from interlock import codec
from interlock.errors import BackendCorruptError, ValueRefusedError
from interlock.layers.ledger import Kind
from interlock.model import Entry
from interlock.saga.shapes import check_step

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

Fields = Mapping[str, tuple[type, ...]]
"""Field -> the types that its value may have."""


@dataclass(frozen=True, slots=True)
class JournalKind(Kind):
    """Records that are dicts. ``required`` and ``optional``: so that nobody who reads a record trips over a damaged one
    later on."""

    required: Fields = field(default_factory=dict, compare=False)
    optional: Fields = field(default_factory=dict, compare=False)

    def load(self, entry: Entry | None) -> Any:
        """See `Kind.load`."""
        if entry is None or entry.value is None:
            return None
        value = Kind.load(self, entry)
        check_fields(value, self.name, self.required, self.optional)
        return value


@dataclass(frozen=True, slots=True)
class PageKind(Kind):
    """Records that are lists of steps, each in a stored form of its own: (place, fields)."""

    def load(self, entry: Entry | None) -> dict[int | str, tuple[bytes, dict[str, Any]]] | None:
        """Place -> the step's stored form and its fields. Raises as `Kind.load` does."""
        if entry is None or entry.value is None:
            return None
        value = Kind.load(self, entry)
        if type(value) is not list:
            raise BackendCorruptError(f"a record of kind {self.name!r} holds {type(value).__name__} instead of steps")
        found: dict[int | str, tuple[bytes, dict[str, Any]]] = {}
        for raw in value:
            try:
                place, step = unpack(raw)
            except (ValueError, TypeError, LookupError, BackendCorruptError, ValueRefusedError) as error:
                raise BackendCorruptError(
                    f"a step in a record of kind {self.name!r} cannot be read: {error}"
                ) from error
            if type(place) not in (int, str):
                raise BackendCorruptError(f"a step in a record of kind {self.name!r} has no good place")
            check_fields(step, self.name, STEP, STEP_OPTIONAL)
            check_step(step)
            found[place] = raw, step
        return found


def pack(value: tuple[Any, ...]) -> bytes:
    """A tuple of plain data as msgpack alone; where there is something that msgpack does not keep as it is, the codec's
    form, which begins with a letter, as no container does in msgpack. Raises as `codec.freeze` does."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return codec.freeze(value)


def unpack(raw: bytes) -> Any:
    """The value of either form; a list may come in the place of the tuple. Raises as `codec.thaw` does, `ValueError`,
    and `TypeError` for what is no bytes."""
    return codec.thaw(raw) if raw[:1] == b"m" else _decode(raw)


def check_fields(value: Any, name: str, required: Fields, optional: Fields) -> None:
    """Raises `BackendCorruptError` for what is no dict with these fields."""
    if type(value) is not dict:
        raise BackendCorruptError(f"a record of kind {name!r} holds {type(value).__name__} instead of fields")
    for field_name, types in required.items():
        if type(value.get(field_name)) not in types:
            raise BackendCorruptError(f"a record of kind {name!r} has no good {field_name!r}")
    for field_name, types in optional.items():
        if value.get(field_name) is not None and type(value[field_name]) not in types:
            raise BackendCorruptError(f"a record of kind {name!r} has no good {field_name!r}")


def label_of(place: int | str, step: Mapping[str, Any]) -> str:
    """What reports call a recorded step: as its record says, and where it says nothing, its id or its function's
    name."""
    label: str | None = step.get("label")
    if label is not None:
        return label
    return place if type(place) is str else name_in(step["fn"])


def name_in(path: str) -> str:
    """The last part of a function's name in a journal."""
    return path.rpartition(":")[2].rpartition(".")[2]


STEP: Final[Fields] = {"status": (str,), "order": (int,)}
STEP_OPTIONAL: Final[Fields] = {
    "label": (str,), "fn": (str,), "key": (str,), "kind": (str,), "undo": (str,), "verify": (str,),
}  # fmt: skip
SAGAS: Final = JournalKind(
    "saga",
    schema=2,
    count=2,
    required={"status": (str,), "run": (int,), "agent": (str,), "at": (float, int)},
    optional={"on_crash": (str,), "owner": (str,), "lease": (float, int)},
)
PAGES: Final = PageKind("sagapage")
LETTERS: Final = JournalKind(
    "sagaletter",
    schema=2,
    count=1,
    required={
        "name": (str,),
        "id": (str,),
        "run": (int,),
        "place": (int, str),
        "page": (int,),
        "step": (str,),
        "why": (str,),
        "error": (str,),
    },
)
