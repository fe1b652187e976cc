"""Simulation: agents over a memory store, in virtual time, in an order that a seed decides.

Every agent has a stack of its own (`stacks`), but only one of them runs at any moment. Whenever it calls the backend,
before the call and again before it gets the answer, and whenever it waits, the next to run is drawn from the seed: so
every order in which the calls of several agents can follow each other may come up, and one that breaks something comes
up again with its seed. Time stands still while anybody can run; when all wait, it jumps to the first whose time is up,
so that hours of backing off cost nothing. If all wait and nobody's time will ever be up, that is a deadlock, which is
reported.

Faults are drawn from the same seed: a commit whose reply is lost (having happened or not), and an agent that dies in
front of a call or behind it, after which nothing that it or its background jobs still do reaches the store. Give each
agent a store object of its own: then its death is that of a process.

What is simulated is everything above the port, and the memory backend between its calls. What happens *inside* a call
of an engine is not: for that there are real threads, processes and servers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from interlock.backends.bridges import Delegate
from interlock.backends.memory import MemoryBackend
from interlock.errors import CommitUnknownError
from interlock.model import CommitRequest, Key, Reply, Token
from interlock.ports import Backend, Canceller, Job, Runtime, Waiter
from interlock.testing.stacks import choose_stacks

T = TypeVar("T")

START_SECONDS: Final = 1_767_225_600.0
"""Where the wall clock begins: 2026-01-01, 00:00 UTC."""
_CALL_SECONDS: Final = 0.000_1


class AgentDied(BaseException):
    """Ends an agent's work as SIGKILL ends a process. Not an `Exception`: nobody handles it by mistake."""


class Deadlock(AssertionError):
    """Everybody waits, and nobody's time will ever be up."""


class _Agent:
    """A stack that runs only when it is handed the turn. ``master``: whose background job it is, and dies with."""

    def __init__(self, name: str, body: Callable[[], None], master: _Agent | None = None) -> None:
        self.name = name
        self.body = body
        self.master = master
        self.stack: Any = None
        self.ready = True
        self.until: float | None = None
        self.died = False
        self.waits_for = ""


