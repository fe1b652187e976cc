"""Coordinators that lose their saga without knowing it."""

from __future__ import annotations

from typing import Any

from interlock.saga.presence import coordinators_of
from interlock.stepping import step


def give_away(saga: Any) -> None:
    """A durable saga's coordinator is believed dead from now on; it does not know. Its results are in the store."""
    journal = saga._journal
    step(journal.flush())
    known, head = journal._head_version, journal.head
    step(journal._write(head={**head, "owner": None}))
    journal._head_version, journal.head = known, head
    coordinators_of(journal.engine)._held.pop(journal.head_key)  # in its own process, too
