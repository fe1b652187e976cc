"""A reader that follows what others commit, and asks what became of a transaction."""

import asyncio
from typing import assert_type

import interlock


async def bump(session: interlock.AgentSession[int], key: str) -> int:
    """Count up."""
    return await session.update(key, lambda count: count + 1, 0)


async def follow(store: interlock.Store, since: interlock.Cursor, wanted: int) -> list[interlock.Change]:
    """The next changes after a cursor, waiting for those that are still to come."""
    seen: list[interlock.Change] = []
    async for change in store.log.changes(since, follow=True):
        seen.append(assert_type(change, interlock.Change))
        if len(seen) == wanted:
            break
    return seen


async def main() -> None:
    """Three commits, read once from the beginning and once as they come."""
    async with interlock.open("memory://") as store:
        counts = store.resource("counts", int)
        first = await counts.run_detailed(bump, "a", agent="ada", run_id="run-1")
        head = assert_type(await store.log.head(), interlock.Cursor)
        assert not await store.log.wait(head, timeout_seconds=0.01)

        reader = asyncio.create_task(follow(store, head, 2))
        await counts.run(bump, "a", agent="bob")
        await counts.run(bump, "b", agent="bob")
        seen = await reader
        assert [change.agent for change in seen] == ["bob", "bob"]
        assert [set(change.writes) for change in seen] == [{("counts", "a")}, {("counts", "b")}]

        whole = [change async for change in store.log.changes()]
        assert whole[0].transaction_id == first.transaction_id
        found = assert_type(await store.log.get(first.transaction_id), interlock.Change | None)
        assert found is not None
        assert found.run_id == "run-1"
        assert found.at.tzinfo is not None

        outcome = assert_type(await store.outcome(first.transaction_id), interlock.Outcome)
        assert outcome is interlock.Outcome.COMMITTED
        await store.compact()


if __name__ == "__main__":
    asyncio.run(main())
