"""The processes of one column of the order saga: the outside world, coordinators that are killed, and a recovery.

Each coordinator has every n-th order. At some orders, chosen by the seed, it gets SIGKILL a random moment after it said
that it began; a new process goes on with the orders behind the one that was interrupted. Nobody looks at that one again
until all are through: then, with sagas, one more process recovers.

Only processes that were started here are ended here, and all are gone when `run_saga_column` returns or raises.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO

import msgspec

from interlock.demo.coordinator import Purchase, Task
from interlock.demo.outside import PORT
from interlock.demo.supervisor import DemoError, environment

COORDINATOR = "from interlock.demo.coordinator import main; main()"


@dataclass(slots=True)
class SagaGathered:
    """What the processes of a column said. ``undone`` and ``finished`` are sagas that were recovered, ``left`` dead
    letters. ``broken``: orders that ended with an error of the store, such as a lease that ran out."""

    completed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    coordinators_killed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Kills:
    """At which orders a coordinator is killed, and at most how long after their beginning."""

    orders: Collection[str] = ()
    spread_seconds: float = 0.06
    seed: int = 0

    def delay_of(self, order: str) -> float | None:
        """Seconds from the beginning of an order to the kill; None: none."""
        return Random(f"{self.seed}/{order}").uniform(0, self.spread_seconds) if order in self.orders else None


class _Column:
    """One run. Parts run in threads of their own and share what is under the lock."""

    def __init__(
        self, store: tuple[str, str], durable: bool, port: int, kills: Kills, on_progress: Callable[[int], None]
    ) -> None:
        self._url, self._prefix = store
        self._durable = durable
        self._environment = {**environment(), PORT: str(port)}
        self._kills = kills
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._through = 0
        self.expired = False
        self.gathered = SagaGathered()

    def part(self, purchases: Sequence[Purchase]) -> None:
        """Coordinate a part to its end, by as many processes as it takes."""
        rest = list(purchases)
        while rest:
            begun = self._run(Task(self._url, self._durable, tuple(rest), self._prefix))
            rest = rest[begun:]

    def parts(self, parts: Sequence[Sequence[Purchase]]) -> None:
        """All parts side by side. If one cannot be ended, the others are broken off."""
        with ThreadPoolExecutor(len(parts)) as pool:
            try:
                for done in as_completed([pool.submit(self.part, part) for part in parts]):
                    done.result()
            except BaseException:
                self.expire()
                raise

    def recover(self) -> None:
        """One process that ends what was left."""
        self._run(Task(self._url, self._durable, prefix=self._prefix))

    def _run(self, task: Task) -> int:
        """One process to its end; how many orders it began. At least one, so that a part comes to its end."""
        with tempfile.TemporaryFile() as complaints:
            with self._lock:
                if self.expired:
                    raise DemoError("the processes were not done in time")
                process = subprocess.Popen(
                    [sys.executable, "-c", COORDINATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=complaints, env=self._environment,
                )  # fmt: skip
                self._processes.append(process)
            timers: list[threading.Timer] = []
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                with contextlib.suppress(BrokenPipeError):  # it ended by itself: seen below
                    process.stdin.write(msgspec.json.encode(task) + b"\n")
                    process.stdin.close()
                begun = self._listen(process, process.stdout, timers)
                code = process.wait()
            finally:
                for timer in timers:
                    timer.cancel()
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
            if self.expired:
                raise DemoError("the processes were not done in time")
            if code == -signal.SIGKILL and timers:
                with self._lock:
                    self.gathered.coordinators_killed += 1
            elif code:
                complaints.seek(0)
                raise DemoError(f"a coordinator ended with status {code}: {complaints.read().decode()[-2000:].strip()}")
            return begun

    def _listen(self, process: subprocess.Popen[bytes], lines: IO[bytes], timers: list[threading.Timer]) -> int:
        begun = 0
        for line in lines:
            if not line.endswith(b"\n"):
                continue
            verb, order = line.decode().split()
            if verb == "began":
                begun += 1
                delay = self._kills.delay_of(order)
                if delay is not None:
                    timers.append(threading.Timer(delay, process.kill))
                    timers[-1].start()
                with self._lock:
                    self._through += 1
                    self._on_progress(self._through)
            else:
                with self._lock:
                    getattr(self.gathered, verb).append(order)
        return begun

    def expire(self) -> None:
        """Too late: end everything."""
        with self._lock:
            self.expired = True
            processes = list(self._processes)
        for process in processes:
            process.kill()


@contextlib.contextmanager
def _outside(log: Path, seed: int) -> Iterator[int]:
    """The outside world's process; its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "interlock.demo.outside", str(log), str(seed)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline().strip()
        if not said.isdigit():
            raise DemoError("the payment service did not come up")
        yield int(said)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_saga_column(
    url: str,
    log: Path,
    parts: Sequence[Sequence[Purchase]],
    *,
    prefix: str,
    durable: bool,
    seed: int,
    kills: Kills,
    limit_seconds: float,
    on_progress: Callable[[int], None],
) -> SagaGathered:
    """Deal with all orders, each part by a coordinator of its own, and with sagas recover in the end.

    Raises `DemoError` if a process ends by itself, or after ``limit_seconds``."""
    started = time.monotonic()
    with _outside(log, seed) as port:
        column = _Column((url, prefix), durable, port, kills, on_progress)
        alarm = threading.Timer(limit_seconds, column.expire)
        alarm.daemon = True
        alarm.start()
        try:
            column.parts(parts)
            if durable:
                column.recover()
        finally:
            alarm.cancel()
    column.gathered.seconds = time.monotonic() - started
    return column.gathered
