"""A tenure: the life of one owner of leases or locks, as others can see it and end it.

Two records. The *tenure* is written when the owner gets hold of something and does not change as long as the owner
may go on; its version is the fencing token's position, and whatever the owner commits expects that version. The
*pulse* is put anew all the time by the owner, with a time to live, for as long as it is alive.

- To take something away from an owner is to delete its tenure, and to expect in the same commit the pulse that was
  last seen (`takeover`). Renewal expects the tenure. So either the owner was renewed first and the takeover is refused,
  or it was taken over first, and no renewal and no commit of the owner's succeeds from then on. No clock takes part.
- When somebody *tries* is a matter of clocks, and only of waiting long enough: `Witness` allows it when the engine's
  own clock says that the pulse has expired, or when the same pulse was there at both ends of a whole time to live on
  the observer's own monotonic clock. Nobody compares two clocks; a wall clock that jumps changes nothing.
- Pulses are not durable. If the engine loses some in a crash, an owner may be taken over early, never unnoticed.
  ``incarnation`` notes the engine's; where other records (lock tables) are not durable either, a commit under a later
  incarnation must not rely on them, see `guards`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from interlock.core.carrying import Guard
from interlock.errors import (
    BackendUnavailableError,
    SnapshotTooOldError,
)
from interlock.layers.errors import FencedError, LeaseError, LeaseLostError
from interlock.layers.ledger import Done, Kind, Ledger, is_expired
from interlock.model import ABSENT, Clash, CommitRefused, Delete, Entry, Expectation, Key, Token, Version, Write
from interlock.ports import Backend, Capability

TENURES: Final = Kind("tenure")
PULSES: Final = Kind("pulse")
_TRIES: Final = 5


def tells_time(backend: Backend) -> bool:
    """Whether the engine itself can say that a pulse has expired."""
    return {Capability.CLOCK, Capability.EXPIRY} <= backend.capabilities


class Tenure:
    """One owner, seen from itself. Used by its own task or thread and by the keeper's; every field is written whole."""

    def __init__(
        self, owner: str, agent: str, ttl_seconds: float, *, name: str, durable: bool, strict: bool = False
    ) -> None:
        self.owner = owner
        self.agent = agent
        self.ttl_seconds = float(ttl_seconds)
        self.name = name
        self.durable = durable
        self.strict = strict
        self.key: Key = TENURES.key(owner)
        self.pulse_key: Key = PULSES.key(owner)
        self.version: Version | None = None
        self.pulse: Version | None = None
        self.token: Token | None = None
        self.incarnation = 0
        self.confirmed = 0.0
        """When the last renewal that succeeded was begun, by the own monotonic clock."""
        self.places: dict[Key, Any] = {}
        """The tables, and parts of tables, in which it holds something."""
        self.seated: dict[Key, Any] = {}
        """Those in which it may have a seat: it holds something there, waits there, or does not know."""
        self.queued = False
        """Whether it has ever waited."""
        self.leaving = False
        """Whether it is being given back: what a renewal finds from then on says nothing."""
        self.loss: LeaseError | None = None
        self.on_loss: list[Callable[[], object]] = []

    # -- beginning and going on ----------------------------------------------------------------------------------------
    def founding(self, ledger: Ledger) -> tuple[dict[Key, Write], dict[Key, Expectation]]:
        """The writes that begin this tenure, or give it the version of the commit that they are part of, and what that
        commit expects."""
        value = {"agent": self.agent, "name": self.name, "ttl_seconds": self.ttl_seconds, "strict": self.strict}
        writes: dict[Key, Write] = {
            self.key: TENURES.put(value, listed=False),
            self.pulse_key: self.pulse_write(ledger),
        }
        return writes, {self.key: self.version or ABSENT, self.pulse_key: self.pulse or ABSENT}

    def founded(self, done: Done, began: float) -> None:
        """The commit with `founding` in it has happened; ``began``: when it was sent."""
        self.version = self.pulse = done.version
        self.token, self.incarnation = done.token, done.token.incarnation
        self.confirmed = began

    def pulse_write(self, ledger: Ledger) -> Write:
        """What puts the pulse anew."""
        ttl_seconds = self.ttl_seconds if Capability.EXPIRY in ledger.backend.capabilities else None
        return PULSES.put(None, ttl_seconds=ttl_seconds, listed=False)

    async def renew(self, ledger: Ledger) -> None:
        """Show that the owner is alive. Marks the tenure as lost if it is; raises `BackendUnavailableError` or
        `CommitUnknownError` if that cannot be found out now."""
        for _ in range(_TRIES):
            if self.loss is not None or self.version is None or self.leaving:
                return
            began = ledger.runtime.monotonic()
            try:
                done = await ledger.commit(
                    {self.pulse_key: self.pulse_write(ledger)},
                    {self.key: self.version, self.pulse_key: self.pulse or ABSENT},
                    alive=(self.pulse_key,) if self.strict else (),
                    agent=self.agent, durable=False, quiet=True, snapshot=self.token,
                )  # fmt: skip
            except SnapshotTooOldError:
                self.token = None
            except CommitRefused:
                await self.look_again(ledger)
            else:
                self.pulse, self.token, self.confirmed = done.version, done.token, began
                return
        raise BackendUnavailableError(f"{self.name} could not be renewed: its records kept changing")

    @property
    def renews_together(self) -> bool:
        """Whether its renewal may be one commit with those of others: it expects nothing of the time."""
        return self.loss is None and self.version is not None and not (self.strict or self.leaving)

    async def look_again(self, ledger: Ledger) -> None:
        """A renewal was refused: the tenure is over, or the pulse is another than thought (put by a renewal at the same
        time, dropped by compaction, lost in a crash of the engine)."""
        reading = await ledger.backend.read((self.key, self.pulse_key))
        tenure, pulse = reading.entries
        if self.leaving:
            return
        if tenure is None or tenure.value is None or tenure.version != self.version:
            self.lose(FencedError(f"{self.name} was taken over by another owner", lease=self.name))
        elif self.strict and (pulse is None or pulse.value is None or is_expired(pulse, reading.at)):
            self.lose(LeaseLostError(f"{self.name} has expired", lease=self.name))
        else:
            self.pulse = None if pulse is None or pulse.value is None else pulse.version

    def is_unsure(self, now: float) -> bool:
        """Whether others may believe it to be dead: no renewal for a whole time to live."""
        return now - self.confirmed >= self.ttl_seconds

    def lose(self, error: LeaseError) -> None:
        """From now on the owner knows that it holds nothing."""
        if self.loss is None:
            self.loss = error
            for act in tuple(self.on_loss):
                act()

    def guards(self) -> dict[Key, Guard]:
        """What a commit carries that is made under this tenure. Raises `LeaseLostError` if it is known to be lost."""
        if self.loss is not None:
            raise self.loss
        if self.version is None:
            raise LeaseLostError(f"{self.name} is not held", lease=self.name)
        found = {self.key: Guard(self.version, refused=self._fenced)}
        if self.strict:
            found[self.pulse_key] = Guard(self.pulse or ABSENT, alive=True, refused=self._expired)
        return found

    def _fenced(self, guard: Guard, clash: Clash) -> BaseException:
        error = FencedError(f"{self.name} was taken over by another owner; nothing was written", lease=self.name)
        self.lose(error)
        return error

    def _expired(self, guard: Guard, clash: Clash) -> BaseException | None:
        """A pulse that is another one was renewed meanwhile; the same one has expired."""
        now = clash.current
        if now is None or now.value is None or now.version == guard.expected:
            error = LeaseLostError(f"{self.name} has expired; nothing was written", lease=self.name)
            self.lose(error)
            return error
        guard.expected = now.version
        return None


