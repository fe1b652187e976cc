"""What can be done to a run while its agents work: to its worker processes, to what connects them to their server, to
the server itself, to the clock, to the disk.

`Troubles` fires one fault after the other, about every ``fault_seconds``, in the order in which they were asked for;
whom it meets and for how long is drawn from the seed. A fault counts as fired when it has met something: a process, a
connection, a call. A run with a fault that never did is vacuous (`running`).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from interlock.errors import UsageError
from interlock.testing.histories.processes import TimeIsOver, Workers
from interlock.testing.proxies import FaultyProxy

FaultKind = Literal[
    "kill", "stop", "syscall-kill", "io-error", "cut", "reset", "lost-reply", "silence", "delay", "restart", "clock",
    "full-disk",
]  # fmt: skip
FAULTS: Final[dict[FaultKind, str]] = {
    "kill": "SIGKILL of a worker, and a new one in its place",
    "stop": "SIGSTOP of a worker, and SIGCONT after a while",
    "syscall-kill": "SIGKILL of a worker at its n-th write, sync or send (strace)",
    "io-error": "EIO for a worker's syncs of the file (strace, SQLite)",
    "cut": "every connection to the server is closed",
    "reset": "every connection to the server is reset",
    "lost-reply": "a request gets through, its reply does not, and the connection is reset",
    "silence": "connections pass nothing on for a while, and are reset then",
    "delay": "connections pass on slowly for a while",
    "restart": "the server is killed and started again, by the command or function that the run was given",
    "clock": "the wall clocks of the workers jump, each by its own hours",
    "full-disk": "the file has no room to grow for a while (SQLite; a small file system is filled, else by strace)",
}
"""Fault -> what it does."""

NETWORK: Final = frozenset({"cut", "reset", "lost-reply", "silence", "delay"})
_LARGEST_FILLED_BYTES: Final = 256 << 20
_DEFAULT_PORTS: Final = {"postgresql": 5432, "redis": 6379}
_STRACE_SECONDS: Final = 20.0
_CONNECT_SECONDS: Final = 2.0
"""How long a fault of the network waits for a connection that it could meet."""
_TRIES: Final = 3


def check(faults: tuple[FaultKind, ...], url: str, restarts: bool) -> None:
    """Raises `UsageError` for faults that the store at ``url`` cannot meet."""
    unknown = set(faults) - set(FAULTS)
    if unknown:
        raise UsageError(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    scheme = urlsplit(url).scheme
    network = sorted(NETWORK & set(faults))
    if network and scheme not in _DEFAULT_PORTS:
        raise UsageError(f"{', '.join(network)}: faults of a network, which {scheme}:// does not use")
    if "restart" in faults and not restarts:
        raise UsageError("restart: say how, by a command that kills the server, starts it and waits until it answers")
    for name in ("io-error", "full-disk"):
        if name in faults and scheme != "sqlite":
            raise UsageError(f"{name}: a fault of SQLite's file; {scheme}:// has none")
    if shutil.which("strace") is None:
        if {"syscall-kill", "io-error"} & set(faults):
            raise UsageError("syscall-kill and io-error need strace, which is not installed")
        if "full-disk" in faults and not _is_small(url):
            raise UsageError(
                f"full-disk: the file system of {_directory(url)} is larger than 256 MiB, so it is not filled, and "
                "strace, which would refuse the writes instead, is not installed; use a small one, such as: mount -t "
                f"tmpfs -o size=64m tmpfs {_directory(url)}"
            )


def _is_small(url: str) -> bool:
    """Whether the file system of a SQLite file may be filled."""
    return shutil.disk_usage(_directory(url)).total <= _LARGEST_FILLED_BYTES


def _directory(url: str) -> Path:
    return Path(unquote(urlsplit(url).path)[1:]).absolute().parent


def with_port(url: str) -> str:
    """The URL with the port that it means."""
    parts = urlsplit(url)
    if parts.port:
        return url
    host = f"{parts.netloc}:{_DEFAULT_PORTS[parts.scheme]}"
    return parts._replace(netloc=host).geturl()


def clock_jumps(seed: int, place: int, start: float, until: float, every: float) -> list[tuple[float, float]]:
    """When (monotonic seconds) the wall clock of a worker jumps, and how far from the truth it is then (seconds)."""
    randomness = random.Random(f"{seed} clock {place}")
    jumps, at = [], start + every / 2
    while at < until:
        jumps.append((at, randomness.uniform(-7200, 7200)))
        at += every
    return jumps


class Troubles:
    """Fires the faults of a run at its workers. ``proxy`` stands before the server if a fault needs it."""

    def __init__(
        self, faults: tuple[FaultKind, ...], seed: int, url: str, workers: Workers, proxy: FaultyProxy | None,
        restart: str | Callable[[], object] | None, directory: Path,
    ) -> None:  # fmt: skip
        self.faults = tuple(name for name in faults if name != "clock")  # which the workers do by themselves
        self.fired: dict[str, int] = dict.fromkeys(faults, 0)
        self._random = random.Random(f"{seed} faults")
        self._url = url
        self._workers = workers
        self._proxy = proxy
        self._restart = restart
        self._directory = directory
        self._turn = 0

    def fire_next(self) -> None:
        """Fire the next fault, and come back when it is over."""
        if not self.faults:
            return
        name = self.faults[self._turn % len(self.faults)]
        self._turn += 1
        for _ in range(_TRIES):
            try:
                met = self._fire(name)
            except TimeIsOver:
                return
            self.fired[name] += met
            if met or name == "lost-reply":
                return

    def finish(self, clock_jumps: int) -> None:
        """Add what is known at the end only: how often the workers' clocks have jumped."""
        if "clock" in self.fired:
            self.fired["clock"] = clock_jumps
        if self._proxy is not None and "lost-reply" in self.fired:
            self.fired["lost-reply"] = self._proxy.fired["lost reply"]

    def _fire(self, name: FaultKind) -> int:
        place = self._random.randrange(len(self._workers))
        match name:
            case "kill":
                self._workers.kill(place)
                self._workers.replace(place)
                return 1
            case "stop":
                self._workers.send(place, signal.SIGSTOP)
                self._pass(0.2, 0.5)
                self._workers.send(place, signal.SIGCONT)
                return 1
            case "syscall-kill":
                return self._kill_at_a_syscall(place)
            case "io-error":
                return self._break_syncs(place)
            case "restart":
                if callable(self._restart):
                    self._restart()
                elif self._restart is not None:
                    subprocess.run(self._restart, shell=True, check=True, stdout=subprocess.DEVNULL)
                return 1
            case "full-disk":
                return self._fill_disk() if _is_small(self._url) else self._refuse_room()
            case _:
                return self._disturb(name)

    def _disturb(self, name: FaultKind) -> int:
        """A fault of the network."""
        proxy = self._proxy
        assert proxy is not None
        until = time.monotonic() + _CONNECT_SECONDS
        while not proxy.open and time.monotonic() < until:
            time.sleep(0.01)
        if name == "cut":
            return min(1, proxy.cut())
        if name == "reset":
            return min(1, proxy.reset())
        if name == "lost-reply":
            proxy.lose_replies(self._random.randint(1, 4))
            return 0  # counted by the proxy, when one is lost
        if name == "silence":
            met = proxy.silence()
            self._pass(0.2, 0.6)
            proxy.reset()
            return min(1, met)
        met = proxy.delay(self._random.uniform(0.001, 0.02))
        self._pass(0.2, 0.5)
        proxy.delay(0)
        return min(1, met)

    def _pass(self, least: float, most: float) -> None:
        time.sleep(self._random.uniform(least, most))

    # -- by strace -----------------------------------------------------------------------------------------------------
    def _kill_at_a_syscall(self, place: int) -> int:
        """Whether the worker died there. Calls are counted in each of its threads."""
        calls = "pwrite64,fdatasync,fsync" if self._url.startswith("sqlite:") else "sendto,write"
        with self._traced([place], f"inject={calls}:signal=KILL:when={self._random.randint(1, 30)}"):
            died = self._workers.wait(place, seconds=2.0) == -signal.SIGKILL
        died = died or self._workers.wait(place, seconds=0.0) == -signal.SIGKILL  # before strace had let it go
        if not died:
            self._workers.kill(place)
        self._workers.replace(place)
        return int(died)

    def _break_syncs(self, place: int) -> int:
        """How many calls were told that the disk is broken."""
        first = self._random.randint(1, 5)
        with self._traced([place], f"inject=fdatasync,fsync:error=EIO:when={first}..{first + 2}") as log:
            self._pass(0.4, 0.6)
        return log.read_text(errors="replace").count("(INJECTED)")

    def _refuse_room(self) -> int:
        """Tell all workers for a while that there is no room for what they write into the file or its log. Their own
        records are written by another call. How many writes were refused."""
        with self._traced(range(len(self._workers)), "inject=pwrite64:error=ENOSPC") as log:
            self._pass(0.2, 0.5)
        return log.read_text(errors="replace").count("(INJECTED)")

    @contextlib.contextmanager
    def _traced(self, places: Iterable[int], what: str) -> Iterator[Path]:
        """Workers under strace."""
        log = self._directory / f"strace-{self._turn}.log"
        calls = what.partition("=")[2].partition(":")[0]
        processes = [word for place in places for word in ("-p", str(self._workers.pid(place)))]
        tracer = subprocess.Popen(
            ["strace", "-f", "-o", str(log), "-e", f"trace={calls}", "-e", what, *processes],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert tracer.stderr is not None
            for _ in processes[::2]:
                said = tracer.stderr.readline()
                if b"attached" in said:
                    continue
                raise RuntimeError(f"strace cannot attach to a worker: {said.decode(errors='replace').strip()}")
            yield log
        finally:
            with contextlib.suppress(ProcessLookupError):
                tracer.send_signal(signal.SIGINT)  # it lets the worker go
            try:
                tracer.communicate(timeout=_STRACE_SECONDS)
            except subprocess.TimeoutExpired:
                tracer.kill()
                tracer.communicate()

    # -- the disk ------------------------------------------------------------------------------------------------------
    def _fill_disk(self) -> int:
        """Take all the room there is, for a while."""
        ballast = _directory(self._url) / "ballast"
        file = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            with contextlib.suppress(OSError):  # ENOSPC is the aim
                while True:
                    os.write(file, bytes(1 << 16))
            with contextlib.suppress(OSError):
                while True:
                    os.write(file, bytes(512))
            self._pass(0.2, 0.5)
        finally:
            os.close(file)
            ballast.unlink()
        return 1
