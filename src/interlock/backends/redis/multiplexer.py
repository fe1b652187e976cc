"""One connection of an event loop for any number of tasks, filled once in each turn of the loop.

What tasks want in one turn goes out in one write: all commits in one call of their script, all reads in one command,
and the single commands of whoever needs another (`shared` has what takes the replies). redis-py, which gives each task
a connection and each reply a walk through its layers, takes several times the processor time of a commit.

**Order.** What was written waits in `_calls`, one place for each reply that will come, in the order of the commands.
Both are appended to in the same step and replies are taken from the front, so a reply cannot reach another's caller. A
caller who is cancelled leaves the future behind, and the answer that comes for it is kept for as long as the future
is. What was not written yet is in `_alone`, `_commits` and `_looks`. Commits go before reads: whoever reads in the same
turn sees them, and has to run again less often.

**One clock for a turn.** Reads have to say what time it was. `TIME` is sent before them, once for all: its answer is
there before theirs, and not later than the server's time when they are looked at. So an entry that has expired by it
has expired, and a commit is judged by the server's own clock anyhow.

**Two halves.** If everything goes out at the end of a turn, the server has nothing to do while the tasks run, and the
tasks have nothing to do while the server works: each waits for the other. So where very many tasks are busy, the first
half of what a turn may send goes out as soon as it is there, and from then on two groups are on their way in turns.
Each half costs a write, a call of the script and, on a server that syncs every time, a sync. That is worth it only
while the tasks keep this side busy for longer than it then waits for a reply, which is measured in each turn; with a
slow disk, or a far server, everything goes out together.

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
from interlock.backends.redis.scripts import Calls, Command, Part, packed
from interlock.backends.redis.shared import Clock, Commits, Confirmation, Future, Group, Look, Place

_LEAST_HALF: Final = 32
"""Fewer callers than this are not worth a write, a call of the script and a sync of their own."""
_LOOKS: Final = 4
"""How often silence is looked for in the time that it may last."""
_TOGETHER_BYTES: Final = 32_768
"""How much the commits of one call may say: a script holds up everybody."""
_TOGETHER_KEYS: Final = 256
"""How many keys are read by one command, unless one caller wants more."""
_TIME: Final = packed((b"TIME",))
_CLOSED: Final = "closed by the server"
_NEVER: Final = 1 << 60
_UNKNOWN: Final = float("inf")


class Link(asyncio.Protocol):
    """The connection. ``confirmation`` is sent behind the commits of `send` of a turn, once for all of them."""

    def __init__(
        self, writer: asyncio.StreamWriter, calls: Calls, confirmation: Command | None, patience_seconds: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._new_future: Callable[[], Future] = partial(asyncio.Future, loop=self._loop)
        self._writer = writer  # kept, for it closes the transport when it goes
        transport: Any = writer.transport
        self._transport = transport
        self._scripts = calls
        self._confirmation = confirmation
        self._clock = Clock()
        self._reader = hiredis.Reader()
        self._calls: deque[Place] = deque()
        self._alone: list[tuple[Place, bytes]] = []
        self._commits: list[Commits] = []
        self._looks: list[Look] = []
        self._begun = 0
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
    def commit(self, part: Part) -> Future:
        """Send a commit with this turn's. The future's result is its answer as `shared.Commits` gives it, or `Lost`."""
        future = self._new_future()
        _, fields, rest, alone, _ = part
        size = len(fields) + len(rest)
        commits = self._commits[-1] if self._commits else None
        if commits is None or alone or commits.closed or commits.size + size > _TOGETHER_BYTES:
            commits = Commits(self._late, alone)
            self._commits.append(commits)
        commits.size += size
        commits.parts.append(part)
        commits.futures.append(future)
        self._begun += 1  # as `_count` does
        if not self._ending or self._begun >= self._half:
            self._count(0)
        return future

    def look(self, keys: Sequence[bytes]) -> Future:
        """Read keys with this turn's. The future's result is a `shared.Look` and where in it the first key's entry is,
        or the error reply, or `Lost`."""
        future = self._new_future()
        look = self._looks[-1] if self._looks else None
        if look is None or len(look.keys) + len(keys) > _TOGETHER_KEYS:
            look = Look(self._late, self._clock)
            self._looks.append(look)
        look.starts.append(len(look.keys) + 2)
        look.keys += keys
        look.futures.append(future)
        self._begun += 1  # as `_count` does
        if not self._ending or self._begun >= self._half:
            self._count(0)
        return future

    def send(self, commands: Sequence[Command], *, copies: bool = False) -> Group:
        """Send several commands in a row. The result is the list of replies, or `Lost`; ``copies``: the confirmation
        is the last of them."""
        copies = copies and self._confirmation is not None
        group = Group(self._new_future(), len(commands) + copies)
        self._alone += [(group, packed(command)) for command in commands]
        if copies:
            self._confirming.append(group)
        self._count()
        return group

    def _count(self, more: int = 1) -> None:
        """So many callers more in this turn."""
        if not self._ending:
            self._ending = True
            self._loop.call_soon(self._end_turn)
        self._begun += more
        if self._begun >= self._half:
            self._flush()

    def _end_turn(self) -> None:
        """Send what is left, and see whether the next turn is worth halving."""
        self._ending = False
        self._flush()
        self._sent_at = now = self.now()
        half = sum([place.callers() for place in self._calls]) // 2
        self._half = half if half >= _LEAST_HALF and self._waited < now - self._heard_at else _NEVER

    def _flush(self) -> None:
        if self.broken or not self._begun:  # whoever sent something hears of it from `connection_lost`
            return
        self._begun = 0
        calls, written = self._calls, []
        for place, command in self._alone:
            calls.append(place)
            written.append(command)
        self._alone = []
        if self._confirming and self._confirmation is not None:
            calls.append(Confirmation(self._confirming))
            written.append(packed(self._confirmation))
            self._confirming = []
        for commits in self._commits:
            calls.append(commits)
            written.append(self._scripts.commits(commits.parts))
        self._commits = []
        if self._looks:
            calls.append(self._clock)
            written.append(_TIME)
            for look in self._looks:
                calls.append(look)
                written.append(self._scripts.look(look.keys))
            self._looks = []
        if self._watch is None:
            self._heard = True
            self._look_later()
        self._transport.write(b"".join(written))

    def again(self, future: Future) -> Future | None:
        """A future for what a cancelled one of `commit` or `look` was waiting for; None if it was not of this link."""
        found = self._new_future()
        if future in self._late:
            found.set_result(self._late.pop(future))
            return found
        return next(
            (found for place in (*self._calls, *self._commits, *self._looks) if place.replace(future, found)), None
        )

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
                calls.popleft().take(reply)
        except (hiredis.ProtocolError, IndexError):  # not a Redis server, or not ours any more
            self.abandon()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.broken = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        text, silent = self._reason
        lost, unsent = Lost(text, True, silent), Lost(text, False, silent)
        for place in self._calls:
            place.lose(lost)
        for place in (*[place for place, _ in self._alone], *self._commits, *self._looks):
            place.lose(unsent)
        self._calls.clear()
        self._alone, self._commits, self._looks, self._confirming = [], [], [], []

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
