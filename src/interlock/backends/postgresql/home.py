"""What a connection knows about the store it is connected to, and what it asks of the server.

A connection learns the store's id and epoch once, when it is made. An epoch ends only with a crash of the server, which
ends every connection, so the epoch of a connection never changes. See the package's docstring for what it is for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from interlock.backends.postgresql.tokens import Snapshot, from_detail
from interlock.errors import (
    BackendUnavailableError,
    SchemaMismatchError,
    SnapshotTooOldError,
    UnsupportedError,
    UsageError,
)
from interlock.model import Key, Page, Reply, Token

if TYPE_CHECKING:
    from interlock.backends.postgresql.groups import Job
    from interlock.backends.postgresql.reads import Look, Shown
    from interlock.backends.postgresql.scans import Wanted

SCHEMA_VERSION: Final = 4
OLDEST_SERVER: Final = 130000
DURABILITIES: Final = ("fsync", "none")
LOCKINGS: Final = ("advisory", "serializable")
REPEATS: Final = 3
"""How often a statement that is no commit is sent again when its connection breaks."""
TURNS: Final = 50
"""How often a statement is sent that the server rolls back because of others."""

Row = Sequence[Any]


class Options(NamedTuple):
    """How to connect, and what is expected of the server."""

    dsn: str
    schema: str
    connections: int
    durability: str
    grace_seconds: float
    connect_seconds: float
    locking: str = "advisory"
    pooler: bool = False


class Home(NamedTuple):
    """The store behind a connection."""

    store: int
    epoch: int
    floor_epoch: int

    def admit(self, token: Token) -> Snapshot:
        """The snapshot of a token. Raises `UsageError` for another store's, `SnapshotTooOldError` for one from before a
        crash that may have lost something that it shows."""
        if token.store != self.store:
            raise UsageError("the token belongs to another store")
        if token.incarnation != self.epoch and not self.floor_epoch <= token.incarnation < self.epoch:
            raise SnapshotTooOldError("the server has lost commits that were not durable since the snapshot was taken")
        return from_detail(token.position, token.detail)


class Driver(Protocol):
    """One leaf's connections."""

    async def fetch(
        self, name: str, arguments: Sequence[Any], *, at: Token | None = None, commits: bool = False, soft: bool = False
    ) -> tuple[list[Row], Home]:
        """Execute a statement in a transaction of its own. ``at`` must be a token that the connection admits;
        ``commits``: it is not repeated, not cancelled, and its loss is unknown; ``soft``: it may be lost in a crash."""

    async def ask(self, seconds: float, name: str, arguments: Sequence[Any], *, at: Token) -> list[Row]:
        """As `fetch`, for a question that may be asked again: a connection that says nothing for ``seconds`` is given
        up, as a network that has lost a route gives no other sign. A driver that blocks waits for as long as TCP does.
        """

    async def look(self, keys: Sequence[Key]) -> Look:
        """The newest entries of some keys."""

    async def read_at(self, keys: Sequence[Key], at: Token) -> Shown:
        """What a snapshot shows of some keys. Raises what `Home.admit` raises, and `SnapshotTooOldError`."""

    async def scan(self, wanted: Wanted) -> Page:
        """A page of a range. Raises what `Home.admit` raises, and `SnapshotTooOldError`."""

    async def commit(self, job: Job) -> Reply:
        """A commit that may go together with others. Raises `DuplicateId` and what a backend's commit raises."""

    def cut(self) -> None:
        """End every connection without waiting, from any thread, and refuse more."""

    async def close(self) -> None:
        """Close every connection, and refuse more."""


Execute = Callable[[str], Awaitable[Any]]
Select = Callable[[str], Awaitable[Row]]


async def check_server(select: Select, options: Options, process: int) -> None:
    """Raises `UnsupportedError` for a server that is too old, `BackendUnavailableError` for one that only reads, and
    `UsageError` if the server process that answers is not the ``process`` that has greeted the driver: then a pooler
    lies between, behind which a statement that we have prepared may be that of somebody else.

    Also has the server keep its plans: it would plan a statement over arrays anew each time, for their lengths, which
    takes longer than the statement. Behind a pooler the session is not ours, and nothing is set in it."""
    wanted = ["current_setting('server_version_num')::int", "pg_is_in_recovery()", "pg_backend_pid()"]
    if not options.pooler:
        wanted += ["set_config('plan_cache_mode', 'force_generic_plan', false)", "set_config('jit', 'off', false)"]
    number, recovering, answering, *_ = await select("SELECT " + ", ".join(wanted))
    if answering != process and not options.pooler:
        raise UsageError("a pooler lies between the server and us: open the store with pooler=True")
    if number < OLDEST_SERVER:
        raise UnsupportedError(f"PostgreSQL {number // 10000} is too old: Interlock needs 13 or newer")
    if recovering:
        raise BackendUnavailableError("this PostgreSQL server is a read-only replica; name the primary")


ISOLATE: Final = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"
"""What a connection does last when it greets the server, with ``locking="serializable"``."""


def welcome(row: Row, options: Options) -> Home:
    """Judge what `hello` said. Raises `SchemaMismatchError`, `UsageError` or `BackendUnavailableError`."""
    store, epoch, floor_epoch, version, fsync, synchronous, read_only = row
    if version != SCHEMA_VERSION:
        raise SchemaMismatchError(f"the store has schema version {version}, this Interlock knows {SCHEMA_VERSION}")
    if read_only == "on":
        raise BackendUnavailableError("the connection is read-only (default_transaction_read_only, or a replica)")
    if options.durability == "fsync":
        for name, value in (("fsync", fsync), ("synchronous_commit", synchronous)):
            if value == "off":
                raise UsageError(
                    f"{name} is off on this server, so acknowledged commits can be lost: turn it on,"
                    " or open the store with durability='none'"
                )
    return Home(store, epoch, floor_epoch)
