"""The queue file: one lock beside the database that everybody who writes, opens, closes or checkpoints takes first.

SQLite's own lock is polled by those who wait for it, so that one of eight processes got 1 commit where another got
6,000. A kernel lock on a file of its own (`flock`) has a queue. It also keeps checkpoints and commits of different
connections apart, which closes the window of a corruption bug in SQLite 3.7.0 to 3.51.2
(https://sqlite.org/wal.html#walresetbug).

The lock belongs to the open file, not to the process: a child made by fork shares it and would hold it after the
parent's death. So a child closes its copy of the descriptor at once, by number, and never unlocks. A descriptor
that was closed is forgotten, because its number may soon be somebody else's. `descriptors` is held while one is
opened or closed, and by whoever forks, so that no child is born in between.

The file holds three numbers of 8 bytes: up to which position the last checkpoint came (see
`interlock.backends.sqlite.log`); how many writers have opened it, which gives each a number of its own; and the number
of the writer that committed last (see `interlock.backends.sqlite.newest`).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from typing import Final

from interlock.errors import BackendUnavailableError

descriptors = threading.Lock()

COMMITTER: Final = slice(16, 24)
"""Where the number of the last writer lies."""
_SIZE: Final = 24


class QueueLock:
    """The lock of one engine. Used by its writer thread only, apart from `forget`."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1

    def open(self) -> None:
        """Open the file, made if it is missing. Raises `BackendUnavailableError`."""
        if self._descriptor >= 0:
            return
        try:
            with descriptors:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BackendUnavailableError(
                f"cannot open {self.path}: {error.strerror}; its directory has to exist and to be writable"
            ) from None

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._failed(error) from None
        return True

    def acquire(self) -> None:
        """Take the lock, in the order of arrival, however long that takes."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise self._failed(error) from None

    def release(self) -> None:
        """Give the lock to the next."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def checkpointed(self) -> int:
        """The position that the last checkpoint of any process reached. Only under the lock."""
        return int.from_bytes(os.pread(self._descriptor, 8, 0), "big")

    def note_checkpoint(self, position: int) -> None:
        """Tell the other processes of a checkpoint. Only under the lock."""
        os.pwrite(self._descriptor, position.to_bytes(8, "big"), 0)

    def enlist(self) -> tuple[bytes, mmap.mmap | bytes]:
        """A number that no other writer of this file has, and a view of the file that shows what others write to it;
        an empty one where that cannot be had. Only under the lock."""
        try:
            numbers = os.pread(self._descriptor, _SIZE, 0).ljust(_SIZE, b"\0")
            number = (int.from_bytes(numbers[8:16], "big") + 1).to_bytes(8, "big")
            os.pwrite(self._descriptor, numbers[:8] + number + numbers[COMMITTER], 0)
            with descriptors:
                # Not the descriptor of the lock: the view keeps a copy, and a copy would keep the lock.
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return number, mmap.mmap(descriptor, _SIZE, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
                finally:
                    os.close(descriptor)
        except (OSError, ValueError):
            return bytes(8), b""

    def note_committer(self, number: bytes) -> None:
        """Tell the others who commits now. Only under the lock. Raises `BackendUnavailableError`."""
        try:
            os.pwrite(self._descriptor, number, COMMITTER.start)
        except OSError as error:
            raise BackendUnavailableError(f"cannot write to {self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file and forget its number."""
        with descriptors:
            self.forget()

    def forget(self) -> None:
        """As `close`, for a forked child, where nobody else runs."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _failed(self, error: OSError) -> BackendUnavailableError:
        return BackendUnavailableError(f"cannot lock {self.path}: {error.strerror}; is it on a local disk?")
