"""Effects when something fails at a bad moment: lost replies, slow commits, interrupts, renewals that fail."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import interlock
import interlock.sync
import interlock.testing.sync
from cases.faults import Broken, Counted, Hooked, Pausing, Wrapped, is_commit
from cases.support import World, in_worlds
from interlock import (
    NOT_HAPPENED,
    BackendUnavailableError,
    CommitUnknownError,
    EffectInProgressError,
    EffectStatus,
    EffectUnknownError,
    codec,
)
from interlock.errors import SnapshotTooOldError
from interlock.layers.effects import journal
from interlock.layers.effects.records import EFFECT
from interlock.layers.ledger import _SCANS
from interlock.stepping import step
from interlock.testing import Clock
from layers.effects_support import Acts, abandon

_serial = itertools.count()


class Clocked:
    """A store over a backend that misbehaves, another one over the same data, and the clock of both."""

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        self.threads = set(threading.enumerate())  # those of other tests may live on
        self.clock = Clock()
        name = f"effects-faults-{next(_serial)}"
        self.backend = kind(interlock.MemoryBackend(name, clock=self.clock.engine_time))
        runtime = self.clock.runtime(suspends=False)
        self.store = interlock.sync.Store(self.backend, agent="tester", runtime=runtime)
        self.other = interlock.testing.sync.open_store(f"memory://{name}", clock=self.clock)
        self.journal = self.store._journal
        self.calls: list[int] = []

    def executor(self, **settings: Any) -> Any:
        """An executor over the first."""
        return interlock.sync.IdempotentExecutor(self.store, **settings)

    def act(self) -> str:
        """Counts."""
        self.calls.append(1)
        return "done"

    def status(self, key: str = "k") -> EffectStatus | None:
        """What the record says."""
        effect = self.other.effects.get(key)
        return None if effect is None else effect.status

    def close(self) -> None:
        """Both, and what they have begun."""
        self.store.close()
        self.other.close()
        for thread in set(threading.enumerate()) - self.threads:
            if thread.name == "interlock-effects":
                thread.join(30)


# -- taking ------------------------------------------------------------------------------------------------------------
class Slow(Wrapped):
    """The commits that are planned take so many seconds; the reading behind one may fail."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.delays: list[float] = []
        self.failures: list[Exception] = []
        self.clock: list[Clock] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Late, or not at all."""
        if name == "read" and self.failures and not self.delays:
            raise self.failures.pop()
        reply = await call()
        if self.delays and is_commit(name, args):
            self.clock[0].advance(self.delays.pop())
        return reply


@pytest.mark.parametrize("seconds", [20, 61])
def test_a_claim_whose_reply_came_late_is_looked_at_again(seconds: float) -> None:
    """With time left the act begins; a claim that has ended is given back, and another one taken."""
    world = Clocked(Slow)
    world.backend.clock.append(world.clock)
    world.backend.delays.append(seconds)
    assert world.executor(claim_seconds=60).execute("k", world.act) == "done"
    assert world.calls == [1]
    effect = world.other.effects.get("k")
    assert effect is not None
    assert (effect.status, effect.attempts) == (EffectStatus.SUCCEEDED, 1)
    world.close()


def test_a_claim_that_cannot_be_looked_at_again_is_given_back() -> None:
    world = Clocked(Slow)
    world.backend.clock.append(world.clock)
    world.backend.delays.append(20)
    world.backend.failures.append(BackendUnavailableError("the server has gone"))
    executor = world.executor(claim_seconds=60)
    with pytest.raises(BackendUnavailableError):
        executor.execute("k", world.act)
    assert (world.calls, world.status()) == ([], None)
    assert executor.execute("k", world.act) == "done"
    world.close()


def test_a_claim_that_cannot_be_sent_leaves_nothing_to_give_back() -> None:
    """Nothing was written, so nothing is asked of an engine that is away."""
    calls: list[str] = []
    gone: list[Exception] = []

    def hook(name: str, args: tuple[Any, ...]) -> None:
        calls.append(name)
        if is_commit(name, args) and gone:
            raise gone.pop()

    world = Clocked(lambda inner: Hooked(inner, hook))
    gone.append(BackendUnavailableError("the server has gone"))
    with pytest.raises(BackendUnavailableError):
        world.executor().execute("k", world.act)
    assert (calls[-1], gone) == ("commit", [])
    assert (world.calls, world.status()) == ([], None)
    assert world.executor().execute("k", world.act) == "done"
    assert world.calls == [1]
    world.close()


class Unsure(Wrapped):
    """From the first reading to the second, commits are done once and never answered."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.reads: list[int] = []
        self.done: list[int] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Lose it."""
        if name == "read":
            self.reads.append(1)
        if is_commit(name, args) and len(self.reads) == 1:
            if not self.done:
                self.done.append(1)
                await call()
            raise CommitUnknownError("the connection was lost", transaction_id="")
        return await call()


def test_a_claim_of_which_nobody_hears_is_given_back() -> None:
    """It may have come to be, and then nobody would know that the act was not begun."""
    world = Clocked(Unsure)
    executor = world.executor(claim_seconds=600)
    with pytest.raises(CommitUnknownError):
        executor.execute("k", world.act)
    assert world.backend.done
    assert (world.calls, world.status()) == ([], None)
    assert executor.execute("k", world.act) == "done"
    assert world.calls == [1]
    world.close()


@in_worlds("memory-async")
async def test_closed_at_each_await(world: World) -> None:
    """Where nothing may be awaited any more: a claim stands until it ends, and no act is called twice."""
    store = world.over(Pausing(world.backend()))
    executor = world.executor(store, claim_seconds=600)
    seen: set[Any] = set()
    began: list[str] = []

    async def act(key: str) -> str:
        began.append(key)
        await asyncio.sleep(0)
        return key

    for count in itertools.count(1):
        key = f"k{count}"
        call = executor.execute(key, act, key)
        try:
            for _ in range(count):
                call.send(None)
        except StopIteration:
            assert began.count(key) == 1
            break
        call.close()
        effect = await store.effects.get(key)
        status = None if effect is None else effect.status
        seen.add((key in began, status))
        if status is None:
            assert await executor.execute(key, act, key) == key
        elif status is EffectStatus.EXECUTING:
            with pytest.raises(EffectInProgressError):
                await world.executor(store, wait_seconds=0.01).execute(key, act, key)
        assert began.count(key) <= 1
    assert (False, None) in seen
    assert (True, EffectStatus.EXECUTING) in seen
    assert (True, None) not in seen
    assert not store._journal.flights._flights


@pytest.mark.parametrize("number", [1, 5])
def test_keys_that_are_known_here_are_not_known_for_ever(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten is looked for again, and answered the same."""
    monkeypatch.setattr(journal, "_KNOWN", number)
    world = Clocked(Counted)
    executor = world.executor()
    for _ in range(2):
        for key in "abcdef":
            assert executor.execute(key, world.act) == "done"
            assert len(world.journal._known) <= number
    assert len(world.calls) == 6
    world.close()


