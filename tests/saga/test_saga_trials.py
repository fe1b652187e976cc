"""What other saga libraries were seen to get wrong, as trials: each has one right outcome, in threads and in tasks.

Overlapping sagas, undos whose parameters are in another order, undos that raise, asynchronous undos in synchronous
code, interruptions in the middle of a step, nesting, and the state. (What needs a journal is in the durable tests.)
"""

from __future__ import annotations

import asyncio
import signal
import threading
import types
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import interlock
import interlock.sync
from interlock import CompensationError, Saga, SagaClosedError, UsageError


class Boom(Exception):
    """What goes wrong."""


class Ledger:
    """Acts with undos that note what they do."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def act(self, name: str) -> str:
        """Do something."""
        self.noted.append(f"do {name}")
        return name

    def undo(self, result: str) -> None:
        """Take it back."""
        self.noted.append(f"undo {result}")

    async def act_async(self, name: str) -> str:
        """The same, elsewhere."""
        await asyncio.sleep(0)
        return self.act(name)

    async def undo_async(self, result: str) -> None:
        """The same, elsewhere."""
        await asyncio.sleep(0)
        self.undo(result)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


# -- a: overlapping sagas ----------------------------------------------------------------------------------------------
def test_a_sagas_of_two_threads_do_not_see_each_other() -> None:
    both = threading.Barrier(2, timeout=30)
    ledgers = Ledger(), Ledger()

    def run(ledger: Ledger, fails: bool) -> None:
        with Saga() as saga:
            both.wait()
            interlock.sync.current_saga().step(ledger.act, "one", undo=ledger.undo)  # type: ignore[union-attr]
            both.wait()
            saga.step(ledger.act, "two", undo=ledger.undo)
            both.wait()
            if fails:
                raise Boom

    with ThreadPoolExecutor(2) as pool:
        good, bad = pool.submit(run, ledgers[0], False), pool.submit(run, ledgers[1], True)
        good.result()
        with pytest.raises(Boom):
            bad.result()
    assert ledgers[0].noted == ["do one", "do two"]
    assert ledgers[1].noted == ["do one", "do two", "undo two", "undo one"]


async def test_a_sagas_of_two_tasks_do_not_see_each_other() -> None:
    both = asyncio.Barrier(2)
    ledgers = Ledger(), Ledger()

    async def run(ledger: Ledger, fails: bool) -> None:
        async with Saga():
            await both.wait()
            current = interlock.current_saga()
            assert current is not None
            await current.step(ledger.act_async, "one", undo=ledger.undo_async)
            await both.wait()
            await current.step(ledger.act_async, "two", undo=ledger.undo_async)
            if fails:
                await both.wait()
                raise Boom
            await both.wait()

    results = await asyncio.gather(run(ledgers[0], False), run(ledgers[1], True), return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], Boom)
    assert ledgers[0].noted == ["do one", "do two"]
    assert ledgers[1].noted == ["do one", "do two", "undo two", "undo one"]


def test_a_one_commits_while_the_other_is_undone(ledger: Ledger) -> None:
    undoing, go_on = threading.Event(), threading.Event()
    other = Ledger()

    def slow_undo(result: str) -> None:
        undoing.set()
        assert go_on.wait(30)
        ledger.undo(result)

    def fail() -> None:
        with Saga() as saga:
            saga.step(ledger.act, "slow", undo=slow_undo)
            raise Boom

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(fail)
        assert undoing.wait(30)
        with Saga() as saga:
            saga.step(other.act, "fine", undo=other.undo)
        go_on.set()
        with pytest.raises(Boom):
            failing.result()
    assert other.noted == ["do fine"]
    assert ledger.noted == ["do slow", "undo slow"]


def test_a_a_plain_thread_does_not_leave_the_saga_in_silence(ledger: Ledger) -> None:
    act = interlock.compensable(undo=ledger.undo)(ledger.act)
    with ThreadPoolExecutor(1) as pool, pytest.raises(Boom), Saga():
        with pytest.raises(UsageError, match="outside a saga"):
            pool.submit(act, "lost").result()
        assert pool.submit(interlock.carry(act), "carried").result() == "carried"
        raise Boom
    assert ledger.noted == ["do carried", "undo carried"]


# -- b: parameters in another order ------------------------------------------------------------------------------------
def transfer(account: str, amount: int) -> int:
    """Moves money; returns a number of the transfer."""
    return 77


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda seen: lambda account, amount: seen.append((account, amount)), ("a", 5)),
        (lambda seen: lambda amount, account: seen.append((amount, account)), (5, "a")),
        (lambda seen: lambda amount, result: seen.append((amount, result)), (5, 77)),
        (lambda seen: lambda result: seen.append((result,)), (77,)),
        (lambda seen: lambda state, result: seen.append((state["s"], result)), (1, 77)),
        (lambda seen: lambda number: seen.append((number,)), (77,)),
        (lambda seen: lambda number, x, y: seen.append((number, x, y)), (77, "a", 5)),
        (lambda seen: lambda: seen.append(()), ()),
        (lambda seen: lambda *, amount: seen.append((amount,)), (5,)),
        (lambda seen: lambda amount, note="n": seen.append((amount, note)), (5, "n")),
        (lambda seen: lambda error, step_key: seen.append((type(error), step_key)), (Boom, "key")),
        (lambda seen: lambda idempotency_key: seen.append((idempotency_key,)), ("key:undo",)),
        (lambda seen: lambda **facts: seen.append((facts["amount"], facts["result"])), (5, 77)),
    ],
)
def test_b_undos_get_their_arguments_by_name(make: Any, expected: tuple[Any, ...]) -> None:
    seen: list[tuple[Any, ...]] = []
    with pytest.raises(Boom), Saga({"s": 1}) as saga:
        saga.step(transfer, "a", 5, undo=make(seen), idempotency_key="key")
        raise Boom
    assert seen == [expected]


@pytest.mark.parametrize(
    "undo",
    [
        lambda amount, order_id: None,
        lambda *, reason: None,
        lambda w, x, y, z: None,
        "not a function",
    ],
)
def test_b_an_undo_that_cannot_be_called_is_refused_before_the_step(undo: Any, ledger: Ledger) -> None:
    with pytest.raises(UsageError), Saga() as saga:
        saga.step(lambda amount: ledger.act(str(amount)), 5, undo=undo)
    assert ledger.noted == []


def test_b_a_name_with_two_meanings_is_refused() -> None:
    def step(result: int) -> int:
        return result + 1

    with pytest.raises(UsageError, match="both an argument"), Saga() as saga:
        saga.step(step, 1, undo=lambda result: None)


# -- c: an undo that raises --------------------------------------------------------------------------------------------
def broken(result: str) -> None:
    """An undo whose service is down."""
    raise OSError(f"cannot undo {result}")


def test_c_all_undos_are_run_and_every_failure_is_raised(ledger: Ledger) -> None:
    told: list[interlock.FailedUndo] = []
    cause = Boom("the first error")
    cause.__cause__ = origin = KeyError("its own cause")
    with pytest.raises(CompensationError) as caught, Saga(on_compensation_error=told.append) as saga:
        saga.step(ledger.act, "one", undo=broken)
        saga.step(ledger.act, "two", undo=ledger.undo)
        saga.step(ledger.act, "three", undo=broken)
        raise cause
    error = caught.value
    assert ledger.noted == ["do one", "do two", "do three", "undo two"]
    assert [type(each) for each in error.exceptions] == [OSError, OSError]
    assert [failed.result for failed in error.failures] == ["three", "one"]
    assert [dict(failed.arguments) for failed in error.failures] == [{"name": "three"}, {"name": "one"}]
    assert error.cause is error.__cause__ is cause
    assert cause.__cause__ is origin
    assert tuple(told) == error.failures
    assert error.report.status == "incomplete"
    assert not error.report.clean
    assert saga.report.undone == ("act#2",)


async def test_c_in_tasks_too(ledger: Ledger) -> None:
    told: list[Any] = []

    async def hook(failed: interlock.FailedUndo) -> None:
        await asyncio.sleep(0)
        told.append(failed.step)

    async def broken_async(result: str) -> None:
        await asyncio.sleep(0)
        broken(result)

    with pytest.raises(CompensationError) as caught:
        async with Saga(on_compensation_error=hook) as saga:
            await saga.parallel(
                interlock.Step(ledger.act_async, "one", undo=broken_async),
                interlock.Step(ledger.act_async, "two", undo=ledger.undo_async),
                interlock.Step(ledger.act_async, "three", undo=broken_async),
            )
            raise Boom
    assert len(caught.value.exceptions) == len(told) == 2
    assert ledger.noted[3:] == ["undo two"]


def test_c_a_hook_that_fails_stops_nothing(ledger: Ledger) -> None:
    def hook(failed: interlock.FailedUndo) -> None:
        raise RuntimeError("the queue is down")

    with pytest.raises(CompensationError) as caught, Saga(on_compensation_error=hook) as saga:
        saga.step(ledger.act, "one", undo=ledger.undo)
        saga.step(ledger.act, "two", undo=broken)
        raise Boom
    assert ledger.noted[-1] == "undo one"
    assert "the queue is down" in caught.value.exceptions[0].__notes__[0]


# -- d: asynchronous undos in synchronous code -------------------------------------------------------------------------
def test_d_an_async_undo_is_run_where_that_is_possible(ledger: Ledger) -> None:
    with pytest.raises(Boom), Saga() as saga:
        saga.step(ledger.act, "one", undo=ledger.undo_async)
        saga.step(ledger.act, "two", undo=lambda result: ledger.undo_async(result))
        raise Boom
    assert ledger.noted[2:] == ["undo two", "undo one"]
    assert saga.report.clean


@pytest.mark.parametrize("wrapped", [False, True])
async def test_d_and_is_reported_as_failed_where_it_is_not(ledger: Ledger, wrapped: bool) -> None:
    undo = (lambda result: ledger.undo_async(result)) if wrapped else ledger.undo_async
    with pytest.raises(CompensationError) as caught, Saga() as saga:  # a plain `with` on the event loop's thread
        saga.step(ledger.act, "one", undo=undo)
        saga.step(ledger.act, "two", undo=ledger.undo)
        raise Boom
    assert ledger.noted == ["do one", "do two", "undo two"]
    assert isinstance(caught.value.exceptions[0], UsageError)
    assert not saga.report.clean


async def test_d_in_async_code_whatever_is_returned_is_awaited(ledger: Ledger) -> None:
    with pytest.raises(Boom):
        async with Saga() as saga:
            await saga.step(lambda: ledger.act_async("one"), undo=lambda result: ledger.undo_async(result))
            await saga.step(ledger.act, "two", undo=ledger.undo_async)
            raise Boom
    assert ledger.noted == ["do one", "do two", "undo two", "undo one"]


def test_d_an_async_step_in_sync_code_is_refused_before_it_is_called(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="async"), Saga() as saga:
        saga.step(ledger.act_async, "one")  # type: ignore[deprecated]
    with pytest.raises(UsageError, match="awaitable"), Saga() as saga:
        saga.step(lambda: ledger.act_async("one"))
    assert ledger.noted == []


async def test_d_a_step_that_is_never_awaited_fails_the_saga(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match=r"never awaited: saga\.step"):
        async with Saga() as saga:
            await saga.step(ledger.act_async, "one", undo=ledger.undo_async)
            saga.step(ledger.act_async, "two", undo=ledger.undo_async)  # type: ignore[unused-coroutine]
    assert ledger.noted == ["do one", "undo one"]


# -- e: interrupted in the middle of a step ----------------------------------------------------------------------------
async def test_e_a_cancelled_step_is_unknown_and_the_others_are_undone(ledger: Ledger) -> None:
    async def charge() -> None:
        ledger.act("charge")
        timeout.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):  # asyncio.timeout works as everywhere
        async with asyncio.timeout(None) as timeout:
            async with Saga() as saga:
                await saga.step(ledger.act_async, "one", undo=ledger.undo_async)
                await saga.step(charge, undo=ledger.undo_async)
    assert ledger.noted == ["do one", "do charge", "undo one"]
    assert saga.report.unknown == ("charge",)
    assert saga.report.status == "incomplete"
    assert not saga.report.clean


@pytest.mark.parametrize(
    ("verdict", "noted", "unknown"),
    [
        (interlock.Happened("charge-7"), ["do charge", "undo charge-7", "undo one"], ()),
        (interlock.NOT_HAPPENED, ["do charge", "undo one"], ()),
        (interlock.CANNOT_TELL, ["do charge", "undo one"], ("charge",)),
        (None, ["do charge", "undo one"], ("charge",)),
    ],
)
def test_e_verify_settles_it(ledger: Ledger, verdict: Any, noted: list[str], unknown: tuple[str, ...]) -> None:
    asked: list[str] = []

    def charge() -> str:
        ledger.act("charge")
        raise KeyboardInterrupt

    def verify(key: str) -> Any:
        asked.append(key)
        return verdict

    with pytest.raises(KeyboardInterrupt), Saga() as saga:
        saga.step(ledger.act, "one", undo=ledger.undo)
        saga.step(charge, undo=ledger.undo, idempotency_key="order-1", verify=verify)
    assert ledger.noted[1:] == noted
    assert asked == ["order-1"]
    assert saga.report.unknown == unknown
    assert saga.report.clean == (not unknown)


def test_e_undo_unknown_runs_the_undo_all_the_same(ledger: Ledger) -> None:
    def charge() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), Saga() as saga:
        saga.step(charge, undo=lambda: ledger.act("void"), undo_unknown=True)
    assert ledger.noted == ["do void"]
    assert saga.report.clean


def test_e_a_step_that_raises_has_not_happened(ledger: Ledger) -> None:
    def refuse() -> None:
        raise Boom

    with pytest.raises(Boom), Saga() as saga:
        saga.step(ledger.act, "one", undo=ledger.undo)
        saga.step(refuse, undo=lambda: ledger.act("never"))
    assert ledger.noted == ["do one", "undo one"]
    assert saga.report.clean


def test_e_an_undo_that_fails_does_not_hide_an_interrupt(ledger: Ledger) -> None:
    interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught, Saga() as saga:
        saga.step(ledger.act, "one", undo=broken)
        raise interrupt
    assert caught.value is interrupt
    assert isinstance(interrupt.__context__, CompensationError)
    assert "undos failed" in interrupt.__notes__[0]


def test_e_ctrl_c_waits_for_the_undo_and_is_not_lost(ledger: Ledger) -> None:
    def undo(result: str) -> None:
        signal.raise_signal(signal.SIGINT)
        ledger.undo(result)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught, Saga() as saga:
        saga.step(ledger.act, "one", undo=ledger.undo)
        saga.step(ledger.act, "two", undo=undo)
        raise Boom
    assert isinstance(caught.value.__cause__, Boom)
    assert ledger.noted[2:] == ["undo two", "undo one"]
    assert saga.report.clean
    assert signal.getsignal(signal.SIGINT) is before


def test_e_a_coroutine_that_is_closed_without_a_loop_is_undone(ledger: Ledger) -> None:
    @types.coroutine
    def suspend() -> Generator[None, None, None]:
        yield

    async def body() -> None:
        async with Saga() as saga:
            await saga.step(ledger.act, "one", undo=ledger.undo)
            await suspend()

    coroutine = body()
    coroutine.send(None)
    coroutine.close()
    assert ledger.noted == ["do one", "undo one"]


async def test_e_an_undo_has_a_time_limit(ledger: Ledger) -> None:
    async def hangs(result: str) -> None:
        await asyncio.Event().wait()

    with pytest.raises(CompensationError) as caught:
        async with Saga(shield_seconds=0.01) as saga:
            await saga.step(ledger.act_async, "one", undo=ledger.undo_async)
            await saga.step(ledger.act_async, "two", undo=hangs)
            raise Boom
    assert isinstance(caught.value.exceptions[0], TimeoutError)
    assert ledger.noted[2:] == ["undo one"]


# -- h: nested sagas ---------------------------------------------------------------------------------------------------
def test_h_a_nested_saga_is_undone_with_its_parent(ledger: Ledger) -> None:
    inner_state = {"n": 1}
    with pytest.raises(Boom), Saga() as outer:
        outer.step(ledger.act, "one", undo=ledger.undo)
        with Saga(inner_state) as inner:
            inner.step(ledger.act, "two", undo=ledger.undo)
            inner_state["n"] = 2
        outer.step(ledger.act, "three", undo=ledger.undo)
        raise Boom
    assert ledger.noted[3:] == ["undo three", "undo two", "undo one"]
    assert inner_state == {"n": 1}


def test_h_the_earliest_state_of_what_both_have_wins(ledger: Ledger) -> None:
    """The nested saga's state is a part of the outer one's, and has changed before it began."""
    inner_state = {"n": 1}
    state = {"inner": inner_state}
    with pytest.raises(Boom), Saga(state) as outer:
        inner_state["n"] = 2
        with Saga(inner_state) as inner:
            inner.step(ledger.act, "two", undo=ledger.undo)
            inner_state["n"] = 3
        outer.step(ledger.act, "three", undo=ledger.undo)
        raise Boom
    assert state == {"inner": {"n": 1}}
    assert state["inner"] is inner_state


async def test_h_an_inner_failure_is_a_savepoint(ledger: Ledger) -> None:
    async with Saga() as outer:
        await outer.step(ledger.act_async, "one", undo=ledger.undo_async)
        with pytest.raises(Boom):
            async with Saga() as inner:
                await inner.step(ledger.act_async, "two", undo=ledger.undo_async)
                raise Boom
        await outer.step(ledger.act_async, "three", undo=ledger.undo_async)
    assert ledger.noted == ["do one", "do two", "undo two", "do three"]
    assert outer.report.clean
    assert outer.report.steps == ("act_async", "act_async#2")


def test_h_savepoints_take_back_steps_and_state(ledger: Ledger) -> None:
    state = {"n": 1}
    with Saga(state) as saga:
        saga.step(ledger.act, "one", undo=ledger.undo)
        state["n"] = 2
        with pytest.raises(Boom), saga.savepoint():
            saga.step(ledger.act, "two", undo=ledger.undo)
            state["n"] = 3
            raise Boom
        assert state == {"n": 2}
        with saga.savepoint():
            saga.step(ledger.act, "three", undo=ledger.undo)
    assert ledger.noted == ["do one", "do two", "undo two", "do three"]


async def test_h_a_failed_undo_of_an_inner_saga_stays_in_the_report(ledger: Ledger) -> None:
    async with Saga() as outer:
        with pytest.raises(CompensationError):
            async with Saga() as inner:
                await inner.step(ledger.act, "two", undo=broken)
                raise Boom
    assert outer.report.status == "committed"
    assert not outer.report.clean
    assert len(outer.report.failed_undos) == 1


# -- i: the state ------------------------------------------------------------------------------------------------------
class Account:
    """A plain object with a lock in it."""

    def __init__(self) -> None:
        self.cents = 100
        self.history: list[int] = []
        self.lock = threading.Lock()


def withdraw(account: Account, cents: int) -> None:
    """Changes the account in place."""
    account.cents -= cents
    account.history.append(-cents)


def solvent(account: Account) -> bool:
    """No account is overdrawn."""
    return account.cents >= 0


def test_i_the_state_is_restored_in_place() -> None:
    account = Account()
    history = account.history
    with pytest.raises(interlock.InvariantError) as caught, Saga(account, invariants=[solvent]) as saga:
        saga.step(withdraw, account, 60, kind="reversible")
        saga.step(withdraw, account, 60, kind="reversible")
    assert account.cents == 100
    assert account.history is history == []
    assert saga.report.kept == ("$.lock (lock)",)
    assert caught.value.invariant == "solvent"
    assert caught.value.step == "withdraw"
    assert "$.cents: 100 -> -20" in caught.value.difference


async def test_i_an_invariant_that_is_broken_between_steps_is_found_at_the_end() -> None:
    account = Account()
    with pytest.raises(interlock.InvariantError, match="at the end"):
        async with Saga(account, invariants=[solvent]):
            account.cents = -1
    assert account.cents == 100


# -- the rest of the contract ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("attempts", [1, 3])
def test_an_undo_is_tried_as_often_as_its_policy_says(attempts: int, ledger: Ledger) -> None:
    undo_retry = interlock.RetryPolicy(attempts, base_seconds=0)
    failures = 2

    def flaky(result: str) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError
        ledger.undo(result)

    with pytest.raises((Boom, CompensationError)) as caught, Saga() as saga:
        saga.step(ledger.act, "one", undo=flaky, undo_retry=undo_retry)
        raise Boom
    assert isinstance(caught.value, Boom) == (undo_retry.max_attempts == 3)
    assert ledger.noted[1:] == (["undo one"] if undo_retry.max_attempts == 3 else [])


def test_deferred_acts_come_last_and_forward_only(ledger: Ledger) -> None:
    with Saga() as saga:
        ship = saga.defer(ledger.act, "ship")
        with pytest.raises(UsageError, match="has not run yet"):
            ship.result()
        assert "cannot be undone" in str(ship)
        saga.step(ledger.act, "pay", undo=ledger.undo)
        mail = saga.defer(ledger.act, "mail")
    assert ledger.noted == ["do pay", "do ship", "do mail"]
    assert (ship.result(), mail.result(), mail.done) == ("ship", "mail", True)


def test_deferred_acts_of_a_failed_saga_never_run(ledger: Ledger) -> None:
    with pytest.raises(Boom), Saga() as saga:
        ship = saga.defer(ledger.act, "ship")
        raise Boom
    assert ledger.noted == []
    with pytest.raises(SagaClosedError, match="never run"):
        ship.result()


async def test_a_deferred_act_that_fails_undoes_nothing(ledger: Ledger) -> None:
    async def refuse() -> None:
        raise Boom

    with pytest.raises(interlock.StepFailedError) as caught:
        async with Saga() as saga:
            await saga.step(ledger.act_async, "pay", undo=ledger.undo_async)
            saga.defer(refuse, step_id="ship")
            mail = saga.defer(ledger.act_async, "mail", step_id="mail")
    assert isinstance(caught.value.__cause__, Boom)
    assert (caught.value.step, caught.value.not_run) == ("ship", ("mail",))
    assert ledger.noted == ["do pay"]
    assert not saga.report.clean
    with pytest.raises(SagaClosedError):
        mail.result()


def test_abort_undoes_everything_even_if_it_is_swallowed(ledger: Ledger) -> None:
    for swallow in (False, True):
        with pytest.raises(interlock.SagaAbortedError, match="no stock") as caught, Saga() as saga:
            saga.step(ledger.act, "one", undo=ledger.undo)
            try:
                saga.abort("no stock")
            except interlock.SagaAbortedError:
                if not swallow:
                    raise
        assert caught.value.reason == "no stock"
    assert ledger.noted == ["do one", "undo one"] * 2


def test_parallel_steps_run_in_threads_and_have_a_barrier(ledger: Ledger) -> None:
    together = threading.Barrier(3, timeout=30)

    def act(name: str) -> str:
        together.wait()
        if name == "bad":
            raise Boom
        return ledger.act(name)

    with pytest.raises(Boom), Saga() as saga:
        saga.parallel(*[interlock.Step(act, name, undo=ledger.undo) for name in ("a", "bad", "b")])
    assert sorted(ledger.noted) == ["do a", "do b", "undo a", "undo b"]
    with Saga() as saga:
        assert saga.parallel(interlock.Step(ledger.act, "x"), interlock.Step(ledger.act, "y")) == ("x", "y")


async def test_parallel_steps_that_fail_together_are_a_group(ledger: Ledger) -> None:
    async def fail(number: int) -> None:
        await asyncio.sleep(0)
        raise Boom(number)

    with pytest.raises(ExceptionGroup) as caught:
        async with Saga() as saga:
            await saga.parallel(interlock.Step(fail, 1), interlock.Step(fail, 2))
    assert len(caught.value.exceptions) == 2


def test_a_saga_is_entered_once() -> None:
    saga = Saga()
    with saga:
        pass
    with pytest.raises(UsageError, match="entered once"), saga:
        pass
