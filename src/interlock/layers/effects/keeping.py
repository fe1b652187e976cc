"""Renewal: claims whose act takes long are kept alive in the background.

One job for each store object, a task or a thread, begun with the first claim and ended when there has been none for a
while. It looks about three times in the time of the shortest claim, so a claim that is settled before its first look
costs a dictionary's two operations and nothing else. A renewal is one volatile, quiet commit that expects the version
that was just read and writes a later ``claimed_at``; it renews only what still names the claim, so it can neither
revive what was taken away nor disturb what was settled.

If the process stops (SIGSTOP, a suspended machine, an event loop that somebody blocks), nothing renews, the claim ends,
and that is what it is for. If renewing fails, it is tried again at the next look; the claim ends if that goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.errors import InterlockError
from interlock.layers.effects.records import EFFECT, EXECUTING, Stored
from interlock.layers.ledger import Ledger
from interlock.model import CommitRefused

if TYPE_CHECKING:
    from interlock.layers.effects.journal import Claim
    from interlock.ports import Job, Waiter

_LOOKS: Final = 3.0
"""How often to look within a claim's time."""

log = logging.getLogger("interlock")


class Keeper:
    """The claims that this process holds, and the job that renews them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """At the beginning, and in a forked child: what its parent holds is the parent's to renew."""
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._claims: dict[int, Claim] = {}
        self._job: Job | None = None
        self._waiter: Waiter | None = None
        self._tick_seconds = 0.0

    def hold(self, claim: Claim) -> None:
        """Renew a claim from now on, until `release`."""
        if self._process != os.getpid():
            self._begin_anew()
        tick = claim.stored.claim_seconds / _LOOKS
        with self._guard:  # the job looks for claims under it, and ends only if there are none
            self._claims[claim.stored.claim] = claim
            job = self._job
            if job is not None and tick >= self._tick_seconds and job.alive():
                return
        self._begin(tick)

    def release(self, claim: Claim) -> None:
        """Renew it no longer."""
        self._claims.pop(claim.stored.claim, None)

    def _begin(self, tick: float) -> None:
        runtime = self._ledger.engine.runtime
        with self._guard:
            if self._closed:
                return
            if self._job is not None and self._job.alive():
                if tick >= self._tick_seconds:
                    return
                self._tick_seconds = tick
                if self._waiter is not None:
                    self._waiter.wake()
                return
            self._tick_seconds = tick
            self._job = runtime.spawn("interlock-effects", self._work)

    def close(self) -> None:
        """End the job; nothing is renewed any more."""
        with self._guard:
            self._closed = True
            job, waiter = self._job, self._waiter
        if waiter is not None:
            waiter.wake()
        if job is not None:
            job.cancel()

    async def _work(self) -> None:
        """The job. It ends when a look finds no claim; whoever then takes one begins another."""
        runtime = self._ledger.engine.runtime
        while True:
            with self._guard:
                if self._closed:
                    return
                self._waiter = waiter = runtime.waiter()
                tick = self._tick_seconds
            await waiter.wait(tick)
            with self._guard:
                if not self._is_needed():
                    self._job = None
                    return
            try:
                await self._renew()
            except InterlockError as error:
                log.warning("the claims of effects could not be renewed, which will be tried again: %s", error)

    def _is_needed(self) -> bool:
        return not self._closed and bool(self._claims)

    async def _renew(self) -> None:
        claims = {claim.key: claim for claim in list(self._claims.values())}
        found = await self._ledger.read(EFFECT, list(claims))
        at = found.at or 0.0
        for record in found.records:
            claim, stored = claims[record.key], record.value
            if not _names(stored, claim) or stored.claim_ends_at - at > stored.claim_seconds * (1 - 0.9 / _LOOKS):
                continue
            renewed = msgspec.structs.replace(stored, claimed_at=at)
            try:
                await self._ledger.commit(
                    {record.key: EFFECT.put(renewed)}, {record.key: record.expected},
                    agent=stored.claimed_by, durable=False, quiet=True, snapshot=found.token,
                )  # fmt: skip
            except CommitRefused:  # settled or taken away meanwhile
                pass


def _names(stored: Stored | None, claim: Claim) -> bool:
    return stored is not None and stored.status is EXECUTING and stored.claim == claim.stored.claim
