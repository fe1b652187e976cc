"""The commands about durable sagas: ``sagas``, ``recover`` and ``dead-letters list``, ``retry``, ``skip``, ``done``.

Undos are a program's functions. They are found only among those that the modules given by ``--import`` have decorated
with `compensable`: what stands in a journal never makes this process import or call anything else."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Annotated, Any

import typer

from interlock import FailedUndo, RecoveryReport, sync
from interlock.cli.exits import Exit
from interlock.cli.forms import parse_value, printable, to_form
from interlock.cli.options import DEFAULT_URL, AsJson, Limit, Url, opened, require_store
from interlock.cli.output import NOTHING, shown_time
from interlock.core.moments import moment_of
from interlock.errors import UsageError
from interlock.saga.recovery import SagaEntry, list_sagas
from interlock.stepping import step_all

Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module with undos; may be given several times."),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store", metavar="URL", help="Another store to which the sagas have committed; may be given several times."
    ),
]
Letter = Annotated[str, typer.Argument(metavar="ID", help="The dead letter's id.", show_default=False)]


def import_all(modules: list[str] | None) -> list[str]:
    """Import the modules named. Raises `UsageError` for one that cannot be imported."""
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in modules or ():
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"module {name!r} cannot be imported: {error}") from error
    return modules or []


@contextmanager
def opened_too(urls: list[str] | None, agent: str) -> Iterator[list[sync.Store]]:
    """The other stores of sagas. None is made where there is none."""
    with ExitStack() as stack:
        for url in urls or ():
            require_store(url)
        yield [stack.enter_context(sync.open(url, agent=agent)) for url in urls or ()]


def sagas(
    every: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    limit: Limit = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List durable sagas that have not ended: running, or waiting for somebody to end them.

    \b
      interlock sagas
      interlock sagas --all --json
    """
    with opened(url, as_json=as_json) as (store, output):
        rows = step_all(list_sagas(store._engine, ended=every))
        output.listing(("saga", "status", "run", "agent", "begun"), islice(rows, limit), saga_form, _saga_cells)


def saga_form(saga: SagaEntry) -> dict[str, Any]:
    """A saga as JSON."""
    return {"name": saga.name, "id": saga.id, "status": saga.status, "run": saga.run, "agent": saga.agent,
            "begun": _time(saga.at)}  # fmt: skip


def _saga_cells(saga: SagaEntry) -> list[str]:
    return [printable(f"{saga.name}/{saga.id}"), saga.status, str(saga.run), printable(saga.agent), _time(saga.at)]


def _time(at: float) -> str:
    return shown_time(moment_of(at))


def recover(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only sagas of this name.", show_default="all")
    ] = None,
    modules: Imports = None,
    stores: Stores = None,
    older_than: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Leave sagas alone that began later.")
    ] = 60,
    limit: Limit = None,
    agent: Annotated[str, typer.Option(help="On whose behalf.")] = "recovery",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """End every saga whose coordinator is gone: undo it, or finish it if it had been decided.

    Exit status 1 if something is left for a person: a dead letter, an undo that is not known here, or a transaction on
    a store that was not given.

    \b
      interlock recover --import shop.orders
      interlock recover order --import shop.orders --store postgresql://localhost/bank
    """
    with opened(url, as_json=as_json, agent=agent) as (store, output), opened_too(stores, agent) as others:
        report = store.recover(
            name=name, modules=import_all(modules), older_than_seconds=older_than, stores=others, limit=limit
        )
        if as_json:
            output.record(report_form(report))
        else:
            for what, names in report_form(report).items():
                for name in names:
                    output.line(f"{what.replace('_', ' ')}\t{printable(name)}")
        if report.dead_letters or report.missing_undo or report.missing_stores:
            raise typer.Exit(Exit.NEGATIVE)


def report_form(report: RecoveryReport) -> dict[str, list[str]]:
    """A report as JSON."""
    return {name: list(getattr(report, name)) for name in RecoveryReport.__slots__}


def list_letters(limit: Limit = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the steps of durable sagas that still stand, because an undo failed or nobody knows about them.

    \b
      interlock dead-letters list
    """
    with opened(url, as_json=as_json) as (store, output):
        output.listing(
            ("id", "step", "what", "result"), islice(store.dead_letters.list(), limit), letter_form, _letter_cells
        )


def letter_form(letter: FailedUndo) -> dict[str, Any]:
    """A letter as JSON."""
    return {
        "id": letter.dead_letter,
        "saga_id": letter.saga_id,
        "step": letter.step,
        "what": str(letter.error),
        "arguments": {name: to_form(value) for name, value in letter.arguments.items()},
        "result": to_form(letter.result),
    }


def _letter_cells(letter: FailedUndo) -> list[str]:
    shown = NOTHING if letter.result is None else printable(repr(letter.result))
    return [printable(letter.dead_letter or ""), printable(letter.step), printable(str(letter.error)), shown]


def retry(
    letter: Letter,
    modules: Imports = None,
    stores: Stores = None,
    agent: Annotated[str, typer.Option(help="On whose behalf.")] = "recovery",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Try the undo again, or ask the step's probe. Exit status 1 if the step still stands.

    \b
      interlock dead-letters retry order/o-17/1/2 --import shop.orders
    """
    with opened(url, as_json=as_json, agent=agent) as (store, output), opened_too(stores, agent) as others:
        settled = store.dead_letters.retry(letter, modules=import_all(modules), stores=others)
        _say(output, letter, "settled" if settled else "still stands", as_json)
        if not settled:
            raise typer.Exit(Exit.NEGATIVE)


def skip(
    letter: Letter,
    reason: Annotated[str, typer.Option(help="Why; it is kept.", show_default=False)],
    agent: Annotated[str, typer.Option(help="On whose behalf.")] = "recovery",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Leave the step as it is, for ever.

    \b
      interlock dead-letters skip order/o-17/1/2 --reason "below the threshold"
    """
    with opened(url, as_json=as_json, agent=agent) as (store, output):
        store.dead_letters.skip(letter, reason=reason)
        _say(output, letter, "skipped", as_json)


def done(
    letter: Letter,
    result: Annotated[str | None, typer.Option(help="JSON: what a deferred act has returned.")] = None,
    agent: Annotated[str, typer.Option(help="On whose behalf.")] = "recovery",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say that it has been done by hand: the undo, or the deferred act.

    \b
      interlock dead-letters done order/o-17/1/2
    """
    with opened(url, as_json=as_json, agent=agent) as (store, output):
        store.dead_letters.done(letter, None if result is None else parse_value(result))
        _say(output, letter, "done", as_json)


def _say(output: Any, letter: str, status: str, as_json: bool) -> None:
    if as_json:
        output.record({"id": letter, "status": status})
    else:
        output.line(f"{printable(letter)}\t{status}")
