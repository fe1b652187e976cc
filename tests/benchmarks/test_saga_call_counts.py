"""What a durable saga of five steps costs, counted: gates that do not depend on time, as in `test_call_counts`.

A number here may be lowered by whoever makes something cheaper. Raising one is a decision."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import interlock
import interlock.sync
from interlock import compensable
from interlock.saga import lags

STEPS = 5
AT_ONCE = 16


async def act(number: int) -> int:
    return number


def act_now(number: int) -> int:
    return number


@compensable(name="counted.undo", outside="run")
def undo(result: int) -> None:
    """Never needed."""


async def saga(store: interlock.Store, name: str) -> None:
    async with store.saga("five", id=name) as saga:
        for number in range(STEPS):
            await saga.step(act, number, undo=undo)


@pytest.fixture(autouse=True)
def nobody_looks_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a result that waits is carried by the saga's next commit."""
    monkeypatch.setattr(lags, "LAG_SECONDS", 600.0)


class Calls:
    """Counts the Python functions that run, comprehensions and resumed coroutines included."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event == "call"

    def __enter__(self) -> Calls:
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)


def test_python_calls_of_a_saga() -> None:
    async def run() -> int:
        async with interlock.open("memory://", agent="counter") as store:
            for name in "ab":
                await saga(store, name)
            with Calls() as calls:
                await saga(store, "c")
            return calls.count

    assert asyncio.run(run()) <= 480


def test_python_calls_of_a_synchronous_saga() -> None:
    def work(store: interlock.sync.Store, name: str) -> None:
        with store.saga("five", id=name) as saga:
            for number in range(STEPS):
                saga.step(act_now, number, undo=undo)

    with interlock.sync.open("memory://", agent="counter") as store:
        for name in "ab":
            work(store, name)
        with Calls() as calls:
            work(store, "c")
    assert calls.count <= 490


def test_sagas_at_once_share_commits_and_the_callers_thread_does_little(tmp_path: Path, statements: list[str]) -> None:
    """Alone each of them makes six commits; together they make little more. The Python calls are those of the event
    loop's thread."""

    async def run() -> int:
        async with interlock.open(f"sqlite:///{tmp_path / 's.db'}", agent="counter") as store:
            for turn in range(2):
                await asyncio.gather(*(saga(store, f"warm-{turn}-{each}") for each in range(AT_ONCE)))
            statements.clear()
            with Calls() as calls:
                await asyncio.gather(*(saga(store, f"{each}") for each in range(AT_ONCE)))
            return calls.count

    assert asyncio.run(run()) / AT_ONCE <= 600
    verbs = Counter(statement.split()[0] for statement in statements)
    assert STEPS + 1 <= verbs["COMMIT"] <= 2 * (STEPS + 1)
    assert verbs["INSERT"] == 2 * verbs["COMMIT"]
