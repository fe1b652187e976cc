"""What takes the replies that come over one connection: the commits of a turn, its reads, and whoever asks alone.

Many callers share a command, so a reply is cut up here and each caller's part put into his future. A caller who was
cancelled meanwhile may still ask for his (`multiplexer.Link.again`), so what comes for him goes to ``late``.

**Commits together.** Their script judges each as if those before it had been done by calls of their own, so one that is
refused changes nothing for the others. An error reply is different: the whole call has written nothing, and what it
says may be about one of them only, an entry that is damaged, say. Each caller is then told that it was `Together`, and
asks again alone (`interlock.backends.redis.backend`).

**Reads together.** One command reads all their keys, so they share the instant, the head and the token of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

from interlock.backends.redis.home import Lost
from interlock.backends.redis.scripts import Part, answers
from interlock.model import Key, Token

Replies = list[Any]
Future = asyncio.Future[Any]
Late = MutableMapping[Future, Any]


class Together(NamedTuple):
    """In place of an answer: the reply to a call of several commits, which is none to any of them."""

    reply: Any


class Place:
    """What takes a reply."""

    __slots__ = ()

    def take(self, reply: Any) -> None:
        """The reply has come."""

    def lose(self, lost: Lost) -> None:
        """It will not come."""

    def callers(self) -> int:
        """How many wait for it."""
        return 0

    def replace(self, future: Future, other: Future) -> bool:
        """Whether one of them did so with this future; from now on with the other."""
        return False


class Clock(Place):
    """Takes the server's time, in microseconds."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = 0

    def take(self, reply: Any) -> None:
        """The server has said what time it is."""
        if type(reply) is list:
            self.time = int(reply[0]) * 1_000_000 + int(reply[1])


class Several(Place):
    """Callers of one command, each with a future."""

    __slots__ = ("futures", "late")

    def __init__(self, late: Late) -> None:
        self.late = late
        self.futures: list[Future] = []

    def lose(self, lost: Lost) -> None:
        """None of them gets an answer."""
        self.give([lost] * len(self.futures))

    def give(self, results: Sequence[Any]) -> None:
        """Each caller's part."""
        for future, result in zip(self.futures, results, strict=True):
            if future.done():
                self.late[future] = result
            else:
                future.set_result(result)

    def callers(self) -> int:
        """How many there are."""
        return len(self.futures)

    def replace(self, future: Future, other: Future) -> bool:
        """See `Place`."""
        if future not in self.futures:
            return False
        self.futures[self.futures.index(future)] = other
        return True


class Commits(Several):
    """Commits of one call of their script; ``closed``: no more may join."""

    __slots__ = ("closed", "parts", "size")

    def __init__(self, late: Late, closed: bool) -> None:
        super().__init__(late)
        self.closed = closed
        self.size = 0
        self.parts: list[Part] = []

    def take(self, reply: Any) -> None:
        """The answer of each; an error reply as it is to one that is alone."""
        count = len(self.futures)
        if type(reply) is list and len(reply) == count + 1:
            self.give(answers(reply))
        else:
            self.give([reply] if count == 1 else [Together(reply)] * count)


class Look(Several):
    """Reads of one command. Once they are answered: what was found, when, and the token, for who makes it first."""

    __slots__ = ("clock", "found", "keys", "starts", "time", "token")

    def __init__(self, late: Late, clock: Clock) -> None:
        super().__init__(late)
        self.clock = clock
        self.keys: list[Key] = []
        self.starts: list[int] = []
        self.found: list[Any] = []
        self.time = 0
        self.token: Token | None = None

    def take(self, reply: Any) -> None:
        """Head, meta and the entries of all keys."""
        if type(reply) is not list:
            self.give([reply] * len(self.futures))
            return
        self.found, self.time = reply, self.clock.time
        self.give([(self, start) for start in self.starts])


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

    def callers(self) -> int:
        """One, for each of the replies."""
        return 1

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
