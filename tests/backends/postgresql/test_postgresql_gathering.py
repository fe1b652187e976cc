"""Lanes: who waits for whom, and for how long. Without a server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from interlock.backends.postgresql.gathering import LANES, LONE, MANY, PART, VAIN, Begun, Gatherer


def everything(queue: deque[int]) -> list[int]:
    jobs = list(queue)
    queue.clear()
    return jobs


def one(queue: deque[int]) -> list[int]:
    return [queue.popleft()]


class Calls:
    """Calls that end when the test says so."""

    def __init__(self, take: Callable[[deque[int]], list[int]], most: int, before: Gatherer[int] | None = None) -> None:
        self.sent: list[list[int]] = []
        self.may_end = asyncio.Event()
        self.then: Callable[[int], object] | None = None
        self.gatherer: Gatherer[int] = Gatherer(take, self._send, most, before)

    async def _send(self, jobs: list[int]) -> None:
        self.sent.append(jobs)
        await self.may_end.wait()
        if self.then is not None:
            for job in jobs:
                asyncio.get_running_loop().call_soon(self.then, job)

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


async def turns(count: int) -> None:
    """Let the loop go round so often."""
    for _ in range(count):
        await asyncio.sleep(0)


CROWD = list(range(MANY))


def test_few_wait_beside_many_and_not_beside_few() -> None:
    async def run() -> None:
        calls = Calls(everything, 9)
        for job in CROWD:
            calls.gatherer.add(job)
        await calls.begun(1)
        calls.gatherer.add(100)
        await turns(5)
        assert calls.sent == [CROWD]
        more = list(range(101, 100 + MANY // PART))
        for job in more:
            calls.gatherer.add(job)
        await calls.begun(2)
        assert calls.sent == [CROWD, [100, *more]]
        calls.may_end.set()

    asyncio.run(run())


def test_nobody_waits_beside_a_crowd_that_is_small() -> None:
    async def run() -> None:
        calls = Calls(everything, 9)
        for job in CROWD[1:]:
            calls.gatherer.add(job)
        await calls.begun(1)
        calls.gatherer.add(100)
        await turns(5)
        assert calls.sent == [CROWD[1:], [100]]
        calls.may_end.set()

    asyncio.run(run())


def test_few_beside_many_who_are_held_up_get_a_lane_after_a_while() -> None:
    async def run() -> None:
        calls = Calls(everything, 9)
        for job in CROWD:
            calls.gatherer.add(job)
        await calls.begun(1)
        calls.gatherer.add(100)
        await calls.begun(2)  # though the first has not ended
        assert calls.sent == [CROWD, [100]]
        calls.may_end.set()

    asyncio.run(run())


def test_who_has_fallen_behind_goes_with_those_who_come_again() -> None:
    async def run() -> None:
        calls = Calls(everything, 9)
        calls.then = lambda job: calls.gatherer.add(job) if len(calls.sent) < 3 else None
        for job in CROWD:
            calls.gatherer.add(job)
        await calls.begun(1)
        calls.gatherer.add(100)
        calls.may_end.set()
        await calls.begun(2)
        assert calls.sent[1] == [100, *CROWD]

    asyncio.run(run())


def test_few_wait_for_the_many_who_come_here_next() -> None:
    async def run() -> None:
        first = Calls(everything, 9)
        second = Calls(everything, 9, first.gatherer)
        first.then = second.gatherer.add
        for job in CROWD:
            first.gatherer.add(job)
        await first.begun(1)
        second.gatherer.add(100)
        await turns(5)
        assert second.sent == []
        first.may_end.set()
        await second.begun(1)
        assert second.sent == [[100, *CROWD]]
        second.may_end.set()

    asyncio.run(run())


def test_many_do_not_wait_for_few_who_come_here_next() -> None:
    async def run() -> None:
        first = Calls(everything, 9)
        second = Calls(everything, 9, first.gatherer)
        for job in CROWD:
            first.gatherer.add(job)
        await first.begun(1)
        for job in CROWD[: MANY // PART]:
            second.gatherer.add(job)
        await second.begun(1)
        assert second.sent == [CROWD[: MANY // PART]]
        first.may_end.set()
        second.may_end.set()

    asyncio.run(run())


def test_who_waits_in_vain_goes_then_and_the_next_ones_go_at_once() -> None:
    async def run() -> None:
        first = Calls(everything, 9)
        second = Calls(everything, 9, first.gatherer)
        second.may_end.set()
        for job in CROWD:
            first.gatherer.add(job)
        await first.begun(1)
        second.gatherer.add(100)
        await turns(5)
        assert second.sent == []
        first.may_end.set()  # and nobody comes
        await second.begun(1)
        first.may_end.clear()
        for job in CROWD:
            first.gatherer.add(job)
        await first.begun(2)
        for job in range(VAIN):
            second.gatherer.add(job)
            await turns(3)
        assert len(second.sent) == 1 + VAIN
        second.gatherer.add(100)
        await turns(5)
        assert len(second.sent) == 1 + VAIN, "after some time it is tried again"
        first.may_end.set()
        await second.begun(2 + VAIN)

    asyncio.run(run())


def test_who_waits_for_readers_who_are_held_up_goes_after_a_while() -> None:
    async def run() -> None:
        first = Calls(everything, 9)
        second = Calls(everything, 9, first.gatherer)
        for job in CROWD:
            first.gatherer.add(job)
        await first.begun(1)
        second.gatherer.add(100)
        await second.begun(1)
        assert second.sent == [[100]]
        first.may_end.set()
        second.may_end.set()

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


async def _alone_for(calls: Calls, count: int) -> None:
    """Let so many calls go for one caller each."""
    calls.may_end.set()
    for job in range(count):
        calls.gatherer.add(job)
        await calls.begun(job + 1)
        await asyncio.sleep(0)
    calls.may_end.clear()


def test_who_comes_alone_again_and_again_is_sent_at_once_and_a_crowd_is_not() -> None:
    async def run() -> None:
        calls = Calls(everything, 9)
        await _alone_for(calls, LONE)
        calls.gatherer.add(10)
        assert calls.sent[-1] == [10]
        for job in (11, 12):  # while a call is under way
            calls.gatherer.add(job)
        assert calls.sent[-1] == [10]
        await calls.begun(LONE + 2)
        assert calls.sent[-1] == [11, 12]
        calls.may_end.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls.gatherer.add(13)
        assert calls.sent[-1] == [11, 12], "crowds come again"
        await calls.begun(LONE + 3)

    asyncio.run(run())


def test_a_call_that_has_nothing_to_wait_for_needs_no_task() -> None:
    async def run() -> None:
        calls = Calls(everything, 9)
        await _alone_for(calls, LONE)
        calls.may_end.set()
        calls.gatherer.add(10)
        assert calls.sent[-1] == [10]
        assert calls.gatherer._lanes == set()
        assert not calls.gatherer._busy

    asyncio.run(run())


def test_what_has_begun_before_its_task_is_cancelled_where_it_waits() -> None:
    """The task may be cancelled before its first step, when the loop ends."""
    ends: list[str] = []

    async def work(gate: asyncio.Future[None]) -> None:
        try:
            await gate
            ends.append("done")
            await asyncio.sleep(0)
            ends.append("more")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def run() -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(Begun(work(loop.create_future())))
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert ends == ["cancelled"]

        gate = loop.create_future()
        task = loop.create_task(Begun(work(gate)))
        gate.set_result(None)  # before the task knows what it waits for
        await task
        assert ends == ["cancelled", "done", "more"]

        begun = Begun(work(loop.create_future()))
        begun.close()
        with pytest.raises(RuntimeError):
            begun.send(None)
            begun.send(None)
        gate = loop.create_future()
        begun = Begun(work(gate))
        assert begun.send(None) is gate  # somebody takes the first step as his own
        gate.set_result(None)
        await begun
        assert ends[-1] == "more"
        await Begun(asyncio.sleep(0))

    asyncio.run(run())
