"""The options that commands share, and how a command opens its store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import typer

from interlock import sync
from interlock.cli.output import Output, reporting
from interlock.errors import BackendUnavailableError

DEFAULT_URL: Final = "sqlite:///interlock.db"

Url = Annotated[
    str,
    typer.Option("--url", envvar="INTERLOCK_URL", metavar="URL", help="The store.", rich_help_panel="Store and output"),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="One JSON object on each line.", rich_help_panel="Store and output"),
]
RawKey = Annotated[
    bool,
    typer.Option("--raw-key", help="Take keys as they stand, also those that begin with [ or a quotation mark."),
]
ResourceName = Annotated[str, typer.Argument(metavar="RESOURCE", help="The resource's name.", show_default=False)]
KeyText = Annotated[
    str,
    typer.Argument(metavar="KEY", help='A text, or a JSON list for a tuple key: ["job", 7].', show_default=False),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="COUNT", help="Stop after so many.", show_default="all")
]


@contextmanager
def opened(url: str, *, as_json: bool, new: bool = False, **settings: Any) -> Iterator[tuple[sync.Store, Output]]:
    """The store and the output of a command. Only a command that writes (``new``) may make a store that is not there,
    so that a mistyped name is an error and not an empty answer."""
    with reporting(as_json=as_json) as output:
        if not new:
            require_store(url)
        with sync.open(url, **settings) as store:
            yield store, output


def require_store(url: str) -> None:
    """Raises `BackendUnavailableError` where a URL names a file that is not there."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.scheme == "sqlite" and path and not os.path.exists(path):
        raise BackendUnavailableError(
            f"there is no store {path!r}; name another one with --url or INTERLOCK_URL, or make this one with "
            "`interlock put` or a program"
        )
