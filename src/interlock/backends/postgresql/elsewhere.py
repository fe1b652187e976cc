"""For event loops that asyncpg cannot run on (trio): the blocking driver in threads, waited for as the loop waits."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from interlock.backends.postgresql import groups, reads
from interlock.backends.postgresql.blocking import BlockingDriver
from interlock.backends.postgresql.home import Home, Options, Row
from interlock.errors import UsageError
from interlock.model import Key, Reply, Token
from interlock.runtime import AsyncRuntime

Fetched = tuple[list[Row], Home]


def _step(coroutine: Coroutine[Any, Any, Fetched]) -> Fetched:
    try:
        coroutine.send(None)
    except StopIteration as end:
        fetched: Fetched = end.value
        return fetched
    coroutine.close()
    raise UsageError("the blocking driver has suspended")


class ThreadedDriver:
    """Connections that block, each used in a thread. A call that has begun is never abandoned."""

    def __init__(self, options: Options) -> None:
        self._inner = BlockingDriver(options)
        self._threads = ThreadPoolExecutor(options.connections, "interlock-postgresql")
        self._runtime = AsyncRuntime()

    async def ask(self, seconds: float, name: str, arguments: Sequence[Any], *, at: Token) -> list[Row]:
        """See `interlock.backends.postgresql.home.Driver`."""
        return (await self.fetch(name, arguments, at=at))[0]

    async def fetch(
        self, name: str, arguments: Sequence[Any], *, at: Token | None = None, commits: bool = False, soft: bool = False
    ) -> Fetched:
        """See `interlock.backends.postgresql.home.Driver`."""
        waiter = self._runtime.waiter()
        coroutine = self._inner.fetch(name, arguments, at=at, commits=commits, soft=soft)
        future = self._threads.submit(_step, coroutine)
        future.add_done_callback(lambda _: waiter.wake())
        try:
            await waiter.wait()
        except BaseException as interrupt:
            if future.cancel():
                coroutine.close()
                raise
            await waiter.wait_out()
            if commits:
                error = future.exception()
                ended = "returned" if error is None else f"raised {error!r}"
                interrupt.add_note(f"the commit had begun and was not abandoned: it {ended}")
            raise
        return future.result()

    async def look(self, keys: Sequence[Key]) -> reads.Look:
        """See `interlock.backends.postgresql.reads.look`."""
        return await reads.look(self, keys)

    async def read_at(self, keys: Sequence[Key], at: Token) -> reads.Shown:
        """See `interlock.backends.postgresql.reads.read_at`."""
        return await reads.read_at(self, keys, at)

    async def commit(self, job: groups.Job) -> Reply:
        """See `interlock.backends.postgresql.groups.commit_alone`."""
        return await groups.commit_alone(self, job)

    def cut(self) -> None:
        """Close the connections and let the threads go."""
        self._inner.cut()
        self._threads.shutdown(wait=False)

    async def close(self) -> None:
        """As `cut`."""
        self.cut()
