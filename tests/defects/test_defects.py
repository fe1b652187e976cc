"""The catalogue of defects fits the code, and names enough of them; `make defects` shows that each is caught."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from defects.catalogue import DEFECTS, HARMLESS, Defect
from defects.patching import broken
from defects.run import try_defect


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name.replace(" ", "-") for defect in DEFECTS])
def test_a_defect_fits_the_code(defect: Defect) -> None:
    found = importlib.util.find_spec(defect.module)
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text(encoding="utf-8")
    assert compile(broken(source, defect), defect.module, "exec")


def test_there_are_at_least_forty_of_different_names() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 40


def test_a_defect_is_caught_and_a_harmless_change_is_not() -> None:
    """The machinery itself: one of the catalogue, and one that changes nothing."""
    assert try_defect(DEFECTS[0]).test is not None
    assert try_defect(HARMLESS).test is None
