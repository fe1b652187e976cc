"""The least possible safe transaction in memory.

Freeze the value, validate what was read under a lock, apply, record that it was done, log. The record is kept under the
idempotency key, or without one under the transaction's id, a plain count here. No history, no snapshots, no spans, no
expiry, no merges.
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
