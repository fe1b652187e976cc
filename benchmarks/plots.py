"""Plots of a run: ratios as bars with their targets, latencies, and whether cost stays flat.

Needs matplotlib, which is imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Figures
from benchmarks.report import Report
from benchmarks.scale import Point

_COLOURS: Final = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3")


def draw(report: Report, directory: Path, kind: str) -> list[Path]:
    """Write the plots as ``kind`` ("png" or "svg"); their files. Raises `ImportError` without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []

    def save(figure: Any, name: str) -> None:
        path = directory / f"{name}.{kind}"
        figure.tight_layout()
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        made.append(path)

    for name in ("memory", "sqlite", "postgresql", "redis"):
        rows = [row for row in report.cells if _part(row) == name]
        if rows:
            save(_ratios(pyplot, rows, rows[0].by_cpu), f"{name}-ratios")
            save(_latencies(pyplot, rows), f"{name}-latencies")
    if report.scale:
        save(_flatness(pyplot, report.scale), "scale")
    return made


def _part(row: Figures) -> str:
    """The part of the benchmarks that a cell belongs to."""
    if row.by_cpu:
        return "memory"
    engine = row.group.partition(",")[0].lower()
    return engine if engine in ("postgresql", "redis") else "sqlite"


def _ratios(pyplot: Any, rows: Sequence[Figures], by_cpu: bool) -> Any:
    """A panel for each group, a group of bars for each cell, a bar for each floor."""
    groups = list(dict.fromkeys(row.group for row in rows))
    every = list(dict.fromkeys(ratio.floor for row in rows for ratio in row.ratios))
    colours = dict(zip(every, _COLOURS, strict=False))
    figure, panels = pyplot.subplots(1, len(groups), figsize=(3.2 * len(groups) + 1, 4.2), sharey=True, squeeze=False)
    for panel, group in zip(panels[0], groups, strict=True):
        own = [row for row in rows if row.group == group and not row.floor]
        floors = list(dict.fromkeys(ratio.floor for row in own for ratio in row.ratios))
        width = 0.8 / max(1, len(floors))
        for i, floor in enumerate(floors):
            found = [next(ratio for ratio in row.ratios if ratio.floor == floor) for row in own]
            places = [place + (i - (len(floors) - 1) / 2) * width for place in range(len(own))]
            medians = [ratio.median for ratio in found]
            spread = [
                [ratio.median - ratio.low for ratio in found],
                [ratio.high - ratio.median for ratio in found],
            ]
            panel.bar(places, medians, width, yerr=spread, capsize=2, label=floor, color=colours[floor])
            for target in {ratio.target for ratio in found if ratio.target is not None}:
                panel.axhline(target, color=colours[floor], linestyle="--", linewidth=1)
        panel.axhline(1, color="black", linewidth=1)
        panel.set_title(group, fontsize=9)
        panel.set_xticks(range(len(own)), [row.name for row in own], rotation=25, ha="right", fontsize=8)
        panel.legend(fontsize=6)
    panels[0][0].set_ylabel(
        "CPU time / the floor's (less is better)" if by_cpu else "commits/s / the floor's (more is better)"
    )
    figure.suptitle("Against hand-written floors (line: the floor; dashed: the target)", fontsize=10)
    return figure


def _latencies(pyplot: Any, rows: Sequence[Figures]) -> Any:
    """A panel for each group: which part of the transactions took at most so long."""
    from matplotlib.ticker import NullFormatter

    groups = list(dict.fromkeys(row.group for row in rows))
    figure, panels = pyplot.subplots(1, len(groups), figsize=(3.2 * len(groups) + 1, 4), sharey=True, squeeze=False)
    for panel, group in zip(panels[0], groups, strict=True):
        for colour, row in zip(_COLOURS, (row for row in rows if row.group == group), strict=False):
            percents = [int(percent) for percent in row.latency_ms]
            style = "--" if row.floor else "-"
            panel.plot(list(row.latency_ms.values()), percents, style, label=row.name, color=colour, linewidth=1.4)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_title(group, fontsize=9)
        panel.set_xlabel("ms")
        panel.legend(fontsize=6, loc="lower right")
    panels[0][0].set_ylabel("per cent of transactions")
    figure.suptitle("Time of a transaction (dashed: floors)", fontsize=10)
    return figure


def _flatness(pyplot: Any, points: Sequence[Point]) -> Any:
    """A panel for each backend and axis, a line for each call."""
    series = list(dict.fromkeys((point.backend, point.axis) for point in points))
    figure, panels = pyplot.subplots(1, len(series), figsize=(3.6 * len(series) + 1, 4), squeeze=False)
    for panel, (backend, axis) in zip(panels[0], series, strict=True):
        own = [point for point in points if (point.backend, point.axis) == (backend, axis)]
        for colour, call in zip(_COLOURS, dict.fromkeys(point.call for point in own), strict=False):
            line = [point for point in own if point.call == call]
            counts = [point.count for point in line]
            panel.plot(counts, [point.cpu_us for point in line], "o-", label=f"{call}, CPU", color=colour)
            panel.plot(counts, [point.p50_us for point in line], "o:", label=f"{call}, p50", color=colour)
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_title(f"{backend}, {axis}", fontsize=9)
        panel.set_xlabel(f"number of {axis}")
        panel.legend(fontsize=6)
    panels[0][0].set_ylabel("us for each call")
    figure.suptitle("Cost by size", fontsize=10)
    return figure
