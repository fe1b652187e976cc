"""One process of a run: threads that make the transactions of a workload until the time is over.

Started by `running` with its `Part` as one line on stdin, or called in the same process for stores that processes
cannot share. Everything it knows about the outcome goes into its history file, before and after each transaction.
"""

from __future__ import annotations

import bisect
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

import interlock.sync
from interlock import runtime
from interlock.core.isolation import Isolation
from interlock.errors import BackendUnavailableError, UsageError
from interlock.testing.histories.records import Recorder, Recording, ending_of
from interlock.testing.histories.workloads import WORKLOADS, Agent, Workload

READY: Final = b"ready\n"
_AGAIN_SECONDS: Final = 0.05


class Part(msgspec.Struct, frozen=True):
    """What one process does. ``first`` is the number of its first thread, ``stride`` how many there are;
    ``clock_jumps``: when (monotonic) its wall clock jumps, and how many seconds beside the truth it is from then on."""

    url: str
    resource: str
    workload: str
    mode: Isolation
    directory: str
    name: str
    first: int
    threads: int
    stride: int
    seed: int
    until: float
    think_seconds: float
    options: dict[str, Any] = {}
    clock_jumps: list[tuple[float, float]] = []


def work(part: Part) -> None:
    """Run the threads of a part. Raises what a thread raised that is nobody's fault but ours."""
    workload = WORKLOADS[part.workload]
    recorder = Recorder(Path(part.directory), part.name, part.stride)
    failures: list[BaseException] = []
    try:
        with opened(part) as store:
            if store is None:
                return
            resource = store.resource(part.resource)
            blind = part.mode != "snapshot"

            def think(randomness: random.Random) -> None:
                time.sleep(randomness.uniform(0, part.think_seconds))

            def thread(number: int) -> None:
                place = number % part.stride
                agent = Agent(number, place, part.stride, random.Random(f"{part.seed} {number}"), blind)
                try:
                    while not failures:  # once at least: the time may be over before the store is open
                        make_one(workload, agent, resource, part.mode, recorder, think)
                        if time.monotonic() >= part.until:
                            break
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=thread, args=(part.first + n,)) for n in range(part.threads)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    finally:
        recorder.close()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def opened(part: Part) -> Iterator[interlock.sync.Store | None]:
    """The store of a part. A server that is gone when the worker comes up is asked again until the time is over; then
    there is None, and nothing to be done in it."""
    while True:
        store = interlock.sync.open(part.url, agent=part.name, isolation="none", **part.options)
        try:
            store.log.head()
            break
        except BackendUnavailableError:
            store.close()
            if time.monotonic() >= part.until:
                yield None
                return
            time.sleep(_AGAIN_SECONDS)
    with store:
        yield store


class JumpingClock:
    """The wall clock of this process, which jumps. Everything that asks for the time of day gets this one."""

    def __init__(self, jumps: list[tuple[float, float]]) -> None:
        self._jumps = sorted(jumps)
        self._true = time.time

    def install(self) -> None:
        """For the rest of this process's life."""
        runtime.BlockingRuntime.time = runtime.AsyncRuntime.time = staticmethod(self.time)
        time.time = self.time

    @property
    def count(self) -> int:
        """How many jumps there have been."""
        return bisect.bisect(self._jumps, (time.monotonic(), 0.0))

    def time(self) -> float:
        """Seconds since 1970, wrong."""
        count = self.count
        return self._true() + (self._jumps[count - 1][1] if count else 0.0)


class Paced:
    """A session whose agent thinks: before some of its reads, and before it commits."""

    def __init__(self, session: Any, randomness: random.Random, think: Callable[[random.Random], None]) -> None:
        self._session = session
        self._random = randomness
        self._think = think

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "scan") and self._random.random() < 0.3:
            self._think(self._random)
        return getattr(self._session, name)


def make_one(
    workload: Workload,
    agent: Agent,
    resource: Any,
    mode: Isolation,
    recorder: Recording,
    think: Callable[[random.Random], None],
) -> None:
    """One transaction: announce it, carry it out, note how it ended."""
    plan = workload.plan(agent)
    announced = [["append", *step[1:]] if step[0] == "push" else list(step) for step in plan.steps]
    recorder.begin(agent.number, announced)
    steps = plan.steps
    try:
        with resource.session(isolation=mode) as session:
            paced: Any = Paced(session, agent.random, think)
            plan.carry(paced, steps)
            think(agent.random)
    except UsageError:
        raise
    except Exception as error:
        agent.number = recorder.end(agent.number, ending_of(error), _written(steps), error)
    else:
        recorder.end(agent.number, "ok", steps)
        inserted = agent.memory.pop("inserted", None)
        if inserted is not None:
            agent.memory["owned"].append(inserted)


def _written(steps: list[list[Any]]) -> list[list[Any]]:
    return [["append", *step[1:]] if step[0] == "push" else step for step in steps]


def main() -> None:
    """The process: it says that it has come up, is told its part, and says in the end how often its clock has
    jumped."""
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    part = msgspec.json.decode(sys.stdin.buffer.readline(), type=Part)
    clock = JumpingClock(part.clock_jumps)
    if part.clock_jumps:
        clock.install()
    work(part)
    sys.stdout.buffer.write(b"%d" % clock.count)


if __name__ == "__main__":
    main()
