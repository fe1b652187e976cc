"""Expectations: versions, absence, unchanged, guards, observed reads, expiry."""

from __future__ import annotations

import pytest

from interlock.model import ABSENT, UNCHANGED, Delete, Entry, Merge, Operation, Put
from interlock.ports import Capability
from interlock.testing.conformance.world import (
    EVERYTHING,
    Subject,
    World,
    in_both_worlds,
    key,
    new_transaction,
    put,
    thawed,
)

FIELDS = ("reads", "guards")


@pytest.mark.parametrize("field", FIELDS)
@in_both_worlds
async def test_a_version_holds_while_it_is_the_newest(world: World, field: str) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    old = await store.backend.snapshot()
    await store.commit({key("b"): put(1)}, **{field: {key("a"): first.version}})
    second = await store.commit({key("a"): put(2)}, snapshot=old, **{field: {key("a"): first.version}})
    await store.refused({key("a"): put(3)}, **{field: {key("a"): first.version}})
    await store.refused({key("b"): put(3)}, snapshot=old, **{field: {key("a"): first.version}})
    await store.commit({key("a"): put(3)}, **{field: {key("a"): second.version}})
    assert await store.value(key("a")) == 3


@in_both_worlds
async def test_the_whole_version_is_compared(world: World) -> None:
    store = world.open()
    position, nonce = (await store.commit({key("a"): put(1)})).version
    await store.refused({key("a"): put(2)}, reads={key("a"): (position, nonce ^ 1)})
    await store.refused({key("a"): put(2)}, reads={key("a"): (position + 1, nonce)})
    await store.refused({key("a"): put(2)}, reads={key("never"): (position, nonce)})


@pytest.mark.parametrize("field", FIELDS)
@in_both_worlds
async def test_absent_holds_without_a_live_entry(world: World, field: str) -> None:
    store = world.open()
    expected = {field: {key("a"): ABSENT}}
    await store.commit({key("b"): put(1)}, **expected)
    await store.commit({key("a"): put(1)}, **expected)
    await store.refused({key("b"): put(2)}, **expected)
    await store.commit({key("a"): Delete()})
    await store.commit({key("b"): put(3)}, **expected)
    await store.commit({key("a"): put(4)}, **expected)
    await store.refused({key("b"): put(5)}, **expected)
    assert await store.listing() == {key("a"): 4, key("b"): 3}


@in_both_worlds
async def test_a_deleted_and_recreated_key_is_another_one(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put("same")})
    deleted = await store.commit({key("a"): Delete()})
    await store.refused({key("b"): put(1)}, reads={key("a"): first.version})
    await store.refused({key("b"): put(1)}, reads={key("a"): deleted.version})
    await store.commit({key("a"): put("same")})
    await store.refused({key("b"): put(1)}, reads={key("a"): first.version})
    await store.refused({key("b"): put(1)}, reads={key("a"): deleted.version})


@pytest.mark.parametrize("field", FIELDS)
@in_both_worlds
async def test_unchanged_holds_for_what_the_snapshot_shows(world: World, field: str) -> None:
    store = world.open()
    await store.commit({key("old"): put(1), key("gone"): put(1), key("later"): put(1)})
    await store.commit({key("gone"): Delete()})
    snapshot = await store.backend.snapshot()
    names = [key("old"), key("gone"), key("later"), key("never"), key("new")]
    await store.commit({key("x"): put(1)}, snapshot=snapshot, **{field: dict.fromkeys(names, UNCHANGED)})
    await store.commit({key("new"): put(1), key("later"): Delete()})
    for name in names[:2] + names[3:4]:
        await store.commit({key("x"): put(1)}, snapshot=snapshot, **{field: {name: UNCHANGED}})
    for name in (key("later"), key("new")):
        clashes = await store.refused({key("x"): put(1)}, snapshot=snapshot, **{field: {name: UNCHANGED}})
        assert clashes[name].kind == "write"
    newer = await store.backend.snapshot()
    await store.commit({key("x"): put(1)}, snapshot=newer, **{field: dict.fromkeys(names, UNCHANGED)})


@in_both_worlds
async def test_every_clash_is_named_with_what_is_there_now(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1), key("c"): put(1)})
    snapshot = await store.backend.snapshot()
    transaction = new_transaction()
    reply = await store.commit({key("a"): put(2), key("b"): put("new")}, agent="writer", transaction=transaction)
    deleted = await store.commit({key("c"): Delete()}, agent="deleter")
    clashes = await store.refused(
        {key("x"): put(1)},
        snapshot=snapshot,
        reads={key("a"): (1, 1), key("b"): ABSENT, key("never"): ABSENT},
        guards={key("c"): UNCHANGED, key("d"): (1, 1)},
    )
    assert {name: clash.kind for name, clash in clashes.items()} == {
        key("a"): "read", key("b"): "read", key("c"): "write", key("d"): "read",
    }  # fmt: skip
    current = {name: clash.current for name, clash in clashes.items()}
    assert current[key("a")] == Entry(reply.version, put(2).value)
    assert current[key("b")] == Entry(reply.version, put("new").value)
    assert current[key("c")] == Entry(deleted.version, None)
    assert current[key("d")] is None
    author = clashes[key("a")].author
    assert author is not None
    assert (author.agent, author.transaction, author.at) == ("writer", transaction, reply.at)
    other = clashes[key("c")].author
    assert other is not None
    assert other.agent == "deleter"
    assert clashes[key("d")].author is None


