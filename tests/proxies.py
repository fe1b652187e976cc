"""What stands between a client and its server in the field, as small servers of 127.0.0.1 that a test drives.

`Relay` passes bytes on, until it is told to fall silent or to cut. `Pooler` is a PostgreSQL pooler in transaction mode,
as PgBouncer is: a client has a server connection only from the beginning of a transaction to its end, and knows nothing
of which one it is. What a session keeps on the server (prepared statements, session locks, settings) is therefore
somewhere else when the client asks for it.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import struct
import threading
from typing import Any, Final
from urllib.parse import urlsplit

_PATIENCE_SECONDS: Final = 30.0
_TLS_REQUESTS: Final = (80877103, 80877104)
_CANCEL: Final = 80877102
_VERSION: Final = 196608

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


class Proxy(abc.ABC):
    """A server of its own thread and event loop. ``with`` starts and stops it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.url = ""

    def __enter__(self) -> Any:
        self._thread.start()
        port = self.call(self._listen())
        user = f"{self._parts.username}@" if self._parts.username else ""
        self.url = self._parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()
        return self

    def __exit__(self, *error: object) -> None:
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    def call(self, coroutine: Any) -> Any:
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


class Relay(Proxy):
    """Passes bytes on. `hold` makes it fall silent as a network does that has lost a route: no byte, no end."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._flows = asyncio.Event()
        self._flows.set()
        self.accepted = 0

    def hold(self) -> None:
        """Pass nothing on any more, on the connections that there are; new ones are served."""
        self.call(self._hold())

    def cut(self) -> None:
        """Reset every connection that there is."""
        self.call(self._cut())

    async def _hold(self) -> None:
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    async def _cut(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """See `Proxy.serve`."""
        self.accepted += 1
        flows = self._flows
        far_reader, far_writer = await self.upstream()
        pumps = [
            asyncio.ensure_future(_pump(reader, far_writer, flows)),
            asyncio.ensure_future(_pump(far_reader, writer, flows)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            far_writer.transport.abort()


async def _pump(reader: Reader, writer: Writer, flows: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await flows.wait()
            writer.write(data)
            await writer.drain()


class Link:
    """A server connection of the pooler. ``outstanding``: answers that the server still owes, up to its being ready."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self.reader = reader
        self.writer = writer
        self.outstanding = 0
        self.unsynced = False


class Pooler(Proxy):
    """A pooler in transaction mode with so many server connections, handed out first in, first out."""

    def __init__(self, url: str, links: int = 3) -> None:
        super().__init__(url)
        self._count = links
        self._free: asyncio.Queue[Link] = asyncio.Queue()
        self._links: list[Link] = []
        self._greeting = b""
        self._serial = 0
        self.handed_out = 0

    def __enter__(self) -> Pooler:
        self._thread.start()
        for _ in range(self._count):
            self.call(self._connect())
        port = self.call(self._listen())
        self.url = self._parts._replace(netloc=f"{self._parts.username}@127.0.0.1:{port}").geturl()
        return self

    async def _connect(self) -> None:
        reader, writer = await self.upstream()
        names = {"user": self._parts.username or "", "database": self._parts.path.lstrip("/")}
        body = b"".join(f"{name}\0{value}\0".encode() for name, value in names.items()) + b"\0"
        writer.write(struct.pack("!II", len(body) + 8, _VERSION) + body)
        greeting = b""
        while True:
            kind, message = await _message(reader)
            if kind == b"E":
                raise RuntimeError(f"the pooler was refused: {message!r}")
            if kind == b"S":
                greeting += message
            if kind == b"Z":
                break
        self._greeting = greeting
        self._links.append(Link(reader, writer))
        self._free.put_nowait(self._links[-1])

    async def _end(self) -> None:
        await super()._end()
        for link in self._links:
            link.writer.transport.abort()
        await asyncio.sleep(0)  # transports close in the next turn

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """See `Proxy.serve`."""
        if not await _welcome(reader, writer):
            return
        self._serial += 1
        key = _framed(b"K", struct.pack("!II", 1_000_000 + self._serial, 7))  # of nobody's process
        writer.write(_framed(b"R", struct.pack("!I", 0)) + self._greeting + key + _framed(b"Z", b"I"))
        link: Link | None = None
        answers: asyncio.Task[bool] | None = None
        kind = b""
        try:
            while kind != b"X":
                kind, message = await _message(reader)
                if answers is not None and answers.done():
                    link, answers = None, None
                if kind == b"X":
                    break
                if link is None:
                    link = await self._free.get()
                    self.handed_out += 1
                if kind in (b"Q", b"S"):
                    link.outstanding += 1
                link.unsynced = kind not in (b"Q", b"S")
                link.writer.write(message)
                if answers is None:
                    answers = asyncio.ensure_future(self._answer(link, writer))
        finally:
            if answers is not None and not answers.done():
                answers.cancel()
                assert link is not None
                link.writer.transport.abort()  # in the middle of a transaction: the server rolls it back
                await self._connect()

    async def _answer(self, link: Link, writer: Writer) -> bool:
        """Pass answers on until the server is ready and in no transaction; then the connection is free for others."""
        while True:
            kind, message = await _message(link.reader)
            if kind == b"Z":
                link.outstanding -= 1
                if message[5:6] == b"I" and link.outstanding == 0 and not link.unsynced:
                    self._free.put_nowait(link)
                    writer.write(message)
                    return True
            writer.write(message)


async def _welcome(reader: Reader, writer: Writer) -> bool:
    """Read the startup of a client; whether it wants a session."""
    while True:
        (length,) = struct.unpack("!I", await reader.readexactly(4))
        body = await reader.readexactly(length - 4)
        (code,) = struct.unpack("!I", body[:4])
        if code not in _TLS_REQUESTS:
            return bool(code != _CANCEL)
        writer.write(b"N")


async def _message(reader: Reader) -> tuple[bytes, bytes]:
    """One message: its kind, and the whole of it."""
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body
