"""What leases and locks outside sessions have in common: acquiring, keeping, checking, giving back.

`Holding` is written once for both worlds; `Held` is its asynchronous shell, `interlock.sync.holdings.Held` the
synchronous one. A holding is acquired once: a second ``with`` on the same object is a `UsageError`, so that no task can
ever release what another has acquired through the same object. Whatever happens on the way out, the record is given
back if, and only if, it is still this holding's own: every removal expects the tenure's version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from interlock.core.carrying import Guard
from interlock.core.engine import Engine
from interlock.core.transaction import current
from interlock.errors import (
    InterlockError,
    UsageError,
)
from interlock.keys import check_name
from interlock.layers.contests import Contest
from interlock.layers.desks import Desk, Place
from interlock.layers.errors import FencedError, LeaseLostError
from interlock.layers.locks import outside
from interlock.layers.queues import Target
from interlock.layers.removals import release, release_later
from interlock.layers.tenures import Tenure
from interlock.model import Key
from interlock.ports import Canceller

SHORTEST_SECONDS: Final = 0.05
"""The shortest time to live of a lease or lock."""


class FencingToken(NamedTuple):
    """Where a grant lies in the store's order. Of two grants of one lease the later has the larger token, for ever."""

    incarnation: int
    position: int


class Holding:
    """One lease or lock, from before it is acquired until after it is given back."""

    def __init__(
        self,
        desk: Desk,
        place: Place,
        targets: Sequence[Target],
        tenure: Tenure,
        wait_seconds: float,
        refusal: Callable[[tuple[str, ...]], InterlockError],
        *,
        cancels: bool = False,
        announced: bool = False,
    ) -> None:
        self.desk = desk
        self.place = place
        self.targets = targets
        self.tenure = tenure
        self.wait_seconds = wait_seconds
        self.refusal = refusal
        self.canceller: Canceller | None = None
        self.cancels = cancels
        self.announced = announced
        self.began = self.ended = False

    async def acquire(self) -> None:
        """Wait for it and take it. Raises what `refusal` makes, `DeadlockError`, and what the backend raises."""
        if self.began:
            raise UsageError(f"{self.place.name}: this object has been entered before; make a new one for each use")
        self.began = True
        runtime = self.desk.engine.runtime
        self.desk.engine.check_open()
        if self.cancels:
            self.canceller = runtime.canceller()
            if self.canceller is None:
                raise UsageError("cancel_on_loss needs a task that can be cancelled; a thread cannot: use check()")
        contest = Contest(self.desk, self.tenure, self.place, self.targets, int(self.tenure.owner, 16))
        await contest.win(runtime.monotonic() + self.wait_seconds, self.refusal)
        if self.announced:
            outside.set((*outside.get(), self))
        if self.canceller is not None:
            self.canceller.enter()
            self.tenure.on_loss.append(self.canceller.cancel)
            if self.tenure.loss is not None:
                self.canceller.cancel()

    async def give_back(self, error: BaseException | None) -> None:
        """End it; no effect if it has ended, or is being ended in the background. Raises `LeaseLostError` if the body
        ended well but the lease was not held to its end."""
        if self.ended:
            return
        cancelled = self.canceller is not None and self.canceller.leave(error)
        self.ended = True
        if self.announced:
            outside.set(tuple(holding for holding in outside.get() if holding is not self))
        tenure, desk = self.tenure, self.desk
        places = list(tenure.seated.values()) or [self.place]
        desk.keeper.remove(tenure)
        try:
            owned = await release(desk, desk.ledger, tenure, places)
        except InterlockError as failure:
            release_later(desk, tenure, places)
            if error is not None and not cancelled:
                error.add_note(f"interlock: {self.place.name} could not be given back yet: {failure}")
                return
            raise
        except BaseException:
            release_later(desk, tenure, places)
            raise
        finally:
            for act in tuple(tenure.on_loss):
                act()
        if tenure.loss is None and not owned:
            tenure.loss = FencedError(f"{self.place.name} was taken over by another owner", lease=self.place.name)
        if tenure.loss is None:
            return
        if error is not None and not cancelled:
            error.add_note(f"interlock: {self.place.name} was lost before the end: {tenure.loss}")
            return
        raise tenure.loss

    @property
    def held(self) -> bool:
        """Whether it has been acquired and not given back."""
        return self.tenure.version is not None and bool(self.tenure.places) and not self.ended

    @property
    def token(self) -> FencingToken:
        """The fencing token. Raises `UsageError` before it is acquired."""
        if self.tenure.version is None:
            raise UsageError(f"{self.place.name} has not been acquired yet")
        return FencingToken(self.tenure.incarnation, self.tenure.version[0])

    @property
    def lost(self) -> bool:
        """Whether it is lost, or has to be believed so."""
        unsure = self.held and self.tenure.is_unsure(self.desk.engine.runtime.monotonic())
        return self.tenure.loss is not None or unsure

    async def confirm(self) -> None:
        """Renew it now. Raises `LeaseLostError`."""
        if not self.held:
            raise LeaseLostError(f"{self.place.name} is not held", lease=self.place.name)
        if self.tenure.loss is None:
            await self.tenure.renew(self.desk.ledger)
        if self.tenure.loss is not None:
            raise self.tenure.loss

    async def until_lost(self) -> None:
        """Wait until it is lost or given back."""
        waiter = self.desk.engine.runtime.waiter()
        self.tenure.on_loss.append(waiter.wake)
        try:
            if self.tenure.loss is None and not self.ended:
                await waiter.wait()
        finally:
            self.tenure.on_loss.remove(waiter.wake)

    def guards(self) -> dict[Key, Guard]:
        """What a commit under it carries."""
        if self.ended:
            raise LeaseLostError(f"{self.place.name} has been given back", lease=self.place.name)
        found = self.tenure.guards()
        if not self.place.durable:
            found[self.tenure.key].incarnation = self.tenure.incarnation
        return found


