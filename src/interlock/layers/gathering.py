"""Commits of layers that happen to be wanted at the same time, made as one.

A layer's records are written by many small quiet commits: claims and ends of effects, steps of sagas. Each costs a
request, a turn of the engine and a sync of the disk. While one is on its way, those that are wanted meanwhile gather
here, and the next commit carries them all: one request, one turn, one sync. A caller who is alone is sent at once and
pays nothing; there is no timer and no thread.

Whoever finds nobody sending sends; the others wait to be told what became of theirs, and the first of those who came
too late for a commit sends the next. If the last commits carried several, the sender first lets whoever was just woken
come again (passes of the event loop; in threads a few tenths of a millisecond), or every second commit would carry one.
Where commits have gone alone lately and the backend can make one without waiting (`interlock.ports.Direct.send`), a
caller does that and is done (`Gathering.send_alone`): whoever comes meanwhile goes the other way, and the engine judges
both.

**Why nobody notices.** A gathered commit expects everything that its parts expect, and no two parts touch the same key,
so it is good exactly if every part is good against the same state; the parts are then applied at one point, which is
also one order of theirs.

- Refused: the refusal names everything that does not hold. The parts that expect such a key are refused, as they would
  have been alone; the others are sent again without them.
- Nothing written (an error that says so): every part hears it.
- Its reply was lost, or its sender was interrupted: each part is settled by its own caller as `Ledger.commit` settles a
  lost reply of a quiet commit: it is sent again alone, and what it expects of its keys tells whether it has happened.
- A caller who is cancelled while its part waits takes it back, and nothing was written; one whose part is on its way
  waits for the answer, `GRACE_SECONDS` at most, as for a commit of its own.
- A part that may be lost in a crash of the engine is durable if it goes with one that is, which nobody minds.
"""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from interlock.errors import CommitUnknownError, InterlockError, SnapshotTooOldError
from interlock.model import (
    CommitRefused,
    CommitRequest,
    DuplicateTransaction,
    Expectation,
    Key,
    Put,
    Reply,
    Token,
    TransactionId,
    Write,
)
from interlock.ports import Waiter

if TYPE_CHECKING:
    from interlock.core.engine import Engine

GRACE_SECONDS: Final = 5.0
"""How long an interrupted caller waits for the answer to a commit that is on its way."""
PARTS: Final = 64
"""The most that one commit carries."""
PART_BYTES: Final = 1 << 18
"""The bytes of values behind which a commit takes no further part."""
MIXED: Final = "interlock"
"""The agent of a commit whose parts are of several."""
_DECAY: Final = 0.9
_PAUSES: Final = 3
_PAUSE_SECONDS: Final = 0.0001
_SNAPSHOTS: Final = 3


class Portion:
    """One caller's commit, and what became of it: ``reply``, or ``error``, or ``lost`` (the request with which it went
    and of which nobody knows)."""

    __slots__ = (
        "agent", "durable", "error", "expectations", "leads", "lost", "reply", "taken", "token", "transaction",
        "waiter", "writes",
    )  # fmt: skip

    def __init__(
        self,
        writes: Mapping[Key, Write],
        expectations: Mapping[Key, Expectation],
        agent: str,
        durable: bool,
        token: Token | None,
    ) -> None:
        self.writes = writes
        self.expectations = expectations
        self.agent = agent
        self.durable = durable
        self.token = token
        self.waiter: Waiter | None = None
        self.leads = self.taken = False
        self.reply: Reply | None = None
        self.transaction: TransactionId = 0
        self.error: Exception | None = None
        self.lost: CommitRequest | None = None

    @property
    def size(self) -> int:
        """The bytes of its values."""
        size = 0
        for write in self.writes.values():
            if type(write) is Put:
                size += len(write.value)
        return size

    @property
    def outcome(self) -> str:
        """What has become of it, for a note."""
        if self.reply is not None:
            return "it happened"
        return "it may or may not happen" if self.error is None else f"nothing was written: {self.error!r}"

    def relies_on(self, keys: Iterable[Key]) -> bool:
        """Whether it expects something of one of these keys."""
        return not self.expectations.keys().isdisjoint(keys)

    def fits(self, writes: Mapping[Key, Write], expectations: Mapping[Key, Expectation]) -> bool:
        """Whether it may go with parts that write and expect this: nobody writes what another one looks at."""
        own, looked_at = self.writes.keys(), self.expectations.keys()
        if looked_at.isdisjoint(expectations) and looked_at.isdisjoint(writes):
            return own <= looked_at or (own.isdisjoint(expectations) and own.isdisjoint(writes))
        if not own.isdisjoint(expectations) or not own.isdisjoint(writes):
            return False
        for key, expected in self.expectations.items():
            if key in writes or (key in expectations and expectations[key] != expected):
                return False
        return True


