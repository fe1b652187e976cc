"""Asking what became of an act: the probe's call, and the record after it has said that it happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock import codec
from interlock.errors import LimitExceededError, ValueRefusedError
from interlock.layers.effects.answers import CANNOT_TELL, Answer, Happened, Verdict
from interlock.layers.effects.records import SUCCEEDED, Stored


async def ask(verify: Callable[[str], Any], key: str) -> tuple[Answer[Any], Exception | None]:
    """What a probe says; CANNOT_TELL if it raises, and what it raised, or if it says something else."""
    try:
        answer = verify(key)
        if hasattr(answer, "__await__"):
            answer = await answer
    except Exception as error:
        return CANNOT_TELL, error
    return answer if isinstance(answer, Happened | Verdict) else CANNOT_TELL, None


def happened(stored: Stored, answer: Happened[Any], at: float) -> Stored:
    """The record of an effect of which a probe, or somebody who looked, says that it happened."""
    try:
        result, error = codec.freeze(answer.result), None
    except (ValueRefusedError, LimitExceededError) as refused:
        result, error = None, f"its result could not be stored: {refused}"
    return stored.moved(SUCCEEDED, updated_at=at, result=result, error=error)