class Held:
    """Something that is held for the body of an ``async with`` and renews itself meanwhile."""

    __slots__ = ("_holding",)

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    def __repr__(self) -> str:
        return described(self, self._holding)

    @property
    def token(self) -> FencingToken:
        """The fencing token: larger than that of every earlier grant, also over restarts. `UsageError` before it is
        acquired."""
        return self._holding.token

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost, or was not renewed for ``ttl_seconds``, so that others may have it."""
        return self._holding.lost

    async def check(self) -> None:
        """Renew it at once. Raises `LeaseLostError` if it is no longer held."""
        await self._holding.confirm()

    async def wait_lost(self) -> None:
        """Wait until it is lost or given back."""
        await self._holding.until_lost()

    def guards(self) -> dict[Key, Guard]:
        """What the commit of a session carries that is fenced with it; see `AgentSession.fence`."""
        return self._holding.guards()

    async def __aenter__(self) -> Self:
        await self._holding.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._holding.give_back(error)


def described(held: object, holding: Holding) -> str:
    """The repr of both worlds."""
    state = "lost" if holding.lost else "held" if holding.held else "given back" if holding.ended else "not acquired"
    return f"<{type(held).__name__} {holding.place.name} of {holding.tenure.agent!r}: {state}>"


def agent_of(engine: Engine, agent: str | None) -> str:
    """The agent of a call, of the open session, or of the store. Raises `UsageError` where there is none."""
    if agent is not None:
        return check_name("agent", agent)
    inside = current.get()
    if inside is not None and inside.engine is engine:
        return inside.agent
    if engine.agent is None:
        raise UsageError("no agent: pass agent=, or open the store with one")
    return engine.agent


def check_seconds(name: str, seconds: object, least: float) -> float:
    """A number of seconds. Raises `UsageError`."""
    if type(seconds) not in (int, float) or not seconds >= least:  # type: ignore[operator]
        raise UsageError(f"{name} is a number of seconds from {least:g}, not {seconds!r}")
    return float(seconds)  # type: ignore[arg-type]


def desk_of(engine: Engine) -> Desk:
    """The desk of a store object."""
    desk: Any = engine.locking
    assert isinstance(desk, Desk)
    return desk
