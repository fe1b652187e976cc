"""Effects between processes: one execution, kill -9 at every boundary, workers that are stopped past their claim."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cases.support import World, between_processes
from interlock import (
    NOT_HAPPENED,
    EffectFailedError,
    EffectStatus,
    EffectUnknownError,
    Happened,
    IdempotencyMismatchError,
)
from layers.effects_workers import BOUNDARIES, LONG_CLAIM_SECONDS, EffectWorker, happen, happened
from soak import usual


def look(world: str | Path) -> Any:
    """A probe that looks at the outside world."""

    async def verify(key: str) -> Any:
        return Happened(f"done {key}") if key in happened(world) else NOT_HAPPENED

    return verify


async def act(world: str, what: str) -> str:
    """The same effect as the workers'."""
    return happen(world, what)


@between_processes
async def test_fifty_calls_of_two_processes_one_execution(world: World, tmp_path: Path) -> None:
    outside = str(tmp_path / "world")
    await world.open().resource("r").read("k")
    workers = [EffectWorker("call_at_once", url=world.place, world=outside, key="K", calls=25) for _ in range(2)]
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.go()
    assert [result for worker in workers for result in worker.result()] == ["done K"] * 50
    assert happened(outside) == ["K"]


@between_processes
async def test_killed_at_every_boundary(world: World, tmp_path: Path) -> None:
    """W16: no effect without an intent, none done twice, what is not known is said to be unknown."""
    outside = str(tmp_path / "world")
    store = world.open()
    executor = world.executor(store)
    workers = {
        at: EffectWorker("execute", url=world.place, world=outside, key=at, at=at, by="SIGKILL") for at in BOUNDARIES
    }
    for at, worker in workers.items():
        worker.ready()
        worker.go()
        assert worker.process.wait() == -signal.SIGKILL
        worker.end()
        done, effect = at in happened(outside), await store.effects.get(at)
        assert done == (BOUNDARIES.index(at) >= 3)
        if at == "before the claim":
            assert effect is None
            assert await executor.execute(at, act, outside, at, payload=at) == f"done {at}"
        elif at == "after the record":
            assert effect.status is EffectStatus.SUCCEEDED
            assert await executor.execute(at, act, outside, at, payload=at) == f"done {at}"
        else:
            assert effect.status in (EffectStatus.EXECUTING, EffectStatus.UNKNOWN)
            with pytest.raises(EffectUnknownError):
                await executor.execute(at, act, outside, at, payload=at)
            assert (await store.effects.get(at)).status is EffectStatus.UNKNOWN
            assert (at in happened(outside)) == done
            assert await executor.execute(at, act, outside, at, payload=at, verify=look(outside)) == f"done {at}"
        assert await executor.execute(at, act, outside, at, payload=at) == f"done {at}"
        with pytest.raises(IdempotencyMismatchError):
            await executor.execute(at, act, outside, at, payload="another")
    assert sorted(happened(outside)) == sorted(BOUNDARIES)


@between_processes
async def test_killed_at_random(world: World, tmp_path: Path) -> None:
    """W14 and W16: acknowledged effects are kept, and after reconciling everything each is done once."""
    outside, seed = str(tmp_path / "world"), random.randrange(1 << 32)
    dice = random.Random(seed)
    store = world.open()
    executor = world.executor(store)
    print("seed", seed)
    acknowledged: list[str] = []
    for number in range(usual(6, 2)):
        worker = EffectWorker("execute_until_killed", url=world.place, world=outside, prefix=f"{number}")
        worker.ready()
        worker.go()
        acknowledged += [worker.line() for _ in range(dice.randrange(1, 12))]
        worker.process.kill()
        acknowledged += [line for line in worker.rest() if line.endswith(tuple("0123456789"))]
        worker.end()
    for key in acknowledged:
        assert await executor.execute(key, act, outside, key, payload=key) == f"done {key}"
    lost = {each.key for each in await store.effects.list()} - set(acknowledged)
    for key in lost:
        assert await executor.execute(key, act, outside, key, payload=key, verify=look(outside)) == f"done {key}"
    done = happened(outside)
    assert sorted(done) == sorted({*acknowledged, *lost})
    assert {each.status for each in await store.effects.list()} == {EffectStatus.SUCCEEDED}


