"""How much of what depends on chance a run tries: little by hand, more in continuous integration, most in a soak.

Some tests look for what only shows at some moments (where a process is killed, who comes first, what chance makes):
more rounds find more. By hand, with `make test`, they make few, so that everything is run within minutes. In continuous
integration (the environment variable ``CI``) they make as many as the documentation says. With ``make soak`` those
with the mark ``soak`` go on for as long as one likes: ``INTERLOCK_SOAK`` makes them long, up to all their rounds with
the value 1.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final, TypeVar

T = TypeVar("T")

THOROUGH: Final = bool(os.environ.get("CI") or os.environ.get("INTERLOCK_SOAK"))
"""Whether this run is one of continuous integration or of a soak."""


def rounds(brief: int, long: int, by_hand: int | None = None) -> int:
    """How many rounds this run makes: ``by_hand``, in continuous integration ``brief``, in a soak up to ``long``."""
    if by_hand is not None and not THOROUGH:
        return by_hand
    return brief + round((long - brief) * min(1.0, float(os.environ.get("INTERLOCK_SOAK") or 0.0)))


def usual(thorough: T, by_hand: T) -> T:
    """What continuous integration takes, or what is taken by hand."""
    return thorough if THOROUGH else by_hand


def moments(first: int = 1) -> Iterator[int]:
    """The numbers of the moments at which something is done to a process: each, or by hand every sixth."""
    return itertools.count(first, usual(1, 6))
