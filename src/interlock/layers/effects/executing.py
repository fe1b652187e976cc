"""Executing an act at most once for its key, whoever calls however often: what `IdempotentExecutor` does.

A call reads the record and does what `next_step` says, until it has an answer. Within the process the first caller of a
key does this for all (`interlock.gates.Flights`): the others wait to be woken and never ask the store. Between
processes the commit of the claim decides, and those who come second wait for the first one's settlement.

What a call returns or raises, by what became of the act:

- SUCCEEDED: the stored result, a new object for each caller. A result that could not be stored was not recorded, though
  that it happened was: `ValueRefusedError` for every caller, or with ``verify`` a second chance to get a result that
  can be stored. The act is not executed again.
- FAILED: the caller whose act raised gets its own exception. Whoever waited for that very execution gets
  `EffectFailedError`. A later call executes the act again, first asking ``verify`` where there is one: an error says
  that the act failed, and a probe knows better.
- UNKNOWN: ``verify`` decides. Happened is recorded and returned; after NOT_HAPPENED the act is executed; otherwise, and
  without a probe, `EffectUnknownError`.
- EXECUTING elsewhere for longer than ``wait_seconds``: `EffectInProgressError`. An act that calls for its own key gets
  it at once.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from interlock import codec
from interlock.errors import (
    EffectFailedError,
    EffectInProgressError,
    EffectUnknownError,
    IdempotencyMismatchError,
    LimitExceededError,
    UsageError,
    ValueRefusedError,
)
from interlock.gates import Flight
from interlock.layers.effects.answers import NOT_HAPPENED, Happened
from interlock.layers.effects.calls import Act, close_unused, is_unanswered, payload_fingerprint, refuse_async
from interlock.layers.effects.journal import Claim, Journal, Moment
from interlock.layers.effects.probing import ask, happened
from interlock.layers.effects.records import (
    EXECUTING,
    FAILED,
    PENDING,
    SUCCEEDED,
    UNKNOWN,
    Stored,
    effect_key,
    live,
)
from interlock.layers.ledger import Found, Record
from interlock.model import Key
from interlock.wording import error_text

T = TypeVar("T")

_LOOK_SECONDS: Final = 5.0
"""How long to wait for news of another process's execution before looking by oneself."""

_inside: ContextVar[frozenset[tuple[Journal, Key]]] = ContextVar("interlock_effects", default=frozenset())
"""The effects whose acts the calling task or thread is inside of."""


@dataclass(frozen=True, slots=True)
class Executed(Generic[T]):
    """What `IdempotentExecutor.execute_detailed` returns. ``replayed``: another call has executed the act."""

    value: T
    key: str
    replayed: bool


class Step(enum.Enum):
    """What a call does next."""

    EXECUTE = enum.auto()
    ANSWER = enum.auto()
    WAIT = enum.auto()
    REVOKE = enum.auto()
    ASK = enum.auto()
    REFUSE = enum.auto()


def next_step(stored: Stored | None, at: float, *, verifies: bool) -> Step:
    """What the record asks for: a pure decision."""
    if stored is None or stored.status is PENDING:
        return Step.EXECUTE
    if stored.status is SUCCEEDED:
        return Step.ASK if stored.result is None and verifies else Step.ANSWER
    if stored.status is EXECUTING:
        return Step.REVOKE if stored.claim_ends_at <= at else Step.WAIT
    if verifies:
        return Step.ASK
    return Step.EXECUTE if stored.status is FAILED else Step.REFUSE


