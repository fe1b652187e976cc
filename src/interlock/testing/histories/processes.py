"""The worker processes of a run. Only these are ever signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

import interlock
from interlock.testing.histories.worker import READY, Part

_PATIENCE_SECONDS: Final = 60.0


class TimeIsOver(Exception):
    """A worker has ended because its time is over, so that nothing can be done to it any more."""


class Workers:
    """``count`` processes, each of which may be killed and replaced; ``part`` says what the next incarnation of a place
    does. ``sources``: where the processes find the library, in turn. ``with`` ends them all."""

    def __init__(self, count: int, part: Callable[[int], Part], sources: tuple[str, ...] = ()) -> None:
        self._count = count
        self._part = part
        self._sources = sources or (str(Path(interlock.__file__).absolute().parents[1]),)
        self._running: list[subprocess.Popen[bytes]] = []
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 -- closed at the exit
        self.clock_jumps = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._complaints.close()

    def __len__(self) -> int:
        return self._count

    def come_up(self) -> None:
        """Start them all. Raises `RuntimeError` if one ends instead of coming up."""
        for place in range(self._count):
            self._running.append(self._start(place))
        for process in self._running:
            self._await_ready(process)

    def begin(self) -> None:
        """Let them all do their part."""
        for place, process in enumerate(self._running):
            self._tell(process, place)

    def wait_for_all(self) -> None:
        """Until all have done their part. Raises `RuntimeError` for one that failed."""
        for process in self._running:
            if process.wait(timeout=_PATIENCE_SECONDS):
                raise RuntimeError(f"a worker ended with status {process.returncode}: {self._said()}")
            assert process.stdout is not None
            said = process.stdout.read()
            self.clock_jumps += int(said or b"0")

    def pid(self, place: int) -> int:
        """The id of the process at a place. Raises `TimeIsOver` if it has done its part, `RuntimeError` if it has
        failed."""
        process = self._running[place]
        if process.poll() == 0:
            raise TimeIsOver
        if process.returncode is not None:
            raise RuntimeError(f"a worker ended before its time: {self._said()}")
        return process.pid

    def send(self, place: int, what: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid(place), what)

    def kill(self, place: int) -> None:
        """SIGKILL."""
        self.send(place, signal.SIGKILL)
        self._running[place].wait()

    def wait(self, place: int, seconds: float) -> int | None:
        """How a process has ended; None if it has not within so many seconds."""
        try:
            return self._running[place].wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def replace(self, place: int) -> None:
        """A new process in the place of one that has ended."""
        old = self._running[place]
        for stream in (old.stdin, old.stdout):
            if stream is not None:
                stream.close()
        self._running[place] = self._start(place)
        self._await_ready(self._running[place])
        self._tell(self._running[place], place)

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        """A process that comes up, and then waits to be told its part."""
        source = self._sources[place % len(self._sources)]
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [sys.executable, "-m", "interlock.testing.histories.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def _tell(self, process: subprocess.Popen[bytes], place: int) -> None:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._part(place)) + b"\n")
        process.stdin.close()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            raise RuntimeError(f"a worker did not come up: {self._said()}")

    def _said(self) -> Any:
        self._complaints.seek(0)
        return self._complaints.read().decode("utf-8", "replace")[-2000:].strip()
