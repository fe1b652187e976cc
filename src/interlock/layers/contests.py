"""Getting hold of something: the loop that reads a table, decides, and writes it back under compare-and-swap.

Every step is one conditional commit that expects the table as it was read, and, of an owner that exists already, its
tenure. So tables change from one decided state to the next, whoever takes part from however many processes; and nobody
is granted anything after its tenure was ended. What a table is may be several records, `interlock.layers.parts`: a wish
for few keys is first tried in the parts of a split table (`_in_parts`), and what does not succeed there goes on with
the table as a whole.

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

Calls of one process that change the same table, or the same part of one, take turns (`interlock.gates`) instead of
refusing each other, those that give back included. Whoever has the turn takes the table as this process has written it
last, or reads it then, not before: so within a process a commit is hardly ever refused because of another one, however
many keys of a resource are locked at once. That is for speed; between processes, and where a turn is taken over because
it lasts too long, commits decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from interlock.errors import (
    InterlockError,
    SnapshotTooOldError,
)
from interlock.gates import HOLD_SECONDS
from interlock.layers import parts, queues, removals, rings
from interlock.layers.desks import OPERATION, POLL_SECONDS, WAITS, Desk, Place, put_table, table_of
from interlock.layers.errors import DeadlockError, LeaseLostError
from interlock.layers.ledger import Done
from interlock.layers.parts import Known, View
from interlock.layers.queues import EMPTY, Seat, Table, Target
from interlock.layers.tenures import Tenure
from interlock.model import ABSENT, CommitRefused, Delete, Expectation, Key, Token, Write

_TRIES: Final = 3
"""How often to try in the parts of a table before it is looked at as a whole."""

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
        self.small = parts.is_small(place, wants)
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
                if self._known(place.key)[1].split:
                    fresh = True
                    if self.small and not self.waiting and (done := await self._in_parts(until, fetch)) is not None:
                        return done
                await desk.gates.enter(place.key, self, until + HOLD_SECONDS)  # without a turn: the commits decide
                try:
                    fresh = fresh or self._known(place.key)[1].split
                    view = await self._look() if fresh else parts.alone(self._known(place.key))
                    seconds = await self._turn(view, fresh, until, refusal, fetch)
                finally:
                    desk.gates.leave(place.key, self)
                if self.done is not None:
                    return self.done
                if seconds > 0 and self.token is not None:
                    await self.ledger.backend.wait(self.token, seconds, parts.watched(place, view, self.wants))
                fresh = True
        except BaseException:
            desk.tables.pop(place.key, None)
            if self.sent:
                removals.give_back(desk, self.tenure, place, only_wishes=bool(self.tenure.places))
            raise

    def _known(self, key: Key) -> Known:
        return self.desk.tables.get(key, (ABSENT, EMPTY))

    async def _look(self) -> View:
        view = await parts.look(self.ledger, self.place, split=self._known(self.place.key)[1].split)
        self.token = view.token
        self.desk.remember(self.place.key, view.expected, view.main)
        return view

    async def _in_parts(self, until: float, fetch: Sequence[Key]) -> Done | None:
        """Take what is wanted in the parts of a split table; None if something is in the way, or always comes in
        between.

        The turns are taken in the order of the keys, so that within a process nobody waits in a ring."""
        desk, place = self.desk, self.place
        keys = parts.relevant(place, self.wants)
        try:
            for key in keys:
                await desk.gates.enter(key, self, until + HOLD_SECONDS)
            for attempt in range(_TRIES):
                if attempt:
                    await self._look_at(keys)
                expected, main = self._known(place.key)
                found = {key: self._known(key) for key in keys}
                view = View(expected, main, found, queues.together(main, [table for _, table in found.values()]))
                if not main.split or queues.in_the_way(main, self.tenure.owner, self.wants):
                    return None
                if self.tenure.loss is None and not queues.holders_of(view.all, self.wants, but=self.tenure.owner):
                    taken = self._in_own_parts(view)
                    if taken is None:
                        return None
                    done = await self._write(taken, {place.key: expected}, fetch, granting=True)
                    if done is not None:
                        return done
            return None
        finally:
            for key in keys:
                desk.gates.leave(key, self)

    async def _look_at(self, keys: Sequence[Key]) -> None:
        """Learn the table and some of its parts, as of one state."""
        place, asked = self.place, (self.place.key, *keys)
        reading = await self.ledger.backend.read(asked)
        self.token = reading.token
        for key, entry in zip(asked, reading.entries, strict=True):
            self.desk.remember(key, *table_of(place, entry))

    def _in_own_parts(self, view: View) -> dict[Key, Known] | None:
        """The parts as they become when what is wanted is granted there; None if that is too much for one of them."""
        tables: dict[Key, Known] = {}
        for target in self.wants:
            key = parts.part_of(self.place, target)
            expected, table = tables.get(key) or view.parts[key]
            table = queues.granted(table, self._seat(table), (target,), self.place.whole)
            if len(table.seats[self.tenure.owner].held) > parts.MANY_IN_A_PART:
                return None
            tables[key] = expected, table
        return tables

    def _seat(self, table: Table) -> Seat:
        tenure = self.tenure
        return table.seats.get(tenure.owner) or Seat(tenure.owner, tenure.agent, self.born, tenure.ttl_seconds)

    async def _turn(self, view: View, fresh: bool, until: float, refusal: Refusal, fetch: Sequence[Key]) -> float:
        """One look at the table and at most one change of it; for how long to wait then."""
        owner, now = self.tenure.owner, self.ledger.runtime.monotonic()
        if self.tenure.loss is not None:
            raise self.tenure.loss
        own = view.all.seats.get(owner)
        if self.waiting and (own is None or not own.wants):
            raise LeaseLostError(f"{self.place.name}: this owner was believed dead while it waited")
        if own is not None and own.victim:
            raise DeadlockError(
                f"{self.place.name}: a ring of transactions waited for each other, and this one, the youngest, gives "
                f"way (agents {', '.join(own.victim)})",
                holders=own.victim,
            )
        blockers = queues.in_the_way(view.all, owner, self.wants)
        if not blockers:
            self.done = await self._grant(view, fetch)
            return 0.0
        if not fresh:
            return 0.0
        patience = await self._judge(view, blockers)
        if patience is None:
            return 0.0
        if now >= until or any(blocker.owner in self.futile for blocker in blockers):
            raise refusal(tuple(dict.fromkeys(blocker.agent for blocker in blockers)))
        if not self.waiting:
            new = queues.queued(view.main, self._seat(view.main), self.wants)
            changes = {self.place.key: (view.expected, new)}
            self.waiting = await self._write(changes, {}, (), granting=False) is not None
            return 0.0
        if now >= self.look_for_rings:
            if await rings.broken(self.ledger, self.tenure, self.place, view.all):
                return 0.0
            self.look_for_rings = now + POLL_SECONDS
        return max(0.001, min(until - now, patience, POLL_SECONDS))

    async def _grant(self, view: View, fetch: Sequence[Key]) -> Done | None:
        """Nothing is in the way: take what is wanted, in parts or in the main table; None if anything has changed."""
        place, main = self.place, view.main
        if main.split and self.small and not self.waiting:
            taken = self._in_own_parts(view)
            if taken is not None:
                return await self._write(taken, {place.key: view.expected}, fetch, granting=True)
        new = queues.granted(main, self._seat(main), self.wants, place.whole)
        also = view.expectations(place, self.wants)
        if view.is_idle and len(also) == parts.PARTS:
            new = msgspec.structs.replace(new, split=False)
        elif self.small and parts.worth_splitting(place, new):
            new = msgspec.structs.replace(new, split=True)
        return await self._write({place.key: (view.expected, new)}, also, fetch, granting=True)

    async def _write(
        self, changes: Mapping[Key, Known], also: Mapping[Key, Expectation], fetch: Sequence[Key], *, granting: bool
    ) -> Done | None:
        """Put tables in place, if they and what else is expected have not changed; None if they have."""
        tenure, place = self.tenure, self.place
        began = self.ledger.runtime.monotonic()
        founding = not tenure.places
        writes: dict[Key, Write] = {key: put_table(place, table) for key, (_, table) in changes.items()}
        expectations: dict[Key, Expectation] = {key: expected for key, (expected, _) in changes.items()}
        expectations.update(also)
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
            tenure.queued = True
        elif self.waiting:
            writes[waits] = Delete()
        seated = {key: place if key == place.key else msgspec.structs.replace(place, key=key) for key in changes}
        tenure.seated.update(seated)
        self.sent = True
        try:
            done = await self._send(writes, expectations, fetch, granting=granting)
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
            tenure.places.update(seated)
        self.token = self.desk.token = done.token
        if done.version is not None:
            for key, (_, table) in changes.items():
                self.desk.remember(key, done.version if table.seats or table.split else ABSENT, table)
        return done

    async def _send(
        self,
        writes: Mapping[Key, Write],
        expectations: Mapping[Key, Expectation],
        fetch: Sequence[Key],
        *,
        granting: bool,
    ) -> Done:
        agent, token = self.tenure.agent, self.token or self.desk.token
        durable = granting and self.place.durable
        if durable and not fetch:  # waits for the disk, and may do so with others
            return await self.ledger.gathered(writes, expectations, agent=agent, snapshot=token)
        return await self.ledger.commit(
            writes, expectations, agent=agent, durable=durable, quiet=True, fetch=fetch, snapshot=token,
            operation=OPERATION,
        )  # fmt: skip

    async def _still_alive(self, refused: CommitRefused) -> None:
        """After a refusal that names the own records: learn the newest pulse, or that the tenure is over."""
        tenure = self.tenure
        if any(clash.key in (tenure.key, tenure.pulse_key) for clash in refused.clashes):
            await tenure.look_again(self.ledger)
            if tenure.loss is not None:
                raise tenure.loss

    async def _judge(self, view: View, blockers: Sequence[Seat]) -> float | None:
        """After how many seconds one of those in the way may be dead; None if one was, and was removed, or the table
        has changed."""
        dead, patience = await removals.judge(self.desk, self.ledger, blockers)
        if not dead:
            return patience
        await removals.remove(self.ledger, self.place, view, dead, self.tenure.agent)
        return None
