"""``python -m interlock.testing.histories``: run a workload and judge it, or judge a history that was recorded before.

Exit status: 0 if there is no violation and the run could have shown one, 1 otherwise, 2 for a wrong call."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from interlock.errors import InterlockError
from interlock.testing.histories.findings import Findings
from interlock.testing.histories.graph import MODELS
from interlock.testing.histories.records import History, load
from interlock.testing.histories.running import FAULTS, Settings, Verdict, run
from interlock.testing.histories.workloads import WORKLOADS

SHOWN = 5
"""How many violations are told in full."""

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Recorded histories, and what they prove.")

AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON.")]


@app.command("run")
def run_command(
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}.")],
    url: Annotated[str, typer.Option(help="The store; a run leaves what it writes under a name of its own.")],
    mode: Annotated[str, typer.Option(help="The isolation mode.")] = "serializable",
    seconds: Annotated[float, typer.Option(help="For how long the agents work.")] = 10.0,
    processes: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Agents in each process.")] = 4,
    faults: Annotated[str, typer.Option(help=f"What is done to processes: {', '.join(FAULTS)}, with commas.")] = "",
    seed: Annotated[int, typer.Option(help="Decides what the agents do and whom the faults meet.")] = 0,
    least: Annotated[int, typer.Option(help="Fewer acknowledged transactions prove nothing.")] = 1000,
    control: Annotated[bool, typer.Option(help="Show also that a weaker mode fails.")] = True,
    out: Annotated[Path | None, typer.Option(help="Where the history goes.", show_default="a new folder")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a workload over a store and judge its history by what the mode promises."""
    complaints = Console(stderr=True)
    settings = Settings(
        workload, url, cast(Any, mode), seconds, processes, threads, seed,
        cast(Any, tuple(filter(None, faults.split(",")))), least=least, control=control,
    )  # fmt: skip
    directory = Path(tempfile.mkdtemp(prefix="interlock-history-")) if out is None else out
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=complaints, transient=True)
    try:
        with bar:
            task = bar.add_task(f"{workload}, {mode}", total=seconds)
            verdict = run(settings, directory, on_progress=lambda left: bar.update(task, completed=seconds - left))
    except InterlockError as error:
        complaints.print(error.explain(), style="red", markup=False)
        raise typer.Exit(2) from error
    _tell(verdict, as_json)
    raise typer.Exit(0 if verdict.passed else 1)


@app.command()
def check(
    history: Annotated[Path, typer.Argument(help="A merged history, or the folder of one.", exists=True)],
    workload: Annotated[str, typer.Option(help="What made it.")] = "list-append",
    mode: Annotated[str, typer.Option(help="The isolation mode whose promise it is judged by.")] = "serializable",
    as_json: AsJson = False,
) -> None:
    """Judge a history that was recorded before."""
    if workload not in WORKLOADS or mode not in MODELS:
        known = f"workloads: {', '.join(WORKLOADS)}; modes: {', '.join(MODELS)}"
        Console(stderr=True).print(f"unknown workload or mode; {known}", style="red", markup=False)
        raise typer.Exit(2)
    loaded = load(history)
    findings = WORKLOADS[workload].judge(loaded, MODELS[mode])
    if as_json:
        typer.echo(json.dumps({**_form(findings), "counts": loaded.counts}, ensure_ascii=False))
    else:
        _tell_findings(findings, loaded)
    raise typer.Exit(1 if findings.violations else 0)


def _form(findings: Findings) -> dict[str, Any]:
    return {"violations": [{"name": each.name, "explanation": each.explanation} for each in findings.violations]}


def _tell_findings(findings: Findings, history: History) -> None:
    console = Console(highlight=False, markup=False)
    console.print(f"{sum(history.counts.values())} transactions, {len(findings.violations)} violations")
    for each in findings.violations[:SHOWN]:
        named = each.explanation.startswith(each.name)
        console.print(each.explanation if named else f"{each.name}: {each.explanation}")


def _tell(verdict: Verdict, as_json: bool) -> None:
    settings, counts = verdict.settings, verdict.counts
    if as_json:
        form = {
            "workload": settings.workload, "mode": settings.mode, "seed": settings.seed, "passed": verdict.passed,
            "counts": counts, "overlapping": round(verdict.overlapping, 4), "faults": verdict.fired,
            "vacuous": verdict.vacuous, "control_violations": verdict.control_violations,
            "history": str(verdict.path), **_form(verdict.findings),
        }  # fmt: skip
        typer.echo(json.dumps(form, ensure_ascii=False))
        return
    table = Table(title=f"{settings.workload}, {settings.mode}, seed {settings.seed}", show_header=False)
    table.add_row("acknowledged / refused / unknown", f"{counts['ok']} / {counts['fail']} / {counts['info']}")
    table.add_row("overlapping", f"{verdict.overlapping:.0%}")
    for name, count in verdict.fired.items():
        table.add_row(f"fault {name}", f"fired {count} times")
    if verdict.control_violations is not None:
        table.add_row("violations of the control", str(verdict.control_violations))
    table.add_row("violations", str(len(verdict.findings.violations)))
    table.add_row("history", str(verdict.path))
    console = Console(highlight=False)
    console.print(table)
    for reason in verdict.vacuous:
        console.print(f"proves nothing: {reason}", style="red", markup=False)
    for each in verdict.findings.violations[:SHOWN]:
        console.print(each.explanation, style="red", markup=False)


if __name__ == "__main__":
    app()