class Execution:
    """One call of `IdempotentExecutor.execute`."""

    def __init__(
        self,
        journal: Journal,
        key: str,
        fn: Callable[..., Any],
        arguments: tuple[Any, ...],
        payload: Any,
        verify: Callable[[str], Any] | None,
        claim_seconds: float,
        wait_seconds: float,
        *,
        durable: bool,
    ) -> None:
        self.journal = journal
        self.key = key
        self.record_key = effect_key(key)
        self.act = Act(fn, arguments, key)
        if not journal.engine.runtime.suspends:
            refuse_async(fn, "act")
            refuse_async(verify, "verify")
        self.verify = verify
        self.fingerprint = self.act.fingerprint() if payload is None else payload_fingerprint("", payload)
        self.claim_seconds = claim_seconds
        self.wait_seconds = wait_seconds
        self.durable = durable
        self.deadline: float | None = None
        self.replayed = False

    async def run(self) -> Any:
        """The answer."""
        journal, key = self.journal, self.record_key
        journal.engine.check_open()
        while True:
            flight, mine = journal.flights.enter(key, self.fingerprint)
            if mine:
                try:
                    return await self._fly(flight)
                finally:
                    journal.flights.land(key, flight)
            if flight.fingerprint != self.fingerprint:
                raise self._mismatch()
            if (journal, key) in _inside.get():
                said = f"effect {self.key!r} is being executed by the very act that asks for it"
                raise EffectInProgressError(said, key=self.key)
            answer = await self._ride(flight)
            if answer is not None:
                if answer.status is UNKNOWN and self.verify is not None:
                    continue
                return self._answer(answer)

    # -- waiting -------------------------------------------------------------------------------------------------------
    def _left(self) -> float:
        """How many seconds of ``wait_seconds`` are left; they begin with the first wait."""
        now = self.journal.engine.runtime.monotonic()
        if self.deadline is None:
            self.deadline = now + self.wait_seconds
        return self.deadline - now

    async def _ride(self, flight: Flight) -> Stored | None:
        """Wait for the caller of this process who came first; None if it has left no answer."""
        waiter = self.journal.engine.runtime.waiter()
        if self.journal.flights.board(self.record_key, flight, waiter) and not await waiter.wait(
            max(0.0, self._left())
        ):
            raise self._in_progress(0.0)
        answer = flight.answer
        assert answer is None or type(answer) is Stored
        return answer

    async def _wait(self, stored: Stored, found: Found) -> None:
        """Wait for whoever holds the claim in another process, until there is news, or its claim ends."""
        ends = stored.claim_ends_at - (found.at or 0.0)
        left = self._left()
        if left <= 0:
            raise self._in_progress(ends)
        await self.journal.engine.backend.wait(
            found.token, min(left, max(ends, 0.001), _LOOK_SECONDS), (self.record_key,)
        )

    # -- deciding ------------------------------------------------------------------------------------------------------
    async def _fly(self, flight: Flight) -> Any:
        journal = self.journal
        waited_for = 0
        claim = await journal.claim_unseen(self.record_key, self.fingerprint, self.act.operation, self.claim_seconds)
        if claim is not None:
            return await self._perform(claim, flight)
        while True:
            since = journal.moment()
            found = await journal.read(self.record_key)
            record = found.records[0]
            journal.unseen = record.entry is None
            stored = live(record.value, record.expired)
            if stored is not None and stored.fingerprint != self.fingerprint:
                raise self._mismatch()
            if stored is not None and stored.status is FAILED and stored.claim == waited_for:
                flight.answer = stored
                return self._answer(stored)
            step = next_step(stored, found.at or 0.0, verifies=self.verify is not None)
            if step is Step.EXECUTE:
                claim = await self._claim(record, stored, found, since)
                if claim is not None:
                    return await self._perform(claim, flight)
            elif step is Step.WAIT:
                assert stored is not None
                waited_for = stored.claim
                await self._wait(stored, found)
            elif step is Step.REVOKE:
                await journal.revoke(record, found)
            elif step is Step.ASK:
                assert stored is not None
                claim = await self._ask(record, stored, found)
                if claim is not None:
                    return await self._perform(claim, flight)
            else:
                assert stored is not None
                flight.answer = stored
                return self._answer(stored)

    def _answer(self, stored: Stored) -> Any:
        """What a settled record says to a caller who has not executed it."""
        self.replayed = True
        if stored.status is SUCCEEDED:
            if stored.result is None:
                raise ValueRefusedError(f"effect {self.key!r} has been done, but {stored.error}")
            return codec.thaw(stored.result)
        if stored.status is FAILED:
            raise EffectFailedError(
                f"effect {self.key!r} failed in the call that this one waited for: {stored.error}",
                key=self.key,
                cause=stored.error or "",
            )
        raise self._unknown(stored)

    def _claim(
        self, record: Record, stored: Stored | None, found: Found, since: Moment
    ) -> Coroutine[Any, Any, Claim | None]:
        """Take the claim and look once more that it holds; None if there is something new to read."""
        journal = self.journal
        if stored is None:
            at = found.at or 0.0
            stored = Stored(PENDING, self.fingerprint, self.act.operation, at, at, agent=journal.agent)
        return journal.claim_to_begin(record, stored, found, self.claim_seconds, since)

    async def _ask(self, record: Record, stored: Stored, found: Found) -> Claim | None:
        """Ask the probe about an effect that nobody executes; a claim if it may be executed now."""
        assert self.verify is not None
        answer, trouble = await ask(self.verify, self.key)
        if type(answer) is Happened:
            await self.journal.write(record.key, happened(stored, answer, found.at or 0.0), record.expected, found)
            return None
        if stored.status is SUCCEEDED:  # it has happened; only its result is missing
            raise ValueRefusedError(f"effect {self.key!r} has been done, but {stored.error}")
        if answer is NOT_HAPPENED:  # asking may have taken long: a claim is based on a fresh reading
            since = self.journal.moment()
            fresh = await self.journal.read(self.record_key)
            if fresh.records[0].version != record.version:
                return None
            return await self._claim(fresh.records[0], stored, fresh, since)
        raise self._unknown(stored) from trouble

    # -- the act -------------------------------------------------------------------------------------------------------
    async def _perform(self, claim: Claim, flight: Flight) -> Any:
        """Call the act under the claim and record its end."""
        journal = self.journal
        handled = sys.exception()
        begun = False
        inside = _inside.set(_inside.get() | {(journal, self.record_key)})
        try:
            journal.keeper.hold(claim)
            begun = True
            value = self.act.call()
            if hasattr(value, "__await__"):
                if not journal.engine.runtime.suspends:
                    begun = False
                    close_unused(value)
                    raise UsageError(f"{self.act.operation} is asynchronous: use interlock, not interlock.sync")
                value = await value
        except GeneratorExit:  # nothing may be awaited here; the claim ends by itself
            raise
        except BaseException as error:
            if begun:
                await self._failed(claim, flight, error, handled)
            else:
                await journal.free(claim)
            raise
        finally:
            journal.keeper.release(claim)
            _inside.reset(inside)
        return await self._succeeded(claim, flight, value)

    async def _failed(self, claim: Claim, flight: Flight, error: BaseException, handled: BaseException | None) -> None:
        """Record what an act has raised. Returns if that error is to go on, raises what is more urgent."""
        status = UNKNOWN if is_unanswered(error, handled) else FAILED
        try:
            settled = await self.journal.settle(claim, status, error=error_text(error), durable=self.durable)
        except EffectUnknownError as unrecorded:
            error.add_note(f"interlock: {unrecorded}")
            return
        flight.answer = settled
        if settled is None:
            error.add_note(f"interlock: {self._lost()}")
        elif status is UNKNOWN:
            error.add_note(f"interlock: effect {self.key!r} may have been done; it is recorded as unknown")

    async def _succeeded(self, claim: Claim, flight: Flight, value: Any) -> Any:
        try:
            result = codec.freeze(value)
        except (ValueRefusedError, LimitExceededError) as refused:
            said = f"its result could not be stored: {refused}"
            settled = await self.journal.settle(claim, SUCCEEDED, durable=self.durable, error=said)
            flight.answer = settled
            raise ValueRefusedError(
                f"effect {self.key!r} has been done, and is recorded so, but {said}",
                path=getattr(refused, "path", "$"),
            ) from refused
        settled = await self.journal.settle(claim, SUCCEEDED, durable=self.durable, result=result)
        if settled is None:
            raise EffectUnknownError(self._lost(), key=self.key, cause="the claim had ended")
        flight.answer = settled
        return value

    # -- errors --------------------------------------------------------------------------------------------------------
    def _lost(self) -> str:
        return (
            f"the act of effect {self.key!r} has ended, but its claim had ended before, so this was not recorded; what "
            "the record says now is somebody else's word"
        )

    def _unknown(self, stored: Stored) -> EffectUnknownError:
        said = "failed before, and verify cannot tell whether it happened" if stored.status is FAILED else "is unknown"
        return EffectUnknownError(f"effect {self.key!r} {said}: {stored.error}", key=self.key, cause=stored.error or "")

    def _in_progress(self, seconds_left: float) -> EffectInProgressError:
        return EffectInProgressError(
            f"effect {self.key!r} is being executed elsewhere; waited {self.wait_seconds:g} s for it",
            key=self.key,
            seconds_left=max(0.0, seconds_left),
        )

    def _mismatch(self) -> IdempotencyMismatchError:
        return IdempotencyMismatchError(
            f"effect {self.key!r} was used before for another act or with other arguments or another payload",
            idempotency_key=self.key,
        )
