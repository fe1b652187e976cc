"""W12: the holder is stopped (SIGSTOP) past its time to live, another takes over, the first goes on and writes.

The old write is refused each time, and tokens grow. Once in real time; then a hundred times against a taker for whom
time flies, so that nobody waits: the stopped one then goes on believing in its lease, and only the fence refuses it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import interlock.sync
import zygote
from cases.support import World, in_worlds
from interlock import LeaseUnavailableError
from interlock.runtime import BlockingRuntime
from soak import rounds

ROUNDS = rounds(100, 1000, by_hand=20)
HOLDER = Path(__file__).with_name("holder.py")
processes = in_worlds("sqlite-sync", "postgresql-sync", "redis-sync")


class Holder:
    """A process of `holder`."""

    def __init__(self, world: World, name: str, count: int, ttl_seconds: float) -> None:
        url, options = world.place
        words = [url, json.dumps(options), name, str(count), str(ttl_seconds)]
        self.process = zygote.start(str(HOLDER), *words)

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Every thread of it has stopped when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def holder(world: World, name: str, *, count: int = 1, ttl_seconds: float = 1.0) -> Iterator[Holder]:
    made = Holder(world, name, count, ttl_seconds)
    try:
        yield made
    finally:
        made.end()


@processes
async def test_w12_a_stopped_holder_cannot_write(world: World) -> None:
    with holder(world, "stopped") as stopped:
        first = stopped.hear()
        stopped.stop()
        with holder(world, "taker") as taker:
            second = taker.hear()
            stopped.process.send_signal(signal.SIGCONT)
            stopped.go_on()
            assert stopped.hear() == "fenced"
            assert stopped.hear() in ("fenced", "lease_lost"), "the exit says so, too"
            taker.go_on()
            assert taker.hear() == "written"
            assert await world.open().resource("stock").read("by") == "taker"
    assert first < second


class Later(BlockingRuntime):
    """A monotonic clock that a test puts forward."""

    ahead_seconds = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        return BlockingRuntime.monotonic() + self.ahead_seconds


@processes
async def test_w12_a_hundred_times(world: World) -> None:
    runtime, ttl_seconds = Later(), 60.0
    tokens: list[Any] = []
    with (
        interlock.sync.Store(world.backend(), agent="taker", runtime=runtime) as store,
        holder(world, "stopped", count=ROUNDS, ttl_seconds=ttl_seconds) as stopped,
    ):
        for number in range(ROUNDS):
            tokens.append(stopped.hear())
            stopped.stop()
            with contextlib.ExitStack() as stack:
                lease = take(store, runtime, ttl_seconds)
                stack.push(lease)
                tokens.append(list(lease.token))
                with store.resource("stock").session(fence=lease) as session:
                    session.write("by", f"taker {number}")
                stopped.process.send_signal(signal.SIGCONT)
                stopped.go_on()
                assert stopped.hear() == "fenced"
                assert stopped.hear() in ("fenced", "lease_lost"), "the exit says so, too"
                assert store.resource("stock").read("by") == f"taker {number}"
            stopped.go_on()
    assert tokens == sorted(tokens)
    assert len({tuple(token) for token in tokens}) == 2 * ROUNDS


def take(store: interlock.sync.Store, runtime: Later, ttl_seconds: float) -> interlock.sync.Lease:
    """The lease, when it has been seen unchanged for as long as it is good; not before."""
    for _ in range(2):
        lease = store.lease("job", ttl_seconds=ttl_seconds, wait_seconds=0)
        try:
            return lease.__enter__()
        except LeaseUnavailableError:
            runtime.ahead_seconds += ttl_seconds
    raise AssertionError("a lease that nobody renews does not end")
