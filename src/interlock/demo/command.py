"""``interlock demo``: the demonstration with a progress bar and a table, or as JSON.

Exit status: 0 if everything in the columns of Interlock is as it must be, 1 if anything is not, 2 if the
demonstration could not be run at all (a file that is no export, a store that processes cannot share).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from interlock.demo.main import MAX_AGENTS, MAX_PROCESSES, DemoError, DemoOptions, DemoResult, run_demo
from interlock.demo.orders import OrdersFileError
from interlock.demo.report import render
from interlock.errors import InterlockError


def demo(
    orders: Annotated[
        Path | None,
        typer.Option(help="A shop's export as CSV.", show_default="the one shipped", exists=True, dir_okay=False),
    ] = None,
    stock: Annotated[
        Path | None,
        typer.Option(help="Opening stock as CSV.", show_default="the one shipped", exists=True, dir_okay=False),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="A store that processes share; what the run writes there stays, under names of its own.",
            show_default="a new SQLite file",
        ),
    ] = None,
    agents: Annotated[int, typer.Option(min=1, max=MAX_AGENTS, help="Agents in each process.")] = 4,
    processes: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES, help="Processes.")] = 4,
    seed: Annotated[int, typer.Option(help="Decides how long agents think and which process is killed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Work through a shop's orders with many agents at once: without isolation, with Interlock, and with a process
    killed.

    Exit status 1 if Interlock oversells, loses or repeats anything."""
    complaints = Console(stderr=True)
    options = DemoOptions(orders=orders, stock=stock, url=url, agents=agents, processes=processes, seed=seed)
    try:
        result = _run(options, complaints if as_json else Console())
    except InterlockError as error:
        complaints.print(error.explain(), style="red", markup=False)
        raise typer.Exit(2) from error
    except (OrdersFileError, DemoError, OSError) as error:
        complaints.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False, indent=2))
    else:
        Console().print(render(result))
    raise typer.Exit(0 if result.ok else 1)


def _run(options: DemoOptions, console: Console) -> DemoResult:
    """Run it under a progress bar that is gone afterwards."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bar:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        return run_demo(options, show)
