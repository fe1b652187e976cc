"""Reads, scans and snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from interlock import keys
from interlock.errors import UsageError
from interlock.model import Delete, Key, Put, Span
from interlock.testing.conformance.world import EVERYTHING, SPACE, World, in_both_worlds, key, put, span, thawed

_STRANGE = [
    "%",
    "_",
    "*",
    "?",
    "a%b",
    "a_b",
    "a.b",
    "a:b",
    "{a}",
    "a\0b",
    "a\0",
    "'; --",
    "a/b",
    "\\",
    '"',
    " ",
    "Ä",
    "日本",
    "🙂",
]


@in_both_worlds
async def test_what_was_put_is_read_back(world: World) -> None:
    store = world.open()
    reply = await store.commit({key("a"): put(1), key("b"): put("two")})
    reading = await store.backend.read([key("b"), key("missing"), key("a"), key("b")])
    assert [thawed(entry) for entry in reading.entries] == ["two", None, 1, "two"]
    assert reading.entries[1] is None
    assert [entry.version for entry in reading.entries if entry is not None] == [reply.version] * 3
    assert [entry.expires_at for entry in reading.entries if entry is not None] == [None] * 3


@in_both_worlds
async def test_a_new_store_is_empty(world: World) -> None:
    store = world.open()
    assert await store.entry(key("a")) is None
    assert await store.listing() == {}
    assert await store.feed() == []
    assert await store.feed(await store.backend.snapshot()) == []
    assert (await store.backend.read([])).entries == []


@in_both_worlds
async def test_any_bytes_can_be_values(world: World) -> None:
    store = world.open()
    values = {key("all"): bytes(range(256)) * 40, key("zeros"): bytes(3), key("large"): b"m" + b"\xff\x00" * (1 << 19)}
    await store.commit({name: Put(value) for name, value in values.items()})
    reading = await store.backend.read(list(values))
    assert [entry.value for entry in reading.entries if entry is not None] == list(values.values())


@in_both_worlds
async def test_keys_are_literal_and_ordered_as_bytes(world: World) -> None:
    store = world.open()
    wanted: dict[Key, Any] = {key(text): text for text in _STRANGE}
    tuples = [("a", 1), ("a", -1), ("a", 300), ("a", "1"), ("a",), ("ab", 0), (7,)]
    wanted |= {SPACE + keys.encode(parts): list(parts) for parts in tuples}
    await store.commit({name: put(value) for name, value in wanted.items()})
    assert await store.listing() == wanted
    assert list(await store.listing()) == sorted(wanted)
    for name, value in wanted.items():
        assert await store.value(name) == value
    below = await store.listing(where=keys.prefix_span(SPACE, ("a",)))
    assert list(below.values()) == [["a"], ["a", "1"], ["a", -1], ["a", 1], ["a", 300]]


@in_both_worlds
async def test_a_tombstone_shows_the_version_of_its_delete(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    reply = await store.commit({key("a"): Delete()})
    entry = await store.entry(key("a"))
    assert entry is not None
    assert (entry.value, entry.version) == (None, reply.version)
    assert await store.listing() == {}


@in_both_worlds
async def test_a_reading_names_the_snapshot_that_it_saw(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    reading = await store.backend.read([key("a")])
    page = await store.backend.scan(EVERYTHING)
    await store.commit({key("a"): put(2), key("b"): put(2)})
    for token in (reading.token, page.token):
        assert await store.value(key("a"), token) == 1
        assert await store.listing(token) == {key("a"): 1}
        assert [change.writes for change in await store.feed(token)] == [{key("a"): put(2), key("b"): put(2)}]
    assert (await store.backend.read([key("a")], reading.token)).token == reading.token
    assert (await store.backend.scan(EVERYTHING, reading.token)).token == reading.token


@in_both_worlds
async def test_a_reply_names_the_snapshot_just_behind_it(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    second = await store.commit({key("a"): put(2)})
    assert await store.value(key("a"), first.token) == 1
    assert await store.value(key("a"), second.token) == 2
    assert [change.version for change in await store.feed(first.token)] == [second.version]


@in_both_worlds
async def test_a_reading_says_when_something_is_superseded(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1), key("b"): put(1)})
    old = await store.backend.snapshot()
    assert not (await store.backend.read([key("a")], old)).superseded
    await store.commit({key("a"): put(2)})
    assert not (await store.backend.read([key("b")], old)).superseded
    assert (await store.backend.read([key("b"), key("a")], old)).superseded
    assert (await store.backend.scan(EVERYTHING, old)).superseded
    assert not (await store.backend.scan(span("b", None), old)).superseded
    assert not (await store.backend.read([key("a")])).superseded


@in_both_worlds
async def test_a_snapshot_shows_each_key_as_it_was_then(world: World) -> None:
    store = world.open()
    names = [key(text) for text in "abc"]
    tokens = [(await store.commit({names[number % 3]: put(number)})).token for number in range(12)]
    for number, token in enumerate(tokens):
        shown = [max((n for n in range(number + 1) if n % 3 == place), default=None) for place in range(3)]
        entries = (await store.backend.read(names, token)).entries
        assert [thawed(entry) for entry in entries] == shown
        assert list((await store.listing(token)).values()) == [value for value in shown if value is not None]


@in_both_worlds
async def test_a_snapshot_never_changes(world: World) -> None:
    store = world.open()
    names = [key(text) for text in "abcdefgh"]
    await store.commit({name: put(0) for name in names[:6]})
    await store.commit({names[0]: Delete(), names[1]: put(1)})
    snapshot = await store.backend.snapshot()
    before = (await store.backend.read(names, snapshot)).entries
    listing = (await store.backend.scan(EVERYTHING, snapshot)).items
    for number in range(1000):
        name = names[number % 8]
        if number % 7 == 5:
            await store.commit({name: Delete()}, durable=False)
        elif number % 101 == 100:
            await store.commit(clears=(EVERYTHING,), durable=False)
        else:
            await store.commit({name: put(number), key("n", number): put(number)}, durable=False)
        if number % 100 == 99:
            assert (await store.backend.read(names, snapshot)).entries == before
            assert (await store.backend.scan(EVERYTHING, snapshot)).items == listing


@in_both_worlds
async def test_a_snapshot_holds_all_that_was_acknowledged_before_it(world: World) -> None:
    store = world.open()
    for number in range(50):
        await store.commit({key("a"): put(number)}, durable=False)
        assert await store.value(key("a"), await store.backend.snapshot()) == number


@pytest.mark.parametrize("reverse", [False, True])
@in_both_worlds
async def test_a_scan_is_paged_at_one_snapshot(world: World, reverse: bool) -> None:
    store = world.open()
    wanted = {key("k", number): number for number in range(35)}
    await store.commit({name: put(value) for name, value in wanted.items()})
    snapshot = await store.backend.snapshot()
    seen: list[tuple[bytes, int]] = []
    where, pages = EVERYTHING, 0
    while True:
        page = await store.backend.scan(where, snapshot, limit=10, reverse=reverse)
        assert len(page.items) <= 10
        seen += [(name, thawed(entry)) for name, entry in page.items]
        pages += 1
        if not page.more:
            break
        last = page.items[-1][0]
        where = Span(where.start, last) if reverse else Span(last + b"\0", where.stop)
        await store.commit({key("k", 100 + pages): put(0), key("k", 34 - pages): Delete(), key("k", 3): put(-1)})
    assert seen == sorted(wanted.items(), reverse=reverse)
    assert pages == 4


@in_both_worlds
async def test_more_says_whether_the_span_goes_on(world: World) -> None:
    store = world.open()
    await store.commit({key(text): put(text) for text in "abcde"})
    await store.commit({key("e"): Delete()})
    for reverse in (False, True):
        assert (await store.backend.scan(EVERYTHING, limit=3, reverse=reverse)).more
        assert not (await store.backend.scan(EVERYTHING, limit=4, reverse=reverse)).more
        assert not (await store.backend.scan(EVERYTHING, limit=5, reverse=reverse)).more
        assert not (await store.backend.scan(span("x", "y"), limit=1, reverse=reverse)).more
    assert list((await store.listing(limit=2)).values()) == ["a", "b"]
    assert list((await store.listing(limit=2, reverse=True)).values()) == ["d", "c"]


@in_both_worlds
async def test_a_span_has_its_start_and_not_its_stop(world: World) -> None:
    store = world.open()
    await store.commit({key(text): put(text) for text in ("a", "b", "ba", "c")})
    assert list((await store.listing(where=span("b", "c"))).values()) == ["b", "ba"]
    assert list((await store.listing(where=span("b", "b"))).values()) == []
    assert list((await store.listing(where=span(None, "b"))).values()) == ["a"]
    assert list((await store.listing(where=span("c", None))).values()) == ["c"]


@in_both_worlds
async def test_an_unlisted_entry_is_read_and_never_scanned(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1, listed=False), key("b"): put(2)})
    assert await store.value(key("a")) == 1
    assert await store.listing() == {key("b"): 2}
    await store.commit({key("a"): put(3, listed=False)})
    assert await store.value(key("a")) == 3
    assert await store.listing() == {key("b"): 2}


@in_both_worlds
async def test_a_token_of_another_store_is_refused(world: World) -> None:
    store, other = world.open(), world.open()
    await other.commit({key("a"): put(1)})
    foreign = await other.backend.snapshot()
    backend = store.backend
    for use in (
        lambda: backend.read([key("a")], foreign),
        lambda: backend.scan(EVERYTHING, foreign),
        lambda: backend.changes(foreign),
        lambda: store.commit({key("a"): put(1)}, snapshot=foreign),
        lambda: store.commit(snapshot=foreign),
        lambda: backend.wait(foreign, 0.0),
    ):
        with pytest.raises(UsageError):
            await use()
    assert await store.feed() == []
