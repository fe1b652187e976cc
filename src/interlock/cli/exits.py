"""Exit statuses: what a script may conclude from how a command ended."""

from __future__ import annotations

from enum import IntEnum

from interlock.errors import (
    BackendError,
    CommitUnknownError,
    InterlockError,
    IsolationError,
    NotFoundError,
    TransactionError,
)


class Exit(IntEnum):
    """The exit statuses of every command."""

    OK = 0
    NEGATIVE = 1
    """The answer is no: there is no such key, the transaction has not committed, the demonstration found a fault."""
    USAGE = 2
    """The call is wrong: an unknown option, a key, value or URL that makes no sense."""
    REFUSED = 3
    """Nothing was written: a conflict, an invariant, a version that is not the expected one, a cursor that is too
    old."""
    BACKEND = 4
    """The store is not there, cannot be reached, or is damaged."""
    UNKNOWN = 5
    """Nobody can tell whether it was committed."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """Whoever read the output has gone, as after ``| head``."""


EXIT_HELP = """\
Exit status
  0  done
  1  the answer is no: no such key, not committed
  2  wrong usage
  3  refused, nothing was written: conflict, invariant, another version
  4  the store is not there, cannot be reached, or is damaged
  5  nobody can tell whether it was committed"""


def status_of(error: InterlockError) -> Exit:
    """The exit status for an error of the library."""
    if isinstance(error, NotFoundError):
        return Exit.NEGATIVE
    if error.maybe_committed or isinstance(error, CommitUnknownError):
        return Exit.UNKNOWN
    if isinstance(error, BackendError):
        return Exit.BACKEND
    if isinstance(error, TransactionError | IsolationError):
        return Exit.REFUSED
    return Exit.USAGE
