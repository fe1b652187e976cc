"""A process that holds a lease and is stopped: the holder of W12.

It says its token on a line of its own, waits for a line, then writes under the lease and says what came of it."""

from __future__ import annotations

import json
import sys

from interlock import InterlockError, sync


def main(url: str, options: str, number: str) -> None:
    with sync.open(url, agent=f"holder {number}", **json.loads(options)) as store:
        lease = store.lease("job", ttl_seconds=1, wait_seconds=60)
        try:
            with lease:
                say(list(lease.token))
                sys.stdin.readline()
                try:
                    with store.resource("stock").session(fence=lease) as session:
                        session.write("by", number)
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
