"""What a function will read, guessed from what it read last time, so that it comes with the look for its idempotency
record: one round trip instead of two.

`run` with an idempotency key looks for the key's record before the function begins, so that a replay runs nothing. The
keys that a function reads are often among its own arguments (``reserve(session, sku)``). Which ones is learnt from
runs that have committed, and the next run of the same operation asks for those keys in the same request as the record.

Why no guess can do harm:

- What is foreseen is no read of the transaction until the function asks for it. A wrong guess costs a few bytes; it is
  not validated, not in the feed, and learnt anew from the run that did not need it.
- It was read in the very request that gave the transaction its snapshot, and is given out only while the transaction
  is at that snapshot (the same token object), so it is what reading the key there would find.
- A read also learns whether something newer is there, by which a session moves its snapshot forward or conflicts early
  (`interlock.core.extension`). What was read ahead does not say that, so it is given out for `FRESH_SECONDS` only: a
  function that thinks first asks again.

A backend with a direct way needs none of this: there a read is no round trip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.errors import InterlockError
from interlock.model import Entry, Key, Token

if TYPE_CHECKING:
    from interlock.core.space import Resource
    from interlock.core.transaction import Transaction
    from interlock.ports import Runtime

FRESH_SECONDS: Final = 0.02
"""How long what was read ahead counts as read just now: about as long as a round trip may take."""
FORESEEN_KEYS: Final = 4
"""The most keys that are asked for ahead."""
_OPERATIONS: Final = 1024


class Ahead(msgspec.Struct, eq=False):
    """What was read with the record, by key."""

    token: Token
    until: float
    runtime: Runtime
    entries: dict[Key, Entry | None]

    def look(self, key: Key, at: Token | None) -> tuple[Entry | None, Token] | None:
        """As `interlock.ports.Direct.look`: the entry of a key and its token; None: ask the backend."""
        if at is not self.token or key not in self.entries or self.runtime.monotonic() >= self.until:
            return None
        return self.entries[key], self.token


def foresee(home: Resource | None, operation: str, arguments: tuple[Any, ...]) -> list[Key]:
    """The keys that an operation is going to read, as far as its arguments say so."""
    if home is None or home.space.engine.direct is not None:
        return []
    places = home.space.foreseen.get(operation)
    if not places or places[-1] >= len(arguments):
        return []
    try:
        found = [home.encode(key) for place in places if type(key := arguments[place]) is str]
        return found if len(found) < 2 else list(dict.fromkeys(found))
    except InterlockError:  # the function will be told what is wrong with it, if it reads it
        return []


def learn(home: Resource | None, operation: str, arguments: tuple[Any, ...], txn: Transaction) -> None:
    """After a run that has committed: which of its arguments it has read, unless that is known."""
    if home is None:
        return
    known = home.space.foreseen
    if operation in known and (txn.ahead is None or txn.ahead.entries.keys() <= txn.reads.keys()):
        return
    if len(known) >= _OPERATIONS:
        known.clear()
    found = [
        place for place, key in enumerate(arguments) if type(key) is str and home.space.cache.get(key) in txn.reads
    ]
    known[operation] = tuple(found[:FORESEEN_KEYS])
