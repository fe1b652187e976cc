"""The least possible safe transaction in memory, as a function and as a session.

Freeze the value, validate what was read under a lock, apply, record that it was done, log. The record is kept under the
idempotency key, or without one under the transaction's id, a plain count here. No history, no snapshots, no spans, no
expiry, no merges. `LeastSession` is the same behind a handle like the one that agents are given: calls that are awaited
and tracked.
"""

from __future__ import annotations

import itertools
import threading

from benchmarks.workload import AGENT, VALUE, changed, pack, unpack


class Refused(Exception):
    """Somebody else has changed what was read."""


class LeastStore:
    """Values under a lock, each with the position of the commit that wrote it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.current: dict[str, tuple[int, bytes]] = {}
        self.position = 0
        self.records: dict[str | int, int] = {}
        self.new_id = itertools.count().__next__
        self.log: list[tuple[int, str, dict[str, int], dict[str, bytes]]] = []

    def read(self, key: str) -> tuple[int, bytes] | None:
        """A version and a frozen value."""
        return self.current.get(key)

    def commit(self, agent: str, reads: dict[str, int], writes: dict[str, bytes], name: str | int) -> int:
        """Validate, apply, record under the name, log; the position. Done before under that name: only the position."""
        with self.lock:
            done = self.records.get(name)
            if done is not None:
                return done
            current = self.current
            for key, version in reads.items():
                entry = current.get(key)
                if (0 if entry is None else entry[0]) != version:
                    raise Refused(key)
            self.position = position = self.position + 1
            for key, value in writes.items():
                current[key] = (position, value)
            self.records[name] = position
            self.log.append((position, agent, reads, writes))
            return position


def read_modify_write(store: LeastStore, key: str, idempotency_key: str | None) -> None:
    """One transaction."""
    entry = store.read(key)
    version, text = (0, VALUE) if entry is None else (entry[0], unpack(entry[1]))
    name = store.new_id() if idempotency_key is None else idempotency_key
    store.commit(AGENT, {key: version}, {key: pack(changed(text))}, name)


class LeastSession:
    """``async with LeastSession(store, name) as session``: reads and writes are tracked, the exit commits."""

    __slots__ = ("_name", "_reads", "_store", "_writes")

    def __init__(self, store: LeastStore, name: str | int) -> None:
        self._store = store
        self._name = name
        self._reads: dict[str, int] = {}
        self._writes: dict[str, bytes] = {}

    async def __aenter__(self) -> LeastSession:
        return self

    async def read(self, key: str, default: str) -> str:
        """The value of a key as of its first read, or as written here."""
        raw = self._writes.get(key)
        if raw is None:
            entry = self._store.read(key)
            version = 0 if entry is None else entry[0]
            if self._reads.setdefault(key, version) != version:
                raise Refused(key)
            if entry is None:
                return default
            raw = entry[1]
        text: str = unpack(raw)
        return text

    async def write(self, key: str, text: str) -> None:
        """Put a value."""
        self._writes[key] = pack(text)

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._store.commit(AGENT, self._reads, self._writes, self._name)
