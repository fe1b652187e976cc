"""The command line: ``interlock get``, ``put``, ``scan``, ``history``, ``log``, ``outcome``, ``compact``, ``demo``.

For people who look at a store, and for scripts: every command also answers in JSON. This module imports neither typer
nor rich, which only the extra ``cli`` brings; without them the command says in one line what to install.

The commands use the public names of `interlock.sync` only, so that what they see is what programs see: what a rule of
a resource refuses to a program, it refuses here too.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("typer", "rich")


def main() -> int:
    """The entry point of the console script; returns the exit status."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f'interlock: the command line needs {" and ".join(missing)}: pip install "interlock[cli]"\n')
        return 2
    try:
        from interlock.cli.app import run

        return run()
    except KeyboardInterrupt:  # before a command had begun
        return 130
