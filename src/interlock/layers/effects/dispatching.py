"""Dispatching: executing what was staged, **at least once, in order per key, without double work.**

- An effect is taken by a claim, as everywhere (`interlock.layers.effects.journal`), so of several dispatchers, in
  whatever process, one executes it.
- Effects that share a key are done in the order in which they were committed (within one commit, staged). One is begun
  only after all before it have been seen SUCCEEDED or FAILED, which are final for a dispatcher; so while the first is
  claimed, waits for its next attempt, is unknown or has no handler here, those behind it wait. An effect that is
  committed later comes later, so what a dispatcher has not seen yet is never in front of what it has seen.
- A handler that raises is called again after a growing pause. The pause is in the record, so it holds for every
  dispatcher. After the policy's attempts the effect is parked: FAILED, with its error, out of the outbox; those behind
  it go on.
- A dispatcher that dies leaves a claim that ends, so UNKNOWN; so does one that is cancelled during the act, or a
  handler whose error says that no answer came. With a ``verify`` probe nothing is repeated before it has said
  NOT_HAPPENED; without one the effect is executed again under the same key: at least once is what an outbox promises.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from interlock import codec
from interlock.core.retry import RetryPolicy, backoff_seconds
from interlock.errors import EffectUnknownError, LimitExceededError, UsageError, ValueRefusedError
from interlock.layers.effects.answers import NOT_HAPPENED, Happened
from interlock.layers.effects.calls import Act, close_unused, is_unanswered
from interlock.layers.effects.journal import CLAIM_SECONDS, Claim, Journal, Moment
from interlock.layers.effects.probing import ask, happened
from interlock.layers.effects.records import (
    EFFECT,
    EXECUTING,
    FAILED,
    OUTBOX,
    PENDING,
    SUCCEEDED,
    UNKNOWN,
    Stored,
)
from interlock.layers.ledger import Found, Record
from interlock.model import Key
from interlock.wording import error_text

HANDLER_RETRY: Final = RetryPolicy(max_attempts=10, base_seconds=1.0, cap_seconds=300.0)
"""How often a handler is called before its effect is parked, and how long to pause in between."""
_PAGE: Final = 200

log = logging.getLogger("interlock")


@dataclass(frozen=True, slots=True)
class Handler:
    """What executes the effects of one name."""

    act: Callable[..., Any]
    verify: Callable[[str], Any] | None = None
    retry: RetryPolicy = HANDLER_RETRY


@dataclass(slots=True)
class Dispatched:
    """What one call of `EffectStore.dispatch` has done, and what it has left.

    ``succeeded``: done now, or found to have happened. ``failed``: parked after their last attempt. ``retrying``:
    failed now, and to be tried again. ``waiting``: not due yet, being executed elsewhere, or behind another one of
    their key. ``unknown``: nobody can tell; they wait for `reconcile` or `resolve`. ``unhandled``: there is no handler
    here."""

    succeeded: int = 0
    failed: int = 0
    retrying: int = 0
    waiting: int = 0
    unknown: int = 0
    unhandled: int = 0


class Dispatch:
    """One call of `EffectStore.dispatch`."""

    def __init__(self, journal: Journal, limit: int | None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise UsageError(f"limit is a whole number from 1, not {limit!r}")
        self.journal = journal
        self.left = limit
        self.done = Dispatched()

    async def run(self) -> Dispatched:
        """Go through the outbox once, in the order of keys; those of one key are looked at together."""
        self.journal.engine.check_open()
        group: list[Key] = []
        after: tuple[str | int, ...] | None = None
        more = True
        while more:
            page = await self.journal.scan(OUTBOX, after=after, limit=_PAGE)
            more = page.more and bool(page.records)
            for found in page.records:
                after = OUTBOX.parts(found.key)
                if group and EFFECT.parts(group[0])[0] != after[0]:
                    await self._group(group)
                    group = []
                    if self.left == 0:
                        return self.done
                group.append(EFFECT.key(*after))
        if group:
            await self._group(group)
        return self.done

    async def _group(self, wanted: list[Key]) -> None:
        """The effects of one key, one after the other."""
        found = await self.journal.ledger.read(EFFECT, wanted)
        records = sorted((record for record in found.records if record.value is not None), key=_order)
        for place, record in enumerate(records):
            if self.left == 0:
                return
            if not await self._deliver(record.key):
                self.done.waiting += len(records) - place - 1
                return

    async def _deliver(self, key: Key) -> bool:
        """Do what there is to be done for the first open effect of a key; whether it is settled."""
        while True:
            since = self.journal.moment()
            found = await self.journal.read(key)
            record = found.records[0]
            stored: Stored | None = record.value
            if stored is None or stored.status is SUCCEEDED or stored.status is FAILED:
                return True
            handler = self.journal.handlers.get(str(EFFECT.parts(key)[1]))
            at = found.at or 0.0
            if handler is None:
                self.done.unhandled += 1
                return False
            if stored.status is EXECUTING:
                if stored.claim_ends_at > at:
                    self.done.waiting += 1
                    return False
                await self.journal.revoke(record, found)
            elif stored.due_at > at:
                self.done.waiting += stored.status is PENDING
                self.done.unknown += stored.status is UNKNOWN
                return False
            elif stored.status is UNKNOWN and handler.verify is not None:
                settled = await self._ask(record, stored, found, handler)
                if settled is not None:
                    return settled
            else:
                settled = await self._take(record, stored, found, handler, since)
                if settled is not None:
                    return settled

    async def _ask(self, record: Record, stored: Stored, found: Found, handler: Handler) -> bool | None:
        """Ask the probe about an unknown effect. None: look again."""
        assert handler.verify is not None
        answer, trouble = await ask(handler.verify, str(EFFECT.parts(record.key)[0]))
        at = found.at or 0.0
        if type(answer) is Happened:
            if await self.journal.write(record.key, happened(stored, answer, at), record.expected, found, closes=True):
                self.done.succeeded += 1
                return True
            return None
        if answer is NOT_HAPPENED:  # asking may have taken long: a claim is based on a fresh reading
            since = self.journal.moment()
            fresh = await self.journal.read(record.key)
            if fresh.records[0].version != record.version:
                return None
            return await self._take(fresh.records[0], stored, fresh, handler, since)
        said = "verify cannot tell" if trouble is None else f"verify failed: {error_text(trouble)}"
        due_at = at + self._pause_seconds(handler, max(2, stored.attempts + 1))
        first = (stored.error or "").partition("; verify")[0]
        waiting = stored.moved(UNKNOWN, updated_at=at, due_at=due_at, error=f"{first}; {said}")
        if await self.journal.write(record.key, waiting, record.expected, found):
            self.done.unknown += 1
            return False
        return None

    async def _take(self, record: Record, stored: Stored, found: Found, handler: Handler, since: Moment) -> bool | None:
        """Claim and execute. None: somebody else was faster, look again."""
        if not stored.order:  # never claimed: the record's own version says where it was staged
            version = record.version
            stored = stored.at_order(0 if version is None else version[0])
        claim = await self.journal.claim_to_begin(record, stored, found, CLAIM_SECONDS, since)
        if claim is None:
            return None
        if self.left is not None:
            self.left -= 1
        return await self._perform(claim, handler)

    async def _perform(self, claim: Claim, handler: Handler) -> bool:
        """Call the handler under the claim and record its end; whether the effect is settled."""
        journal = self.journal
        handled = sys.exception()
        key = str(EFFECT.parts(claim.key)[0])
        assert claim.stored.payload is not None
        journal.keeper.hold(claim)
        try:
            value = Act(handler.act, (codec.thaw(claim.stored.payload),), key).call()
            if hasattr(value, "__await__"):
                if not journal.engine.runtime.suspends:
                    close_unused(value)
                    raise UsageError(f"the handler of {EFFECT.parts(claim.key)[1]!r} is asynchronous")
                value = await value
        except GeneratorExit:  # nothing may be awaited here; the claim ends by itself
            raise
        except Exception as error:
            return await self._failed(claim, handler, error, handled)
        except BaseException as interrupt:
            await journal.settle(claim, UNKNOWN, error=error_text(interrupt), durable=True)
            raise
        finally:
            journal.keeper.release(claim)
        changes: dict[str, Any]
        try:
            changes = {"result": codec.freeze(value)}
        except (ValueRefusedError, LimitExceededError) as refused:
            changes = {"error": f"its result could not be stored: {refused}"}
        return await self._settle(claim, SUCCEEDED, "succeeded", **changes)

    async def _failed(self, claim: Claim, handler: Handler, error: Exception, handled: BaseException | None) -> bool:
        attempts = claim.stored.attempts
        log.warning("effect %r failed at attempt %d: %s", EFFECT.parts(claim.key), attempts, error_text(error))
        text = error_text(error)
        if handler.verify is not None and is_unanswered(error, handled):
            return await self._settle(claim, UNKNOWN, "unknown", error=text)
        if attempts >= handler.retry.max_attempts:
            return await self._settle(claim, FAILED, "failed", error=text)
        seconds = self.journal.engine.runtime.monotonic() - claim.monotonic
        pause = self._pause_seconds(handler, attempts + 1)
        # ``seconds`` began before the claim's time was read, so their sum is a little in the future.
        due_at = claim.stored.claimed_at + seconds + pause if pause else 0.0
        return await self._settle(claim, PENDING, "retrying", error=text, due_at=due_at)

    async def _settle(self, claim: Claim, status: Any, what: str, **changes: Any) -> bool:
        try:
            settled = await self.journal.settle(claim, status, durable=True, **changes)
        except EffectUnknownError as unrecorded:
            log.warning("%s", unrecorded)
            settled, what = None, "unknown"
        if settled is None:
            self.done.unknown += 1
            return False
        setattr(self.done, what, getattr(self.done, what) + 1)
        return status is SUCCEEDED or status is FAILED

    def _pause_seconds(self, handler: Handler, failures: int) -> float:
        return backoff_seconds(handler.retry, failures, self.journal.engine.runtime.uniform)


def _order(record: Record) -> tuple[int, int]:
    """Where an effect was staged: the engine's order, then the order within one transaction."""
    stored: Stored = record.value
    version = record.version
    return stored.order or (0 if version is None else version[0]), stored.turn
