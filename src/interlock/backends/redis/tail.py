"""One reader of the stream for all who wait in one event loop.

It asks the server for the first entry behind the lowest position that anybody waits at (`XREAD BLOCK`, on a connection
of its own, which the answer holds up), and wakes all for whom that entry is news. Nobody misses any: whoever waits has
enlisted before looking at the newest position. An entry that came before the look is seen by the look; one that comes
after it lies behind every position that the reader could be asking from, or the look would have seen that position.

The reader lives for as long as anybody waits. If its connection breaks, everybody is woken and looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from interlock.backends.redis.home import Lost
from interlock.backends.redis.multiplexer import Link
from interlock.errors import InterlockError

BLOCK_SECONDS: Final = 1.0
"""How long the server is asked to hold one question."""


class Tail:
    """Who waits in one event loop, and the task that reads for them."""

    def __init__(self, connect: Callable[[float], Awaitable[Link]], feed: bytes) -> None:
        self._connect = connect
        self._feed = feed
        self._waiters: dict[asyncio.Future[bool], int] = {}
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None

    def enlist(self, position: int) -> asyncio.Future[bool]:
        """A future that becomes True with the first entry behind a position, False when the reader has failed."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = position
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return waiter

    def dismiss(self, waiter: asyncio.Future[bool]) -> None:
        """Forget a waiter."""
        self._waiters.pop(waiter, None)

    def stop(self) -> None:
        """End the reader and wake everybody."""
        if self._task is not None:
            self._task.cancel()
        self._wake(None)

    async def _run(self) -> None:
        try:
            while self._waiters:
                if self._link is None or self._link.broken:
                    self._link = await self._connect(BLOCK_SECONDS)
                    continue  # whoever waited may have gone meanwhile
                behind = b"%d-18446744073709551615" % min(self._waiters.values())
                block = b"%d" % int(1000 * BLOCK_SECONDS)
                command = (b"XREAD", b"COUNT", b"1", b"BLOCK", block, b"STREAMS", self._feed, behind)
                replies = await self._link.send((command,)).future
                if isinstance(replies, Lost) or isinstance(replies[0], Exception):
                    self._link.abandon()  # the store may have moved to another server
                    self._wake(None)
                    await asyncio.sleep(0)
                elif replies[0]:
                    self._wake(int(replies[0][0][1][0][0].partition(b"-")[0]))
        except InterlockError:  # no connection: whoever looks again will hear why
            pass
        finally:
            self._wake(None)

    def _wake(self, position: int | None) -> None:
        """Wake those for whom a position is news; with None everybody, to look again."""
        for waiter, since in list(self._waiters.items()):
            if position is None or since < position:
                del self._waiters[waiter]
                if not waiter.done():
                    waiter.set_result(position is not None)
