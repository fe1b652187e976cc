"""What the core asks of the lock layer, which it does not know. `interlock.layers` implements it."""

from __future__ import annotations

from typing import Protocol


class Locking(Protocol):
    """The locks of one store object."""

    def close(self) -> None:
        """The store is being closed: nothing is held any more."""
