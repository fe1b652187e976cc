"""What a ``verify`` probe may answer: it happened (with this result), it did not happen, it cannot tell.

A probe asks the outside world, by the key that was handed to the act, what became of an act whose end nobody
recorded. Only its NOT_HAPPENED makes a second execution possible, so a probe that is not sure says CANNOT_TELL."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from interlock.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Happened(Generic[T]):
    """The act has been done; ``result`` is what it would have returned."""

    result: T


class Verdict(enum.Enum):
    """The answers of a probe that bring no result."""

    NOT_HAPPENED = "not happened"
    """The act has not been done, and what is left of the first attempt can no longer do it."""
    CANNOT_TELL = "cannot tell"
    """Nobody knows yet; nothing is done."""


NOT_HAPPENED: Final = Verdict.NOT_HAPPENED
CANNOT_TELL: Final = Verdict.CANNOT_TELL

Answer = Happened[T] | Verdict


def check_answer(answer: Any) -> Happened[Any] | Verdict:
    """An answer as it is. Raises `UsageError` for anything else, so that a probe that forgets to answer decides
    nothing."""
    if type(answer) is Happened or type(answer) is Verdict:
        return answer
    raise UsageError(f"verify answers Happened(result), NOT_HAPPENED or CANNOT_TELL, not {answer!r:.80}")
