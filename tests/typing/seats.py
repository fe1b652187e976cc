"""Booking a seat with the body in place (`attempts`), as a decorated function, and in a savepoint that may fail."""

import asyncio
from typing import assert_type

import interlock

store = interlock.open("memory://", agent="desk")
seats = store.resource("seats", str)


class Taken(Exception):
    """Somebody sits there."""


async def in_place(guest: str) -> int:
    """Book the first free seat of a row; the body may run several times."""
    number = 0
    async for attempt in seats.attempts(agent=guest, isolation="serializable"):
        async with attempt, attempt.session() as session:
            assert_type(session, interlock.AgentSession[str])
            number = 1
            while await session.exists(("row", number)):
                number += 1
            await session.write(("row", number), guest)
    return number


@seats.transactional(agent="phone", retry=interlock.RetryPolicy(max_attempts=50))
async def by_phone(session: interlock.AgentSession[str], number: int, *, guest: str) -> str:
    """Book this very seat, or none."""
    if (holder := await session.read(("row", number))) is not None:
        raise Taken(holder)
    await session.write(("row", number), guest)
    return guest


async def with_second_choice(session: interlock.AgentSession[str], guest: str) -> None:
    """Try the front row, and take the gallery where the front row has been refused."""
    try:
        with session.savepoint():
            await session.write(("front", 1), guest)
            raise Taken("reserved for the press")
    except Taken:
        await session.write(("gallery", 1), guest)


async def main() -> None:
    """Two guests book at once; then by phone; then with a second choice."""
    async with store:
        numbers = await asyncio.gather(in_place("ada"), in_place("grace"))
        assert sorted(numbers) == [1, 2]
        assert assert_type(await by_phone(3, guest="edsger"), str) == "edsger"
        try:
            await by_phone(3, guest="tony")
        except Taken as taken:
            assert str(taken) == "edsger"
        else:
            raise AssertionError("a seat was sold twice")
        await seats.run(with_second_choice, "barbara")
        assert [key async for key, _ in seats.scan()] == [("gallery", 1), ("row", 1), ("row", 2), ("row", 3)]


if __name__ == "__main__":
    asyncio.run(main())
