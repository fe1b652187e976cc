"""Three decisions about a writer's turns: when to begin one, whether to keep one after a conflict, and when a caller is
alone, so that it may take one itself.

**Beginning.** Of many callers that wait for one batch, the first that comes again would start the next batch alone,
and all others would wait for its sync of the disk: every second batch would be a batch of one. So if the last batches
had several jobs, the writer waits for as many before it takes its turn. It is woken by the one that brings the last of
them, and gives up when none has come for about as long as the sync takes that it saves. A single caller is never waited
with.

**Keeping.** All processes that wait for their turn have read the same state. The first commits; if it then read
again and queued at once, it would always be ahead of those that are refused after it, and win every round. So
whoever is refused may come again before the others, and has then read what is newest. Agents that think for longer
than that moment make it useless, so it is tried less and less often while nobody comes. This is for progress only,
never for safety.

**Alone** is a caller as long as the last batches had one job each, so that waiting for others would bring nothing, and
as long as there was neither a conflict nor a commit of another process lately. Where there are conflicts, turns are to
be kept, and only the thread can do that. Where there are other processes, a caller who comes again at once might take
the queue lock before the kernel has woken whoever waits for it.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import Final

from interlock.backends.sqlite.jobs import Job

KEPT_SECONDS: Final = 0.002
"""How long a turn is kept."""
_DOUBLINGS: Final = 6
_SHARED_BATCHES: Final = 64
"""For so many batches after that no caller is alone."""
_DECAY: Final = 0.9
_GATHERING_SECONDS: Final = 0.004
_LEAST_SECONDS: Final = 0.0001
_MOST_SECONDS: Final = 0.001


class Turns:
    """What the writer remembers of its turns."""

    __slots__ = ("_enough", "_expected", "_in_vain", "_shared", "_skips", "_sync_seconds", "wanted")

    def __init__(self) -> None:
        self._skips = 0
        self._in_vain = 0
        self._expected = 1.0
        self._shared = 0
        self._sync_seconds = 0.0
        self._enough = threading.Lock()
        self._enough.acquire()
        self.wanted = 0
        """At how many jobs in the queue the writer wants to hear of it; 0 if it does not wait for them."""

    def tell(self) -> None:
        """There are as many jobs as the writer wanted. By whoever has brought the last."""
        try:
            self._enough.release()
        except RuntimeError:  # it knows
            pass

    def gather(self, jobs: queue.SimpleQueue[Job]) -> None:
        """Before a turn, with one job in hand: wait for as many as came lately."""
        wanted = math.ceil(self._expected) - 1
        count = jobs.qsize()
        if count >= wanted:
            return
        patience_seconds = min(max(self._sync_seconds, _LEAST_SECONDS), _MOST_SECONDS)
        until = time.perf_counter() + _GATHERING_SECONDS
        self._enough.acquire(blocking=False)  # a word that came too late the last time
        self.wanted = wanted
        while count < wanted and time.perf_counter() < until:
            told = self._enough.acquire(timeout=patience_seconds)
            before, count = count, jobs.qsize()
            if count == before and not told:
                break
        self.wanted = 0

    @property
    def alone(self) -> bool:
        """Whether callers have come one by one, and without conflicts."""
        return self._expected <= 1.0 and not self._shared

    def share(self) -> None:
        """A batch has refused somebody for a conflict, or found that another process has committed."""
        self._shared = _SHARED_BATCHES

    def note(self, count: int, sync_seconds: float) -> None:
        """A batch of so many jobs was committed; how long COMMIT took."""
        if self._shared:
            self._shared -= 1
        self._expected = max(count, self._expected * _DECAY)
        self._sync_seconds = sync_seconds

    def keep(self) -> bool:
        """Whether to keep the turn after a conflict."""
        if self._skips:
            self._skips -= 1
            return False
        return True

    def next_job(self, jobs: queue.SimpleQueue[Job]) -> Job | None:
        """Wait for whoever comes again; None if nobody did."""
        try:
            job = jobs.get(timeout=KEPT_SECONDS)
        except queue.Empty:
            self._in_vain = min(self._in_vain + 1, _DOUBLINGS)
            self._skips = 1 << self._in_vain
            return None
        self._in_vain = 0
        return job
