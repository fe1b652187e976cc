"""The transaction log for synchronous code: `interlock.core.log`, stepped."""

from __future__ import annotations

from collections.abc import Iterator

from interlock.core import log
from interlock.core.engine import Engine
from interlock.core.log import Change, Cursor
from interlock.stepping import step, step_all


class TransactionLog:
    """The feed: every committed transaction once, after all that it depends on, as long as the store keeps history."""

    __slots__ = ("_log",)

    def __init__(self, engine: Engine) -> None:
        self._log = log.TransactionLog(engine)

    def head(self) -> Cursor:
        """The cursor behind everything that is committed now."""
        return step(self._log.head())

    def changes(self, since: Cursor | None = None, *, follow: bool = False) -> Iterator[Change]:
        """Changes behind ``since`` (None: from the oldest kept), in an order that all that depends on them keeps.

        Ends at what is committed now, unless ``follow``: then it goes on for ever. Raises `SnapshotTooOldError` if
        something behind ``since`` is no longer kept, never skips it."""
        return step_all(self._log.changes(since, follow=follow))

    def get(self, transaction_id: str) -> Change | None:
        """The change of a transaction, or None if it has not committed or is no longer kept."""
        return step(self._log.get(transaction_id))

    def wait(self, since: Cursor, *, timeout_seconds: float) -> bool:
        """Whether something behind ``since`` was committed before the time ran out; returns soon after it was."""
        return step(self._log.wait(since, timeout_seconds=timeout_seconds))
