"""The statements in SQL, as Python's own module takes them."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

import interlock.backends.sqlite as backend


def test_no_place_has_a_number() -> None:
    """The first releases of Python 3.12 take ``?1`` for a named place, and warn where it is given a sequence; with
    ``-W error`` nothing could be read."""
    seen = 0
    for found in pkgutil.iter_modules(backend.__path__, f"{backend.__name__}."):
        for name, value in vars(import_module(found.name)).items():
            if isinstance(value, str) and "SELECT" in value:
                seen += 1
                assert re.search(r"\?\d", value) is None, (found.name, name)
    assert seen > 10
