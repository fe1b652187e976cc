"""Puts every defect of the catalogue into the library, one after the other, and shows which test catches it.

    python -m defects.run [--write docs/defects.md] [NAME ...]        (with tests/ on the path: `make defects`)

Exit status 1 if one is caught by no test."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from defects.catalogue import DEFECTS, Defect

ROOT = Path(__file__).parents[2]
_FAILED = re.compile(r"^FAILED (\S+)|^ERROR (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Caught:
    """The first test that failed under a defect; None if none did. ``said`` is the end of what pytest said."""

    defect: Defect
    test: str | None
    said: str


def try_defect(defect: Defect) -> Caught:
    """Run the tests of a defect under it. A collection that fails catches nothing."""
    path = os.pathsep.join(filter(None, (str(ROOT / "tests"), os.environ.get("PYTHONPATH"))))
    command = [
        sys.executable, "-m", "pytest", "-p", "defects.patching", "-p", "no:cacheprovider", "-x", "-q", "-n", "0",
        "--no-header", "--tb=line", "--timeout", "30", "--timeout-method", "signal", *defect.tests,
    ]  # fmt: skip
    told = {"PYTHONPATH": path, "INTERLOCK_DEFECT": defect.name, "INTERLOCK_SOAK": "0"}  # as much as CI, by hand too
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **told}, capture_output=True, text=True, timeout=600
    )  # fmt: skip
    found = _FAILED.search(done.stdout) if done.returncode == 1 else None
    return Caught(defect, (found[1] or found[2]) if found else None, (done.stdout + done.stderr)[-3000:])


def try_all(defects: Sequence[Defect], console: Console) -> list[Caught]:
    """All of them, two at a time, under a progress bar."""
    with Progress(console=console, transient=True) as bar, ThreadPoolExecutor(2) as pool:
        task = bar.add_task("defects", total=len(defects))
        results = []
        for caught in pool.map(try_defect, defects):
            results.append(caught)
            bar.advance(task)
    return results


def page(results: Sequence[Caught]) -> str:
    """The published table."""
    caught = sum(each.test is not None for each in results)
    lines = [
        "# Seeded defects",
        "",
        "Each of these was put into the library on purpose, and the tests were run; the test beside it is the first",
        f"that failed. {caught} of {len(results)} were caught. `make defects` does it again.",
        "",
        "| defect | in | caught by |",
        "|---|---|---|",
    ]
    for each in results:
        shown = "**not caught**" if each.test is None else f"`{each.test.removeprefix('tests/')}`"
        lines.append(f"| {each.defect.name} | `{each.defect.module}` | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these defects")
    parser.add_argument("--write", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    wanted = [each for each in DEFECTS if not arguments.names or each.name in arguments.names]
    console = Console(highlight=False)
    results = try_all(wanted, console)
    table = Table("defect", "caught by")
    for each in results:
        table.add_row(each.defect.name, each.test or "NOT CAUGHT", style=None if each.test else "red")
    console.print(table)
    for each in results:
        if each.test is None:
            console.print(f"--- {each.defect.name}", style="red")
            console.print(each.said, markup=False)
    if arguments.write:
        arguments.write.write_text(page(results), encoding="utf-8")
    sys.exit(any(each.test is None for each in results))


if __name__ == "__main__":
    main()
