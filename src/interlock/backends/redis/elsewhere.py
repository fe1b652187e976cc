"""For event loops that the multiplexer cannot run on (trio): the blocking driver in threads, waited for as the loop
waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from interlock.backends.redis.blocking import BlockingDriver
from interlock.backends.redis.home import Driver, Known, Options
from interlock.backends.redis.scripts import Calls, Command
from interlock.backends.threads import Threads
from interlock.runtime import AsyncRuntime

_SHORTEST_SECONDS: Final = 0.002
_LONGEST_SECONDS: Final = 0.05


class ThreadedDriver(Driver):
    """Connections that block, each used in a thread. A call that has begun is never abandoned."""

    def __init__(self, options: Options, calls: Calls, known: Known) -> None:
        self._inner = BlockingDriver(options, calls, known)
        self._threads = Threads(options.connections, "interlock-redis")
        self._runtime = AsyncRuntime()

    async def ask(self, *commands: Command, commits: bool = False, copies: bool = False) -> list[Any]:
        """See `interlock.backends.redis.home.Driver`."""
        return await self._threads.run(self._inner.ask(*commands, commits=commits, copies=copies), commits=commits)

    async def wait(self, look: Callable[[], Awaitable[bool]], position: int, timeout_seconds: float) -> bool:
        """Look at short intervals, longer apart the longer nothing comes."""
        deadline = self._runtime.monotonic() + timeout_seconds
        interval = _SHORTEST_SECONDS
        while not await look():
            left = deadline - self._runtime.monotonic()
            if left <= 0:
                return False
            await self._runtime.sleep(min(interval, left))
            interval = min(2 * interval, _LONGEST_SECONDS)
        return True

    def distrust(self) -> None:
        """Give up the idle connections."""
        self._inner.distrust()

    def cut(self) -> None:
        """Close the connections and let the threads go."""
        self._inner.cut()
        self._threads.end()

    async def close(self) -> None:
        """As `cut`."""
        self.cut()
