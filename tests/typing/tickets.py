"""Tickets as msgspec structs, people as dataclasses: `begin`, `commit`, `rollback` where there is no `with`."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import assert_type

import msgspec

import interlock


class Ticket(msgspec.Struct, frozen=True):
    """What somebody wants done."""

    title: str
    owner: str | None = None
    votes: int = 0


@dataclass(frozen=True)
class Person:
    """Who may do it."""

    name: str
    skills: tuple[str, ...] = ()
    open_tickets: list[str] = field(default_factory=list[str])


class Hooks:
    """A framework that calls back before and after a tool, as many do."""

    def __init__(self, tickets: interlock.SharedResource[Ticket]) -> None:
        self.tickets = tickets
        self.session: interlock.AgentSession[Ticket] | None = None

    async def before_tool(self, agent: str) -> None:
        """Open the transaction that the tool works in."""
        self.session = await self.tickets.begin(agent=agent)

    async def after_tool(self, failed: bool) -> str | None:
        """Close it; returns the cursor of what was committed."""
        session = self.session
        assert session is not None
        if failed:
            await session.rollback()
            return None
        done = assert_type(await session.commit(), interlock.Committed[None])
        return done.cursor


async def assign(
    session: interlock.AgentSession[Ticket], people: interlock.SharedResource[Person], number: int, name: str
) -> Ticket:
    """Give a ticket to a person; both resources are committed together."""
    person = assert_type(await session.on(people).expect(name), Person)
    await session.on(people).write(name, replace(person, open_tickets=[*person.open_tickets, str(number)]))
    ticket = msgspec.structs.replace(await session.expect(number_key(number)), owner=name)
    await session.write(number_key(number), ticket)
    return ticket


def number_key(number: int) -> interlock.Key:
    """Tickets sort by number, not by text."""
    return ("ticket", number)


async def main() -> None:
    """Through the hooks, then over two resources, then looking at versions."""
    async with interlock.open("memory://", agent="board") as store:
        tickets, people = store.resource("tickets", Ticket), store.resource("people", Person)
        hooks = Hooks(tickets)
        for failed in (True, False):
            await hooks.before_tool("triage")
            assert hooks.session is not None
            await hooks.session.write(number_key(1), Ticket("broken build"))
            assert (await hooks.after_tool(failed) is None) == failed

        async with people.session() as session:
            await session.write("ada", Person("ada", ("python",)))
        ticket = await tickets.run(assign, people, 1, "ada")
        assert assert_type(ticket.owner, str | None) == "ada"

        entry = assert_type(await tickets.entry(number_key(1)), interlock.Entry[Ticket] | None)
        assert entry is not None
        assert entry.agent == "board"
        versions = [version.value async for version in tickets.history(number_key(1))]
        assert [value and value.owner for value in versions] == ["ada", None]


if __name__ == "__main__":
    asyncio.run(main())
