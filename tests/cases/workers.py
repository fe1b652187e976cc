"""Jobs for processes of their own, and the handle by which a test drives one.

A worker (``python -m cases.workers JOB ARGUMENTS``) says ``ready`` when it could begin, begins when it is told to, and
writes one line of JSON as its result. What it has to tell on the way, such as what was acknowledged to it, comes in
lines before that.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import interlock.sync
import zygote
from cases.support import drop_schema

TESTS = Path(__file__).parent.parent
LIBRARY = str(Path(interlock.sync.__file__).parent.parent.parent.absolute())
"""Where the library under test is: a worker runs the same, wherever it is started."""

Place = str | tuple[str, dict[str, Any]]
"""A URL, or a URL and the options of `interlock.open` (`cases.support.World.place`)."""


class Worker:
    """A process that does one of the jobs below, or of another module that has jobs."""

    module = "cases.workers"

    def __init__(self, job: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> None:
        self.process = zygote.start(
            "-m", self.module, job, json.dumps(arguments),
            directory=TESTS, environment={**os.environ, "PYTHONPATH": LIBRARY, **(environment or {})},
        )  # fmt: skip

    def line(self) -> str:
        """The next line; "" at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ready(self) -> None:
        """Wait until it could begin."""
        assert self.line() == "ready", "a worker did not come up; see its traceback above"

    def go(self, word: str = "go") -> None:
        """Let it begin, or tell it something else."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
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

    def end(self) -> None:
        """Close the pipes, which is the end of most, and wait."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


def kill_after(breeder: Worker, name: str, commits: int) -> int:
    """Have a writer made, and kill it at whatever it does after that many commits; how many it was told of."""
    breeder.go(name)
    child, count, killed = 0, 0, False
    while (line := breeder.line()) != "dead":
        if line.startswith("child "):
            child = int(line.removeprefix("child "))
        else:
            assert int(line) == count + 1
            count = int(line)
        if child and count >= commits and not killed:
            os.kill(child, signal.SIGKILL)
            killed = True
    assert killed, f"{name} has ended by itself"
    return count


def say(line: str) -> None:
    """One line to the test, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def opened(place: Place, agent: str) -> interlock.sync.Store:
    """The store at a place."""
    url, options = (place, {}) if isinstance(place, str) else place
    return interlock.sync.open(url, agent=agent, **options)


def begin() -> None:
    """Say that everything is there, and wait to be told to begin."""
    say("ready")
    sys.stdin.readline()


def charge(session: Any) -> int:
    """The operation of `charge_often`."""
    total: int = session.read("total", 0) + 1
    session.write("total", total)
    return total


def charge_often(url: Place, calls: int, keys: int) -> list[tuple[str, int, bool]]:
    """Call one operation many times under few idempotency keys."""
    found = []
    with opened(url, "worker") as store:
        account = store.resource("account")
        begin()
        for key in range(keys):
            for _ in range(calls):
                done = account.run_detailed(charge, idempotency_key=f"K{key}")
                found.append((f"K{key}", done.value, done.replayed))
    return found


def show_moments(url: Place) -> dict[str, Any]:
    """How the stored times look here, in this process's own time zone."""
    with opened(url, "worker") as store:
        moments = store.resource("moments").read("all")
    return {"moments": [repr(moment) for moment in moments], "zone": time.tzname[0]}


def increment(url: Place, key: str, times: int, agent: str = "worker", gate: str = "") -> dict[str, Any]:
    """Read, add one, write, many times, with the default settings; what reached the caller. With ``gate``, a file, once
    and then not before a lock of it is free, so that all who wait there have begun and go on at the same moment."""
    errors = []
    with opened(url, agent) as store:
        counters = store.resource("counters")
        if gate:
            counters.run(_increment, key)
            times -= 1
        begin()
        if gate:
            with open(gate) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        for _ in range(times):
            try:
                counters.run(_increment, key)
            except Exception as error:
                errors.append(repr(error))
    return {"errors": errors}


def _increment(session: Any, key: str) -> None:
    session.write(key, session.read(key, 0) + 1)


