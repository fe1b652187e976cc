"""The outbox: effects that are staged in a session, committed with its state, and dispatched afterwards.

`stage` puts the effect's record, PENDING, and its entry of the outbox into the session's own commit, with the
expectation that there is no such record yet. So an effect is there if and only if the state is, whatever is rolled
back, lost or run again. The same effect staged once more under the same key is the same effect; with another payload it
is `IdempotencyMismatchError`.
"""

from __future__ import annotations

import itertools
from typing import Any

from interlock import codec
from interlock.core.carrying import Guard, carry
from interlock.core.engine import Engine
from interlock.core.refusals import conflict_error
from interlock.core.transaction import Transaction
from interlock.errors import IdempotencyMismatchError
from interlock.layers.effects.calls import payload_fingerprint
from interlock.layers.effects.journal import Journal
from interlock.layers.effects.records import (
    EFFECT,
    FAILED,
    OPEN,
    OUTBOX,
    PENDING,
    Stored,
    check_effect,
    check_key,
    effect_key,
    live,
)
from interlock.model import Clash, Entry, Put


class Staging:
    """`AgentSession.stage` of one store."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._turns = itertools.count(1)

    async def stage(self, txn: Transaction, effect: str, payload: Any, key: str) -> None:
        """Add an effect to a transaction."""
        if txn.state:
            txn.refuse("stage")
        try:
            await self._stage(txn, check_effect(effect), payload, check_key(key))
        except BaseException as error:
            txn.doom(error)
            raise

    async def _stage(self, txn: Transaction, effect: str, payload: Any, key: str) -> None:
        record_key, fingerprint = effect_key(key, effect), payload_fingerprint(effect, payload)
        frozen = codec.freeze(payload)
        own = txn.writes.get(record_key)
        if type(own) is Put:
            check_payload(EFFECT.load(Entry((0, 0), own.value)), fingerprint, effect, key)
            return
        found = await txn.alone(self._journal.read(record_key))
        record, at = found.records[0], found.at or 0.0
        before: Stored | None = live(record.value, record.expired)
        if before is not None:
            check_payload(before, fingerprint, effect, key)
            if before.status is not FAILED:
                return
        stored = Stored(PENDING, fingerprint, effect, at, at, agent=txn.agent, payload=frozen, turn=next(self._turns))
        writes = {record_key: EFFECT.put(stored), OUTBOX.key(key, effect): OPEN}

        def refused(guard: Guard, clash: Clash) -> BaseException | None:
            """Somebody has staged it meanwhile: the same is well, anything else is refused."""
            now = clash.current
            if now is None or not now.value:  # too large to be told, or changed again
                return conflict_error((clash,), {}, txn.id)
            other = EFFECT.load(now)
            if other.fingerprint != fingerprint:
                return mismatch(effect, key)
            if other.status is FAILED:
                return conflict_error((clash,), {}, txn.id)
            for written in writes:
                txn.writes.pop(written, None)
            guard.expected = now.version
            return None

        carry(txn, guards={record_key: Guard(record.expected, refused=refused)}, writes=writes)


def check_payload(stored: Stored, fingerprint: bytes, effect: str, key: str) -> None:
    """Raises `IdempotencyMismatchError` if the effect was staged with another payload."""
    if stored.fingerprint != fingerprint:
        raise mismatch(effect, key)


def mismatch(effect: str, key: str) -> IdempotencyMismatchError:
    """The error for a key that was used with another payload."""
    return IdempotencyMismatchError(
        f"effect {effect!r} was staged before under key {key!r} with another payload", idempotency_key=key
    )


def open_journal(engine: Engine) -> Journal:
    """The journal of a store that is being made; its sessions stage into it."""
    journal = Journal(engine)
    engine.stage = Staging(journal).stage
    engine.closing.append(journal.keeper.close)
    return journal
