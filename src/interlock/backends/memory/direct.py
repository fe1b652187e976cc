"""The short way into the memory engine: plain functions for what nearly every session does.

See `interlock.ports.Direct`. They do a subset of what `engine` does, by the same steps, and say None to everything
else, with nothing done. So this is a shorter way to the same end, never another rule; the conformance suite takes both
ways. Who calls `Direct.put` holds the engine's lock.

`Direct.look` takes no lock. Why what it says is right all the same. A commit notes itself in ``pending``, then changes
``current``, then replaces ``token``, then clears ``pending`` (`state.State.apply`), and commits follow each other
under the lock. Compaction besides removes tombstones from ``current``, which mean the same as nothing.

- *The newest.* The token is looked at first, then the key, then ``pending``, then the token again. Had a commit behind
  that token changed what is under the key before it was looked at, that commit would have been noted by then. If
  ``pending`` is clear afterwards, the commit has ended in between, and the token is another one. Whatever the token
  covers was in place before the token was.
- *As of an earlier token.* An entry that lies in ``current`` and is not newer than the token is what the snapshot
  shows, and has not been superseded. If there is none, only the newest snapshot knows what that means.

`Direct.put` is asked about the same absent keys in nearly every commit: that nobody has locked anything or made rules.
It looks them up when there may be news. Having found no entry under them, it notes which tuple it was and how often the
state had grown, and a key gets its first entry only after `State.grown` was counted up, under the same lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from interlock.backends.memory.plain import put_in_place
from interlock.backends.memory.state import INCARNATION, PlainRecord, State
from interlock.errors import UsageError
from interlock.model import NONCE_MASK, CommitRequest, Entry, Key, Put, Reply, Token, TransactionId, Write


class Direct:
    """The short way into one engine, for one backend object; ``refusal`` says why, once that object refuses calls."""

    __slots__ = ("absent", "grown", "lock", "refusal", "state")

    puts = True
    sends = False

    def __init__(self, state: State) -> None:
        self.state = state
        self.lock = state.lock
        self.refusal: str | None = None
        self.absent: Iterable[Key] = ()
        self.grown = state.grown
        """Which keys had no entry when the state had grown so often: while it grows no further they have none."""

    def look(self, key: Key, at: Token | None) -> tuple[Entry | None, Token] | None:
        """The entry of a key, newest of all, as of a token or with its token."""
        if self.refusal is not None:
            raise UsageError(self.refusal)
        state = self.state
        if at is None:
            at = state.token
            entry = state.current.get(key)
        else:
            entry = state.current.get(key)
            if entry is not None and entry.version[0] <= at.position and at.position >= state.horizon:
                return entry, at
        return (entry, at) if state.pending is None and state.token is at else None

    def put(
        self, transaction: TransactionId, fresh: bool, agent: str, isolation: str, snapshot: Token,
        reads: Mapping[Key, Entry | None], writes: Mapping[Key, Write], absent: Iterable[Key],
        operation: str | None, run_id: str | None, attempt: int,
    ) -> Reply | None:  # fmt: skip
        """Commit values, if all that was read is as it was and nothing is where nothing should be."""
        if self.refusal is not None:
            raise UsageError(self.refusal)
        state = self.state
        if state.pending is not None or state.waiters or state.fences or transaction <= state.forgotten_fence:
            return None
        if not fresh and state.record_of(transaction) is not None:
            return None
        token, current = state.token, state.current
        if snapshot is not token:
            state.position_of(snapshot)
        for key, found in reads.items():
            if current.get(key) is not found:
                return None
        if absent is not self.absent or self.grown != state.grown:
            without = True
            for key in absent:
                entry = current.get(key)
                if entry is not None:
                    if entry.value is not None:
                        return None
                    without = False
            if without:
                self.absent, self.grown = absent, state.grown  # in this order, for Ctrl-C between the two
        now = state.clock()
        if now < state.last_time:
            now = state.last_time
        else:
            state.last_time = now
        position = token.position + 1
        version = (position, transaction & NONCE_MASK)
        new: dict[Key, Entry] = {}
        added: list[Key] | None = None
        for key, write in writes.items():
            if type(write) is not Put:
                return None
            ttl_seconds = write.ttl_seconds
            new[key] = Entry(version, write.value, None if ttl_seconds is None else now + ttl_seconds)
            if key not in current and write.listed:
                added = added or []
                added.append(key)
        if added is not None:
            state.order.fresh.update(added)
        after = Token(token.store, INCARNATION, position)
        record = PlainRecord(
            version, after, now, None, (), transaction, agent, isolation, reads, writes, operation, run_id, attempt
        )
        put_in_place(state, record, new)
        return record

    def send(self, request: CommitRequest) -> Reply | None:
        """Nothing: the general way is as short."""
        return None
