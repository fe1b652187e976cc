"""What the leases and locks of one store object share, and where their tables lie."""

from __future__ import annotations

from typing import Final

import msgspec

from interlock.core.engine import Engine
from interlock.errors import BackendCorruptError
from interlock.gates import Gates
from interlock.layers import queues
from interlock.layers.keeper import Keeper
from interlock.layers.ledger import Kind, Ledger
from interlock.layers.queues import Table, Target
from interlock.layers.tenures import Witness
from interlock.model import ABSENT, Delete, Entry, Expectation, Key, Token, Write

WAITS: Final = Kind("waits")
"""Where an owner waits: the key of a table."""
OPERATION: Final = "interlock.locks"
"""The operation name of these commits."""
POLL_SECONDS: Final = 1.0
"""The longest wait before looking again without news."""
_KNOWN: Final = 4096


class Place(msgspec.Struct, frozen=True):
    """A table, or a part of one: of a resource's locks, or of one lease. ``name`` is for people, ``whole`` is the
    target that covers it, ``durable``: grants survive a crash of the engine, ``splits``: it may be split."""

    kind: Kind
    key: Key
    name: str
    whole: Target
    durable: bool
    splits: bool = False


class Desk:
    """What the leases and locks of one store object share."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ledger = Ledger(engine)
        self.keeper = Keeper(engine)
        self.witness = Witness()
        self.gates = Gates(engine.runtime)
        self.tables: dict[Key, tuple[Expectation, Table]] = {}
        """Tables as they were last seen or written here: a guess, which the commit checks."""
        self.token: Token | None = None

    def new_owner(self) -> str:
        """The id of a new owner."""
        return f"{self.engine.new_id():032x}"

    def remember(self, key: Key, expected: Expectation, table: Table) -> None:
        """Note a table, or a part of one, for the next guess."""
        if len(self.tables) >= _KNOWN:
            self.tables.clear()
        self.tables[key] = (expected, table)

    def close(self) -> None:
        """The store is closed."""
        self.keeper.close()


def table_of(place: Place, entry: Entry | None) -> tuple[Expectation, Table]:
    """The table of an entry, and what a commit expects that relies on it. Raises `BackendCorruptError`."""
    try:
        table = queues.from_plain(place.kind.load(entry))
    except (ValueError, TypeError) as error:
        raise BackendCorruptError(f"the table of {place.name} cannot be read: {error}") from error
    return (ABSENT if entry is None or entry.value is None else entry.version), table


def put_table(place: Place, table: Table) -> Write:
    """The write of a table; an empty one is no record at all, unless it is split."""
    return place.kind.put_plain(table.plain()) if table.seats or table.split else Delete()