@in_both_worlds
async def test_a_clash_shows_no_large_value(world: World) -> None:
    store = world.open()
    small = await store.commit({key("small"): Put(b"m" * 1024), key("large"): Put(b"m" * 5000)})
    clashes = await store.refused({}, reads={key("small"): (1, 1), key("large"): ABSENT})
    assert clashes[key("small")].current == Entry(small.version, b"m" * 1024)
    large = clashes[key("large")].current
    assert large is not None
    assert (large.version, large.value) == (small.version, None)


@in_both_worlds
async def test_guards_are_not_in_the_feed(world: World) -> None:
    store = world.open()
    rule = await store.commit({key("rule"): put(1)})
    before = await store.backend.snapshot()
    await store.commit({key("a"): put(1)}, guards={key("rule"): rule.version, key("lock"): ABSENT, key("b"): UNCHANGED})
    (change,) = await store.feed(before)
    assert change.reads == {}


@in_both_worlds
async def test_observed_reads_are_recorded_and_not_validated(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    await store.commit({key("a"): put(2), key("b"): put(2)})
    before = await store.backend.snapshot()
    await store.commit({key("c"): put(3)}, observed={key("a"): first.version, key("b"): None})
    (change,) = await store.feed(before)
    assert change.reads == {key("a"): first.version, key("b"): None}


async def _expired(store: Subject, name: bytes) -> Entry:
    """An entry that is put with a life so short that it has expired on return."""
    await store.commit({name: put("short", ttl_seconds=0.001)})
    entry = await store.entry(name)
    assert entry is not None
    assert entry.expires_at is not None
    while await store.backend.now() <= entry.expires_at:
        pass
    return entry


@in_both_worlds
async def test_an_entry_says_when_it_expires(world: World) -> None:
    store = world.open()
    if await store.lacks(Capability.EXPIRY, lambda: store.commit({key("a"): put(1, ttl_seconds=60.0)})):
        return
    reply = await store.commit({key("a"): put(1, ttl_seconds=60.0)}, fetch=(key("a"),))
    entry = await store.entry(key("a"))
    assert entry is not None
    assert entry.expires_at == pytest.approx(reply.at + 60.0, abs=0.001)
    assert reply.fetched == (entry,)
    assert (await store.backend.scan(EVERYTHING)).items == [(key("a"), entry)]
    add = Merge((Operation("add", put(1).value),))
    merged = await store.commit({key("a"): add})
    assert await store.entry(key("a")) == Entry(merged.version, put(2).value, entry.expires_at)
    again = await store.commit({key("a"): put(1)})
    assert await store.entry(key("a")) == Entry(again.version, put(1).value)


@in_both_worlds
async def test_an_expired_entry_is_refused_where_it_must_be_alive(world: World) -> None:
    store = world.open()
    if await store.lacks(Capability.EXPIRY, lambda: store.commit({key("a"): put(1, ttl_seconds=60.0)})):
        return
    expired = await _expired(store, key("a"))
    alive = await store.commit({key("b"): put(1, ttl_seconds=60.0), key("c"): put(1)})
    expected = {key("a"): expired.version, key("b"): alive.version, key("c"): alive.version}
    everyone = frozenset(expected)
    for field in FIELDS:
        clashes = await store.refused({key("x"): put(1)}, alive=everyone, **{field: expected})
        assert set(clashes) == {key("a")}
        current = clashes[key("a")].current
        assert current is not None
        assert (clashes[key("a")].kind, current.version) == ("read", expired.version)
        await store.commit({key("x"): put(1)}, alive=everyone - {key("a")}, **{field: expected})


@in_both_worlds
async def test_an_expired_entry_counts_as_present_until_it_is_compacted(world: World) -> None:
    store = world.open()
    if await store.lacks(Capability.EXPIRY, lambda: store.commit({key("a"): put(1, ttl_seconds=60.0)})):
        return
    expired = await _expired(store, key("a"))
    await store.commit({key("b"): put(1, ttl_seconds=60.0)})
    assert await store.listing() == {key("a"): "short", key("b"): 1}
    await store.refused({key("x"): put(1)}, reads={key("a"): ABSENT})
    before = await store.backend.snapshot()
    assert await store.backend.compact(0.0) >= 1
    assert await store.listing() == {key("b"): 1}
    assert await store.listing(before) == {key("a"): "short", key("b"): 1}
    (change,) = await store.feed(before)
    assert dict(change.writes) == {key("a"): Delete()}
    await store.refused({key("x"): put(1)}, reads={key("a"): expired.version}, snapshot=before)
    await store.refused({key("x"): put(1)}, spans=(EVERYTHING,), snapshot=before)
    tombstone = await store.entry(key("a"))
    assert tombstone is not None
    assert (thawed(tombstone), tombstone.version) == (None, change.version)
    await store.commit({key("a"): put("new")}, reads={key("a"): ABSENT})
    assert await store.backend.compact(0.0) == 0


@in_both_worlds
async def test_what_replaced_an_expired_entry_does_not_expire_with_it(world: World) -> None:
    store = world.open()
    if await store.lacks(Capability.EXPIRY, lambda: store.commit({key("a"): put(1, ttl_seconds=60.0)})):
        return
    for name in (key("a"), key("b")):
        await _expired(store, name)
    await store.commit({key("a"): put("lasting"), key("b"): put("longer", ttl_seconds=60.0)})
    assert await store.backend.compact(0.0) == 0
    assert await store.listing() == {key("a"): "lasting", key("b"): "longer"}
