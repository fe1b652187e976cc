"""How sagas end when several things happen at once: steps and frames still open elsewhere, interrupts in the undo."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from interlock import CompensationError, RetryPolicy, Saga, SagaClosedError, StepFailedError, UsageError
from interlock.saga import compensation


class Boom(Exception):
    """What goes wrong."""


class Acts:
    """What has been done and not been taken back."""

    def __init__(self) -> None:
        self.standing: list[str] = []

    def act(self, name: str) -> str:
        """Do something."""
        self.standing.append(name)
        return name

    def undo(self, result: str) -> None:
        """Take it back."""
        self.standing.remove(result)


@pytest.fixture
def acts() -> Acts:
    return Acts()


def broken(result: str) -> None:
    """An undo that fails."""
    raise OSError("cannot be undone")


# -- steps and frames that are open elsewhere --------------------------------------------------------------------------
def test_a_rollback_waits_for_a_step_of_another_thread(acts: Acts) -> None:
    begun, go_on, waiting = threading.Event(), threading.Event(), threading.Event()

    def slow(name: str) -> str:
        begun.set()
        assert go_on.wait(60)
        return acts.act(name)

    with pytest.raises(Boom), Saga() as saga:
        saga.step(acts.act, "one", undo=acts.undo)
        thread = threading.Thread(target=lambda: saga.step(slow, "slow", undo=acts.undo))
        thread.start()
        assert begun.wait(60)
        course = saga._frame.course

        class Waiters(list[Any]):
            """Says when somebody waits."""

            def append(self, waiter: Any) -> None:
                super().append(waiter)
                go_on.set()

        course.waiters = Waiters()
        waiting.set()
        raise Boom
    thread.join(60)
    assert acts.standing == []
    assert saga.report.clean


async def test_a_rollback_waits_for_no_step_for_ever(acts: Acts) -> None:
    """What has not ended then may or may not have happened; it hears so itself."""
    never = asyncio.Event()

    async def slow(name: str) -> str:
        await never.wait()
        return acts.act(name)

    with pytest.raises(Boom):
        async with Saga(shield_seconds=0.01) as saga:
            await saga.step(acts.act, "one", undo=acts.undo)
            late = asyncio.create_task(saga.step(slow, "slow", undo=acts.undo))
            await asyncio.sleep(0)
            raise Boom
    assert acts.standing == []
    assert saga.report.unknown == ("slow",)
    assert not saga.report.clean
    never.set()
    with pytest.raises(SagaClosedError, match="gone on without it"):
        await late


async def open_inner(acts: Acts, opened: asyncio.Event, go_on: asyncio.Event) -> None:
    """A nested saga that does one step and waits."""
    async with Saga() as inner:
        await inner.step(acts.act, "inner", undo=acts.undo)
        opened.set()
        await go_on.wait()


async def test_who_commits_while_a_nested_saga_is_open_is_refused(acts: Acts) -> None:
    """And undone, with all that the nested one has done so far."""
    opened, go_on = asyncio.Event(), asyncio.Event()
    with pytest.raises(UsageError, match="still open"):
        async with Saga() as saga:
            await saga.step(acts.act, "outer", undo=acts.undo)
            inner = asyncio.create_task(open_inner(acts, opened, go_on))
            await opened.wait()
    assert acts.standing == []
    go_on.set()
    with pytest.raises(SagaClosedError, match="has been undone"):
        await inner
    assert acts.standing == []
    assert saga.report.clean


async def test_a_rollback_takes_over_what_a_nested_saga_holds(acts: Acts) -> None:
    opened, go_on, state = asyncio.Event(), asyncio.Event(), {"n": 1}

    async def nested() -> None:
        async with Saga(state) as inner:
            state["n"] = 2
            await inner.step(acts.act, "inner", undo=acts.undo)
            opened.set()
            await go_on.wait()

    with pytest.raises(Boom):
        async with Saga() as saga:
            await saga.step(acts.act, "outer", undo=acts.undo)
            inner = asyncio.create_task(nested())
            await opened.wait()
            raise Boom
    assert (acts.standing, state) == ([], {"n": 1})
    go_on.set()
    with pytest.raises(SagaClosedError):
        await inner
    assert (acts.standing, state) == ([], {"n": 1})
    assert saga.report.clean


# -- undos -------------------------------------------------------------------------------------------------------------
def test_an_undo_that_is_interrupted_is_a_failed_one(acts: Acts) -> None:
    def interrupted(result: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(CompensationError) as caught, Saga() as saga:
        saga.step(acts.act, "one", undo=acts.undo)
        saga.step(acts.act, "two", undo=interrupted)
        raise Boom
    (error,) = caught.value.exceptions
    assert isinstance(error, SagaClosedError)
    assert isinstance(error.__cause__, KeyboardInterrupt)
    assert acts.standing == ["two"]


def test_an_undo_is_tried_again_after_a_pause_and_not_for_ever(acts: Acts) -> None:
    tries: list[str] = []

    def fails_twice(result: str) -> None:
        tries.append(result)
        if len(tries) < 3:
            raise OSError
        acts.undo(result)

    patient = RetryPolicy(max_attempts=5, base_seconds=0.001, cap_seconds=0.002)
    with pytest.raises(Boom), Saga() as saga:
        saga.step(acts.act, "one", undo=fails_twice, undo_retry=patient)
        raise Boom
    assert (tries, acts.standing, saga.report.clean) == (["one"] * 3, [], True)


def test_an_undo_is_tried_for_so_long(acts: Acts) -> None:
    tries: list[str] = []

    def fails(result: str) -> None:
        tries.append(result)
        raise OSError

    hurried = RetryPolicy(max_attempts=50, max_seconds=1e-9, base_seconds=0.001, cap_seconds=0.002)
    with pytest.raises(CompensationError) as caught, Saga() as saga:
        saga.step(acts.act, "one", undo=fails, undo_retry=hurried)
        raise Boom
    assert tries == ["one"]
    assert [failed.step for failed in caught.value.failures] == ["act"]


async def test_a_cancellation_carries_the_undos_that_failed(acts: Acts) -> None:
    """It came while the saga was undone: nobody may lose it, nor what it has interrupted."""
    undoing = asyncio.Event()

    async def slow(result: str) -> None:
        undoing.set()
        for _ in range(5):
            await asyncio.sleep(0)
        raise OSError("cannot be undone")

    async def body() -> None:
        async with Saga() as saga:
            await saga.step(acts.act, "one", undo=acts.undo)
            await saga.step(acts.act, "two", undo=slow)
            raise Boom

    task = asyncio.create_task(body())
    await undoing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, CompensationError)
    assert any("undos failed" in note for note in caught.value.__notes__)
    assert acts.standing == ["two"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_during_the_deferred_acts(acts: Acts, fails: bool) -> None:
    """They run to their end, and what has failed is told with it; nothing is undone."""
    running = asyncio.Event()

    async def irreversible(name: str) -> str:
        running.set()
        for _ in range(5):
            await asyncio.sleep(0)
        if fails:
            raise OSError("no lorry")
        return acts.act(name)

    async def body() -> None:
        async with Saga() as saga:
            await saga.step(acts.act, "one", undo=acts.undo)
            saga.defer(irreversible, "mail")

    task = asyncio.create_task(body())
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    if fails:
        assert isinstance(caught.value.__cause__, StepFailedError)
        assert any("no lorry" in note for note in caught.value.__notes__)
        assert acts.standing == ["one"]
    else:
        assert caught.value.__cause__ is None
        assert acts.standing == ["one", "mail"]


@pytest.mark.parametrize("behind", [False, True], ids=["before its end", "behind it"])
def test_an_interrupt_between_two_lines_of_the_exit(acts: Acts, monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    """Before its end the saga is undone for it; behind it there is nothing left to do."""
    real, times = compensation.roll_back, []

    async def interrupted(frame: Any, error: BaseException) -> BaseException:
        times.append(error)
        if behind:
            await real(frame, error)
        if len(times) == 1:
            raise KeyboardInterrupt
        return await real(frame, error)

    monkeypatch.setattr(compensation, "roll_back", interrupted)
    with pytest.raises(KeyboardInterrupt if behind else Boom) as caught, Saga() as saga:
        saga.step(acts.act, "one", undo=acts.undo)
        raise Boom
    assert acts.standing == []
    assert saga.report.clean
    assert len(times) == (1 if behind else 2)
    if behind:
        assert isinstance(caught.value.__context__, Boom)


def test_an_interrupt_in_the_middle_of_joining(acts: Acts) -> None:
    """The nested saga is undone for it, once, although its parent has its steps already."""

    class Interrupting(list[Any]):
        """Interrupted behind the removal."""

        def remove(self, frame: Any) -> None:
            super().remove(frame)
            raise KeyboardInterrupt

    with pytest.raises(Boom), Saga() as saga:
        saga.step(acts.act, "one", undo=acts.undo)
        saga._frame.children = Interrupting()
        with pytest.raises(KeyboardInterrupt), Saga() as inner:
            inner.step(acts.act, "two", undo=acts.undo)
        assert acts.standing == ["one"]
        raise Boom
    assert acts.standing == []
    assert saga.report.clean


def test_a_state_that_cannot_be_put_back_is_a_failure(acts: Acts) -> None:
    """The undos have run all the same."""
    state = {"array": np.zeros(3), "n": 1}
    with pytest.raises(CompensationError) as caught, Saga(state) as saga:
        saga.step(acts.act, "one", undo=acts.undo)
        state["n"] = 2
        state["array"][0] = 5
        state["array"].setflags(write=False)  # type: ignore[attr-defined]
        raise Boom
    assert [failed.step for failed in caught.value.failures] == ["restoring the state"]
    assert acts.standing == []
    assert state["n"] == 1
    assert not saga.report.clean
