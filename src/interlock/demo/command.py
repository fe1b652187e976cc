"""``interlock demo``: the demonstration with a progress bar and two tables, or as JSON.

The first part sells a shop's stock, the second runs an order saga whose coordinators are killed. Exit status: 0 if
everything in the columns of Interlock is as it must be, 1 if anything is not, 2 if the
demonstration could not be run at all (a file that is no export, a store that processes cannot share).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from interlock.demo.main import MAX_AGENTS, MAX_PROCESSES, DemoError, DemoOptions, DemoResult, run_demo
from interlock.demo.orders import OrdersFileError
from interlock.demo.report import render
from interlock.demo.saga_main import SagaOptions, SagaResult, run_saga_demo
from interlock.demo.saga_report import render_sagas
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
    seed: Annotated[int, typer.Option(help="Decides how long agents think and which processes are killed.")] = 0,
    sagas: Annotated[
        bool | None,
        typer.Option("--sagas/--no-sagas", help="Only the order saga, or only the shop.", show_default="both"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Work through a shop's orders with many agents at once: without isolation, with Interlock, and with a process
    killed. Then an order saga over a payment service in another process, whose coordinators are killed: as plain calls,
    and with sagas that another process recovers.

    Exit status 1 if Interlock oversells, loses or repeats anything, or if the payment service's log and the orders
    differ."""
    complaints = Console(stderr=True)
    options = DemoOptions(orders=orders, stock=stock, url=url, agents=agents, processes=processes, seed=seed)
    saga_options = SagaOptions(url=url, processes=processes, seed=seed)
    results: tuple[DemoResult | None, SagaResult | None]
    try:
        results = _run(
            None if sagas is True else options,
            None if sagas is False else saga_options,
            complaints if as_json else Console(),
        )
    except InterlockError as error:
        complaints.print(error.explain(), style="red", markup=False)
        raise typer.Exit(2) from error
    except (OrdersFileError, DemoError, OSError) as error:
        complaints.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error
    ok = all(each.ok for each in results if each is not None)
    if as_json:
        typer.echo(json.dumps(_as_json(*results, ok), ensure_ascii=False, indent=2))
    else:
        first, second = results
        if first is not None:
            Console().print(render(first))
        if second is not None:
            Console().print(render_sagas(second))
    raise typer.Exit(0 if ok else 1)


def _as_json(first: DemoResult | None, second: SagaResult | None, ok: bool) -> dict[str, Any]:
    """The first part as it is, the second under ``sagas``, and whether all of it is right."""
    shop = first.to_dict() if first is not None else {}
    sagas = {"sagas": second.to_dict()} if second is not None else {}
    return {**shop, **sagas, "ok": ok}


def _run(
    options: DemoOptions | None, saga_options: SagaOptions | None, console: Console
) -> tuple[DemoResult | None, SagaResult | None]:
    """Run the parts under a progress bar that is gone afterwards."""
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

        return (
            run_demo(options, show) if options is not None else None,
            run_saga_demo(saga_options, show) if saga_options is not None else None,
        )
