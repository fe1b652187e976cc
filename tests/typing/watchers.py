"""Leases, locks and pessimistic sessions: one watcher at a time, and two that move the same stock."""

import asyncio
from typing import assert_type

import interlock

store = interlock.open("memory://", agent="watcher")
stock = store.resource("stock", int)


async def note(session: interlock.AgentSession[int], count: int) -> int:
    """Under a fence: refused once the lease has passed to somebody else."""
    await session.write("noted", count)
    return count


async def watch(count: int) -> interlock.FencingToken:
    """One at a time; whoever comes meanwhile is told who holds it."""
    async with store.lease("watch", ttl_seconds=10, wait_seconds=5) as lease:
        assert_type(lease, interlock.Lease)
        assert assert_type(await stock.run(note, count, fence=lease), int) == count
        async with stock.session() as session:
            session.fence(lease)
            assert await session.read("noted") == count
        await lease.check()
        assert assert_type(lease.lost, bool) is False
        return assert_type(lease.token, interlock.FencingToken)


async def move(session: interlock.AgentSession[int], source: str, target: str) -> None:
    """Takes its locks in the order of its steps."""
    await session.update(source, lambda have: have - 1, 10)
    await session.update(target, lambda have: have + 1, 10)


async def main() -> None:
    """Tokens grow; two that cross both get through; a lock keeps others out for a while."""
    async with store:
        first, second = await watch(1), await watch(2)
        assert first < second
        await asyncio.gather(
            stock.run(move, "left", "right", isolation="pessimistic", lock_timeout_seconds=30),
            stock.run(move, "right", "left", isolation="pessimistic", lock_timeout_seconds=30),
        )
        assert (await stock.read("left"), await stock.read("right")) == (10, 10)
        async with stock.lock("left", "right", shared=True) as lock:
            assert_type(lock, interlock.Lock)
            try:
                async with stock.lock("left", wait_seconds=0):
                    raise AssertionError
            except interlock.LockTimeoutError as error:
                assert assert_type(error.holders, tuple[str, ...]) == ("watcher",)


if __name__ == "__main__":
    asyncio.run(main())
