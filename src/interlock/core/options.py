"""The options of a transaction: one place where they are named, checked and given their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

import msgspec

from interlock.core import isolation as modes
from interlock.core.carrying import Fence
from interlock.core.isolation import Isolation
from interlock.core.retry import RetryPolicy
from interlock.errors import UsageError
from interlock.keys import NAME_BYTES, check_name


class SessionOptions(TypedDict, total=False):
    """The keywords of `session` and `begin`. All times are in seconds."""

    agent: str
    run_id: str
    isolation: Isolation
    idempotency_key: str | None
    idempotency_fingerprint: object
    timeout_seconds: float | None
    lock_timeout_seconds: float
    fence: Fence | None
    detached: bool


class Options(SessionOptions, total=False):
    """The keywords of `run`, `run_detailed`, `transactional` and `attempts`."""

    retry: RetryPolicy


class Chosen(msgspec.Struct, frozen=True):
    """Options after the checks; None where nothing was said."""

    agent: str | None = None
    run_id: str | None = None
    isolation: Isolation | None = None
    idempotency_key: str | None = None
    idempotency_fingerprint: object = None
    timeout_seconds: float | None = None
    lock_timeout_seconds: float = 10.0
    fence: Any = None
    detached: bool = False
    retry: RetryPolicy | None = None
    usual: bool = False
    """Whether a transaction of these options needs nothing but the store's own."""


DEFAULTS: Final = Chosen(usual=True)
_NAMES: Final = frozenset(Options.__annotations__)


def lone_key(given: Mapping[str, Any]) -> str | None:
    """The idempotency key of a call that says nothing else, if it is such as nearly all are; None: ask `choose`."""
    if len(given) == 1:
        key = given.get("idempotency_key")
        if type(key) is str and key.isascii() and 0 < len(key) <= NAME_BYTES and not key.isspace():
            return key
    return None


def says_nothing(given: Mapping[str, Any]) -> bool:
    """Whether the keywords of a call mean the same as none: no idempotency key is one that is None."""
    return not given or (len(given) == 1 and given.get("idempotency_key", "") is None)


def choose(given: Mapping[str, Any], *, retries: bool) -> Chosen:
    """Check the keywords of a call. Raises `UsageError` naming the option that is wrong."""
    if says_nothing(given):
        return DEFAULTS
    key = lone_key(given)
    if key is not None:
        return Chosen(idempotency_key=key, usual=True)
    unknown = [name for name in given if name not in _NAMES or (name == "retry" and not retries)]
    if unknown:
        known = ", ".join(sorted(_NAMES if retries else _NAMES - {"retry"}))
        raise UsageError(
            f"unknown option {unknown[0]!r}; there are {known}. A function's own keywords go through "
            f"functools.partial(fn, {unknown[0]}=...)"
        )
    chosen = Chosen(**given)
    for what in ("agent", "run_id", "idempotency_key"):
        value = given.get(what)
        if value is not None:
            check_name(what, value)
    if chosen.isolation is not None:
        modes.rank(chosen.isolation)
    seconds = chosen.timeout_seconds
    if seconds is not None and not (type(seconds) in (int, float) and seconds > 0):
        raise UsageError(f"timeout_seconds is a number above 0, not {seconds!r}")
    waits = chosen.lock_timeout_seconds
    if not (type(waits) in (int, float) and waits >= 0):
        raise UsageError(f"lock_timeout_seconds is a number from 0, not {waits!r}")
    if chosen.fence is not None and not hasattr(chosen.fence, "guards"):
        raise UsageError(f"fence is a lease or a lock, not {type(chosen.fence).__name__}")
    if chosen.idempotency_fingerprint is not None and chosen.idempotency_key is None:
        raise UsageError("idempotency_fingerprint= needs idempotency_key=")
    if chosen.retry is not None and type(chosen.retry) is not RetryPolicy:
        raise UsageError(f"retry is a RetryPolicy, not {type(chosen.retry).__name__}")
    return chosen
