"""Callers who want one page share it, and each is told what he would be told by himself."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import pytest

from interlock.backends.postgresql import PostgreSQLBackend
from interlock.backends.postgresql.home import Home, Row
from interlock.backends.postgresql.loops import Asked, _next_reads
from interlock.backends.postgresql.scans import KEPT, Scans, Wanted
from interlock.errors import BackendUnavailableError
from interlock.model import Page, Span, Token
from interlock.testing.conformance.world import Subject, key, put

LOG = Span(key("log", 0), key("log", 100))
NEWEST = Wanted(LOG.start, LOG.stop, None, 9, False)


class Held:
    """A driver whose statements show how many were sent before them, and end when the test says so."""

    def __init__(self) -> None:
        self.sent = 0
        self.may_end: list[asyncio.Event] = []
        self.error: Exception | None = None

    async def fetch(
        self, name: str, arguments: Sequence[Any], *, at: Token | None = None, commits: bool = False, soft: bool = False
    ) -> tuple[list[Row], Home]:
        number, self.sent = self.sent, self.sent + 1
        self.may_end.append(asyncio.Event())
        await self.may_end[number].wait()
        if self.error is not None:
            raise self.error
        head = ("9:9:", 256, 0.0) if at is None else (1, [], None)
        return [(*head, LOG.start, 256, number, b"v", None)], Home(1, 1, 0)


async def turns(count: int = 4) -> None:
    """Let the loop go round so often."""
    for _ in range(count):
        await asyncio.sleep(0)


def _scans(held: Held) -> Scans:
    return Scans(held, 10)  # type: ignore[arg-type]


def _number(page: Page) -> int:
    """Which statement the page is from."""
    return page.items[0][1].version[1]


def test_a_page_is_from_a_statement_that_was_sent_after_it_was_asked_for() -> None:
    async def run() -> None:
        held = Held()
        scans = _scans(held)
        first = asyncio.ensure_future(scans.page(NEWEST))
        await turns()
        assert held.sent == 1
        late = [asyncio.ensure_future(scans.page(NEWEST)) for _ in range(3)]
        await turns()
        held.may_end[0].set()
        await turns()
        assert held.sent == 2, "who comes while a statement is under way shares the next one"
        latest = [asyncio.ensure_future(scans.page(NEWEST)) for _ in range(3)]
        await turns()
        held.may_end[1].set()
        await turns()
        held.may_end[2].set()
        assert _number(await first) == 0
        assert {_number(page) for page in await asyncio.gather(*late)} == {1}
        assert {_number(page) for page in await asyncio.gather(*latest)} == {2}
        pages = [each.result() for each in late]
        pages[0].items.clear()
        assert len(pages[1].items) == 1, "the list is each caller's own"
        assert pages[1] == pages[2]

    asyncio.run(run())


async def _one_and_three_behind(held: Held) -> tuple[asyncio.Future[Page], list[asyncio.Future[Page]]]:
    """A caller whose statement is under way, and three who wait for the next one."""
    scans = _scans(held)
    first = asyncio.ensure_future(scans.page(NEWEST))
    await turns()
    late = [asyncio.ensure_future(scans.page(NEWEST)) for _ in range(3)]
    await turns()
    return first, late


def test_who_is_cancelled_leaves_the_others_alone_and_an_error_is_told_to_each() -> None:
    async def run() -> None:
        held = Held()
        first, late = await _one_and_three_behind(held)
        held.may_end[0].set()
        await turns()
        late[0].cancel()
        await turns()
        held.error = BackendUnavailableError("gone")
        held.may_end[1].set()
        found = await asyncio.gather(first, *late, return_exceptions=True)
        assert isinstance(found[0], Page)
        assert isinstance(found[1], asyncio.CancelledError)
        assert isinstance(found[2], BackendUnavailableError)
        assert isinstance(found[3], BackendUnavailableError)
        assert found[2] is not found[3]

    asyncio.run(run())


def test_nothing_is_begun_for_those_who_are_all_cancelled() -> None:
    """As when the loop ends: a lane that a timer opens then finds them, and its connection would be nobody's."""

    async def run() -> None:
        held = Held()
        first, late = await _one_and_three_behind(held)
        for each in late:
            each.cancel()
        held.may_end[0].set()
        await turns(8)
        assert first.done()
        assert held.sent == 1

    asyncio.run(run())


def test_nothing_is_read_for_who_is_cancelled() -> None:
    async def run() -> None:
        reads: deque[Asked] = deque(Asked([key("a")], asyncio.get_running_loop().create_future(), False) for _ in "abc")
        wanted = reads[1]
        for asked in (reads[0], reads[2]):
            asked.future.cancel()
        assert _next_reads(reads) == [wanted]
        assert not reads
        wanted.future.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    "other",
    [
        NEWEST._replace(at=Token(1, 1, 512)),
        NEWEST._replace(at=Token(1, 2, 256)),
        NEWEST._replace(at=Token(1, 1, 256, b"\0" * 8)),
        NEWEST._replace(stop=LOG.stop + b"\0"),
        NEWEST._replace(limit=10),
        NEWEST._replace(is_reverse=True),
    ],
)
def test_another_page_is_not_shared(other: Wanted) -> None:
    async def run() -> None:
        held = Held()
        scans = _scans(held)
        at = NEWEST if other.at is None else NEWEST._replace(at=Token(1, 1, 256))
        pages = [asyncio.ensure_future(scans.page(wanted)) for wanted in (at, other)]
        await turns()
        assert held.sent == 2
        for each in held.may_end:
            each.set()
        await asyncio.gather(*pages, return_exceptions=True)

    asyncio.run(run())


def test_few_pages_are_remembered_and_none_that_is_wanted_is_forgotten() -> None:
    async def run() -> None:
        held = Held()
        scans = _scans(held)
        under_way = asyncio.ensure_future(scans.page(NEWEST))
        await turns()
        for number in range(3 * KEPT):
            page = asyncio.ensure_future(scans.page(NEWEST._replace(at=Token(1, 1, 256 * number + 300))))
            await turns()
            held.may_end[-1].set()
            await page
        assert len(scans._wanted) <= KEPT
        assert NEWEST in scans._wanted
        held.may_end[0].set()
        await under_way

    asyncio.run(run())


def test_a_crowd_that_looks_at_one_range_needs_few_statements(postgresql_url: str, schema: str) -> None:
    async def run() -> None:
        backend = PostgreSQLBackend(postgresql_url, schema=schema)
        store = Subject(backend)
        try:
            names = [key("log", number) for number in range(20)]
            token = (await store.commit({name: put(1) for name in names})).token
            sent: Counter[str] = Counter()
            fetch = backend._driver.fetch

            async def counted(name: str, *arguments: Any, **more: Any) -> Any:
                sent[name] += 1
                return await fetch(name, *arguments, **more)

            backend._driver.fetch = counted  # type: ignore[method-assign]
            for at in (None, None, token):
                sent.clear()
                pages = await asyncio.gather(*[backend.scan(LOG, at) for _ in range(16)])
                assert sum(sent.values()) <= 2
                assert {page.token for page in pages} == {pages[0].token}
                for page in pages:
                    assert [name for name, _ in page.items] == names
                    assert not page.superseded
            await store.commit({names[0]: put(2)})
            pages = await asyncio.gather(*[backend.scan(LOG, at) for at in (token, None) for _ in range(8)])
            assert [page.superseded for page in pages] == [True] * 8 + [False] * 8
            assert len({page.items[0][1].version for page in pages}) == 2
        finally:
            await backend.close()

    asyncio.run(run())
