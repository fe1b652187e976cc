"""What a reader has to know of the machine and the run; no names, no paths."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
import sys
import tempfile
from pathlib import Path

import msgspec

import interlock
from benchmarks.sqlite import fsync_seconds


def describe(directory: Path | None) -> dict[str, str | int | float]:
    """The machine, the versions, the day, and how busy it is."""
    with tempfile.TemporaryDirectory(prefix="interlock-bench-", dir=directory) as made:
        fsync_us = 1e6 * fsync_seconds(Path(made))
    return {
        "date": datetime.date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "msgspec": msgspec.__version__,
        "interlock": interlock.__version__,
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0,
        "fsync_4k_us": round(fsync_us),
        "command": " ".join(["python -m benchmarks", *_shown(sys.argv[1:])]),
    }


def _shown(words: list[str]) -> list[str]:
    """The command's words, with the names of files and directories shortened to their last part."""
    return [os.path.basename(word.rstrip("/")) if "/" in word else word for word in words]
