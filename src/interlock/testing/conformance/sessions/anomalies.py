"""Every anomaly in every mode: prevented where the mode says so, shown where it says so.

The sessions of a schedule are interleaved on purpose, step by step, so that a failure is the same at each run. A
session that meets a conflict is out of the game, as its retry would be another transaction; and so is one that would
have to wait for a lock, since whom it waits for has its turn only after it.
"""

from __future__ import annotations

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import EVERY_MODE, Desk, at_desk, contents, fill, listed
from interlock.testing.conformance.sessions.schedules import CASES, INITIAL, SERIALIZABLE, Case, Result


def _matches(predicate: str, value: int) -> bool:
    if predicate == "any":
        return True
    operand = int(predicate[1:])
    return value == operand if predicate[0] == "=" else value % operand == 0


class Play:
    """A schedule while it is played: each session is begun with its first step."""

    def __init__(self, resource: interlock.SharedResource[int], mode: interlock.Isolation) -> None:
        self.resource = resource
        self.mode = mode
        self.sessions: dict[str, interlock.AgentSession[int]] = {}
        self.out: set[str] = set()
        self.ended: set[str] = set()
        self.result = Result()

    async def play(self, case: Case) -> Result:
        """All steps, then the state at the end."""
        for who, what, *operands in case.schedule:
            if who in self.out:
                continue
            if who not in self.sessions:
                self.sessions[who] = await self.resource.begin(agent=who, isolation=self.mode, lock_timeout_seconds=0)
            try:
                await self._step(self.sessions[who], who, what, *operands)
            except (interlock.ConflictError, interlock.LockTimeoutError):
                self.out.add(who)
                if what != "commit":
                    await self.sessions[who].rollback()
        for who in self.sessions.keys() - self.out - self.result.committed - self.ended:
            await self.sessions[who].rollback()
        self.result.end = await contents(self.resource)
        return self.result

    async def _step(
        self, session: interlock.AgentSession[int], who: str, what: str, where: str = "", value: str = ""
    ) -> None:
        seen = self.result.seen[who]
        match what:
            case "r":
                seen.append(await session.read(where))
            case "w":
                await session.write(where, int(value))
            case "d":
                await session.delete(where)
            case "scan":
                seen.append([key for key, found in await listed(session.scan()) if _matches(where, found)])
            case "add":
                await session.update_where(lambda _, found: found + int(where))
            case "drop":
                await session.update_where(
                    lambda _, found: interlock.DELETE if _matches(where, found) else found,
                )
            case "clear":
                await session.clear()
            case "abort":
                await session.rollback()
                self.ended.add(who)
            case "commit":
                await session.commit()
                self.result.committed.add(who)
            case _:
                raise AssertionError(what)


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
@at_desk
async def test_anomalies(desk: Desk, case: Case, mode: interlock.Isolation) -> None:
    resource = desk.resource()
    await fill(resource, INITIAL)
    result = await Play(resource, mode).play(case)
    if EVERY_MODE.index(mode) >= EVERY_MODE.index(case.prevented):
        assert not case.bad(result), result
    if mode in case.shows:
        assert case.bad(result), f"{mode} does not show {case.name}: {result}"


@pytest.mark.parametrize("mode", EVERY_MODE)
@at_desk
async def test_schedules_without_overlap_never_conflict(desk: Desk, mode: interlock.Isolation) -> None:
    """The other side of the coin: one after the other, everything commits, whatever the mode."""
    for case in CASES:
        resource = desk.open().resource(case.name)
        await fill(resource, INITIAL)
        for who in sorted({step[0] for step in case.schedule}):
            alone = [step for step in case.schedule if step[0] == who and step[1] != "abort"]
            solo = Case(case.name, ";".join(" ".join(step) for step in alone), case.bad, SERIALIZABLE)
            result = await Play(resource, mode).play(solo)
            assert who in result.committed or not any(step[1] == "commit" for step in alone)


@at_desk
async def test_sessions_of_different_modes_are_each_held_to_their_own(desk: Desk) -> None:
    """A serializable session is safe from weaker ones; a weaker one is not made safe by a stronger one."""
    resource = desk.resource()
    await fill(resource, INITIAL)
    strong = await resource.begin(isolation="serializable")
    weak = await resource.begin(isolation="none")
    for session in (strong, weak):
        assert await session.read("a") == 10
    await weak.write("a", 11)
    await weak.commit()
    await strong.write("b", 1)
    with pytest.raises(interlock.ReadConflict):
        await strong.commit()
    overwriting = await resource.begin(isolation="none")
    assert await overwriting.read("a") == 11
    async with resource.session() as session:
        await session.write("a", 12)
    await overwriting.write("a", 13)
    await overwriting.commit()
    assert await resource.read("a") == 13
