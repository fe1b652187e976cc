"""The journal of a durable saga: ordinary records in the system space of any backend.

One record for the saga (``saga``: name, id), some for its steps (``sagapage``: name, id, run, page; see
`interlock.saga.pages`), one for each dead letter. A *run* is one pass of the program through the saga; an id that was
undone and is entered again gets the next run, and so other idempotency keys. What is written when, and why that is
enough:

- **begun**, before a step's function is called, with everything that its undo will need. So an effect without a record
  is impossible; a step that is only begun when its coordinator dies may or may not have happened: it is UNKNOWN.
- **done**, with the result. From here on the step is undone by whoever ends the saga, and is never called again.
- **undoing**, before an undo is called, **undone** behind it. An undo that was interrupted runs again (at least once,
  with a key of its own).
- The saga itself: **running**, then **undoing** or **decided** (only if something irreversible follows), then
  **committed**, **undone** or **incomplete**. Once it says *undoing* nothing goes forward any more, once it says
  *decided* nothing goes back.

Every write is one conditional commit that expects each record's version as this coordinator last wrote it, *and* that
of the saga's own record, which whoever takes the saga over overwrites first (`interlock.saga.presence`). So of two
coordinators only one can write; the other one learns it at its next write, which comes before its next act, and stops:
`SagaClosedError`, and it undoes nothing, because the other one does. Two that begin one saga at the same moment both
find nothing; the one whose first step comes later learns it there.

What must be on the disk before anything else happens is what an act hangs on: *begun*, and where the saga stands. These
commits are synced. *Undoing* is committed without waiting for the disk. *Done*, *failed* and *undone* have no commit of
their own: the next one of the saga carries them, and if none comes soon they are written all the same
(`interlock.saga.lags`). A coordinator that dies before that leaves a step *begun*, and so UNKNOWN, or an undo to be
run again: both as if it had died one moment earlier. A durable commit expects what is not on the disk yet, in case the
engine has lost some.

In an asynchronous saga a plain function may be a step, too (a tool that is called like any other). It cannot await the
journal, so what it writes goes over the backend's blocking leaf, on its own thread (`plainly`). Nor can it wait for a
commit of another task's: it takes another page.

A saga that has ended is kept for ``idempotency_ttl_seconds``, to be replayed; then its records expire.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from interlock.core.engine import Engine
from interlock.errors import InterlockError
from interlock.layers.ledger import Record, is_expired
from interlock.model import ABSENT, Delete, Expectation, Key, Version, Write
from interlock.saga import kinds
from interlock.saga.errors import SagaClosedError
from interlock.saga.lags import lags_of
from interlock.saga.pages import Page, Place, encoded
from interlock.saga.presence import claim_of, coordinators_of, unavailable
from interlock.saga.writing import Records

SAGAS: Final = kinds.SAGAS
PAGES: Final = kinds.PAGES
LETTERS: Final = kinds.LETTERS

RUNNING, UNDOING, DECIDED, COMMITTED, UNDONE, INCOMPLETE = (
    "running", "undoing", "decided", "committed", "undone", "incomplete",
)  # fmt: skip
ENDED: Final = (COMMITTED, UNDONE)
"""Nothing is left to do."""
_LEFT: Final = (COMMITTED, UNDONE, INCOMPLETE)
"""Nobody coordinates it any more."""

log = logging.getLogger("interlock")


class Journal(Records):
    """The records of one run of one saga, as its coordinator writes them."""

    def __init__(self, engine: Engine, name: str, saga_id: str, agent: str, lease_seconds: float) -> None:
        super().__init__(engine, name, saga_id, agent)
        self.lease_seconds = lease_seconds
        self.watched = False
        """See `interlock.saga.lags.Watched`."""
        self.next_run = 1
        self._at = 0.0
        """The engine's time when the journal was read."""
        self._left_seconds: float | None = None
        """When the saga's own record was to expire, from then on."""
        self._own: set[Place] = set()
        """Steps that this coordinator has begun itself, so that nobody has left a letter for them."""
        self._aside: dict[Place, Page] = {}
        """Pages of steps that the commit of a session carries."""
        self._letters: dict[Key, Expectation] = {}

    @property
    def key_suffix(self) -> str:
        """What the idempotency keys of this run end with."""
        return "" if self.run == 1 else f"#{self.run}"

    def key_of(self, place: Place) -> str:
        """The idempotency key of a recorded step: what its record says, or what `Frame.step_key` makes of the place."""
        given: str | None = self.steps[place].get("key")
        return f"{self.title}:{place}{self.key_suffix}" if given is None else given

    def letter_id(self, place: Place) -> str:
        """The name of a step's dead letter."""
        return f"{self.title}/{self.run}/{place}"

    # -- whose it is ---------------------------------------------------------------------------------------------------
    async def enter(self) -> bool:
        """Begin to coordinate the saga here, and read its record; whether there is one. To be ended by `leave`.

        Raises `LeaseUnavailableError` if that is being done in this very store object."""
        presence = await coordinators_of(self.engine).enter(self.head_key, self.title, self.agent, self.lease_seconds)
        self._presence = presence
        try:
            return await self._look()
        except BaseException:
            await self.leave()
            raise

    async def _look(self) -> bool:
        reading = await self.ledger.backend.read((self.head_key,))
        entry, self._token, self._at = reading.entries[0], reading.token, reading.at
        self._head_version = ABSENT
        if entry is None or entry.value is None:
            return False
        head = SAGAS.load(entry)
        self._head_version = entry.version
        self.next_run = head["run"] + 1
        if is_expired(entry, reading.at):
            return False
        self.head, expires_at = head, entry.expires_at
        self._left_seconds = None if expires_at is None else max(1.0, expires_at - self._at)
        return True

    async def claim(self) -> None:
        """Take over the run that there is. Raises `LeaseUnavailableError` while its coordinator lives."""
        presence = self._presence
        assert presence is not None
        writes, expected = await claim_of(self.engine, self.ledger, self.title, self.head, presence.owner)
        head = {**self.head, "owner": presence.owner, "lease": presence.ttl_seconds}
        try:
            await self._write(head=head, others=writes, expected=expected, kept=self._left_seconds)
        except SagaClosedError:
            self.lost = False
            raise unavailable(self.title, self.head["agent"]) from None

    def leave_at_once(self) -> bool:
        """`leave`, if nothing has to be written for that; False if something has."""
        presence = self._presence
        if presence is not None and self.head.get("owner") == presence.owner and not self._unwritten:
            return False
        if presence is not None:
            self._presence = None
            coordinators_of(self.engine).leave(self.head_key, presence)
        return True

    async def leave(self) -> None:
        """Coordinate it no longer; whoever has lost it has nothing to give back. To be called once."""
        if self.leave_at_once():
            return
        presence, self._presence = self._presence, None
        assert presence is not None
        try:
            await self._write(head={**self.head, "owner": None}, kept=self._left_seconds, durable=False)
        except SagaClosedError:
            pass
        except InterlockError as failure:  # the owner's pulse ends by itself; the saga is what it is
            log.warning("saga %s could not be given back: %s", self.title, failure)
        finally:
            coordinators_of(self.engine).leave(self.head_key, presence)

    async def load(self) -> None:
        """Read the steps of the last run. They are final only for who has claimed it, or if it has committed."""
        self._forget_steps()
        after: tuple[Any, ...] | None = None
        while True:
            found = await self.ledger.scan(PAGES, (self.name, self.saga_id, self.run), after=after)
            for record in found.records:
                self._learn(record)
            if not found.more:
                return
            after = PAGES.parts(found.records[-1].key)

    def _forget_steps(self) -> None:
        """Another run: its steps lie elsewhere."""
        self.steps.clear()
        self._pages.clear()
        self._page_of.clear()
        self._own.clear()
        self._aside.clear()

    def _learn(self, record: Record) -> None:
        if record.value is None or record.version is None:
            return
        number = PAGES.parts(record.key)[-1]
        assert type(number) is int
        page = next((each for each in self._pages if each.number == number), None)
        if page is None:
            page = Page(number, record.key)
            self._pages.append(page)
        for place, (raw, step) in record.value.items():
            page.set(place, raw)
            self.steps[place], self._page_of[place] = step, page
        page.dirty, page.version = False, record.version

    # -- steps ---------------------------------------------------------------------------------------------------------
    def open_run(self, facts: Mapping[str, Any]) -> None:
        """Begin the next run. Its steps have keys of their own.

        Nothing is written yet: until the first step begins there is nothing to undo, and the commit that begins it
        brings the saga's own record with it."""
        presence = self._presence
        assert presence is not None
        self._forget_steps()
        self._left_seconds = None
        self.head = {
            **facts, "status": RUNNING, "run": self.next_run, "agent": self.agent, "at": self._at,
            "owner": presence.owner, "lease": presence.ttl_seconds,
        }  # fmt: skip
        self._unwritten = True

    async def ready(self) -> None:
        """Before a commit that carries a record of this saga: write its own record, if this run has none, and what
        would be carried by the next commit."""
        if self._unwritten or self._lag:
            await self._write(durable=self._unwritten)

    async def begin(self, place: Place, facts: dict[str, Any]) -> None:
        """Write a step's intent, and the results of the steps before it."""
        before = self.steps.get(place)
        step = facts if before is None else {**before, **facts}
        raw = encoded(place, step)
        with self._mutex:
            page = self._put(place, step, raw)
            busy = self._doubts or self._head_writing or page.writing
            batch = None if busy else self._taken(page, None, True, None, False)
        if before is None:
            self._own.add(place)
        try:
            await (self._write(page=page) if batch is None else self._send(batch))
        except BaseException:
            self._withdraw(place, before)
            raise

    def note(self, place: Place, changes: Mapping[str, Any]) -> None:
        """Keep something about a step for the next commit. Raises `ValueRefusedError`, `LimitExceededError`."""
        before = self.steps.get(place)
        step = {**before, **changes} if before is not None else dict(changes)
        raw = encoded(place, step)
        with self._mutex:
            self._put(place, step, raw)
            if not self._lag:
                self._changes += 1
                self._lag = self._changes
        if not self.watched:
            lags_of(self.engine).watch(self)

    def lag(self) -> int:
        """See `interlock.saga.lags.Watched`."""
        return 0 if self.lost else self._lag

    async def flush(self) -> None:
        """See `interlock.saga.lags.Watched`."""
        if self._lag and not self._unwritten and not self.lost:
            await self._write(durable=False)

    def put_steps(self, steps: Mapping[Place, dict[str, Any]]) -> None:
        """Steps that the next commit brings, which comes at once. Raises as `note` does."""
        forms = {place: encoded(place, step) for place, step in steps.items()}
        with self._mutex:
            self._put_all(steps, forms)

    def _put_all(self, steps: Mapping[Place, dict[str, Any]], forms: Mapping[Place, bytes]) -> None:
        for place, step in steps.items():
            self._put(place, step, forms[place])

    async def write_step(
        self,
        place: Place,
        changes: Mapping[str, Any],
        letter: Mapping[str, Any] | None = None,
        *,
        durable: bool = True,
        drops: bool = False,
    ) -> None:
        """Write a step's record anew, and its dead letter with it; ``drops``: that has come to its end."""
        before = self.steps.get(place)
        step = {**(before or {}), **changes}
        raw = encoded(place, step)
        with self._mutex:
            page = self._put(place, step, raw)
        key = LETTERS.key(self.letter_id(place)) if letter is not None or drops else b""
        writes: dict[Key, Write] = {}
        if letter is not None:
            writes[key] = LETTERS.put({
                "name": self.name, "id": self.saga_id, "run": self.run, "place": place, "page": page.number, **letter,
            })  # fmt: skip
        elif drops:
            writes[key] = Delete()
        try:
            done = await self._write(
                page=page, others=writes, expected={key: self._letters.get(key, ABSENT)} if key else {}, durable=durable
            )
        except BaseException:
            self._withdraw(place, before)
            raise
        if key:
            self._letters[key] = ABSENT if drops or done is None else done

    def _withdraw(self, place: Place, before: dict[str, Any] | None) -> None:
        """What was to be written of a step is not in the store, or in doubt."""
        with self._mutex:
            page = self._page_of[place]
            if before is not None:
                page.set(place, encoded(place, before))
                self.steps[place] = before
            else:
                page.remove(place)
                del self.steps[place], self._page_of[place]
                self._own.discard(place)

    async def drop_letter(self, place: Place, changes: Mapping[str, Any]) -> None:
        """Write a step's record anew and take its dead letter away; where there is none, with the next commit."""
        await self.know_letter(place)
        if self._letters[LETTERS.key(self.letter_id(place))] is ABSENT:
            self.note(place, changes)
        else:
            await self.write_step(place, changes, drops=True)

    async def know_letter(self, place: Place) -> None:
        """Learn whether a step has a dead letter already, before one is written."""
        key = LETTERS.key(self.letter_id(place))
        if key in self._letters:
            return
        version = None
        if place not in self._own:
            version = (await self.ledger.read(LETTERS, [key])).records[0].version
        self._letters[key] = ABSENT if version is None else version

    async def set_status(self, status: str) -> None:
        """Move the saga on, with what has been put or noted meanwhile."""
        head = {**self.head, "status": status}
        if status in _LEFT:
            head["owner"] = None
        kept = self.engine.idempotency_ttl_seconds if status in ENDED else None
        await self._write(head=head, kept=kept, whole=kept is not None)

    # -- as a part of somebody else's commit ---------------------------------------------------------------------------
    def carried(self, place: Place, changes: Mapping[str, Any]) -> tuple[dict[Key, Write], dict[Key, Expectation]]:
        """A step's record for the commit of a session of the same store, and what that commit has to expect. It has a
        page of its own, so no other commit is in the way."""
        assert not self._unwritten, "the saga's own record comes first: ready"
        raw = encoded(place, {**self.steps.get(place, {}), **changes})
        with self._mutex:
            page = self._page_of.get(place) or self._aside.get(place)
            if page is None:
                page = self._aside[place] = self._new_page(own=True)
            expected = self._volatile()
            expected[page.key], expected[self.head_key] = page.version, self._head_version
            return {page.key: kinds.PAGES.put_plain(list({**page.steps, place: raw}.values()))}, expected

    async def carried_letter(self, place: Place) -> tuple[dict[Key, Write], dict[Key, Expectation]]:
        """The end of a step's dead letter, for such a commit."""
        await self.know_letter(place)
        letter = LETTERS.key(self.letter_id(place))
        stands = self._letters[letter]
        return {} if stands is ABSENT else {letter: Delete()}, {letter: stands}

    def dropped_letter(self, place: Place) -> None:
        """That commit has happened."""
        self._letters[LETTERS.key(self.letter_id(place))] = ABSENT

    def carried_done(self, place: Place, changes: Mapping[str, Any], version: Version) -> None:
        """That commit has happened."""
        step = {**self.steps.get(place, {}), **changes}
        raw = encoded(place, step)
        with self._mutex:
            page = self._page_of.get(place) or self._aside.pop(place)
            dirty = page.dirty
            page.set(place, raw)
            page.dirty, page.version, page.unsynced = dirty, version, False
            self.steps[place], self._page_of[place] = step, page

    async def learn_step(self, place: Place) -> None:
        """Read a step's record again, after a commit that carried it and whose end nobody saw."""
        page = self._page_of.get(place) or self._aside[place]
        self._learn((await self.ledger.read(PAGES, [page.key])).records[0])
