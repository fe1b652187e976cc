"""Cases of kind clock: no clock but the store's decides anything, and none decides an order."""

from __future__ import annotations

from typing import Any

import pytest

from cases.support import World, everywhere, put, rows
from interlock import LeaseUnavailableError
from interlock.core.engine import Engine
from interlock.layers.listing import list_leases


def shift(store: Any, seconds: float) -> None:
    """Let a process's wall clock be wrong by so much."""
    engine: Engine = store._engine
    real = engine.runtime

    class Shifted:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def time(self) -> float:
            return real.time() + seconds

    engine.runtime = Shifted()  # type: ignore[assignment]


@everywhere
async def test_R069_expiry_is_judged_by_the_store_s_clock_alone(world: World) -> None:
    behind, ahead = world.open(agent="behind"), world.open(agent="ahead")
    shift(behind, -60)
    shift(ahead, +60)
    for holder, other in ((behind, ahead), (ahead, behind)):
        async with holder.lease("job", ttl_seconds=20) as lease:
            with pytest.raises(LeaseUnavailableError):
                await other.lease("job").__aenter__()
            (found,) = await list_leases(other._engine)
            assert found.seconds_left is not None
            assert 0 < found.seconds_left <= 20
            await other.resource("stock").run(put, "a", 1, fence=lease)


@everywhere
async def test_R069_a_clock_that_jumps_makes_no_second_holder(world: World) -> None:
    store, other = world.open(), world.open()
    tokens = []
    for jump in (3600.0, -7200.0, 86_400.0):
        async with store.lease("job", ttl_seconds=20) as lease:
            shift(store, jump)
            shift(other, -jump)
            with pytest.raises(LeaseUnavailableError):
                await other.lease("job").__aenter__()
            await lease.check()
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


@everywhere
async def test_R071_what_is_latest_follows_the_order_and_not_the_clock(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    await stock.run(put, "a", "v1")
    shift(store, -3600)
    await stock.run(put, "a", "v2")
    shift(store, -3600)
    await stock.run(put, "a", "v3")
    assert await stock.read("a") == "v3"
    assert [entry.value for entry in await rows(stock.history("a"))] == ["v3", "v2", "v1"]
    assert [change.writes["stock", "a"].value for change in await rows(store.log.changes())] == ["v1", "v2", "v3"]
