"""The command: which cells, how long, and where the results go."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import effects, locks, machine, memory, peers, plots, postgresql, redis, report, sagas, scale, sqlite
from benchmarks.measure import Cell, interleave
from benchmarks.report import Report


class What(enum.Enum):
    """What to measure."""

    memory = "memory"
    sqlite = "sqlite"
    postgresql = "postgresql"
    redis = "redis"
    scale = "scale"
    effects = "effects"
    sagas = "sagas"
    locks = "locks"
    all = "all"


class Kind(enum.Enum):
    """How plots are written."""

    png = "png"
    svg = "svg"


_WIDTH = 120

DEFAULTS: dict[What, tuple[float, int]] = {
    What.memory: (0.03, 41),
    What.sqlite: (0.5, 7),
    What.postgresql: (0.5, 7),
    What.redis: (0.5, 7),
    What.scale: (0.15, 7),
    What.effects: (0.5, 7),
    What.sagas: (0.3, 7),
    What.locks: (0.5, 7),
}
"""Seconds for each cell in each repetition, and repetitions."""


SERVERS: Final[dict[What, Any]] = {What.postgresql: postgresql, What.redis: redis}
"""The parts that measure a server, and the modules that start it."""


def run(
    what: Annotated[What, typer.Argument(help="What to measure.")] = What.all,
    *,
    seconds: Annotated[float | None, typer.Option(min=0.001, help="For each cell in each repetition.")] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="How often; medians are reported.")] = None,
    keys: Annotated[int, typer.Option(min=1, help="The largest number of keys, for scale.")] = 1_000_000,
    versions: Annotated[int, typer.Option(min=1, help="The largest number of versions, for scale.")] = 100_000,
    with_peers: Annotated[bool, typer.Option("--peers", help="Other libraries too, if installed.")] = False,
    directory: Annotated[
        Path | None, typer.Option(file_okay=False, exists=True, help="Where stores are made: choose the disk.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="The server to measure, for a part that needs one.", show_default="one of its own"),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file, for a document.")] = None,
    plot: Annotated[Path | None, typer.Option(file_okay=False, help="Write plots to this directory.")] = None,
    plot_format: Annotated[Kind, typer.Option(help="The form of the plots.")] = Kind.svg,
) -> None:
    """Measure the library against hand-written floors, in turns in one run."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    if url is not None and what not in SERVERS:
        raise typer.BadParameter(f"only these have a server: {', '.join(part.value for part in SERVERS)}")
    found = measure(what, seconds, repetitions, keys, versions, with_peers, directory, console, url)
    report.show(found, console)
    if json_file is not None:
        found.write(json_file)
    if markdown is not None:
        found.write_markdown(markdown)
    if plot is not None:
        try:
            plots.draw(found, plot, plot_format.value)
        except ImportError:
            console.print("[red]no plots: matplotlib is not installed (pip install matplotlib)[/red]")
            raise typer.Exit(1) from None


def measure(
    what: What,
    seconds: float | None,
    repetitions: int | None,
    keys: int,
    versions: int,
    with_peers: bool,
    directory: Path | None,
    console: Console,
    url: str | None = None,
) -> Report:
    """Make the cells and measure them, with a progress bar."""
    parts = [part for part in DEFAULTS if what in (part, What.all)]
    with contextlib.ExitStack() as stack:
        urls: dict[What, Any] = {}
        for part in [part for part in parts if part in SERVERS]:
            try:
                urls[part] = stack.enter_context(SERVERS[part].server(url, directory))
            except (LookupError, ImportError) as error:
                if what is not What.all:
                    raise typer.BadParameter(str(error)) from None
                console.print(f"[yellow]{part.value} left out: {error}[/yellow]")
                parts.remove(part)
        return _measure(parts, urls, seconds, repetitions, keys, versions, with_peers, directory, console)


def _measure(
    parts: list[What],
    urls: dict[What, Any],
    seconds: float | None,
    repetitions: int | None,
    keys: int,
    versions: int,
    with_peers: bool,
    directory: Path | None,
    console: Console,
) -> Report:
    plan = {part: (seconds or DEFAULTS[part][0], repetitions or DEFAULTS[part][1]) for part in parts}
    if with_peers and (missing := [*peers.missing(), *effects.missing(), *sagas.missing()]):
        console.print(f"[yellow]peers left out, not installed: {', '.join(missing)}[/yellow]")
    cells = {part: _cells(part, with_peers, urls.get(part)) for part in parts}
    settings = {
        part.value: {"seconds": part_seconds, "repetitions": count} for part, (part_seconds, count) in plan.items()
    }
    found = Report(machine.describe(directory), settings)
    for part, place in urls.items():
        found.machine |= asyncio.run(SERVERS[part].describe(place))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        for part, (part_seconds, count) in plan.items():
            step = _stepper(progress, part, len(cells[part]) * count, keys, versions, count)
            if part is What.scale:
                found.scale += scale.measure(
                    largest=keys,
                    versions=versions,
                    seconds=part_seconds,
                    repetitions=count,
                    directory=directory,
                    step=step,
                )
            else:
                found.cells += interleave(
                    cells[part], seconds=part_seconds, repetitions=count, directory=directory, step=step
                )
    return found


def _cells(part: What, with_peers: bool, place: Any) -> list[Cell]:
    if part is What.memory:
        return memory.cells() + (peers.memory_cells() if with_peers else [])
    if part is What.sqlite:
        return sqlite.cells() + (peers.sqlite_cells(sqlite.TASKS, sqlite.THREADS) if with_peers else [])
    if part is What.effects:
        return effects.all_cells()
    if part is What.sagas:
        return sagas.cells()
    if part is What.locks:
        return locks.cells()
    found: list[Cell] = SERVERS[part].cells(place) if part in SERVERS else []
    return found


def _stepper(
    progress: Progress, part: What, total: int, keys: int, versions: int, repetitions: int
) -> Callable[[str], None]:
    if part is What.scale:
        total = scale.step_count(keys, versions, repetitions)
    task = progress.add_task(part.value, total=total)
    begun = False

    def step(name: str) -> None:
        nonlocal begun
        progress.update(task, description=name, advance=int(begun))
        begun = True

    return step


def main() -> None:
    """The entry point."""
    typer.run(run)