async def renew_together(ledger: Ledger, tenures: Sequence[Tenure]) -> bool:
    """Renew several tenures in one commit; False if that did not succeed, for whichever of them: then each has to be
    renewed by itself. Raises as `Tenure.renew` does."""
    began = ledger.runtime.monotonic()
    expected: dict[Key, Expectation] = {}
    for tenure in tenures:
        assert tenure.version is not None  # see `renews_together`
        expected[tenure.key], expected[tenure.pulse_key] = tenure.version, tenure.pulse or ABSENT
    try:
        done = await ledger.commit(
            {tenure.pulse_key: tenure.pulse_write(ledger) for tenure in tenures}, expected,
            agent=tenures[0].agent, durable=False, quiet=True, snapshot=tenures[0].token,
        )  # fmt: skip
    except (CommitRefused, SnapshotTooOldError):
        return False
    for tenure in tenures:
        tenure.pulse, tenure.token, tenure.confirmed = done.version, done.token, began
    return True


class Witness:
    """What one store object has seen of other owners' pulses, and when."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Version, float]] = {}

    def look(
        self, backend: Backend, owner: str, ttl_seconds: float, tenure: Entry | None, pulse: Entry | None, at: float,
        now: float,
    ) -> float:  # fmt: skip
        """After how many seconds the owner may be taken over if nothing changes; 0: at once. ``at`` is the engine's
        clock, ``now`` the own monotonic one."""
        if tenure is None or tenure.value is None or pulse is None or pulse.value is None:
            self._seen.pop(owner, None)
            return 0.0
        if tells_time(backend) and is_expired(pulse, at):
            return 0.0
        version, since = self._seen.get(owner, (None, now))
        if version != pulse.version:
            if len(self._seen) > 10_000:
                self._seen.clear()
            self._seen[owner] = (pulse.version, now)
            since = now
        left = since + ttl_seconds - now
        if tells_time(backend) and pulse.expires_at is not None:
            left = min(left, pulse.expires_at - at)
        return max(0.0, left)


def takeover(owner: str, tenure: Entry | None, pulse: Entry | None) -> tuple[dict[Key, Write], dict[Key, Expectation]]:
    """The writes that end another's tenure, and what they expect: that nobody has renewed or ended it since."""
    writes: dict[Key, Write] = {}
    expected: dict[Key, Expectation] = {}
    for key, entry in ((TENURES.key(owner), tenure), (PULSES.key(owner), pulse)):
        live = entry is not None and entry.value is not None
        expected[key] = entry.version if entry is not None and live else ABSENT
        if live:
            writes[key] = Delete()
    return writes, expected
