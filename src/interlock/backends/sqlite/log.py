"""When the write-ahead log is copied into the database.

SQLite would do that inside some COMMIT. Here it is done after about a thousand pages, after the answers were given
and still under the queue lock, so that the log's file is used again and again: a growing one makes each sync
dearer, and a large copy keeps everybody waiting. The processes tell each other through the queue file how far they
have come, so that they do not all do it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from interlock.backends.sqlite.batch import Batch
from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.locking import QueueLock
from interlock.backends.sqlite.outcomes import TAIL, Outcomes

_PAGES: Final = 1000
_PAGE_BYTES: Final = 4096
_FOREIGN_PAGES: Final = 3


class Log:
    """What one writer knows of the log: about how many pages it has, and what the last copy reached."""

    __slots__ = ("_checkpointed", "_pages", "position")

    def __init__(self) -> None:
        self._pages = 0
        self._checkpointed = 0
        self.position = 0
        """Of the newest commit that is known."""

    def note(self, batch: Batch) -> None:
        """A batch was committed, and before it perhaps others by other processes."""
        if batch.head > self.position:
            self._pages += _FOREIGN_PAGES * (batch.head - self.position)
        if batch.feed:
            self._pages += 2 + len(batch.changed) + 2 * batch.bytes // _PAGE_BYTES
        self.position = batch.position

    @property
    def is_due(self) -> bool:
        """Whether it is long enough to be copied."""
        return self._pages >= _PAGES

    def checkpoint(self, connection: Connection, lock: QueueLock, outcomes: Outcomes) -> None:
        """Copy it, unless another process has lately. Under the queue lock."""
        try:
            reached = lock.checkpointed()
            if self._checkpointed < reached <= self.position:
                self._checkpointed = reached
                self._pages = _FOREIGN_PAGES * (self.position - reached)
            if self.is_due:
                self._pages = 0
                self._checkpointed = self.position
                if len(outcomes) >= TAIL // 2:
                    outcomes.put_in(connection)
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                lock.note_checkpoint(self.position)
        except (sqlite3.Error, OSError):
            pass  # it is tried again later; the log keeps everything
