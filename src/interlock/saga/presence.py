"""Who coordinates a saga: one sign of life for all the sagas of a store object, and the saga's own record as the fence.

The record of a saga names its *owner*: the store object that coordinates it, or nobody. An owner shows that it is alive
by its *pulse*, a record with a time to live that it puts anew all the time; one for all its sagas, so that a saga
costs no record, no renewal and no background work of its own. What a lease of the store would give holds here, too:

- Every commit of a coordinator expects the version that it gave the saga's record itself. To take a saga over is to
  write that record. So of the two exactly one comes first, and nothing that the earlier coordinator sends behind that
  is accepted. No clock takes part.
- A takeover expects the pulse as it was last seen, so an owner that was renewed in between keeps its sagas. One that
  was dead, or believed so, has its pulse removed; should it live after all it puts another one, and learns at the next
  write to each saga whether that is still its own.
- Inside a store object a saga is in `Coordinators` from before it is looked at until it was left, so two tasks or
  threads never coordinate one saga, though both would be the same owner.

A pulse is not durable. If the engine loses some in a crash, a saga may be taken over early, never unnoticed. A pulse
that no saga needs is removed when it would have to be renewed.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from interlock.core.engine import Engine
from interlock.errors import BackendUnavailableError, SnapshotTooOldError
from interlock.layers.desks import Desk
from interlock.layers.errors import LeaseUnavailableError
from interlock.layers.holdings import SHORTEST_SECONDS, check_seconds, desk_of
from interlock.layers.ledger import Ledger
from interlock.layers.tenures import PULSES
from interlock.model import ABSENT, CommitRefused, Delete, Expectation, Key, Put, Token, Write
from interlock.ports import Capability

_TRIES: Final = 5


class Presence:
    """One owner. Renewed by the store's keeper (`interlock.layers.keeper`), to which it looks like a tenure."""

    def __init__(self, desk: Desk, agent: str, ttl_seconds: float) -> None:
        self.owner = desk.new_owner()
        self.name = f"the sagas of agent {agent!r}"
        self.ttl_seconds = ttl_seconds
        self.key: Key = PULSES.key(self.owner)
        self.confirmed = 0.0
        """When the last renewal that succeeded was begun, by the own monotonic clock."""
        self.loss: Exception | None = None
        self.sagas = 0
        """How many need it."""
        self.over = False
        """Whether it is to end with the next renewal, and nobody may use it any more."""
        self._desk = desk
        self._agent = agent
        self._version: Expectation = ABSENT
        self._token: Token | None = None
        self._process = os.getpid()

    def is_good(self, now: float) -> bool:
        """Whether another saga may rely on it."""
        if self.over or self.loss is not None or self._process != os.getpid():
            return False
        return now - self.confirmed < self.ttl_seconds / 2

    def is_unsure(self, now: float) -> bool:
        """Never: there is nothing that it would do otherwise if it were believed dead."""
        return False

    def lose(self, error: Exception) -> None:
        """The store is closed."""
        self.loss = error

    async def renew(self, ledger: Ledger) -> None:
        """Show that the owner is alive; the end of one that no saga needs. Raises as `Ledger.commit` does."""
        with coordinators_of(self._desk.engine).mutex:
            self.over = self.over or not self.sagas
        for _ in range(_TRIES):
            began = ledger.runtime.monotonic()
            if self.over and self._version is ABSENT:
                break
            write: Write = Delete() if self.over else self._pulse(ledger)
            try:
                done = await ledger.commit(
                    {self.key: write}, {self.key: self._version}, agent=self._agent, durable=False, quiet=True,
                    snapshot=self._token,
                )  # fmt: skip
            except SnapshotTooOldError:
                self._token = None
            except CommitRefused:
                entry = (await ledger.backend.read((self.key,))).entries[0]
                self._version = ABSENT if entry is None or entry.value is None else entry.version
            else:
                self._token, self.confirmed = done.token, began
                self._version = ABSENT if self.over or done.version is None else done.version
                break
        else:
            raise BackendUnavailableError(f"the pulse of {self.name} could not be renewed: it kept changing")
        if self.over:
            self._desk.keeper.remove(self)

    def _pulse(self, ledger: Ledger) -> Put:
        expires = Capability.EXPIRY in ledger.backend.capabilities
        return PULSES.put(None, ttl_seconds=self.ttl_seconds if expires else None, listed=False)


