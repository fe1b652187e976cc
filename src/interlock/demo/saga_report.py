"""The result of the demonstration's second part for people: one table, and under it what it does or does not show.

Nothing is computed here; every figure comes from `interlock.demo.saga_main.SagaResult`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from interlock.demo.saga_main import SagaColumn, SagaResult

JUDGED_ROWS: Final[tuple[tuple[str, Callable[[SagaColumn], int]], ...]] = (
    ("charges without an order", lambda column: column.verdict.charges_without_order),
    ("orders without a charge", lambda column: column.verdict.orders_without_charge),
    ("double charges", lambda column: column.verdict.double_charges),
    ("charges of a wrong amount", lambda column: column.verdict.wrong_amounts),
    ("wrong refunds", lambda column: column.verdict.wrong_refunds),
    ("mails for cancelled orders", lambda column: column.verdict.mails_for_cancelled),
    ("orders without a mail", lambda column: column.verdict.orders_without_mail),
    ("mails sent twice", lambda column: column.verdict.mails_twice),
    ("shipments without an order", lambda column: column.verdict.shipments_without_order),
    ("orders not shipped once", lambda column: column.verdict.orders_not_shipped_once),
    ("stock error, units", lambda column: column.verdict.stock_error_units),
    ("acknowledged orders lost", lambda column: column.verdict.acknowledged_lost),
    ("dead letters", lambda column: column.dead_letters),
)
MEASURED_ROWS: Final[tuple[tuple[str, Callable[[SagaColumn], str]], ...]] = (
    ("orders completed", lambda column: f"{column.orders:,}"),
    ("coordinators killed", lambda column: f"{column.coordinators_killed:,}"),
    ("orders broken off", lambda column: f"{column.broken:,}"),
    ("recovered: undone / finished", lambda column: f"{column.undone:,} / {column.finished:,}"),
    ("seconds", lambda column: f"{column.seconds:,.1f}"),
)


def render_sagas(result: SagaResult) -> RenderableType:
    """The whole report."""
    table = Table(
        title=f"{result.orders:,} orders, {result.processes} coordinators; judged by the payment service's own log",
        title_justify="left",
    )
    table.add_column("")
    for column in result.columns:
        table.add_column(column.name, justify="right")
    for name, count in JUDGED_ROWS:
        counts = [count(column) for column in result.columns]
        table.add_row(name, *(Text(f"{each:,}", style="bold red" if each else "green") for each in counts))
    table.add_section()
    for name, cell in MEASURED_ROWS:
        table.add_row(name, *(cell(column) for column in result.columns))
    lines = [Text(note, style="bold yellow") for note in result.notes]
    if not result.ok:
        lines.append(
            Text(
                "The sagas got something wrong: everything in their column's upper part has to be 0.", style="bold red"
            )
        )
    return Group(table, *lines)
