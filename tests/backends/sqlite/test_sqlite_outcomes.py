"""Outcomes of transactions, wherever they are kept: in a writer's memory, in the table, or in the feed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlite_support import Store, add, delete, key, new_transaction, number, opened, step
from test_sqlite_batches import together

from interlock.backends.sqlite import log, outcomes, writer
from interlock.backends.sqlite.jobs import CommitJob, FenceJob, Job
from interlock.errors import SnapshotTooOldError
from interlock.model import ABSENT, CommitRefused, CommitRequest, DuplicateTransaction, Reply, Settled, Span
from interlock.runtime import BlockingRuntime


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store.db") as made:
        made.snapshot()
        yield made


def commit(store: Store, transaction: int) -> CommitRequest:
    request = store.request({key("sum"): add(1)}, transaction=transaction)
    step(store.backend.commit(request))
    return request


def put_in(store: Store) -> None:
    """Do what the writer does when it copies the log."""
    writer = store.backend._engine._writer
    assert writer is not None
    assert writer.connection is not None
    with writer.working:
        writer._known.outcomes.put_in(writer.connection)


def settled(store: Store, transaction: int, *, fence: bool = False) -> Settled:
    return step(store.backend.outcome(transaction, fence=fence))[0]


def test_wherever_a_commit_is_recorded_it_is_found(store: Store) -> None:
    """By the writer that made it, by another one, and by one that opened the file later; before and after."""
    with opened(store.backend.path) as other:
        other.snapshot()
        before = [commit(store, new_transaction()), commit(other, new_transaction())]
        put_in(store)
        after = [commit(store, new_transaction()), commit(other, new_transaction())]
        with opened(store.backend.path) as late:
            for place in (store, other, late):
                for request in before + after:
                    assert settled(place, request.transaction, fence=True) is Settled.COMMITTED
                    with pytest.raises(DuplicateTransaction) as caught:
                        step(place.backend.commit(request))
                    assert caught.value.committed
        assert store.value(key("sum")) == 4


def test_fences_hold_for_other_writers_and_after_they_are_put_in(store: Store) -> None:
    with opened(store.backend.path) as other:
        other.increment(key("a"))
        ids = [new_transaction(), new_transaction()]
        assert settled(store, ids[0], fence=True) is Settled.FENCED
        put_in(other)
        assert settled(other, ids[1], fence=True) is Settled.FENCED
        for place in (store, other):
            for transaction in ids:
                with pytest.raises(DuplicateTransaction) as caught:
                    commit(place, transaction)
                assert not caught.value.committed


@pytest.mark.parametrize("order", ["rising", "falling", "random", "extreme"])
def test_ids_need_not_be_in_the_order_of_time(store: Store, order: str) -> None:
    chance = random.Random(3)
    ids = {
        "rising": list(range(1, 60)),
        "falling": list(range(60, 1, -1)),
        "random": [chance.getrandbits(128) for _ in range(60)],
        "extreme": [(1 << 128) - 1, 1, (1 << 128) - 2, 2],
    }[order]
    with opened(store.backend.path) as other:
        for place, transaction in enumerate(ids):
            commit((store, other)[place % 2], transaction)
            if place % 17 == 3:
                put_in((store, other)[place % 3 % 2])
        for transaction in ids:
            for where in (store, other):
                assert settled(where, transaction) is Settled.COMMITTED
                with pytest.raises(DuplicateTransaction):
                    commit(where, transaction)
        assert store.value(key("sum")) == len(ids)


def test_compaction_takes_ids_out_of_the_table(store: Store) -> None:
    requests = [commit(store, new_transaction()) for _ in range(30)]
    put_in(store)
    last = commit(store, new_transaction())
    while step(store.backend.compact(step(store.backend.now()) + 1, limit=7)):
        pass
    connection = store.backend._engine.local.reader.connection
    assert connection.execute("SELECT count(*) FROM outcome").fetchone() == (0,)
    assert settled(store, requests[3].transaction) is Settled.FORGOTTEN
    assert settled(store, last.transaction) is Settled.COMMITTED


def asked(store: Store, job: Job) -> Any:
    """The writer's answer to a job, or what it raised."""
    return step(store.backend._engine.submit(job))


def test_a_fence_is_not_written_for_what_the_same_batch_has_forgotten(store: Store) -> None:
    """It was committed: whoever asks is told that nobody knows, and never that it did not happen."""
    old = commit(store, new_transaction())
    put_in(store)
    commit(store, new_transaction())
    later = step(store.backend.now()) + 1
    dropped, told = together(
        store,
        lambda: step(store.backend.compact(later)),
        lambda: asked(store, FenceJob(BlockingRuntime().waiter(), old.transaction)),
    )
    assert dropped > 0
    assert told is Settled.FORGOTTEN
    assert asked(store, FenceJob(BlockingRuntime().waiter(), old.transaction)) is Settled.FORGOTTEN
    assert settled(store, old.transaction, fence=True) is Settled.FORGOTTEN


