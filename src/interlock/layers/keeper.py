"""The keeper: renews what a store object holds, and releases what could not be released in place.

One job in the background for each store object, started when there is something to do (`Runtime.spawn`: a task of the
running loop, or a daemon thread), asleep until the next renewal is due, and gone when it wakes up and nothing is held
any more. So a transaction that takes a lock for a moment starts nothing.

- A tenure is renewed every third of its time to live; failures are tried again until the time to live has passed since
  the last success, and then the owner is told that it has lost.
- Whoever is cancelled while it waits or releases hands the rest over with `later`: it is done here, so a cancelled
  release never leaves something held that nobody can free.
- An event loop that ends ends the job with it. If something is still held, a daemon thread with the backend's blocking
  leaf goes on in its place; where a backend has none, what is held runs out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from interlock.core.engine import Engine
from interlock.errors import (
    InterlockError,
    UsageError,
)
from interlock.layers.errors import LeaseLostError
from interlock.layers.ledger import Ledger
from interlock.ports import Job, Waiter

Release = Callable[[Ledger], Coroutine[Any, Any, None]]

RENEWALS: Final = 3
"""How many times within its time to live a tenure is renewed."""
_RETRIES: Final = 10

log = logging.getLogger("interlock")


class Renewed(Protocol):
    """What is kept: a tenure, or the presence of a coordinator of sagas."""

    owner: str
    name: str
    ttl_seconds: float
    confirmed: float
    """When the last renewal that succeeded was begun."""

    @property
    def loss(self) -> Exception | None:
        """Why there is nothing to renew any more."""

    async def renew(self, ledger: Ledger) -> None:
        """Put its pulse anew."""

    def is_unsure(self, now: float) -> bool:
        """Whether others may believe it to be dead."""

    def lose(self, error: LeaseLostError) -> None:
        """It is lost."""


class Keeper:
    """See the module. Its lists are guarded by one mutex, never held across an await."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._mutex = threading.Lock()
        self._tenures: dict[str, Renewed] = {}
        self._due: dict[str, float] = {}
        self._releases: list[tuple[Release, int]] = []
        self._job: Job | None = None
        self._waiter: Waiter | None = None
        self._wakes = 0.0
        self._closed = False

    def add(self, tenure: Renewed) -> None:
        """Renew a tenure from now on."""
        due = tenure.confirmed + tenure.ttl_seconds / RENEWALS
        with self._mutex:
            self._tenures[tenure.owner] = tenure
            self._due[tenure.owner] = due
        self._stir(due)

    def remove(self, tenure: Renewed) -> None:
        """Renew it no more."""
        with self._mutex:
            self._tenures.pop(tenure.owner, None)
            self._due.pop(tenure.owner, None)

    def later(self, release: Release) -> None:
        """Have something released in the background."""
        with self._mutex:
            self._releases.append((release, 0))
        self._stir(0.0)

    def close(self) -> None:
        """The store is closed: everything is lost, nothing is renewed."""
        with self._mutex:
            self._closed = True
            tenures, self._tenures, self._due, self._releases = list(self._tenures.values()), {}, {}, []
            job, waiter = self._job, self._waiter
        for tenure in tenures:
            tenure.lose(LeaseLostError(f"{tenure.name} is no longer renewed: the store was closed", lease=tenure.name))
        if waiter is not None:
            waiter.wake()
        if job is not None:
            job.cancel()

    def _stir(self, due: float) -> None:
        """Make sure that the job is awake by ``due``."""
        with self._mutex:
            if self._closed:
                return
            if self._job is not None and self._job.alive():
                waiter = self._waiter if due < self._wakes else None
                if waiter is not None:
                    waiter.wake()
                return
            self._waiter, self._wakes = None, 0.0
            try:
                self._job = self._engine.runtime.spawn("interlock-keeper", lambda: self._work(Ledger(self._engine)))
            except UsageError:  # no event loop runs in this thread
                self._job = self._thread()

    def _thread(self) -> Job | None:
        """The job as a daemon thread, whatever the store's world; None where the backend cannot block."""
        backend = self._engine.backend.blocking()
        if backend.suspends:
            return None
        runtime = self._engine.runtime.blocking()
        ledger = Ledger(self._engine, backend=backend, runtime=runtime)
        try:
            return runtime.spawn("interlock-keeper", lambda: self._work(ledger))
        except RuntimeError:  # the interpreter is ending
            return None

    async def _work(self, ledger: Ledger) -> None:
        try:
            while True:
                with self._mutex:
                    self._waiter = waiter = ledger.runtime.waiter()
                    self._wakes = 0.0
                    releases, self._releases = self._releases, []
                for release, failures in releases:
                    await self._release(ledger, release, failures)
                await self._renew_due(ledger)
                with self._mutex:
                    if self._closed or not (self._tenures or self._releases):
                        self._job = None
                        return
                    self._wakes = ledger.runtime.monotonic() if self._releases else min(self._due.values())
                    seconds = self._wakes - ledger.runtime.monotonic()
                await waiter.wait(max(seconds, 0.0))
        except GeneratorExit:
            raise
        except BaseException:
            self._hand_over(ledger)
            raise

    def _hand_over(self, ledger: Ledger) -> None:
        """The loop ends, and the job with it."""
        with self._mutex:
            needed = bool(self._tenures or self._releases) and not self._closed
            self._job = self._thread() if needed and ledger.runtime.suspends else None

    async def _release(self, ledger: Ledger, release: Release, failures: int) -> None:
        try:
            await release(ledger)
        except InterlockError as error:
            if failures + 1 >= _RETRIES or self._engine.closed:
                log.warning("what could not be released will run out by itself: %s", error)
                return
            with self._mutex:
                self._releases.append((release, failures + 1))
            await ledger.runtime.sleep(0.05 * (failures + 1))
        except BaseException:
            with self._mutex:
                self._releases.append((release, failures))
            raise

    async def _renew_due(self, ledger: Ledger) -> None:
        now = ledger.runtime.monotonic()
        with self._mutex:
            due = [tenure for owner, tenure in self._tenures.items() if self._due[owner] <= now]
        for tenure in due:
            failed = False
            try:
                await tenure.renew(ledger)
            except InterlockError as error:
                failed = True
                if tenure.is_unsure(ledger.runtime.monotonic()):
                    message = f"{tenure.name} could not be renewed for {tenure.ttl_seconds:g} seconds: {error}"
                    tenure.lose(LeaseLostError(message, lease=tenure.name))
            pause = tenure.ttl_seconds / (RENEWALS * 4) if failed else tenure.ttl_seconds / RENEWALS
            with self._mutex:
                if tenure.owner in self._tenures:
                    if tenure.loss is not None:
                        del self._tenures[tenure.owner], self._due[tenure.owner]
                    else:
                        self._due[tenure.owner] = ledger.runtime.monotonic() + pause
