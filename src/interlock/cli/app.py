"""The commands put together, and what holds for all of them.

Each command turns its own errors into an exit status (`interlock.cli.output.reporting`). Here is what happens before a
command has begun: a call that cannot be understood is said in JSON too where ``--json`` was given.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import interlock
from interlock.cli import effects, feed, leases, sagas, state
from interlock.cli.exits import EXIT_HELP, Exit
from interlock.cli.forms import json_text
from interlock.demo.command import demo


class Commands(TyperGroup):
    """The group of all commands, which says in JSON what is wrong with a call that asks for JSON."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command and leave with its exit status."""
        words = args[0] if args else kwargs.get("args")
        if "--json" not in (sys.argv[1:] if words is None else words) or kwargs.get("standalone_mode") is False:
            return super().main(*args, **kwargs)
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except Exception as error:
            # The classes of a wrong call are typer's own in some versions and click's in others.
            if not hasattr(error, "format_message"):
                raise
            message = error.format_message()
            form = {"code": "usage", "message": message, "explain": message, "retryable": False}
            sys.stderr.write(json_text({**form, "maybe_committed": False}) + "\n")
            sys.exit(Exit.USAGE)
        sys.exit(status if isinstance(status, int) else Exit.OK)


app = typer.Typer(
    cls=Commands,
    name="interlock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_HELP,
)


def _add(
    command: Callable[..., None], *, to: typer.Typer = app, epilog: str | None = EXIT_HELP, **settings: Any
) -> None:
    """Add a command; its help is its docstring, folded to the width of the terminal except for the examples."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    folded = [part if part.startswith("\b") else " ".join(part.splitlines()) for part in paragraphs]
    to.command(help="\n\n".join(folded), epilog=epilog, **settings)(command)


_add(state.get)
_add(state.put, context_settings={"ignore_unknown_options": True})  # `put stock sku-1 -5` writes minus five
_add(state.scan)
_add(state.history)
_add(feed.log)
_add(feed.outcome)
_add(feed.compact)
_add(sagas.sagas)
_add(sagas.recover)
_add(leases.leases)
_add(demo, epilog=None)

effect_commands = typer.Typer(
    no_args_is_help=True, help="Acts on the outside world, and what became of them.", epilog=EXIT_HELP
)
app.add_typer(effect_commands, name="effects")
_add(effects.list_effects, to=effect_commands, name="list")
_add(effects.show, to=effect_commands)
_add(effects.reconcile, to=effect_commands)
_add(effects.resolve, to=effect_commands)
_add(effects.dispatch, to=effect_commands)

letter_commands = typer.Typer(
    no_args_is_help=True, help="Steps of durable sagas that still stand, and what is done about them.", epilog=EXIT_HELP
)
app.add_typer(letter_commands, name="dead-letters")
_add(sagas.list_letters, to=letter_commands, name="list")
_add(sagas.retry, to=letter_commands)
_add(sagas.skip, to=letter_commands)
_add(sagas.done, to=letter_commands)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"interlock {interlock.__version__}")
        raise typer.Exit


@app.callback()
def interlock_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Look at what agents share, and at what they have done to it.

    The store is --url, else INTERLOCK_URL, else the file interlock.db in this directory.
    """


def run() -> int:
    """Run the command of this process. It leaves by `SystemExit` with the exit status."""
    # A name that the terminal's encoding lacks is shown with escapes; it must not end a listing.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    app(prog_name="interlock")
    return Exit.OK
