"""The judge of branches, on a file made up for it; see `branches`."""

from __future__ import annotations

from typing import Any

from rich.console import Console

import branches
from branches import LEAVES, NOT_RUN, Gap

TEXT = """\
if a:
    b
    c
try:
    d
except E:
    e
"""
FOUND: dict[str, Any] = {
    "executed_lines": [1, 4, 5],
    "missing_lines": [2, 3, 6, 7],
    "missing_branches": [[1, 2], [5, -1]],
    "summary": {"num_branches": 4, "covered_branches": 2},
}
PATH = "src/interlock/core/commit.py"


def test_gaps_are_where_something_leads_to_what_was_not_run() -> None:
    """Not the rest of a block whose beginning is named already."""
    assert list(branches.gaps(PATH, TEXT, FOUND)) == [
        Gap("core.commit", "if a:", "b"),
        Gap("core.commit", "d", LEAVES),
        Gap("core.commit", "except E:", NOT_RUN),
    ]


def test_what_is_written_is_read_again() -> None:
    gaps = list(branches.gaps(PATH, TEXT, FOUND))
    page = "## `core.commit`\n\n" + "\n".join(f"- {gap}: because" for gap in gaps)
    assert branches.argued(page) == dict.fromkeys(gaps, "because")


def test_the_page_knows_modules_that_there_are() -> None:
    known = branches.argued(branches.PAGE.read_text("utf-8"))
    assert known
    assert not [str(gap) for gap, why in known.items() if why == "open"], "each needs a reason"
    assert {gap.module for gap in known} <= {branches.module_of(path) for path in branches.files()}
    assert all((branches.ROOT / path).exists() for path in branches.files())


def test_a_gap_that_nobody_knows_fails() -> None:
    nothing = {"executed_lines": [], "missing_lines": [], "missing_branches": [], "summary": FOUND["summary"]}
    found: dict[str, Any] = dict.fromkeys(branches.files(), nothing)
    assert branches.judge(found, Console(quiet=True)) == 0
    found["src/interlock/core/extension.py"] = nothing | {"executed_lines": [1], "missing_branches": [[1, -1]]}
    assert branches.judge(found, Console(quiet=True)) == 1


def test_no_test_ends_the_measuring_of_those_behind_it() -> None:
    """Python has one trace function for each thread: who needs another one puts back what was there."""
    ends = "settrace(" + "None)"
    assert [str(path) for path in (branches.ROOT / "tests").rglob("*.py") if ends in path.read_text("utf-8")] == []