# -- waiting -----------------------------------------------------------------------------------------------------------
@in_worlds("memory-async")
async def test_whoever_rides_executes_if_the_first_was_cancelled_before_its_act(world: World) -> None:
    store, acts = world.over(Pausing(world.backend())), Acts()
    executor = world.executor(store)
    first = asyncio.create_task(executor.execute("k", acts.charge, 5))
    await asyncio.sleep(0)
    rider = asyncio.create_task(executor.execute("k", acts.charge, 5))
    await asyncio.sleep(0)
    assert not acts.calls
    first.cancel()
    assert await rider == {"charged": 5, "key": "k"}
    with pytest.raises(asyncio.CancelledError):
        await first
    assert acts.calls == [5]


@in_worlds("memory-async")
async def test_whoever_rides_waits_no_longer_than_it_wants(world: World) -> None:
    store, acts = world.open(), Acts()
    acts.gate = asyncio.Event()
    first = asyncio.create_task(world.executor(store).execute("k", acts.charge, 5))
    while not acts.calls:
        await asyncio.sleep(0)
    with pytest.raises(EffectInProgressError) as caught:
        await world.executor(store, wait_seconds=0.01).execute("k", acts.charge, 5)
    assert caught.value.seconds_left == 0.0
    acts.gate.set()
    assert (await first)["charged"] == 5
    assert acts.calls == [5]


def test_what_changes_while_the_probe_is_asked_is_read_again() -> None:
    """Somebody else has executed it by then: it is not executed once more."""
    world = Clocked(Counted)
    elsewhere = interlock.sync.IdempotentExecutor(world.other)

    def time_out() -> None:
        raise TimeoutError

    def verify(key: str) -> Any:
        assert elsewhere.execute("k", world.act, payload=1, verify=lambda _: NOT_HAPPENED) == "done"
        return NOT_HAPPENED

    executor = world.executor()
    with pytest.raises(TimeoutError):
        executor.execute("k", time_out, payload=1)
    found = executor.execute_detailed("k", world.act, payload=1, verify=verify)
    assert (found.value, found.replayed, world.calls) == ("done", True, [1])
    world.close()


