"""Small runs of the demonstration, whose processes are copies of one that has imported everything."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

import zygote
from interlock.demo import saga_run, supervisor


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the demonstration's processes so, in tests whose point is what they do and not how they come up."""
    started = SimpleNamespace(**{**vars(subprocess), "Popen": zygote.popen})
    monkeypatch.setattr(supervisor, "subprocess", started)
    monkeypatch.setattr(saga_run, "subprocess", started)
