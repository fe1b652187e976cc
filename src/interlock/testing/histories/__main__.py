"""``python -m interlock.testing.histories``: run a workload and judge it, or judge a history that was recorded before.

Exit status: 0 if there is no violation and the run could have shown one, 1 otherwise, 2 for a wrong call."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from interlock.errors import InterlockError
from interlock.testing.histories.findings import Finding, Findings
from interlock.testing.histories.graph import MODELS
from interlock.testing.histories.records import History, load
from interlock.testing.histories.running import Settings, Verdict, run
from interlock.testing.histories.simulated import Simulated, simulate_many
from interlock.testing.histories.troubles import FAULTS
from interlock.testing.histories.workloads import WORKLOADS

_RANKS = tuple(MODELS)
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
    faults: Annotated[str, typer.Option(help=f"What is done meanwhile: {', '.join(FAULTS)}, with commas.")] = "",
    fault_seconds: Annotated[float, typer.Option(help="From the end of one fault to the next.")] = 1.0,
    restart: Annotated[str | None, typer.Option(help="The command that kills and starts the server.")] = None,
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
        cast(Any, tuple(filter(None, faults.split(",")))), fault_seconds, least=least, control=control, restart=restart,
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


class _Advancing:
    """Moves a bar by one for each seed."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def __call__(self, seed: int) -> None:
        self._bar.advance(self._task)


@app.command("simulate")
def simulate_command(
    workload: Annotated[str, typer.Option(help="One workload, or all.")] = "all",
    mode: Annotated[str, typer.Option(help="The isolation mode.")] = "serializable",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 100,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run workloads over a memory store in virtual time, each seed another order of calls, with lost replies and
    agents that die."""
    known = [name for name, each in WORKLOADS.items() if _RANKS.index(mode) >= _RANKS.index(each.weakest)]
    names = known if workload == "all" else [workload]
    if workload not in ("all", *known):
        complain = f"no workload {workload!r} that {mode!r} promises anything about; there are {', '.join(known)}"
        Console(stderr=True).print(complain, style="red", markup=False)
        raise typer.Exit(2)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    results: dict[str, Simulated] = {}
    wanted = range(first_seed, first_seed + seeds)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for name in names:
            task = bar.add_task(name, total=seeds)
            results[name] = simulate_many(name, cast(Any, mode), wanted, on_progress=_Advancing(bar, task))
    _tell_simulated(results, mode, as_json)
    raise typer.Exit(1 if any(each.violations for each in results.values()) else 0)


def _tell_simulated(results: dict[str, Simulated], mode: str, as_json: bool) -> None:
    if as_json:
        for name, each in results.items():
            told = [{"seed": seed, **_told(found)} for seed, found in each.violations]
            form = {
                "workload": name, "mode": mode, "seeds": each.seeds, "steps": each.steps, "counts": each.counts,
                "faults": each.faults, "violations": told,
            }  # fmt: skip
            typer.echo(json.dumps(form, ensure_ascii=False))
        return
    console = Console(highlight=False)
    columns = (
        "workload",
        "seeds",
        "steps",
        "acknowledged",
        "refused",
        "unknown",
        "lost replies",
        "deaths",
        "violations",
    )
    table = Table(*columns, title=mode)
    for name, each in results.items():
        counts, faults = each.counts, each.faults
        numbers = (each.seeds, each.steps, counts["ok"], counts["fail"], counts["info"], faults["lost reply"],
                   faults["death"], len(each.violations))  # fmt: skip
        table.add_row(name, *map(str, numbers))
    console.print(table)
    for each in results.values():
        for seed, found in each.violations[:SHOWN]:
            console.print(f"seed {seed}: {found.explanation}", style="red", markup=False)


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


def _told(finding: Finding) -> dict[str, str]:
    return {"name": finding.name, "explanation": finding.explanation}


def _form(findings: Findings) -> dict[str, Any]:
    return {"violations": [_told(each) for each in findings.violations]}


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