class Simulation:
    """A world of agents. ``lost_replies`` and ``deaths`` are probabilities, of a commit and of a call.

    ``greenlets``: whether agents are greenlets (True) or threads (False); None: greenlets if there are any.

    After `run`: ``steps`` counts the times that somebody was chosen, ``faults`` what was done to the agents."""

    def __init__(
        self, seed: int, *, lost_replies: float = 0.0, deaths: float = 0.0, greenlets: bool | None = None
    ) -> None:
        self.seed = seed
        self.steps = 0
        self.faults = {"lost reply": 0, "death": 0}
        self.random = random.Random(f"simulation {seed}")
        self.lost_replies = lost_replies
        self.deaths = deaths
        self._elapsed = 0.0
        self._agents: list[_Agent] = []
        self._running: _Agent | None = None
        self._stacks = choose_stacks(greenlets)
        self._failure: BaseException | None = None
        self._ending = False
        self._over = False
        """Whether everybody still there has to end: only background jobs are left, or somebody has failed."""
        self.runtime = _SimulatedRuntime(self)
        self.backend: Backend = _SimulatedBackend(
            MemoryBackend(None, runtime=self.runtime, clock=self.time), self
        )  # fmt: skip

    def time(self) -> float:
        """The wall clock, for the engine too."""
        return START_SECONDS + self._elapsed

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self._elapsed

    def add(self, name: str, body: Callable[[], None]) -> None:
        """An agent; it begins when `run` is called, or at once if that has been."""
        self._begin(_Agent(name, body))

    def add_job(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> _SimulatedJob:
        """A background job of the agent that runs now: it ends with the run, and dies with the agent."""
        job = _SimulatedJob()

        def body() -> None:
            try:
                _step(work())
            finally:
                job.ended = True

        self._begin(_Agent(name, body, self._running or _NOBODY))
        return job

    def _begin(self, agent: _Agent) -> None:
        self._agents.append(agent)
        self._stacks.begin(agent, lambda: self._live(agent))

    def run(self) -> None:
        """Until every agent has ended. Raises what an agent raised, or `Deadlock`."""
        self._ending = self._over = False
        first = self._following()
        if first is not None:
            self._stacks.enter(first)
        if self._failure is not None:
            raise self._failure

    # -- the turn ------------------------------------------------------------------------------------------------------
    def _live(self, agent: _Agent) -> None:
        try:
            if not self._over:
                agent.body()
        except AgentDied:
            pass
        except BaseException as error:
            self._fail(error)
        self._agents.remove(agent)
        self._stacks.leave(self._following())

    def _following(self) -> _Agent | None:
        """Choose who runs next, when nobody does; None: all have ended."""
        if not self._agents:
            self._running = None
            return None
        self._ending = all(agent.master is not None for agent in self._agents)
        self._over = self._ending or self._failure is not None
        self._running = self._choose()
        return self._running

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._over = True

    def _choose(self) -> _Agent:
        self.steps += 1
        ready = [agent for agent in self._agents if agent.ready or self._over]
        if not ready:
            due = min((agent.until for agent in self._agents if agent.until is not None), default=None)
            if due is None:
                names = ", ".join(f"{agent.name} ({agent.waits_for})" for agent in self._agents)
                self._fail(Deadlock(f"seed {self.seed}: everybody waits for ever: {names}"))
                return self._agents[0]
            self._elapsed = max(self._elapsed, due)
            for agent in self._agents:
                if agent.until is not None and agent.until <= self._elapsed:
                    agent.ready, agent.until = True, None
                    ready.append(agent)
        return self.random.choice(ready)

    def switch(self) -> None:
        """Somebody else may go on here, or the caller dies here."""
        me = self._running
        if me is None:
            return
        if self._over or me.died or me.master is not None:
            self._die_if_over(me)
        self._elapsed += _CALL_SECONDS
        if self.deaths and self.random.random() < self.deaths:
            me.died = True
            self.faults["death"] += 1
            raise AgentDied
        # Whoever is drawn and cannot run is replaced by a draw among those who can: all of these are equally likely.
        agents = self._agents
        chosen = agents[int(self.random.random() * len(agents))]
        if self._over or not chosen.ready:
            chosen = self._choose()
        else:
            self.steps += 1
        if chosen is not me:
            self._hand_over(me, chosen)

    def _give_way(self, me: _Agent) -> None:
        chosen = self._choose()
        if chosen is not me:
            self._hand_over(me, chosen)
        else:
            self._die_if_over(me)

    def _hand_over(self, me: _Agent, chosen: _Agent) -> None:
        self._running = chosen
        self._stacks.hand_over(me, chosen)
        if self._over or me.died or me.master is not None:
            self._die_if_over(me)

    def _die_if_over(self, me: _Agent) -> None:
        if self._over or me.died or (me.master is not None and me.master.died):
            raise AgentDied

    def block(self, waiter: _SimulatedWaiter | None, timeout_seconds: float | None, what: str) -> None:
        """The caller waits until its time is up, or until its waiter is woken."""
        me = self._running
        if me is None:  # before or after the run: only time can pass
            if timeout_seconds is None:
                raise Deadlock(f"seed {self.seed}: outside the run nobody will ever wake this waiter")
            self._elapsed += timeout_seconds
            return
        self._die_if_over(me)
        me.ready, me.waits_for = False, what
        me.until = None if timeout_seconds is None else self._elapsed + max(0.0, timeout_seconds)
        if waiter is not None:
            waiter.agent = me
        self._give_way(me)
        me.until = None

    def wake(self, agent: _Agent) -> None:
        """Let a waiting agent be chosen again."""
        agent.ready = True

    def draws(self, probability: float) -> bool:
        """Whether a fault comes now; never outside the run."""
        return self._running is not None and probability > 0 and self.random.random() < probability


_NOBODY: Final = _Agent("nobody", lambda: None)


class _SimulatedRuntime:
    """Virtual time and seeded randomness."""

    suspends = False

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.monotonic = simulation.monotonic
        self.time = simulation.time

    def random_bits(self, count: int) -> int:
        """Of the seed."""
        return self._simulation.random.getrandbits(count)

    def uniform(self, low: float, high: float) -> float:
        """Of the seed."""
        return self._simulation.random.uniform(low, high)

    async def sleep(self, seconds: float) -> None:
        """Others run meanwhile."""
        self._simulation.block(None, seconds, "sleeps")

    def waiter(self) -> Waiter:
        """A waiter in virtual time."""
        return _SimulatedWaiter(self._simulation)

    def wake_all(self, waiters: Iterable[Waiter]) -> None:
        """One after another."""
        for waiter in waiters:
            waiter.wake()

    def shield(self) -> contextlib.AbstractContextManager[object]:
        """Nothing is cancelled here."""
        return contextlib.nullcontext()

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Job:
        """Another agent."""
        return self._simulation.add_job(name, work)

    def blocking(self) -> Runtime:
        """Itself."""
        return self

    def canceller(self) -> Canceller | None:
        """None: a thread cannot be cancelled."""
        return None


class _SimulatedJob:
    """A job in the background of an agent."""

    ended = False

    def alive(self) -> bool:
        """Whether it still goes on."""
        return not self.ended

    def cancel(self) -> None:
        """A thread ends by itself."""


def _step(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise AssertionError("a simulated job has suspended")


class _SimulatedWaiter:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._woken = False
        self.agent: _Agent | None = None

    def wake(self) -> None:
        """Let the caller go on."""
        self._woken = True
        if self.agent is not None:
            self._simulation.wake(self.agent)

    async def wait(self, timeout_seconds: float | None = None, *, shielded: bool = False) -> bool:
        """Until woken, or until virtual time has come so far."""
        if not self._woken:
            self._simulation.block(self, timeout_seconds, "waits to be woken")
            self.agent = None
        return self._woken

    async def wait_out(self) -> None:
        """Until woken."""
        while not self._woken:
            await self.wait()


class _SimulatedBackend(Delegate):
    """The memory backend, with a switch before each call and before each answer, and with faults."""

    suspends = False
    blocks = False

    def __init__(self, inner: Backend, simulation: Simulation) -> None:
        super().__init__(inner)
        self._simulation = simulation

    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._simulation.switch()
        except BaseException:
            coroutine.close()
            raise
        answer = await coroutine
        self._simulation.switch()
        return answer

    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply; the request or the reply may be lost on its way."""
        simulation = self._simulation
        name = f"{request.transaction:032x}"
        lost = simulation.draws(simulation.lost_replies)
        if lost:
            simulation.faults["lost reply"] += 1
            if simulation.random.random() < 0.5:
                simulation.switch()
                raise CommitUnknownError("the request was lost", transaction_id=name)
        reply = await self._call("commit", self.inner.commit(request))
        if lost:
            raise CommitUnknownError("the reply was lost", transaction_id=name)
        return reply

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """As the memory backend waits, in virtual time."""
        return await self._call("wait", self.inner.wait(since, timeout_seconds, keys))

    async def close(self) -> None:
        """Close the inner backend."""
        await self.inner.close()

    def blocking(self) -> Backend:
        """This one: it never suspends."""
        return self