class Gathering:
    """The commits that gather in one store object. Its lists are guarded by a mutex, never held across an await."""

    __slots__ = (
        "_busy", "_engine", "_expected", "_mutex", "_process", "_queue", "_send", "_token",
    )  # fmt: skip

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        direct = engine.direct
        self._send = None if direct is None or not direct.sends else direct.send
        self._begin_anew()

    def _begin_anew(self) -> None:
        """At the beginning, and in a forked child: what gathers in its parent is the parent's to send."""
        self._process = os.getpid()
        self._mutex = threading.RLock()  # a caller that is dropped may be ended inside of it, by the collector
        self._queue: list[Portion] = []
        self._busy = False
        """Whether somebody sends, or was told to."""
        self._expected = 1.0
        """How many parts the last commits carried."""
        self._token: Token | None = None

    def may_go_alone(self, durable: bool) -> bool:
        """Whether `send_alone` may be tried: commits have gone alone lately, and the backend can make this one without
        waiting."""
        return (
            self._expected <= 1.0
            and self._send is not None
            and not self._busy
            and not (durable and self._engine.runtime.suspends)
        )

    def send_alone(
        self,
        writes: Mapping[Key, Write],
        expectations: Mapping[Key, Expectation],
        agent: str,
        durable: bool,
        token: Token,
    ) -> tuple[CommitRequest, Reply | None] | None:
        """Commit at once, on the calling thread, if nobody else commits lately and the backend can; None: nothing was
        done. A request without a reply is one of which nobody knows what became. Raises what `Backend.commit` raises,
        but for that."""
        engine = self._engine
        if self._send is None or not self.may_go_alone(durable) or self._process != os.getpid():
            return None
        token = self._token or token
        request = CommitRequest(
            engine.new_id(), agent, "serializable", token, {}, dict(writes), dict(expectations), durable=durable,
            quiet=True,
        )  # fmt: skip
        try:
            reply = self._send(request)
        except SnapshotTooOldError:
            self._token = None
            return None
        except (CommitUnknownError, DuplicateTransaction):
            return request, None
        if reply is None:
            return None
        self._token = reply.token
        return request, reply

    async def send(self, part: Portion) -> None:
        """Have a part committed, with others or alone. What became of it is in the part then.

        Raises only what interrupts the caller, with a note where nothing was written."""
        if self._process != os.getpid():
            self._begin_anew()
        waiter: Waiter | None = None
        with self._mutex:
            leads = not self._busy
            if leads:
                self._busy = True
            else:
                part.waiter = waiter = self._engine.runtime.waiter()
            self._queue.append(part)
        if waiter is not None:  # to be told what became of it, or that it is one's turn to send
            try:
                await waiter.wait()
            except BaseException as interrupt:
                await self._interrupted(part, waiter, interrupt)
                raise
            leads = part.leads and not part.taken
        if leads:
            await self._lead(part)

    async def _interrupted(self, part: Portion, waiter: Waiter, interrupt: BaseException) -> None:
        """Take the part back, or wait for its answer a little longer; the interrupt says which."""
        following = None
        with self._mutex:
            taken = part.taken
            if not taken:
                self._drop(part)
                if part.leads:
                    following = self._pass_on()
        if not taken:
            interrupt.add_note("interlock: the commit was taken back before it began; nothing was written")
            if following is not None:
                following.wake()
        elif not isinstance(interrupt, GeneratorExit):  # nothing may be awaited there
            await waiter.wait(GRACE_SECONDS, shielded=True)
            interrupt.add_note(f"interlock: the commit had begun and was not abandoned: {part.outcome}")

    def _drop(self, part: Portion) -> None:
        """Under the mutex: take a part out of the queue; in a forked child, one of the parent's is not there."""
        if part in self._queue:
            self._queue.remove(part)

    def _pass_on(self) -> Waiter | None:
        """Under the mutex: make the first who waits the next to send; whom to wake for that."""
        if not self._queue:
            self._busy = False
            return None
        following = self._queue[0]
        following.leads = True
        return following.waiter

    async def _lead(self, part: Portion) -> None:
        group: list[Portion] = []
        try:
            if self._expected > 1.0:
                await self._gather()
            with self._mutex:
                group, whole = self._take(part)
            await self._commit(group, whole)
        except BaseException as interrupt:
            if not group:
                interrupt.add_note("interlock: the commit was taken back before it began; nothing was written")
            raise
        finally:
            with self._mutex:
                if not group:
                    self._drop(part)
                following = self._pass_on()
            waiters = [each.waiter for each in group if each is not part and each.waiter is not None]
            if following is not None:
                waiters.append(following)
            if waiters:
                self._engine.runtime.wake_all(waiters)

    async def _gather(self) -> None:
        """Let those who were just woken come again, for as long as some do."""
        wanted = math.ceil(self._expected)
        runtime = self._engine.runtime
        seconds = 0.0 if runtime.suspends else _PAUSE_SECONDS
        for _ in range(_PAUSES):
            count = len(self._queue)
            if count >= wanted:
                return
            await runtime.sleep(seconds)
            if seconds and len(self._queue) == count:  # in a loop the second pass is the first that shows anything
                return

    def _take(self, first: Portion) -> tuple[list[Portion], Portion]:
        """Under the mutex: the parts of the next commit, ``first`` in front, and all of them in one. Those left keep
        their order."""
        if len(self._queue) == 1:
            first.taken = True
            self._queue = []
            self._expected = max(1.0, self._expected * _DECAY)
            return [first], first
        group = [first]
        left: list[Portion] = []
        writes, expectations = dict(first.writes), dict(first.expectations)
        size, durable, agent = first.size, first.durable, first.agent
        for part in self._queue:
            if part is first:
                continue
            added = part.size
            if len(group) >= PARTS or size + added > PART_BYTES or not part.fits(writes, expectations):
                left.append(part)
                continue
            group.append(part)
            writes.update(part.writes)
            expectations.update(part.expectations)
            size += added
            durable = durable or part.durable
            if part.agent != agent:
                agent = MIXED
        for part in group:
            part.taken = True
        self._queue = left
        self._expected = max(float(len(group)), self._expected * _DECAY)
        return group, Portion(writes, expectations, agent, durable, first.token)

    # -- sending -------------------------------------------------------------------------------------------------------
    async def _commit(self, group: list[Portion], whole: Portion) -> None:
        """Send parts as one commit, which is ``whole``, until each has its answer."""
        engine = self._engine
        waiting = group
        too_old = 0
        request: CommitRequest | None = None
        try:
            while waiting:
                token = self._token or whole.token or await engine.backend.snapshot()
                request = CommitRequest(
                    engine.new_id(), whole.agent, "serializable", token, {}, dict(whole.writes),
                    dict(whole.expectations), durable=whole.durable, quiet=True,
                )  # fmt: skip
                try:
                    reply = await engine.backend.commit(request)
                except CommitRefused as refused:
                    waiting = _refuse(waiting, refused)
                    whole = _whole(waiting) if waiting else whole
                except SnapshotTooOldError as error:
                    too_old += 1
                    if too_old > _SNAPSHOTS:
                        _fail(waiting, error)
                        return
                    self._token = await engine.backend.snapshot()
                else:
                    self._token = reply.token
                    for part in waiting:
                        part.reply, part.transaction = reply, request.transaction
                    return
        except (CommitUnknownError, DuplicateTransaction):
            assert request is not None
            for part in waiting:
                part.lost = request
        except Exception as error:
            _fail(waiting, error)
        except BaseException:
            for part in waiting:
                part.lost = request
            raise


