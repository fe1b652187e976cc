"""A TCP proxy of 127.0.0.1 that a test puts between a program and its server, and tells what to do.

Without orders it passes bytes on. It runs in a thread and an event loop of its own; orders may come from any thread,
and each says how many connections it has met, which `FaultyProxy.fired` adds up.

What "the reply is lost" means here: bytes of the client went to the server, the server's next bytes were thrown away,
and then both connections were reset. So the server has done what it was asked, and the client does not know.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from interlock.errors import UsageError

T = TypeVar("T")
Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter

_PATIENCE_SECONDS: Final = 30.0
_CHUNK_BYTES: Final = 65536
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time; closing then sends RST instead of FIN."""


class Proxy(abc.ABC):
    """A server of its own thread and event loop. ``with`` starts and stops it; ``url`` is then its own.

    ``url``: of the server behind it, with a host and a port. Raises `UsageError` for one without."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        if not self._parts.hostname or not self._parts.port:
            raise UsageError(f"a proxy stands before a host and a port; {url!r} does not name both")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="interlock-proxy", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        port = self.call(self._listen())
        user, at, _host = self._parts.netloc.rpartition("@")
        self.url = self._parts._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()
        return self

    def __exit__(self, *error: object) -> None:
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the proxy's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_SECONDS)

    async def upstream(self) -> tuple[Reader, Writer]:
        """A new connection to the server."""
        return await asyncio.open_connection(self._parts.hostname, self._parts.port)

    @abc.abstractmethod
    async def serve(self, reader: Reader, writer: Writer) -> None:
        """Serve one client until it goes."""

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.serve(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):  # one side is gone, or the test ends
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next turn


class _Connection:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, client: Writer, server: Writer) -> None:
        self.client = client
        self.server = server
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.delay_seconds = 0.0
        self.loses_reply = False

    def end(self, *, reset: bool) -> None:
        """End both sides: with a FIN, after what was sent before it, or with a RST."""
        for writer in (self.client, self.server):
            if reset:
                with contextlib.suppress(OSError, AttributeError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            else:
                writer.close()


class FaultyProxy(Proxy):
    """A proxy that cuts, resets, loses replies, falls silent and delays when it is told to.

    ``fired`` counts the connections that each order has met; ``accepted`` those that there have been."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.accepted = 0
        self.fired: Counter[str] = Counter()
        self._connections: set[_Connection] = set()
        self._replies_to_lose = 0

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    def cut(self) -> int:
        """Close every connection that there is."""
        return self._order("cut", lambda each: each.end(reset=False))

    def reset(self) -> int:
        """Reset every connection that there is."""
        return self._order("reset", lambda each: each.end(reset=True))

    def silence(self) -> int:
        """Pass nothing on any more on the connections that there are, as a network does that has lost a route: no
        byte, no end. New connections are served. `speak` and `reset` end it."""
        return self._order("silence", lambda each: each.speaks.clear())

    def speak(self) -> int:
        """Pass on what was held back."""
        return self._order("speak", lambda each: each.speaks.set())

    def delay(self, seconds: float) -> int:
        """From now on every piece of bytes takes so long, on the connections that there are; 0: no longer."""
        return self._order("delay", lambda each: setattr(each, "delay_seconds", seconds), counts=seconds > 0)

    def lose_replies(self, count: int = 1) -> None:
        """Lose the replies to the next ``count`` requests, on any connection; ``fired["lost reply"]`` counts them."""
        self._replies_to_lose = count

    def _order(self, name: str, order: Any, counts: bool = True) -> int:
        async def give() -> int:
            met = list(self._connections)
            for each in met:
                order(each)
            if counts:
                self.fired[name] += len(met)
            return len(met)

        return self.call(give())

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """See `Proxy.serve`."""
        self.accepted += 1
        far_reader, far_writer = await self.upstream()
        connection = _Connection(writer, far_writer)
        self._connections.add(connection)
        pumps = [
            asyncio.ensure_future(self._requests(reader, connection)),
            asyncio.ensure_future(self._replies(far_reader, connection)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.discard(connection)
            for pump in pumps:
                pump.cancel()
            far_writer.transport.abort()

    async def _requests(self, reader: Reader, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._pause(connection)
                if self._replies_to_lose > 0 and not connection.loses_reply:
                    self._replies_to_lose -= 1
                    connection.loses_reply = True
                connection.server.write(data)
                await connection.server.drain()

    async def _replies(self, reader: Reader, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._pause(connection)
                if connection.loses_reply:
                    self.fired["lost reply"] += 1
                    connection.end(reset=True)
                    return
                connection.client.write(data)
                await connection.client.drain()

    async def _pause(self, connection: _Connection) -> None:
        await connection.speaks.wait()
        if connection.delay_seconds:
            await asyncio.sleep(connection.delay_seconds)
