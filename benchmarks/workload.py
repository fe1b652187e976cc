"""What every cell does: read a text of 200 characters, change it, write it back, on keys that no other task uses.

Keys are disjoint, so that nothing is ever refused and a cell measures the cost of safety, not of conflicts. Every cell,
floors included, stores values as msgpack and reads them back as new objects, because a store that hands out its own
objects is not safe.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

RESOURCE: Final = "stock"
AGENT: Final = "picker"
OPERATION: Final = "benchmarks.reserve"
VALUE: Final = "".join(chr(97 + i % 26) for i in range(200))
KEYS_OF_A_TASK: Final = 200

pack: Final = msgspec.msgpack.Encoder().encode
unpack: Final[Any] = msgspec.msgpack.Decoder().decode


def changed(text: str) -> str:
    """The text that replaces a text: as long, and different."""
    return text[-1] + text[:-1]


def keys_of(task: int) -> list[str]:
    """The keys of one task."""
    return [f"article-{task}-{i}" for i in range(KEYS_OF_A_TASK)]


def all_keys(tasks: int) -> list[str]:
    """The keys of all tasks."""
    return [key for task in range(tasks) for key in keys_of(task)]
