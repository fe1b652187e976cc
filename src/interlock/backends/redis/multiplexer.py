"""One connection of an event loop for any number of tasks, filled once in each turn of the loop.

Commands that tasks send in one turn go out in one write, and replies come in the order of the commands; that is nearly
all there is to it. redis-py, which gives each task a connection and each reply a walk through its layers, takes several
times the processor time of a commit.

**Order.** What is sent waits in `_calls`, one place for each reply that will come, in the order of the commands. Both
are appended to in the same step and replies are taken from the front, so a reply cannot reach another's caller. A
caller who is cancelled leaves the place behind, and the reply that comes for it goes nowhere. What was not written yet
is the tail of `_calls`, as long as `_unsent`.

**One clock for a turn.** Reads have to say what time it was. The first of a write sends `TIME` before it, for all of
them: its answer is there before theirs, and not later than the server's time when they are looked at. So an entry
that has expired by it has expired, and a commit is judged by the server's own clock anyhow.

**Two halves.** If everything goes out at the end of a turn, the server has nothing to do while the tasks run, and the
tasks have nothing to do while the server works: each waits for the other. So where many tasks are busy, the first half
of what a turn may send goes out as soon as it is there, and from then on two groups are on their way in turns. Each
half costs a write and, on a server that syncs every time, a sync. That is worth it only while the tasks keep this side
busy for longer than it then waits for a reply, which is measured in each turn; with a slow disk, or a far server,
everything goes out together. The order of the commands is the same either way.

**Silence.** A server that is stopped, or a network that swallows, ends no connection. While replies are due, a timer
looks whether any has come; if none has for ``patience_seconds``, at most a quarter more, the connection is given up and
every caller gets `Lost`. It costs a timer now and then, and nothing for each command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import hiredis

from interlock.backends.redis.home import Lost
from interlock.backends.redis.scripts import Command, packed

Replies = list[Any]
Future = asyncio.Future[Any]

_LEAST_HALF: Final = 4
"""Fewer commands than this are not worth a write of their own."""
_LOOKS: Final = 4
"""How often silence is looked for in the time that it may last."""
_TIME: Final = packed((b"TIME",))
_CLOSED: Final = "closed by the server"
_NEVER: Final = 1 << 60
_UNKNOWN: Final = float("inf")


class Place:
    """What takes a reply, where that is more than one caller's only one."""

    __slots__ = ()

    def take(self, reply: Any) -> None:
        """The reply has come."""

    def lose(self, lost: Lost) -> None:
        """It will not come."""


class Clock(Place):
    """Takes the server's time, in microseconds."""

    __slots__ = ("told",)

    def __init__(self, told: Callable[[int], None]) -> None:
        self.told = told

    def take(self, reply: Any) -> None:
        """The server has said what time it is."""
        if type(reply) is list:
            self.told(int(reply[0]) * 1_000_000 + int(reply[1]))


class Group(Place):
    """Takes the replies to several commands of one caller, and the confirmation that it may share with others."""

    __slots__ = ("awaited", "future", "replies", "result")

    def __init__(self, future: Future, awaited: int) -> None:
        self.future = future
        self.awaited = awaited
        self.replies: Replies = []
        self.result: Replies | Lost | None = None

    def take(self, reply: Any) -> None:
        """One more."""
        self.replies.append(reply)
        if len(self.replies) == self.awaited:
            self._finish(self.replies)

    def lose(self, lost: Lost) -> None:
        """What is missing will not come."""
        if self.result is None:
            self._finish(lost)

    def _finish(self, result: Replies | Lost) -> None:
        self.result = result
        if not self.future.done():
            self.future.set_result(result)

    def again(self) -> Future:
        """A future to wait for after the first was cancelled."""
        if self.future.cancelled():
            self.future = self.future.get_loop().create_future()
            if self.result is not None:
                self.future.set_result(self.result)
        return self.future


class Confirmation(Place):
    """Takes the reply that confirms all commits of a turn, for each of them."""

    __slots__ = ("groups",)

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups

    def take(self, reply: Any) -> None:
        """How many replicas have them."""
        for group in self.groups:
            group.take(reply)

    def lose(self, lost: Lost) -> None:
        """It will not come."""
        for group in self.groups:
            group.lose(lost)


