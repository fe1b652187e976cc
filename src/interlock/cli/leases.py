"""The command ``leases``."""

from __future__ import annotations

from typing import Any

from interlock.cli.forms import printable
from interlock.cli.options import DEFAULT_URL, AsJson, Url, opened
from interlock.cli.output import NOTHING
from interlock.layers.listing import LeaseInfo, list_leases
from interlock.stepping import step


def leases(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the leases that are held: by which agent, with which fencing token, for how much longer.

    A lease whose holder has died is shown with no time left until somebody takes it over.

    \b
      interlock leases
      interlock leases --json
    """
    with opened(url, as_json=as_json) as (store, output):
        found = step(list_leases(store._engine))
        columns = ("lease", "agent", "token", "seconds left", "waiting", "holder")
        output.listing(columns, found, _form, _cells)


def _form(lease: LeaseInfo) -> Any:
    return {
        "name": lease.name,
        "agent": lease.agent,
        "token": list(lease.token),
        "seconds_left": lease.seconds_left,
        "ttl_seconds": lease.ttl_seconds,
        "waiting": list(lease.waiting),
        "holder": lease.holder,
    }


def _cells(lease: LeaseInfo) -> tuple[str, ...]:
    left = NOTHING if lease.seconds_left is None else f"{lease.seconds_left:.1f}"
    waiting = ", ".join(map(printable, lease.waiting)) or NOTHING
    token = f"{lease.token.incarnation}-{lease.token.position}"
    return printable(lease.name), printable(lease.agent), token, left, waiting, lease.holder
