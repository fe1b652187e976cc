"""Races with real threads, each with its own event loop or stepping: what must hold whoever comes first."""

from __future__ import annotations

import itertools
from collections import Counter

from interlock import codec
from interlock.model import (
    ABSENT,
    BoundBroken,
    CommitRefused,
    DuplicateTransaction,
    Expectation,
    Merge,
    Operation,
    Version,
)
from interlock.ports import Capability
from interlock.testing.conformance.world import EVERYTHING, Subject, World, in_both_worlds, key, put, span, thawed

THREADS = 8


@in_both_worlds
async def test_no_update_is_lost(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(0)})

    async def increment(number: int) -> set[bytes]:
        conflicting: set[bytes] = set()
        done = 0
        while done < 25:
            reading = await store.backend.read([key("a")])
            (entry,) = reading.entries
            assert entry is not None
            writes = {key("a"): put(thawed(entry) + 1)}
            try:
                reply = await store.commit(
                    writes, reads={key("a"): entry.version}, snapshot=reading.token, durable=False, agent=f"t{number}"
                )
            except CommitRefused as refused:
                conflicting.update(clash.key for clash in refused.clashes)
            else:
                done += 1
                newest = await store.entry(key("a"))
                assert newest is not None
                assert newest.version >= reply.version, "an acknowledged commit is not seen by a later read"
        return conflicting

    assert set().union(*world.together(THREADS, increment)) <= {key("a")}
    assert await store.value(key("a")) == 25 * THREADS
    read: Version | None = None
    for change in await store.feed():  # each has read what the one before it has written
        assert read is None or change.reads == {key("a"): read}
        read = change.version
    assert len(await store.feed()) == 25 * THREADS + 1


async def _insert_if_absent(store: Subject, me: bytes, others: list[bytes]) -> bool:
    reading = await store.backend.read([me, *others])
    expected: dict[bytes, Expectation] = {me: ABSENT}
    for name, entry in zip(others, reading.entries[1:], strict=True):
        if entry is not None:
            return False
        expected[name] = ABSENT
    try:
        await store.commit({me: put(1)}, reads=expected, snapshot=reading.token, durable=False)
    except CommitRefused:
        return False
    return True


@in_both_worlds
async def test_absent_keys_do_not_skew(world: World) -> None:
    """Each inserts its own key if nobody else's is there: at most one can have been right."""
    store = world.open()
    rounds = 20

    async def insert(number: int) -> list[bool]:
        return [
            await _insert_if_absent(
                store, key("k", turn, number), [key("k", turn, other) for other in range(4) if other != number]
            )
            for turn in range(rounds)
        ]

    for inserted in zip(*world.together(4, insert), strict=True):
        assert sum(inserted) <= 1
    assert len(await store.listing()) <= rounds


@in_both_worlds
async def test_no_phantom_enters_a_range(world: World) -> None:
    """Each adds a seat while fewer than 20 are taken; a count that somebody else has changed must be refused."""
    store = world.open()
    names = itertools.count()

    async def take(number: int) -> int:
        taken, kinds = 0, {"range"}
        while True:
            page = await store.backend.scan(EVERYTHING)
            if len(page.items) >= 20:
                assert kinds == {"range"}
                return taken
            try:
                await store.commit(
                    {key("seat", number, next(names)): put(number)},
                    spans=(EVERYTHING,),
                    snapshot=page.token,
                    durable=False,
                )
                taken += 1
            except CommitRefused as refused:
                kinds.update(clash.kind for clash in refused.clashes)

    assert sum(world.together(THREADS, take)) == 20
    assert len(await store.listing()) == 20


@in_both_worlds
async def test_escrow_sells_exactly_what_there_is_without_a_conflict(world: World) -> None:
    store = world.open()
    await store.commit({key("stock"): put(50)})
    sell = Merge((Operation("add", codec.freeze(-1), codec.freeze(0)),))

    async def buy(number: int) -> tuple[bytes, bytes | None] | None:
        try:
            await store.commit({key("stock"): sell, key("order", number): put(1)})
        except BoundBroken as broken:
            return broken.key, broken.before
        return None

    assert Counter(world.together(64, buy)) == {None: 50, (key("stock"), codec.freeze(0)): 14}
    assert await store.value(key("stock")) == 0
    assert len(await store.listing()) == 51


@in_both_worlds
async def test_a_snapshot_is_consistent_while_others_commit(world: World) -> None:
    store = world.open()
    names = [key("account", number) for number in range(4)]
    await store.commit({name: put(100) for name in names})

    async def move(number: int) -> None:
        for turn in range(40):
            giver, taker = names[(number + turn) % 4], names[(number + turn + 1) % 4]
            amount = codec.freeze(turn + 1)
            writes = {
                giver: Merge((Operation("add", b"i-" + amount[1:]),)),
                taker: Merge((Operation("add", amount),)),
            }
            await store.commit(writes, durable=False)

    async def look(number: int) -> None:
        for _ in range(60):
            token = await store.backend.snapshot()
            entries = (await store.backend.read(names, token)).entries
            assert sum(thawed(entry) for entry in entries) == 400
            items = (await store.backend.scan(span(None, None), token)).items
            assert [entry for _, entry in items] == entries
            reading = await store.backend.read(names)
            assert sum(thawed(entry) for entry in reading.entries) == 400
            assert (await store.backend.read(names, reading.token)).entries == reading.entries

    world.together(4, lambda number: move(number) if number < 2 else look(number))
    assert sum((await store.listing()).values()) == 400


@in_both_worlds
async def test_a_feed_that_is_read_while_others_commit_misses_nothing(world: World) -> None:
    store = world.open()
    start = await store.backend.snapshot()

    async def write(number: int) -> list[Version]:
        return [(await store.commit({key("n", number, turn): put(turn)}, durable=False)).version for turn in range(40)]

    async def follow(number: int) -> list[Version]:
        seen: list[Version] = []
        cursor = start
        while len(seen) < 120:
            changes, cursor = await store.backend.changes(cursor, limit=7)
            seen += [change.version for change in changes]
        return seen

    results = world.together(4, lambda number: write(number) if number < 3 else follow(number))
    assert sorted(results[3]) == sorted(version for written in results[:3] for version in written)
    again = [change.version for change in await store.feed(start)]
    if Capability.TOTAL_ORDER in store.backend.capabilities:
        assert again == results[3]
    for order in (again, results[3]):  # each writer's commits in the order in which it made them
        for written in results[:3]:
            assert [version for version in order if version in set(written)] == written


@in_both_worlds
async def test_a_fence_and_its_commit_exclude_each_other(world: World) -> None:
    store = world.open()
    requests = [await store.request({key("n", number): put(1)}) for number in range(60)]

    async def commit(number: int) -> list[bool]:
        done = []
        for request in requests:
            try:
                await store.backend.commit(request)
                done.append(True)
            except DuplicateTransaction as duplicate:
                done.append(duplicate.committed)
        return done

    async def fence(number: int) -> list[bool]:
        settled = [(await store.backend.outcome(request.transaction, fence=True))[0] for request in requests]
        return [verdict.value == "committed" for verdict in settled]

    committed, found = world.together(2, lambda number: commit(number) if number == 0 else fence(number))
    assert committed == found
    assert len(await store.listing()) == sum(committed)
