"""News: whoever waits for a commit is woken, whichever process made it.

A commit of this process wakes those who wait at once. Commits of others are noticed by one thread that asks SQLite
every few milliseconds whether the file has changed (``PRAGMA data_version``, some 5 us). It asks only while
somebody waits, and sleeps without any cost when nobody does.

Nobody misses news: a caller puts its waiter up first and looks at the head once more afterwards. A commit before
that look is seen by it; one after it finds the waiter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from interlock.backends.sqlite.reading import Reader
from interlock.errors import InterlockError
from interlock.model import Token
from interlock.ports import Runtime, Waiter
from interlock.runtime import wake_all

_POLL_SECONDS: Final = 0.004


class News:
    """Those who wait for something newer than what they know."""

    def __init__(self, new_reader: Callable[[], Reader]) -> None:
        self._new_reader = new_reader
        self._changed = threading.Condition(threading.Lock())
        self._waiting: dict[Waiter, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    async def wait(self, runtime: Runtime, reader: Reader, since: Token, timeout_seconds: float) -> bool:
        """Whether something newer than ``since`` came before the time ran out."""
        if reader.is_behind(since):
            return True
        waiter = runtime.waiter()
        try:
            self._enlist(waiter, since.position)
            if reader.is_behind(since):
                return True
            return await waiter.wait(timeout_seconds)
        finally:
            with self._changed:
                self._waiting.pop(waiter, None)

    def _enlist(self, waiter: Waiter, position: int) -> None:
        with self._changed:
            self._waiting[waiter] = position
            if self._closed:
                waiter.wake()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="interlock-sqlite-news", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def tell(self, position: int) -> None:
        """Something was committed: wake everybody who does not know it."""
        if self._waiting:
            with self._changed:
                waiting = list(self._waiting.items())
            wake_all([waiter for waiter, known in waiting if known != position])

    def close(self) -> None:
        """Wake everybody and end the thread."""
        with self._changed:
            self._closed = True
            ready = list(self._waiting)
            self._changed.notify()
        wake_all(ready)

    def _run(self) -> None:
        reader: Reader | None = None
        seen = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
            try:
                if reader is None:
                    reader = self._new_reader()
                version = reader.data_version()
                if version != seen:
                    seen = version
                    self.tell(reader.head().position)
            except InterlockError:
                reader = None
                self.tell(-1)  # their next read says what is wrong
            time.sleep(_POLL_SECONDS)
