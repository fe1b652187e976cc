"""The transaction log: the feed of committed transactions in the words of users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from interlock import codec, keys
from interlock.core.cursors import cursor_of, token_of
from interlock.core.engine import Engine
from interlock.core.moments import moment_of
from interlock.core.refusals import transaction_text, version_text
from interlock.errors import BackendCorruptError, UsageError
from interlock.keys import UserKey as Key
from interlock.model import Change as Record
from interlock.model import Delete, Merge, Put, Settled, Span, Write

_PAGE = 500
_POLL_SECONDS = 3600.0

_STAGED: Final = keys.SYSTEM + b"outbox"
"""Where the layer of effects lists what was staged: a put there is an effect of the transaction."""

Cursor = str
Place = tuple[str, Key]


@dataclass(frozen=True, slots=True)
class Written:
    """What a transaction did to one key: ``kind`` is "put", "delete", "clear" or "merge".

    ``value`` is the value put; ``operations`` are the merges as (kind, operand, floor, ceiling)."""

    kind: str
    value: Any = None
    operations: tuple[tuple[str, Any, Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One committed transaction, as the feed has it. ``cursor`` is the place just behind it; ``at`` is the engine's
    time.

    ``reads`` maps (resource, key) to the version that was read, None for a key that did not exist. ``spans`` lists the
    ranges read, as hexadecimal bounds. ``writes`` maps (resource, key) to what was done. ``effects`` are those that
    were staged, as (effect, key). ``run_id`` is that of the call; of a transaction that is a step of a durable saga it
    is the saga, ``name/id``."""

    cursor: Cursor
    transaction_id: str
    agent: str
    at: datetime
    isolation: str
    operation: str | None
    run_id: str | None
    attempts: int
    version: str
    reads: Mapping[Place, str | None]
    spans: tuple[tuple[str, str], ...]
    writes: Mapping[Place, Written]
    effects: tuple[tuple[str, str], ...] = ()


def change_of(record: Record) -> Change:
    """The public form of a feed record; system keys are left out, but for effects that were staged."""
    writes: dict[Place, Written] = {}
    effects = []
    for key in record.cleared:
        place = keys.split(key)
        if place is not None:
            writes[place] = Written("clear")
    for key, write in record.writes.items():
        place = keys.split(key)
        if place is not None:
            writes[place] = _written(write)
        elif key.startswith(_STAGED) and type(write) is Put:
            parts = keys.decode(key[len(_STAGED) :])
            if type(parts) is not tuple or len(parts) < 2:
                raise BackendCorruptError(f"the key of a staged effect cannot be read: {key[:40].hex()}")
            effects.append((str(parts[1]), str(parts[0])))
    reads = {}
    for key, version in record.reads.items():
        place = keys.split(key)
        if place is not None:
            reads[place] = version_text(version)
    return Change(
        cursor=cursor_of(record.token),
        transaction_id=transaction_text(record.transaction),
        agent=record.agent,
        at=moment_of(record.at),
        isolation=record.isolation,
        operation=record.operation,
        run_id=record.run_id,
        attempts=record.attempt,
        version=version_text(record.version) or "",
        reads=reads,
        spans=tuple(_span(span) for span in record.spans),
        writes=writes,
        effects=tuple(effects),
    )


def _span(span: Span) -> tuple[str, str]:
    return span.start.hex(), span.stop.hex()


def _written(write: Write) -> Written:
    if type(write) is Put:
        return Written("put", codec.thaw(write.value))
    if type(write) is Delete:
        return Written("delete")
    assert type(write) is Merge
    return Written(
        "merge",
        operations=tuple(
            (
                operation.kind,
                _operand(operation.kind, operation.operand),
                _bound(operation.floor),
                _bound(operation.ceiling),
            )
            for operation in write.operations
        ),
    )


def _operand(kind: str, operand: bytes) -> Any:
    if kind in ("append", "set_add", "set_remove"):
        return codec.thaw(b"m" + operand)
    return codec.thaw(operand)


def _bound(bound: bytes | None) -> Any:
    return None if bound is None else codec.thaw(bound)


class TransactionLog:
    """The feed: every committed transaction once, after all that it depends on, as long as the store keeps history."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def head(self) -> Cursor:
        """The cursor behind everything that is committed now."""
        self._engine.check_open()
        return cursor_of(await self._engine.backend.snapshot())

    async def changes(self, since: Cursor | None = None, *, follow: bool = False) -> AsyncIterator[Change]:
        """Changes behind ``since`` (None: from the oldest kept), in an order that all that depends on them keeps.

        Ends at what is committed now, unless ``follow``: then it goes on for ever. Raises `SnapshotTooOldError` if
        something behind ``since`` is no longer kept, never skips it."""
        self._engine.check_open()
        token = None if since is None else token_of(since)
        backend = self._engine.backend
        end = None if follow else await backend.snapshot()
        while True:
            records, after = await backend.changes(token, limit=_PAGE)
            for record in records:
                if end is not None and record.version[0] > end.position:
                    return
                yield change_of(record)
            token = after
            if records:
                continue
            if not follow:
                return
            await backend.wait(token, _POLL_SECONDS)

    async def get(self, transaction_id: str) -> Change | None:
        """The change of a transaction, or None if it has not committed or is no longer kept."""
        self._engine.check_open()
        settled, record = await self._engine.backend.outcome(transaction_number(transaction_id), fence=False)
        return change_of(record) if settled is Settled.COMMITTED and record is not None else None

    async def wait(self, since: Cursor, *, timeout_seconds: float) -> bool:
        """Whether something behind ``since`` was committed before the time ran out; returns soon after it was."""
        self._engine.check_open()
        return await self._engine.backend.wait(token_of(since), timeout_seconds)


def transaction_number(transaction_id: object) -> int:
    """The number of a transaction's id as users see it. Raises `UsageError`."""
    if type(transaction_id) is str and len(transaction_id) == 32:
        try:
            return int(transaction_id, 16)
        except ValueError:
            pass
    raise UsageError(f"not a transaction's id: {transaction_id!r:.60}; it has 32 hexadecimal digits")
