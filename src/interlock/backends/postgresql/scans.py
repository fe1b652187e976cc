"""Scans: pages of ranges; callers of one event loop who want the same page at once share it.

Agents that watch one range ask for the very same page again and again, and a page costs the server and the loop as much
as some commits. So who wants a page that somebody else is about to ask for gets it together with him. A page
answers a caller only if its statement was **sent after he had asked**: it then shows every commit that was acknowledged
to anybody before he asked, just as one of his own would. Who comes while a statement is under way shares the next one.
Each lane of a page's `gathering.Gatherer` takes the callers from the queue and sends the statement after that, which is
all that this depends on.

What they share is one snapshot and what it shows: rows, token, and whether something newer hides them. Callers with a
snapshot of their own share only with those of the same snapshot; of the token, which is compared as a whole. The
entries are shared too: nobody can change them. The list is each caller's own, and so is an error. Who is cancelled
leaves the others alone.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from typing import Final, NamedTuple

from interlock.backends.postgresql.gathering import Gatherer
from interlock.backends.postgresql.home import Driver
from interlock.backends.postgresql.reads import check_horizon
from interlock.backends.postgresql.record import token_of
from interlock.backends.postgresql.tokens import clamped, from_detail, parsed
from interlock.errors import SnapshotTooOldError
from interlock.model import NONCE_MASK, Entry, Key, Page, Token

KEPT: Final = 64
"""Of so many pages it is remembered whether callers come in crowds."""


class Wanted(NamedTuple):
    """A page: of the newest entries if ``at`` is None."""

    start: Key
    stop: Key
    at: Token | None
    limit: int
    is_reverse: bool


async def page(driver: Driver, wanted: Wanted) -> Page:
    """Read a page in one statement. Raises what `home.Home.admit` raises, and `SnapshotTooOldError`."""
    start, stop, at, limit, is_reverse = wanted
    order = "_reverse" if is_reverse else ""
    if at is None:
        rows, home = await driver.fetch("scan" + order, (start, stop, limit + 1))
        seen, newest = rows[0][:2]
        token, superseded = token_of(home.store, home.epoch, clamped(parsed(seen), newest)), False
    else:
        snapshot = from_detail(at.position, at.detail)
        arguments = (start, snapshot.stop, list(snapshot.open), stop, limit + 1)
        rows, _ = await driver.fetch("scan_at" + order, arguments, at=at)
        check_horizon(snapshot, *rows[0][:2])
        if rows[0][2] == 2:
            raise SnapshotTooOldError("a version that the snapshot may show was overwritten quietly")
        token, superseded = at, rows[0][2] is not None
    items = [(row[3], Entry((row[4], row[5] & NONCE_MASK), row[6], row[7])) for row in rows if row[3] is not None]
    return Page(items[:limit], token, len(items) > limit, superseded)


class _Callers:
    """Who wants one page."""

    def __init__(self, driver: Driver, wanted: Wanted, most: int) -> None:
        self._driver = driver
        self._wanted = wanted
        self.gatherer: Gatherer[asyncio.Future[Page | Exception]] = Gatherer(_all, self._send, most, lanes=1)

    async def _send(self, callers: list[asyncio.Future[Page | Exception]]) -> None:
        found: Page | Exception
        try:
            found = await page(self._driver, self._wanted)
        except asyncio.CancelledError:  # the loop ends
            for caller in callers:
                caller.cancel()
            raise
        except Exception as error:
            found = error
        for caller in callers:
            if not caller.done():
                caller.set_result(_own(found))


class Scans:
    """The pages that callers of one event loop want, over the connections of that loop. ``most``: how many of these
    there may be."""

    def __init__(self, driver: Driver, most: int) -> None:
        self._driver = driver
        self._most = most
        self._wanted: dict[Wanted, _Callers] = {}

    async def page(self, wanted: Wanted) -> Page:
        """A page, as by the function `page`."""
        callers = self._wanted.get(wanted)
        if callers is None:
            if len(self._wanted) >= KEPT:
                self._forget()
            callers = self._wanted[wanted] = _Callers(self._driver, wanted, self._most)
        gatherer = callers.gatherer
        if gatherer.is_idle:
            with gatherer.alone():
                return await page(self._driver, wanted)
        mine: asyncio.Future[Page | Exception] = asyncio.get_running_loop().create_future()
        gatherer.add(mine)
        found = await mine
        if isinstance(found, Exception):
            raise found
        return found

    def _forget(self) -> None:
        """Drop the pages that nobody wants now; those of single snapshots first, which are hardly wanted again."""
        for newest_too in (False, True):
            for wanted, callers in list(self._wanted.items()):
                if callers.gatherer.is_empty and (newest_too or wanted.at is not None):
                    del self._wanted[wanted]
            if len(self._wanted) < KEPT:
                break


def _all(queue: deque[asyncio.Future[Page | Exception]]) -> list[asyncio.Future[Page | Exception]]:
    """Those who still wait: when the loop ends all have been cancelled, and nothing must be begun for them."""
    callers = [caller for caller in queue if not caller.done()]
    queue.clear()
    return callers


def _own(found: Page | Exception) -> Page | Exception:
    """The same for one of several callers."""
    if isinstance(found, Exception):
        return copy.copy(found)
    return Page(found.items.copy(), found.token, found.more, found.superseded)
