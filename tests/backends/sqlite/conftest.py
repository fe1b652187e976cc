"""Processes of the tests, which do not outlive their test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import sqlite_support


@pytest.fixture
def worker() -> Iterator[sqlite_support.Worker]:
    """Starts a process that runs a function of `sqlite_worker`; see `sqlite_support.start`."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        process = sqlite_support.start(*arguments, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(sqlite_support.PATIENCE_SECONDS)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
