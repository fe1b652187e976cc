"""Several agents spend one budget: `run`, a function's own keywords through `partial`, what a run says of itself."""

import asyncio
from functools import partial
from typing import assert_type

import interlock


class TooExpensive(Exception):
    """The budget does not allow it."""


async def spend(session: interlock.AgentSession[int], quarter: str, *, cents: int) -> int:
    """Take an amount out of a quarter's budget; returns what is left."""
    left = assert_type(await session.read(quarter, 0), int)
    if left < cents:
        raise TooExpensive(f"{left} left in {quarter}")
    await session.write(quarter, left - cents)
    return left - cents


async def fill(session: interlock.AgentSession[int], quarter: str, cents: int = 1000) -> None:
    """Set a quarter's budget."""
    await session.write(quarter, cents)


async def main() -> None:
    """Fill, spend from two agents at once, and look at the result."""
    async with interlock.open("memory://", agent="treasurer") as store:
        budget = assert_type(store.resource("budget", int), interlock.SharedResource[int])
        assert_type(await budget.run(fill, "q4", 500), None)
        await asyncio.gather(
            budget.run(partial(spend, cents=30), "q4", agent="researcher"),
            budget.run(partial(spend, cents=40), "q4", agent="writer", timeout_seconds=30),
        )

        done = await budget.run_detailed(partial(spend, cents=10), "q4", idempotency_key="invoice-7")
        assert_type(done, interlock.Committed[int])
        again = await budget.run_detailed(partial(spend, cents=10), "q4", idempotency_key="invoice-7")
        assert (done.value, done.replayed) == (420, False)
        assert (again.value, again.replayed, again.attempts) == (420, True, 0)
        try:
            await budget.run(partial(spend, cents=9_999), "q4", retry=interlock.RetryPolicy(max_attempts=3))
        except TooExpensive as error:
            assert "420 left" in str(error)
        else:
            raise AssertionError("more was spent than there was")
        assert assert_type(await budget.read("q4"), int | None) == 420


if __name__ == "__main__":
    asyncio.run(main())
