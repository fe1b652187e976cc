"""The random machines of the conformance suite find more the longer they run: brief in every run, long with
`make soak`."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before a selection by marks is made."""
    for item in items:
        if item.name.startswith("test_random_") and item.path.parent.name == "conformance":
            item.add_marker(pytest.mark.soak)
