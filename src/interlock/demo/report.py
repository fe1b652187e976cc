"""The result of the demonstration for people: one table, and under it what it does or does not show.

Nothing is computed here; every figure comes from `interlock.demo.main.DemoResult`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from interlock.demo.main import ColumnResult, DemoResult
from interlock.demo.orders import MINOR_DIGITS

Cell = Callable[[ColumnResult], Text]


def money(amounts: Mapping[str, int]) -> str:
    """Amounts in smallest units as people write them, one line for each currency; ``0`` if there is none."""
    lines = []
    for currency, minor in amounts.items():
        digits = MINOR_DIGITS.get(currency, 0)
        whole, fraction = divmod(abs(minor), 10**digits)
        sign = "-" if minor < 0 else "+"
        lines.append(f"{currency} {sign}{whole:,}" + (f".{fraction:0{digits}d}" if digits else ""))
    return "\n".join(lines) or "0"


def _must_be_zero(get: Callable[[ColumnResult], int]) -> Cell:
    return lambda column: _judged(f"{get(column):,}", get(column) == 0)


def _judged(text: str, right: bool) -> Text:
    return Text(text, style="green" if right else "bold red")


def _plain(get: Callable[[ColumnResult], str]) -> Cell:
    return lambda column: Text(get(column))


JUDGED_ROWS: tuple[tuple[str, Cell], ...] = (
    ("units oversold", _must_be_zero(lambda column: column.verdict.units_oversold)),
    ("orders lost", _must_be_zero(lambda column: column.verdict.orders_lost)),
    ("  of them acknowledged", _must_be_zero(lambda column: column.verdict.acknowledged_lost)),
    ("orders applied twice", _must_be_zero(lambda column: column.verdict.applied_twice)),
    (
        "revenue error",
        lambda column: _judged(money(column.verdict.revenue_error), not column.verdict.revenue_error),
    ),
    ("stock error, units", _must_be_zero(lambda column: column.verdict.stock_error_units)),
    ("wrong decisions", _must_be_zero(lambda column: column.verdict.wrong_decisions)),
    ("foreign records", _must_be_zero(lambda column: column.verdict.foreign_records)),
    ("deliveries failed", _must_be_zero(lambda column: len(column.failures))),
)
MEASURED_ROWS: tuple[tuple[str, Cell], ...] = (
    ("orders sold / sold out", _plain(lambda column: f"{column.orders_sold:,} / {column.orders_refused:,}")),
    ("deliveries replayed", _plain(lambda column: f"{column.replays:,}")),
    ("contradictions refused", _plain(lambda column: f"{column.contradictions:,}")),
    ("processes killed", _plain(lambda column: f"{column.processes_killed:,}")),
    ("conflicts", _plain(lambda column: f"{column.conflicts:,}")),
    ("retries", _plain(lambda column: f"{column.retries:,}")),
    ("commits/s", _plain(lambda column: f"{column.commits_per_second:,.0f}")),
    ("p50 ms", _plain(lambda column: f"{column.p50_seconds * 1000:,.1f}")),
    ("p99 ms", _plain(lambda column: f"{column.p99_seconds * 1000:,.1f}")),
    ("seconds", _plain(lambda column: f"{column.seconds:,.1f}")),
)


def render(result: DemoResult) -> RenderableType:
    """The whole report."""
    table = Table(title=f"{result.processes} processes of {result.agents} agents", title_justify="left")
    table.add_column("")
    for column in result.columns:
        table.add_column(column.name, justify="right")
    for name, cell in JUDGED_ROWS:
        table.add_row(name, *map(cell, result.columns))
    table.add_section()
    for name, cell in MEASURED_ROWS:
        table.add_row(name, *map(cell, result.columns))
    return Group(_input(result), table, *_conclusion(result))


def _input(result: DemoResult) -> Text:
    refused = ", ".join(f"{count} {reason}" for reason, count in result.refused_rows.items())
    return Text(
        f"{result.rows:,} rows: {result.deliveries:,} deliveries of {result.distinct_orders:,} orders; "
        f"{sum(result.refused_rows.values()):,} rows refused{f' ({refused})' if refused else ''}. "
        f"{result.units_wanted:,} units wanted, {result.units_in_stock:,} in stock, "
        f"at most {result.units_sellable:,} can be sold."
    )


def _conclusion(result: DemoResult) -> list[Text]:
    lines = [
        Text(f"{column.name}: {failure}", style="red") for column in result.columns for failure in column.failures[:3]
    ]
    lines += [Text(note, style="bold yellow") for note in result.notes]
    if not result.ok:
        lines.append(
            Text("Interlock got something wrong: everything in its columns' upper part has to be 0.", style="bold red")
        )
    return lines
