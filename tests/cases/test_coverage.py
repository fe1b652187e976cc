"""Every case of the README's table is tested in the file that it names, or put off with a reason."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"\| (R\d{3}) \| ([a-z-]+) \| ([^|]+) \| (?:(test_\w+\.py)(?:; )?)?(?:later: ([^|]+))? \|")

KINDS = {
    "isolation": 11,
    "unknown-outcome": 5,
    "retry": 7,
    "idempotency": 11,
    "saga": 7,
    "context": 5,
    "cancellation": 4,
    "snapshot": 5,
    "value": 8,
    "key": 5,
    "sqlite": 8,
    "postgres": 9,
    "redis": 2,
    "journal": 3,
    "lease-lock": 10,
    "clock": 2,
    "schema": 1,
}
"""How many cases of each kind there are."""


def table() -> dict[str, tuple[str, str, str]]:
    """id -> (kind, file or "", reason for what comes later or "")."""
    lines = [line for line in (HERE / "README.md").read_text("utf-8").splitlines() if line.startswith("| R")]
    rows = [ROW.fullmatch(line) for line in lines]
    assert all(rows), f"not a row: {lines[rows.index(None)]}"
    found = {row[1]: (row[2], row[4] or "", row[5] or "") for row in rows if row}
    assert len(found) == len(lines), "an id has two rows"
    assert list(found) == sorted(found)
    return found


def files_of_tests() -> dict[str, set[str]]:
    """id -> the files that have a test of that name."""
    found: dict[str, set[str]] = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"test_(R\d+)_", node.name)
            if named:
                found.setdefault(named[1], set()).add(path.name)
    return found


def test_the_table_has_every_case_of_these_kinds() -> None:
    assert Counter(kind for kind, _, _ in table().values()) == KINDS


def test_every_case_is_tested_where_the_table_says_or_has_a_reason() -> None:
    tested = files_of_tests()
    for case, (_, file, reason) in table().items():
        assert file or len(reason.split()) > 3, f"{case} is neither tested nor put off with a reason"
        assert tested.pop(case, set()) == ({file} if file else set()), f"{case} is tested elsewhere than in {file!r}"
    assert not tested, f"not in the table: {sorted(tested)}"
