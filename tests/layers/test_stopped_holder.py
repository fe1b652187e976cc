"""W12: the holder is stopped (SIGSTOP) past its time to live, another takes over, the first goes on and writes.

The old write is refused each time, and tokens grow. `INTERLOCK_W12_ROUNDS` sets the number of rounds; `make soak` runs
a hundred."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cases.support import World, in_worlds

ROUNDS = int(os.environ.get("INTERLOCK_W12_ROUNDS", "100" if os.environ.get("INTERLOCK_SOAK") else "2"))
HOLDER = Path(__file__).with_name("holder.py")
processes = in_worlds("sqlite-sync", "postgresql-sync", "redis-sync")


class Holder:
    """A process of `holder`."""

    def __init__(self, world: World, number: int) -> None:
        url, options = world.place
        self.process = subprocess.Popen(
            [sys.executable, str(HOLDER), url, json.dumps(options), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@pytest.mark.soak
@pytest.mark.timeout(60 + 15 * ROUNDS)
@processes
async def test_w12_a_stopped_holder_cannot_write(world: World) -> None:
    store = world.open()
    tokens: list[Any] = []
    for number in range(ROUNDS):
        stopped = Holder(world, 2 * number)
        taker = None
        try:
            first = stopped.hear()
            stopped.process.send_signal(signal.SIGSTOP)
            taker = Holder(world, 2 * number + 1)
            second = taker.hear()
            stopped.process.send_signal(signal.SIGCONT)
            stopped.go_on()
            assert stopped.hear() == "fenced"
            assert stopped.hear() in ("fenced", "lease_lost"), "the exit says so, too"
            taker.go_on()
            assert taker.hear() == "written"
            assert await store.resource("stock").read("by") == str(2 * number + 1)
            tokens += [first, second]
        finally:
            stopped.end()
            if taker is not None:
                taker.end()
    assert tokens == sorted(tokens)
    assert len({tuple(token) for token in tokens}) == 2 * ROUNDS
