"""Processes of tests that begin as copies of one that has imported everything.

The tests start hundreds of Python processes that run a worker over the library. To import what such a worker needs
takes far longer than most of them live. So each process of the test run keeps a *zygote*: a process that has imported
it all and does nothing but fork. What is forked is a process like any other: it has its own memory, threads and
descriptors, it dies of SIGKILL, and it is a child of the test's process, which waits for it as for any child.

`start` returns a `subprocess.Popen` in any case. It forks on Linux alone (where a process may adopt its
grandchildren), and an ordinary process is started where coverage is measured, because that begins with the interpreter.

**How a child comes to its parent.** The zygote forks twice, and the process in between ends at once. The one behind it
then belongs to the nearest ancestor that has said that it adopts, which the process of the tests says for that moment.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import interlock

TESTS: Final = Path(__file__).parent
LIBRARY: Final = str(Path(interlock.__file__).parents[1].absolute())
"""Where the library under test is: what is copied has imported the same."""
_ADOPT: Final = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
_REQUEST_BYTES: Final = 1 << 18
_mutex = threading.Lock()
_zygote: tuple[int, socket.socket] | None = None
"""This process's zygote: whose it is, and the way to it."""


# -- the zygote --------------------------------------------------------------------------------------------------------
def _import_everything() -> None:
    """What workers need. Not the workers themselves: a module that is run must not have been imported."""
    import asyncpg  # noqa: F401
    import psycopg  # noqa: F401
    import redis.asyncio  # noqa: F401

    import cases.support  # noqa: F401
    import interlock.backends.postgresql
    import interlock.backends.redis
    import interlock.backends.sqlite
    import interlock.cli.app
    import interlock.testing.conformance.world  # noqa: F401

    assert threading.active_count() == 1, "what is copied must have one thread"
    gc.collect()
    gc.freeze()


def _serve(way: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request. Returns in each child, with its request, and at the end of the tests, with None."""
    while True:
        raw, descriptors, _, _ = socket.recv_fds(way, _REQUEST_BYTES, 3)
        if not raw:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(writing, str(child).encode())
                os._exit(0)
            os.close(reading)
            os.close(writing)
            return json.loads(raw), descriptors
        os.close(writing)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
        way.send(os.read(reading, 20))
        os.close(reading)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """In a child: be the process that was asked for."""
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    for place, name in enumerate(("stdin", "stdout", "stderr")):  # the old ones remember whether theirs was a pipe
        old = getattr(sys, name)
        buffering = 1 if name == "stderr" else -1
        made = open(place, old.mode, buffering, old.encoding, old.errors, closefd=False)  # noqa: SIM115 - for good
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    added = [path for path in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
    name, *words = request["words"]
    sys.argv = [name, *words]
    sys.path[:0] = [str(Path(name).parent) if request["kind"] == "script" else os.getcwd(), *added]
    if request["kind"] == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif request["kind"] == "-c":
        exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(name, run_name="__main__")


def _main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the tests
    _import_everything()
    with socket.socket(fileno=descriptor) as way:
        asked = _serve(way)
    if asked is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(*asked)


# -- the tests' side ---------------------------------------------------------------------------------------------------
class _Copied(subprocess.Popen[str]):
    """A process that the zygote forks instead of this one."""

    def _execute_child(self, *given: Any, **named: Any) -> None:
        bound = inspect.signature(subprocess.Popen._execute_child).bind(self, *given, **named)  # type: ignore[attr-defined]
        asked = bound.arguments
        interpreter, *words = asked["args"]
        assert interpreter == sys.executable
        special = words[0] in ("-m", "-c")
        request = {
            "kind": words[0] if special else "script",
            "words": words[1:] if special else words,
            "directory": str(asked["cwd"] or os.getcwd()),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
        }
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        with _mutex:
            self.pid = _fork(request, [own if end == -1 else end for own, end in enumerate(ends)])
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def _fork(request: dict[str, Any], descriptors: Sequence[int]) -> int:
    """Under the mutex: the new child's id."""
    way = _way()
    adopt = ctypes.CDLL(None).prctl
    adopt(_ADOPT, 1, 0, 0, 0)
    try:
        socket.send_fds(way, [json.dumps(request).encode()], descriptors)
        answer = way.recv(20)
    finally:
        adopt(_ADOPT, 0, 0, 0, 0)
    if not answer:
        raise RuntimeError("the zygote is gone; see its traceback above")
    return int(answer)


def _way() -> socket.socket:
    """The way to this process's zygote, which is started first if need be."""
    global _zygote
    if _zygote is None or _zygote[0] != os.getpid():
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(filter(None, (LIBRARY, str(TESTS), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-m", "zygote", str(its.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[its.fileno()],
            cwd=TESTS, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        its.close()
        _zygote = os.getpid(), mine
        atexit.register(_end, process, mine, os.getpid())
    return _zygote[1]


def _end(process: subprocess.Popen[bytes], way: socket.socket, owner: int) -> None:
    if os.getpid() == owner:
        way.close()
        process.wait()


def start(
    *words: str, directory: Path | None = None, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """A Python process with pipes for its input and output.

    ``words`` are a script, or ``-m`` and a module, or ``-c`` and a program, and its arguments; ``environment`` is the
    whole of it; ``options`` are those of `subprocess.Popen`.
    """
    kind = _Copied if _copies() and options.keys() <= {"stderr"} else subprocess.Popen
    return kind(
        [sys.executable, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory, env=environment, **options,
    )  # fmt: skip


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen`, for a command of this interpreter: in the place of that in code that starts processes."""
    return (_Copied if _copies() else subprocess.Popen)(command, **options)


def _copies() -> bool:
    return sys.platform == "linux" and not any(name.startswith("COVERAGE_PROCESS") for name in os.environ)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