def test_a_batch_that_buries_a_key_knows_that_nothing_is_there(store: Store) -> None:
    """Its tombstone was looked up for a commit behind the compaction, which then finds no row."""
    store.commit({key("a"): number(1)})
    store.commit({key("a"): delete()})
    newest = store.commit({key("b"): number(1)}).token
    later = step(store.backend.now()) + 1
    request = store.request({key("a"): number(2)}, reads={key("a"): ABSENT}, snapshot=newest)
    dropped, reply = together(store, lambda: step(store.backend.compact(later)), request)
    assert dropped == 4  # three rows of the feed, the first of which is the store's own, and the tombstone
    assert isinstance(reply, Reply)
    assert store.value(key("a")) == 2


def test_who_comes_twice_and_has_changed_his_own_range_is_told_that_he_was_there(store: Store) -> None:
    """The range is looked at before the batch, which then never sees the request."""
    span = Span(key("in", 0), key("in", 9))
    done = store.request({key("in", 1): number(1)}, spans=(span,))
    fenced = store.request({key("in", 2): number(2)}, spans=(span,))
    step(store.backend.commit(done))
    assert settled(store, fenced.transaction, fence=True) is Settled.FENCED
    for request, committed in ((done, True), (fenced, False)):
        with pytest.raises(DuplicateTransaction) as caught:
            step(store.backend.commit(request))
        assert caught.value.committed is committed
    assert store.value(key("in", 2)) is None


def test_a_batch_that_compacts_and_looks_again_forgets_no_horizon(store: Store) -> None:
    """A span that has changed makes the batch look up one more key, behind the compaction."""
    first = store.commit({key("a"): number(1)})
    checked = store.commit({key("a"): number(2)}).token
    newest = store.commit({key("in", 1): number(1)}).token
    request = store.request({key("b"): number(1)}, spans=(Span(key("in", 0), key("in", 9)),), snapshot=newest)
    later = step(store.backend.now()) + 1
    dropped, refused = together(
        store,
        lambda: step(store.backend.compact(later)),
        lambda: asked(store, CommitJob(BlockingRuntime().waiter(), request, checked.position)),
    )
    assert dropped > 0
    assert isinstance(refused, CommitRefused)
    assert [clash.key for clash in refused.clashes] == [key("in", 1)]
    for token in (first.token, checked):
        with pytest.raises(SnapshotTooOldError):
            store.commit({key("b"): number(1)}, snapshot=token)
    store.commit({key("b"): number(1)}, snapshot=newest)


def test_a_writer_puts_in_what_it_finds_missing_at_opening(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [commit(store, new_transaction()) for _ in range(20)]
    monkeypatch.setattr(outcomes, "TAIL", 10)
    with opened(store.backend.path) as late:
        late.snapshot()
        connection = late.backend._engine.local.reader.connection
        assert connection.execute("SELECT count(*) FROM outcome").fetchone() == (20,)
        for request in requests:
            with pytest.raises(DuplicateTransaction):
                step(late.backend.commit(request))


def test_copies_of_the_log_keep_the_memory_small(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "TAIL", 40)
    monkeypatch.setattr(log, "_PAGES", 60)
    writer = store.backend._engine._writer
    assert writer is not None
    sizes = []
    for _ in range(200):
        commit(store, new_transaction())
        sizes.append(len(writer._known.outcomes))
    assert max(sizes) < 80
    assert min(sizes[100:]) < 30
    connection = store.backend._engine.local.reader.connection
    assert connection.execute("SELECT count(*) FROM outcome").fetchone()[0] > 100
    assert store.value(key("sum")) == 200
    store.commit({key("a"): number(1)})


def test_what_the_writer_knows_of_ids_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was forgotten is asked of the file again: who relies on an old state is judged the same."""
    monkeypatch.setattr(writer, "_IDS_KNOWN", 4)
    tokens, sizes = [store.snapshot()], []
    for part in range(20):
        store.commit({key("n", part): number(part)})
        tokens.append(store.snapshot())
        sizes.append(len(store.backend._engine._started()._known.ids))
    assert max(sizes) <= 4 + 2
    for part, token in enumerate(tokens):
        store.commit({key("m", part): number(part)}, snapshot=token)
        assert store.value(key("n", part), token) is None
        with pytest.raises(CommitRefused):
            store.commit({key("o"): number(1)}, reads={key("m", part): ABSENT}, snapshot=token)