class Coordinators:
    """What the sagas of one store object share."""

    def __init__(self, engine: Engine) -> None:
        self.mutex = threading.Lock()
        self._engine = engine
        self._desk = desk_of(engine)
        self._presences: dict[float, Presence] = {}
        self._held: dict[Key, str] = {}
        """The sagas that are coordinated here, and on whose behalf."""
        self._process = os.getpid()

    async def enter(self, saga: Key, title: str, agent: str, ttl_seconds: float) -> Presence:
        """Begin to coordinate a saga, as far as this store object is concerned; who it will belong to.

        Raises `UsageError` for a time that is none, `LeaseUnavailableError` if it is coordinated here already, and what
        the backend raises. `leave` is needed only where this has not raised."""
        ttl_seconds = check_seconds("lease_seconds", ttl_seconds, SHORTEST_SECONDS)
        self._engine.check_open()
        with self.mutex:
            if self._process != os.getpid():  # what is coordinated in the parent of a fork is not coordinated here
                self._process, self._held, self._presences = os.getpid(), {}, {}
            if saga in self._held:
                raise unavailable(title, self._held[saga])
            self._held[saga] = agent
        try:
            return self._good(ttl_seconds) or await self._found(agent, ttl_seconds)
        except BaseException:
            with self.mutex:
                self._held.pop(saga, None)
            raise

    def leave(self, saga: Key, presence: Presence) -> None:
        """No longer coordinate it here."""
        with self.mutex:
            self._held.pop(saga, None)
            presence.sagas -= 1

    def _good(self, ttl_seconds: float) -> Presence | None:
        with self.mutex:
            presence = self._presences.get(ttl_seconds)
            if presence is None or not presence.is_good(self._engine.runtime.monotonic()):
                return None
            presence.sagas += 1
            return presence

    async def _found(self, agent: str, ttl_seconds: float) -> Presence:
        """Put a new pulse, or the one that there is once more; callers take turns, so one does it for all."""
        desk, turn = self._desk, object()
        gate = PULSES.key("sagas", repr(ttl_seconds))
        await desk.gates.enter(gate, turn)
        try:
            known = self._good(ttl_seconds)
            if known is not None:
                return known
            with self.mutex:
                presence = self._presences.get(ttl_seconds)
                if presence is None or presence.over or presence.loss is not None:
                    presence = Presence(desk, agent, ttl_seconds)
                presence.sagas += 1
            try:
                await presence.renew(desk.ledger)
            except BaseException:
                with self.mutex:
                    presence.sagas -= 1
                raise
            with self.mutex:
                self._presences[ttl_seconds] = presence
            desk.keeper.add(presence)
            return presence
        finally:
            desk.gates.leave(gate, turn)


def unavailable(title: str, agent: str) -> LeaseUnavailableError:
    """The error for a saga that somebody coordinates."""
    return LeaseUnavailableError(f"saga {title} is coordinated by {agent}", lease=f"saga {title}", holders=(agent,))


def coordinators_of(engine: Engine) -> Coordinators:
    """Those of a store object."""
    found: Any = engine.shared.get(Coordinators)
    if found is None:
        found = engine.shared.setdefault(Coordinators, Coordinators(engine))
    assert isinstance(found, Coordinators)
    return found


async def claim_of(
    engine: Engine, ledger: Ledger, title: str, head: dict[str, Any], own: str
) -> tuple[dict[Key, Write], dict[Key, Expectation]]:
    """What a commit writes and expects besides the saga's record that takes the saga over.

    Raises `LeaseUnavailableError` while its owner lives."""
    owner = head.get("owner")
    if owner is None or owner == own:
        return {}, {}
    key = PULSES.key(owner)
    reading = await ledger.backend.read((key,))
    pulse, now = reading.entries[0], ledger.runtime.monotonic()
    left = desk_of(engine).witness.look(
        ledger.backend, owner, float(head.get("lease", 0)), pulse, pulse, reading.at, now
    )
    if left > 0:
        raise unavailable(title, head["agent"])
    if pulse is None or pulse.value is None:
        return {}, {key: ABSENT}
    return {key: Delete()}, {key: pulse.version}
