"""What every connection to a store shares: how to connect, what is expected of the server, and what a leaf offers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from interlock.backends.redis.scripts import Command, Part
from interlock.model import Key

DURABILITIES: Final = ("fsync", "replicated", "none")
REPEATS: Final = 3
"""How often commands that are no commit are sent again when their connection breaks."""


class Options(NamedTuple):
    """How to connect, and what is expected of the server."""

    target: Any
    """A URL, or the keyword arguments of redis-py's connections."""
    name: str
    connections: int
    durability: str
    replicas: int
    grace_seconds: float
    connect_seconds: float
    reply_seconds: float

    @property
    def confirmation(self) -> Command | None:
        """The command that waits until replicas have what this connection has written; None if nobody asks for that."""
        if self.durability != "replicated":
            return None
        return b"WAIT", b"%d" % self.replicas, b"%d" % int(1000 * self.confirmation_seconds)

    @property
    def confirmation_seconds(self) -> float:
        """How long the server may take over that."""
        return max(self.grace_seconds, 0.001) if self.durability == "replicated" else 0.0


class Lost(NamedTuple):
    """In place of a reply that will not come. ``sent``: the server may have seen the command; ``silent``: it has ended
    no connection, it just says nothing."""

    text: str
    sent: bool
    silent: bool


class Known:
    """The id of the store that both leaves of a store object have seen, b"" before the first: so that a store which has
    vanished is reported and not made anew."""

    def __init__(self) -> None:
        self.store = b""


class Moved(Exception):
    """The store's slot of the cluster is on another server."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}")
        self.host = host
        self.port = port


Ask = Callable[..., Awaitable[list[Any]]]
"""Sends commands in one go; their replies in order, error replies among them."""


class Driver(Protocol):
    """One leaf's connections."""

    def commit(self, part: Part) -> Awaitable[Any] | None:
        """Send a commit, together with others of this moment; what can be awaited is its answer, an error reply as it
        is, `shared.Together` in place of one that is to several, `Lost` where none will come. None where a connection
        has to be made first, or this leaf does not do it: then `ask` does."""
        return None

    def look(self, keys: Sequence[Key]) -> Awaitable[Any] | None:
        """Read keys, in the same way: a `shared.Look` and where in it the first key's entry is."""
        return None

    async def wait_out(self, begun: Any, interrupt: BaseException) -> None:
        """Wait for the answer to a commit of `commit` whose caller was interrupted, ``grace_seconds`` at most, and note
        on the interrupt how the commit ended."""
        return

    async def ask(self, *commands: Command, commits: bool = False, copies: bool = False) -> list[Any]:
        """Send commands in one go over one connection; their replies, error replies among them. ``commits``: they are
        not repeated and not cancelled, and a lost reply is unknown. ``copies``: with ``durability="replicated"`` the
        last reply is how many replicas have confirmed all this. What a silent server leaves unanswered is not repeated.

        Raises `BackendUnavailableError` or, with ``commits``, `CommitUnknownError`."""

    async def wait(self, look: Callable[[], Awaitable[bool]], position: int, timeout_seconds: float) -> bool:
        """Wait until the stream has something behind a position, or ``look`` finds something."""

    def distrust(self) -> None:
        """Give up the connections that are there: another server may be the right one now."""

    def cut(self) -> None:
        """End every connection without waiting, from any thread, and refuse more."""

    async def close(self) -> None:
        """Close every connection, and refuse more."""
