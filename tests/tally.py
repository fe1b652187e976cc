"""How many transactions the tests of a run have recorded and judged, and which faults have fired in them.

Each test notes what it did; at the end of the run the sums are printed. A run of all tests in continuous integration
in which they fall short of `LEAST` has failed: then the histories prove less than the documentation says.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

LEAST: Final = 200_000
_DIRECTORY: Final = "INTERLOCK_TEST_TALLY"


def begin(config: pytest.Config) -> None:
    """Make the place where all processes of this run note theirs."""
    if not hasattr(config, "workerinput"):
        directory = tempfile.mkdtemp(prefix="interlock-tally-")
        os.environ[_DIRECTORY] = directory
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def note(backend: str, counts: Mapping[str, int], faults: Mapping[str, int] | None = None) -> None:
    """A history of so many transactions (ok, fail, info) was judged and found clean, and these faults had fired."""
    line = json.dumps({"backend": backend, "counts": dict(counts), "faults": dict(faults or {})})
    with Path(os.environ[_DIRECTORY], f"{os.getpid()}.jsonl").open("a") as file:
        file.write(line + "\n")


def sums() -> tuple[dict[str, Counter[str]], Counter[str]]:
    """By backend how the transactions ended, and how often each fault fired."""
    ended: dict[str, Counter[str]] = {}
    faults: Counter[str] = Counter()
    for path in Path(os.environ[_DIRECTORY]).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            noted = json.loads(line)
            ended.setdefault(noted["backend"], Counter()).update(noted["counts"])
            faults.update(noted["faults"])
    return ended, faults


def total(ended: dict[str, Counter[str]]) -> int:
    """All of them."""
    return sum(sum(counts.values()) for counts in ended.values())


def told() -> list[str]:
    """The sums in words."""
    ended, faults = sums()
    if not ended:
        return []
    lines = [f"recorded and judged: {total(ended):,} transactions, no violation"]
    lines += [
        f"  {backend}: {counts['ok']:,} acknowledged, {counts['fail']:,} refused, {counts['info']:,} unknown"
        for backend, counts in sorted(ended.items())
    ]
    if faults:
        lines.append("  faults fired: " + ", ".join(f"{name} {count:,}" for name, count in sorted(faults.items())))
    return lines


def falls_short(session: pytest.Session) -> bool:
    """Whether all tests have run, in continuous integration, and have recorded too little."""
    options = session.config.option
    everything = not (
        options.keyword or options.markexpr or options.collectonly or session.config.args_source.name == "ARGS"
    )
    if not everything or not os.environ.get("CI") or hasattr(session.config, "workerinput"):
        return False
    return total(sums()[0]) < LEAST
