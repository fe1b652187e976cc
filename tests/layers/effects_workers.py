"""Other processes that execute effects, and die or stop in the middle: see `cases.workers`.

The outside world is a file to which acts append a line each, with one system call. What is in it has happened."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interlock.sync
from cases.faults import Wrapped, is_commit
from cases.workers import Place, Worker, begin, opened, say
from interlock.opening import backend_for

BOUNDARIES = (
    "before the claim",
    "after the claim",
    "before the effect",
    "after the effect",
    "before the record",
    "after the record",
)
"""Where a worker can be killed, in the order in which it comes there."""
CLAIM_SECONDS = 0.4
LONG_CLAIM_SECONDS = 1.5
"""Of one that has to be renewed in time, on a busy machine too."""


class EffectWorker(Worker):
    """A process that does one of the jobs of this module."""

    module = "layers.effects_workers"


def happen(world: str, what: str) -> str:
    """The effect: a line in the outside world."""
    place = os.open(world, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, f"{what}\n".encode())
    finally:
        os.close(place)
    return f"done {what}"


def happened(world: str | Path) -> list[str]:
    """What has happened in the outside world."""
    return Path(world).read_text().splitlines() if Path(world).exists() else []


class Boundaries(Wrapped):
    """A backend that tells ``reach`` about each commit, before and after."""

    def __init__(self, inner: Any, reach: Callable[[str], None]) -> None:
        super().__init__(inner)
        self.reach = reach
        self.commits = 0

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """The first commit is the claim, the second one the record."""
        what = ""
        if is_commit(name, args):
            self.commits += 1
            what = {1: "the claim", 2: "the record"}.get(self.commits, "")
        if what:
            self.reach(f"before {what}")
        answer = await call()
        if what:
            self.reach(f"after {what}")
        return answer


def execute(url: Place, world: str, key: str, at: str, by: str) -> Any:
    """Execute one effect; at a boundary, send oneself a signal. What became of it, if that is to be told."""

    def reach(boundary: str) -> None:
        if boundary == at:
            os.kill(os.getpid(), getattr(signal, by))

    def act(what: str) -> str:
        reach("before the effect")
        result = happen(world, what)
        reach("after the effect")
        return result

    address, options = url if not isinstance(url, str) else (url, {})
    store = interlock.sync.Store(Boundaries(backend_for(address, options), reach), agent="worker")
    with store:
        begin()
        try:
            return interlock.sync.IdempotentExecutor(store, claim_seconds=CLAIM_SECONDS).execute(
                key, act, key, payload=key
            )
        except interlock.InterlockError as error:
            return error.code


def call_at_once(url: Place, world: str, key: str, calls: int) -> list[str]:
    """Call one effect from many threads at once; the results."""
    found: list[str] = []
    with opened(url, "worker") as store:
        executor = interlock.sync.IdempotentExecutor(store)
        barrier = threading.Barrier(calls)

        def call() -> None:
            barrier.wait()
            found.append(executor.execute(key, happen, world, key, payload=key))

        threads = [threading.Thread(target=call) for _ in range(calls)]
        begin()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def execute_long(url: Place, world: str, key: str) -> str:
    """Execute one effect whose act goes on until it is told to end."""

    def act(what: str) -> str:
        say("executing")
        sys.stdin.readline()
        return happen(world, what)

    with opened(url, "worker") as store:
        begin()
        executor = interlock.sync.IdempotentExecutor(store, claim_seconds=LONG_CLAIM_SECONDS)
        return executor.execute(key, act, key, payload=key)


def execute_until_killed(url: Place, world: str, prefix: str) -> None:
    """Execute one effect after the other, and say so after each."""
    with opened(url, "worker") as store:
        executor = interlock.sync.IdempotentExecutor(store, claim_seconds=CLAIM_SECONDS)
        begin()
        number = 0
        while True:
            key = f"{prefix} {number}"
            executor.execute(key, happen, world, key, payload=key)
            say(key)
            number += 1


def dispatch(url: Place, world: str, kill_after: int) -> dict[str, int]:
    """Dispatch the outbox, or be killed within an act; how many were executed here."""
    done = 0

    def send(payload: str) -> None:
        nonlocal done
        done += 1
        if done == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        happen(world, payload)

    with opened(url, "worker") as store:
        for effect in ("first", "second"):
            store.effects.handler(effect, send)
        begin()
        report = store.effects.dispatch()
    return {"done": done, "succeeded": report.succeeded}


def fork_within(url: Place, key: str) -> dict[str, Any]:
    """Fork within an act: how the child fares, with a key of its own and with the one that its parent executes."""
    with opened(url, "worker") as store:
        executor = interlock.sync.IdempotentExecutor(store)

        def act() -> int:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    mine = executor.execute("other", len, "four")
                    try:
                        interlock.sync.IdempotentExecutor(store, wait_seconds=0.01).execute(key, act)
                    except interlock.EffectInProgressError:
                        status = 0 if mine == 4 else 2
                finally:
                    os._exit(status)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        child = executor.execute(key, act)
        return {"child": child, "other": executor.execute_detailed("other", len, "four").replayed}


JOBS: dict[str, Callable[..., Any]] = {
    "call_at_once": call_at_once,
    "dispatch": dispatch,
    "execute": execute,
    "execute_long": execute_long,
    "execute_until_killed": execute_until_killed,
    "fork_within": fork_within,
}


if __name__ == "__main__":
    say(json.dumps(JOBS[sys.argv[1]](**json.loads(sys.argv[2]))))
