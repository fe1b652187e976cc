"""Tests that can run for as long as one likes: briefly in every run, at length with ``make soak``.

What they look for depends on chance (which moment a process is killed at, who comes first), so that more rounds find
more. They carry the mark ``soak``; the environment variable ``INTERLOCK_SOAK`` makes them long, up to all their rounds
with the value 1.
"""

from __future__ import annotations

import os


def rounds(brief: int, long: int) -> int:
    """How many rounds this run makes."""
    return brief + round((long - brief) * min(1.0, float(os.environ.get("INTERLOCK_SOAK") or 0.0)))
