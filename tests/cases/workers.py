"""Jobs for processes of their own, and the handle by which a test drives one.

A worker (``python -m cases.workers JOB ARGUMENTS``) says ``ready`` when it could begin, begins when it is told to, and
writes one line of JSON as its result. What it has to tell on the way, such as what was acknowledged to it, comes in
lines before that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import interlock.sync

TESTS = Path(__file__).parent.parent


class Worker:
    """A process that does one of the jobs below."""

    def __init__(self, job: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cases.workers", job, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env={**os.environ, **(environment or {})},
        )

    def line(self) -> str:
        """The next line; "" at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ready(self) -> None:
        """Wait until it could begin."""
        assert self.line() == "ready", "a worker did not come up; see its traceback above"

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def rest(self) -> Iterator[str]:
        """The lines that are left, up to the end of the process."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.strip()

    def result(self) -> Any:
        """Wait for its end, which must be a good one; what it found out."""
        *_, last = [line for line in self.rest() if line] or [""]
        self.end()
        assert self.process.returncode == 0, f"a worker ended with {self.process.returncode}"
        return json.loads(last)

    def kill(self) -> None:
        """End it with SIGKILL, at whatever it is doing."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Release the pipes and wait."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


def say(line: str) -> None:
    """One line to the test, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def begin() -> None:
    """Say that everything is there, and wait to be told to begin."""
    say("ready")
    sys.stdin.readline()


def charge(session: Any) -> int:
    """The operation of `charge_often`."""
    total: int = session.read("total", 0) + 1
    session.write("total", total)
    return total


def charge_often(url: str, calls: int, keys: int) -> list[tuple[str, int, bool]]:
    """Call one operation many times under few idempotency keys."""
    found = []
    with interlock.sync.open(url, agent="worker") as store:
        account = store.resource("account")
        begin()
        for key in range(keys):
            for _ in range(calls):
                done = account.run_detailed(charge, idempotency_key=f"K{key}")
                found.append((f"K{key}", done.value, done.replayed))
    return found


def show_moments(url: str) -> dict[str, Any]:
    """How the stored times look here, in this process's own time zone."""
    with interlock.sync.open(url, agent="worker") as store:
        moments = store.resource("moments").read("all")
    return {"moments": [repr(moment) for moment in moments], "zone": time.tzname[0]}


JOBS: dict[str, Callable[..., Any]] = {"charge": charge_often, "show_moments": show_moments}


if __name__ == "__main__":
    say(json.dumps(JOBS[sys.argv[1]](**json.loads(sys.argv[2]))))
