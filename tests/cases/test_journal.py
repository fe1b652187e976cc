"""Cases of effect journals: workers that die, hang or are late; what is recorded when a run is aborted."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from cases.support import World, awaited, between_processes, everywhere
from interlock import (
    CANNOT_TELL,
    NOT_HAPPENED,
    EffectInProgressError,
    EffectStatus,
    EffectUnknownError,
    Happened,
)
from layers.effects_support import Acts, abandon, say
from layers.effects_workers import CLAIM_SECONDS, EffectWorker, happened


@between_processes
async def test_R038_a_worker_dies_between_claim_and_finish(world: World, tmp_path: Path) -> None:
    store, acts = world.open(), Acts()
    worker = EffectWorker(
        "execute", url=world.place, world=str(tmp_path / "world"), key="K", at="after the claim", by="SIGKILL"
    )
    worker.ready()
    worker.go()
    assert worker.process.wait() == -signal.SIGKILL
    worker.end()
    impatient = world.executor(store, wait_seconds=0.001)
    effect = await store.effects.get("K")
    while effect.status is EffectStatus.EXECUTING:  # before the end of its claim: refused, with the time that is left
        left = None
        try:
            await impatient.execute("K", acts.charge, 5, payload="K", verify=say(NOT_HAPPENED))
        except EffectInProgressError as error:
            left = error.seconds_left
        assert left is None or 0 <= left <= CLAIM_SECONDS
        effect = await store.effects.get("K")
    result = await world.executor(store).execute("K", acts.charge, 5, payload="K", verify=say(NOT_HAPPENED))
    assert result == {"charged": 5, "key": "K"}
    assert acts.calls == [5]
    assert happened(tmp_path / "world") == []


@everywhere
async def test_R040_the_claim_of_a_running_effect_expires(world: World) -> None:
    store, acts = world.open(), Acts()
    await abandon(store, "K", Acts.charge, claim_seconds=0.02)
    executor = world.executor(store)
    for _ in range(3):
        with pytest.raises(EffectUnknownError) as caught:
            await executor.execute("K", acts.charge, 5, payload=0)
        assert "reconcile" in caught.value.explain()
    with pytest.raises(EffectUnknownError):
        await executor.execute("K", acts.charge, 5, payload=0, verify=say(CANNOT_TELL))
    assert acts.calls == []
    await store.effects.reconcile("K", verify=say(Happened("paid")))
    assert await executor.execute("K", acts.charge, 5, payload=0) == "paid"
    assert acts.calls == []


@everywhere
async def test_R152_a_slow_worker_settles_what_another_has_claimed(world: World) -> None:
    store, acts = world.open(), Acts()
    journal = getattr(store, "inner", store)._journal
    late = await abandon(store, "K", Acts.charge, claim_seconds=0.02)
    executor = world.executor(store)

    async def meanwhile(amount: int) -> str:
        assert await journal.settle(late, EffectStatus.SUCCEEDED, result=b"mc") is None, "settled under another's claim"
        assert not await journal.still_holds(late)
        return f"charged {amount} by the second"

    assert await executor.execute("K", meanwhile, 5, payload=0, verify=say(NOT_HAPPENED)) == "charged 5 by the second"
    assert await journal.settle(late, EffectStatus.FAILED, error="late") is None
    assert (await store.effects.get("K")).result == "charged 5 by the second"
    assert acts.calls == []


@between_processes
async def test_R155_a_crash_after_the_outside_call_but_before_the_record(world: World, tmp_path: Path) -> None:
    store, acts, outside = world.open(), Acts(), str(tmp_path / "world")
    worker = EffectWorker("execute", url=world.place, world=outside, key="K", at="after the effect", by="SIGKILL")
    worker.ready()
    worker.go()
    assert worker.process.wait() == -signal.SIGKILL
    worker.end()
    assert happened(outside) == ["K"]
    assert (await store.effects.get("K")).status in (EffectStatus.EXECUTING, EffectStatus.UNKNOWN)
    executor = world.executor(store)
    for _ in range(2):
        with pytest.raises(EffectUnknownError):
            await executor.execute("K", acts.charge, 5, payload="K")
    assert (await store.effects.reconcile("K", verify=say(CANNOT_TELL))).unknown == [("K", "")]
    assert (await store.effects.reconcile("K", verify=say(Happened("done K")))).happened == [("K", "")]
    assert await executor.execute("K", acts.charge, 5, payload="K") == "done K"
    assert (happened(outside), acts.calls) == (["K"], [])


@awaited
async def test_R156_a_run_is_aborted_with_three_effects_in_flight(world: World) -> None:
    store, acts = world.open(), Acts()
    acts.gate = asyncio.Event()
    executor = world.executor(store)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(executor.execute(f"K{number}", acts.charge, number))
            while len(acts.calls) < 3:
                await asyncio.sleep(0)
            raise RuntimeError("the plan is wrong")

    with pytest.raises(ExceptionGroup):
        await run()
    effects = await store.effects.list()
    assert [(each.status, each.error) for each in effects] == [(EffectStatus.UNKNOWN, "CancelledError")] * 3
    assert all(each.updated_at >= each.created_at for each in effects)
    assert await store.effects.list(EffectStatus.EXECUTING) == []
    await abandon(store, "dead", Acts.charge, claim_seconds=0.001)

    async def listed() -> Any:
        return [each.key for each in await store.effects.list(EffectStatus.EXECUTING)]

    while await listed():
        await asyncio.sleep(0)
    dead = await store.effects.get("dead")
    assert dead.status is EffectStatus.UNKNOWN
    assert "neither recorded its end" in dead.error
