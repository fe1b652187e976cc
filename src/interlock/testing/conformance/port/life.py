"""Clock, capabilities, the blocking leaf, and closing."""

from __future__ import annotations

import pickle
import time

import pytest

from interlock.errors import UsageError
from interlock.model import Limits
from interlock.ports import Capability
from interlock.testing.conformance.world import EVERYTHING, World, in_both_worlds, key, new_transaction, put


@in_both_worlds
async def test_the_clock_never_runs_backwards(world: World) -> None:
    store = world.open()
    if await store.lacks(Capability.CLOCK, store.backend.now):
        return
    last = await store.backend.now()
    for number in range(20):
        reply = await store.commit({key("a"): put(number)}, durable=False)
        now = await store.backend.now()
        assert last <= reply.at <= now
        assert (await store.backend.read([key("a")])).at >= now
        last = now
    start = time.monotonic()
    first = await store.backend.now()
    while await store.backend.now() == first:
        assert time.monotonic() - start < 5.0, "the clock stands still"


@in_both_worlds
async def test_a_backend_declares_what_it_is(world: World) -> None:
    backend = world.open().backend
    assert isinstance(backend.capabilities, frozenset)
    assert all(isinstance(capability, Capability) for capability in backend.capabilities)
    assert isinstance(backend.limits, Limits)
    assert isinstance(backend.suspends, bool)
    assert isinstance(backend.blocks, bool)
    if world.name == "stepped":
        assert backend.suspends is False


@in_both_worlds
async def test_the_blocking_leaf_is_the_same_store(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})
    leaf = store.backend.blocking()
    if leaf.suspends:
        assert leaf is store.backend
        return
    reading = await leaf.read([key("a")])
    assert reading.entries == [await store.entry(key("a"))]
    await leaf.commit(await store.request({key("b"): put(2)}, snapshot=reading.token))
    assert await store.value(key("b")) == 2


@pytest.mark.parametrize("by_leaf", [False, True])
@in_both_worlds
async def test_a_backend_and_its_leaf_are_closed_together(world: World, by_leaf: bool) -> None:
    backend = world.open().backend
    leaf = backend.blocking()
    await backend.snapshot()
    await (leaf if by_leaf else backend).close()
    for each in (leaf, backend):
        with pytest.raises(UsageError):
            await each.snapshot()
        await each.close()


@in_both_worlds
async def test_a_shared_store_is_pickled_as_its_address(world: World) -> None:
    store = world.open()
    await store.commit({key("a"): put(1)})

    async def copied() -> None:
        copy = pickle.loads(pickle.dumps(store.backend))
        reading = await copy.read([key("a")])
        await copy.close()
        assert reading.entries == [await store.entry(key("a"))]

    if not await store.lacks(Capability.PROCESSES, copied):
        await copied()


@in_both_worlds
async def test_a_closed_backend_refuses_every_call(world: World) -> None:
    store = world.open()
    backend = store.backend
    token = (await store.commit({key("a"): put(1)})).token
    request = await store.request({key("a"): put(2)})
    await backend.close()
    await backend.close()
    for use in (
        backend.snapshot,
        lambda: backend.read([key("a")]),
        lambda: backend.scan(EVERYTHING),
        lambda: backend.commit(request),
        lambda: backend.outcome(new_transaction(), fence=True),
        lambda: backend.changes(None),
        lambda: backend.wait(token, 0.0),
        lambda: backend.history(key("a")),
        backend.now,
        lambda: backend.compact(0.0),
    ):
        with pytest.raises(UsageError):
            await use()


@in_both_worlds
async def test_a_backend_may_be_closed_before_it_is_used(world: World) -> None:
    backend = world.open().backend
    await backend.close()
    with pytest.raises(UsageError):
        await backend.snapshot()


@in_both_worlds
async def test_stores_do_not_share_anything(world: World) -> None:
    store, other = world.open(), world.open()
    await store.commit({key("a"): put(1)})
    assert await other.entry(key("a")) is None
    assert await other.feed() == []
    await other.backend.close()
    assert await store.value(key("a")) == 1