class Link(asyncio.Protocol):
    """The connection. ``confirmation`` is sent behind the commits of a turn, once for all of them; ``told`` hears the
    server's time."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        confirmation: Command | None,
        patience_seconds: float,
        told: Callable[[int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._new_future: Callable[[], Future] = partial(asyncio.Future, loop=self._loop)
        self._writer = writer  # kept, for it closes the transport when it goes
        transport: Any = writer.transport
        self._transport = transport
        self._confirmation = confirmation
        self._clock = Clock(told)
        self._dated = False
        self._reader = hiredis.Reader()
        self._calls: deque[Future | Place] = deque()
        self._unsent: list[bytes] = []
        self._ending = False
        self._half = _NEVER
        self.now = self._loop.time
        """Where seconds come from; tests put another clock here."""
        self._heard_at = self._sent_at = self.now()
        self._waited = _UNKNOWN
        self._confirming: list[Group] = []
        self._late: WeakKeyDictionary[Future, Any] = WeakKeyDictionary()
        self._watch: asyncio.TimerHandle | None = None
        self._heard = True
        self._silent_looks = 0
        self._reason: tuple[str, bool] = (_CLOSED, False)
        self.patience_seconds = patience_seconds
        self.broken = False
        transport.set_protocol(self)
        transport.resume_reading()

    # -- sending: the link must not be broken --------------------------------------------------------------------------
    def begin(self, command: bytes, *, dated: bool = False) -> Future:
        """Send a command with this turn's. The future's result is the reply, or `Lost`. ``dated``: the server is asked
        for the time in the same turn."""
        calls, unsent = self._calls, self._unsent
        if not self._ending:
            self._ending = True
            self._loop.call_soon(self._end_turn)
        if dated and not self._dated:
            self._dated = True
            calls.append(self._clock)
            unsent.append(_TIME)
        future = self._new_future()
        calls.append(future)
        unsent.append(command)
        if len(unsent) >= self._half:
            self._flush()
        return future

    def send(self, commands: Sequence[Command], *, copies: bool = False) -> Group:
        """Send several commands in a row. The result is the list of replies, or `Lost`; ``copies``: the confirmation
        is the last of them."""
        if not self._ending:
            self._ending = True
            self._loop.call_soon(self._end_turn)
        copies = copies and self._confirmation is not None
        group = Group(self._new_future(), len(commands) + copies)
        for command in commands:
            self._calls.append(group)
            self._unsent.append(packed(command))
        if copies:
            self._confirming.append(group)
        return group

    def _end_turn(self) -> None:
        """Send what is left, and see whether the next turn is worth halving."""
        self._ending = False
        self._flush()
        self._sent_at = now = self.now()
        half = len(self._calls) // 2
        self._half = half if half >= _LEAST_HALF and self._waited < now - self._heard_at else _NEVER

    def _flush(self) -> None:
        if self.broken or not self._unsent:  # whoever sent something hears of it from `connection_lost`
            return
        if self._confirming and self._confirmation is not None:
            self._calls.append(Confirmation(self._confirming))
            self._unsent.append(packed(self._confirmation))
            self._confirming = []
        unsent, self._unsent = self._unsent, []
        self._dated = False
        if self._watch is None:
            self._heard = True
            self._look_later()
        self._transport.write(b"".join(unsent))

    def again(self, future: Future) -> Future | None:
        """A future for what a cancelled one of `begin` was waiting for; None if it was not of this link."""
        found = self._new_future()
        if future in self._late:
            found.set_result(self._late.pop(future))
            return found
        for number, place in enumerate(self._calls):
            if place is future:
                self._calls[number] = found
                return found
        return None

    # -- what the transport calls --------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Replies have come."""
        self._heard = True
        self._heard_at = now = self.now()
        self._waited = now - self._sent_at
        reader, calls = self._reader, self._calls
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                place = calls.popleft()
                if isinstance(place, Place):
                    place.take(reply)
                elif not place.done():
                    place.set_result(reply)
                else:
                    self._late[place] = reply
        except (hiredis.ProtocolError, IndexError):  # not a Redis server, or not ours any more
            self.abandon()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.broken = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        calls, self._calls = self._calls, deque()
        unsent, self._unsent = len(self._unsent), []
        confirming, self._confirming = self._confirming, []
        text, silent = self._reason
        for number, place in enumerate(calls):
            lost = Lost(text, number < len(calls) - unsent, silent)
            if isinstance(place, Place):
                place.lose(lost)
            elif not place.done():
                place.set_result(lost)
            else:
                self._late[place] = lost
        for group in confirming:
            group.lose(Lost(text, False, silent))

    def eof_received(self) -> None:
        """The server has closed its side."""

    def abandon(self) -> None:
        """End the connection at once."""
        self.broken = True
        self._transport.abort()

    # -- silence -------------------------------------------------------------------------------------------------------
    def _look_later(self) -> None:
        self._watch = self._loop.call_later(self.patience_seconds / _LOOKS, self._look)

    def _look(self) -> None:
        self._watch = None
        if self.broken or not self._calls:
            return
        self._silent_looks = 0 if self._heard else self._silent_looks + 1
        self._heard = False
        if self._silent_looks < _LOOKS:
            self._look_later()
        else:
            self._reason = (f"no reply for {self.patience_seconds:g} s", True)
            self.abandon()
