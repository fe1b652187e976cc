"""What effects cost, how long they are kept, how claims are renewed, and what happens when the engine is gone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import interlock
import interlock.sync
import interlock.testing
import interlock.testing.sync
from cases.faults import Broken, Counted
from cases.support import World, everywhere
from interlock import BackendUnavailableError, EffectStatus, EffectUnknownError, IdempotencyMismatchError, UsageError
from interlock.layers.effects import journal
from interlock.layers.effects.records import effect_key
from interlock.model import Put
from interlock.stepping import step
from interlock.testing import Clock
from layers.effects_support import Acts, abandon
from layers.effects_workers import EffectWorker

MONTH = 30 * 86_400


def charge() -> str:
    return "charged"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the engine's time at the last commit is good enough for a claim."""
    monkeypatch.setattr(journal, "_GUESS_SECONDS", 60.0)
    monkeypatch.setattr(journal, "_GUESS", 1.0)


@pytest.mark.usefixtures("patient")
@everywhere
async def test_an_execution_is_two_commits_one_of_them_durable(world: World) -> None:
    for durable in (False, True):
        counted = Counted(world.backend())
        store, acts = world.over(counted), Acts()
        executor = world.executor(store, durable_results=durable)
        await executor.execute(f"warm {durable}", acts.charge, 5)
        counted.calls.clear()
        counted.commits.clear()
        await executor.execute(f"k {durable}", acts.charge, 5)
        assert [name for name in counted.calls if name != "now"] == ["commit", "commit"]
        assert [commit.durable for commit in counted.commits] == [True, durable]
        assert all(commit.quiet for commit in counted.commits)
        assert all(len(commit.writes) == 1 for commit in counted.commits)
        counted.calls.clear()
        await executor.execute(f"k {durable}", acts.charge, 5)
        assert counted.calls == ["read"]


@pytest.mark.usefixtures("patient")
@everywhere
async def test_a_key_is_claimed_unseen_only_where_there_is_no_record(world: World) -> None:
    """What others have written since is found by the refusal of the claim."""
    counted = Counted(world.backend())
    store, other, acts = world.over(counted), world.open(), Acts()
    executor, elsewhere = world.executor(store), world.executor(other)
    for number in range(3):
        await executor.execute(f"warm {number}", acts.charge, number)
        await elsewhere.execute(f"done {number}", acts.charge, number)
        called = len(acts.calls)
        counted.calls.clear()
        assert (await executor.execute_detailed(f"done {number}", acts.charge, number)).replayed
        assert counted.calls == ["commit", "read"]
        assert len(acts.calls) == called
        with pytest.raises(IdempotencyMismatchError):
            await executor.execute(f"done {number}", acts.charge, number + 1)


def test_a_claim_unseen_ends_no_later_than_one_that_was_read() -> None:
    others = set(threading.enumerate())
    clock = Clock()
    store = interlock.testing.sync.open_store(clock=clock)
    inner = store.effects._journal
    executor = interlock.sync.IdempotentExecutor(store, claim_seconds=2.0)
    executor.execute("warm", charge)
    key = effect_key("k")
    clock.advance(0.03)
    guess = inner.guess(key, 2.0)
    assert guess is not None
    at, (monotonic, _), _ = guess
    assert step(store._engine.backend.now()) - at == pytest.approx(0.03)
    assert clock.monotonic() - monotonic == pytest.approx(0.03)
    assert inner.guess(effect_key("warm"), 2.0) is None  # it was claimed here
    assert inner.guess(key, 1.0) is None  # too old for so short a claim
    clock.advance(0.1)
    assert inner.guess(key, 60.0) is None
    executor.execute("warm", charge)  # a replay: what is looked for next may have a record, too
    assert inner.guess(key, 60.0) is None
    store.close()
    for thread in set(threading.enumerate()) - others:  # those of other tests may live on
        if thread.name == "interlock-effects":
            thread.join()


@everywhere
async def test_the_feed_shows_what_was_staged_and_not_how_it_was_executed(world: World) -> None:
    store, acts = world.open(), Acts()
    before = await store.log.head()
    await world.executor(store).execute("k", acts.charge, 5)
    async with store.session() as session:
        await session.stage("email", 1, key="k")
    assert len([change async for change in store.log.changes(before)]) == 1


