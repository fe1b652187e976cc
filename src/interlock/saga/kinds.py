"""The sorts of records in the journal of a durable saga, and the fields that each of them has.

They are checked where a record is read, so that damage is a `BackendCorruptError` there and no surprise later on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from interlock.errors import BackendCorruptError
from interlock.layers.ledger import Kind
from interlock.model import Entry


@dataclass(frozen=True, slots=True)
class JournalKind(Kind):
    """Records that are dicts. ``required`` and ``optional``: field -> the types that its value may have; so that
    nobody who reads a record trips over a damaged one later on."""

    required: Mapping[str, tuple[type, ...]] = field(default_factory=dict, compare=False)
    optional: Mapping[str, tuple[type, ...]] = field(default_factory=dict, compare=False)

    def load(self, entry: Entry | None) -> Any:
        """See `Kind.load`."""
        value = Kind.load(self, entry)
        if value is None:
            return None
        if type(value) is not dict:
            raise BackendCorruptError(f"a record of kind {self.name!r} holds {type(value).__name__} instead of fields")
        for name, types in self.required.items():
            if type(value.get(name)) not in types:
                raise BackendCorruptError(f"a record of kind {self.name!r} has no good {name!r}")
        for name, types in self.optional.items():
            if value.get(name) is not None and type(value[name]) not in types:
                raise BackendCorruptError(f"a record of kind {self.name!r} has no good {name!r}")
        return value


SAGAS: Final = JournalKind(
    "saga",
    required={"status": (str,), "run": (int,), "agent": (str,), "at": (float, int)},
    optional={"on_crash": (str,)},
)
STEPS: Final = JournalKind(
    "sagastep",
    required={"status": (str,), "order": (int,), "label": (str,)},
    optional={
        "fn": (str,), "key": (str,), "kind": (str,), "undo": (str,), "verify": (str,), "plan": (list, tuple),
        "kept": (dict,), "positional": (list, tuple), "arguments": (list, tuple), "result": (list, tuple),
        "retry": (list, tuple, dict),
    },
)  # fmt: skip
LETTERS: Final = JournalKind(
    "sagaletter",
    required={"name": (str,), "id": (str,), "run": (int,), "place": (int, str), "step": (str,)},
)