# -- settling ----------------------------------------------------------------------------------------------------------
def test_a_failure_that_cannot_be_recorded_goes_on() -> None:
    """It is what has happened; that nobody knows of it is a note."""
    world = Clocked(Broken)

    def decline() -> None:
        world.backend.broken.append(BackendUnavailableError("the server has gone"))
        raise ValueError("declined")

    with pytest.raises(ValueError, match="declined") as caught:
        world.executor().execute("k", decline)
    assert "could not be recorded" in caught.value.__notes__[0]
    assert world.status() is EffectStatus.EXECUTING
    world.clock.advance(60)
    with pytest.raises(EffectUnknownError):
        interlock.sync.IdempotentExecutor(world.other).execute("k", decline)
    world.backend.broken.clear()
    world.close()


def test_a_failure_behind_the_end_of_the_claim_is_not_recorded() -> None:
    """Somebody else has said what is to be believed by then."""
    world = Clocked(Counted)

    def decline() -> None:
        world.journal.keeper._claims.clear()  # as of a process that was stopped
        world.clock.advance(61)
        assert world.other.effects.reconcile("k").unknown == [("k", "")]
        raise ValueError("declined")

    with pytest.raises(ValueError, match="declined") as caught:
        world.executor(claim_seconds=60).execute("k", decline)
    assert "claim had ended before" in caught.value.__notes__[0]
    assert world.status() is EffectStatus.UNKNOWN
    world.close()


class InterruptedBehind(Wrapped):
    """The next commit is done, and its caller interrupted."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.armed: list[int] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Interrupt."""
        reply = await call()
        if self.armed and is_commit(name, args):
            self.armed.pop()
            raise KeyboardInterrupt
        return reply


def test_an_interrupt_behind_the_settlement_finds_it_made() -> None:
    world = Clocked(InterruptedBehind)

    def act() -> str:
        world.backend.armed.append(1)
        return world.act()

    executor = world.executor()
    with pytest.raises(KeyboardInterrupt):
        executor.execute("k", act)
    assert world.status() is EffectStatus.SUCCEEDED
    assert executor.execute_detailed("k", act).replayed
    assert world.calls == [1]
    world.close()


def test_a_claim_whose_version_is_not_known_is_settled_from_a_reading() -> None:
    world = Clocked(Counted)
    claim = step(abandon(world.store, "k", world.act, claim_seconds=60))
    claim.version = claim.token = None
    settled = step(world.journal.settle(claim, EffectStatus.SUCCEEDED, result=codec.freeze("x")))
    assert settled is not None
    effect = world.other.effects.get("k")
    assert effect is not None
    assert (effect.status, effect.result) == (EffectStatus.SUCCEEDED, "x")
    world.close()


@pytest.mark.parametrize(
    ("script", "raised", "calls"),
    [
        (["done"], None, 1),
        ([OSError()], OSError, 1),
        ([KeyboardInterrupt(), "done"], KeyboardInterrupt, 2),
        ([KeyboardInterrupt(), OSError()], KeyboardInterrupt, 2),
        ([GeneratorExit()], GeneratorExit, 1),
        ([KeyboardInterrupt() for _ in range(20)], KeyboardInterrupt, journal._INTERRUPTS),
    ],
    ids=["done", "fails", "interrupted", "interrupted, fails", "closed", "interrupted for ever"],
)
def test_what_outlasts_an_interrupt(script: list[Any], raised: Any, calls: int) -> None:
    world = Clocked(Counted)
    made: list[int] = []

    async def work(what: str) -> str:
        made.append(1)
        said = script[len(made) - 1]
        if isinstance(said, BaseException):
            raise said
        return f"{what} {said}"

    if raised is None:
        assert step(world.journal.outlast(work, "it is")) == "it is done"
    else:
        with pytest.raises(raised) as caught:
            step(world.journal.outlast(work, "it is"))
        assert caught.value is script[0]
    assert len(made) == calls
    world.close()


