"""A process that holds a lock on the key ``n``, by a pessimistic session or by `SharedResource.lock`, and dies or is
stopped while it does. "default" as the way: a session whose locks live as long as they do for everybody.

It says "held" on a line of its own, waits for a line, commits what it has read plus one, and says what came of it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

from interlock import InterlockError, sync
from interlock.layers import locks

TTL_SECONDS = 1.0


def main(url: str, options: str, how: str) -> None:
    if how != "default":
        locks.TTL_SECONDS = TTL_SECONDS  # type: ignore[misc]
    with sync.open(url, agent="holder", **json.loads(options)) as store:
        stock = store.resource("stock")
        try:
            with ExitStack() as stack:
                fence: Any = None
                if how == "lock":
                    fence = stack.enter_context(stock.lock("n", ttl_seconds=TTL_SECONDS))
                isolation: Any = "none" if how == "lock" else "pessimistic"
                session = stack.enter_context(stock.session(isolation=isolation, fence=fence))
                value = session.read("n", 0)
                session.write("n", value + 1)
                say("held")
                sys.stdin.readline()
        except InterlockError as error:
            say(error.code)
        else:
            say("written")


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
