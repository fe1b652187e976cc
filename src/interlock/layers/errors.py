"""What goes wrong with locks and leases: a part of the error tree of `interlock.errors`."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.errors import InterlockError, TransactionError


class DeadlockError(TransactionError):
    """Transactions waited for each other's locks in a ring, and this one was chosen to give way. Nothing was written;
    run it again (`run` does, and it keeps its age, so that it is not chosen for ever).

    ``holders`` names the agents of the ring."""

    code = "deadlock"
    retryable = True
    advice = "Nothing was written. Run it again; take locks in one order everywhere to avoid it."

    def __init__(self, message: str = "", *, transaction_id: str = "", holders: Sequence[str] = ()) -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.holders = tuple(holders)


class LockTimeoutError(TransactionError):
    """A lock was not to be had in the time given. ``holders`` names the agents that hold it or wait before this one."""

    code = "lock_timeout"
    retryable = True
    advice = "Nothing was written. Try again later, or allow more time."

    def __init__(self, message: str = "", *, transaction_id: str = "", holders: Sequence[str] = ()) -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.holders = tuple(holders)


class LeaseError(InterlockError):
    """Something about a lease or a lock that is held outside a session. ``lease`` is its name."""

    code = "lease"

    def __init__(self, message: str = "", *, lease: str = "") -> None:
        super().__init__(message)
        self.lease = lease


class LeaseUnavailableError(LeaseError):
    """The lease is held by somebody else and was not free in the time given. ``holders`` names the agents that hold it
    or wait before this one."""

    code = "lease_unavailable"
    advice = "Try again later, or wait longer with wait_seconds=."

    def __init__(self, message: str = "", *, lease: str = "", holders: Sequence[str] = ()) -> None:
        super().__init__(message, lease=lease)
        self.holders = tuple(holders)


class LeaseLostError(LeaseError):
    """The lease or lock is no longer held: it expired, or somebody has taken it over."""

    code = "lease_lost"
    advice = "Whatever was begun under it may be going on elsewhere. Acquire it again and start from the present state."


class FencedError(LeaseLostError):
    """A commit was refused because the lease or lock that it was fenced with has passed to somebody else. Nothing was
    written."""

    code = "fenced"