# -- reading -----------------------------------------------------------------------------------------------------------
class Overtaken(Wrapped):
    """Scans are overtaken by quiet commits, as often as is planned."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.times: list[int] = []
        self.asked: list[int] = []

    async def scan(self, span: Any, at: Any = None, *, limit: int, **more: Any) -> Any:
        """Too late."""
        self.asked.append(limit)
        if self.times:
            self.times.pop()
            raise SnapshotTooOldError("overtaken")
        return await self.inner.scan(span, at, limit=limit, **more)


def test_a_page_that_is_overtaken_is_read_again_and_shorter() -> None:
    world = Clocked(Overtaken)
    executor = world.executor()
    for key in "abcdef":
        executor.execute(key, world.act)
    world.backend.times += [1] * (2 * (_SCANS + 1))
    found = step(world.journal.scan(EFFECT, limit=8))
    assert sorted(set(world.backend.asked)) == [2, 4, 8]
    assert (len(found.records), found.more) == (2, True)
    world.backend.times += [1] * 1_000_000
    with pytest.raises(SnapshotTooOldError):
        step(world.journal.scan(EFFECT, limit=8))
    assert world.backend.asked[-1] == 1
    world.backend.times.clear()
    assert [each.key for each in world.store.effects.list()] == list("abcdef")
    world.close()


# -- renewing ----------------------------------------------------------------------------------------------------------
def test_only_claims_that_grow_old_and_are_still_ours_are_renewed() -> None:
    meanwhile: list[Any] = []

    def hook(name: str, args: tuple[Any, ...]) -> None:
        commits.extend([1] if name == "commit" else [])
        if name == "commit" and meanwhile:
            meanwhile.pop()()

    commits: list[int] = []
    world = Clocked(lambda inner: Hooked(inner, hook))
    claim = step(abandon(world.store, "k", world.act, claim_seconds=60))
    keeper = world.journal.keeper
    keeper._claims[claim.stored.claim] = claim
    commits.clear()
    world.clock.advance(5)
    step(keeper._renew())
    assert commits == []  # there is time
    world.clock.advance(35)
    step(keeper._renew())
    assert commits == [1]
    effect = world.other.effects.get("k")
    assert effect is not None
    assert effect.seconds_left == 60
    world.clock.advance(40)
    settled: list[Any] = []
    meanwhile.append(
        lambda: settled.append(
            step(world.other._journal.settle(claim, EffectStatus.SUCCEEDED, result=codec.freeze("x")))
        )
    )
    step(keeper._renew())  # is refused, which is well
    assert settled[0] is not None
    assert world.status() is EffectStatus.SUCCEEDED
    commits.clear()
    step(keeper._renew())
    assert commits == []  # it is nobody's any more
    world.close()


def test_a_renewal_that_fails_is_made_later(caplog: pytest.LogCaptureFixture) -> None:
    world = Clocked(Broken)

    def act() -> str:
        while not world.clock.sleeping:
            pass
        world.backend.broken.append(BackendUnavailableError("the server has gone"))
        world.clock.advance(20)
        while "tried again" not in caplog.text:
            pass
        world.backend.broken.clear()
        while not world.clock.sleeping:
            pass
        world.clock.advance(20)
        while (now := world.other.effects.get("k")) is None or now.seconds_left is None or now.seconds_left <= 40:
            pass
        return world.act()

    with caplog.at_level(logging.WARNING, "interlock"):
        assert world.executor(claim_seconds=60).execute("k", act) == "done"
    assert world.status() is EffectStatus.SUCCEEDED
    world.close()


def test_a_shorter_claim_makes_the_looks_more_frequent() -> None:
    """And a longer one does not make them rarer."""
    world = Clocked(Counted)
    keeper = world.journal.keeper
    ticks: list[tuple[float, bool]] = []

    def act() -> str:
        job = keeper._job
        ticks.append((keeper._tick_seconds, True))
        world.executor(claim_seconds=6).execute("short", world.act)
        ticks.append((keeper._tick_seconds, keeper._job is job))
        world.executor(claim_seconds=600).execute("long", world.act)
        keeper._begin(200.0)  # as of one that comes between the two looks of another
        ticks.append((keeper._tick_seconds, keeper._job is job))
        return "done"

    assert world.executor(claim_seconds=60).execute("k", act) == "done"
    assert ticks == [(20, True), (2, True), (2, True)]
    world.close()


@in_worlds("memory-async")
async def test_a_shorter_claim_before_the_job_has_begun(world: World) -> None:
    """Nobody has to be woken: the job takes the shorter time when it begins."""
    store = world.open()
    keeper = store._journal.keeper
    claims = [await abandon(store, key, Acts.charge, claim_seconds=seconds) for key, seconds in (("k", 60), ("l", 6))]
    for claim in claims:
        keeper.hold(claim)
    job = keeper._job
    assert (keeper._waiter, keeper._tick_seconds) == (None, 2.0)
    while keeper._waiter is None:
        await world.give_way()
    assert (keeper._job, keeper._tick_seconds) == (job, 2.0)
    assert set(keeper._claims) == {claim.stored.claim for claim in claims}


def test_behind_the_end_of_its_store_nothing_is_renewed() -> None:
    world = Clocked(Counted)
    claim = step(abandon(world.store, "k", world.act, claim_seconds=60))
    keeper = world.journal.keeper
    world.store.close()
    world.backend.calls.clear()
    keeper.hold(claim)
    assert keeper._job is None
    step(keeper._work())
    assert world.backend.calls == []
    world.close()
