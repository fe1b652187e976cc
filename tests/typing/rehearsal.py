"""A test of an agent, as users write them: a store of its own, lost races, lost replies, and a clock."""

import asyncio
from typing import assert_type

import interlock
from interlock import sync as il
from interlock import testing
from interlock.testing import sync as sync_testing


async def bump(session: interlock.AgentSession[int], key: str) -> int:
    """Count up."""
    return await session.update(key, lambda count: count + 1, 0)


def bump_now(session: il.AgentSession[int], key: str) -> int:
    """Count up, in synchronous code."""
    return session.update(key, lambda count: count + 1, 0)


async def main() -> None:
    """What happens to a run that loses twice and then loses its reply."""
    clock = testing.Clock(seed=7)
    async with assert_type(testing.open_store(clock=clock, agent="ada"), interlock.Store) as store:
        counts = store.resource("counts", int)
        with testing.conflicts(store, times=2, key="a") as lost, testing.lost_replies(store):
            done = await counts.run_detailed(bump, "a")
        assert (done.value, done.attempts) == (1, 3)
        assert assert_type(lost.transaction_ids, list[str])
        clock.advance(60)
        assert [change.agent for change in assert_type(await testing.commits(store), list[interlock.Change])] == ["ada"]


def main_now() -> None:
    """The same in synchronous code."""
    with assert_type(sync_testing.open_store(), il.Store) as store:
        counts = store.resource("counts", int)
        with sync_testing.conflicts(store), sync_testing.lost_replies(store, landed=False):
            assert counts.run(bump_now, "a") == 1
        assert len(assert_type(sync_testing.commits(store), list[interlock.Change])) == 1


if __name__ == "__main__":
    asyncio.run(main())
    main_now()
