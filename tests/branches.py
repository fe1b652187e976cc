"""Which branches of the code of commits, recovery and fencing the tests take, and why the others are not taken.

    python tests/branches.py [--keep DIRECTORY]        (`make coverage`)

A part of the tests runs under coverage.py, in all its threads and processes. Then the modules of `MODULES` are listed
with what was taken. A *gap* is a branch that was not taken although the line that it leaves was run, or the beginning
of a block that was not run although nothing leads to it (an ``except``). Every gap has to be in ``docs/coverage.md``,
by the texts of its lines and not by their numbers, so that an argument stays where its code is. Exit status 1 if one is
not.

Processes that are killed with SIGKILL report nothing, so what they alone have run counts as not taken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "coverage.md"

MODULES: Final = {
    "core": "commit straight extension requests refusals idempotency retrying locking",
    "backends/memory": "judging performing order engine plain direct",
    "backends/sqlite": "writer batch validation change jobs outcomes settling turns",
    "backends/postgresql": "groups requests failures gathering tokens",
    "backends/redis": "requests scripts failures home",
    "layers": "leases locks tenures keeper holdings contests gathering",
    "layers/effects": "journal executing keeping",
    "saga": "journal recording recorded recovery compensation presence pages writing lags receipts transacting",
}
"""Directory below the package -> the modules that commit, recover or fence."""

TESTS: Final = [
    "tests/core", "tests/layers", "tests/saga", "tests/cases", "tests/backends",
    "tests/conformance/test_memory.py", "tests/conformance/test_sqlite.py",
]  # fmt: skip
LEFT_OUT: Final = (
    "not ((cases or layers or saga) and (postgresql or redis))"
    " and not (conformance and sqlite and awaited)"
    " and not killed and not kills and not crashes and not storm and not processes and not thousand and not hundred"
)
"""The engines' own tests commit on them; tests whose work is done by processes that die of SIGKILL add nothing."""

LEAVES: Final = "leaves"
NOT_RUN: Final = "is not run"


@dataclass(frozen=True, order=True)
class Gap:
    """What was not taken: from the text of a line to that of another, or `LEAVES`; or a block that is `NOT_RUN`."""

    module: str
    line: str
    to: str

    def __str__(self) -> str:
        where = {LEAVES: "leaves", NOT_RUN: "is not run"}.get(self.to, f"→ `{self.to}`")
        return f"`{self.line}` {where}"


def files() -> list[str]:
    """The modules, as paths from the root of the repository."""
    return [f"src/interlock/{place}/{name}.py" for place, names in MODULES.items() for name in names.split()]


def module_of(path: str) -> str:
    """The dotted name below the package."""
    return path.removeprefix("src/interlock/").removesuffix(".py").replace("/", ".")


def gaps(path: str, text: str, found: dict[str, Any]) -> Iterator[Gap]:
    """The gaps of one file, from what coverage.py says of it."""
    lines = [line.strip() for line in text.splitlines()]
    missing = set(found["missing_lines"])
    reached = set()
    for begin, end in found["missing_branches"]:
        if begin not in missing:
            reached.add(end)
            yield Gap(module_of(path), lines[begin - 1], lines[end - 1] if end > 0 else LEAVES)
    before = 0
    for line in sorted(missing | set(found["executed_lines"])):
        if line in missing and before not in missing and line not in reached:
            yield Gap(module_of(path), lines[line - 1], NOT_RUN)
        before = line


_ENTRY = re.compile(r"- `(?P<line>[^`]+)` (?:→ `(?P<to>[^`]+)`|(?P<how>leaves|is not run)): (?P<why>.+)")


def argued(page: str) -> dict[Gap, str]:
    """The arguments of the page: below a heading that names a module, one item for each gap."""
    found: dict[Gap, str] = {}
    module = ""
    for line in page.splitlines():
        if line.startswith("## "):
            module = line.removeprefix("## ").strip("` ")
        elif entry := _ENTRY.fullmatch(line):
            found[Gap(module, entry["line"], entry["to"] or entry["how"])] = entry["why"]
    return found


def workers() -> int:
    """How many processes run the tests: more than there are cores, since tests wait more than they compute."""
    return 2 * (os.cpu_count() or 1)


def measure(directory: Path, tests: Sequence[str]) -> dict[str, Any]:
    """Run the tests; what coverage.py says of each file."""
    settings = directory / "coverage.ini"
    settings.write_text(
        "[run]\nbranch = true\nparallel = true\nrelative_files = true\npatch = subprocess, _exit\n"
        f"data_file = {directory / 'data'}\ninclude =\n" + "".join(f"    {ROOT / path}\n" for path in files())
        + "[report]\nexclude_also =\n    if TYPE_CHECKING:\n    @overload\n    \\.\\.\\.$\n"
    )  # fmt: skip
    base = [sys.executable, "-m", "coverage"]
    done = subprocess.run(
        [
            *base,
            "run",
            f"--rcfile={settings}",
            "-m",
            "pytest",
            "-q",
            "-n",
            str(workers()),
            "--dist",
            "worksteal",
            *tests,
        ],
        cwd=ROOT, env={"INTERLOCK_SOAK": "0", **os.environ},  # as much as in continuous integration, by hand too
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.returncode)
    for words in (["combine", "-q"], ["json", "-q", "-o", str(directory / "report.json")]):
        subprocess.run([*base, words[0], f"--rcfile={settings}", *words[1:]], cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())["files"]
    return found


def judge(found: dict[str, Any], console: Console) -> int:
    """Print the table, what is on no page, and what the page should lose; the exit status."""
    known = argued(PAGE.read_text("utf-8"))
    table = Table("module", "branches", "taken", "gaps", "argued", "new")
    total = [0] * 5
    new: list[Gap] = []
    seen: set[Gap] = set()
    for path in files():
        mine = set(gaps(path, (ROOT / path).read_text("utf-8"), found[path]))
        summary = found[path]["summary"]
        fresh = sorted(mine - known.keys())
        row = [summary["num_branches"], summary["covered_branches"], len(mine), len(mine) - len(fresh), len(fresh)]
        total = [a + b for a, b in zip(total, row, strict=True)]
        new += fresh
        seen |= mine
        table.add_row(module_of(path), *map(str, row), style="red" if fresh else None)
    table.add_section()
    table.add_row("all", *map(str, total))
    console.print(table)
    for gap in sorted(known.keys() - seen):
        console.print(f"taken now, or gone: {gap.module}: {gap}", markup=False)
    for gap in new:
        console.print(f"not taken, and not in docs/coverage.md: {gap.module}: {gap}", markup=False)
    return 1 if new else 0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="leave coverage.py's data in this directory")
    parser.add_argument("--again", action="store_true", help="run nothing; judge what --keep has left there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = arguments.keep or Path(made)
        directory.mkdir(exist_ok=True)
        if arguments.again:
            found = json.loads((directory / "report.json").read_text())["files"]
        else:
            found = measure(directory, [*TESTS, "-k", LEFT_OUT])
        sys.exit(judge(found, Console(highlight=False, width=120)))


if __name__ == "__main__":
    main()
