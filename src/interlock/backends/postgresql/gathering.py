"""Calls that come while others are under way go together in the next one.

A lane is one call at a time; `LANES` are open from the start, so that one fills while others are under way. A call
begins with the loop's next turn, when all who come in this moment are there. Only where `LONE` calls in a row were for
one caller each, as at a hot key, whose callers take turns, and no call is under way, it begins at once, in the step of
the caller (`Begun`): before anything else that the loop has to do. If the lanes are held up, by a lock that another
process holds or by a slow disk, those who queue get a lane more after `RELIEF_SECONDS`, or twice as long as calls take
here if that is longer, so that nobody waits long for strangers.

**Stragglers.** A call costs the server and the loop several times what a caller more in a call costs, and a sync. Where
callers go round, as tasks do that read, commit and begin again, one of them who is out of step with thirty others
would go alone for good, and have half of all calls. So three rules bring him back to them, each of which lets him wait
for no longer than calls take:

- few do not get a second lane beside many: they wait until those have ended (`PART`);
- a lane that has ended a call looks at its queue a turn later, when those who were answered had the time to come again;
- few do not begin a call while many are in the calls of the gatherer before this one, whose callers come here next, as
  those who read come to commit. When such a call has ended and its callers have gone on, the few go, with them or
  without. If it was without them, the next `VAIN` times nobody is waited for: these readers do not commit.

None of them can hold up a call for good, whoever waits for whom outside: the time of relief opens a lane whatever they
say.

For one event loop; nothing here is called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

LANES: Final = 2
RELIEF_SECONDS: Final = 0.01
LONE: Final = 4
"""After so many calls for one caller each the next one is not waited with."""
PART: Final = 4
"""Few are fewer than many divided by this."""
MANY: Final = 12
"""Fewer than these are not many: among eight, what is lost by waiting is more than what is saved."""
VAIN: Final = 64
"""So many times those who were waited for in vain are not waited for again."""


class Begun(Coroutine[Any, Any, None]):
    """A coroutine that was begun before it became a task: the first step of the task is what has been done already.

    What it waits for then, a future, is given to the task, or, if the task is cancelled before its first step, the
    coroutine gets the cancellation where it waits. Nothing in the first step may ask which task it runs in."""

    __slots__ = ("_coroutine", "_waits", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Raises `StopIteration` if the first step is all."""
        self._coroutine = coroutine
        self._waits_for: Any = coroutine.send(None)
        self._waits = True

    def send(self, value: Any) -> Any:
        """The next step, of which the first has been made."""
        if self._waits:
            self._waits, found, self._waits_for = False, self._waits_for, None
            return found
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """The same, with an error."""
        self._waits, self._waits_for = False, None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End it where it is."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        if self._waits:
            yield self.send(None)
        yield from self._coroutine.__await__()


class _Alone:
    """Around a call that a caller makes itself."""

    __slots__ = ("_gatherer",)

    def __init__(self, gatherer: Gatherer[Any]) -> None:
        self._gatherer = gatherer

    def __enter__(self) -> None:
        self._gatherer.enter()

    def __exit__(self, *error: object) -> None:
        self._gatherer.leave()


def _are_few(count: int, many: int) -> bool:
    """Whether so many are few beside so many others."""
    return many >= MANY and PART * count < many


