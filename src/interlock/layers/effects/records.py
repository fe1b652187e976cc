"""The record of an effect: where it lies, what it holds, what may follow what.

One record for each effect, named by its key and the name under which it was staged ("" for `IdempotentExecutor`). While
an effect that was staged is not settled, an entry of the outbox, a key without content, stands beside its record, so
that dispatchers find what is open without looking at what is done. Both change in one commit, always.

The status moves as `MOVES` says; nothing else is ever written. PENDING and EXECUTING are one commit for an executor, so
PENDING is there only for what was staged, or was found not to have happened.

Times are the engine's seconds. The claim's end is ``claimed_at + claim_seconds``; nobody's own clock takes part.
Records that are settled well or badly expire with the idempotency keys of the store; one that is PENDING, EXECUTING or
UNKNOWN never does, because to forget it would be to free it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from interlock import codec, keys
from interlock.core.moments import moment_of
from interlock.errors import BackendCorruptError, SchemaMismatchError, UsageError
from interlock.layers.ledger import Kind
from interlock.model import Entry, Key, Put


class EffectStatus(enum.Enum):
    """Where an effect stands."""

    PENDING = "pending"
    """Intended, and nobody executes it."""
    EXECUTING = "executing"
    """Somebody holds the claim."""
    SUCCEEDED = "succeeded"
    """It has happened."""
    FAILED = "failed"
    """The act said that it failed."""
    UNKNOWN = "unknown"
    """It may or may not have happened."""

    __hash__ = object.__hash__  # each is there once; the hash of enum is a Python function of its own


PENDING, EXECUTING = EffectStatus.PENDING, EffectStatus.EXECUTING
SUCCEEDED, FAILED, UNKNOWN = EffectStatus.SUCCEEDED, EffectStatus.FAILED, EffectStatus.UNKNOWN

MOVES: Final[dict[EffectStatus | None, frozenset[EffectStatus | None]]] = {
    None: frozenset((PENDING, EXECUTING)),
    PENDING: frozenset((EXECUTING, SUCCEEDED, FAILED)),
    EXECUTING: frozenset((EXECUTING, SUCCEEDED, FAILED, UNKNOWN, PENDING, None)),
    UNKNOWN: frozenset((EXECUTING, SUCCEEDED, FAILED, PENDING, UNKNOWN)),
    FAILED: frozenset((EXECUTING, SUCCEEDED, PENDING, FAILED)),
    SUCCEEDED: frozenset((SUCCEEDED,)),
}
"""Status -> what may follow it. None: no record. EXECUTING goes back to what was before only while the act has not
begun; SUCCEEDED is written again only to complete it with a result that could not be stored."""


class Stored(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a record holds. ``claim`` names the claim, 0 where there is none; ``order`` is where in the engine's order
    an effect was staged (0: the record's own version still says it), ``turn`` which of one transaction's it was."""

    status: EffectStatus
    fingerprint: bytes
    operation: str
    created_at: float
    updated_at: float
    agent: str = ""
    attempts: int = 0
    claim: int = 0
    claimed_by: str = ""
    claimed_at: float = 0.0
    claim_seconds: float = 0.0
    result: bytes | None = None
    error: str | None = None
    payload: bytes | None = None
    order: int = 0
    turn: int = 0
    due_at: float = 0.0

    @property
    def claim_ends_at(self) -> float:
        """The engine's time at which the claim ends."""
        return self.claimed_at + self.claim_seconds

    def moved(self, status: EffectStatus, **changes: Any) -> Stored:
        """The record in its next status. Raises `UsageError` for a move that `MOVES` does not have."""
        if status not in MOVES[self.status]:
            raise UsageError(f"an effect that is {self.status.value} cannot become {status.value}")
        changed: Stored = msgspec.structs.replace(self, status=status, **changes)
        return changed

    def at_order(self, order: int) -> Stored:
        """The same, with its place in the engine's order."""
        placed: Stored = msgspec.structs.replace(self, order=order)
        return placed


_Form = tuple[str, int, Stored]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Form).decode


