"""Tables for people, JSON for programs, Markdown for README.md."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Figures, Ratio
from benchmarks.scale import Point

_MARKUP = re.compile(r"\[/?[a-z]+\]")


@dataclass(slots=True)
class Report:
    """Everything that one run has found."""

    machine: dict[str, str | int | float]
    settings: dict[str, Any]
    cells: list[Figures] = field(default_factory=list)
    scale: list[Point] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    def write_markdown(self, path: Path) -> None:
        """As tables for a document."""
        path.write_text("\n".join(_markdown(self)), encoding="utf-8")


def show(report: Report, console: Console) -> None:
    """All tables that have rows."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items() if name != "command")
    console.print(f"[bold]{report.machine['command']}[/bold]\n{facts}", highlight=False)
    for table in _tables(report):
        console.print(table)


def _markdown(report: Report) -> Iterator[str]:
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items() if name != "command")
    yield f"`{report.machine['command']}`: {facts}\n"
    for table in _tables(report):
        yield f"**{table.title}**\n"
        cells = [[str(cell).replace("\n", " ") for cell in (column.header, *column.cells)] for column in table.columns]
        for number, row in enumerate(zip(*cells, strict=True)):
            yield "| " + " | ".join(_MARKUP.sub("", cell) for cell in row) + " |"
            if number == 0:
                yield "|---" + "|---:" * (len(row) - 1) + "|"
        yield ""


def _tables(report: Report) -> Iterator[Table]:
    for group in dict.fromkeys(figures.group for figures in report.cells):
        yield _cells_table(group, [figures for figures in report.cells if figures.group == group])
    for backend, axis in dict.fromkeys((point.backend, point.axis) for point in report.scale):
        points = [point for point in report.scale if (point.backend, point.axis) == (backend, axis)]
        yield _scale_table(f"{backend}: us for each call, by the number of {axis}", points)


def _cells_table(group: str, rows: Sequence[Figures]) -> Table:
    floors = [row.name for row in rows if row.floor]
    compared = "CPU time" if rows[0].by_cpu else "commits/s"
    title = f"{group}; ratios are of {compared}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("cell")
    for heading in ("commits/s", "p50 ms", "p99 ms", "CPU us"):
        table.add_column(heading, justify="right")
    served = any(row.server_us is not None for row in rows)
    if served:
        table.add_column("server us", justify="right")
    for floor in floors:
        table.add_column(f"/ {floor.removeprefix('floor: ')}", justify="right")
    for row in rows:
        ratios = {ratio.floor: ratio for ratio in row.ratios}
        table.add_row(
            row.name,
            f"{row.commits_per_second:,.0f}",
            f"{row.p50_ms:.3f}",
            f"{row.p99_ms:.3f}",
            f"{row.cpu_us:,.1f}",
            *([_server_text(row)] if served else []),
            *(_ratio_text(ratios.get(floor)) for floor in floors),
            style="dim" if row.floor else None,
        )
    return table


def _server_text(row: Figures) -> str:
    """What the server needs for a commit, and how many times the first floor's that is."""
    if row.server_us is None:
        return ""
    beside = "" if row.server_ratio is None else f", x {_ratio_text(row.server_ratio)}"
    return f"{row.server_us:,.1f}{beside}"


def _ratio_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "1"
    text = f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
    if ratio.met is None:
        return text
    return f"{text} [green]met[/green]" if ratio.met else f"{text} [red]missed[/red]"


def _scale_table(title: str, points: Sequence[Point]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("call, figure")
    counts = sorted({point.count for point in points})
    for count in counts:
        table.add_column(f"{count:,}", justify="right")
    for call in dict.fromkeys(point.call for point in points):
        own = {point.count: point for point in points if point.call == call}
        for name in ("p50_us", "p99_us", "cpu_us"):
            label = f"{call}, {'CPU' if name == 'cpu_us' else name.partition('_')[0]}"
            table.add_row(label, *(f"{getattr(own[count], name):,.1f}" for count in counts))
    return table
