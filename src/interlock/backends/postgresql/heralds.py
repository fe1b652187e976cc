"""Telling other processes that something was committed, by NOTIFY from outside the commits.

NOTIFY inside a commit would take a lock of the whole database over the commit's sync and halve everybody's rate. So a
commit only sets a flag here. A thread with a connection of its own sends one NOTIFY for all commits of this process in
`PAUSE_SECONDS`, if anybody listens. Whoever waits has another thread with a connection that listens, and holds an
advisory lock meanwhile, by which the others know; they look for it every second. Both threads come when they are
needed and go when nobody has needed them for `IDLE_SECONDS`.

All this is a hint: a notification may be lost with its connection, or come from a process that does not send any. Who
waits looks at the store at intervals, whatever is heard; the intervals are long only while somebody listens
(`interlock.backends.postgresql.waiting`). No error ever leaves here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import psycopg

from interlock.backends.postgresql.home import Options

PAUSE_SECONDS: Final = 0.01
IDLE_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 1.0
_SLICE_SECONDS: Final = 0.5
_SLICES: Final = 4
"""So many after it has begun to listen, every announcer has seen that somebody does."""
_ROUNDS: Final = 100
"""So many notifications are sent before an announcer looks again whether somebody listens."""
_LOCKS: Final = 0x1ECE0C4
"""The first of the two numbers of the lock by which somebody who listens is known."""
_ERRORS: Final = (psycopg.Error, OSError)


class Herald:
    """The threads of one store object. ``tell`` is called when something may have been committed elsewhere."""

    def __init__(self, options: Options, tell: Callable[[], None]) -> None:
        self._options = options
        self._tell = tell
        hashed = blake2b(options.schema.encode(), digest_size=8).digest()
        self._channel = "interlock_" + hashed.hex()
        self._known_by = (_LOCKS, int.from_bytes(hashed[:4], "big") >> 1)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._due = threading.Event()
        self._wanted = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self.hears = False
        """Whether the commits of other processes are being listened for."""

    def announce(self) -> None:
        """Something was committed here. Does not wait."""
        if not self._due.is_set():
            self._due.set()
        if "announce" not in self._threads or self._process != os.getpid():
            self._start("announce", self._announcing)

    def listen(self) -> None:
        """Somebody waits. Does not wait itself: see `hears`."""
        if self._options.pooler:  # what a session listens for would be lost with the session
            return
        if not self._wanted.is_set():
            self._wanted.set()
        if "listen" not in self._threads or self._process != os.getpid():
            self._start("listen", self._listening)

    def close(self) -> None:
        """Let the threads go."""
        self._closed.set()
        self._due.set()

    def _start(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if self._process != os.getpid():  # a forked child has no threads
                self._begin()
                (self._due if name == "announce" else self._wanted).set()
            if name not in self._threads and not self._closed.is_set():
                thread = threading.Thread(target=work, name=f"interlock-postgresql-{name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def _rest(self, name: str, needed: threading.Event) -> bool:
        """Whether a thread that has had nothing to do may end."""
        with self._lock:
            if needed.is_set() and not self._closed.is_set():
                return False
            self._threads.pop(name, None)
            return True

    def _connect(self) -> Any:
        seconds = max(2, round(self._options.connect_seconds))
        return psycopg.connect(self._options.dsn, autocommit=True, connect_timeout=seconds, prepare_threshold=None)

    def _is_heard(self, connection: Any) -> bool:
        """Whether anybody listens."""
        found = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s"
            " AND objsubid = 2 AND granted)",
            self._known_by,
        )
        return bool(found.fetchone()[0])

    def _announcing(self) -> None:
        connection: Any = None
        rounds = 0
        while True:
            due = self._due.wait(IDLE_SECONDS)
            if (self._closed.is_set() or not due) and self._rest("announce", self._due):
                break
            self._due.clear()
            try:
                connection = connection or self._connect()
                if rounds == 0:
                    rounds = _ROUNDS if self._is_heard(connection) else 0
                if rounds > 0:
                    rounds -= 1
                    connection.execute("SELECT pg_notify(%s, '')", (self._channel,))
                    self._closed.wait(PAUSE_SECONDS)
                else:
                    self._closed.wait(_RETRY_SECONDS)
            except _ERRORS:
                rounds = 0
                _end(connection)
                connection = None
                self._closed.wait(_RETRY_SECONDS)
        _end(connection)

    def _listening(self) -> None:
        connection: Any = None
        unheard = 0.0
        slices = 0
        while True:
            if (self._closed.is_set() or unheard >= IDLE_SECONDS) and self._rest("listen", self._wanted):
                break
            unheard = 0.0 if self._wanted.is_set() else unheard
            self._wanted.clear()
            try:
                if connection is None:
                    connection = self._connect()
                    connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", self._known_by)
                    connection.execute(f'LISTEN "{self._channel}"')
                    slices = 0
                for _ in connection.notifies(timeout=_SLICE_SECONDS):
                    self._tell()
                unheard += _SLICE_SECONDS
                slices += 1
                if slices == _SLICES:
                    self.hears = True
            except _ERRORS:
                self.hears = False
                _end(connection)
                connection = None
                self._closed.wait(_RETRY_SECONDS)
        self.hears = False
        _end(connection)


def _end(connection: Any) -> None:
    if connection is not None:
        connection.close()
