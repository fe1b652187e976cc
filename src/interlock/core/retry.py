"""When a transaction runs again, and after how long: pure decisions.

Only errors marked ``retryable`` lead to another attempt, also where every leaf of an exception group is one.
Cancellation, KeyboardInterrupt and every error of the body itself go straight to the caller. Waits are exponential,
capped, with full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015): ``uniform(0,
min(cap, base * 2 ** n))``. The first retry does not wait: inside the process it queues at the hot key's gate
(`interlock.gates`) instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from interlock.errors import InterlockError, UsageError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to go on after conflicts.

    Args:
        max_attempts: how often the function may run in all, at least 1.
        max_seconds: no attempt begins later than this after the first.
        base_seconds: the longest wait before the third attempt; it doubles from there.
        cap_seconds: the longest wait of all.
        escalate_after: after so many attempts that lost, and work of some weight (see `escalates`), everything that
            was read and written so far is locked before the next one begins, so that it ends.

    Raises: `UsageError` if a limit makes no sense.
    """

    max_attempts: int = 20
    max_seconds: float = 300
    base_seconds: float = 0.01
    cap_seconds: float = 1
    escalate_after: int = 5

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise UsageError(f"max_attempts is a whole number from 1, not {self.max_attempts!r}")
        if type(self.escalate_after) is not int or self.escalate_after < 1:
            raise UsageError(f"escalate_after is a whole number from 1, not {self.escalate_after!r}")
        for name in ("max_seconds", "base_seconds", "cap_seconds"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                raise UsageError(f"{name} is a number of seconds from 0, not {value!r}")


def backoff_seconds(policy: RetryPolicy, failures: int, uniform: Callable[[float, float], float]) -> float:
    """How long to wait after the n-th failed attempt (from 1)."""
    if failures < 2:
        return 0.0
    return uniform(0.0, min(policy.cap_seconds, policy.base_seconds * 2.0 ** min(failures - 2, 60)))


HEAVY_SECONDS: Final = 0.25
"""Work burnt in lost attempts from which a transaction counts as heavy."""
LIGHT_FACTOR: Final = 3
"""How many times as often as a heavy one a light transaction may lose before it is escalated."""


def escalates(policy: RetryPolicy, failures: int, burnt_seconds: float) -> bool:
    """Whether the next attempt is to be shielded by locks: by the work that was burnt, not by attempts alone.

    A transaction of a millisecond that loses often is better served by the queue of its hot key; one that thinks for
    seconds among short ones would lose for ever."""
    heavy = burnt_seconds >= HEAVY_SECONDS
    return failures >= policy.escalate_after * (1 if heavy else LIGHT_FACTOR)


def retryable_cause(error: BaseException) -> InterlockError | None:
    """The error that justifies another attempt: ``error`` itself, or a leaf of a group whose leaves all do."""
    if isinstance(error, InterlockError):
        return error if error.retryable else None
    if isinstance(error, BaseExceptionGroup):
        causes = [retryable_cause(inner) for inner in error.exceptions]
        if all(causes):
            return causes[0]
    return None
