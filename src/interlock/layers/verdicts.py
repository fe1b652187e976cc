"""What a probe says about an act whose reply was lost: it happened, it did not, or nobody can tell.

A ``verify`` function asks the outside world by the act's idempotency key and answers with one of the three. Sagas and
effects take the answer as it is; whatever else a probe returns, or an error of it, counts as `CANNOT_TELL`: an
interrupted act stays UNKNOWN until somebody knows."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, Generic

from typing_extensions import TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Happened(Generic[T_co]):
    """The act was done; ``result`` is what it would have returned."""

    result: T_co


class Doubt(enum.Enum):
    """The other two answers."""

    NOT_HAPPENED = "not happened"
    CANNOT_TELL = "cannot tell"


NOT_HAPPENED: Final = Doubt.NOT_HAPPENED
CANNOT_TELL: Final = Doubt.CANNOT_TELL

Verdict = Happened[Any] | Doubt


def as_verdict(answer: object) -> Verdict:
    """A probe's answer; `CANNOT_TELL` for anything that is not one."""
    return answer if isinstance(answer, Happened | Doubt) else CANNOT_TELL
