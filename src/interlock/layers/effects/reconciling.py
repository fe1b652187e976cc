"""Looking at the journal, and settling what nobody knows: `get`, `list`, `reconcile`, `resolve`.

Reconciling an effect is in this order: a claim that has ended is taken away first, and only then the probe is asked; so
the worker that lost the claim cannot begin between the answer and what is made of it (see
`interlock.layers.effects.journal`). Every write expects the record that was read; if it has changed, it is read anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from interlock import codec
from interlock.errors import NotFoundError, UsageError
from interlock.layers.effects.answers import NOT_HAPPENED, Happened
from interlock.layers.effects.journal import Journal
from interlock.layers.effects.probing import ask, happened
from interlock.layers.effects.records import (
    EFFECT,
    EXECUTING,
    FAILED,
    MOVES,
    OPEN,
    OUTBOX,
    PENDING,
    SUCCEEDED,
    UNKNOWN,
    Effect,
    EffectStatus,
    Stored,
    check_effect,
    check_key,
    effect_of,
    live,
    status_at,
)
from interlock.layers.ledger import Found, Record
from interlock.model import Delete, Key, Write
from interlock.wording import error_text

_PAGE: Final = 500
_TRIES: Final = 100
_NOTED: Final = "resolved by hand"


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What `EffectStore.reconcile` found, as (key, effect) pairs; ``effect`` is "" for one of `IdempotentExecutor`.

    ``happened``: SUCCEEDED now. ``not_happened``: PENDING now; they may be executed again. ``unknown``: nobody could
    tell, and ``errors`` says where a probe raised. ``live``: somebody is executing them."""

    happened: list[tuple[str, str]] = field(default_factory=list)
    not_happened: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    live: list[tuple[str, str]] = field(default_factory=list)
    errors: dict[tuple[str, str], str] = field(default_factory=dict)


def place_of(key: Key) -> tuple[str, str]:
    """The key and the effect's name of a record."""
    name, effect = EFFECT.parts(key)
    return str(name), str(effect)


async def find(journal: Journal, key: str, effect: str | None) -> tuple[Record, float] | None:
    """The record of a key; None where there is none.

    Raises `UsageError` if several effects were staged under the key and ``effect`` does not say which is meant."""
    journal.engine.check_open()
    check_key(key)
    if effect is not None:
        if effect:
            check_effect(effect)
        found = await journal.read(EFFECT.key(key, effect))
        records: list[Record] = list(found.records)
    else:
        page = await journal.scan(EFFECT, (key,))
        if not page.records:
            return None
        found = await journal.ledger.read(EFFECT, [record.key for record in page.records])
        records = list(found.records)
    records = [record for record in records if live(record.value, record.expired) is not None]
    if len(records) > 1:
        names = ", ".join(repr(place_of(record.key)[1]) for record in records)
        raise UsageError(f"several effects have the key {key!r}: {names}; say which with effect=")
    return (records[0], found.at or 0.0) if records else None


async def get(journal: Journal, key: str, effect: str | None) -> Effect | None:
    """`EffectStore.get`."""
    found = await find(journal, key, effect)
    return None if found is None else effect_of(found[0].key, found[0].value, found[1])


async def records_of(journal: Journal) -> AsyncIterator[tuple[Key, Stored, float]]:
    """All records that count, in the order of keys, each page as of its own moment."""
    journal.engine.check_open()
    after: tuple[str | int, ...] | None = None
    while True:
        page = await journal.scan(EFFECT, after=after, limit=_PAGE)
        at = await journal.engine.backend.now()
        for record in page.records:
            expires_at = None if record.entry is None else record.entry.expires_at
            if record.value is not None and (expires_at is None or expires_at > at):
                yield record.key, record.value, at
        if not page.more or not page.records:
            return
        after = EFFECT.parts(page.records[-1].key)


async def list_effects(journal: Journal, status: EffectStatus | None) -> list[Effect]:
    """`EffectStore.list`."""
    if status is not None and type(status) is not EffectStatus:
        raise UsageError(f"status is an EffectStatus, not {status!r}")
    return [
        effect_of(key, stored, at)
        async for key, stored, at in records_of(journal)
        if status is None or status_at(stored, at) is status
    ]


