"""Claims on effects: how one is taken, kept, settled and given up. The journal of one store object.

**Why no interleaving executes an act twice.** An act is called only by whoever holds a claim, and a claim is won by one
commit that expects the record as it was read: of any number of contenders, in whatever process, one wins. From then on
the record names the claim. It is taken away only by a commit that turns EXECUTING into UNKNOWN after the claim's end,
and UNKNOWN becomes EXECUTING again only after a probe has said NOT_HAPPENED, *asked after* the claim had been taken
away: whoever lost it reads it again before it begins (`Journal.still_holds`) and does not begin. Between that reading
and the act lies a window that no store can close; the provider's own idempotency closes it, which is why the act is
given the key.

That reading is the reply to the claim's own commit as long as it is fresh, by the monotonic clock and by the wall
clock (which also counts the time that a machine sleeps); else the record is read once more.

A key that has probably never been used is claimed without looking: the commit expects that there is no record, and is
refused if there is one, which is then read. The engine's time, from which the claim counts, is that of the last commit
of this journal, if that is only just past (`_GUESS_SECONDS`); the claim then ends that much earlier, for everybody and
for its holder, who counts from before that commit. What was found last decides whether to look first; a key that was
claimed here is always looked for.

**Why nobody settles another's claim.** Settling expects the version of the claim's own record. A renewal makes a new
version; so does an engine that loses one, as volatile writes may be lost. So on a refusal the record is read, and only
if it still names this claim the settlement is sent again. Whoever has lost the claim writes nothing, whatever it did.

**Durability.** A claim is durable before the act begins. What becomes of it is visible to everybody at once and
survives the death of any process, but it is made durable only with the next durable commit of the store (or at once, if
asked for): engines keep commits in order, so nothing durable that was done with the result can outlive the record of
it. A power cut in between leaves EXECUTING, so UNKNOWN, never a second execution. All these commits are quiet: the
record is the journal, the feed of transactions has no use for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from interlock.core.engine import Engine
from interlock.core.retry import RetryPolicy, backoff_seconds
from interlock.errors import BackendUnavailableError, CommitUnknownError, EffectUnknownError, SnapshotTooOldError
from interlock.gates import Flights
from interlock.layers.effects.keeping import Keeper
from interlock.layers.effects.records import (
    EFFECT,
    EXECUTING,
    FAILED,
    OUTBOX,
    SUCCEEDED,
    UNKNOWN,
    EffectStatus,
    Stored,
    expired_text,
    live,
)
from interlock.layers.ledger import Done, Found, Kind, Ledger, Part, Record
from interlock.model import ABSENT, CommitRefused, Delete, Expectation, Key, Put, Token, Version, Write

if TYPE_CHECKING:
    from interlock.layers.effects.dispatching import Handler

T = TypeVar("T")

CLAIM_SECONDS: Final = 60.0
"""How long a claim lasts unless it is renewed; it is, about three times in that time."""
_FRESH: Final = 0.25
"""For what part of a claim's time the reply to its commit counts as the last look before the act."""
_INTERRUPTS: Final = 10
"""How many interruptions a settlement outlasts."""
_GUESS_SECONDS: Final = 0.1
"""How old the last reading of the engine's clock may be that a claim is counted from,"""
_GUESS: Final = 0.02
"""and what part of the claim's time."""
_KNOWN: Final = 4096
_RECORD_SECONDS: Final = 30.0
"""How long to try to record the end of an act while the engine cannot be reached."""
_PAUSES: Final = RetryPolicy(base_seconds=0.02, cap_seconds=1.0)
_CLAIM_BITS: Final = 62
_PAGES: Final = 50


Moment = tuple[float, float]
"""A moment of this process: by the monotonic clock, by the wall clock."""


