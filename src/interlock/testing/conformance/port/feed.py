"""The feed: every commit once, in order, resumable; outcomes and fences; waiting."""

from __future__ import annotations

import pytest

from interlock.model import ABSENT, UNCHANGED, Delete, DuplicateTransaction, Key, Settled, Token, Write
from interlock.testing.conformance.world import (
    PATIENCE_SECONDS,
    World,
    in_both_worlds,
    key,
    new_transaction,
    put,
    span,
)


@in_both_worlds
async def test_the_feed_has_each_commit_once_and_in_order(world: World) -> None:
    store = world.open()
    replies = [await store.commit({key("a"): put(number)}, durable=False) for number in range(25)]
    changes = await store.feed()
    assert [change.version for change in changes] == [reply.version for reply in replies]
    assert [change.at for change in changes] == [reply.at for reply in replies]
    assert [dict(change.writes) for change in changes] == [{key("a"): put(number)} for number in range(25)]


@in_both_worlds
async def test_a_feed_record_says_everything(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1), key("gone"): put(1), key("r1"): put(1), key("r2"): put(1)})
    deleted = await store.commit({key("gone"): Delete()})
    transaction = new_transaction()
    writes: dict[Key, Write] = {key("a"): put(2), key("b"): Delete(), key("u"): put(3, listed=False)}
    reply = await store.commit(
        writes,
        reads={key("a"): first.version, key("gone"): ABSENT, key("never"): ABSENT, key("r1"): UNCHANGED},
        spans=(span("x", "z"), span("p", "q")),
        clears=(span("r", "s"),),
        transaction=transaction,
        agent="zoë",
        operation="test.operation",
        run_id="run 7",
        attempt=3,
        observed={key("seen"): first.version},
    )
    (change,) = await store.feed(deleted.token)
    assert (change.version, change.transaction, change.at) == (reply.version, transaction, reply.at)
    assert (change.agent, change.isolation, change.operation) == ("zoë", "serializable", "test.operation")
    assert (change.run_id, change.attempt) == ("run 7", 3)
    assert change.reads == {
        key("a"): first.version,
        key("gone"): deleted.version,
        key("never"): None,
        key("r1"): None,
        key("seen"): first.version,
    }
    assert change.spans == (span("x", "z"), span("p", "q"))
    assert dict(change.writes) == writes
    assert change.clears == (span("r", "s"),)
    assert sorted(change.cleared) == [key("r1"), key("r2")]
    assert await store.feed(change.token) == []


