"""The memory backend: a store that lives as long as the process, safe between threads and event loops.

`backend` is the port (who may call, waiting, closing, forks), `engine` the versioned store behind one lock, `order`
the keys in order, `compaction` what drops the old.
"""

from interlock.backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