class Claim:
    """The right to execute an effect, until it is settled or taken away."""

    __slots__ = ("before", "key", "monotonic", "open", "stored", "token", "version", "wall")

    def __init__(self, key: Key, before: Stored | None, stored: Stored, since: Moment) -> None:
        self.key = key
        self.before = before
        self.stored = stored
        self.open = stored.payload is not None
        """Whether an entry of the outbox stands beside the record."""
        self.monotonic, self.wall = since
        self.version: Version | None = None
        self.token: Token | None = None


class Journal:
    """The effects of one store object. Not for users: `EffectStore` and `IdempotentExecutor` are."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.agent = engine.agent or "effects"
        """Whose doing it is, where nothing else is known."""
        self.ledger = Ledger(engine)
        self.flights = Flights()
        self.keeper = Keeper(self.ledger)
        self.handlers: dict[str, Handler] = {}
        self.unseen = False
        """Whether the last key that was looked for had no record."""
        self._known: set[Key] = set()
        """Keys that were claimed here, at most `_KNOWN`: they have records."""
        self._heard: tuple[float, Moment, Token] | None = None
        """The engine's time at the last commit, a moment before it, and its token."""

    def moment(self) -> Moment:
        """This moment; to be taken before the reading that a claim is based on."""
        runtime = self.engine.runtime
        return runtime.monotonic(), runtime.time()

    def guess(self, key: Key, claim_seconds: float) -> tuple[float, Moment, Token] | None:
        """That there is no record: the engine's time from which a claim may count, a moment before that time, and a
        snapshot; None: look."""
        heard = self._heard
        if not self.unseen or heard is None or key in self._known:
            return None
        monotonic, wall = heard[1]
        runtime = self.engine.runtime
        age = min(_GUESS_SECONDS, claim_seconds * _GUESS)
        if runtime.monotonic() - monotonic > age or abs(runtime.time() - wall) > age:
            return None
        return heard

    async def read(self, key: Key) -> Found:
        """One record, and the engine's time."""
        return await self.ledger.read(EFFECT, (key,))

    async def scan(
        self, kind: Kind, prefix: tuple[str, ...] = (), *, after: tuple[Part, ...] | None = None, limit: int = 500
    ) -> Found:
        """A page of records, as `Ledger.scan`. Quiet commits keep no version for a reader whom they overtake, so a page
        that was overtaken is read again, and a shorter one, which is read faster."""
        for _ in range(_PAGES):
            try:
                return await self.ledger.scan(kind, prefix, after=after, limit=limit)
            except SnapshotTooOldError:
                limit = max(1, limit // 2)
        return await self.ledger.scan(kind, prefix, after=after, limit=limit)

    async def write(
        self, key: Key, stored: Stored, expected: Expectation, found: Found, *, closes: bool = False
    ) -> bool:
        """Write one record durably; False if it is not as it was any more. ``closes``: the effect leaves the outbox."""
        writes: dict[Key, Write] = {key: self.put(stored)}
        if closes:
            writes[OUTBOX.key(*EFFECT.parts(key))] = Delete()
        return await self.commit(writes, {key: expected}, found.token, durable=True) is not None

    def put(self, stored: Stored) -> Put:
        """The write of a record; those that are settled expire."""
        settled = stored.status is SUCCEEDED or stored.status is FAILED
        return EFFECT.put(stored, ttl_seconds=self.engine.idempotency_ttl_seconds if settled else None)

    async def commit(
        self, writes: dict[Key, Write], expectations: dict[Key, Expectation], token: Token, *, durable: bool
    ) -> Done | None:
        """One quiet commit of records; None if something is not as expected."""
        since = self.moment()
        try:
            done = await self.ledger.gathered(writes, expectations, agent=self.agent, durable=durable, snapshot=token)
        except (CommitRefused, SnapshotTooOldError):
            return None
        if done.at is not None:
            self._heard = done.at, since, done.token
        return done

    # -- taking --------------------------------------------------------------------------------------------------------
    async def claim(
        self, record: Record, stored: Stored, found: Found, claim_seconds: float, since: Moment
    ) -> Claim | None:
        """Take an effect; None if somebody else was faster. ``stored``: what is to be executed, in any status.
        ``since``: a moment before ``found`` was read. The claim's time is counted from that reading, so nobody can
        believe in it for longer than the record says.

        If this is interrupted, the effect is as free afterwards as it was before."""
        at = found.at or 0.0
        executing = Stored(
            EXECUTING,
            stored.fingerprint,
            stored.operation,
            stored.created_at,
            at,
            agent=stored.agent,
            attempts=stored.attempts + 1,
            claim=self.engine.runtime.random_bits(_CLAIM_BITS) + 1,
            claimed_by=self.agent,
            claimed_at=at,
            claim_seconds=claim_seconds,
            payload=stored.payload,
            order=stored.order,
            turn=stored.turn,
        )
        claim = Claim(record.key, live(record.value, record.expired), executing, since)
        return await self._take(claim, record.expected, found.token)

    async def claim_unseen(self, key: Key, fingerprint: bytes, operation: str, claim_seconds: float) -> Claim | None:
        """Take an effect whose act begins at once and whose key has probably never been used, without looking; None:
        look."""
        heard = self.guess(key, claim_seconds)
        if heard is None:
            return None
        at, since, token = heard
        runtime = self.engine.runtime
        agent, name = self.agent, runtime.random_bits(_CLAIM_BITS) + 1
        executing = Stored(EXECUTING, fingerprint, operation, at, at, agent, 1, name, agent, at, claim_seconds)
        claim = await self._take(Claim(key, None, executing, since), ABSENT, token)
        return claim if claim is None or self.is_fresh(claim) else await self._looked_at(claim)

    async def _take(self, claim: Claim, expected: Expectation, token: Token) -> Claim | None:
        """Commit a claim; None if the record is not as expected."""
        try:
            done = await self.commit({claim.key: self.put(claim.stored)}, {claim.key: expected}, token, durable=True)
        except GeneratorExit:  # nothing may be awaited here; the claim, if it came to be, ends by itself
            raise
        except Exception as error:
            if isinstance(error, CommitUnknownError):
                await self.free(claim)
            raise
        except BaseException:
            await self.free(claim)
            raise
        if done is None:
            return None
        claim.version, claim.token = done.version, done.token
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known.add(claim.key)
        return claim

    async def free(self, claim: Claim) -> None:
        """Give a claim back whose act has not begun: the record is what it was before."""

        await self.outlast(self._give_back, claim)

    async def _give_back(self, claim: Claim) -> None:
        found = await self.read(claim.key)
        record = found.records[0]
        if not is_of(record, claim):
            return
        before: Write = Delete() if claim.before is None else self.put(claim.before)
        await self.commit({claim.key: before}, {claim.key: record.expected}, found.token, durable=False)

    # -- holding -------------------------------------------------------------------------------------------------------
    def is_fresh(self, claim: Claim) -> bool:
        """Whether the reply to the claim's own commit counts as the last look."""
        runtime = self.engine.runtime
        fresh = claim.stored.claim_seconds * _FRESH
        return runtime.monotonic() - claim.monotonic < fresh and abs(runtime.time() - claim.wall) < fresh

    async def still_holds(self, claim: Claim) -> bool:
        """The last look before the act, by reading: whether the claim is still ours, with time left."""
        found = await self.read(claim.key)
        record = found.records[0]
        if not is_of(record, claim):
            return False
        claim.version, claim.token = record.version, found.token
        return bool(record.value.claim_ends_at > (found.at or 0.0))

    async def claim_to_begin(
        self, record: Record, stored: Stored, found: Found, claim_seconds: float, since: Moment
    ) -> Claim | None:
        """Take an effect whose act begins at once; None if there is something new to read. See `claim`."""
        claim = await self.claim(record, stored, found, claim_seconds, since)
        return claim if claim is None or self.is_fresh(claim) else await self._looked_at(claim)

    async def _looked_at(self, claim: Claim) -> Claim | None:
        """The last look before the act, for a claim whose commit took long; None if it has ended or is not ours."""
        try:
            if await self.still_holds(claim):
                return claim
        except BaseException:
            await self.free(claim)
            raise
        await self.free(claim)  # if it is ours it has ended, and nothing was begun
        return None

    async def revoke(self, record: Record, found: Found) -> None:
        """Take away a claim that has ended: from now on it is UNKNOWN. No effect if the record has changed."""
        stored: Stored = record.value
        unknown = stored.moved(UNKNOWN, updated_at=found.at or 0.0, error=expired_text(stored), claim=0)
        await self.write(record.key, unknown, record.expected, found)

    # -- settling ------------------------------------------------------------------------------------------------------
    async def settle(
        self, claim: Claim, status: EffectStatus, *, durable: bool = False, **changes: Any
    ) -> Stored | None:
        """Record the end of an act, also while being cancelled; None if the claim was not ours any more.

        Raises `EffectUnknownError` if the engine cannot be reached for long: the record stays EXECUTING, and becomes
        UNKNOWN when the claim ends."""

        return await self.outlast(self._settle, claim, status, durable, changes)

    async def _settle(
        self, claim: Claim, status: EffectStatus, durable: bool, changes: dict[str, Any]
    ) -> Stored | None:
        runtime = self.engine.runtime
        until, failures = runtime.monotonic() + _RECORD_SECONDS, 1
        seconds = max(0.0, runtime.monotonic() - claim.monotonic)
        settled = claim.stored.moved(status, updated_at=claim.stored.claimed_at + seconds, **changes)
        writes: dict[Key, Write] = {claim.key: self.put(settled)}
        if claim.open and status in (SUCCEEDED, FAILED):
            writes[OUTBOX.key(*EFFECT.parts(claim.key))] = Delete()
        version, token = claim.version, claim.token
        while True:
            try:
                if version is not None and token is not None:
                    done = await self.commit(writes, {claim.key: version}, token, durable=durable)
                    if done is not None:
                        return settled
                found = await self.read(claim.key)
            except (BackendUnavailableError, CommitUnknownError) as error:
                failures += 1
                pause = backoff_seconds(_PAUSES, failures, runtime.uniform)
                if runtime.monotonic() + pause >= until:
                    raise _unrecorded(claim, status, error) from error
                await runtime.sleep(pause)
                continue
            record = found.records[0]
            if record.value == settled:  # sent before, its reply lost
                return settled
            if not is_of(record, claim):
                return None
            version, token = record.version, found.token

    async def outlast(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Do something to its end although the caller is cancelled or interrupted, which is raised only then. ``work``
        is begun again after an interruption, so it must be such that this does no harm."""
        interrupt: BaseException | None = None
        with self.engine.runtime.shield():
            for _ in range(_INTERRUPTS):
                try:
                    result = await work(*args)
                except Exception:
                    if interrupt is not None:
                        raise interrupt from None
                    raise
                except GeneratorExit:  # nothing may be awaited any more
                    raise
                except BaseException as error:
                    interrupt = interrupt or error
                else:
                    if interrupt is None:
                        return result
                    break
        assert interrupt is not None
        raise interrupt


def is_of(record: Record, claim: Claim) -> bool:
    """Whether a record still names a claim."""
    stored: Stored | None = record.value
    return stored is not None and stored.status is EXECUTING and stored.claim == claim.stored.claim


def _unrecorded(claim: Claim, status: EffectStatus, error: Exception) -> EffectUnknownError:
    key = str(EFFECT.parts(claim.key)[0])
    what = "has been done" if status is SUCCEEDED else f"has ended ({status.value})"
    return EffectUnknownError(
        f"the act of effect {key!r} {what}, but this could not be recorded: {error}", key=key, cause=str(error)
    )
