"""Cancelled or interrupted at any moment: before the act the key is free, during it unknown, after it settled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio

import interlock
from cases.cancelling import at_every_suspension
from cases.support import World, awaited, stepped
from interlock import EffectStatus, EffectUnknownError, Happened
from layers.effects_support import Acts, abandon, say


@awaited
async def test_cancelled_at_each_await(world: World) -> None:
    """R046: never parked in silence, and what the record says is what has happened."""
    store = world.open()
    executor = world.executor(store, claim_seconds=600)
    await store.effects.get("warm")
    begun: set[str] = set()
    done: set[str] = set()
    seen: set[Any] = set()

    async def act(key: str) -> str:
        begun.add(key)
        for _ in range(3):
            await asyncio.sleep(0)
        done.add(key)
        return key

    async for at, cancelled in at_every_suspension(lambda at: executor.execute(f"k{at}", act, f"k{at}")):
        key = f"k{at}"
        effect = await store.effects.get(key)
        status = None if effect is None else effect.status
        seen.add(status)
        if key not in begun:
            assert cancelled
            assert status is None
            assert await executor.execute(key, act, key) == key
        elif key not in done:
            assert cancelled
            assert status is EffectStatus.UNKNOWN
            with pytest.raises(EffectUnknownError):
                await executor.execute(key, act, key)
        else:
            assert status is EffectStatus.SUCCEEDED
            assert await executor.execute(key, act, key) == key
    assert EffectStatus.SUCCEEDED in seen
    assert world.engine == "memory" or None in seen
    assert world.is_server or EffectStatus.UNKNOWN in seen


@awaited
async def test_cancelled_while_waiting_for_another(world: World) -> None:
    store = world.open()
    await abandon(store, "k", Acts.charge, claim_seconds=600)
    acts = Acts()
    call = asyncio.create_task(world.executor(store).execute("k", acts.charge, 5, payload=0))
    while not store._journal.flights._flights:
        await asyncio.sleep(0)
    rider = asyncio.create_task(world.executor(store).execute("k", acts.charge, 5, payload=0))
    for _ in range(10):
        await asyncio.sleep(0)
    for each in (rider, call):
        each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await each
    assert not store._journal.flights._flights
    assert (await store.effects.get("k")).status is EffectStatus.EXECUTING
    assert acts.calls == []


@awaited
async def test_whoever_rides_takes_over_after_a_cancellation(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    acts.gate = asyncio.Event()
    first = asyncio.create_task(executor.execute("k", acts.charge, 5))
    while not acts.calls:
        await asyncio.sleep(0)
    verified = asyncio.create_task(executor.execute("k", acts.charge, 5, verify=say(Happened("seen"))))
    told = asyncio.create_task(executor.execute("k", acts.charge, 5))
    for _ in range(10):
        await asyncio.sleep(0)
    first.cancel()
    assert await verified == "seen"
    with pytest.raises((EffectUnknownError, asyncio.CancelledError)) as caught:
        await told
    assert caught.type is EffectUnknownError
    assert acts.calls == [5]


@stepped
async def test_an_interrupt_during_the_act_is_unknown(world: World) -> None:
    store, acts = world.open(), Acts()
    executor = world.executor(store)
    for error in (KeyboardInterrupt(), SystemExit()):
        acts.raises = [error]
        key = type(error).__name__
        with pytest.raises(type(error)):
            await executor.execute(key, acts.charge, 5)
        effect = await store.effects.get(key)
        assert (effect.status, effect.error) == (EffectStatus.UNKNOWN, key)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///trio.db"])
def test_cancelled_with_trio(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a cancelled scope ends every further wait, the record is written all the same."""
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with interlock.open(url, agent="tester") as store:
            executor = interlock.IdempotentExecutor(store)

            async def act(ends: bool) -> str:
                if not ends:
                    scope.cancel()
                await (trio.lowlevel.checkpoint() if ends else trio.sleep_forever())
                return "done"

            with trio.CancelScope() as scope:
                await executor.execute("during", act, False)
            assert scope.cancelled_caught
            during = await store.effects.get("during")
            assert during is not None
            assert during.status is EffectStatus.UNKNOWN
            with trio.CancelScope() as scope:
                scope.cancel()
                await executor.execute("before", act, True)
            before = await store.effects.get("before")
            assert before is None or before.status is not EffectStatus.EXECUTING
            assert await executor.execute("k", act, True) == "done"

            results: list[str] = []

            async def call() -> None:
                results.append(await executor.execute("together", act, True))

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(call)
            assert results == ["done"] * 5

    trio.run(main)
