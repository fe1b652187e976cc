"""Cases of kind saga: what undoes a chain of steps, in which order, and what is said about it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio

import interlock
import interlock.sync
from cases.cancelling import at_every_suspension
from interlock import CompensationError, RetryPolicy, Saga, Step, UsageError, compensable


class Boom(Exception):
    """What goes wrong."""


class Shop:
    """Acts, each of which leaves an effect that its undo removes."""

    def __init__(self, give_way: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.effects: list[str] = []
        self.undone: list[str] = []
        self.give_way = give_way

    async def act(self, name: str) -> str:
        """The effect, and then the reply."""
        await self.give_way()
        self.effects.append(name)
        await self.give_way()
        return name

    async def undo(self, name: str) -> None:
        """Takes several turns of the loop."""
        for _ in range(3):
            await self.give_way()
        if name in self.effects:
            self.effects.remove(name)
        self.undone.append(name)


def on_asyncio() -> Shop:
    return Shop(lambda: asyncio.sleep(0))


def test_R072_cancelled_during_the_third_step_both_undos_finish() -> None:
    async def body(shop: Shop, timeout: asyncio.Timeout | None = None) -> None:
        async with Saga() as saga:
            await saga.step(shop.act, "one", undo=shop.undo)
            await saga.step(shop.act, "two", undo=shop.undo)
            if timeout is not None:
                timeout.reschedule(asyncio.get_running_loop().time())
            await saga.step(asyncio.Event().wait)

    async def cancelled() -> Shop:
        shop = on_asyncio()
        task = asyncio.create_task(body(shop))
        while len(shop.effects) < 2:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return shop

    async def timed_out() -> Shop:
        shop = on_asyncio()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as timeout:
                await body(shop, timeout)
        return shop

    for run in (cancelled, timed_out):
        shop = asyncio.run(run())
        assert shop.undone == ["two", "one"]
        assert shop.effects == []


def test_R072_on_trio_too() -> None:
    shop = Shop(trio.lowlevel.checkpoint)
    hooked: list[str] = []

    async def slow_undo(name: str) -> None:
        await shop.undo(name)
        hooked.append(name)

    async def main() -> None:
        with trio.move_on_after(5) as scope:
            async with Saga() as saga:
                await saga.parallel(Step(shop.act, "one", undo=slow_undo), Step(shop.act, "two", undo=slow_undo))
                scope.cancel()
                await saga.step(trio.sleep_forever)
        assert scope.cancelled_caught
        assert saga.report.unknown == ("sleep_forever",)

    trio.run(main)
    assert sorted(hooked) == ["one", "two"]
    assert shop.effects == []


def test_R073_cancelled_at_every_point_nothing_is_forgotten() -> None:
    """Whatever the point: the effect is undone, or its step is reported as unknown."""

    async def main() -> None:
        shops: list[Shop] = []
        sagas: list[Any] = []

        async def run(at: int) -> None:
            shop = on_asyncio()
            shops.append(shop)
            async with Saga() as saga:
                sagas.append(saga)
                await saga.step(shop.act, "one", undo=shop.undo, step_id="one")
                async with Saga() as inner:
                    await inner.step(shop.act, "two", undo=shop.undo, step_id="two")
                async with saga.savepoint():
                    await saga.parallel(
                        Step(shop.act, "three", undo=shop.undo, step_id="three"),
                        Step(shop.act, "four", undo=shop.undo, step_id="four"),
                    )

        async for _, was_cancelled in at_every_suspension(run):
            report = sagas[-1].report
            assert set(shops[-1].effects) <= (set(report.unknown) if was_cancelled else {"one", "two", "three", "four"})
            assert report.clean == (not report.unknown)
            assert report.status == ("committed" if not was_cancelled else "incomplete" if report.unknown else "undone")
        assert len(shops) == 6
        assert any(saga.report.unknown for saga in sagas)

    asyncio.run(main())


async def _fail_together(saga: Any, shop: Shop, broken: Any, mode: str) -> None:
    steps = [("one", broken), ("two", shop.undo), ("three", broken)]
    if mode == "parallel":
        await saga.parallel(*[Step(shop.act, name, undo=undo, step_id=name) for name, undo in steps])
    else:
        for name, undo in steps:
            await saga.step(shop.act, name, undo=undo, step_id=name)


@pytest.mark.parametrize("mode", ["sync", "async", "parallel"])
def test_R074_every_undo_is_attempted_and_every_failure_is_named(mode: str) -> None:
    shop = on_asyncio()

    def broken_now(result: str) -> None:
        raise OSError(result)

    async def broken(result: str) -> None:
        await asyncio.sleep(0)
        raise OSError(result)

    async def main() -> None:
        async with Saga() as saga:
            await _fail_together(saga, shop, broken_now if mode == "sync" else broken, mode)
            raise Boom

    with pytest.raises(CompensationError) as caught:
        asyncio.run(main())
    assert {failed.step for failed in caught.value.failures} == {"one", "three"}
    assert caught.value.report.undone == ("two",)
    assert caught.value.report.status == "incomplete"
    assert shop.undone == ["two"]


UNDONE: list[str] = []
CLOSED: set[str] = set()


@compensable(name="cases.take_back", outside="run")
def take_back(result: str) -> None:
    """An undo whose service may be closed."""
    if result in CLOSED:
        raise OSError(result)
    UNDONE.append(result)


def give(name: str) -> str:
    """A step of a durable saga."""
    return name


def test_R075_a_saga_with_a_failed_undo_stays_open_for_recovery() -> None:
    CLOSED.add("two")
    with interlock.sync.open("memory://r075", agent="shop") as first:
        with pytest.raises(CompensationError), first.saga("order", id="o1") as saga:
            for name in ("one", "two", "three"):
                saga.step(give, name, undo=take_back)
            raise Boom
        assert UNDONE == ["three", "one"]
        assert saga.report.status == "incomplete"
        with interlock.sync.open("memory://r075", agent="cron") as restarted:
            assert restarted.recover(older_than_seconds=0).undone == ()
            assert UNDONE == ["three", "one"]
            CLOSED.clear()
            assert restarted.recover(older_than_seconds=0).undone == ("order/o1",)
            assert UNDONE == ["three", "one", "two"]
            assert restarted.recover(older_than_seconds=0) == interlock.RecoveryReport()


def test_R078_a_step_that_retries_is_undone_once() -> None:
    shop = on_asyncio()
    tries = 0

    async def with_retries(name: str, succeeds_at: int) -> str:
        nonlocal tries
        for attempt in range(3):
            tries += 1
            if attempt == succeeds_at:
                return await shop.act(name)
        raise Boom("all attempts failed")

    async def main(succeeds_at: int) -> None:
        async with Saga() as saga:
            await saga.step(shop.act, "one", undo=shop.undo)
            await saga.step(with_retries, "two", succeeds_at, undo=shop.undo, undo_retry=RetryPolicy(3))
            raise Boom("the third step")

    for succeeds_at, undone in ((9, ["one"]), (2, ["two", "one"])):
        shop.undone.clear()
        with pytest.raises(Boom):
            asyncio.run(main(succeeds_at))
        assert shop.undone == undone
    assert tries == 6


def test_R079_the_original_keeps_its_cause_and_all_can_be_printed() -> None:
    def broken() -> None:
        raise OSError("Z: the undo")

    original = Boom("X: the step")
    original.__cause__ = KeyError("Y: its cause")
    with pytest.raises(CompensationError) as caught, Saga() as saga:
        saga.step(lambda: None, undo=broken)
        raise original
    assert caught.value.__cause__ is original
    assert isinstance(original.__cause__, KeyError)
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.index("Y: its cause") < printed.index("X: the step") < printed.index("Z: the undo")


def test_R082_which_failures_may_have_happened() -> None:
    """An error is the step's word that it did not happen; timeouts, cancellations and interrupts say nothing."""
    for error, unknown in (
        (Boom(), False),
        (TimeoutError(), True),
        (asyncio.CancelledError(), True),
        (KeyboardInterrupt(), True),
        (SystemExit(), True),
        (interlock.CommitUnknownError("lost"), True),
        (ExceptionGroup("several", [Boom(), TimeoutError()]), True),
        (ExceptionGroup("several", [Boom()]), False),
    ):
        undone: list[str] = []

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)), Saga() as saga:
            saga.step(fail, undo=lambda undone=undone: undone.append("x"))
        assert undone == []
        assert saga.report.unknown == (("fail",) if unknown else ())
        assert saga.report.clean is not unknown


def test_R082_arguments_are_bound_when_the_undo_is_declared() -> None:
    called: list[str] = []

    def step(order_id: str, cents: int) -> None:
        called.append(order_id)

    for undo in (lambda order_id, reason: None, lambda a, b, c, d: None, lambda *, why: None):
        with pytest.raises(UsageError), Saga() as saga:
            saga.step(step, "o1", 5, undo=undo)
    with pytest.raises(UsageError), Saga() as saga:
        saga.step(step, "o1", undo=lambda order_id: None)  # type: ignore[call-overload]
    assert called == []
    cents = [5]
    seen: list[Any] = []
    with pytest.raises(Boom), Saga() as saga:
        saga.step(step, "o1", cents[0], undo=lambda cents, order_id: seen.append((order_id, cents)))
        cents[0] = 7
        raise Boom
    assert seen == [("o1", 5)]
