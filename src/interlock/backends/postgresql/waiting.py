"""Waiting for news. A look at the store at intervals is the truth; a commit through the same store object wakes at
once, and one of another process soon, while somebody listens for that (`heralds`). Only then are the intervals long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from interlock.backends.postgresql.home import Options
from interlock.ports import Runtime, Waiter
from interlock.runtime import wake_all

if TYPE_CHECKING:
    from interlock.backends.postgresql.heralds import Herald

SHORTEST_SECONDS: Final = 0.002
LONGEST_SECONDS: Final = 0.05
HEARING_SECONDS: Final = 1.0
"""The longest interval while somebody listens."""


class News:
    """Who waits in this process, for both leaves of a store object."""

    def __init__(self, options: Options) -> None:
        self._waiters: dict[Waiter, None] = {}
        self._herald = _herald(options, self._wake)

    def _wake(self) -> None:
        if self._waiters:
            wake_all(list(self._waiters))

    def tell(self) -> None:
        """Something was committed here: everybody looks, other processes too."""
        self._wake()
        if self._herald is not None:
            self._herald.announce()

    def close(self) -> None:
        """The store is closed: everybody looks, and nobody listens any more."""
        self._wake()
        if self._herald is not None:
            self._herald.close()

    async def wait(self, runtime: Runtime, look: Callable[[], Awaitable[bool]], deadline: float) -> bool:
        """Look until there is something or the deadline has come; longer apart the longer nothing comes."""
        interval = SHORTEST_SECONDS
        herald = self._herald
        while True:
            hears = herald is not None and herald.hears  # from before the look: nothing falls between the two
            waiter = runtime.waiter()
            self._waiters[waiter] = None
            try:
                if await look():
                    return True
                left = deadline - runtime.monotonic()
                if left <= 0:
                    return False
                if herald is not None:
                    herald.listen()
                await waiter.wait(min(HEARING_SECONDS if hears else interval, left))
            finally:
                self._waiters.pop(waiter, None)
            interval = min(2 * interval, LONGEST_SECONDS)


def _herald(options: Options, tell: Callable[[], None]) -> Herald | None:
    """None for a server that may not have NOTIFY, and where a driver is missing: then there are only looks."""
    if options.locking == "serializable":
        return None
    try:
        from interlock.backends.postgresql.heralds import Herald
    except ImportError:
        return None
    return Herald(options, tell)
