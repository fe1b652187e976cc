"""The keeper: renews what a store object holds, and releases what could not be released in place.

One job in the background for each store object, started when there is something to do (`Runtime.spawn`: a task of the
running loop, or a daemon thread), asleep until the next renewal is due, and gone when it wakes up and nothing is held
any more. So a transaction that takes a lock for a moment starts nothing.

- A tenure is renewed every third of its time to live, those that are due at about the same time in one commit, so that
  many agents that think at once cost little; failures are tried again until the time to live has passed since the last
  success, and then the owner is told that it has lost.
- Renewals come first: however much there is to be released, and however often that fails, nobody loses by it.
- Whoever is cancelled while it waits or releases hands the rest over with `later`: it is done here, so a cancelled
  release never leaves something held that nobody can free.
- An event loop that ends ends the job with it. If something is still held, a daemon thread with the backend's blocking
  leaf goes on in its place; where a backend has none, what is held runs out.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from interlock.core.engine import Engine
from interlock.errors import (
    InterlockError,
    UsageError,
)
from interlock.layers.errors import LeaseLostError
from interlock.layers.ledger import Ledger
from interlock.layers.tenures import Tenure, renew_together
from interlock.ports import Job, Waiter

Release = Callable[[Ledger], Coroutine[Any, Any, None]]

RENEWALS: Final = 3
"""How many times within its time to live a tenure is renewed."""
_RETRIES: Final = 10
_PAUSE_SECONDS: Final = 0.05
_TOGETHER: Final = 32
"""How many are renewed in one commit."""

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
        self._releases: list[tuple[Release, int, float]] = []
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
            self._releases.append((release, 0, 0.0))
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
                await self._renew_due(ledger)
                await self._release_due(ledger)
                with self._mutex:
                    if self._closed or not (self._tenures or self._releases):
                        self._job = None
                        return
                    self._wakes = min([*self._due.values(), *[due for _, _, due in self._releases]])
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

    async def _release_due(self, ledger: Ledger) -> None:
        """Release one after another, until something is to be renewed."""
        while True:
            now = ledger.runtime.monotonic()
            with self._mutex:
                ready = next((each for each in self._releases if each[2] <= now), None)
                if ready is None or min(self._due.values(), default=now + 1.0) <= now:
                    return
                self._releases.remove(ready)
            release, failures, _ = ready
            try:
                await release(ledger)
            except InterlockError as error:
                failures += 1
                if failures >= _RETRIES or self._engine.closed:
                    log.warning("what could not be released will run out by itself: %s", error)
                    continue
                due = ledger.runtime.monotonic() + _PAUSE_SECONDS * failures
                with self._mutex:
                    self._releases.append((release, failures, due))
            except BaseException:
                with self._mutex:
                    self._releases.append(ready)
                raise

    async def _renew_due(self, ledger: Ledger) -> None:
        now = ledger.runtime.monotonic()
        with self._mutex:
            due = self._due_before_long(now)
        if all(self._due.get(each.owner, now + 1.0) > now for each in due):
            return
        alike = [each for each in due if type(each) is Tenure and each.renews_together]
        renewed: set[str] = set()
        for place in range(0, len(alike), _TOGETHER):
            some = alike[place : place + _TOGETHER]
            with contextlib.suppress(InterlockError):  # then each one by itself, which finds out what is wrong
                if len(some) > 1 and await renew_together(ledger, some):
                    self._note(ledger, some)
                    renewed.update(each.owner for each in some)
        for tenure in [each for each in due if each.owner not in renewed]:
            failed = False
            try:
                await tenure.renew(ledger)
            except InterlockError as error:
                failed = True
                if tenure.is_unsure(ledger.runtime.monotonic()):
                    message = f"{tenure.name} could not be renewed for {tenure.ttl_seconds:g} seconds: {error}"
                    tenure.lose(LeaseLostError(message, lease=tenure.name))
            self._note(ledger, [tenure], failed=failed)

    def _due_before_long(self, now: float) -> list[Renewed]:
        return [each for owner, each in self._tenures.items() if self._due[owner] <= now + _early(each)]

    def _note(self, ledger: Ledger, tenures: Sequence[Renewed], *, failed: bool = False) -> None:
        """When to renew them next; those that are lost never."""
        now = ledger.runtime.monotonic()
        with self._mutex:
            self._set_due(tenures, now, RENEWALS * (4 if failed else 1))

    def _set_due(self, tenures: Sequence[Renewed], now: float, renewals: int) -> None:
        for tenure in tenures:
            if tenure.owner not in self._tenures:
                continue
            if tenure.loss is not None:
                del self._tenures[tenure.owner], self._due[tenure.owner]
            else:
                self._due[tenure.owner] = now + tenure.ttl_seconds / renewals


def _early(tenure: Renewed) -> float:
    """How many seconds before its time a tenure may be renewed, with others: half of the time between two renewals, so
    that after a few all are renewed at two moments at most."""
    return tenure.ttl_seconds / (RENEWALS * 2)
