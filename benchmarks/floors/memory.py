"""The least possible safe transaction in memory.

Freeze the value, validate what was read under a lock, apply, record the idempotency key, log. No history, no snapshots,
no spans, no expiry, no merges.
"""

from __future__ import annotations

import threading

from benchmarks.workload import AGENT, changed, pack, unpack


class Refused(Exception):
    """Somebody else has changed what was read."""


class LeastStore:
    """Values under a lock, each with the position of the commit that wrote it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.current: dict[str, tuple[int, bytes]] = {}
        self.position = 0
        self.records: dict[str, int] = {}
        self.log: list[tuple[int, str, dict[str, int], dict[str, bytes]]] = []

    def read(self, key: str) -> tuple[int, bytes] | None:
        """A version and a frozen value."""
        return self.current.get(key)

    def commit(self, agent: str, reads: dict[str, int], writes: dict[str, bytes], idempotency_key: str | None) -> int:
        """Validate, apply, record, log; the position."""
        with self.lock:
            if idempotency_key is not None:
                done = self.records.get(idempotency_key)
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
            if idempotency_key is not None:
                self.records[idempotency_key] = position
            self.log.append((position, agent, reads, writes))
            return position


def read_modify_write(store: LeastStore, key: str, idempotency_key: str | None) -> None:
    """One transaction."""
    entry = store.read(key)
    version, text = (0, "") if entry is None else (entry[0], unpack(entry[1]))
    store.commit(AGENT, {key: version}, {key: pack(changed(text))}, idempotency_key)
