"""Jobs for processes of their own, and the handle by which a test drives one.

A worker (``python -m cases.workers JOB ARGUMENTS``) says ``ready`` when it could begin, begins when it is told to, and
writes one line of JSON as its result. What it has to tell on the way, such as what was acknowledged to it, comes in
lines before that.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
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


def increment(url: str, key: str, times: int) -> dict[str, Any]:
    """Read, add one, write, many times, with the default settings; what reached the caller, and how long it took."""
    errors = []
    with interlock.sync.open(url, agent="worker") as store:
        counters = store.resource("counters")
        begin()
        begun = time.monotonic()
        for _ in range(times):
            try:
                counters.run(_increment, key)
            except Exception as error:
                errors.append(repr(error))
        took = time.monotonic() - begun
    return {"errors": errors, "seconds": took}


def _increment(session: Any, key: str) -> None:
    session.write(key, session.read(key, 0) + 1)


def open_together(directory: str, rounds: int, processes: int) -> list[int]:
    """In each round as many forked processes open one new file at the same moment, and count in it."""
    return [_open_together(f"sqlite:///{directory}/{number}.db", processes) for number in range(rounds)]


def _open_together(url: str, processes: int) -> int:
    starting_line, starter = os.pipe()
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(starter)
                os.read(starting_line, 1)
                with interlock.sync.open(url, agent="worker") as store:
                    store.resource("counters").run(_increment, "n")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    os.close(starter)
    os.close(starting_line)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    with interlock.sync.open(url, agent="worker") as store:
        return int(store.resource("counters").read("n"))


def fork_and_write(url: str, times: int) -> dict[str, Any]:
    """Open a store, fork, and write from both sides of the fork through the same store object."""
    with interlock.sync.open(url, agent="worker") as store:
        counters = store.resource("counters")
        counters.run(_increment, "before")
        old = counters.begin()
        old.write("of a session", "begun before the fork")
        child = os.fork()
        name = "parent" if child else "child"
        try:
            refused = False
            if not child:
                try:
                    old.commit()
                except interlock.UsageError:
                    refused = True
            for _ in range(times):
                counters.run(_add_to, name)
            if not child:
                assert refused
                store.close()
                os._exit(0)
        except BaseException:
            traceback.print_exc()
            if not child:
                os._exit(1)
            raise
        assert os.waitpid(child, 0)[1] == 0
        old.rollback()
        counters.run(_increment, "after")
        found = {key: counters.read(key) for key in ("parent", "child", "total")}
        found["old session"] = "refused" if counters.read("of a session") is None else "written"
        found["feed"] = sum(1 for _ in store.log.changes())
    return found


def _add_to(session: Any, name: str) -> None:
    _increment(session, name)
    session.add("total", 1)


def interrupted(url: str, times: int, seed: int) -> dict[str, Any]:
    """Commit while another thread sends Ctrl-C at random moments; what the program was told, against the truth."""
    dice, begun = random.Random(seed), list[str]()
    told: dict[str, str] = {}

    def note_and_add(session: Any) -> None:
        begun.append(session.transaction_id)
        _increment(session, "n")

    def interrupt() -> None:
        for _ in range(times):
            seen, spin = len(begun), dice.randrange(2_000)
            while len(begun) == seen or spin:
                spin = max(0, spin - 1)
            os.kill(os.getpid(), signal.SIGINT)

    with interlock.sync.open(url, agent="worker") as store:
        counters = store.resource("counters")
        counters.run(note_and_add)
        tormentor, interrupts = threading.Thread(target=interrupt, daemon=True), 0
        tormentor.start()
        while interrupts < times:
            try:
                while True:
                    done = counters.run_detailed(note_and_add)
                    told[done.transaction_id] = "acknowledged"
            except KeyboardInterrupt as error:
                interrupts += 1
                if "nothing was written" in " ".join(getattr(error, "__notes__", ())):
                    told[begun[-1]] = "taken back"
        truth = {each: store.outcome(each).value == "committed" for each in begun}
        return {
            "acknowledged but lost": [
                each for each, what in told.items() if what == "acknowledged" and not truth[each]
            ],
            "taken back but there": [each for each, what in told.items() if what == "taken back" and truth[each]],
            "committed": sum(truth.values()),
            "value": counters.read("n"),
        }


JOBS: dict[str, Callable[..., Any]] = {
    "charge": charge_often,
    "show_moments": show_moments,
    "increment": increment,
    "open_together": open_together,
    "fork_and_write": fork_and_write,
    "interrupted": interrupted,
}


if __name__ == "__main__":
    say(json.dumps(JOBS[sys.argv[1]](**json.loads(sys.argv[2]))))
