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

**What readers find.** A read that has to ask the database puts what it found beside the state that is shown, if the
answer is of that state: a token names one state, and no other has the same. The writer takes that over when it begins
the next batch. A look in vain brings the gap that the key lies in (`interlock.backends.sqlite.gaps`).

Compaction removes rows without a new position. It says which before its COMMIT (`remove`), and what is known of them
is then dropped; nothing else that is kept can become wrong by it.

The writer trusts what is kept only after SQLite itself has said, inside the write transaction, that nobody else has
committed since (``PRAGMA data_version``, one statement for a batch). So what is judged never rests on the queue file.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.gaps import Gaps
from interlock.backends.sqlite.locking import COMMITTER, QueueLock
from interlock.backends.sqlite.statements import POSITION, VALUE, Row
from interlock.backends.sqlite.validation import entry_of
from interlock.model import Entry, Key, Reading, Token

Rows = dict[Key, Row | None]
"""Rows of ``current``; None where a key has none."""

_HALF_BYTES: Final = 8 << 20
"""When the younger half has about so many bytes, it becomes the older one, and that is dropped."""
_ROW_BYTES: Final = 400
_LONG_BYTES: Final = 64 << 10
"""Longer values are not kept."""
_BULK_ROWS: Final = 1024
"""A batch with more rows than this, which take more than a quarter of a half, is not kept: a bulk load would push out
what is used all the time."""
_LEARNT_ROWS: Final = 1024
_LEARNT_BYTES: Final = 4 << 10
"""How many rows readers may put in for one state, and how long their values may be."""
_MISSING: Final[Any] = object()


class Shown(NamedTuple):
    """A state that readers may see: its token, the rows of it that are kept, and what readers have found besides."""

    token: Token
    young: Rows
    old: Rows
    gaps: Gaps
    learnt: dict[Key, Row]
    empty: dict[Key, Key]
    """Gaps that were found: the key before each of them -> the key behind it."""

    def learn(self, key: Key, row: Row | None, before: Key | None, behind: Key | None) -> None:
        """A reader has found, in this very state, a row, or None between these two neighbours. Of the first and the
        last key there is nothing to learn."""
        if row is None:
            if before is not None and behind is not None and len(self.empty) < _LEARNT_ROWS:
                self.empty[before] = behind
        elif len(self.learnt) < _LEARNT_ROWS and len(row[VALUE] or b"") <= _LEARNT_BYTES:
            self.learnt[key] = row


