"""Commits: all or nothing, versions, clears, and what comes back."""

from __future__ import annotations

import pytest

from interlock.model import (
    ABSENT,
    Delete,
    DuplicateTransaction,
    Key,
    Put,
    Version,
    Write,
)
from interlock.testing.conformance.world import (
    EVERYTHING,
    World,
    in_both_worlds,
    key,
    new_transaction,
    put,
    span,
    thawed,
)


@in_both_worlds
async def test_one_commit_has_one_version(world: World) -> None:
    store = world.open()
    reply = await store.commit({key(text): put(text) for text in "abc"})
    assert {await store.version(key(text)) for text in "abc"} == {reply.version}


@in_both_worlds
async def test_a_version_carries_the_nonce_of_its_transaction(world: World) -> None:
    store = world.open()
    transaction = new_transaction()
    reply = await store.commit({key("a"): put(1)}, transaction=transaction)
    assert reply.version[1] == transaction & ((1 << 64) - 1)


@in_both_worlds
async def test_versions_grow_and_are_never_reused(world: World) -> None:
    store = world.open()
    versions: list[Version] = []
    for number in range(30):
        write = Delete() if number % 3 == 2 else put("the same")
        versions.append((await store.commit({key("a"): write})).version)
        entry = await store.entry(key("a"))
        assert entry is not None
        assert entry.version == versions[-1]
    positions = [position for position, _ in versions]
    assert positions == sorted(set(positions))
    assert len(set(versions)) == 30


@in_both_worlds
async def test_a_refused_commit_writes_nothing(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1), key("b"): put(1)})
    snapshot = await store.backend.snapshot()
    writes: dict[Key, Write] = {key("a"): put(2), key("b"): Delete(), key("c"): put(2)}
    await store.refused(writes, reads={key("z"): (1, 1)}, clears=(span("x", None),))
    assert await store.listing() == {key("a"): 1, key("b"): 1}
    assert await store.entry(key("c")) is None
    assert await store.feed(snapshot) == []


@in_both_worlds
async def test_a_blind_write_needs_no_expectation(world: World) -> None:
    store = world.open()
    old = await store.backend.snapshot()
    await store.commit({key("a"): put(1)})
    await store.commit({key("a"): put(2)}, snapshot=old)
    assert await store.value(key("a")) == 2


@in_both_worlds
async def test_a_large_commit_is_one_commit(world: World) -> None:
    store = world.open()
    wanted = {key("n", number): number for number in range(2000)}
    await store.commit({name: put(value) for name, value in wanted.items()})
    assert await store.listing() == wanted
    assert len(await store.feed()) == 1
    versions = {name: await store.version(name) for name in list(wanted)[::100]}
    await store.commit({name: put(0) for name in wanted}, reads=versions)
    assert set((await store.listing()).values()) == {0}


@in_both_worlds
async def test_a_delete_of_nothing_writes_nothing(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    deleted = await store.commit({key("a"): Delete()})
    snapshot = await store.backend.snapshot()
    await store.commit({key("a"): Delete(), key("never"): Delete()}, reads={key("never"): ABSENT})
    entry = await store.entry(key("a"))
    assert entry is not None
    assert entry.version == deleted.version
    assert await store.entry(key("never")) is None
    assert [dict(change.writes) for change in await store.feed(snapshot)] == [
        {key("a"): Delete(), key("never"): Delete()}
    ]


@in_both_worlds
async def test_the_same_transaction_commits_once(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    request = await store.request({key("a"): put(2)}, reads={key("a"): await store.version(key("a"))})
    await store.backend.commit(request)
    await store.commit({key("b"): put(3)})
    with pytest.raises(DuplicateTransaction) as caught:  # although its read no longer holds
        await store.backend.commit(request)
    assert caught.value.committed is True
    assert await store.value(key("a")) == 2
    assert len(await store.feed()) == 3


@in_both_worlds
async def test_the_same_blind_transaction_commits_once(world: World) -> None:
    store = world.open()
    for durable in (True, False):
        request = await store.request({key("a"): put(1)}, durable=durable)
        await store.backend.commit(request)
        with pytest.raises(DuplicateTransaction):
            await store.backend.commit(request)
    assert len(await store.feed()) == 2


@in_both_worlds
async def test_a_refused_transaction_may_be_sent_again(world: World) -> None:
    store = world.open()
    transaction = new_transaction()
    await store.refused({key("a"): put(1)}, reads={key("a"): (1, 1)}, transaction=transaction)
    await store.commit({key("a"): put(1)}, transaction=transaction)
    assert await store.value(key("a")) == 1


@in_both_worlds
async def test_a_clear_deletes_what_is_live_and_listed_in_its_span(world: World) -> None:
    store = world.open()
    await store.commit(
        {key(text): put(text) for text in ("a", "b", "ba", "c", "d")} | {key("bb"): put(0, listed=False)}
    )
    deleted = await store.commit({key("ba"): Delete()})
    before = await store.backend.snapshot()
    cleared = await store.commit(clears=(span("b", "d"),))
    assert list(await store.listing()) == [key("a"), key("d")]
    assert await store.value(key("bb")) == 0
    entries = (await store.backend.read([key("b"), key("ba"), key("c")])).entries
    assert [entry.version for entry in entries if entry is not None] == [
        cleared.version,
        deleted.version,
        cleared.version,
    ]
    (change,) = await store.feed(before)
    assert change.clears == (span("b", "d"),)
    assert sorted(change.cleared) == [key("b"), key("c")]


@in_both_worlds
async def test_clears_come_before_writes(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1), key("b"): put(2), key("c"): put(3)})
    await store.commit({key("a"): put(10), key("d"): put(4)}, clears=(EVERYTHING,))
    assert await store.listing() == {key("a"): 10, key("d"): 4}
    assert await store.value(key("b")) is None