@between_processes
async def test_reconcile_after_a_kill(world: World, tmp_path: Path) -> None:
    outside = str(tmp_path / "world")
    store = world.open()
    for at in ("after the effect", "before the effect"):
        worker = EffectWorker("execute", url=world.place, world=outside, key=at, at=at, by="SIGKILL")
        worker.ready()
        worker.go()
        worker.process.wait()
        worker.end()
        while (await store.effects.get(at)).status is EffectStatus.EXECUTING:
            pass
        report = await store.effects.reconcile(at, verify=look(outside))
        if at == "after the effect":
            assert report.happened == [(at, "")]
        else:
            assert report.not_happened == [(at, "")]
        assert (await store.effects.reconcile()).unknown == []
    assert happened(outside) == ["after the effect"]


@between_processes
async def test_a_worker_that_was_stopped_past_its_claim(world: World, tmp_path: Path) -> None:
    """R152: stopped before the act it does not begin, stopped after it it cannot settle; the others' word stands."""
    outside = str(tmp_path / "world")
    store = world.open()
    executor = world.executor(store)
    for at in ("after the claim", "after the effect"):
        worker = EffectWorker("execute", url=world.place, world=outside, key=at, at=at, by="SIGSTOP")
        worker.ready()
        worker.go()
        os.waitpid(worker.process.pid, os.WUNTRACED)
        result = await executor.execute(at, act, outside, at, payload=at, verify=look(outside))
        assert result == f"done {at}"
        assert happened(outside).count(at) == 1
        worker.process.send_signal(signal.SIGCONT)
        assert worker.result() == (f"done {at}" if at == "after the claim" else "effect_unknown")
        assert happened(outside).count(at) == 1
        effect = await store.effects.get(at)
        assert (effect.status, effect.result) == (EffectStatus.SUCCEEDED, f"done {at}")


@between_processes
async def test_a_long_act_keeps_its_claim(world: World, tmp_path: Path) -> None:
    outside = str(tmp_path / "world")
    store = world.open()
    worker = EffectWorker("execute_long", url=world.place, world=outside, key="K")
    worker.ready()
    worker.go()
    assert worker.line() == "executing"
    until = time.monotonic() + 2 * LONG_CLAIM_SECONDS
    while time.monotonic() < until:
        effect = await store.effects.get("K")
        assert effect.status is EffectStatus.EXECUTING
        assert 0 < effect.seconds_left <= LONG_CLAIM_SECONDS
        said, _, _ = select.select([worker.process.stdout], [], [], 0.02)
        assert not said, "it has ended, or been told that it is no longer its own"
    waiting = world.thread(lambda: world.executor(store).execute("K", act, outside, "K", payload="K"))
    worker.go()
    assert worker.result() == "done K"
    assert waiting.result() == "done K"
    assert happened(outside) == ["K"]


@between_processes
async def test_several_dispatchers_one_of_them_killed(world: World, tmp_path: Path) -> None:
    outside = str(tmp_path / "world")
    store = world.open()
    async with store.session() as session:
        for number in range(60):
            await session.stage("first", f"first {number}", key=f"{number:02}")
            await session.stage("second", f"second {number}", key=f"{number:02}")
    workers = [EffectWorker("dispatch", url=world.place, world=outside, kill_after=after) for after in (0, 0, 7)]
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.go()
    found = [worker.result() for worker in workers[:2]]
    workers[2].process.wait()
    workers[2].end()
    killed = workers[2].process.returncode == -signal.SIGKILL
    open_ones = [each for each in await store.effects.list() if each.status is not EffectStatus.SUCCEEDED]
    assert len(open_ones) <= (2 if killed else 0)
    assert sum(each["succeeded"] for each in found) + len(open_ones) >= 112
    done = happened(outside)
    assert len(set(done)) == len(done)
    for number in range(60):
        mine = [line for line in done if line.endswith(f" {number}")]
        assert mine == [f"first {number}", f"second {number}"][: len(mine)]


@between_processes
async def test_whoever_waits_for_another_process_hears_of_its_failure(world: World, tmp_path: Path) -> None:
    store, other = world.open(), world.open()
    await other.effects.get("K")
    calls: list[int] = []

    async def fail() -> None:
        calls.append(1)
        waits = other.inner._engine.backend if hasattr(other, "inner") else other._engine.backend
        waiting_for = waits.wait

        def begin_waiting() -> Any:
            return world.executor(other).execute("K", fail, payload=0)

        async def wait(*args: Any) -> Any:
            started.append(1)
            return await waiting_for(*args)

        started: list[int] = []
        waits.wait = wait
        threads.append(world.thread(begin_waiting))
        while not started:
            pass
        raise ValueError("declined")

    threads: list[Any] = []
    with pytest.raises(ValueError, match="declined"):
        await world.executor(store).execute("K", fail, payload=0)
    with pytest.raises(EffectFailedError, match="declined"):
        threads[0].result()
    assert calls == [1]