async def reconcile(
    journal: Journal, key: str | None, effect: str | None, verify: Callable[[str], Any] | None
) -> Reconciled:
    """`EffectStore.reconcile`."""
    report = Reconciled()
    if key is None:
        wanted = [
            raw
            async for raw, stored, at in records_of(journal)
            if status_at(stored, at) in (UNKNOWN, EXECUTING) and effect in (None, place_of(raw)[1])
        ]
    else:
        found = await find(journal, key, effect)
        if found is None:
            raise no_effect(key)
        wanted = [found[0].key]
    for raw in wanted:
        await _reconcile(journal, raw, verify, report)
    return report


async def _reconcile(journal: Journal, raw: Key, verify: Callable[[str], Any] | None, report: Reconciled) -> None:
    place = place_of(raw)
    while True:
        found = await journal.read(raw)
        record, at = found.records[0], found.at or 0.0
        stored = live(record.value, record.expired)
        if stored is None or stored.status not in (EXECUTING, UNKNOWN):
            return
        if stored.status is EXECUTING:
            if stored.claim_ends_at > at:
                report.live.append(place)
                return
            await journal.revoke(record, found)
            continue
        probe = verify
        if probe is None and place[1] in journal.handlers:
            probe = journal.handlers[place[1]].verify
        answer, trouble = (None, None) if probe is None else await ask(probe, place[0])
        if type(answer) is Happened:
            if await journal.write(raw, happened(stored, answer, at), record.expected, found, closes=True):
                report.happened.append(place)
                return
        elif answer is NOT_HAPPENED:
            pending = stored.moved(PENDING, updated_at=at, due_at=0.0, error="verify: it has not happened")
            if await journal.write(raw, pending, record.expected, found):
                report.not_happened.append(place)
                return
        else:
            report.unknown.append(place)
            if trouble is not None:
                report.errors[place] = error_text(trouble)
            return


async def resolve(journal: Journal, key: str, status: EffectStatus, result: Any, effect: str | None) -> Effect:
    """`EffectStore.resolve`."""
    if status not in (SUCCEEDED, FAILED, PENDING):
        raise UsageError(f"an effect is resolved as SUCCEEDED, FAILED or PENDING, not {status!r}")
    if result is not None and status is not SUCCEEDED:
        raise UsageError("only an effect that SUCCEEDED has a result")
    codec.freeze(result)
    for _ in range(_TRIES):
        place = await find(journal, key, effect)
        if place is None:
            raise no_effect(key)
        found = await journal.read(place[0].key)
        record = found.records[0]
        stored = live(record.value, record.expired)
        if stored is None:
            continue
        written = _resolved(stored, status, result, found.at or 0.0, key)
        if await _write_resolved(journal, record, written, found):
            return effect_of(record.key, written, found.at or 0.0)
    raise UsageError(f"effect {key!r} changes again and again; it is being executed")


def _resolved(stored: Stored, status: EffectStatus, result: Any, at: float, key: str) -> Stored:
    """The record as somebody says it is. Raises `UsageError` where the record knows better."""
    if stored.status is EXECUTING and stored.claim_ends_at > at:
        raise UsageError(
            f"effect {key!r} is being executed by {stored.claimed_by} for another {stored.claim_ends_at - at:.0f} s; "
            "resolve it when that has ended"
        )
    if stored.status is SUCCEEDED and stored.result is not None:
        raise UsageError(f"effect {key!r} has SUCCEEDED and has a result; there is nothing to resolve")
    if status not in MOVES[stored.status]:
        raise UsageError(f"effect {key!r} is {stored.status.value} and cannot be resolved as {status.value}")
    if status is SUCCEEDED:
        return happened(stored, Happened(result), at)
    if status is FAILED:
        return stored.moved(FAILED, updated_at=at, error=stored.error or _NOTED)
    return stored.moved(PENDING, updated_at=at, due_at=0.0, attempts=0, error=None)


async def _write_resolved(journal: Journal, record: Record, stored: Stored, found: Found) -> bool:
    writes: dict[Key, Write] = {record.key: journal.put(stored)}
    if stored.payload is not None:
        writes[OUTBOX.key(*EFFECT.parts(record.key))] = OPEN if stored.status is PENDING else Delete()
    return await journal.commit(writes, {record.key: record.expected}, found.token, durable=True) is not None


def no_effect(key: str) -> NotFoundError:
    """The error for a key that the journal does not know."""
    return NotFoundError(f"there is no effect under {key!r}", resource="effects", key=key)