@in_both_worlds
async def test_clears_may_overlap_and_may_find_nothing(world: World) -> None:
    store = world.open()
    await store.commit({key(text): put(text) for text in "abcd"})
    before = await store.backend.snapshot()
    await store.commit(clears=(span("a", "c"), span("b", "d"), span("x", "z")))
    assert list(await store.listing()) == [key("d")]
    (change,) = await store.feed(before)
    assert sorted(change.cleared) == [key("a"), key("b"), key("c")]
    await store.commit(clears=(span("x", "z"),))
    assert list(await store.listing()) == [key("d")]


@in_both_worlds
async def test_fetch_returns_entries_as_they_are_after_the_commit(world: World) -> None:
    store = world.open()
    old = await store.commit({key("old"): put(1), key("gone"): put(1)})
    fetch = (key("new"), key("old"), key("gone"), key("never"), key("new"))
    reply = await store.commit({key("new"): put(2), key("gone"): Delete()}, fetch=fetch)
    assert [thawed(entry) for entry in reply.fetched] == [2, 1, None, None, 2]
    new, untouched, gone, never, _ = reply.fetched
    assert new is not None
    assert untouched is not None
    assert gone is not None
    assert never is None
    assert (new.version, untouched.version, gone.version) == (reply.version, old.version, reply.version)
    assert (await store.commit({key("new"): put(3)})).fetched == ()


@in_both_worlds
async def test_what_need_not_be_durable_is_committed_all_the_same(world: World) -> None:
    store = world.open()
    reply = await store.commit({key("a"): put(1)}, durable=False)
    assert await store.version(key("a")) == reply.version
    assert [change.version for change in await store.feed()] == [reply.version]


@in_both_worlds
async def test_a_quiet_commit_leaves_no_feed_record(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    quiet = await store.commit({key("lock"): put(1, listed=False)}, quiet=True, durable=False)
    again = await store.commit({key("lock"): put(2, listed=False)}, quiet=True, durable=False)
    last = await store.commit({key("a"): put(2)}, guards={key("lock"): again.version})
    assert [change.version for change in await store.feed()] == [first.version, last.version]
    assert [change.version for change in await store.feed(first.token)] == [last.version]
    assert await store.value(key("lock")) == 2
    await store.refused({key("a"): put(3)}, guards={key("lock"): quiet.version})


@in_both_worlds
async def test_a_quiet_delete_makes_absent_and_its_version_does_not_return(world: World) -> None:
    store = world.open()
    first = await store.commit({key("lock"): put(1)}, quiet=True)
    await store.commit({key("lock"): Delete()}, quiet=True)
    assert await store.value(key("lock")) is None
    await store.commit({key("a"): put(1)}, guards={key("lock"): ABSENT})
    second = await store.commit({key("lock"): put(1)}, quiet=True)
    assert second.version != first.version
    await store.refused({key("a"): put(2)}, guards={key("lock"): first.version})
    await store.refused({key("a"): put(2)}, guards={key("lock"): ABSENT})


@in_both_worlds
async def test_a_pure_validation_leaves_no_trace(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    snapshot = await store.backend.snapshot()
    reply = await store.commit(
        reads={key("a"): first.version, key("b"): ABSENT}, spans=(EVERYTHING,), fetch=(key("a"),)
    )
    assert reply.version == first.version
    assert [thawed(entry) for entry in reply.fetched] == [1]
    assert await store.feed(snapshot) == []
    assert await store.feed(reply.token) == []
    assert [change.version for change in await store.feed()] == [first.version]
    await store.refused(reads={key("a"): (1, 1)})
    await store.refused(reads={key("a"): ABSENT})


@in_both_worlds
async def test_a_pure_validation_moves_a_snapshot_forward(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    second = await store.commit({key("b"): put(1)})
    reply = await store.commit(reads={key("a"): first.version}, snapshot=first.token)
    assert reply.version == second.version
    assert await store.value(key("b"), reply.token) == 1


@in_both_worlds
async def test_a_pure_validation_is_no_duplicate(world: World) -> None:
    store = world.open()
    transaction = new_transaction()
    for _ in range(2):
        await store.commit(reads={key("a"): ABSENT}, transaction=transaction)
    reply = await store.commit({key("a"): put(1)}, transaction=transaction)
    await store.commit(reads={key("a"): reply.version}, transaction=transaction)
    assert len(await store.feed()) == 1


@in_both_worlds
async def test_large_values_come_back_exactly_after_being_replaced(world: World) -> None:
    store = world.open()
    large = [b"m" + bytes([number]) * 100_000 for number in range(3)]
    tokens = [(await store.commit({key("a"): Put(value)})).token for value in large]
    for token, value in zip(tokens, large, strict=True):
        entry = await store.entry(key("a"), token)
        assert entry is not None
        assert entry.value == value