def test_what_is_settled_is_forgotten_and_what_is_open_is_not() -> None:
    clock = Clock()
    store = interlock.testing.sync.open_store(clock=clock)
    executor = interlock.sync.IdempotentExecutor(store)

    executor.execute("succeeded", charge)
    with pytest.raises(ValueError):
        executor.execute("failed", decline)
    with pytest.raises(TimeoutError):
        executor.execute("unknown", time_out)
    with store.session() as session:
        session.stage("email", 1, key="pending")
    clock.advance(MONTH - 1)
    store.compact()
    assert [each.key for each in store.effects.list()] == ["failed", "pending", "succeeded", "unknown"]
    assert executor.execute_detailed("succeeded", charge).replayed
    with pytest.raises(IdempotencyMismatchError):
        executor.execute("succeeded", charge, payload="other")
    clock.advance(1)
    for compacted in (False, True):
        if compacted:
            store.compact()
        assert [each.key for each in store.effects.list()] == ["pending", "unknown"]
        assert store.effects.get("succeeded") is None
    assert not executor.execute_detailed("succeeded", charge, payload="other").replayed
    with pytest.raises(EffectUnknownError):
        executor.execute("unknown", time_out)
    clock.advance(MONTH)
    assert not executor.execute_detailed("succeeded", charge).replayed, "expired, and not compacted"
    assert store.effects.get("unknown") is not None
    store.close()


def decline() -> None:
    raise ValueError("declined")


def time_out() -> None:
    raise TimeoutError


def test_a_long_act_is_renewed_for_as_long_as_it_takes() -> None:
    clock = Clock()
    store = interlock.testing.sync.open_store("memory://renewed", clock=clock)
    other = interlock.testing.sync.open_store("memory://renewed", clock=clock)
    looks: list[Any] = []

    def act() -> str:
        for _ in range(10):
            before = other.effects.get("k")
            assert before is not None
            while not clock.sleeping:
                pass
            clock.advance(20)
            while (now := other.effects.get("k")) is not None and now.seconds_left is not None:
                if now.seconds_left > 40:
                    break
            looks.append(now)
        return "done"

    assert interlock.sync.IdempotentExecutor(store, claim_seconds=60).execute("k", act) == "done"
    assert [look.status for look in looks] == [EffectStatus.EXECUTING] * 10
    assert all(40 < look.seconds_left <= 60 for look in looks)
    settled = other.effects.get("k")
    assert settled is not None
    assert settled.status is EffectStatus.SUCCEEDED
    store.close()
    other.close()


def test_a_shorter_claim_is_looked_at_in_its_own_time() -> None:
    """What renews the longer one may sleep by then for longer than the shorter one lasts."""
    clock = Clock()
    store = interlock.testing.sync.open_store("memory://shorter", clock=clock)
    other = interlock.testing.sync.open_store("memory://shorter", clock=clock)

    def left(least: float) -> float:
        while True:
            effect = other.effects.get("short")
            assert effect is not None
            assert effect.seconds_left is not None
            if effect.seconds_left > least:
                return effect.seconds_left

    def short() -> str:
        while not clock.sleeping:  # again, for a third of this claim
            pass
        assert left(0) == 3
        clock.advance(1)
        return f"{left(2):g} s left"

    def long() -> str:
        while not clock.sleeping:
            pass
        return interlock.sync.IdempotentExecutor(store, claim_seconds=3).execute("short", short)

    assert interlock.sync.IdempotentExecutor(store, claim_seconds=3000).execute("long", long) == "3 s left"
    store.close()
    other.close()


def test_nothing_goes_on_in_the_background_when_nothing_is_executed() -> None:
    others = set(threading.enumerate())  # those of other tests may live on for a moment

    def ours() -> list[threading.Thread]:
        return [
            thread for thread in threading.enumerate() if thread.name == "interlock-effects" and thread not in others
        ]

    clock = Clock()
    store = interlock.testing.sync.open_store(clock=clock)
    executor = interlock.sync.IdempotentExecutor(store, claim_seconds=60)
    for number in range(5):
        executor.execute(f"k{number}", charge)
    jobs = ours()
    assert len(jobs) == 1
    while not clock.sleeping:
        pass
    clock.advance(20)
    jobs[0].join(30)
    assert not jobs[0].is_alive()
    executor.execute("again", charge)
    again = ours()
    assert len(again) == 1
    store.close()
    again[0].join(30)
    assert not again[0].is_alive()
    with pytest.raises(UsageError):
        executor.execute("closed", charge)


def test_renewing_never_revives_what_was_taken_away() -> None:
    clock = Clock()
    store = interlock.testing.sync.open_store(clock=clock)
    journal = store._journal
    executor = interlock.sync.IdempotentExecutor(store)

    def act() -> str:
        clock.advance(60)  # the background job has had no turn: the claim has ended
        report = store.effects.reconcile("k")
        assert report.unknown + report.live == [("k", "")]
        return "done"

    try:
        assert executor.execute("k", act) == "done"
    except EffectUnknownError:
        effect = store.effects.get("k")
        assert effect is not None
        assert effect.status is EffectStatus.UNKNOWN
    assert not journal.keeper._claims
    store.close()


