"""Locks on keys and ranges: for pessimistic sessions, for escalated ones, and outside sessions.

The locks of one resource are one table (`interlock.layers.queues`) under one key, which is absent while nobody holds
or wants any: that key is what every writing commit looks at. Tables, tenures and pulses of locks are volatile: written
neither durably nor into the feed. A pessimistic transaction costs one durable write, its own commit. Losing a table in
a crash of the engine is safe, because the incarnation changes and everything under the old one is refused.

A transaction is one owner, whatever it locks and in however many resources, so that its tenure is one record for its
commit to expect; the rules by which it lives and dies are those of leases. Owners wait in the order of arrival, rings
of waiting are broken at the youngest (`interlock.layers.rings`), and the age is kept over the attempts of one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from interlock.core import locking as core_locking
from interlock.core.carrying import Guard
from interlock.core.locking import Footprint
from interlock.core.space import Space
from interlock.core.transaction import Transaction, current
from interlock.errors import ConflictError, InterlockError, UsageError
from interlock.layers import parts, queues
from interlock.layers.contests import Contest
from interlock.layers.desks import Desk, Place
from interlock.layers.errors import DeadlockError, LeaseLostError, LockTimeoutError
from interlock.layers.ledger import Kind
from interlock.layers.queues import Target
from interlock.layers.removals import judge, release, release_later, remove
from interlock.layers.tenures import TENURES, Tenure
from interlock.model import Clash, Entry, Expectation, Key, Span

LOCKS: Final = Kind("lock")
TTL_SECONDS: Final = 5.0
"""How long the locks of a transaction outlive its process: less than the ten seconds for which others wait as a rule,
so that they get the locks of a dead process, and three times as long as it takes until they are renewed. A process that
is stopped for longer loses them only if somebody else wants them, and then its commit is refused."""


outside: ContextVar[tuple[Any, ...]] = ContextVar("interlock_locks", default=())
"""The locks outside sessions that the calling task or thread holds: `interlock.layers.holdings.Holding`s."""


def place_of(space: Space) -> Place:
    """The table of a resource's locks."""
    whole = space.span(None, None, None)
    return Place(LOCKS, space.locks_key, f"resource {space.name!r}", Target(*whole), durable=False, splits=True)


class Locked:
    """The locks of one transaction."""

    __slots__ = ("born", "targets", "tenure")

    def __init__(self, tenure: Tenure, born: int) -> None:
        self.tenure = tenure
        self.born = born
        self.targets: dict[Key, list[Target]] = {}

    def lacks(self, place: Place, targets: Sequence[Target]) -> list[Target]:
        """Those that are not covered yet."""
        held = self.targets.get(place.key, ())
        return [target for target in targets if not any(have.covers(target) for have in held)]

    def guards(self) -> dict[Key, Guard]:
        """That the tenure has not ended, and the engine lost nothing."""
        tenure = self.tenure
        if tenure.version is None:
            return {}
        return {tenure.key: Guard(tenure.version, refused=self._refused, incarnation=tenure.incarnation)}

    def _refused(self, guard: Guard, clash: Clash | None) -> BaseException:
        return lost(self.tenure)


def lost(tenure: Tenure) -> ConflictError:
    """The transaction has to begin again."""
    return ConflictError(
        f"the locks of agent {tenure.agent!r} were lost: it was believed dead, or the engine restarted"
    )