def _whole(parts: list[Portion]) -> Portion:
    """Parts that fit together, as one."""
    first = parts[0]
    writes, expectations, durable, agent = dict(first.writes), dict(first.expectations), first.durable, first.agent
    for part in parts[1:]:
        writes.update(part.writes)
        expectations.update(part.expectations)
        durable = durable or part.durable
        if part.agent != agent:
            agent = MIXED
    return Portion(writes, expectations, agent, durable, first.token)


def _refuse(parts: list[Portion], refused: CommitRefused) -> list[Portion]:
    """Refuse the parts that a refusal is about; the others. Where it names nothing that anybody expects, all."""
    keys = {clash.key for clash in refused.clashes}
    left = [part for part in parts if not part.relies_on(keys)]
    if len(left) == len(parts):
        left = []
    for part in parts:
        if part.relies_on(keys) or not left:
            part.error = CommitRefused(tuple(clash for clash in refused.clashes if clash.key in part.expectations))
    return left


def _fail(parts: list[Portion], error: Exception) -> None:
    """Nothing was written; each caller gets an error of its own, which it may put notes on."""
    for part in parts:
        part.error = copy.copy(error) if isinstance(error, InterlockError) else error


def gathering_of(engine: Engine) -> Gathering:
    """The one of a store object."""
    found = engine.shared.get(Gathering)
    if found is None:
        found = engine.shared.setdefault(Gathering, Gathering(engine))
    assert isinstance(found, Gathering)
    return found
