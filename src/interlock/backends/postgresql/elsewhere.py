"""For event loops that asyncpg cannot run on (trio): the blocking driver in threads, waited for as the loop waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.backends.postgresql import groups, reads, scans
from interlock.backends.postgresql.blocking import BlockingDriver
from interlock.backends.postgresql.home import Home, Options, Row
from interlock.backends.threads import Threads
from interlock.model import Key, Page, Reply, Token

Fetched = tuple[list[Row], Home]


class ThreadedDriver:
    """Connections that block, each used in a thread. A call that has begun is never abandoned."""

    def __init__(self, options: Options) -> None:
        self._inner = BlockingDriver(options)
        self._threads = Threads(options.connections, "interlock-postgresql")

    async def ask(self, seconds: float, name: str, arguments: Sequence[Any], *, at: Token) -> list[Row]:
        """See `interlock.backends.postgresql.home.Driver`."""
        return (await self.fetch(name, arguments, at=at))[0]

    async def fetch(
        self, name: str, arguments: Sequence[Any], *, at: Token | None = None, commits: bool = False, soft: bool = False
    ) -> Fetched:
        """See `interlock.backends.postgresql.home.Driver`."""
        call = self._inner.fetch(name, arguments, at=at, commits=commits, soft=soft)
        return await self._threads.run(call, commits=commits)

    async def look(self, keys: Sequence[Key]) -> reads.Look:
        """See `interlock.backends.postgresql.reads.look`."""
        return await reads.look(self, keys)

    async def read_at(self, keys: Sequence[Key], at: Token) -> reads.Shown:
        """See `interlock.backends.postgresql.reads.read_at`."""
        return await reads.read_at(self, keys, at)

    async def scan(self, wanted: scans.Wanted) -> Page:
        """See `interlock.backends.postgresql.scans.page`."""
        return await scans.page(self, wanted)

    async def commit(self, job: groups.Job) -> Reply:
        """See `interlock.backends.postgresql.groups.commit_alone`."""
        return await groups.commit_alone(self, job)

    def cut(self) -> None:
        """Close the connections and let the threads go."""
        self._inner.cut()
        self._threads.end()

    async def close(self) -> None:
        """As `cut`."""
        self.cut()
