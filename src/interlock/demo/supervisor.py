"""Starts the processes of one column, gives each its part, gathers what they say, and kills one if asked to.

A part is every n-th delivery, so the deliveries of one order, which mostly stand close together, fall to different
processes and are worked on at the same time. A killed process is replaced by a new one that is given *the same whole
part* again: nobody knows which of its deliveries were done, and with idempotent transactions nobody has to.

Only processes that were started here are ended here. Processes are started anew, never forked. All are waited for and
gone when `run_column` returns or raises.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import interlock
from interlock.demo.messages import (
    GO,
    Acknowledged,
    Contradicted,
    Done,
    Failed,
    Job,
    Message,
    Ready,
    pack,
    unpack_message,
)

Progress = Callable[[int], None]
"""Called with the number of deliveries that are done."""


class DemoError(RuntimeError):
    """The demonstration itself could not be run: a process ended by itself, or nothing came for too long."""


@dataclass(slots=True)
class Gathered:
    """What the processes of a column said, and how long it took from the word to the last one's end."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    contradicted: set[int] = field(default_factory=set)
    failed: list[Failed] = field(default_factory=list)
    processes_killed: int = 0
    seconds: float = 0.0


class Worker:
    """A worker process with a thread that reads what it says into the supervisor's queue; None is its end."""

    def __init__(self, job: Job, inbox: queue.SimpleQueue[tuple[Worker, Message | None]]) -> None:
        self.job = job
        self.done = False
        self.finished = False
        self.killed = False
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by `end`
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "interlock.demo.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=environment(),
            )
        except OSError:
            self._complaints.close()
            raise
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()

    def _read(self, inbox: queue.SimpleQueue[tuple[Worker, Message | None]]) -> None:
        self.say(pack(self.job))  # from here, because it waits until the process has come up
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                inbox.put((self, unpack_message(line)))
        inbox.put((self, None))

    def say(self, line: bytes) -> None:
        """Send a line; a process that has ended is noticed by the reader."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is already on the way to the inbox

    def kill(self) -> None:
        """End it at once, as a machine that loses power would."""
        self.killed = True
        self._process.kill()

    def wait(self) -> int:
        """How the process ended, once it has closed its end of the pipe."""
        return self._process.wait(timeout=30)

    def complaints(self) -> str:
        """The last of what it wrote to stderr."""
        self._complaints.seek(0)
        return self._complaints.read().decode("utf-8", "replace")[-2000:].strip()

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass  # what was never read by a process that is gone


def environment() -> dict[str, str]:
    """Of a worker: it finds the same library that we run, from a checkout too."""
    here = str(Path(interlock.__file__).absolute().parents[1])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": here if not known else here + os.pathsep + known}


class _Column:
    """One run; its state while messages come in."""

    def __init__(self, jobs: list[Job], opening_units: int, kill: bool, on_progress: Progress) -> None:
        self._inbox: queue.SimpleQueue[tuple[Worker, Message | None]] = queue.SimpleQueue()
        self._opening_units = opening_units
        self._on_progress = on_progress
        self._lines: set[int] = set()
        self._victim = jobs[jobs[0].seed % len(jobs)].process if kill else None
        self._told_by_victim = 0
        self._running = False
        self._started = 0.0
        self._jobs = jobs
        self.gathered = Gathered()
        self.workers: list[Worker] = []

    def start(self, job: Job) -> None:
        self.workers.append(Worker(job, self._inbox))

    def run(self, limit_seconds: float) -> None:
        deadline = time.monotonic() + limit_seconds
        ready = 0
        for job in self._jobs:
            self.start(job)
        while not all(worker.finished for worker in self.workers):
            try:
                worker, message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise DemoError(f"the processes were not done after {limit_seconds:g} seconds") from None
            if isinstance(message, Ready):
                ready += 1
                if self._running:  # a replacement: the others have sold meanwhile
                    worker.say(GO)
                    continue
                self._check(message)
                if ready == len(self.workers):
                    self._running, self._started = True, time.monotonic()
                    for each in self.workers:
                        each.say(GO)
            else:
                self._take(worker, message)

    def _check(self, message: Ready) -> None:
        if message.units != self._opening_units:
            raise DemoError(
                f"a worker process sees {message.units} units in stock, where {self._opening_units} were put: "
                "the store is not one that processes share"
            )

    def _take(self, worker: Worker, message: Message | None) -> None:
        if isinstance(message, Acknowledged):
            self.gathered.acknowledged.append(message)
            self._count(worker, message.line)
        elif isinstance(message, Contradicted):
            self.gathered.contradicted.add(message.line)
            self._count(worker, message.line)
        elif isinstance(message, Failed):
            self.gathered.failed.append(message)
            self._count(worker, message.line)
        elif isinstance(message, Done):
            worker.done = True
            self.gathered.seconds = time.monotonic() - self._started
        elif message is None:
            self._ended(worker)

    def _count(self, worker: Worker, line: int) -> None:
        self._lines.add(line)
        self._on_progress(len(self._lines))
        if worker.job.process == self._victim and not worker.killed and worker.job.incarnation == 1:
            self._told_by_victim += 1
            if self._told_by_victim >= max(1, len(worker.job.orders) // 2):
                worker.kill()

    def _ended(self, worker: Worker) -> None:
        code = worker.wait()
        if worker.killed and code == -signal.SIGKILL:
            worker.finished = True
            self.gathered.processes_killed += 1
            self.start(replace(worker.job, incarnation=worker.job.incarnation + 1))
        elif code == 0 and worker.done:
            worker.finished = True
        else:
            raise DemoError(f"process {worker.job.process} ended with status {code}: {worker.complaints()}")


def run_column(
    jobs: list[Job], *, opening_units: int, kill: bool, limit_seconds: float, on_progress: Progress
) -> Gathered:
    """Run the jobs, each in a process of its own, until all are done.

    ``kill``: one process gets SIGKILL when half of its part is done, and a new one is given the same part. Raises
    `DemoError` if a process ends by itself, if the processes do not share one store, or after ``limit_seconds``."""
    column = _Column(jobs, opening_units, kill, on_progress)
    try:
        column.run(limit_seconds)
    finally:
        for worker in column.workers:
            worker.end()
    return column.gathered