@dataclass(frozen=True, slots=True)
class EffectKind(Kind):
    """The records of effects: a struct in the place of plain data, for speed. `interlock.codec` reads it all the
    same."""

    def put(self, value: Any, *, ttl_seconds: float | None = None, listed: bool = True) -> Put:
        """The write of a record."""
        return Put(b"m" + _encode((self.name, self.schema, value)), ttl_seconds, listed)

    def load(self, entry: Entry | None) -> Any:
        """The `Stored` of an entry; None where there is none."""
        if entry is None or entry.value is None:
            return None
        try:
            name, schema, stored = _decode(memoryview(entry.value)[1:])
        except msgspec.DecodeError as error:
            if self._newer(entry.value):
                raise SchemaMismatchError("an effect's record was written by a newer version of Interlock") from error
            raise BackendCorruptError(f"an effect's record cannot be read: {error}") from error
        if name != self.name:
            raise BackendCorruptError("what lies in the place of an effect's record is something else")
        if schema != self.schema:
            raise SchemaMismatchError(f"an effect's record has form {schema}, this version knows {self.schema}")
        return stored

    def _newer(self, raw: bytes) -> bool:
        try:
            name, schema, _ = codec.thaw(raw)
        except (BackendCorruptError, ValueError, TypeError):
            return False
        return bool(name == self.name and type(schema) is int and schema > self.schema)


EFFECT: Final = EffectKind("effect", count=2)
"""Parts: the effect's key, the name that it was staged under ("" for an executor's)."""
OUTBOX: Final = Kind("outbox", count=2)
"""The same parts, while an effect that was staged is open."""
OPEN: Final = OUTBOX.put(None)


def effect_key(key: str, effect: str = "") -> Key:
    """Where the record of an effect lies."""
    return EFFECT.key(key, effect)


def check_key(key: object) -> str:
    """An effect's key as it is. Raises `UsageError` or `LimitExceededError`."""
    return keys.check_name("an effect's key", key)


def check_effect(effect: object) -> str:
    """The name that effects are staged under. Raises `UsageError` or `LimitExceededError`."""
    return keys.check_name("an effect's name", effect)


def live(stored: Stored | None, expired: bool) -> Stored | None:
    """A record that counts: one that has expired is as good as none."""
    return None if expired else stored


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect as the journal shows it.

    ``status``: an effect whose claim has ended without a word is UNKNOWN here, whether or not that is written down
    already. ``effect`` is the name that it was staged under, "" for one of `IdempotentExecutor`. ``result`` is None
    unless it SUCCEEDED; ``error`` says in words why it failed, is unknown, or has no result. ``claimed_by`` is who
    holds or last held the claim, ``seconds_left`` for how long (None: nobody does)."""

    key: str
    effect: str
    status: EffectStatus
    result: Any
    error: str | None
    payload: Any
    operation: str
    agent: str
    attempts: int
    claimed_by: str
    seconds_left: float | None
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None = None


def status_at(stored: Stored, at: float) -> EffectStatus:
    """The status at a moment of the engine's clock: a claim that has ended is UNKNOWN."""
    return UNKNOWN if stored.status is EXECUTING and stored.claim_ends_at <= at else stored.status


def effect_of(key: Key, stored: Stored, at: float) -> Effect:
    """The public form of a record."""
    name, effect = EFFECT.parts(key)
    status = status_at(stored, at)
    error = stored.error
    if status is UNKNOWN and stored.status is EXECUTING:
        error = expired_text(stored)
    return Effect(
        key=str(name),
        effect=str(effect),
        status=status,
        result=None if stored.result is None else codec.thaw(stored.result),
        error=error,
        payload=None if stored.payload is None else codec.thaw(stored.payload),
        operation=stored.operation,
        agent=stored.agent,
        attempts=stored.attempts,
        claimed_by=stored.claimed_by,
        seconds_left=stored.claim_ends_at - at if status is EXECUTING else None,
        created_at=moment_of(stored.created_at),
        updated_at=moment_of(stored.updated_at),
        due_at=moment_of(stored.due_at) if status is PENDING and stored.due_at else None,
    )


def expired_text(stored: Stored) -> str:
    """Why an effect is unknown whose claim has ended."""
    claimed = f"{stored.claimed_by} claimed it for {stored.claim_seconds:g} s"
    return f"{claimed}, and neither recorded its end nor renewed the claim"
