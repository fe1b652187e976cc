"""Small servers of 127.0.0.1 that a test puts between a program and PostgreSQL.

`Lingering` passes on what the server says last, and leaves the connection open behind it.

`Pooler` is a pooler in transaction mode, as PgBouncer is.

A client has a server connection only from the beginning of a transaction to its end, and knows nothing of which one it
is. What a session keeps on the server (prepared statements, session locks, settings) is therefore somewhere else when
the client asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Final

from interlock.testing.proxies import Proxy, Reader, Writer

_TLS_REQUESTS: Final = (80877103, 80877104)
_CANCEL: Final = 80877102
_VERSION: Final = 196608


class Lingering(Proxy):
    """Where the server ends a connection, its client hears the reason but not the end. ``ended`` counts them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ended = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """See `Proxy.serve`."""
        far_reader, far_writer = await self.upstream()
        answers = asyncio.ensure_future(self._answer(far_reader, writer))
        try:
            while data := await reader.read(65536):
                far_writer.write(data)
        finally:
            answers.cancel()
            far_writer.transport.abort()

    async def _answer(self, reader: Reader, writer: Writer) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        self.ended += 1


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
