"""What a command says, and how: a table on a terminal, plain lines in a pipe, JSON where it was asked for.

Results go to the standard output, everything else (errors, progress) to the standard error, so that a pipe never
gets a sentence where it expects data. Plain lines are cells with a tab between them; keys and values are written so
that neither a tab nor a line break can occur in them. With ``--json`` each result is one object on one line, and so is
an error. Names from the store are never read as markup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from interlock.cli.exits import Exit, status_of
from interlock.cli.forms import json_text, printable
from interlock.errors import InterlockError

T = TypeVar("T")

NOTHING: Final = "-"
"""What a line shows where there is nothing to show."""


class Output:
    """The two streams of a command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.complaints = Console(stderr=True, highlight=False, markup=False, emoji=False)

    @property
    def tabular(self) -> bool:
        """Whether somebody looks at it: a terminal, and no JSON."""
        return self.console.is_terminal and not self.as_json

    def line(self, text: str) -> None:
        """One line, as it is: never folded to the width of anything."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def record(self, form: Any, *, indent: int | None = None) -> None:
        """JSON, on one line unless indented. Not beyond ASCII where the stream cannot show more."""
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        self.line(json_text(form, indent=indent, ascii_only=not unicode))

    def listing(
        self,
        columns: Sequence[str],
        rows: Iterable[T],
        form: Callable[[T], Any],
        cells: Callable[[T], Sequence[str]],
        *,
        endless: bool = False,
    ) -> None:
        """Many results: objects, or a table, or plain lines. Lines come at once; a table needs all rows first, so
        that an endless listing has none."""
        if self.as_json:
            for row in rows:
                self.record(form(row))
        elif endless or not self.tabular:
            for row in rows:
                self.line("\t".join(cells(row)))
        else:
            table = Table(header_style="bold")
            for column in columns:
                table.add_column(column, overflow="fold")
            for row in rows:
                table.add_row(*(Text(cell) for cell in cells(row)))
            self.console.print(table)

    def complain(self, error: InterlockError) -> None:
        """An error with what to do about it."""
        if self.as_json:
            sys.stderr.write(json_text(error_form(error)) + "\n")
        else:
            self.complaints.print(Text(printable_lines(error.explain())), style="red", soft_wrap=True)


def shown_time(at: datetime) -> str:
    """A moment for people: UTC, to the millisecond."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def error_form(error: InterlockError) -> dict[str, Any]:
    """An error as JSON."""
    return {
        "code": error.code,
        "message": str(error),
        "explain": error.explain(),
        "retryable": error.retryable,
        "maybe_committed": error.maybe_committed,
    }


def printable_lines(text: str) -> str:
    """A text of several lines in which nothing changes how a terminal behaves."""
    return "\n".join(printable(line) for line in text.splitlines())


@contextmanager
def reporting(*, as_json: bool) -> Iterator[Output]:
    """The frame of a command: its output, and every way in which it may fail turned into an exit status."""
    output = Output(as_json=as_json)
    try:
        yield output
    except InterlockError as error:
        output.complain(error)
        raise typer.Exit(status_of(error)) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(Exit.INTERRUPTED) from interrupt
    except BrokenPipeError as gone:
        # The interpreter flushes the stream once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.PIPE) from gone