@everywhere
async def test_an_engine_that_is_gone_when_the_result_comes(world: World) -> None:
    broken = Broken(world.backend())
    store = world.over(broken)
    calls: list[int] = []

    async def act() -> str:
        calls.append(1)
        if len(calls) == 1:
            broken.broken.append(BackendUnavailableError("the server has gone"))
            asked = broken.around

            async def come_back(name: str, args: Any, call: Any) -> Any:
                tries.append(name)
                if len(tries) > 3:
                    broken.broken.clear()
                return await asked(name, args, call)

            tries: list[str] = []
            inner = getattr(store, "inner", store)._engine.backend
            inner.around = come_back
        return "done"

    assert await world.executor(store).execute("k", act) == "done"
    effect = await store.effects.get("k")
    assert (effect.status, effect.result) == (EffectStatus.SUCCEEDED, "done")
    assert calls == [1]


def test_an_engine_that_stays_gone() -> None:
    clock = Clock()
    broken = Broken(interlock.MemoryBackend("stays-gone", clock=clock.engine_time))
    store = interlock.sync.Store(broken, agent="tester", runtime=clock.runtime(suspends=False))

    def act() -> str:
        store._engine.backend.broken.append(BackendUnavailableError("the server has gone"))
        return "done"

    with pytest.raises(EffectUnknownError, match="has been done, but this could not be recorded"):
        interlock.sync.IdempotentExecutor(store).execute("k", act)
    other = interlock.testing.sync.open_store("memory://stays-gone", clock=clock)
    effect = other.effects.get("k")
    assert effect is not None
    assert effect.status is EffectStatus.EXECUTING
    clock.advance(60)
    with pytest.raises(EffectUnknownError):
        interlock.sync.IdempotentExecutor(other).execute("k", act)


def test_a_forked_child_does_not_wait_for_its_parents_calls(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fork.db'}"
    assert EffectWorker("fork_within", url=url, key="k").result() == {"child": 0, "other": True}


def test_an_act_in_the_middle_of_a_loop_that_ends() -> None:
    """An event loop that is closed during the act leaves a claim that ends, never a key that is free."""
    backend_name = "memory://loop-that-ends"
    acts = Acts()

    async def first() -> None:
        store = interlock.open(backend_name, agent="tester")
        call = asyncio.ensure_future(interlock.IdempotentExecutor(store).execute("k", acts.charge, 5))
        acts.gate = asyncio.Event()
        while not acts.calls:
            await asyncio.sleep(0)
        call.add_done_callback(lambda done: done.cancelled())

    asyncio.run(first())

    async def second() -> None:
        async with interlock.open(backend_name, agent="tester") as store:
            with pytest.raises(EffectUnknownError):
                await interlock.IdempotentExecutor(store).execute("k", acts.charge, 5)

    keep = interlock.open(backend_name, agent="tester")
    asyncio.run(second())
    assert acts.calls == [5]
    del keep


@everywhere
async def test_records_are_small_and_their_payloads_bounded(world: World) -> None:
    counted = Counted(world.backend())
    store, acts = world.over(counted), Acts()
    await world.executor(store).execute("k", acts.charge, 5)
    sizes = [len(write.value) for commit in counted.commits for write in commit.writes.values() if type(write) is Put]
    assert max(sizes) < 400
    with pytest.raises(interlock.LimitExceededError):
        await world.executor(store).execute("big", acts.charge, 5, payload="x" * (1 << 21))
    await abandon(store, "other", Acts.charge, claim_seconds=60)


def test_a_probe_that_takes_longer_than_a_claim_shortens_nobodys_claim() -> None:
    """The claim's time is counted from a reading after the answer; else it would end as it begins."""
    clock = Clock()
    store = interlock.testing.sync.open_store("memory://slow-probe", clock=clock)
    other = interlock.testing.sync.open_store("memory://slow-probe", clock=clock)
    executor = interlock.sync.IdempotentExecutor(store, claim_seconds=60)
    with pytest.raises(TimeoutError):
        executor.execute("k", time_out, payload=1)
    left: list[float | None] = []

    def verify(key: str) -> Any:
        clock.advance(600)
        return interlock.NOT_HAPPENED

    def look() -> str:
        effect = other.effects.get("k")
        assert effect is not None
        left.append(effect.seconds_left)
        return "done"

    assert executor.execute("k", look, payload=1, verify=verify) == "done"
    assert left == [60]
    store.close()
    other.close()
