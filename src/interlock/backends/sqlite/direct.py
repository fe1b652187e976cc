"""The short way to what is in memory: one plain function for the reads that nearly every session makes.

See `interlock.ports.Direct`. It answers from `interlock.backends.sqlite.newest` what `SQLiteBackend.read` would answer
from there, by the same steps, and says None to everything else. Quiet commits of a caller who is alone go by
`interlock.backends.sqlite.straight`; all others go the general way, for they wait.
"""

from __future__ import annotations

import contextlib

from interlock.backends.sqlite.engine import Engine
from interlock.model import CommitRequest, Entry, Key, Reply, Token
from interlock.ports import Runtime


class Direct:
    """The short way into one engine."""

    __slots__ = ("_engine", "_runtime")

    puts = False
    sends = True
    lock: contextlib.AbstractContextManager[object] = contextlib.nullcontext()

    def __init__(self, engine: Engine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    def look(self, key: Key, at: Token | None) -> tuple[Entry | None, Token] | None:
        """The entry of a key, newest of all, as of a token or with its token; None once the store is closed."""
        engine = self._engine
        return None if engine.refusal is not None else engine.newest.look_at(key, at)

    def put(self, *request: object) -> Reply | None:
        """Nothing."""
        return None

    def send(self, request: CommitRequest) -> Reply | None:
        """A commit on the calling thread, if it is alone and may."""
        return self._engine.straight(request, request.snapshot.position, self._runtime)
