"""Random programs of sagas against a plain model: steps, failures, nesting, savepoints, cancellation, deferred acts.

The model is a stack of frames. A step that is done pushes an effect; a frame that fails pops what it holds, newest
first; a frame that ends hands what it holds to its parent. Whatever the program does, the outside world must then hold
exactly the effects of the model, and the undos must have come in the model's order. Each program runs in plain code
and on an event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import CompensationError, Saga

DEPTH = 3


class Boom(Exception):
    """A failure that the program has planned."""


class Cancelled(BaseException):
    """An interruption that the program has planned."""


@dataclass
class Act:
    """A step: what becomes of it, and of its undo."""

    number: int
    outcome: str
    undo_fails: bool


@dataclass
class Block:
    """A nested saga or a savepoint, and how it ends."""

    kind: str
    body: list[Any]
    ending: str
    caught: bool


@dataclass
class World:
    """What there is outside, and in which order it came and went."""

    effects: list[int] = field(default_factory=list)
    undone: list[int] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)


acts = st.builds(
    Act,
    st.integers(0, 1_000_000),
    st.sampled_from(["done", "done", "done", "fails", "unknown", "deferred"]),
    st.sampled_from([False, False, False, True]),
)
programs = st.recursive(
    st.lists(acts, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            acts,
            st.builds(
                Block,
                st.sampled_from(["saga", "savepoint"]),
                inner,
                st.sampled_from(["well", "well", "fails", "interrupted"]),
                st.booleans(),
            ),
        ),
        max_size=5,
    ),
    max_leaves=12,
)
endings = st.sampled_from(["well", "fails", "interrupted"])

ERRORS: dict[str, type[BaseException]] = {"fails": Boom, "interrupted": Cancelled}


# -- the model ---------------------------------------------------------------------------------------------------------
class Model:
    """See the module."""

    def __init__(self) -> None:
        self.world = World()
        self.failed: list[int] = []
        self.unknown = 0

    def run(self, body: list[Any], ending: str) -> BaseException | None:
        """A root; what it ends with."""
        error, _, deferred = self.frame(body, ending)
        if error is None:
            self.world.ran = deferred
        return error

    def frame(self, body: list[Any], ending: str) -> tuple[BaseException | None, list[Act], list[int]]:
        """What a frame ends with, the steps that it leaves to be undone, and its deferred acts."""
        held: list[Act] = []
        deferred: list[int] = []
        error: BaseException | None = None
        for item in body:
            if isinstance(item, Block):
                inner, theirs, later = self.frame(item.body, item.ending)
                held += theirs
                deferred += later
                if inner is not None and not (item.caught and isinstance(inner, Exception)):
                    error = inner
                    break
            elif item.outcome == "deferred":
                deferred.append(item.number)
            elif item.outcome == "fails":
                error = Boom()
                break
            elif item.outcome == "unknown":
                self.unknown += 1
                error = TimeoutError()
                break
            else:
                self.world.effects.append(item.number)
                held.append(item)
        else:
            if ending != "well":
                error = ERRORS[ending]()
        return (None, held, deferred) if error is None else (self.undo(held, error), [], [])

    def undo(self, held: list[Act], error: BaseException) -> BaseException:
        """Newest first; a failing undo leaves its effect."""
        failed = False
        for act in reversed(held):
            if act.undo_fails:
                self.failed.append(act.number)
                failed = True
            else:
                self.world.effects.remove(act.number)
                self.world.undone.append(act.number)
        return CompensationError("undos failed", [error]) if failed and isinstance(error, Exception) else error


# -- the real thing ----------------------------------------------------------------------------------------------------
class Program:
    """The same program, run by the library."""

    def __init__(self) -> None:
        self.world = World()
        self.state: dict[str, list[int]] = {"done": []}
        self.report: Any = None

    def act(self, act: Act) -> int:
        """A step."""
        if act.outcome == "fails":
            raise Boom
        if act.outcome == "unknown":
            raise TimeoutError
        self.world.effects.append(act.number)
        self.state["done"].append(act.number)
        return act.number

    def undo(self, act: Act) -> None:
        """Its undo."""
        if act.undo_fails:
            raise OSError(act.number)
        self.world.effects.remove(act.number)
        self.world.undone.append(act.number)

    def run(self, body: list[Any], ending: str) -> BaseException | None:
        """In plain code."""
        try:
            with Saga(self.state) as saga:
                self.scope = saga
                self.block(saga, body, ending)
        except BaseException as error:
            return error
        return None

    def block(self, saga: Any, body: list[Any], ending: str) -> None:
        """The body of a frame."""
        for item in body:
            if isinstance(item, Act):
                if item.outcome == "deferred":
                    saga.defer(self.world.ran.append, item.number)
                else:
                    saga.step(self.act, item, undo=self.undo)
                continue
            try:
                with saga.savepoint() if item.kind == "savepoint" else Saga() as inner:
                    self.block(inner, item.body, item.ending)
            except Exception:
                if not item.caught:
                    raise
        if ending != "well":
            raise ERRORS[ending]

    async def run_async(self, body: list[Any], ending: str) -> BaseException | None:
        """On an event loop."""
        try:
            async with Saga(self.state) as saga:
                self.scope = saga
                await self.block_async(saga, body, ending)
        except BaseException as error:
            return error
        return None

    async def act_async(self, act: Act) -> int:
        """A step."""
        await asyncio.sleep(0)
        return self.act(act)

    async def undo_async(self, act: Act) -> None:
        """Its undo."""
        await asyncio.sleep(0)
        self.undo(act)

    async def block_async(self, saga: Any, body: list[Any], ending: str) -> None:
        """The body of a frame."""
        for item in body:
            if isinstance(item, Act):
                if item.outcome == "deferred":
                    saga.defer(self.world.ran.append, item.number)
                else:
                    await saga.step(self.act_async, item, undo=self.undo_async)
                continue
            try:
                async with saga.savepoint() if item.kind == "savepoint" else Saga() as inner:
                    await self.block_async(inner, item.body, item.ending)
            except Exception:
                if not item.caught:
                    raise
        if ending != "well":
            raise ERRORS[ending]


@pytest.mark.parametrize("colour", ["sync", "async"])
@settings(max_examples=150, deadline=None)
@given(body=programs, ending=endings)
def test_sagas_do_what_the_model_does(colour: str, body: list[Any], ending: str) -> None:
    model, program = Model(), Program()
    expected = model.run(body, ending)
    error = program.run(body, ending) if colour == "sync" else asyncio.run(program.run_async(body, ending))
    assert type(error) is type(expected)
    assert program.world == model.world
    report = program.scope.report
    assert len(report.failed_undos) == len(model.failed)
    assert len(report.unknown) == model.unknown
    assert report.clean == (not model.failed and not model.unknown)
    assert (report.status == "committed") == (expected is None)
    if expected is not None:
        assert program.state == {"done": []}
