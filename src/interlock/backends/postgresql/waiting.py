"""Waiting for news. A look at the store at short intervals is the truth; a commit through the same store object wakes
at once. NOTIFY inside a commit would take a lock of the whole database over the commit's sync and halve everybody's
rate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from interlock.ports import Runtime, Waiter
from interlock.runtime import wake_all

SHORTEST_SECONDS: Final = 0.002
LONGEST_SECONDS: Final = 0.05


class News:
    """Who waits in this process, for both leaves of a store object."""

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}

    def tell(self) -> None:
        """Something was committed, or the store is closed: everybody looks."""
        if self._waiters:
            wake_all(list(self._waiters))

    async def wait(self, runtime: Runtime, look: Callable[[], Awaitable[bool]], deadline: float) -> bool:
        """Look until there is something or the deadline has come; longer apart the longer nothing comes."""
        interval = SHORTEST_SECONDS
        while True:
            waiter = runtime.waiter()
            self._waiters[waiter] = None
            try:
                if await look():
                    return True
                left = deadline - runtime.monotonic()
                if left <= 0:
                    return False
                await waiter.wait(min(interval, left))
            finally:
                self._waiters.pop(waiter, None)
            interval = min(2 * interval, LONGEST_SECONDS)
