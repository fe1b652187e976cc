"""A poll that many agents answer at once: merges never conflict; bulk changes; removal by `DELETE`."""

import asyncio
from decimal import Decimal
from typing import assert_type

import interlock
from interlock import DELETE


async def vote(session: interlock.AgentSession[int], choice: str) -> None:
    """One vote more for a choice; the engine adds, nobody reads."""
    await session.add(("votes", choice), 1)
    await session.add("ballots", -1, floor=0)


def forget_losers(key: interlock.Key, votes: int) -> int | interlock.Delete:
    """What `update_where` does with each key."""
    return votes if votes > 1 else DELETE


async def main() -> None:
    """Vote, then count, then clean up."""
    async with interlock.open("memory://", agent="poll") as store:
        counts = store.resource("counts", int)
        voters = store.resource("voters", set[str])
        remarks = store.resource("remarks", list[str])
        prices = store.resource("prices", Decimal)

        async with counts.session() as session:
            await session.write("ballots", 5)
        choices = ["tea", "tea", "coffee", "tea", "coffee", "water"]
        results = await asyncio.gather(
            *(counts.run(vote, choice, agent=f"guest-{n}") for n, choice in enumerate(choices)), return_exceptions=True
        )
        assert [type(result) for result in results].count(interlock.InvariantError) == 1

        async with store.session() as session:
            await session.on(voters).set_add("tea", "ada")
            await session.on(voters).set_remove("tea", "bob")
            await session.on(remarks).append(("log", 1), "too hot")
            await session.on(prices).add("tea", Decimal("0.10"), ceiling=Decimal(5))
            await session.on(prices).maximum("dearest", Decimal("2.50"))
            await session.on(prices).minimum("cheapest", Decimal("0.10"))
        assert await voters.read("tea") == {"ada"}
        assert assert_type(await remarks.read(("log", 1), None), list[str] | None) == ["too hot"]

        async with counts.session() as session:
            found = assert_type(await session.read_many(["ballots", ("votes", "tea")]), dict[interlock.Key, int])
            assert found["ballots"] == 0
            kept = [(key, votes) async for key, votes in session.scan(("votes",), limit=10, reverse=True)]
            assert assert_type(kept, list[tuple[interlock.Key, int]])
            assert assert_type(await session.update_where(forget_losers, ("votes",)), int) >= 0
            await session.clear(start="a", stop="c")
        assert await counts.read("ballots") is None


if __name__ == "__main__":
    asyncio.run(main())
