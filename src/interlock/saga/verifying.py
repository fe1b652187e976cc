"""Asking a step's ``verify`` whether an interrupted act took place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from interlock.layers.effects.answers import CANNOT_TELL, NOT_HAPPENED, Answer, Happened, check_answer
from interlock.saga.records import State, StepRecord

if TYPE_CHECKING:
    from interlock.saga.frames import Frame

log = logging.getLogger("interlock")


async def ask(frame: Frame, record: StepRecord) -> Answer[Any]:
    """The verdict on a step; `CANNOT_TELL` without a probe, and where the probe fails or takes too long."""
    verify = record.verify
    if verify is None:
        return CANNOT_TELL
    key = frame.step_key(record)

    async def probe() -> Any:
        answer = verify(key)
        if hasattr(type(answer), "__await__"):
            answer = await frame.world.settle(answer, f"verify of step {record.label()}")
        return answer

    try:
        return check_answer(await frame.world.limited(probe, frame.course.shield_seconds))
    except Exception as error:
        log.warning("verify of step %s failed, so it stays unknown: %r", record.label(), error)
        return CANNOT_TELL


async def settle(frame: Frame, record: StepRecord) -> None:
    """Let an UNKNOWN step become DONE or FAILED, if its probe knows."""
    verdict = await ask(frame, record)
    if isinstance(verdict, Happened):
        record.result, record.state = verdict.result, State.DONE
    elif verdict is NOT_HAPPENED:
        record.state = State.FAILED
