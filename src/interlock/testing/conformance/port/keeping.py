"""History and compaction: what is kept, what may go, and that nobody is told anything wrong afterwards."""

from __future__ import annotations

import pytest

from interlock.errors import SnapshotTooOldError
from interlock.model import ABSENT, UNCHANGED, Delete, DuplicateTransaction, Settled
from interlock.ports import Capability
from interlock.testing.conformance.world import EVERYTHING, World, in_both_worlds, key, new_transaction, put, thawed


@in_both_worlds
async def test_history_has_every_version_newest_first(world: World) -> None:
    store = world.open()
    if await store.lacks(Capability.HISTORY, lambda: store.backend.history(key("a"))):
        return
    assert await store.backend.history(key("a")) == []
    transactions = [new_transaction() for _ in range(6)]
    replies = []
    for number, transaction in enumerate(transactions):
        write = Delete() if number == 3 else put(number)
        replies.append(await store.commit({key("a"): write}, transaction=transaction, agent=f"agent {number}"))
        await store.commit({key("b"): put(number)})
    history = await store.backend.history(key("a"))
    assert [entry.version for entry, _ in history] == [reply.version for reply in reversed(replies)]
    assert [thawed(entry) for entry, _ in history] == [5, 4, None, 2, 1, 0]
    authors = [author for _, author in history if author is not None]
    assert [author.transaction for author in authors] == transactions[::-1]
    assert [author.agent for author in authors] == [f"agent {number}" for number in range(5, -1, -1)]
    assert [author.at for author in authors] == [reply.at for reply in reversed(replies)]
    assert await store.backend.history(key("a"), limit=2) == history[:2]


@in_both_worlds
async def test_compaction_keeps_the_newest_values(world: World) -> None:
    store = world.open()
    for number in range(30):
        await store.commit({key("n", number % 10): put(number), key("gone", number): put(1)}, durable=False)
    await store.commit({key("gone", number): Delete() for number in range(30)})
    before = {name: await store.entry(name) for name in await store.listing()}
    assert await store.compact_all() > 0
    listing = await store.listing()
    assert listing.pop(key("compaction")) == "mark"
    assert listing == {key("n", number): 20 + number for number in range(10)}
    assert {name: await store.entry(name) for name in before} == before
    assert await store.backend.compact(0.0) == 0


