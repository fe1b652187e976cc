"""Whether a process keeps its turn for a moment after one of its commits was refused for a conflict.

All processes that wait for their turn have read the same state. The first commits; if it then read again and queued at
once, it would always be ahead of those that are refused after it, and win every round. So whoever is refused may come
again before the others, and has then read what is newest. Agents that think for longer than that moment make it
useless, so it is tried less and less often while nobody comes. This is for progress only, never for safety.
"""

from __future__ import annotations

import queue
from typing import Final

from interlock.backends.sqlite.jobs import Job

KEPT_SECONDS: Final = 0.002
"""How long a turn is kept."""
_DOUBLINGS: Final = 6


class Turns:
    """What the writer remembers of the turns that it kept."""

    __slots__ = ("_in_vain", "_skips")

    def __init__(self) -> None:
        self._skips = 0
        self._in_vain = 0

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
