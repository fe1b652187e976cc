"""Lost races and lost replies: what a program sees is what it would see in production, in every mode and colour."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import sync as il
from interlock import testing
from interlock.testing import conflicts, lost_replies
from interlock.testing import sync as in_sync
from interlock.testing.faults import FaultyBackend


async def bump(session: interlock.AgentSession[int], key: str) -> int:
    return await session.update(key, lambda count: count + 1, 0)


def bump_now(session: il.AgentSession[int], key: str) -> int:
    return session.update(key, lambda count: count + 1, 0)


def urls(tmp_path: Path) -> list[str]:
    return ["memory://", f"sqlite:///{tmp_path}/faults.db"]


# --- conflicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [0, 1], ids=["memory", "sqlite"])
def test_a_run_that_loses_races_runs_again(tmp_path: Path, engine: int) -> None:
    async def main() -> None:
        async with testing.open_store(urls(tmp_path)[engine]) as store:
            counts = store.resource("counts", int)
            await counts.run(bump, "a")
            with conflicts(store, times=3) as lost:
                done = await counts.run_detailed(bump, "a")
            assert (done.value, done.attempts) == (2, 4)
            assert len(set(lost.transaction_ids)) == 3
            assert lost.left == 0
            assert await counts.read("a") == 2
            changes = await testing.commits(store)
            assert [change.agent for change in changes] == ["test", "test"], "the rival is left out"
            assert changes[-1].transaction_id == done.transaction_id
            everybody = [change.agent async for change in store.log.changes()]
            assert everybody == ["test", "rival", "rival", "rival", "test"], "and was really there"

    asyncio.run(main())


@pytest.mark.parametrize("engine", [0, 1], ids=["memory", "sqlite"])
def test_the_same_in_synchronous_code(tmp_path: Path, engine: int) -> None:
    with in_sync.open_store(urls(tmp_path)[engine]) as store:
        counts = store.resource("counts", int)
        with conflicts(store, times=2):
            assert counts.run(bump_now, "a") == 1
        assert counts.run(bump_now, "a") == 2
        assert [change.agent for change in in_sync.commits(store)] == ["test", "test"]


def test_the_error_has_the_facts_of_a_real_conflict() -> None:
    with in_sync.open_store() as store:
        stock = store.resource("stock", int)
        stock.run(bump_now, "sku")
        with conflicts(store), pytest.raises(interlock.ReadConflict) as caught:
            with stock.session() as session:
                session.write("sku", (session.read("sku") or 0) + 10)
        (conflict,) = caught.value.conflicts
        assert (conflict.key, conflict.read_value, conflict.current_value) == ("sku", 1, 1)
        assert conflict.committed_by == "rival"
        change = store.log.get(conflict.transaction_id)
        assert change is not None
        assert change.version == conflict.current_version
        assert "'rival'" in caught.value.explain()
        assert stock.read("sku") == 1


def test_a_key_that_was_read_as_absent_is_taken_for_a_moment() -> None:
    with in_sync.open_store() as store:
        seats = store.resource("seats", str)
        with conflicts(store), pytest.raises(interlock.ReadConflict) as caught, seats.session() as session:
            assert session.read("1a") is None
            session.write("1a", "ada")
        assert caught.value.conflicts[0].read_version is None
        assert caught.value.conflicts[0].current_version is not None
        assert seats.read("1a") is None, "what was made for the race is gone again"


@pytest.mark.parametrize("rows", [0, 3])
def test_a_range_that_was_scanned_changes(rows: int) -> None:
    with in_sync.open_store() as store:
        queue = store.resource("queue", str)
        other = store.resource("other", int)
        for number in range(rows):
            with queue.session() as session:
                session.write(("job", number), "x")
        for prefix in (("job",), None):
            with conflicts(store), pytest.raises(interlock.RangeConflict), store.session() as both:
                assert len(list(both.on(queue).scan(prefix))) == rows
                both.on(other).write("count", rows)
        assert len(list(queue.scan())) == rows


@pytest.mark.parametrize("isolation", ["snapshot", "optimistic", "serializable"])
def test_every_mode_that_validates_can_lose(isolation: interlock.Isolation) -> None:
    with in_sync.open_store(isolation=isolation) as store:
        counts = store.resource("counts", int)
        with conflicts(store, times=2):
            assert counts.run_detailed(bump_now, "a").attempts == 3


def test_mode_none_never_conflicts_here_either() -> None:
    with in_sync.open_store(isolation="none") as store:
        counts = store.resource("counts", int)
        with pytest.raises(AssertionError, match="1 of 1 faults did not happen"), conflicts(store):
            assert counts.run_detailed(bump_now, "a").attempts == 1


def test_a_commit_that_read_nothing_is_refused_for_no_reason() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)

        def blind(session: il.AgentSession[int]) -> None:
            session.write("a", 7)

        def clear(session: il.AgentSession[int]) -> None:
            session.clear("a")

        for fn in (blind, clear):
            with conflicts(store) as lost:
                assert counts.run_detailed(fn).attempts == 2
            assert len(lost.transaction_ids) == 1
        assert [change.agent for change in store.log.changes()] == ["test"] * 2


def test_only_commits_with_the_named_key() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)
        with conflicts(store, key="b") as lost:
            assert counts.run_detailed(bump_now, "a").attempts == 1
            assert counts.run_detailed(bump_now, "b").attempts == 2
            assert counts.run_detailed(bump_now, "b").attempts == 1
        assert len(lost.transaction_ids) == 1
        with conflicts(store, key=("job", 1)), pytest.raises(interlock.ReadConflict):
            with counts.session() as session:
                session.read("a")
                session.read(("job", 1))
                session.write("c", 1)


def test_without_end_it_uses_up_all_attempts() -> None:
    with in_sync.open_store(retry=interlock.RetryPolicy(max_attempts=4, base_seconds=0)) as store:
        counts = store.resource("counts", int)
        with conflicts(store, times=None) as lost, pytest.raises(interlock.RetriesExhaustedError) as caught:
            counts.run(bump_now, "a")
        assert caught.value.attempts == len(lost.transaction_ids) == 4
        assert counts.run(bump_now, "a") == 1, "afterwards all is as before"


def test_an_idempotency_key_is_used_once_for_all_attempts() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)
        with conflicts(store, times=2):
            assert counts.run(bump_now, "a", idempotency_key="k") == 1
        assert counts.run_detailed(bump_now, "a", idempotency_key="k").replayed


def test_what_did_not_happen_fails_the_test() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)
        with pytest.raises(AssertionError, match="2 of 3 faults did not happen"), conflicts(store, times=3):
            with pytest.raises(interlock.ConflictError), counts.session() as session:
                bump_now(session, "a")
        with pytest.raises(ZeroDivisionError), conflicts(store):
            raise ZeroDivisionError("the test's own failure goes first")


def test_readers_are_not_disturbed() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)
        counts.run(bump_now, "a")
        with pytest.raises(AssertionError, match="did not happen"), conflicts(store):
            with counts.session() as session:
                assert session.read("a") == 1
                session.check()


def test_races_of_many_threads() -> None:
    with in_sync.open_store(retry=interlock.RetryPolicy(max_attempts=1000, base_seconds=0)) as store:
        counts = store.resource("counts", int)
        with conflicts(store, times=20) as lost:
            threads = [threading.Thread(target=lambda: counts.run(bump_now, "a")) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            while lost.left:
                counts.run(bump_now, "b")
        assert counts.read("a") == 8


# --- lost replies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [0, 1], ids=["memory", "sqlite"])
@pytest.mark.parametrize(("landed", "attempts"), [(True, 1), (False, 2)])
def test_run_settles_a_lost_reply(tmp_path: Path, engine: int, landed: bool, attempts: int) -> None:
    async def main() -> None:
        async with testing.open_store(urls(tmp_path)[engine]) as store:
            counts = store.resource("counts", int)
            with lost_replies(store, landed=landed) as lost:
                done = await counts.run_detailed(bump, "a")
            assert (done.value, done.attempts) == (1, attempts)
            assert await counts.read("a") == 1
            assert len(await testing.commits(store)) == 1
            outcome = interlock.Outcome.COMMITTED if landed else interlock.Outcome.NOT_COMMITTED
            assert await store.outcome(lost.transaction_ids[0]) is outcome

    asyncio.run(main())


def test_a_bare_session_passes_it_on() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)
        with lost_replies(store), pytest.raises(interlock.CommitUnknownError) as caught, counts.session() as session:
            session.write("a", 1)
        assert caught.value.maybe_committed
        assert store.outcome(caught.value.transaction_id) is interlock.Outcome.COMMITTED
        assert counts.read("a") == 1


def test_a_refusal_is_not_a_lost_reply() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)
        with lost_replies(store) as lost:
            with pytest.raises(interlock.InvariantError), counts.session() as session:
                session.add("a", -1, floor=0)
            assert (lost.left, lost.transaction_ids) == (1, [])
            assert counts.run(bump_now, "a") == 1
        assert lost.left == 0


def test_races_and_lost_replies_together() -> None:
    with in_sync.open_store() as store:
        counts = store.resource("counts", int)
        with conflicts(store, times=2), lost_replies(store, times=2):
            assert counts.run(bump_now, "a") == 1
            assert counts.run(bump_now, "a") == 2
        assert counts.read("a") == 2


# --- where they can be set --------------------------------------------------------------------------------------------


def test_a_store_that_was_opened_otherwise_is_refused() -> None:
    with il.open("memory://", agent="test") as store:
        with pytest.raises(interlock.UsageError, match=r"interlock\.testing\.open_store"), conflicts(store):
            pass


@pytest.mark.parametrize("times", [0, -1, 1.5, True, "1"])
def test_times_is_checked(times: Any) -> None:
    with in_sync.open_store() as store, pytest.raises(interlock.UsageError, match="times"), conflicts(store, times):
        pass


def test_a_key_is_checked() -> None:
    with in_sync.open_store() as store, pytest.raises(interlock.UsageError), conflicts(store, key=1.5):  # type: ignore[arg-type]
        pass


def test_the_wrapper_keeps_to_the_port() -> None:
    """Every method of the port, with its parameters; a method that the port gains later must not be missing here."""
    for name, method in inspect.getmembers(interlock.Backend, inspect.isfunction):
        if not name.startswith("_"):
            ours = inspect.signature(getattr(FaultyBackend, name))
            assert list(ours.parameters) == list(inspect.signature(method).parameters), name


def test_the_names_are_the_same_in_both_worlds() -> None:
    assert testing.__all__ == in_sync.__all__
    for name in ("open_store", "commits"):
        ours, theirs = (inspect.signature(getattr(module, name)) for module in (testing, in_sync))
        assert [(p.name, p.default, p.kind) for p in ours.parameters.values()] == [
            (p.name, p.default, p.kind) for p in theirs.parameters.values()
        ]
