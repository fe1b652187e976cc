"""Several calls under way at once, of which one runs: what the agents of a simulation stand on.

Two kinds, which hand on the turn in the same order, so that a seed replays in both. Threads, each of which waits for
its lock; and greenlets, where that package is installed, which change places without the operating system and so
several times as fast. Both begin with an empty context, as a new thread does. Nothing may hold a lock across a change
of places; the code that is simulated does not, since its threads would wait for each other for ever.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, Protocol


class HasStack(Protocol):
    """An agent. ``stack`` is the kind's own."""

    name: str
    stack: Any


class Stacks(Protocol):
    """A kind of stack."""

    def begin(self, agent: HasStack, live: Callable[[], None]) -> None:
        """Make the stack on which ``live`` will run, once it is the agent's turn."""

    def enter(self, first: HasStack) -> None:
        """Give the first its turn, and return when all have ended."""

    def hand_over(self, me: HasStack, chosen: HasStack) -> None:
        """Let another run, and return when it is my turn again."""

    def leave(self, following: HasStack | None) -> None:
        """Let another run; the caller has ended. None: all have."""


class _Threads:
    """A thread for each agent; its lock is open when it is its turn. There is one turn, so a lock counts enough."""

    def __init__(self) -> None:
        self._over = _closed()

    def begin(self, agent: HasStack, live: Callable[[], None]) -> None:
        agent.stack = _closed()

        def wait_and_live() -> None:
            agent.stack.acquire()
            live()

        threading.Thread(target=wait_and_live, name=agent.name, daemon=True).start()

    def enter(self, first: HasStack) -> None:
        """Give the first its turn, and return when all have ended."""
        first.stack.release()
        self._over.acquire()

    def hand_over(self, me: HasStack, chosen: HasStack) -> None:
        """Let another run, and return when it is my turn again."""
        chosen.stack.release()
        me.stack.acquire()

    def leave(self, following: HasStack | None) -> None:
        """Let another run; the caller has ended. None: all have."""
        (self._over if following is None else following.stack).release()


class _Greenlets:
    """A greenlet for each agent, all in the thread that runs the simulation."""

    def __init__(self, module: Any) -> None:
        self._greenlet = module.greenlet
        self._current = module.getcurrent
        self._waiting: list[tuple[HasStack, Callable[[], None]]] = []
        self._home: Any = None
        self._next: HasStack | None = None

    def begin(self, agent: HasStack, live: Callable[[], None]) -> None:
        if self._home is None:
            self._waiting.append((agent, live))
        else:
            agent.stack = self._greenlet(live, self._home)

    def enter(self, first: HasStack) -> None:
        self._home = self._current()
        self.leave(first)
        for agent, live in self._waiting:
            agent.stack = self._greenlet(live, self._home)
        self._waiting.clear()
        while (chosen := self._next) is not None:
            chosen.stack.switch()  # comes back when whoever runs then has ended
        self._home = None

    def hand_over(self, me: HasStack, chosen: HasStack) -> None:
        chosen.stack.switch()

    def leave(self, following: HasStack | None) -> None:
        self._next = following


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def choose_stacks(greenlets: bool | None) -> Stacks:
    """Greenlets if they are wanted (True) or there are any (None), else threads. Raises `ImportError` if they are
    wanted and not installed."""
    if greenlets is not False:
        try:
            return _Greenlets(importlib.import_module("greenlet"))
        except ImportError:
            if greenlets:
                raise
    return _Threads()
