"""Times as users see them, from the seconds that stores keep.

A store's seconds come from an engine, a file or another process, so they may be anything that is a number. What no
calendar has is damage, and said as such.
"""

from __future__ import annotations

from datetime import UTC, datetime

from interlock.errors import BackendCorruptError


def moment_of(seconds: float) -> datetime:
    """The moment so many seconds after 1970, in UTC. Raises `BackendCorruptError` outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise BackendCorruptError(f"a stored time cannot be one: {seconds!r} seconds after 1970 ({error})") from None
