"""The short way to what is in memory: one plain function for the reads that nearly every session makes.

See `interlock.ports.Direct`. It answers from `interlock.backends.sqlite.newest` what `SQLiteBackend.read` would answer
from there, by the same steps, and says None to everything else. Commits go the general way, for they wait.
"""

from __future__ import annotations

from interlock.backends.sqlite.engine import Engine
from interlock.model import Entry, Key, Reply, Token


class Direct:
    """The short way into one engine."""

    __slots__ = ("_engine",)

    puts = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def look(self, key: Key, at: Token | None) -> tuple[Entry | None, Token] | None:
        """The entry of a key, newest of all, as of a token or with its token; None once the store is closed."""
        engine = self._engine
        return None if engine.refusal is not None else engine.newest.look_at(key, at)

    def put(self, *request: object) -> Reply | None:
        """Nothing."""
        return None
