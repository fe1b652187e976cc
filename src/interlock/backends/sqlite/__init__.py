"""The SQLite backend: one file, many threads and processes, nothing to install or to run.

`backend` is the port and `engine` what its leaves share; read `engine` first, it argues why no interleaving breaks
the store. `writer` is the thread that commits batches, `validation` and `batch` decide them, `reading` answers
reads on the caller's own thread, from the memory of `newest` and `gaps` or from the file. `record` is the form of a
feed record, `trail` and `past` find old versions fast, `compaction` drops them, `waiting` wakes whoever waits for news,
`locking` is the queue of the processes, `connection` and `schema` open files and turn SQLite's errors into ours.
"""

from interlock.backends.sqlite.backend import SQLiteBackend

__all__ = ["SQLiteBackend"]
