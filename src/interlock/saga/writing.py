"""How a coordinator writes the records of its saga: one commit at a time for each of them, and none in doubt.

`Records` is the part of a journal (`interlock.saga.journal`) that knows no steps' meaning. What holds at every moment,
under its mutex, which is never held across an await:

- A record is in one commit at a time. Whoever needs one that is under way waits for it, or takes another page; the
  saga's own record is changed only while no page is under way, because every page's commit expects its version.
- What was put into a page and not yet into a commit (`Page.dirty`) goes with the next commit, whosever that is.
- A commit whose end was not seen (an interrupt, a reply that was lost) leaves its records in doubt (`Page.unsure`), and
  the next commit reads their versions first. That is sound although it looks like taking over somebody else's version:
  the commit expects the saga's own record too, which anybody else would have had to overwrite, and of that one only
  the own version is taken.
- A durable commit expects the records that the engine may still lose, so nothing durable stands on what is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from interlock import stepping
from interlock.core.engine import Engine
from interlock.errors import InterlockError, UsageError
from interlock.layers.gathering import Portion
from interlock.layers.holdings import desk_of
from interlock.layers.ledger import Ledger
from interlock.model import ABSENT, CommitRefused, Entry, Expectation, Key, Put, Token, Version, Write
from interlock.ports import Waiter
from interlock.saga.errors import SagaClosedError
from interlock.saga.kinds import PAGES, SAGAS
from interlock.saga.pages import PAGE_BYTES, Page, Place, with_room
from interlock.saga.presence import Presence

T = TypeVar("T")

EXPIRING_PAGES: Final = 250
"""Up to so many pages of a saga that has ended expire with it, so that its last commit does not grow without bounds."""

_plain: ContextVar[bool] = ContextVar("interlock_saga_plain", default=False)


def plainly(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a step of a plain function to its end; its journal is written without awaiting."""
    token = _plain.set(True)
    try:
        return stepping.step(coroutine)
    finally:
        _plain.reset(token)


class Batch(Portion):
    """What one commit of a journal writes and expects; ``head``: the saga's own record, if that is in it."""

    __slots__ = ("head", "pages")

    writes: dict[Key, Write]
    expectations: dict[Key, Expectation]

    def __init__(self, agent: str, token: Token | None, head: dict[str, Any] | None, durable: bool) -> None:
        Portion.__init__(self, {}, {}, agent, durable, token)
        self.head = head
        self.pages: list[Page] = []