class Locks(Desk):
    """The locks of one store object: `interlock.core.locking.Locking`."""

    async def take(
        self, txn: Transaction, space: Space, spans: Sequence[Span], *, shared: bool, fetch: Sequence[Key] = ()
    ) -> Sequence[Entry | None]:
        """See `Locking.take`."""
        return await self._take(txn, space, [Target(*span, shared) for span in spans], fetch)

    async def shield(self, txn: Transaction, footprint: Footprint) -> bool:
        """See `Locking.shield`. Space by space in the order of their names, so that no two shields form a ring."""
        for space in sorted(footprint, key=lambda each: each.name):
            reads, writes = footprint[space]
            if space is not txn.home:
                txn.touch(space)
            targets = [Target(*span) for span in sorted(writes)]
            targets += [Target(*span, shared=True) for span in sorted(set(reads) - set(writes))]
            try:
                await self._take(txn, space, targets, ())
            except (LockTimeoutError, DeadlockError):
                await self.let_go(txn)
                return False
        return True

    async def _take(
        self, txn: Transaction, space: Space, targets: Sequence[Target], fetch: Sequence[Key]
    ) -> Sequence[Entry | None]:
        place = place_of(space)
        held: Locked | None = txn.held
        if held is None:
            tenure = Tenure(
                self.new_owner(), txn.agent, TTL_SECONDS, name=f"the locks of agent {txn.agent!r}", durable=False
            )
            held = txn.held = Locked(tenure, txn.born or int(tenure.owner, 16))
        wants = held.lacks(place, targets)
        if not wants:
            return await self._look(txn, fetch)
        tenure = held.tenure
        contest = Contest(self, tenure, place, wants, held.born, frozenset(_around(txn)))
        try:
            done = await contest.win(self._until(txn), lambda agents: _timeout(txn, place, agents), fetch)
        except LeaseLostError:
            raise lost(tenure) from None
        if done.token.incarnation != tenure.incarnation:
            raise lost(tenure)
        held.targets[place.key] = [*held.targets.get(place.key, ()), *wants]
        txn.token, txn.plain = done.token, False
        return done.fetched

    async def _look(self, txn: Transaction, fetch: Sequence[Key]) -> Sequence[Entry | None]:
        """What is locked already, as of the last grant: nothing can have changed since."""
        if not fetch:
            return ()
        reading = await self.engine.backend.read(fetch, txn.token)
        return reading.entries

    def _until(self, txn: Transaction) -> float:
        until = self.engine.runtime.monotonic() + txn.lock_timeout_seconds
        return until if txn.deadline is None else min(until, txn.deadline)

    async def give_way(self, txn: Transaction, space: Space, spans: Sequence[Span]) -> Mapping[Key, Expectation]:
        """See `Locking.give_way`. Whoever holds locks itself queues for these, too: only then are rings found."""
        place, targets = place_of(space), [Target(*span) for span in spans]
        if txn.held is not None:
            await self._take(txn, space, targets, ())
            return {}
        until = self._until(txn)
        while True:
            known = self.tables.get(place.key)
            view = await parts.look(self.ledger, place, split=known is not None and known[1].split)
            self.remember(place.key, view.expected, view.main)
            if view.is_idle and not view.main.seats:
                await parts.unite(self.ledger, place, view, txn.agent)
                continue
            own = self._own(txn)
            seats = [seat for seat in queues.holders_of(view.all, targets) if seat.owner not in own]
            if not seats:
                return {place.key: view.expected, **view.expectations(place, targets)}
            dead, patience = await judge(self, self.ledger, seats)
            if dead:
                await remove(self.ledger, place, view, dead, txn.agent)
                continue
            left = until - self.engine.runtime.monotonic()
            if left <= 0:
                raise _timeout(txn, place, tuple(dict.fromkeys(seat.agent for seat in seats)))
            assert view.token is not None  # it was read
            keys = parts.watched(place, view, targets)
            await self.engine.backend.wait(view.token, max(0.001, min(left, patience)), keys)

    def _own(self, txn: Transaction) -> set[str]:
        """The owners whose locks are this transaction's own: it is fenced with them, or they are held around it in the
        same task or thread, and then it is fenced with them from now on. Nor does it wait for the locks of a
        transaction that it was called in, which waits for it: that one is then refused by its own validation."""
        for holding in outside.get():
            if holding.desk.engine is self.engine and holding.held and holding.tenure.key not in (txn.guards or {}):
                txn.guards = {**(txn.guards or {}), **holding.guards()}
        own = {str(TENURES.parts(key)[0]) for key in txn.guards or () if key.startswith(_TENURE_PREFIX)}
        return own | _around(txn)

    async def let_go(self, txn: Transaction) -> None:
        """See `Locking.let_go`."""
        held: Locked | None = txn.held
        if held is None:
            return
        txn.held = None
        self.keeper.remove(held.tenure)
        if not held.tenure.places:
            return
        places = list(held.tenure.seated.values())
        try:
            await release(self, self.ledger, held.tenure, places)
        except InterlockError:  # how the transaction ended is known; the rest is done in the background
            release_later(self, held.tenure, places)
        except BaseException:
            release_later(self, held.tenure, places)
            raise

    def drop(self, txn: Transaction) -> None:
        """See `Locking.drop`. In synchronous code it is done at once, since nothing in it suspends."""
        held: Locked | None = txn.held
        if held is None or self.engine.closed:
            return
        if self.engine.runtime.suspends:
            txn.held = None
            self.keeper.remove(held.tenure)
            if held.tenure.places:
                release_later(self, held.tenure, list(held.tenure.seated.values()))
            return
        with contextlib.suppress(StopIteration):
            self.let_go(txn).send(None)


_TENURE_PREFIX: Final = TENURES.span().start


def _around(txn: Transaction) -> set[str]:
    """The owners of transactions that are open in this task or thread, around this one."""
    found: set[str] = set()
    outer: Any = current.get()
    while type(outer) is Transaction:
        if outer.held is not None and outer is not txn:
            found.add(outer.held.tenure.owner)
        outer = None if outer.context is None else outer.context.old_value
    return found


def _timeout(txn: Transaction, place: Place, agents: tuple[str, ...]) -> InterlockError:
    txn.check_time()
    return LockTimeoutError(
        f"{place.name}: a lock of {', '.join(agents)} was in the way for {txn.lock_timeout_seconds:g} seconds",
        holders=agents,
    )


def targets_of(space: Space, keys: Sequence[Any], shared: bool) -> list[Target]:
    """The targets of `SharedResource.lock`; without keys, everything. Raises `UsageError` for what is no key."""
    if not keys:
        return [Target(*space.span(None, None, None), shared)]
    if len(keys) > queues.MANY_TARGETS:
        raise UsageError(f"{len(keys)} keys are more than {queues.MANY_TARGETS}: lock the whole resource, lock()")
    raws = sorted({space.encode(key) for key in keys})
    return [Target(*core_locking.key_span(raw), shared) for raw in raws]