@in_both_worlds
async def test_what_an_ordinary_commit_leaves_out_is_empty_in_its_record(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    (change,) = await store.feed()
    assert (change.operation, change.run_id, change.attempt) == (None, None, 1)
    assert (change.reads, change.spans, change.clears, change.cleared) == ({}, (), (), ())


@in_both_worlds
async def test_a_snapshot_is_a_cursor(world: World) -> None:
    store = world.open()
    tokens = [await store.backend.snapshot()]
    for number in range(12):
        await store.commit({key("n", number): put(number)}, quiet=number % 4 == 3)
        tokens.append(await store.backend.snapshot())
    for token in tokens:
        shown = await store.listing(token)
        for change in await store.feed(token):
            assert not shown.keys() & change.writes.keys()
            shown |= dict.fromkeys(change.writes)
        loud = {key("n", number) for number in range(12) if number % 4 != 3}
        assert loud <= shown.keys()


@in_both_worlds
async def test_the_feed_is_resumable_at_every_cursor(world: World) -> None:
    store = world.open()
    replies = [await store.commit({key("a"): put(number)}, durable=False) for number in range(20)]
    versions = [reply.version for reply in replies]
    seen: list[tuple[int, int]] = []
    cursor: Token | None = None
    while True:
        changes, cursor = await store.backend.changes(cursor, limit=3)
        assert len(changes) <= 3
        if not changes:
            break
        assert changes[-1].token == cursor
        seen += [change.version for change in changes]
    assert seen == versions
    assert await store.backend.changes(cursor, limit=3) == ([], cursor)
    for index, change in enumerate(await store.feed()):
        assert [later.version for later in await store.feed(change.token)] == versions[index + 1 :]


@in_both_worlds
async def test_a_cursor_moves_past_what_left_no_record(world: World) -> None:
    store = world.open()
    first = await store.commit({key("a"): put(1)})
    for number in range(5):
        await store.commit({key("lock"): put(number)}, quiet=True)
    changes, cursor = await store.backend.changes(first.token)
    assert changes == []
    assert await store.value(key("lock"), cursor) == 4


@in_both_worlds
async def test_an_outcome_is_the_feed_record(world: World) -> None:
    store = world.open()
    transaction = new_transaction()
    assert await store.backend.outcome(transaction, fence=False) == (Settled.UNSEEN, None)
    await store.commit({key("a"): put(1)}, transaction=transaction, reads={key("b"): ABSENT})
    (change,) = await store.feed()
    for fence in (False, True):
        assert await store.backend.outcome(transaction, fence=fence) == (Settled.COMMITTED, change)


@in_both_worlds
async def test_a_question_without_a_fence_changes_nothing(world: World) -> None:
    store = world.open()
    transaction = new_transaction()
    for _ in range(2):
        assert (await store.backend.outcome(transaction, fence=False))[0] is Settled.UNSEEN
    await store.commit({key("a"): put(1)}, transaction=transaction)
    assert await store.value(key("a")) == 1


@in_both_worlds
async def test_a_fenced_transaction_never_commits(world: World) -> None:
    store = world.open()
    request = await store.request({key("a"): put(1)})
    before = await store.backend.snapshot()
    for fence in (True, True, False):
        assert await store.backend.outcome(request.transaction, fence=fence) == (Settled.FENCED, None)
    for _ in range(2):
        with pytest.raises(DuplicateTransaction) as caught:
            await store.backend.commit(request)
        assert caught.value.committed is False
    assert (await store.backend.outcome(request.transaction, fence=False))[0] is Settled.FENCED
    assert await store.entry(key("a")) is None
    assert await store.feed(before) == []


@in_both_worlds
async def test_waiting_ends_with_a_commit_that_is_there_already(world: World) -> None:
    store = world.open()
    before = await store.backend.snapshot()
    assert await store.backend.wait(before, 0.0) is False
    reply = await store.commit({key("a"): put(1)})
    assert await store.backend.wait(before, 0.0) is True
    assert await store.backend.wait(before, PATIENCE_SECONDS, [key("a")]) is True
    assert await store.backend.wait(reply.token, 0.0) is False


@in_both_worlds
async def test_waiting_ends_when_the_time_runs_out(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    snapshot = await store.backend.snapshot()
    assert await store.backend.wait(snapshot, 0.02) is False
    assert await store.backend.wait(snapshot, 0.02, [key("a")]) is False


@in_both_worlds
async def test_a_commit_of_another_thread_ends_the_waiting(world: World) -> None:
    """Two threads play ping-pong: each commit is made only after the other's was noticed."""
    store = world.open()
    start = await store.backend.snapshot()
    rounds = 20

    async def play(me: str, other: str, begins: bool) -> int:
        cursor, seen = start, 0
        if begins:
            await store.commit({key(me): put(0)}, durable=False)
        while seen < rounds:
            assert await store.backend.wait(cursor, PATIENCE_SECONDS, [key(other)])
            changes, cursor = await store.backend.changes(cursor)
            for change in changes:
                if key(other) in change.writes:
                    seen += 1
                    await store.commit({key(me): put(seen)}, durable=False)
        return seen

    assert world.together(2, lambda number: play("ab"[number], "ba"[number], number == 0)) == [rounds, rounds]


@in_both_worlds
async def test_a_quiet_commit_ends_the_waiting_too(world: World) -> None:
    store = world.open()
    before = await store.backend.snapshot()
    await store.commit({key("lock"): put(1)}, quiet=True)
    assert await store.backend.wait(before, PATIENCE_SECONDS) is True
