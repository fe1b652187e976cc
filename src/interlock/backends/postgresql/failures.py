"""PostgreSQL's errors in our words, by their SQLSTATE. No driver's error ever leaves the backend.

An error that the server reports for a statement means that the statement's transaction is rolled back: nothing was
written. If the connection breaks instead, or the server says that it is going away, nobody can tell what became of a
commit that was under way.
"""

from __future__ import annotations

from typing import Final

from interlock.errors import (
    BackendCorruptError,
    BackendError,
    BackendUnavailableError,
    CommitUnknownError,
    InterlockError,
    SchemaMismatchError,
    UsageError,
)

ONCE: Final = "transaction_once"
"""The constraint that lets an id be recorded once."""

_LOST: Final = ("08", "57P01", "57P02", "57P05")
_RETRYABLE: Final = ("40", "53", "55", "57", "25006", "25P0", "IL")
_DAMAGED: Final = ("XX001", "XX002")
_UNPREPARED: Final = ("26000", "42P05")
_MISSING: Final = ("42P01", "42883", "3F000", "42703")


class DuplicateId(Exception):
    """The record of the id is there already; the caller looks what it says."""


def is_lost(state: str | None) -> bool:
    """Whether an error leaves open what became of the statement: a broken connection, or a server that shuts down."""
    return state is None or state.startswith(_LOST)


def is_to_repeat(state: str | None, constraint: str | None) -> bool:
    """Whether the server has rolled a statement back only because of others, so that it may be sent again as it is: a
    serialisation failure, a deadlock, or a key that another transaction has just brought into being."""
    return state in ("40001", "40P01") or (state == "23505" and constraint != ONCE)


def is_stale(state: str | None) -> bool:
    """Whether a statement was refused because the server has crashed since the connection was made: behind a pooler."""
    return state == "IL001"


def failure(state: str | None, text: str, *, commits: bool) -> InterlockError:
    """Our error for one of the server's or the network's. ``commits``: a commit was under way."""
    said = text.strip().partition("\n")[0]
    if is_lost(state):
        if commits:
            return CommitUnknownError(f"the connection to PostgreSQL broke during a commit ({said})")
        return BackendUnavailableError(f"the connection to PostgreSQL broke ({said})")
    assert state is not None
    if state.startswith(_RETRYABLE):
        return BackendUnavailableError(f"PostgreSQL could not do it at this moment ({state}: {said})")
    if state in _UNPREPARED:
        return UsageError(f"a transaction pooler lies between: open the store with pooler=True ({state}: {said})")
    if state.startswith(_MISSING):
        return SchemaMismatchError(f"the store's tables are not what they should be ({state}: {said})")
    if state.startswith(_DAMAGED):
        return BackendCorruptError(f"PostgreSQL reports damaged data ({state}: {said})")
    return BackendError(f"PostgreSQL refused ({state}: {said})")


def unreachable(text: str) -> BackendUnavailableError:
    """The error when no connection could be made."""
    return BackendUnavailableError(f"PostgreSQL cannot be reached ({text.strip().partition(chr(10))[0]})")
