"""Commits that go in one batch: each judged as if it came alone, after those before it.

The queue lock is held while the jobs are handed in, so that they are decided together when it is given back.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlite_support import (
    PATIENCE_SECONDS,
    Store,
    add,
    delete,
    in_threads,
    key,
    new_transaction,
    number,
    opened,
    queue_held,
    step,
    value_of,
    wait_until,
)

from interlock.backends.sqlite import SQLiteBackend, batch
from interlock.backends.sqlite.jobs import CommitJob
from interlock.backends.sqlite.turns import Turns
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.model import (
    ABSENT,
    UNCHANGED,
    BoundBroken,
    CommitRefused,
    CommitRequest,
    DuplicateTransaction,
    Merge,
    MergeRefused,
    Operation,
    Put,
    Reply,
    Settled,
    Span,
)
from interlock.runtime import BlockingRuntime


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store.db") as made:
        made.snapshot()
        yield made


def together(store: Store, *requests: CommitRequest | Callable[[], Any]) -> list[Any]:
    """Send requests (or do calls) so that they are decided in one batch, in this order; replies or what was raised."""
    results: list[Any] = [None] * len(requests)

    def run(index: int, request: CommitRequest | Callable[[], Any]) -> None:
        try:
            results[index] = step(store.backend.commit(request)) if isinstance(request, CommitRequest) else request()
        except Exception as error:
            results[index] = error

    writer = store.backend._engine._writer
    assert writer is not None
    with queue_held(Path(store.backend.path)):
        threads = []
        for index, request in enumerate(requests):
            threads.append(threading.Thread(target=run, args=(index, request)))
            threads[-1].start()
            wait_until(lambda index=index: handed_in(writer) == index + 1)  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return results


def handed_in(writer: Any) -> int:
    waiting = writer._watchdog._waiting
    return writer._queue.qsize() + (0 if waiting is None else len(waiting))


def test_each_sees_those_before_it(store: Store) -> None:
    a, b = key("a"), key("b")
    token = store.snapshot()
    first = store.request({a: number(1)}, reads={a: ABSENT}, snapshot=token)
    second = store.request({a: number(2)}, reads={a: ABSENT}, snapshot=token, agent="second")
    blind = store.request({b: number(5)}, snapshot=token)
    unchanged = store.request({b: number(6)}, guards={b: UNCHANGED}, snapshot=token)
    results = together(store, first, second, blind, unchanged)
    assert isinstance(results[0], Reply)
    assert isinstance(results[1], CommitRefused)
    (clash,) = results[1].clashes
    assert clash.key == a
    assert clash.current is not None
    assert clash.current.version == results[0].version
    assert clash.author is not None
    assert clash.author.transaction == first.transaction
    assert results[2].version[0] == results[0].version[0] + 1
    assert isinstance(results[3], CommitRefused)
    assert results[3].clashes[0].kind == "write"
    assert (store.value(a), store.value(b)) == (1, 5)


def test_merges_of_one_key_add_up_and_each_has_its_record(store: Store) -> None:
    stock = key("stock")
    store.commit({stock: number(3)})
    before = store.snapshot()
    sales = [store.request({stock: add(-1, 0)}) for _ in range(5)]
    results = together(store, *sales)
    assert [type(result) for result in results] == [Reply] * 3 + [BoundBroken] * 2
    assert [value_of_merge(result) for result in results[:3]] == [3, 2, 1]
    assert store.value(stock) == 0
    feed = store.feed(before)
    assert [change.transaction for change in feed] == [sale.transaction for sale in sales[:3]]
    tokens = [before, *(result.token for result in results[:3])]
    assert [store.value(stock, token) for token in tokens] == [3, 2, 1, 0]
    versions = [entry.version for entry, _ in step(store.backend.history(stock))]
    assert versions[:3] == [result.version for result in reversed(results[:3])]


def value_of_merge(reply: Reply) -> int:
    assert reply.merged is not None
    (merged,) = reply.merged.values()
    assert merged.before is not None
    return int(merged.before[1:])


def test_spans_see_what_the_batch_has_put_in(store: Store) -> None:
    span = Span(key("a"), key("b"))
    token = store.snapshot()
    insert = store.request({key("ab"): number(1)}, snapshot=token)
    scan = store.request({key("x"): number(1)}, spans=(span,), snapshot=token)
    elsewhere = store.request({key("y"): number(1)}, spans=(Span(key("c"), key("d")),), snapshot=token)
    unlisted = store.request({key("cc"): Put(b"i1", None, False)}, snapshot=token)
    results = together(store, insert, scan, unlisted, elsewhere)
    assert isinstance(results[1], CommitRefused)
    assert [(clash.kind, clash.key, clash.span) for clash in results[1].clashes] == [("range", key("ab"), span)]
    assert isinstance(results[2], Reply)
    assert isinstance(results[3], Reply)


def test_clears_take_what_the_batch_has_put_in(store: Store) -> None:
    store.commit({key("a", 1): number(1), key("b"): number(1)})
    span = Span(key("a", 0), key("a", 9))
    results = together(
        store,
        store.request({key("a", 2): number(2)}),
        store.request({key("a", 1): add(10)}, clears=(span,)),
        store.request({key("a", 3): number(3)}),
    )
    assert all(isinstance(result, Reply) for result in results)
    values = [store.value(key("a", part)) for part in (1, 2, 3)]
    assert values == [10, None, 3]
    (change,) = (change for change in store.feed() if change.clears)
    assert set(change.cleared) == {key("a", 1), key("a", 2)}


def test_a_delete_of_what_the_same_commit_clears(store: Store) -> None:
    """It is one deletion, which replaces what was there before the commit."""
    store.commit({key("a", 1): number(1), key("b"): number(1)})
    token = store.snapshot()
    store.commit({key("a", 1): delete(), key("a", 2): delete()}, clears=(Span(key("a", 0), key("a", 9)),))
    assert [store.value(key("a", 1)), store.value(key("a", 2)), store.value(key("b"))] == [None, None, 1]
    assert [store.value(key("a", 1), token), store.value(key("a", 2), token)] == [1, None]
    change = store.feed()[-1]
    assert set(change.writes) == {key("a", 1), key("a", 2)}


def test_r142_one_that_fails_midway_harms_nobody(store: Store) -> None:
    token = store.snapshot()
    wrong = {key("half"): number(1), key("list"): Merge((Operation("append", b"\x01"),)), key("half2"): number(1)}
    store.commit({key("list"): number(1)})
    requests = [store.request({key("t", part): number(part)}, snapshot=token) for part in range(20)]
    requests[7] = store.request(wrong)
    results = together(store, *requests)
    assert isinstance(results[7], MergeRefused)
    assert results[7].key == key("list")
    assert sum(isinstance(result, Reply) for result in results) == 19
    assert store.entry(key("half")) is store.entry(key("half2")) is None
    assert [store.value(key("t", part)) for part in range(20)] == [None if part == 7 else part for part in range(20)]


def test_a_transaction_sent_twice_in_one_batch_commits_once(store: Store) -> None:
    request = store.request({key("a"): add(1)})
    results = together(store, request, request, store.request({key("b"): number(1)}))
    assert isinstance(results[0], Reply)
    assert isinstance(results[1], DuplicateTransaction)
    assert results[1].committed
    assert isinstance(results[2], Reply)
    assert store.value(key("a")) == 1


def test_a_transaction_sent_again_later_commits_once(store: Store) -> None:
    """The duplicate is met while the batch is written; all others of the batch commit all the same."""
    request = store.request({key("a"): add(1)})
    step(store.backend.commit(request))
    others = [store.request({key("b", part): number(part)}) for part in range(3)]
    results = together(store, others[0], request, *others[1:])
    assert isinstance(results[1], DuplicateTransaction)
    assert [isinstance(result, Reply) for result in results] == [True, False, True, True]
    assert store.value(key("a")) == 1
    assert [store.value(key("b", part)) for part in range(3)] == [0, 1, 2]


def test_a_fence_and_its_commit_in_one_batch(store: Store) -> None:
    early, late = store.request({key("a"): number(1)}), store.request({key("b"): number(1)})

    def ask(request: CommitRequest) -> Callable[[], Any]:
        return lambda: step(store.backend.outcome(request.transaction, fence=True))

    results = together(store, ask(early), early, late, ask(late))
    assert results[0] == (Settled.FENCED, None)
    assert isinstance(results[1], DuplicateTransaction)
    assert not results[1].committed
    assert results[3][0] is Settled.COMMITTED
    assert results[3][1].transaction == late.transaction
    with pytest.raises(DuplicateTransaction):
        step(store.backend.commit(early))


def test_compaction_and_commits_in_one_batch(store: Store) -> None:
    a = key("a")
    for value in range(5):
        store.commit({a: number(value)})
    store.commit({a: delete()})
    at = store.commit({key("b"): number(1)}).at + 1
    results = together(
        store,
        store.request({a: number(7)}),
        lambda: step(store.backend.compact(at)),
        store.request({a: add(1)}),
    )
    assert results[1] == 8  # the origin, six of the seven records, the tombstone
    assert store.value(a) == 8
    assert store.value(a, results[0].token) == 7
    assert [value_of(entry) for entry, _ in step(store.backend.history(a))][:2] == [8, 7]


def test_a_quiet_commit_in_a_batch_of_durable_ones(store: Store) -> None:
    lock = key("lock")
    quiet = store.request({lock: Put(b"i1", 5.0, False)}, quiet=True, durable=False, fetch=(lock, key("a")))
    results = together(store, store.request({key("a"): number(1)}), quiet, store.request({lock: delete()}, quiet=True))
    assert [value_of(entry) for entry in results[1].fetched] == [1, 1]
    assert results[1].fetched[0].expires_at == results[1].at + 5.0
    assert store.entry(lock) is None
    assert len(store.feed()) == 1


def test_volatile_batches_are_not_synced_and_later_ones_are(tmp_path: Path) -> None:
    with opened(tmp_path / "store.db", synchronous="FULL") as store:
        store.commit({key("a"): number(1)}, durable=False)
        writer = store.backend._engine._writer
        assert writer is not None
        assert writer.connection is not None
        assert writer.connection.execute("PRAGMA synchronous").fetchone() == (1,)
        store.commit({key("b"): number(1)})
        assert writer.connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_r142_tasks_of_one_store_object(tmp_path: Path) -> None:
    """20 tasks on asyncio, one of which raises half-way through its transaction."""

    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF")
        token = await backend.snapshot()

        async def task(part: int) -> None:
            writes = {key("x", part): number(part), key("y", part): number(part), key("sum"): add(1)}
            if part == 7:
                raise ValueError
            await backend.commit(CommitRequest(new_transaction(), "t", "none", token, {}, dict(writes), {}))

        results = await asyncio.gather(*(task(part) for part in range(20)), return_exceptions=True)
        assert sum(result is None for result in results) == 19
        entries = (await backend.read([key("sum"), key("x", 7), key("x", 8), key("y", 8)])).entries
        assert [value_of(entry) for entry in entries] == [19, None, 8, 8]
        await backend.close()

    asyncio.run(main())


def test_threads_and_loops_share_one_store(tmp_path: Path) -> None:
    backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF")
    leaf = backend.blocking()
    assert (backend.suspends, leaf.suspends, leaf.blocking()) == (True, False, leaf)

    def increments(index: int) -> None:
        async def run(chosen: SQLiteBackend) -> None:
            for _ in range(25):
                token = await chosen.snapshot()
                await chosen.commit(CommitRequest(new_transaction(), "t", "none", token, {}, {key("sum"): add(1)}, {}))

        if index % 2:
            asyncio.run(run(backend))
        else:
            step(run(leaf))

    in_threads(8, increments)
    assert value_of(step(leaf.read([key("sum")])).entries[0]) == 200
    step(leaf.close())
    with pytest.raises(UsageError):
        asyncio.run(backend.snapshot())


def test_more_jobs_than_one_batch_takes(tmp_path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(tmp_path / "store.db", synchronous="OFF")
        token = await backend.snapshot()
        requests = [
            CommitRequest(new_transaction(), "t", "none", token, {}, {key("k", part): number(part)}, {})
            for part in range(500)
        ]
        with queue_held(tmp_path / "store.db"):
            tasks = [asyncio.create_task(backend.commit(request)) for request in requests]
            await asyncio.sleep(0)
        replies = await asyncio.gather(*tasks)
        assert [reply.version[0] for reply in replies] == list(range(1, 501))
        entries = (await backend.read([key("k", part) for part in range(500)])).entries
        assert [value_of(entry) for entry in entries] == list(range(500))
        await backend.close()

    asyncio.run(main())


def test_a_commit_of_many_keys(store: Store) -> None:
    """More keys than one statement takes, in writes, reads and a read."""
    writes = {key("k", part): number(part) for part in range(3000)}
    reply = store.commit(writes)
    expected = dict.fromkeys(writes, reply.version)
    store.commit({key("k", 1): number(-1)}, reads=expected)
    with pytest.raises(CommitRefused) as caught:
        store.commit({key("k", 2): number(-1)}, reads=expected)
    assert [clash.key for clash in caught.value.clashes] == [key("k", 1)]
    entries = step(store.backend.read(list(writes), reply.token)).entries
    assert [value_of(entry) for entry in entries] == list(range(3000))
    page = step(store.backend.scan(Span(key("k", 0), key("k", 5000)), reply.token, limit=10_000))
    assert [value_of(entry) for _, entry in page.items] == list(range(3000))


def test_a_fence_outlives_its_record(store: Store) -> None:
    """After compaction has dropped a fence, a commit as old as it is refused."""
    late = store.request({key("a"): number(1)})
    assert step(store.backend.outcome(late.transaction, fence=True))[0] is Settled.FENCED
    at = store.commit({key("b"): number(1)}).at + 1
    store.commit({key("b"): number(2)})
    assert step(store.backend.compact(at)) > 0
    assert step(store.backend.compact(at)) == 0
    fresh = CommitRequest(late.transaction, "t", "none", store.snapshot(), {}, late.writes, {})
    with pytest.raises(DuplicateTransaction):  # this writer remembers
        step(store.backend.commit(fresh))
    with opened(store.backend.path) as other, pytest.raises(SnapshotTooOldError):
        step(other.backend.commit(fresh))
    assert step(store.backend.outcome(late.transaction, fence=True))[0] is Settled.FORGOTTEN
    assert store.entry(key("a")) is None


def test_a_fault_of_ours_leaves_nobody_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(batch, "put_feed", fail)
    results = together(store, store.request({key("a"): number(1)}), store.request({key("b"): number(1)}))
    assert all("a fault" in str(result) for result in results)
    monkeypatch.undo()
    store.commit({key("a"): number(2)})
    assert store.value(key("a")) == 2
    assert store.entry(key("b")) is None


def test_a_writer_waits_for_as_many_as_came_lately_and_for_no_others() -> None:
    turns = Turns()
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    turns.gather(jobs)
    assert turns.wanted == 0, "a single caller is never waited with"
    turns.note(4, 3600.0)

    def bring(_: int) -> None:
        for part in range(3):
            wait_until(lambda: turns.wanted == 3)
            jobs.put(part)
        turns.tell()
        turns.tell()

    def gather(_: int) -> None:
        while jobs.qsize() < 3:
            turns.gather(jobs)

    in_threads(2, lambda index: (bring, gather)[index](index))
    assert (jobs.qsize(), turns.wanted) == (3, 0)
    turns.gather(jobs)  # there are enough
    while not jobs.empty():
        jobs.get()
    turns.gather(jobs)  # a word that came too late is not taken for this turn's; nobody comes, and it ends
    assert (jobs.qsize(), turns.wanted) == (0, 0)


def test_a_commit_that_comes_while_the_writer_ends_is_refused(tmp_path: Path) -> None:
    """It was accepted, so it is answered, though no batch will take it any more."""
    with opened(tmp_path / "store.db") as store:
        store.commit({key("a"): number(1)})
        writer: Any = store.backend._engine._writer
        request = store.request({key("a"): number(2)})
        late = CommitJob(BlockingRuntime().waiter(), request, request.snapshot.position)
        end_turn = writer._end_turn

        def interrupted(kept: bool) -> None:
            end_turn(kept)
            assert writer.put(late)

        writer._end_turn = interrupted
    assert step(late.waiter.wait(PATIENCE_SECONDS))
    assert type(late.answer) is UsageError
    assert "closed" in str(late.answer)
    with opened(tmp_path / "store.db") as again:
        assert again.value(key("a")) == 1