@in_both_worlds
async def test_below_the_horizon_everything_is_refused(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    old = await store.backend.snapshot()
    for number in range(5):
        await store.commit({key("a"): put(number)})
    await store.compact_all()
    for use in (
        lambda: store.backend.read([key("a")], old),
        lambda: store.backend.scan(EVERYTHING, old),
        lambda: store.backend.changes(old),
        lambda: store.commit({key("b"): put(1)}, snapshot=old),
        lambda: store.commit({key("b"): put(1)}, snapshot=old, quiet=True),
        lambda: store.commit(reads={key("b"): ABSENT}, snapshot=old),
    ):
        with pytest.raises(SnapshotTooOldError):
            await use()
    assert await store.value(key("a")) == 4
    assert await store.entry(key("b")) is None


@in_both_worlds
async def test_above_the_horizon_everything_goes_on(world: World) -> None:
    store = world.open()
    for number in range(5):
        await store.commit({key("a"): put(number), key("b"): put(number)})
    await store.commit({key("b"): Delete()})
    await store.compact_all()
    snapshot = await store.backend.snapshot()
    reply = await store.commit({key("a"): put(10)}, reads={key("b"): ABSENT, key("a"): await store.version(key("a"))})
    assert await store.value(key("a"), snapshot) == 4
    assert await store.value(key("a"), reply.token) == 10
    assert [change.version for change in await store.feed(snapshot)] == [reply.version]
    await store.refused({key("c"): put(1)}, reads={key("a"): UNCHANGED}, snapshot=snapshot)
    await store.refused({key("c"): put(1)}, spans=(EVERYTHING,), snapshot=snapshot)
    await store.commit({key("b"): put("back")}, reads={key("b"): UNCHANGED}, snapshot=snapshot)
    assert await store.value(key("b")) == "back"


@in_both_worlds
async def test_the_feed_begins_at_the_oldest_record_that_is_kept(world: World) -> None:
    store = world.open()
    for number in range(5):
        await store.commit({key("a"): put(number)})
    await store.compact_all()
    kept = await store.feed()
    replies = [await store.commit({key("a"): put(number)}) for number in range(3)]
    assert [change.version for change in await store.feed()] == [change.version for change in kept] + [
        reply.version for reply in replies
    ]


@in_both_worlds
async def test_compaction_of_the_distant_past_drops_nothing(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    await store.commit({key("a"): put(2)})
    assert await store.backend.compact(first.at - 1000.0) == 0
    assert await store.value(key("a"), first.token) == 1
    assert len(await store.feed()) == 2


@in_both_worlds
async def test_compaction_goes_in_bounded_steps(world: World) -> None:
    """After each step every snapshot is either refused or right, and those that were refused stay so."""
    store = world.open()
    names = [key(text) for text in "abc"]
    tokens = [(await store.commit({names[number % 3]: put(number)}, durable=False)).token for number in range(40)]
    at = (await store.commit({key("z"): put(1)})).at
    refused = 0
    for _ in range(3):
        assert 0 < await store.backend.compact(at + 1, limit=5) <= 40
        before, refused = refused, 0
        for number, token in enumerate(tokens):
            try:
                entries = (await store.backend.read(names, token)).entries
                listing = await store.listing(token)
            except SnapshotTooOldError:
                assert refused == number
                refused += 1
                continue
            shown = [max((n for n in range(number + 1) if n % 3 == place), default=None) for place in range(3)]
            assert [thawed(entry) for entry in entries] == shown
            assert list(listing.values()) == [value for value in shown if value is not None]
            assert len(await store.feed(token)) == 40 - number
        assert before <= refused < 40
    assert refused > 0


@in_both_worlds
async def test_versions_are_not_reused_after_compaction(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put("same")})
    await store.commit({key("a"): Delete()})
    await store.compact_all()
    second = await store.commit({key("a"): put("same")}, reads={key("a"): ABSENT})
    assert second.version > first.version
    await store.refused({key("b"): put(1)}, reads={key("a"): first.version})


@in_both_worlds
async def test_a_dropped_transaction_is_forgotten_and_never_denied(world: World) -> None:
    store = world.open()
    request = await store.request({key("a"): put(1)})
    await store.backend.commit(request)
    fenced = await store.request({key("b"): put(1)})
    await store.backend.outcome(fenced.transaction, fence=True)
    await store.compact_all()
    for fence in (False, True):
        settled, _ = await store.backend.outcome(request.transaction, fence=fence)
        assert settled in (Settled.COMMITTED, Settled.FORGOTTEN)
        settled, _ = await store.backend.outcome(fenced.transaction, fence=fence)
        assert settled in (Settled.FENCED, Settled.FORGOTTEN)
    for again in (request, fenced):
        with pytest.raises((DuplicateTransaction, SnapshotTooOldError)):
            await store.backend.commit(again)
    newer = await store.request({key("b"): put(1)}, transaction=fenced.transaction)
    with pytest.raises((DuplicateTransaction, SnapshotTooOldError)):
        await store.backend.commit(newer)
    assert await store.entry(key("b")) is None


@in_both_worlds
async def test_quiet_commits_leave_nothing_behind_after_compaction(world: World) -> None:
    store = world.open()
    for number in range(10):
        await store.commit({key("lock"): put(number)}, quiet=True)
    await store.commit({key("lock"): Delete()}, quiet=True)
    await store.compact_all()
    assert await store.value(key("lock")) is None
    reply = await store.commit({key("lock"): put(1)}, guards={key("lock"): ABSENT}, quiet=True)
    assert await store.version(key("lock")) == reply.version


@in_both_worlds
async def test_a_snapshot_from_before_a_quiet_overwrite_is_right_or_refused(world: World) -> None:
    store = world.open()
    await store.commit({key("lock"): put("old"), key("a"): put(1)})
    old = await store.backend.snapshot()
    await store.commit({key("lock"): put("new")}, quiet=True)
    middle = await store.backend.snapshot()
    await store.commit({key("lock"): put("newest")})
    await store.commit({key("lock"): Delete()}, quiet=True)
    last = await store.backend.snapshot()
    await store.commit({key("lock"): put("again")})
    for token, right in ((old, "old"), (middle, "new"), (last, None)):
        try:
            assert await store.value(key("lock"), token) == right
        except SnapshotTooOldError:
            assert token is not last
