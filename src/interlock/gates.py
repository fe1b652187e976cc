"""Queues for hot keys inside one process, so that retries wait for each other instead of colliding.

Optimistic transactions on one busy key waste each other's work: of n that think at the same time one commits and n -
1 start again. After its first conflict a transaction therefore queues here for the key, and transactions that are
about to read a key that is queued for join the queue. This is for progress only: nothing relies on a gate for safety,
every commit is validated all the same. So a gate may be taken over: it is held for one attempt or `HOLD_SECONDS`,
whichever is shorter, and an attempt holds at most one gate, so that waiting always ends.

Who has committed leaves behind what the key holds now, and a snapshot of that moment. The next one may read the key
there instead of asking the backend: half of the round trips of a turn. It is a snapshot that the next one could have
taken itself, because only one who was queueing before the holder's turn began gets it: the commit, and with it the
snapshot, falls into the time of his own call, and contains everything that was done before that call. A commit of
another process in between is found at his own commit, as after any read. A process whose turns go on like this leaves
little room to others that want the same key by retries, so after `IN_A_ROW` turns one reads for himself.

Where a commit is a round trip, the turn's length is what limits everybody. Who has committed and handed the gate on
therefore lets the loop go round once before he goes on (`interlock.core.commit`): the next one's commit is on its way
then, and what the first does next falls into the time that it takes.

One mutex guards all gates; it is never held across an await. A gate is handed to the first in the queue, whose waiter
is then woken; a waiter that gives up (cancelled) passes on what it was handed.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

from interlock.errors import IdempotencyMismatchError
from interlock.model import Entry, Key, Put, Reply, Token, Write
from interlock.ports import Runtime, Waiter

HOLD_SECONDS: Final = 1.0
"""How long one attempt may keep others waiting."""
IN_A_ROW: Final = 8
"""How many turns begin with what the one before has left behind until one begins with a read."""

Left = tuple[Entry, Token]
"""What the holder of a gate has committed under the key, and a snapshot that shows it as the newest."""


def left_behind(write: Write | None, reply: Reply | None) -> Left | None:
    """What a commit leaves behind of a key that it has written so; None: nothing that is known here. When a value
    expires, for example, only the engine knows."""
    if reply is None or type(write) is not Put or write.ttl_seconds is not None:
        return None
    return Entry(reply.version, write.value), reply.token


class _Gate:
    __slots__ = ("holder", "left", "queue", "row", "since", "turn")

    def __init__(self, holder: object, since: float) -> None:
        self.holder = holder
        self.since = since
        self.turn = 0
        self.left: Left | None = None
        self.row = 0
        self.queue: deque[tuple[object, Waiter, int]] = deque()

    def give(self, holder: object, now: float) -> None:
        """Begin the turn of the next holder."""
        self.holder, self.since = holder, now
        self.turn += 1


class Gates:
    """The gates of one store object."""

    __slots__ = ("_mutex", "_runtime", "open")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = threading.Lock()
        self.open: dict[Key, _Gate] = {}
        """Keys that somebody queues for; may be looked at without the mutex as a hint."""

    async def enter(self, key: Key, holder: object, deadline: float | None = None) -> bool:
        """Wait for the gate of ``key``; True when ``holder`` holds it, False if the deadline (by the runtime's
        monotonic clock) came first."""
        now = self._runtime.monotonic
        with self._mutex:
            gate = self.open.get(key)
            if gate is None:
                self.open[key] = _Gate(holder, now())
                return True
            waiter = self._runtime.waiter()
            ticket = (holder, waiter, gate.turn)
            gate.queue.append(ticket)
        try:
            while True:
                left = gate.since + HOLD_SECONDS - now()
                if deadline is not None:
                    left = min(left, deadline - now())
                await waiter.wait(max(left, 0.01))
                with self._mutex:
                    if gate.holder is holder:
                        return True
                    if deadline is not None and now() >= deadline:
                        gate.queue.remove(ticket)
                        return False
                    if gate.queue[0] is ticket and now() >= gate.since + HOLD_SECONDS:
                        gate.queue.popleft()
                        gate.left, gate.row = None, 0
                        gate.give(holder, now())
                        return True
        except BaseException:
            with self._mutex:
                if ticket in gate.queue:
                    gate.queue.remove(ticket)
                elif gate.holder is holder:
                    self._pass_on(key, gate)
            raise

    def leave(self, key: Key, holder: object, left: Left | None = None) -> bool:
        """Give the gate back, with what was committed; whether somebody else holds it now. No effect if it has been
        taken over."""
        with self._mutex:
            gate = self.open.get(key)
            return gate is not None and gate.holder is holder and self._pass_on(key, gate, left)

    def left(self, key: Key, holder: object) -> Left | None:
        """What the one before has left behind for this holder."""
        with self._mutex:
            gate = self.open.get(key)
            return gate.left if gate is not None and gate.holder is holder else None

    def _pass_on(self, key: Key, gate: _Gate, left: Left | None = None) -> bool:
        if not gate.queue:
            del self.open[key]
            return False
        holder, waiter, turn = gate.queue.popleft()
        gate.left = left if turn < gate.turn and gate.row < IN_A_ROW else None
        gate.row = 0 if gate.left is None else gate.row + 1
        gate.give(holder, self._runtime.monotonic())
        waiter.wake()
        return True


class KeysInUse:
    """Idempotency keys that run at this moment in this process, each with the fingerprint that it runs with.

    A key that runs is refused at once to a caller with another fingerprint. This is to say so early: it is the commit
    that decides, between processes and here. So the mutex is taken only where several use one key at a time; a caller
    who comes in the very moment in which the last one leaves may go uncounted, and then nobody is refused on its
    account."""

    __slots__ = ("_mutex", "_others", "_uses")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._uses: dict[Key, bytes] = {}
        self._others: dict[Key, int] = {}

    def enter(self, record: Key, fingerprint: bytes, idempotency_key: str) -> None:
        """Count a caller. Raises `IdempotencyMismatchError` if the key runs with another fingerprint."""
        known = self._uses.setdefault(record, fingerprint)
        if known is fingerprint:
            return
        if known != fingerprint:
            raise IdempotencyMismatchError(
                f"idempotency key {idempotency_key!r} is being used at this moment with other arguments",
                idempotency_key=idempotency_key,
            )
        with self._mutex:
            self._others[record] = self._others.get(record, 0) + 1

    def leave(self, record: Key) -> None:
        """A caller has ended."""
        if self._others:
            with self._mutex:
                others = self._others.get(record, 0)
                if others > 1:
                    self._others[record] = others - 1
                elif others:
                    del self._others[record]
            if others:
                return
        self._uses.pop(record, None)


class Flight:
    """An idempotent call that runs at this moment in this process, and those who wait for its answer."""

    __slots__ = ("answer", "fingerprint", "waiters")

    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint
        self.waiters: list[Waiter] | None = None
        self.answer: object = None
        """What the one who runs leaves to the others, before it lands; None: each finds out for itself."""


class Flights:
    """The flights of one store object: one for each key, begun by the first caller. Others wait without polling.

    Nothing relies on this for safety: between processes the commit decides."""

    __slots__ = ("_flights", "_mutex", "_process")

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        """At the beginning, and in a forked child: what flies in its parent never lands here."""
        self._mutex = threading.Lock()
        self._flights: dict[Key, Flight] = {}
        self._process = os.getpid()

    def enter(self, key: Key, fingerprint: bytes) -> tuple[Flight, bool]:
        """The flight of a key, and whether the caller has begun it, and so has to end it with `land`."""
        if self._process != os.getpid():
            self._begin_anew()
        with self._mutex:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            flight = self._flights[key] = Flight(fingerprint)
            return flight, True

    def board(self, key: Key, flight: Flight, waiter: Waiter) -> bool:
        """Have a waiter woken when the flight lands; False if it has landed already."""
        with self._mutex:
            if self._flights.get(key) is not flight:
                return False
            flight.waiters = flight.waiters or []
            flight.waiters.append(waiter)
            return True

    def land(self, key: Key, flight: Flight) -> None:
        """End a flight and wake everybody on board."""
        with self._mutex:
            if self._flights.get(key) is flight:
                del self._flights[key]
        for waiter in flight.waiters or ():
            waiter.wake()
