"""Servers to measure: found and started by what the tests use for theirs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[1] / "tests"


def from_tests(module: str) -> Any:
    """A module of the tests."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    return importlib.import_module(module)
