"""Lanes: who waits for whom, and for how long. Without a server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from interlock.backends.postgresql.gathering import LANES, Gatherer


def everything(queue: deque[int]) -> list[int]:
    jobs = list(queue)
    queue.clear()
    return jobs


def one(queue: deque[int]) -> list[int]:
    return [queue.popleft()]


class Calls:
    """Calls that end when the test says so."""

    def __init__(self, take: Callable[[deque[int]], list[int]], most: int) -> None:
        self.sent: list[list[int]] = []
        self.may_end = asyncio.Event()
        self.gatherer: Gatherer[int] = Gatherer(take, self._send, most)

    async def _send(self, jobs: list[int]) -> None:
        self.sent.append(jobs)
        await self.may_end.wait()

    async def begun(self, count: int) -> None:
        """Wait until so many calls have begun."""
        async with asyncio.timeout(30.0):
            while len(self.sent) < count:
                await asyncio.sleep(0)


def test_who_comes_while_a_caller_calls_himself_goes_when_he_has_ended() -> None:
    async def run() -> None:
        calls = Calls(everything, 1)
        with calls.gatherer.alone():
            assert not calls.gatherer.is_idle
            for job in (1, 2):
                calls.gatherer.add(job)
            await asyncio.sleep(0)
            assert calls.sent == []
        await calls.begun(1)
        assert calls.sent == [[1, 2]]
        calls.may_end.set()

    asyncio.run(run())


def test_who_queues_behind_calls_that_are_held_up_gets_a_lane_of_his_own() -> None:
    async def run() -> None:
        calls = Calls(one, LANES + 1)
        for job in range(LANES + 1):
            calls.gatherer.add(job)
        await calls.begun(LANES)
        assert calls.sent == [[job] for job in range(LANES)]
        await calls.begun(LANES + 1)  # though none of the others has ended
        assert calls.sent[-1] == [LANES]
        calls.may_end.set()

    asyncio.run(run())


def test_what_has_to_wait_for_a_call_under_way_goes_when_that_has_ended() -> None:
    """`take` may leave everything in the queue; then the lane ends, and the next one takes it."""
    held = True

    def take(queue: deque[int]) -> list[int]:
        return [] if held else everything(queue)

    async def run() -> None:
        nonlocal held
        calls = Calls(take, LANES)
        with calls.gatherer.alone():
            calls.gatherer.add(1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not calls.gatherer._lanes
            assert calls.sent == []
            held = False
        await calls.begun(1)
        assert calls.sent == [[1]]
        calls.may_end.set()

    asyncio.run(run())


def test_a_job_that_is_withdrawn_does_not_go() -> None:
    async def run() -> None:
        calls = Calls(everything, 1)
        with calls.gatherer.alone():
            for job in (1, 2):
                calls.gatherer.add(job)
            calls.gatherer.withdraw(1)
        await calls.begun(1)
        assert calls.sent == [[2]]
        with pytest.raises(ValueError, match="not in deque"):
            calls.gatherer.withdraw(2)
        calls.may_end.set()

    asyncio.run(run())
