"""Results that wait for the next commit of their saga, and what happens if it does not come soon.

A step's result needs no commit of its own: the next one of its saga, mostly the intent of the next step, carries it.
But between two steps an agent may think for minutes, and until the result is in the store, a coordinator that dies
leaves a step of which nobody knows. So a result that nothing has carried for `LAG_SECONDS` is written by itself.

One job for each store object looks after all its sagas: a saga is watched from its first result on, and dropped when
the job finds nothing to write. A result that the job finds for the first time gets one more round, so a saga that goes
on pays nothing. Without a saga to watch the job ends after `IDLE_LOOKS`, as beginning one, a thread perhaps, costs more
than some looks.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final, Protocol

from interlock.core.engine import Engine
from interlock.errors import InterlockError, UsageError
from interlock.ports import Job

LAG_SECONDS: Final = 0.02
"""How long the job waits between two looks."""
IDLE_LOOKS: Final = 50
"""After how many in a row without a saga to watch it ends."""

log = logging.getLogger("interlock")


class Watched(Protocol):
    """What has results to write: a journal."""

    watched: bool
    title: str

    def lag(self) -> int:
        """A number for the oldest change that nothing has carried yet; 0: there is none."""

    async def flush(self) -> None:
        """Write what nothing has carried."""


class Lags:
    """Those of one store object."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._mutex = threading.Lock()
        self._watched: dict[Watched, int] = {}
        """-> the change that was found at the last look."""
        self._job: Job | None = None
        engine.closing.append(self.close)

    def watch(self, journal: Watched) -> None:
        """Look after it, as long as it has something to write."""
        with self._mutex:
            journal.watched = True
            self._watched[journal] = 0
            if self._job is not None and self._job.alive():
                return
            try:
                self._job = self._engine.runtime.spawn("interlock-sagas", self._work)
            except (UsageError, RuntimeError):  # no event loop runs in this thread, or the interpreter ends
                self._job = None

    def close(self) -> None:
        """The store is closed."""
        with self._mutex:
            job, self._job = self._job, None
            self._forget_all()
        if job is not None:
            job.cancel()

    def _forget_all(self) -> None:
        for journal in self._watched:
            journal.watched = False
        self._watched.clear()

    async def _work(self) -> None:
        idle = 0
        while True:
            await self._engine.runtime.sleep(LAG_SECONDS)
            late = self._late()
            for journal in late:
                try:
                    await journal.flush()
                except InterlockError as failure:  # the next commit of the saga says so itself, or brings it
                    log.info("the results of saga %s could not be written yet: %s", journal.title, failure)
            with self._mutex:
                idle = 0 if self._watched else idle + 1
                if self._engine.closed or idle >= IDLE_LOOKS:
                    self._job = None
                    return

    def _late(self) -> list[Watched]:
        """Those with a change that was there at the last look, too; what has none is not watched any more."""
        late: list[Watched] = []
        with self._mutex:
            self._look(late)
        return late

    def _look(self, late: list[Watched]) -> None:
        for journal, seen in list(self._watched.items()):
            lag = journal.lag()
            if not lag:
                journal.watched = False
                del self._watched[journal]
            elif lag == seen:
                late.append(journal)
            else:
                self._watched[journal] = lag


def lags_of(engine: Engine) -> Lags:
    """Those of a store object."""
    found: Any = engine.shared.get(Lags)
    if found is None:
        found = engine.shared.setdefault(Lags, Lags(engine))
    assert isinstance(found, Lags)
    return found
