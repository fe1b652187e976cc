"""The commands that look at a resource's keys and change them: ``get``, ``put``, ``scan``, ``history``."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated, Any

import typer

from interlock import sync
from interlock.cli.forms import json_text, key_form, parse_key, parse_value, printable, shown_key, to_form
from interlock.cli.options import DEFAULT_URL, AsJson, KeyText, Limit, RawKey, ResourceName, Url, opened
from interlock.cli.output import NOTHING, Output, shown_time
from interlock.core.diagnosis import Entry
from interlock.errors import NotFoundError, TransactionError, UsageError
from interlock.keys import UserKey

_CONDITIONS = "Conditions"


class ConditionError(TransactionError):
    """``--if-absent`` or ``--if-version`` does not hold; nothing was written."""

    code = "condition"
    advice = "Nothing was written."


def get(
    resource: ResourceName,
    key: KeyText,
    text: Annotated[bool, typer.Option("--text", help="The text itself, without quotation marks.")] = False,
    raw_key: RawKey = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the value of a key as JSON; what JSON lacks as in {"$decimal": "1.20"}.

    With --json also its version, its author and when it was written. Exit status 1 if there is no value.

    \b
      interlock get stock sku-1
      interlock get queue '["job", 7]' --json
      interlock get docs intro --text > intro.txt
    """
    with opened(url, as_json=as_json) as (store, output):
        name = parse_key(key, raw=raw_key)
        entry = store.resource(resource).entry(name)
        if entry is None:
            raise NotFoundError(
                f"there is no value under {shown_key(name)} in resource {resource!r}", resource=resource, key=name
            )
        if as_json:
            output.record({"resource": resource, **entry_form(entry)})
        elif text:
            _show_text(output, entry)
        else:
            output.record(to_form(entry.value), indent=2 if output.tabular else None)


def _show_text(output: Output, entry: Entry[Any]) -> None:
    if type(entry.value) is not str:
        raise UsageError(f"the value is a {type(entry.value).__name__} and not a text; leave --text out")
    sys.stdout.write(entry.value + ("\n" if output.tabular else ""))
    sys.stdout.flush()


def put(
    resource: ResourceName,
    key: KeyText,
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="JSON, as `get` shows it. - reads it from the standard input.", show_default=False
        ),
    ],
    text: Annotated[bool, typer.Option("--text", help="VALUE is the text to store, not JSON.")] = False,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if there is no value yet.", rich_help_panel=_CONDITIONS)
    ] = False,
    if_version: Annotated[
        str | None,
        typer.Option(
            "--if-version",
            metavar="VERSION",
            help="Only if this is still the version, as `get --json` and `history` show it.",
            rich_help_panel=_CONDITIONS,
        ),
    ] = None,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Who writes.")] = "cli",
    raw_key: RawKey = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write one value in one transaction.

    Invariants of the resource bind this command too: it cannot check them, so it is refused with exit status 3, as it
    is when a condition does not hold.

    \b
      interlock put stock sku-1 3
      interlock put prices sku-1 '{"$decimal": "9.90"}'
      interlock put docs intro --text 'Once upon a time' --if-absent
    """
    with opened(url, as_json=as_json, new=True, agent=agent) as (store, output):
        name = parse_key(key, raw=raw_key)
        given = _standard_input() if value == "-" else value
        new = given if text else parse_value(given)
        held = store.resource(resource)
        if if_version is not None:
            if if_absent:
                raise UsageError("--if-absent and --if-version exclude each other")
            transaction_id = _put_over(held, name, new, if_version)
        else:
            transaction_id = held.run_detailed(_put, name, new, if_absent).transaction_id
        change = store.log.get(transaction_id)
        version = NOTHING if change is None else change.version
        if as_json:
            output.record(
                {"resource": resource, "key": key_form(name), "transaction_id": transaction_id, "version": version}
            )
        else:
            output.line(f"committed {transaction_id} as version {version}")


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"the standard input is not text: {error}") from None


def _put(session: sync.AgentSession[Any], key: UserKey, value: Any, if_absent: bool) -> None:
    if if_absent and session.exists(key):
        raise ConditionError(f"there is a value under {shown_key(key)} already")
    session.write(key, value)


def _put_over(resource: sync.SharedResource[Any], key: UserKey, value: Any, version: str) -> str:
    """Write over one version. The session reads first, then the version is looked up beside it: if a newer one than
    was read came in between, the commit is refused, so that what is overwritten is the version looked at."""
    session = resource.begin()
    session.read(key)
    entry = resource.entry(key)
    found = "absent" if entry is None else entry.version
    if found != version:
        session.rollback()
        raise ConditionError(f"{shown_key(key)} is at version {found}, not {version}")
    session.write(key, value)
    return session.commit().transaction_id


def scan(
    resource: ResourceName,
    prefix: Annotated[
        str | None,
        typer.Argument(metavar="PREFIX", help="Only keys that begin with this.", show_default=False),
    ] = None,
    start: Annotated[str | None, typer.Option(metavar="KEY", help="From this key on.")] = None,
    stop: Annotated[str | None, typer.Option(metavar="KEY", help="Up to, but not including, this key.")] = None,
    limit: Limit = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last key to the first.")] = False,
    raw_key: RawKey = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List keys and values in key order, as of one moment.

    A text prefix takes the texts that begin with it; a list takes the tuple keys that begin with all its parts.

    \b
      interlock scan stock
      interlock scan queue '["job"]' --limit 10
      interlock scan stock --start sku-1 --stop sku-2 --json
    """
    with opened(url, as_json=as_json) as (store, output):
        bounds = [None if bound is None else parse_key(bound, raw=raw_key) for bound in (prefix, start, stop)]
        rows = store.resource(resource).scan(bounds[0], start=bounds[1], stop=bounds[2], limit=limit, reverse=reverse)
        output.listing(
            ("key", "value"),
            rows,
            lambda row: {"key": key_form(row[0]), "value": to_form(row[1])},
            lambda row: (shown_key(row[0]), json_text(to_form(row[1]))),
        )


def history(
    resource: ResourceName,
    key: KeyText,
    limit: Limit = None,
    raw_key: RawKey = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the versions of a key that are kept, newest first: what it was, who wrote it, when.

    Exit status 1 if there are none.

    \b
      interlock history stock sku-1 --limit 5
    """
    with opened(url, as_json=as_json) as (store, output):
        name = parse_key(key, raw=raw_key)
        entries = list(islice(store.resource(resource).history(name, limit=limit), limit))
        if not entries:
            raise NotFoundError(
                f"nothing is known of {shown_key(name)} in resource {resource!r}", resource=resource, key=name
            )
        output.listing(("version", "at", "agent", "transaction", "value"), entries, entry_form, _entry_cells)


def entry_form(entry: Entry[Any]) -> dict[str, Any]:
    """A version of a key as JSON."""
    return {
        "key": key_form(entry.key),
        "value": to_form(entry.value),
        "deleted": entry.deleted,
        "version": entry.version,
        "transaction_id": entry.transaction_id or None,
        "agent": entry.agent or None,
        "at": None if entry.at is None else entry.at.isoformat(),
    }


def _entry_cells(entry: Entry[Any]) -> tuple[str, ...]:
    return (
        entry.version,
        NOTHING if entry.at is None else shown_time(entry.at),
        printable(entry.agent) or NOTHING,
        entry.transaction_id or NOTHING,
        "deleted" if entry.deleted else json_text(to_form(entry.value)),
    )
