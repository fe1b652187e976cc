"""The commands about transactions: ``log``, ``outcome``; and ``compact``, which decides how much of them is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from interlock import sync
from interlock.cli.exits import Exit
from interlock.cli.forms import json_text, key_form, printable, shown_key, to_form
from interlock.cli.options import DEFAULT_URL, AsJson, Limit, Url, opened
from interlock.cli.output import NOTHING, shown_time
from interlock.core.diagnosis import Outcome
from interlock.core.log import Change, Written
from interlock.errors import UsageError
from interlock.keys import UserKey

_STATUS = {Outcome.COMMITTED: Exit.OK, Outcome.NOT_COMMITTED: Exit.NEGATIVE, Outcome.UNKNOWN: Exit.UNKNOWN}


def log(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="CURSOR",
            help="Only what is behind this cursor, as --json shows it.",
            show_default="the oldest kept",
        ),
    ] = None,
    limit: Limit = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Begin with the last so many.", show_default="all")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what others commit from now on.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List committed transactions, each once, in the order of their commits.

    With --json each has the cursor behind it: give that to --since and nothing is skipped or repeated. A cursor that
    lies before what the store still keeps is refused with exit status 3.

    \b
      interlock log --last 20
      interlock log --follow --json
      interlock log --since "$CURSOR" --limit 100 --json
    """
    with opened(url, as_json=as_json) as (store, output):
        if last is not None and limit is not None:
            raise UsageError("--last and --limit exclude each other")
        output.listing(
            ("at", "agent", "transaction", "operation", "writes"),
            islice(_changes(store, since, last, follow=follow), limit),
            change_form,
            _change_cells,
            endless=follow,
        )


def _changes(store: sync.Store, since: str | None, last: int | None, *, follow: bool) -> Iterator[Change]:
    if last is not None:
        newest = deque(store.log.changes(since), maxlen=last)
        yield from newest
        since = newest[-1].cursor if newest else since
        if not follow:
            return
    yield from store.log.changes(since, follow=follow)


def outcome(
    transaction_id: Annotated[
        str, typer.Argument(metavar="ID", help="The transaction's id: 32 hexadecimal digits.", show_default=False)
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say what became of a transaction: committed, not committed, or unknown.

    Asking ends it: a transaction that is still running when you ask is refused from then on, so that "not committed" is
    final. Exit status 0 if it is committed, 1 if not, 5 if nobody can tell (the store cannot be reached, or the id is
    older than what it keeps).

    \b
      interlock outcome 019ad3b27c0f5e8a90b1c2d3e4f50617
    """
    with opened(url, as_json=as_json) as (store, output):
        found = store.outcome(transaction_id)
        if as_json:
            output.record({"transaction_id": transaction_id, "outcome": found.value})
        else:
            output.line(found.value)
        raise typer.Exit(_STATUS[found])


def compact(
    history_seconds: Annotated[
        float,
        typer.Option(min=0.001, metavar="SECONDS", help="Keep superseded versions and the log for so long."),
    ] = 86_400,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Drop superseded versions, old log records and expired idempotency records now.

    A store does this by itself as programs work with it; nobody has to run this. Programs whose history_seconds is
    longer than the one given here lose the rest of their history.

    \b
      interlock compact
      interlock compact --history-seconds 3600
    """
    with opened(url, as_json=as_json, history_seconds=history_seconds) as (store, output):
        quiet = as_json or not output.complaints.is_terminal
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=output.complaints, transient=True, disable=quiet) as bar:
            task = bar.add_task("compacting")
            dropped = store.compact(
                progress=lambda count: bar.update(task, description=f"dropped {count}", completed=count)
            )
        if as_json:
            output.record({"dropped": dropped})
        else:
            output.line(f"dropped {dropped}")


def change_form(change: Change) -> dict[str, Any]:
    """A committed transaction as JSON."""
    return {
        "cursor": change.cursor,
        "transaction_id": change.transaction_id,
        "agent": change.agent,
        "at": change.at.isoformat(),
        "isolation": change.isolation,
        "operation": change.operation,
        "run_id": change.run_id,
        "attempts": change.attempts,
        "version": change.version,
        "reads": [
            {"resource": resource, "key": key_form(key), "version": version}
            for (resource, key), version in change.reads.items()
        ],
        "spans": [list(span) for span in change.spans],
        "writes": [_write_form(resource, key, written) for (resource, key), written in change.writes.items()],
        "effects": [{"effect": effect, "key": key} for effect, key in change.effects],
    }


def _write_form(resource: str, key: UserKey, written: Written) -> dict[str, Any]:
    form: dict[str, Any] = {"resource": resource, "key": key_form(key), "kind": written.kind}
    if written.kind == "put":
        form["value"] = to_form(written.value)
    elif written.kind == "merge":
        form["operations"] = [_operation_form(*operation) for operation in written.operations]
    return form


def _operation_form(kind: str, operand: Any, floor: Any, ceiling: Any) -> dict[str, Any]:
    bounds = {"floor": floor, "ceiling": ceiling}
    return {
        "kind": kind,
        "operand": to_form(operand),
        **{name: to_form(bound) for name, bound in bounds.items() if bound is not None},
    }


def _change_cells(change: Change) -> tuple[str, ...]:
    writes = [_said(resource, key, written) for (resource, key), written in change.writes.items()]
    writes += [printable(f"staged {effect} {key}") for effect, key in change.effects]
    return (
        shown_time(change.at),
        printable(change.agent),
        change.transaction_id,
        printable(change.operation or NOTHING),
        "; ".join(writes) or NOTHING,
    )


def _said(resource: str, key: UserKey, written: Written) -> str:
    """What a transaction did to one key, in a few words."""
    place = f"{printable(resource)} {shown_key(key)}"
    if written.kind == "put":
        return f"{place} = {_short(written.value)}"
    if written.kind == "merge":
        steps = ", ".join(f"{kind} {_short(operand)}" for kind, operand, _, _ in written.operations)
        return f"{place} {steps}"
    return f"{place} {written.kind}"


def _short(value: Any) -> str:
    text = json_text(to_form(value))
    return text if len(text) <= 60 else text[:57] + "..."
