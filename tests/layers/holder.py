"""A process that holds a lease and is stopped: the holder of W12.

As often as it is told to: it says its token on a line of its own, waits for a line, then writes under the lease and
says what came of it; after another line it goes on."""

from __future__ import annotations

import json
import sys

from interlock import InterlockError, sync


def main(url: str, options: str, name: str, count: str, ttl_seconds: str) -> None:
    with sync.open(url, agent=name, **json.loads(options)) as store:
        for _ in range(int(count)):
            hold(store, name, float(ttl_seconds))
            sys.stdin.readline()


def hold(store: sync.Store, name: str, ttl_seconds: float) -> None:
    lease = store.lease("job", ttl_seconds=ttl_seconds, wait_seconds=60)
    try:
        with lease:
            say(list(lease.token))
            sys.stdin.readline()
            try:
                with store.resource("stock").session(fence=lease) as session:
                    session.write("by", name)
            except InterlockError as error:
                say(error.code)
            else:
                say("written")
    except InterlockError as error:
        say(error.code)


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
