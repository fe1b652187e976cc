"""One connection of an event loop for any number of tasks, filled once in each turn of the loop.

Commands that tasks send in one turn go out in one write, and replies come in the order of the commands; that is all
there is to it. redis-py, which gives each task a connection and each reply a walk through its layers, takes several
times the processor time of a commit.

A call's future is never cancelled for good: a task that is cancelled while its commit is under way gets a new one
(`Call.again`), so that the answer can still be waited for. A call that the connection took with it resolves to None;
``sent`` says whether the server may have seen it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis

from interlock.backends.redis.scripts import Command, packed

Replies = list[Any]


class Call:
    """Commands that were sent together, and what has come back so far."""

    __slots__ = ("awaited", "followers", "future", "replies", "sent", "total")

    def __init__(self, future: asyncio.Future[Replies | None], awaited: int, total: int) -> None:
        self.future = future
        self.awaited = awaited  # replies that come for this call
        self.total = total  # and with the confirmation that it shares with others
        self.replies: Replies = []
        self.sent = False
        self.followers: list[Call] | None = None

    def finish(self, replies: Replies | None) -> None:
        """Let the caller go on; None: the connection is lost."""
        if not self.future.done():
            self.future.set_result(replies)

    def again(self) -> asyncio.Future[Replies | None]:
        """A future to wait for after the first was cancelled."""
        if self.future.cancelled():
            self.future = self.future.get_loop().create_future()
            if len(self.replies) == self.total:
                self.future.set_result(self.replies)
        return self.future


class Link(asyncio.Protocol):
    """The connection. ``confirmation`` is sent behind the commits of a turn, once for all of them."""

    def __init__(self, writer: asyncio.StreamWriter, confirmation: Command | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept, for it closes the transport when it goes
        transport: Any = writer.transport
        self._transport = transport
        self._confirmation = confirmation
        self._reader = hiredis.Reader()
        self._calls: deque[Call] = deque()
        self._unsent: list[bytes] = []
        self._fresh: list[Call] = []
        self.broken = False
        transport.set_protocol(self)
        transport.resume_reading()

    def send(self, commands: Sequence[Command], *, copies: bool = False) -> Call:
        """Send commands with this turn's; the link must not be broken."""
        if not self._fresh:
            self._loop.call_soon(self._flush)
        count = len(commands)
        call = Call(
            self._loop.create_future(), count, count + 1 if copies and self._confirmation is not None else count
        )
        self._fresh.append(call)
        self._calls.append(call)
        for command in commands:
            self._unsent.append(packed(command))
        return call

    def _flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        unsent, self._unsent = self._unsent, []
        if self.broken:
            for call in fresh:
                call.finish(None)
            return
        if self._confirmation is not None:
            followers = [call for call in fresh if call.total > call.awaited]
            if followers:
                confirming = Call(self._loop.create_future(), 1, 1)
                confirming.followers = followers
                self._calls.append(confirming)
                unsent.append(packed(self._confirmation))
        for call in fresh:
            call.sent = True
        self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        """Replies have come."""
        reader, calls = self._reader, self._calls
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                call = calls[0]
                call.replies.append(reply)
                if len(call.replies) == call.awaited:
                    calls.popleft()
                    if call.followers is not None:
                        for follower in call.followers:
                            follower.replies.append(reply)
                            follower.finish(follower.replies)
                    elif call.total == call.awaited:
                        call.finish(call.replies)
        except (hiredis.ProtocolError, IndexError):  # not a Redis server, or not ours any more
            self.abandon()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.broken = True
        calls, self._calls = self._calls, deque()
        for call in calls:
            call.finish(None)
            for follower in call.followers or ():
                follower.finish(None)

    def eof_received(self) -> None:
        """The server has closed its side."""

    def abandon(self) -> None:
        """End the connection at once."""
        self.broken = True
        self._transport.abort()