class Gatherer(Generic[T]):
    """A queue and its lanes.

    ``take`` removes from the queue what goes in one call, which may be nothing while other calls are under way, or
    where nobody waits for an answer any more; ``send`` sees to it and never raises. ``most``: how many lanes there may
    be. ``before``: the gatherer whose callers mostly come here next. ``lanes``: how many there are from the start."""

    def __init__(
        self,
        take: Callable[[deque[T]], list[T]],
        send: Callable[[list[T]], Awaitable[None]],
        most: int,
        before: Gatherer[Any] | None = None,
        lanes: int = LANES,
    ) -> None:
        self._take = take
        self._send = send
        self._most = most
        self._usual_lanes = min(lanes, most)
        self._before = before
        self._behind: list[Gatherer[Any]] = []
        if before is not None:
            before._behind.append(self)
        self._queue: deque[T] = deque()
        self._busy = 0
        self._opening = 0  # lanes that have not looked at the queue yet
        self._sent = 0  # how many are in calls under way
        self._crowd = 1  # how many went together lately: in the last call, or half as many as before it
        self._lone = 0  # how many calls in a row were for one caller
        self._waiting = 0  # how many wait for the callers of the gatherer before this one
        self._vain = 0  # how often these are not waited for
        self.usual_seconds = 0.0
        self._lanes: set[asyncio.Task[None]] = set()
        self._relief: asyncio.TimerHandle | None = None
        self._alone = _Alone(self)

    @property
    def is_idle(self) -> bool:
        """Whether who comes now should make his call himself: no call is under way, and nobody went together lately.

        Where callers come in crowds, the first one would otherwise go alone, time after time, and be alone for good."""
        return not self._busy and self._crowd <= 1

    @property
    def is_empty(self) -> bool:
        """Whether nobody queues and no call is under way."""
        return not self._busy and not self._queue

    def add(self, job: T) -> None:
        """Queue a job."""
        self._queue.append(job)
        if not self._opening:
            self._admit()

    def withdraw(self, job: T) -> None:
        """Take back a job that no call has taken."""
        self._queue.remove(job)

    def alone(self) -> _Alone:
        """For a call that the caller makes itself, in a ``with`` statement: who comes meanwhile may wait for others."""
        return self._alone

    def enter(self) -> None:
        """Such a call begins."""
        self._busy += 1
        self._sent += 1

    def leave(self) -> None:
        """It has ended."""
        self._busy -= 1
        self._sent -= 1
        if self._queue and not self._busy:
            self._open()
        for gatherer in self._behind:
            gatherer._look_again()

    def _admit(self) -> None:
        """Open a lane for the queue if it may have one."""
        if self._busy < self._usual_lanes and not _are_few(len(self._queue), self._sent):
            self._open()
        else:
            self._want_relief()

    def _open(self, *, patient: bool = True) -> None:
        self._busy += 1
        self._opening += 1
        work: Coroutine[Any, Any, None] = self._work(patient)
        if self._lone >= LONE and self._busy == 1:
            try:
                work = Begun(work)
            except StopIteration:
                return
        # A lane outlives the caller who opened it, and must not keep that caller's context.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._lanes.add(task)
        task.add_done_callback(self._lanes.discard)

    async def _work(self, patient: bool) -> None:
        time = asyncio.get_running_loop().time
        opening = 1
        try:
            while True:
                self._opening -= opening
                opening = 0
                if not self._queue or (patient and self._waits()):
                    break
                jobs = self._take(self._queue)
                count = len(jobs)
                self._crowd = max(count, self._crowd // 2)
                self._lone = 0 if count > 1 else self._lone + count
                if not jobs:  # whichever call they wait for looks at the queue when it has ended
                    break
                self._sent += count
                if self._queue and not self._opening:
                    self._admit()
                begun = time()
                try:
                    await self._send(jobs)
                finally:
                    self._sent -= count
                self.usual_seconds += (time() - begun - self.usual_seconds) / 8
                for gatherer in self._behind:
                    gatherer._look_again()
                if not self._queue:
                    break
                patient = True
                await asyncio.sleep(0)
        finally:
            self._opening -= opening
            self._busy -= 1

    def _waits(self) -> bool:
        """Whether those in the queue should wait for the many who come here next."""
        before = self._before
        few = len(self._queue)
        if before is None or not _are_few(few, len(before._queue) + before._sent):
            return False
        if self._vain:
            self._vain -= 1
            return False
        self._waiting = few
        self._want_relief()
        return True

    def _look_again(self) -> None:
        """A call of the gatherer before this one has ended: its callers go on in the loop's next turn."""
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        waited, self._waiting = self._waiting, 0
        if waited and self._queue and not self._busy:
            self._vain = VAIN
            self._open(patient=False)

    def _want_relief(self) -> None:
        if self._relief is None and self._busy < self._most:
            seconds = max(RELIEF_SECONDS, 2 * self.usual_seconds)
            self._relief = asyncio.get_running_loop().call_later(seconds, self._relieve)

    def _relieve(self) -> None:
        self._relief = None
        if self._queue and self._busy < self._most:
            self._open(patient=False)
            self._want_relief()