class Newest:
    """What one engine keeps. Written by its writer only; readers use `token` and `read`."""

    __slots__ = ("_bytes", "_gaps", "_number", "_old", "_page", "_shown", "_version", "_young", "ends", "now")

    def __init__(self) -> None:
        self.now: Callable[[], float] = float
        self.ends: tuple[int, bytes, int] | None = None
        """For the writer: the newest position and its id, and the position of the horizon; None if not known."""
        self._shown: Shown | None = None
        self._young: Rows = {}
        self._old: Rows = {}
        self._gaps = Gaps()
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

    def look_at(self, key: Key, at: Token | None) -> tuple[Entry | None, Token] | None:
        """As `read`, of one key: the entry and the token."""
        shown = self._shown
        if shown is None or self._page[COMMITTER] != self._number:
            return None
        token = shown.token
        if at is not None and at is not token and at != token:
            return None
        row = _row_of(key, shown)
        return None if row is _MISSING or self._shown is not shown else (entry_of(row), token)

    def read(self, keys: Sequence[Key], at: Token | None) -> Reading | None:
        """Entries of the newest state, or as of a token that is the newest; None if it is not known here."""
        shown = self._shown
        if shown is None or self._page[COMMITTER] != self._number:
            return None
        token = shown.token
        if at is not None and at is not token and at != token:
            return None
        entries: list[Entry | None] = []
        for key in keys:
            row = _row_of(key, shown)
            if row is _MISSING:
                return None
            entries.append(entry_of(row))
        if self._shown is not shown:
            return None
        return Reading(entries, token, self.now())

    def shown(self, at: Token | None) -> Shown | None:
        """The state that readers may see, if ``at`` is that state: where to put what is found in the database."""
        shown = self._shown
        if shown is None or (at is not None and at != shown.token) or self._page[COMMITTER] != self._number:
            return None
        return shown

    # -- the writer ----------------------------------------------------------------------------------------------------
    def open(self, lock: QueueLock, now: Callable[[], float]) -> None:
        """The writer has opened the file. Under the queue lock."""
        self.forget()
        self._version = -1
        self._number, self._page = lock.enlist()
        self.now = now

    def check(self, connection: Connection) -> bool:
        """A write transaction has begun: forget everything if anybody else has committed since the last. Whether
        somebody has."""
        before, version = self._version, connection.execute("PRAGMA data_version").fetchone()[0]
        if version != before:
            self.forget()
            self._version = version
            return before >= 0
        if self._shown is not None:
            self._take_over(self._shown)
        return False

    def _take_over(self, shown: Shown) -> None:
        """Keep what readers have found in the newest state. They may go on looking: what is added is true of it."""
        if shown.learnt:
            for key, row in shown.learnt.copy().items():
                if key not in self._young:
                    self._young[key] = row
                    self._bytes += _size(row)
            shown.learnt.clear()
        if shown.empty:
            for start, stop in shown.empty.copy().items():
                self._gaps.add(start, stop)

    def look(self, keys: Iterable[Key], rows: dict[Key, Row]) -> list[Key]:
        """Put the rows that are kept into ``rows``; the keys of which nothing is known."""
        young, old, cover = self._young, self._old, self._gaps.cover
        missing = []
        for key in keys:
            row = young.get(key, _MISSING)
            if row is _MISSING:
                row = old.get(key, _MISSING)
                if row is _MISSING:
                    if not cover(key):
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
        if self.ends is None or self._gaps.full:
            self._gaps = Gaps()
        elif self._gaps.starts:
            head, fill, young = self.ends[0], self._gaps.fill, self._young
            for key, row in rows.items():
                if row[POSITION] > head and young.get(key) is None:  # one that had a row before lies in no gap
                    fill(key)
        if len(rows) <= _BULK_ROWS or sum(map(_size, rows.values())) <= _HALF_BYTES // 4:
            self._keep(keys, rows)
        else:
            for key in rows:
                self._drop(key)
        self.ends = ends
        self._shown = Shown(token, self._young, self._old, self._gaps, {}, {})

    def _keep(self, keys: Iterable[Key], rows: dict[Key, Row]) -> None:
        young = self._young
        size = self._bytes
        for key in keys:
            if key not in rows and young.get(key, _MISSING) is not None:
                young[key] = None
                size += _ROW_BYTES
        for key, row in rows.items():
            before = young.get(key)
            if before is row:
                continue
            value = row[VALUE]
            length = 0 if value is None else len(value)
            if length > _LONG_BYTES:
                self._drop(key)
                continue
            young[key] = row
            size += length + _ROW_BYTES if before is None else length - len(before[VALUE] or b"")
        if size > _HALF_BYTES:
            self._old, self._young, size = young, {}, 0
        self._bytes = size

    def _drop(self, key: Key) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def remove(self, key: Key) -> None:
        """Compaction is about to remove the row of a key. Knowing less is no harm to whoever still reads."""
        self._drop(key)
        self._gaps.remove(key)

    def close(self) -> None:
        """Forget everything and give up the view of the queue file."""
        self.forget()
        self._page = b""

    def forget(self) -> None:
        """Nothing is known any more."""
        self._shown = self.ends = None
        self._young, self._old, self._bytes = {}, {}, 0
        self._gaps = Gaps()


def _row_of(key: Key, shown: Shown) -> Any:
    """The row of a key, None where it has none, `_MISSING` where that is not known."""
    row = shown.young.get(key, _MISSING)
    if row is _MISSING:
        row = shown.old.get(key, _MISSING)
        if row is _MISSING:
            return None if shown.gaps.cover(key) else shown.learnt.get(key, _MISSING)
    return row


def _size(row: Row) -> int:
    """About how many bytes a row takes."""
    return _ROW_BYTES + len(row[VALUE] or b"")
