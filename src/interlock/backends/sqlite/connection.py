"""Connections to SQLite, and its errors in our words. Raw ``sqlite3`` errors never leave the backend.

Only the writer's connection can write. All others are opened read-only, so that closing one, which happens
whenever its thread ends, can never be the act of the last connection that checkpoints and removes the write-ahead
log outside the queue lock.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from interlock.errors import BackendCorruptError, BackendError, BackendUnavailableError, UsageError

Connection = sqlite3.Connection

_CACHE_KIBIBYTES: Final = 16_384
_LOG_BYTES: Final = 16 << 20
"""To what the write-ahead log shrinks again after a commit that was larger."""
_NETWORK: Final = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "davfs"),
    *("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "fuse.davfs2"),
}
CLOSED: Final = "this store is closed"
BUSY: Final = 5
"""SQLITE_BUSY."""
FULL: Final = 13
"""SQLITE_FULL."""

_CORRUPT: Final = {
    11: "is damaged. Nothing was written. Restore a backup, or save what can be read with `sqlite3 FILE .recover`",
    26: "is not a SQLite database. Nothing was written to it. Name another file",
}
_UNAVAILABLE: Final = {
    3: "cannot be opened: permission denied. Give this user the right to write to the file and its directory",
    5: "is locked by a program that is not Interlock. Close that program, or raise busy_seconds",
    6: "is locked by a program that is not Interlock. Close that program, or raise busy_seconds",
    8: "cannot be written to. Give this user the right to write to the file and its directory",
    10: "met an error of the disk",
    FULL: "could not grow: the disk is full. Make room and try again",
    14: "cannot be opened. Its directory has to exist and this user needs the right to write to both",
    15: "cannot be locked. Is it on a network file system? Use a local disk",
}


@dataclass(frozen=True, slots=True)
class Options:
    """How a store is used: see `interlock.backends.sqlite.backend.SQLiteBackend`."""

    busy_seconds: float
    grace_seconds: float
    synchronous: str


def connect(path: str, *, busy_seconds: float, read_only: bool) -> Connection:
    """Open a connection in autocommit mode. Only the writer's may create the file."""
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={'ro' if read_only else 'rwc'}",
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=True,
    )
    try:
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIBIBYTES}")
        connection.execute("PRAGMA temp_store=MEMORY")
        if not read_only:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
            if sys.platform == "darwin":
                connection.execute("PRAGMA fullfsync=1")
                connection.execute("PRAGMA checkpoint_fullfsync=1")
    except BaseException:
        connection.close()
        raise
    return connection


def begin(connection: Connection, busy_seconds: float) -> None:
    """Begin a write transaction on a connection whose patience is 0; wait if another program has the database."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if code_of(error) != BUSY:
            raise
        set_patience(connection, busy_seconds)
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            set_patience(connection, 0)


def set_patience(connection: Connection, seconds: float) -> None:
    """For how long SQLite waits for its own lock."""
    connection.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")


FAILURES: Final = (sqlite3.Error, msgspec.DecodeError, ValueError, TypeError, LookupError, OverflowError)
"""What reading a file can raise: SQLite's own errors, and those of damage that only we can see, since a row with a
flipped bit is a row like any other to SQLite."""


def code_of(error: sqlite3.Error) -> int:
    """SQLite's primary error code; 0 where the driver itself raised."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def failure(error: Exception, path: str) -> BackendError:
    """Our error for one of `FAILURES`, with the path and what to do. For errors that leave nothing written."""
    if not isinstance(error, sqlite3.Error):
        if isinstance(error, FAILURES):
            return BackendCorruptError(f"{path} holds what cannot be read; restore it from a backup ({error!r})")
        return BackendUnavailableError(f"{path} cannot be used: {error!r}")
    code = code_of(error)
    if code in _CORRUPT:
        return BackendCorruptError(f"{path} {_CORRUPT[code]} ({error})")
    return BackendUnavailableError(f"{path} {_UNAVAILABLE.get(code, 'cannot be used')} ({error})")


def checked_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a store. Raises `UsageError` for what cannot be one."""
    text: object = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"a SQLite store needs the path of a file, not {path!r}; a store without a file is memory://")
    if text.startswith((":memory:", "file:")):
        raise UsageError(
            f"{text!r} is refused: every connection to it would see a database of its own; use memory:// instead"
        )
    return os.path.abspath(text)


def refuse_place(path: str) -> None:
    """Raises `UsageError` where a store cannot work: a directory, or a network file system."""
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory; a SQLite store is a file")
    kind = file_system(os.path.realpath(os.path.dirname(path)))
    if kind in _NETWORK:
        raise UsageError(
            f"{path} lies on a network file system ({kind}), where the locks of SQLite do not hold; use a local disk"
        )


def file_system(directory: str, mounts: str = "/proc/mounts") -> str:
    """The kind of file system that a directory lies on; "" where that cannot be learnt."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            rows = [line.split(" ") for line in lines]
    except OSError:
        return ""
    best, kind = "", ""
    for row in rows:
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), row[1])  # a blank is written \040
        inside = directory == place or directory.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, row[2]
    return kind