class Records:
    """See the module."""

    def __init__(self, engine: Engine, name: str, saga_id: str, agent: str) -> None:
        self.engine = engine
        self._ledger = desk_of(engine).ledger
        self._leaf: Ledger | None = None
        self.name = name
        self.saga_id = saga_id
        self.title = f"{name}/{saga_id}"
        """The saga in reports."""
        self.agent = agent
        self.lost = False
        """Whether somebody else coordinates it now."""
        self.head_key = SAGAS.key(name, saga_id)
        self.head: dict[str, Any] = {}
        self.steps: dict[Place, dict[str, Any]] = {}
        self._presence: Presence | None = None
        self._unwritten = False
        """Whether this run has begun without a record so far."""
        self._head_version: Expectation = ABSENT
        self._head_unsure = self._head_writing = False
        self._doubts = False
        """Whether some record is in doubt."""
        self._mutex = threading.Lock()
        self._pages: list[Page] = []
        self._page_of: dict[Place, Page] = {}
        self._waiters: list[Waiter] = []
        self._changes = self._lag = 0
        """How often something was left for the next commit; and which time that was, if it is not written yet."""
        self._token: Token | None = None

    @property
    def run(self) -> int:
        """Which pass through the saga this is, from 1."""
        number: int = self.head.get("run", 1)
        return number

    @property
    def _blocks(self) -> bool:
        """Whether it is a plain function in asynchronous code that writes: it can wait for nobody."""
        return self.engine.runtime.suspends and _plain.get()

    @property
    def ledger(self) -> Ledger:
        """Where the records lie, for whoever awaits or for a plain function."""
        if not self._blocks:
            return self._ledger
        if self._leaf is None:
            backend = self.engine.backend.blocking()
            if backend.suspends:
                raise UsageError(
                    "a plain function cannot be a step of an asynchronous durable saga over this backend, which cannot "
                    "block: make the function async, or use `await saga.step(...)`"
                )
            self._leaf = Ledger(self.engine, backend=backend, runtime=self.engine.runtime.blocking())
        return self._leaf

    # -- pages ---------------------------------------------------------------------------------------------------------
    def _note_lag(self) -> None:
        """Under the mutex: there is something that no commit has carried."""
        if not self._lag:
            self._changes += 1
            self._lag = self._changes

    def _put(self, place: Place, step: dict[str, Any], raw: bytes) -> Page:
        """Under the mutex: a step as it is from now on, in a page that is its own or has room."""
        page = self._page_of.get(place)
        if page is not None and ((len(raw) > PAGE_BYTES and len(page.steps) > 1) or (page.writing and self._blocks)):
            page.remove(place)
            page = None
        if page is None:
            large = len(raw) > PAGE_BYTES
            page = (None if large else with_room(self._pages)) or self._new_page(own=large)
        page.set(place, raw)
        self.steps[place], self._page_of[place] = step, page
        return page

    def _new_page(self, *, own: bool) -> Page:
        """Under the mutex."""
        number = self._pages[-1].number + 1 if self._pages else 0
        page = Page(number, PAGES.beside(SAGAS, self.head_key, self.run, number), own=own)
        self._pages.append(page)
        return page

    def _volatile(self) -> dict[Key, Expectation]:
        """Under the mutex: what a durable commit expects besides what it writes."""
        return {each.key: each.version for each in self._pages if each.unsynced and not each.writing}

    # -- commits -------------------------------------------------------------------------------------------------------
    async def _write(
        self,
        *,
        page: Page | None = None,
        head: dict[str, Any] | None = None,
        others: Mapping[Key, Write] | None = None,
        expected: Mapping[Key, Expectation] | None = None,
        durable: bool = True,
        kept: float | None = None,
        whole: bool = False,
    ) -> Version | None:
        """One commit: the saga's own record, a page, and whatever nothing has carried so far; its version.

        Raises `SagaClosedError` where somebody else coordinates the saga, and as `Ledger.gathered` does."""
        if self._doubts:
            await self._settle_doubts()
        with self._mutex:
            batch = None if self._is_busy(page, head) else self._taken(page, head, durable, kept, whole)
        if batch is None:
            batch = await self._take(page, head, durable, kept, whole)
        if others:
            batch.writes.update(others)
        if expected:
            batch.expectations.update(expected)
        return await self._send(batch) if batch.writes else None  # another commit has carried it

    async def _send(self, batch: Batch) -> Version | None:
        """See `_write`."""
        try:
            done = await (self.ledger if _plain.get() else self._ledger).gather(batch)
        except CommitRefused as refused:
            self.lost = True
            self._fail(batch, unsure=False)
            raise SagaClosedError(
                f"saga {self.title} was taken over by another process, which goes on with it or undoes it; nothing "
                "more is done here"
            ) from refused
        except BaseException as error:
            self._fail(batch, unsure=not isinstance(error, InterlockError) or error.maybe_committed)
            raise
        self._token = done.token
        self._end(batch, done.version)
        return done.version

    def _is_busy(self, page: Page | None, head: dict[str, Any] | None) -> bool:
        """Under the mutex: whether another commit is in the way of one with this page, or the saga's own record."""
        if self._head_writing or (page is not None and page.writing):
            return True
        return head is not None and any(each.writing for each in self._pages)

    async def _take(
        self, page: Page | None, head: dict[str, Any] | None, durable: bool, kept: float | None, whole: bool
    ) -> Batch:
        """What the next commit writes, as soon as no other one is in the way."""
        while True:
            with self._mutex:
                if not self._is_busy(page, head):
                    return self._taken(page, head, durable, kept, whole)
                if self._blocks:
                    raise UsageError(
                        f"the first step of saga {self.title} is still being written by another task, for which a "
                        "plain function cannot wait: await it first"
                    )
                waiter = self.engine.runtime.waiter()
                self._waiters.append(waiter)
            await waiter.wait()

    def _taken(
        self, page: Page | None, head: dict[str, Any] | None, durable: bool, kept: float | None, whole: bool
    ) -> Batch:
        """Under the mutex."""
        if head is None and self._unwritten:
            head, durable = self.head, True
        batch = Batch(self.agent, self._token, head, durable)
        writes, expected, pages = batch.writes, batch.expectations, batch.pages
        expected[self.head_key] = self._head_version
        if head is not None:
            put = SAGAS.put_plain(head)
            writes[self.head_key] = put if kept is None else Put(put.value, kept)
            self._head_writing = True
        whole = whole and len(self._pages) <= EXPIRING_PAGES
        ttl_seconds = kept if whole else None
        left = False
        for each in self._pages:
            if each.writing:
                left = left or each.dirty
                continue
            if whole:
                wanted = bool(each.steps) or each.version is not ABSENT
            else:
                wanted = each.dirty or (durable and each is page and each.unsynced)
            if wanted:
                pages.append(each)
                writes[each.key] = each.put(ttl_seconds)
                expected[each.key] = each.version
                each.writing, each.dirty = True, False
            else:
                left = left or each.dirty
                if durable and each.unsynced:
                    expected[each.key] = each.version
        if not left:
            self._lag = 0
        return batch

    def _end(self, batch: Batch, version: Version | None) -> None:
        """A commit has happened."""
        with self._mutex:
            self._note_end(batch, version)
            waiters = self._waiters
            if waiters:
                self._waiters = []
        for waiter in waiters:
            waiter.wake()

    def _note_end(self, batch: Batch, version: Version | None) -> None:
        unsynced = not batch.durable
        for page in batch.pages:
            page.writing, page.unsynced = False, unsynced
            if version is None:
                page.unsure = self._doubts = True
            else:
                page.version = version
        if batch.head is not None:
            self.head, self._unwritten, self._head_writing = batch.head, False, False
            if version is None:
                self._head_unsure = self._doubts = True
            else:
                self._head_version = version
        if not unsynced:
            for page in self._pages:
                if page.unsynced and page.key in batch.expectations:
                    page.unsynced = False

    def _fail(self, batch: Batch, *, unsure: bool) -> None:
        """A commit has not happened, or nobody knows."""
        with self._mutex:
            self._note_failure(batch, unsure)
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def _note_failure(self, batch: Batch, unsure: bool) -> None:
        self._doubts = self._doubts or unsure
        for page in batch.pages:
            page.writing, page.dirty = False, True
            page.unsure = page.unsure or unsure
        if batch.head is not None:
            self._head_writing = False
            self._head_unsure = self._head_unsure or unsure
        if batch.pages:
            self._note_lag()

    async def _settle_doubts(self) -> None:
        """Learn the versions of records whose last commit nobody has seen end."""
        with self._mutex:
            pages = self._take_doubts()
        reading = await self.ledger.backend.read([self.head_key, *[each.key for each in pages]])
        found = SAGAS.load(reading.entries[0])
        with self._mutex:
            if self._head_unsure and self._is_own(found):
                assert reading.entries[0] is not None
                self._head_version, self._unwritten = reading.entries[0].version, False
            self._head_unsure = False
            _settle(pages, reading.entries[1:])

    def _take_doubts(self) -> list[Page]:
        self._doubts = any(each.unsure and each.writing for each in self._pages)
        return [each for each in self._pages if each.unsure and not each.writing]

    def _is_own(self, found: dict[str, Any] | None) -> bool:
        """Whether the saga's own record is one that this coordinator has written, and one that it may go back from: if
        the store says that the saga was decided, who did not hear of it leaves it to a recovery, which goes forward."""
        if found is None or self._presence is None or found.get("owner") != self._presence.owner:
            return False
        return found["run"] == self.run and found["status"] in (self.head["status"], "undoing")


def _settle(pages: Sequence[Page], entries: Sequence[Entry | None]) -> None:
    for page, entry in zip(pages, entries, strict=True):
        page.version = ABSENT if entry is None or entry.value is None else entry.version
        page.unsure, page.dirty = False, True
