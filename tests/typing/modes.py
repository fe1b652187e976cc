"""Isolation modes, registered merges, and functions that call each other in one transaction."""

import asyncio
from typing import Literal, assert_type

import interlock

MODES: tuple[interlock.Isolation, ...] = ("none", "snapshot", "optimistic", "serializable", "pessimistic")

store = interlock.open("memory://", agent="lab", isolation="snapshot", retry=interlock.RetryPolicy(max_seconds=60))
samples = store.resource("samples", int)
names = store.resource("names")


@samples.register_merge("gcd")
def gcd(stored: int | None, operand: int) -> int:
    """A merge of our own: applied to the newest value at the commit, without running the agent again."""
    a, b = stored or 0, operand
    while b:
        a, b = b, a % b
    return a


async def total(session: interlock.AgentSession[int]) -> int:
    """Called inside another transaction it reads that one's writes."""
    return sum([value async for _, value in session.scan()])


async def write_and_count(session: interlock.AgentSession[int], key: str, value: int) -> int:
    """A nested `run` joins its parent: one transaction, one commit."""
    await session.write(key, value)
    return await samples.run(total)


async def measure(mode: Literal["none", "snapshot", "optimistic", "serializable", "pessimistic"]) -> int:
    """The same function in any mode."""
    return await samples.run(write_and_count, f"in {mode}", 6, isolation=mode)


async def main() -> None:
    """Each mode in turn, then the merge, then an untyped resource."""
    async with store:
        for count, mode in enumerate(MODES, 1):
            assert await measure(mode) == 6 * count
        async with samples.session(isolation="serializable") as session:
            assert assert_type(session.isolation, interlock.Isolation) == "serializable"
            await session.merge("in none", 4, using="gcd")
        assert await samples.read("in none") == 2
        async with store.session() as session:
            await session.on(names).write(("anything", 1), {"goes": [1, "two", 3.0, None]})
        assert await names.read(("anything", 1)) == {"goes": [1, "two", 3.0, None]}


if __name__ == "__main__":
    asyncio.run(main())
