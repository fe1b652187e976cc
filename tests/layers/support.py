"""What the tests of leases and locks share: owners that fall silent, and time that is moved."""

from __future__ import annotations

from typing import Any

from interlock.layers.ledger import Kind, Ledger
from interlock.layers.locks import LOCKS
from interlock.layers.tenures import Tenure


def inner(held: Any) -> Any:
    """The holding behind a lease or lock of either world."""
    return getattr(held, "inner", held)._holding


def silence(held: Any) -> Tenure:
    """Stop renewing, as a process does that hangs or dies."""
    holding = inner(held)
    holding.desk.keeper.remove(holding.tenure)
    tenure: Tenure = holding.tenure
    return tenure


async def records(store: Any, kind: Kind) -> list[Any]:
    """The values of all listed records of a kind; of tables of locks those in which there is anybody, without a note
    whether they are split."""
    found = await Ledger(store._engine).scan(kind)
    values = [record.value for record in found.records]
    return [value[:2] for value in values if value[1]] if kind is LOCKS else values
