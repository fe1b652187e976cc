"""The watchdog of the writer: nobody waits longer than ``busy_seconds`` for a queue lock that another process does
not give back.

The kernel's queue has no time limit, and a process may be stopped inside its batch. So while the writer is blocked
there, this thread looks through the jobs that wait, and takes back those that have waited too long. It runs only
while there is something to watch; a writer that gets the lock at once never starts it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from interlock.backends.sqlite.jobs import Job, StopJob

_LOOKS: Final = 8
"""How often the watchdog looks during ``busy_seconds``."""


class Watchdog:
    """Watches the jobs of one writer while it is blocked."""

    def __init__(self, jobs: queue.SimpleQueue[Job], busy_seconds: float, give_up: Callable[[list[Job]], None]) -> None:
        self._queue = jobs
        self._busy_seconds = busy_seconds
        self._give_up = give_up
        self._lock = threading.Lock()
        self._waiting: deque[Job] | None = None
        self._awake = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, first: Job) -> None:
        """The writer is about to block with ``first`` in its hand."""
        with self._lock:
            self._waiting = deque((first,))
            if self._awake:
                return
            self._awake = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="interlock-sqlite-watchdog", daemon=True)
                self._thread.start()
        self._wake.set()

    def end(self) -> list[Job]:
        """The writer has the lock; the jobs that were taken out of the queue meanwhile, ``first`` among them."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        return list(waiting or ())

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            idle = 0
            while idle < _LOOKS:
                time.sleep(self._busy_seconds / _LOOKS)
                idle = 0 if self._look() else idle + 1
                with self._lock:
                    if idle == _LOOKS and self._waiting is None:
                        self._awake = False
                    elif idle == _LOOKS:
                        idle = 0

    def _look(self) -> bool:
        with self._lock:
            late = self._take_late()
        if late:
            self._give_up(late)
        return late is not None

    def _take_late(self) -> list[Job] | None:
        waiting = self._waiting
        if waiting is None:
            return None
        try:
            while True:
                waiting.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        now = time.monotonic()
        return [
            job
            for job in waiting
            if now - job.since >= self._busy_seconds and not isinstance(job, StopJob) and job.take()
        ]
