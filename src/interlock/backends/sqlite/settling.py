"""What to do when COMMIT itself raises: nobody knows whether the batch is in the file, so it is decided anew.

Looking whether the records are there is not enough. After a failed fsync a second connection read "absent", every
process died, and on reopening the commit was there: its frames lay in the write-ahead log behind the last commit
that the shared index knew of. One more commit settles it, whatever it writes: it overwrites those frames. So
`settle` writes a fence for every id of the batch that is not recorded, and only after that commit and a checkpoint
does anybody get an answer. The checkpoint copies what *is* there into the database and syncs it, because after a
failed fsync the kernel may take pages for clean that never reached the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from interlock.backends.sqlite.connection import Connection
from interlock.backends.sqlite.jobs import CommitJob, FenceJob, Job
from interlock.backends.sqlite.outcomes import recorded
from interlock.backends.sqlite.statements import HEAD, NewFeedRow
from interlock.errors import CommitUnknownError, InterlockError
from interlock.model import Reply, Settled


def decided(connection: Connection, job: Job, result: Any, found: dict[bytes, bool], error: InterlockError) -> Any:
    """The answer to a job of such a batch, after everything is decided."""
    if isinstance(result, Reply):
        return result if found.get(result.token.detail, True) else error
    if isinstance(job, FenceJob):
        identity = job.transaction.to_bytes(16, "big")
        row = recorded(connection, identity)
        return Settled.COMMITTED if row is not None and row[3] is not None else Settled.FENCED
    return error


def unknown(job: Job, result: Any, error: InterlockError, second: Exception) -> InterlockError:
    """The answer to a job of such a batch if that failed as well."""
    if not isinstance(result, Reply):
        return error
    return CommitUnknownError(
        f"COMMIT failed ({error}) and so did finding out what became of it ({second})",
        transaction_id=f"{job.request.transaction:032x}" if isinstance(job, CommitJob) else "",
    )


def settle(connection: Connection, feed: Sequence[NewFeedRow], now: float) -> dict[bytes, bool]:
    """Decide each row of a batch whose COMMIT raised: its id -> whether it is there. Raises ``sqlite3.Error`` if
    that fails.

    ``connection`` is a new one. What is not there never will be."""
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    found: dict[bytes, bool] = {}
    position: int = execute(HEAD).fetchone()[0]
    for _, identity, _, record, _ in feed:
        row = recorded(connection, identity)
        found[identity] = row is not None and (row[3] is None) == (record is None)
        if row is None:
            position += 1
            execute("INSERT INTO feed VALUES (?, ?, ?, 0, NULL)", (position, identity, now))
    execute("INSERT OR REPLACE INTO facts VALUES ('settled', ?)", (now,))
    execute("COMMIT")
    _, logged, copied = execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if logged != copied:
        raise sqlite3.OperationalError("the checkpoint after a failed commit is incomplete")
    return found
