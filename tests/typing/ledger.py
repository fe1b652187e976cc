"""Accounts as pydantic models: an isolation floor, and an invariant over all of them that every commit has to keep."""

import asyncio
from functools import partial
from typing import assert_type

from pydantic import BaseModel

import interlock


class Account(BaseModel):
    """Whose money it is, and how much."""

    owner: str
    cents: int


store = interlock.open("memory://", agent="teller")
accounts = store.resource("accounts", Account)
accounts.require(isolation="serializable")


@accounts.invariant("nobody is overdrawn")
async def solvent(view: interlock.AgentView[Account]) -> bool:
    """Reads like a session, and is validated like one."""
    async for _, account in view.scan():
        if account.cents < 0:
            return False
    return True


def plus(cents: int, account: Account) -> Account:
    """The account with an amount added; values that were read are never changed."""
    return account.model_copy(update={"cents": account.cents + cents})


async def open_account(session: interlock.AgentSession[Account], owner: str, cents: int) -> None:
    """A new account."""
    await session.write(owner, Account(owner=owner, cents=cents))


async def transfer(session: interlock.AgentSession[Account], source: str, target: str, cents: int) -> Account:
    """Move an amount; returns the account that it was taken from."""
    await session.update(target, partial(plus, cents))
    return assert_type(await session.update(source, partial(plus, -cents)), Account)


async def main() -> None:
    """A transfer that holds, one that the invariant refuses, one that is too weakly isolated."""
    async with store:
        await accounts.run(open_account, "ada", 100)
        await accounts.run(open_account, "bob", 0)
        left = await accounts.run(transfer, "ada", "bob", 60)
        assert (left.owner, left.cents) == ("ada", 40)
        try:
            await accounts.run(transfer, "ada", "bob", 60)
        except interlock.InvariantError as error:
            assert error.invariant == "nobody is overdrawn"
        else:
            raise AssertionError("an account was overdrawn")
        try:
            await accounts.run(transfer, "ada", "bob", 1, isolation="snapshot")
        except interlock.IsolationError as error:
            assert not error.retryable
        else:
            raise AssertionError("the floor did not hold")
        bob = assert_type(await accounts.get("bob"), Account | None)
        assert bob is not None
        assert bob.cents == 60


if __name__ == "__main__":
    asyncio.run(main())
