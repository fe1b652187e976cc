"""The newest rows, kept in memory by the process that committed last.

SQLite empties a connection's page cache whenever another connection has committed. So a thread that reads and commits
in turn finds its cache cold each time, though nobody but its own process has written. Here the writer keeps the rows
that its batches have looked at or written, absent ones too, and answers reads of the newest state from them.

**Why no read is older than the last commit.** A hit rests on two looks with the look-up in between them or after
them: `_shown` is one and the same object before and after the look-up, and between these two moments the queue file
names this process's writer as the one that committed last.

- A writer of another process puts its own number into the queue file before its COMMIT, under the queue lock. So as
  long as ours stands there, no other COMMIT has begun since ours was put there; and when our writer puts it there
  again, it has hidden what it had, and looked under the lock whether SQLite knows of another's commit since.
- Our own writer hides everything before its COMMIT, when the new state begins to be visible to other readers, and shows
  the new state after it, before it answers. Rows change only while nothing is shown.

So at the moment of the second look the state that is shown is the newest committed one, and no reader anywhere can
have seen a newer one. If a process dies anywhere in between, its number remains in the file and the others read from
the database until they have committed themselves.

The writer trusts what is kept only after SQLite itself has said, inside the write transaction, that nobody else has
committed since (``PRAGMA data_version``, one statement for a batch). So what is judged never rests on the queue file.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.locking import COMMITTER, QueueLock
from interlock.backends.sqlite.statements import EXPIRES_AT, NONCE, POSITION, TRAIL, VALUE, Row
from interlock.backends.sqlite.trail import QUIET
from interlock.model import NONCE_MASK, Entry, Key, Reading, Token

Rows = dict[Key, Row | None]
"""Rows of ``current``; None where a key has none."""

_HALF_BYTES: Final = 8 << 20
"""When the younger half has about so many bytes, it becomes the older one, and that is dropped."""
_ROW_BYTES: Final = 400
_LONG_BYTES: Final = 64 << 10
"""Longer values are not kept."""
_BULK_ROWS: Final = 1024
"""A batch with more rows is not kept: a bulk load would push out what is used all the time."""
_MISSING: Final[Any] = object()


class _Shown(NamedTuple):
    """A state that readers may see: its token and the rows of it that are kept."""

    token: Token
    young: Rows
    old: Rows


class Newest:
    """What one engine keeps. Written by its writer only; readers use `token` and `read`."""

    __slots__ = ("_bytes", "_number", "_old", "_page", "_shown", "_version", "_young", "ends", "now")

    def __init__(self) -> None:
        self.now: Callable[[], float] = float
        self.ends: tuple[int, bytes, int] | None = None
        """For the writer: the newest position and its id, and the position of the horizon; None if not known."""
        self._shown: _Shown | None = None
        self._young: Rows = {}
        self._old: Rows = {}
        self._bytes = 0
        self._version = -1
        self._number = bytes(8)
        self._page: mmap.mmap | bytes = b""

    # -- readers -------------------------------------------------------------------------------------------------------
    def token(self) -> Token | None:
        """A token of everything committed so far, if it is known here."""
        shown = self._shown
        if shown is None or self._page[COMMITTER] != self._number or self._shown is not shown:
            return None
        return shown.token

    def read(self, keys: Sequence[Key], at: Token | None) -> Reading | None:
        """Entries of the newest state, or as of a token that is the newest; None if it is not known here."""
        shown = self._shown
        if shown is None or self._page[COMMITTER] != self._number:
            return None
        token, young, old = shown
        if at is not None and at != token:
            return None
        entries: list[Entry | None] = []
        for key in keys:
            row = young.get(key, _MISSING)
            if row is _MISSING:
                row = old.get(key, _MISSING)
                if row is _MISSING:
                    return None
            if row is None or (row[VALUE] is None and row[TRAIL] == QUIET):
                entries.append(None)
            else:
                version = (row[POSITION], row[NONCE] & NONCE_MASK)
                entries.append(Entry(version, row[VALUE], row[EXPIRES_AT] or None))
        if self._shown is not shown:
            return None
        return Reading(entries, token, self.now())

    # -- the writer ----------------------------------------------------------------------------------------------------
    def open(self, lock: QueueLock, now: Callable[[], float]) -> None:
        """The writer has opened the file. Under the queue lock."""
        self.forget()
        self._version = -1
        self._number, self._page = lock.enlist()
        self.now = now

    def check(self, connection: Connection) -> None:
        """A write transaction has begun: forget everything if anybody else has committed since the last."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self.forget()
            self._version = version

    def look(self, keys: Iterable[Key], rows: dict[Key, Row]) -> list[Key]:
        """Put the rows that are kept into ``rows``; the keys of which nothing is known."""
        young, old = self._young, self._old
        missing = []
        for key in keys:
            row = young.get(key, _MISSING)
            if row is _MISSING:
                row = old.get(key, _MISSING)
                if row is _MISSING:
                    missing.append(key)
                    continue
            if row is not None:
                rows[key] = row
        return missing

    def hide(self, lock: QueueLock) -> None:
        """Before COMMIT: from now on everybody reads from the database. Raises `BackendUnavailableError`."""
        self._shown = None
        if self._page[COMMITTER] != self._number:
            lock.note_committer(self._number)

    def show(self, keys: Iterable[Key], rows: dict[Key, Row], token: Token, ends: tuple[int, bytes, int]) -> None:
        """After COMMIT, or in place of it where nothing was written: what the batch knows of ``keys`` and ``rows``."""
        self._shown = None
        if len(rows) <= _BULK_ROWS:
            self._keep(keys, rows)
        else:
            for key in rows:
                self._drop(key)
        self.ends = ends
        self._shown = _Shown(token, self._young, self._old)

    def _keep(self, keys: Iterable[Key], rows: dict[Key, Row]) -> None:
        young = self._young
        size = self._bytes
        for key in keys:
            if key not in rows:
                young[key] = None
                size += _ROW_BYTES
        for key, row in rows.items():
            value = row[VALUE]
            if value is None:
                size += _ROW_BYTES
            elif len(value) <= _LONG_BYTES:
                size += _ROW_BYTES + len(value)
            else:
                self._drop(key)
                continue
            young[key] = row
        if size > _HALF_BYTES:
            self._old, self._young, size = young, {}, 0
        self._bytes = size

    def _drop(self, key: Key) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def close(self) -> None:
        """Forget everything and give up the view of the queue file."""
        self.forget()
        self._page = b""

    def forget(self) -> None:
        """Nothing is known any more."""
        self._shown = self.ends = None
        self._young, self._old, self._bytes = {}, {}, 0
