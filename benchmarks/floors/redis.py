"""What a careful programmer would write on Redis: one script for a commit, over one connection that all tasks share.

The script answers a request that it has answered before, compares the versions of what was read, and writes the value,
the number of its last change (by which a range could be validated), the id of the request and a line of a log that is
kept short. It has no history, so no snapshots, and no index of keys in their order.

`Multiplexed` sends it over one connection: commands of one turn of the loop go out in one write. `RedisPy` sends the
same script as redis-py does, a connection for each task. `Watched` is what the manual shows: WATCH, read, MULTI, EXEC.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import hiredis
import redis
import redis.asyncio

from benchmarks.workload import AGENT, OPERATION, VALUE, pack, unpack

_KEPT_SECONDS: Final = "600"
_SCRIPT: Final = """
local done = redis.call('GET', KEYS[4])
if done then return {2, done} end
local reads, writes, at = tonumber(ARGV[1]), tonumber(ARGV[2]), 5
if reads > 0 then
  local names = {}
  for n = 1, reads do names[n] = ARGV[at + 2 * n - 2] end
  local found = redis.call('ZMSCORE', KEYS[3], unpack(names))
  for n = 1, reads do
    if (found[n] or '0') ~= ARGV[at + 2 * n - 1] then return {-1, names[n]} end
  end
end
at = at + 2 * reads
local own = redis.call('INCR', KEYS[1])
for n = 1, writes do
  redis.call('HSET', KEYS[2], ARGV[at], own .. ':' .. ARGV[at + 1])
  redis.call('ZADD', KEYS[3], own, ARGV[at])
  at = at + 2
end
redis.call('SET', KEYS[4], own, 'EX', ARGV[3])
redis.call('XADD', KEYS[5], 'MAXLEN', '~', '10000', own .. '-0', 'e', ARGV[4])
return {1, own}
"""


class Refused(Exception):
    """What was read has changed since."""


def remove(url: str, name: str) -> None:
    """Remove everything under a hash tag."""
    with redis.Redis.from_url(url) as client:
        found = list(client.scan_iter(match=f"{{{name}}}:*", count=10_000))
        for place in range(0, len(found), 10_000):
            client.unlink(*found[place : place + 10_000])


class Floor(abc.ABC):
    """Reads and commits under one hash tag; how commands are sent is the subclass's."""

    def __init__(self, url: str, name: str, connections: int) -> None:
        self._url = url
        self._tag = f"{{{name}}}:"
        self._connections = connections
        self._ids = itertools.count()
        self._digest: Any = None

    async def __aenter__(self) -> Floor:
        await self.open()
        self._digest = await self.call("SCRIPT", "LOAD", _SCRIPT)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abc.abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End the connections."""

    @abc.abstractmethod
    def call(self, *words: Any) -> Awaitable[Any]:
        """The reply to one command."""

    async def fill(self, keys: Iterable[str]) -> None:
        """A value under each key."""
        for key in keys:
            await self.commit(key, b"0", VALUE, f"fill {key}")

    async def read(self, key: str) -> tuple[bytes, Any]:
        """Version and value of a key."""
        found: bytes = await self.call("HGET", f"{self._tag}values", key)
        version, _, value = found.partition(b":")
        return version, unpack(value)

    async def commit(self, key: str, version: bytes, value: Any, request: str) -> bytes:
        """Write a key that has this version, once for each request. Raises `Refused` if it has another."""
        tag = self._tag
        keys = (f"{tag}last", f"{tag}values", f"{tag}changes", f"{tag}request:{request}", f"{tag}log")
        line = f"{AGENT} {OPERATION} {key}"
        words = ("1", "1", _KEPT_SECONDS, line, key, version, key, pack(value))
        state, own = await self.call("EVALSHA", self._digest, "5", *keys, *words)
        if state < 0:
            raise Refused
        return str(own).encode() if isinstance(own, int) else own


class Multiplexed(Floor, asyncio.Protocol):
    """One connection for all tasks."""

    async def open(self) -> None:
        """Connect."""
        parts = urlsplit(self._url)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._reader = hiredis.Reader()
        self._transport, _ = await self._loop.create_connection(lambda: self, parts.hostname or "", parts.port or 6379)

    async def close(self) -> None:
        """End the connection."""
        self._transport.close()

    def call(self, *words: Any) -> Awaitable[Any]:
        """A future of the reply."""
        future = self._loop.create_future()
        self._waiting.append(future)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(words))
        return future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Replies, in the order of the commands."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            future = self._waiting.popleft()
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)


class RedisPy(Floor):
    """The same script, as redis-py sends it."""

    async def open(self) -> None:
        """Make the pool."""
        self._client: Any = redis.asyncio.Redis.from_url(self._url, max_connections=self._connections)

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()

    async def call(self, *words: Any) -> Any:
        """The reply to one command."""
        return await self._client.execute_command(*words)


class Watched(RedisPy):
    """WATCH, read, MULTI, EXEC: a key of its own for each value, so that others do not disturb."""

    async def fill(self, keys: Iterable[str]) -> None:
        """A value under each key."""
        await self._client.mset({f"{self._tag}value:{key}": pack(VALUE) for key in keys})

    async def change(self, key: str, change: Any, request: str) -> None:
        """Change a value, once for each request. Raises `Refused` if it has changed meanwhile."""
        value, done = f"{self._tag}value:{key}", f"{self._tag}request:{request}"
        async with self._client.pipeline() as pipeline:
            await pipeline.watch(value, done)
            text, was_done = await pipeline.mget(value, done)
            if was_done:
                return
            pipeline.multi()
            pipeline.set(value, pack(change(unpack(text))))
            pipeline.set(done, 1, ex=int(_KEPT_SECONDS))
            pipeline.xadd(f"{self._tag}log", {"e": f"{AGENT} {OPERATION} {key}"}, maxlen=10_000)
            try:
                await pipeline.execute()
            except redis.WatchError:
                raise Refused from None


@contextlib.contextmanager
def emptied(url: str, name: str) -> Iterator[None]:
    """Nothing under a hash tag afterwards."""
    try:
        yield
    finally:
        remove(url, name)
