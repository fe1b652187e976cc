"""Time that stands still until a test moves it, and randomness that replays.

A `Clock` is all the time there is for a store that is opened with it: the engine's own clock, by which records expire
and history grows old; the wall clock, from which ids are made; and the monotonic clock of deadlines and waits. Whoever
waits with a time-out waits until somebody calls `Clock.advance`; nothing ever happens because real time has passed.

The one exception: where synchronous code *sleeps* (between two attempts of `run`), the sleep itself moves the clock,
since nobody else runs in its thread who could.

`advance` may be called from any thread. It wakes those whose time has come and returns; in an event loop they go on
when the loop gets to them, all at the new time.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from interlock.errors import UsageError
from interlock.ports import Canceller, Job, Runtime, Waiter
from interlock.runtime import AsyncRuntime, BlockingRuntime

START_SECONDS: Final = 1_767_225_600.0
"""Where clocks begin: 2026-01-01, 00:00 UTC."""
_MONOTONIC_START: Final = 1_000.0
_FOREVER: Final = float("inf")


class Clock:
    """The time of a store under test.

    Args:
        start_seconds: the wall-clock time at the beginning, in seconds since 1970.
        seed: where the randomness of ids and back-off begins; the same seed and the same calls give the same ids.
    """

    def __init__(self, *, start_seconds: float = START_SECONDS, seed: int = 0) -> None:
        self._start = float(start_seconds)
        self._elapsed = 0.0
        self._lock = threading.Lock()
        self._waiting: dict[Waiter, float] = {}
        self._random = random.Random(seed)
        self.engine_time = self.time
        """The clock of the engine: one and the same object at each look, by which a backend knows its clock again."""

    def __repr__(self) -> str:
        return f"<Clock {self._elapsed:g} seconds after its start>"

    def time(self) -> float:
        """Seconds since 1970."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Seconds for deadlines and waits."""
        return _MONOTONIC_START + self._elapsed

    def random_bits(self, count: int) -> int:
        """``count`` bits of the seeded randomness."""
        return self._random.getrandbits(count)

    def uniform(self, low: float, high: float) -> float:
        """A number between ``low`` and ``high`` of the seeded randomness."""
        return self._random.uniform(low, high)

    @property
    def sleeping(self) -> int:
        """How many callers wait for this clock: for a test that wants to be sure before it moves it."""
        with self._lock:
            return sum(deadline < _FOREVER for deadline in self._waiting.values())

    def advance(self, seconds: float) -> None:
        """Move the time forward and wake everybody whose time has come. Raises `UsageError` for a step back."""
        if type(seconds) not in (int, float) or not 0 <= seconds < _FOREVER:
            raise UsageError(f"a clock is advanced by a number of seconds from 0, not {seconds!r}")
        with self._lock:
            self._elapsed += seconds
            now, waiting = self.monotonic(), list(self._waiting.items())
        for waiter in [waiter for waiter, deadline in waiting if deadline <= now]:
            waiter.wake()

    def runtime(self, *, suspends: bool) -> Runtime:
        """The runtime that lives by this clock: for asynchronous callers (``suspends``), or for blocking ones."""
        return _ClockRuntime(self, suspends=suspends)

    def enlist(self, waiter: Waiter, deadline: float) -> None:
        """Have a waiter woken at ``deadline`` (monotonic seconds)."""
        with self._lock:
            self._waiting[waiter] = deadline

    def dismiss(self, waiter: Waiter) -> None:
        """Forget a waiter."""
        with self._lock:
            self._waiting.pop(waiter, None)


class _ClockRuntime:
    """Time and randomness of a clock; the way of waiting of a real runtime."""

    def __init__(self, clock: Clock, *, suspends: bool) -> None:
        self.suspends = suspends
        self._clock = clock
        self._world: Runtime = AsyncRuntime() if suspends else BlockingRuntime()
        self.monotonic = clock.monotonic
        self.time = clock.time
        self.random_bits = clock.random_bits
        self.uniform = clock.uniform

    def shield(self) -> contextlib.AbstractContextManager[object]:
        """The world's own."""
        return self._world.shield()

    async def sleep(self, seconds: float) -> None:
        """Until the clock has been advanced so far; a blocking caller advances it itself."""
        if self.suspends:
            await self.waiter().wait(seconds)
        else:
            self._clock.advance(max(0.0, seconds))

    def waiter(self) -> Waiter:
        """A waiter whose time-outs are the clock's."""
        return _ClockWaiter(self._clock, self._world)

    def wake_all(self, waiters: Iterable[Waiter]) -> None:
        """One after another."""
        for waiter in waiters:
            waiter.wake()

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Job:
        """Work in the background, whose waits are the clock's as well."""
        return self._world.spawn(name, work)

    def blocking(self) -> Runtime:
        """The clock's runtime for threads."""
        return self if not self.suspends else _ClockRuntime(self._clock, suspends=False)

    def canceller(self) -> Canceller | None:
        """The world's own."""
        return self._world.canceller()


class _ClockWaiter:
    """Waits to be woken, or for the clock. Each wait uses a fresh waiter of the world, which both may wake."""

    def __init__(self, clock: Clock, world: Runtime) -> None:
        self._clock = clock
        self._world = world
        self._lock = threading.Lock()
        self._woken = False
        self._inner: Waiter | None = None

    def wake(self) -> None:
        """Let the caller go on."""
        with self._lock:
            self._woken = True
            inner = self._inner
        if inner is not None:
            inner.wake()

    async def wait(self, timeout_seconds: float | None = None, *, shielded: bool = False) -> bool:
        """Until woken (True), or until the clock has been advanced so far (False)."""
        deadline = _FOREVER if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        while (inner := self._next()) is not None:
            self._clock.enlist(inner, deadline)
            try:
                if self._clock.monotonic() >= deadline:
                    return self._woken
                await inner.wait(shielded=shielded)
            finally:
                self._clock.dismiss(inner)
        return True

    async def wait_out(self) -> None:
        """Until woken, whatever happens to the caller meanwhile."""
        inner = self._next()
        if inner is not None:
            await inner.wait_out()

    def _next(self) -> Waiter | None:
        """A fresh waiter of the world; None once woken."""
        inner = self._world.waiter()
        with self._lock:
            self._inner = inner
            return None if self._woken else inner
