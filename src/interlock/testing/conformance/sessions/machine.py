"""Random operations of several overlapping sessions, in every mode, against a model in plain Python.

After each call the model says what the session must have seen: of one snapshot, which may have moved forward, but only
while nothing that was read has changed. At each commit it says whether the commit had to be refused, and whether it
may have been. And every serializable transaction that commits is explained by the order of commits: replayed on the
state just before it, it sees the same.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import interlock
from interlock.testing.conformance.sessions import program
from interlock.testing.conformance.sessions.desk import MODES, Desk, contents, listed
from interlock.testing.conformance.sessions.program import Call, Program, State
from interlock.testing.conformance.world import World, examples

T = TypeVar("T")

_KEYS = ["a", "b", "c", "cc", "d"]
_keys = st.sampled_from(_KEYS)
_numbers = st.integers(-2, 3)
_ends = st.none() | st.sampled_from(["a", "b", "bb", "cc", "e"])
_ranges = st.tuples(_ends, _ends).map(
    lambda ends: ends if None in ends else (min(ends), max(ends))  # type: ignore[type-var]
)
_ENDS = ("commit", "roll_back", "check", "mark", "back")
_limits = st.none() | st.integers(1, 3)
_slots = st.integers(0, 2)

_calls: st.SearchStrategy[Call] = st.one_of(
    st.tuples(st.just("read"), _keys),
    st.tuples(st.just("read_many"), st.lists(_keys, max_size=3, unique=True)),
    st.builds(
        lambda ends, limit, back: ("scan", *ends, limit, back), _ranges, st.none() | st.integers(1, 3), st.booleans()
    ),
    st.tuples(st.just("write"), _keys, _numbers),
    st.tuples(st.just("delete"), _keys),
    st.tuples(st.just("add"), _keys, _numbers),
    st.tuples(st.just("update"), _keys, _numbers),
    st.builds(lambda ends, amount: ("update_where", *ends, amount), _ranges, _numbers),
    st.builds(lambda ends: ("clear", *ends), _ranges),
)


_ending = st.sampled_from([("commit",), ("commit",), ("commit",), ("check",), ("mark",), ("back",), ("roll_back",)])
_interleavings = st.lists(st.tuples(_slots, _calls | _ending), min_size=4, max_size=16)


@dataclass
class Agent:
    """An open session and what the model knows of it. ``base`` is the number of the state that it reads."""

    session: interlock.AgentSession[int]
    model: Program
    base: int | None = None
    marks: list[AbstractContextManager[None]] = field(default_factory=list)


class Undo(Exception):
    """What leaves a savepoint that is to be taken back."""


async def make(session: interlock.AgentSession[int], call: Call) -> Any:
    """Make a call of the model on a real session."""
    match call:
        case ("scan", start, stop, limit, reverse):
            return await listed(session.scan(start=start, stop=stop, limit=limit, reverse=reverse))
        case ("update", key, amount):
            return await session.update(key, lambda value: value + amount, 0)
        case ("update_where", start, stop, amount):

            def change(_: interlock.Key, value: int) -> int | interlock.Delete:
                return value + amount if (value + amount) % 3 else interlock.DELETE

            return await session.update_where(change, start=start, stop=stop)
        case ("clear", start, stop):
            return await session.clear(start=start, stop=stop)
        case (name, *arguments):
            return await getattr(session, name)(*arguments)
    raise AssertionError(call)


class Sessions(RuleBasedStateMachine):
    """The store and the model, side by side."""

    world: World

    @initialize()
    def begin_anew(self) -> None:
        """Two store objects over a fresh engine."""
        self.desk = Desk(self.world)
        self.stores = [self.desk.open(), self.desk.open()]
        self.things = [store.resource("things", int) for store in self.stores]
        self.states = [State({}, {})]
        self.agents: dict[int, Agent] = {}

    def teardown(self) -> None:
        """Whatever is still open is left; the feed tells of every commit."""
        if hasattr(self, "desk"):
            changes = self.call(listed(self.stores[0].log.changes()))
            assert len(changes) == len(self.states) - 1
            self.desk.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in this world."""
        return self.world.call(coroutine)

    def stand(self, agent: Agent) -> None:
        """Where the session's snapshot is by now; it may have moved only over what does not concern it."""
        cursor = agent.session.snapshot
        if cursor is None:
            return
        behind = len(self.call(listed(self.stores[0].log.changes(cursor))))
        base = len(self.states) - 1 - behind
        if agent.base is not None and agent.model.mode != "none":
            assert base == agent.base or agent.model.mode in ("optimistic", "serializable")
            assert base >= agent.base
            must, _ = agent.model.broken(self.states[agent.base], self.states[base])
            assert not must, "the snapshot has moved over a change of something that was read"
            for span in agent.model.relied.spans:
                assert not program.span_changed(self.states[agent.base], self.states[base], span)
        agent.base = base

    @rule(mode=st.sampled_from(MODES), store=st.integers(0, 1), steps=_interleavings)
    def play(self, mode: interlock.Isolation, store: int, steps: list[tuple[int, Call]]) -> None:
        """Several sessions go on by turns. Those that begin here do so in one mode, over one store object."""
        for slot, made in steps:
            if slot not in self.agents:
                session = self.call(self.things[store].begin(isolation=mode, agent=f"agent {slot}"))
                self.agents[slot] = Agent(session, Program(mode))
            if made[0] in _ENDS:
                getattr(self, made[0])(slot)
            else:
                self.make_one(slot, self.agents[slot], made)

    def make_one(self, slot: int, agent: Agent, made: Call) -> None:
        """One call, and whether it answers as it should."""
        newest = self.states[-1]
        try:
            result = self.call(make(agent.session, made))
        except interlock.ConflictError:
            self.assert_lost(agent)
            self.leave(slot)
            return
        self.stand(agent)
        base = newest if agent.model.mode == "none" or agent.base is None else self.states[agent.base]
        expected = agent.model.expected(made, base.values)
        assert result == expected
        agent.model.note(made, expected, base.values)
        if agent.model.mode != "none" and agent.base is not None:
            assert agent.model.replayed(base.values) == agent.model.results, "it has seen more than one state"

    def assert_lost(self, agent: Agent) -> None:
        """A conflict before the commit: something that was read has changed."""
        assert agent.model.mode in ("optimistic", "serializable")
        assert agent.base is not None
        _, may = agent.model.broken(self.states[agent.base], self.states[-1])
        assert may, "a conflict over nothing"

    def leave(self, slot: int) -> None:
        """A session ends without a commit."""
        agent = self.agents.pop(slot)
        self.call(agent.session.rollback())

    def roll_back(self, slot: int) -> None:
        """A session gives up."""
        self.leave(slot)

    def mark(self, slot: int) -> None:
        """A savepoint begins."""
        agent = self.agents[slot]
        agent.marks.append(agent.session.savepoint())
        agent.marks[-1].__enter__()
        agent.model.mark()

    def back(self, slot: int) -> None:
        """A savepoint ends, mostly by an error."""
        agent = self.agents[slot]
        if agent.marks:
            undo = len(agent.model.calls) % 3 > 0
            error = Undo() if undo else None
            agent.marks.pop().__exit__(None if error is None else Undo, error, None)
            agent.model.back(undo)

    def check(self, slot: int) -> None:
        """A session asks whether the ground still holds."""
        agent = self.agents[slot]
        if agent.model.mode in ("none", "snapshot"):
            return
        try:
            self.call(agent.session.check())
        except interlock.ConflictError:
            self.assert_lost(agent)
            self.leave(slot)
            return
        if agent.base is not None:
            must, _ = agent.model.broken(self.states[agent.base], self.states[-1])
            assert not must, "a change was not found"
        self.stand(agent)

    def commit(self, slot: int) -> None:
        """A session commits, or is refused."""
        agent = self.agents.pop(slot)
        model, newest = agent.model, self.states[-1]
        then = newest if agent.base is None else self.states[agent.base]
        must, may = model.refused(then, newest)
        try:
            done = self.call(agent.session.commit())
        except interlock.ConflictError:
            if not may:
                raise
            return
        assert not must, "a conflict was not found"
        assert (done.cursor is not None) == self.writes(model)
        if not self.writes(model):
            return
        if model.mode == "serializable":
            assert model.replayed(newest.values) == model.results, "no order of commits explains what it saw"
        self.states.append(program.after(newest, model, len(self.states)))

    @staticmethod
    def writes(model: Program) -> bool:
        """Whether there is anything to commit."""
        return bool(model.effects)

    @invariant()
    def agree(self) -> None:
        """The newest state is what the model says."""
        if hasattr(self, "desk"):
            assert self.call(contents(self.things[0])) == self.states[-1].values


def test_random_sessions_do_what_the_model_does(world: World) -> None:
    """Shrunk failures are printed as a program."""

    class Machine(Sessions):
        pass

    Machine.world = world
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(8),
            stateful_step_count=40,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