def open_together(rounds: int, processes: int, directory: str = "", url: str = "") -> list[int]:
    """In each round as many forked processes open one new store at the same moment, and count in it: a file in the
    directory, or a schema of the server."""
    if directory:
        return [_open_together(f"sqlite:///{directory}/{number}.db", processes) for number in range(rounds)]
    say("ready")
    names = [f"together_{os.getpid()}_{number}" for number in range(rounds)]
    try:
        return [_open_together((url, {"schema": name}), processes) for name in names]
    finally:
        for name in names:
            drop_schema(url, name)


def _open_together(url: Place, processes: int) -> int:
    starting_line, starter = os.pipe()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(starter)
                os.read(starting_line, 1)
                with opened(url, "worker") as store:
                    store.resource("counters").run(_add_to, str(number))
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
    with opened(url, "worker") as store:
        return int(store.resource("counters").read("total"))


def fork_and_write(url: Place, times: int) -> dict[str, Any]:
    """Open a store, fork, and write from both sides of the fork through the same store object."""
    with opened(url, "worker") as store:
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


def interrupted(url: Place, times: int, seed: int) -> dict[str, Any]:
    """Commit while another thread sends Ctrl-C at random moments; what the program was told, against the truth."""
    dice, begun = random.Random(seed), list[str]()
    told: dict[str, str] = {}
    enough: list[bool] = []
    interrupts = 0

    def note_and_add(session: Any) -> None:
        begun.append(session.transaction_id)
        _increment(session, "n")

    def interrupt() -> None:
        never = threading.Event()
        for _ in range(times):
            seen = len(begun)
            while len(begun) < seen + 2:
                never.wait(dice.uniform(0.0, 0.002))
            os.kill(os.getpid(), signal.SIGINT)
        enough.append(True)

    def go_on() -> None:  # a call, because an interrupt between two rounds of a loop may miss the try around the loop
        while not enough:
            done = counters.run_detailed(note_and_add)
            told[done.transaction_id] = "acknowledged"

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    with opened(url, "worker") as store:
        counters = store.resource("counters")
        counters.run(note_and_add)
        threading.Thread(target=interrupt, daemon=True).start()
        while True:
            try:
                go_on()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                break
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
            "interrupts": interrupts,
        }


def _end_with_the_test() -> None:
    """Nobody outlives a test that was given up."""
    sys.stdin.read()
    os._exit(1)


def checksum(name: str, part: str, count: int) -> str:
    """What belongs under one part's key when ``count`` commits were made; long enough for several pages."""
    return f"{name} {part} {count} " * 60


def write_until_told(url: Place, name: str) -> dict[str, Any]:
    """Commit several keys at a time until told to stop; how often, and what went wrong."""
    errors: list[str] = []
    count = 0
    with opened(url, name) as store:
        ledger = store.resource("ledger")
        begin()
        enough = threading.Thread(target=sys.stdin.readline, daemon=True)
        enough.start()
        while enough.is_alive():
            try:
                count = ledger.run(_write_all, name)
            except Exception as error:
                errors.append(repr(error))
    return {"errors": errors, "count": count}


def write_until_killed(url: Place) -> None:
    """For each name that is read, a forked child that commits and says so after each commit, until it is killed."""
    say("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            ledger = opened(url, line.strip()).resource("ledger")
            while True:
                say(str(ledger.run(_write_all, line.strip())))
        say(f"child {child}")
        os.waitpid(child, 0)
        say("dead")


def _write_all(session: Any, name: str) -> int:
    count: int = session.read((name, "count"), 0) + 1
    session.write((name, "count"), count)
    for part in ("a", "b", "c"):
        session.write((name, part), checksum(name, part, count))
    session.add("total", 1)
    return count


JOBS: dict[str, Callable[..., Any]] = {
    "charge": charge_often,
    "show_moments": show_moments,
    "increment": increment,
    "open_together": open_together,
    "fork_and_write": fork_and_write,
    "interrupted": interrupted,
    "write_until_told": write_until_told,
    "write_until_killed": write_until_killed,
}


if __name__ == "__main__":
    say(json.dumps(JOBS[sys.argv[1]](**json.loads(sys.argv[2]))))
