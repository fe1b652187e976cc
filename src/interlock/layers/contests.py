"""Getting hold of something: the loop that reads a table, decides, and writes it back under compare-and-swap.

Every step is one conditional commit that expects the table as it was read, and, of an owner that exists already, its
tenure. So tables change from one decided state to the next, whoever takes part from however many processes; and nobody
is granted anything after its tenure was ended.

- Granted: the owner is put into the table; if it holds nothing yet, its tenure is written in the same commit, so that
  its version, the fencing token, is of the very commit that granted.
- In the way: the owner queues, once, and waits for news (`Backend.wait`, or the time when something could change by
  itself). Whoever is in the way and dead is removed first; the removal expects the dead one's pulse, see
  `interlock.layers.tenures`.
- A ring of waiting: each owner writes into the same commit that queues it where it waits, and looks for rings after
  that commit. So of all who make up a ring the last to queue finds all the others' records there. The youngest of the
  ring is condemned in its table and gives way. Rings are looked for again every `POLL_SECONDS`, because an owner may
  have died in the middle of this.
- Cancelled, interrupted or refused: whoever has queued, or does not know whether it was granted, has itself removed in
  the background (`Keeper.later`). What even that cannot reach runs out by itself.

Calls of one process that change the same table take turns (`interlock.gates`) instead of refusing each other, those
that give back included. Whoever has the turn takes the table as this process has written it last, or reads it then, not
before: so within a process no commit is refused because of another one, however many keys of a resource are locked at
once. That is for speed; between processes, and where a turn is taken over because it lasts too long, commits decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from interlock.errors import (
    InterlockError,
    SnapshotTooOldError,
)
from interlock.layers import queues, removals, rings
from interlock.layers.desks import OPERATION, POLL_SECONDS, WAITS, Desk, Place, put_table, table_of
from interlock.layers.errors import DeadlockError, LeaseLostError
from interlock.layers.ledger import Done
from interlock.layers.queues import EMPTY, Seat, Table, Target
from interlock.layers.tenures import Tenure
from interlock.model import ABSENT, CommitRefused, Delete, Expectation, Key, Token, Write

Refusal = Callable[[tuple[str, ...]], InterlockError]
"""Makes the error for a wait that took too long, from the agents in the way."""


class Contest:
    """One owner's wish for some targets of one place. ``born`` is the owner's age; ``futile``: owners that wait for
    this one to end, so that to wait for them is to wait in vain."""

    def __init__(
        self,
        desk: Desk,
        tenure: Tenure,
        place: Place,
        wants: Sequence[Target],
        born: int,
        futile: frozenset[str] = frozenset(),
    ) -> None:
        self.desk = desk
        self.ledger = desk.ledger
        self.tenure = tenure
        self.place = place
        self.wants = wants
        self.born = born
        self.futile = futile
        self.waiting = False
        self.sent = False
        self.look_for_rings = 0.0
        self.token: Token | None = tenure.token
        self.done: Done | None = None

    async def win(self, until: float, refusal: Refusal, fetch: Sequence[Key] = ()) -> Done:
        """Wait for the targets until ``until`` (monotonic seconds); the granting commit.

        Raises what ``refusal`` makes when the time is over, `DeadlockError` for the victim of a ring, `LeaseLostError`
        if the owner was believed dead meanwhile, and what the backend raises."""
        place, desk = self.place, self.desk
        fresh = False
        try:
            while True:
                await desk.gates.enter(place.key, self)
                try:
                    known = await self._read() if fresh else desk.tables.get(place.key, (ABSENT, EMPTY))
                    seconds = await self._turn(known, fresh, until, refusal, fetch)
                finally:
                    desk.gates.leave(place.key, self)
                if self.done is not None:
                    return self.done
                if seconds > 0 and self.token is not None:
                    await self.ledger.backend.wait(self.token, seconds, (place.key,))
                fresh = True
        except BaseException:
            desk.tables.pop(place.key, None)
            if self.sent:
                removals.give_back(desk, self.tenure, place, only_wishes=bool(self.tenure.places))
            raise

    async def _read(self) -> tuple[Expectation, Table]:
        reading = await self.ledger.backend.read((self.place.key,))
        self.token = reading.token
        return table_of(self.place, reading.entries[0])

    async def _turn(
        self, known: tuple[Expectation, Table], fresh: bool, until: float, refusal: Refusal, fetch: Sequence[Key]
    ) -> float:
        """One look at the table and at most one change of it; for how long to wait then."""
        expected, table = known
        owner, now = self.tenure.owner, self.ledger.runtime.monotonic()
        if self.tenure.loss is not None:
            raise self.tenure.loss
        own = table.seats.get(owner)
        if self.waiting and (own is None or not own.wants):
            raise LeaseLostError(f"{self.place.name}: this owner was believed dead while it waited")
        if own is not None and own.victim:
            raise DeadlockError(
                f"{self.place.name}: a ring of transactions waited for each other, and this one gives way",
                holders=[seat.agent for seat in queues.in_the_way(table, owner, self.wants)],
            )
        blockers = queues.in_the_way(table, owner, self.wants)
        seat = own or Seat(owner, self.tenure.agent, self.born, self.tenure.ttl_seconds)
        if not blockers:
            new = queues.granted(table, seat, self.wants, self.place.whole)
            self.done = await self._write(expected, new, fetch, granting=True)
            return 0.0
        if not fresh:
            return 0.0
        patience = await self._judge(expected, table, blockers)
        if patience is None:
            return 0.0
        if now >= until or any(blocker.owner in self.futile for blocker in blockers):
            raise refusal(tuple(dict.fromkeys(blocker.agent for blocker in blockers)))
        if not self.waiting:
            new = queues.queued(table, seat, self.wants)
            self.waiting = await self._write(expected, new, (), granting=False) is not None
            return 0.0
        if now >= self.look_for_rings:
            if await rings.broken(self.ledger, self.tenure, self.place, table):
                return 0.0
            self.look_for_rings = now + POLL_SECONDS
        return max(0.001, min(until - now, patience, POLL_SECONDS))

    async def _write(self, expected: Expectation, table: Table, fetch: Sequence[Key], *, granting: bool) -> Done | None:
        """Put the table in place; None if it has changed meanwhile."""
        tenure, place = self.tenure, self.place
        began = self.ledger.runtime.monotonic()
        founding = not tenure.places
        writes: dict[Key, Write] = {place.key: put_table(place, table)}
        expectations: dict[Key, Expectation] = {place.key: expected}
        if founding:
            more, conditions = tenure.founding(self.ledger)
            writes.update(more)
            expectations.update(conditions)
        else:
            assert tenure.version is not None  # it holds something
            expectations[tenure.key] = tenure.version
        waits = WAITS.key(tenure.owner)
        if not granting:
            writes[waits] = WAITS.put(place.key, listed=False)
        elif self.waiting:
            writes[waits] = Delete()
        self.sent = True
        try:
            if granting and place.durable and not fetch:  # waits for the disk, and may do so with others
                done = await self.ledger.gathered(
                    writes, expectations, agent=tenure.agent, snapshot=self.token or self.desk.token
                )
            else:
                done = await self.ledger.commit(
                    writes, expectations, agent=tenure.agent, durable=granting and place.durable, quiet=True,
                    fetch=fetch, snapshot=self.token or self.desk.token, operation=OPERATION,
                )  # fmt: skip
        except CommitRefused as refused:
            if tenure.version is not None:
                await self._still_alive(refused)
            return None
        except SnapshotTooOldError:
            if tenure.places and not place.durable:
                raise
            self.token = self.desk.token = None
            return None
        if founding:
            if done.version is None:  # the reply was lost, and others have ended this tenure since
                raise LeaseLostError(f"{place.name}: this owner was believed dead before it heard of its grant")
            tenure.founded(done, began)
            self.desk.keeper.add(tenure)
        if granting:
            tenure.places[place.key] = place
        self.token = self.desk.token = done.token
        if done.version is not None:
            self.desk.remember(place, done.version if table.seats else ABSENT, table)
        return done

    async def _still_alive(self, refused: CommitRefused) -> None:
        """After a refusal that names the own records: learn the newest pulse, or that the tenure is over."""
        tenure = self.tenure
        if any(clash.key in (tenure.key, tenure.pulse_key) for clash in refused.clashes):
            await tenure.look_again(self.ledger)
            if tenure.loss is not None:
                raise tenure.loss

    async def _judge(self, expected: Expectation, table: Table, blockers: Sequence[Seat]) -> float | None:
        """After how many seconds one of those in the way may be dead; None if one was, and was removed, or the table
        has changed."""
        dead, patience = await removals.judge(self.desk, self.ledger, blockers)
        if not dead:
            return patience
        await removals.remove(self.ledger, self.place, expected, table, dead, self.tenure.agent)
        return None
