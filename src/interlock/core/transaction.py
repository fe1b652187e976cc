"""One attempt at all-or-nothing: the read set, the write set, the snapshot. How it ends is in `interlock.core.commit`.

The asynchronous and the synchronous handle are thin shells over this class, which takes the resource as an argument,
so that one transaction may span several. What holds at every moment:

- ``writes`` holds stored forms only, so nothing that a caller changes later can change what is committed; values are
  built anew at each read, for the same reason.
- ``reads`` holds, for each key, what it was in the snapshot ``token``; a key is asked for once (mode ``none`` asks
  each time).
- A call that fails dooms the transaction: code that swallows the error cannot commit, the exit raises the error again.
- After the end every call is refused. Nothing is held in the engine in between, however long the agent thinks.
- Everything read is from one snapshot, which may move forward only as a whole, see `interlock.core.extension`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from contextvars import Token as ContextToken
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from interlock import merges
from interlock.core import isolation as modes
from interlock.core import refusals
from interlock.core.calls import ACTIVE, BUSY, ENDED, LEFT_BEHIND, ROLLED_BACK, Attempted, stored_plainly
from interlock.core.chains import Custom, Step
from interlock.core.extension import extend
from interlock.core.locking import read_locked
from interlock.core.space import Resource, Space
from interlock.errors import (
    CommitUnknownError,
    ConflictError,
    DeadlineExceededError,
    InterlockError,
    TransactionError,
    UsageError,
)
from interlock.gates import left_behind
from interlock.model import (
    BoundBroken,
    Clash,
    Delete,
    Entry,
    Expectation,
    Key,
    Merge,
    MergeRefused,
    Operation,
    Put,
    Reply,
    Span,
    Token,
    TransactionId,
    Write,
)

if TYPE_CHECKING:
    from interlock.core.carrying import Guard
    from interlock.core.engine import Engine
    from interlock.core.foresight import Ahead
    from interlock.core.idempotency import Record
    from interlock.ports import Backend


class _Missing:
    """No default was given."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final[Any] = _Missing()
DELETE: Final = Delete()

current: ContextVar[Transaction | None] = ContextVar("interlock_transaction", default=None)


class Generation:
    """A process, as opposed to a forked child of it."""


class _Process:
    def __init__(self) -> None:
        self.generation = Generation()

    def forked(self) -> None:
        """In the child: an open session of the forking thread stays the parent's, every call on the copy is refused."""
        self.generation = Generation()
        txn = current.get()
        if txn is not None:
            txn.state = LEFT_BEHIND


process: Final = _Process()
os.register_at_fork(after_in_child=process.forked)


Settle = Callable[["Transaction", CommitUnknownError], Awaitable[None]]


@stored_plainly
class Transaction(Attempted, eq=False):
    """The state of one attempt. Not for users: `AgentSession` is. `Engine.start` makes it.

    ``plain`` is True while the transaction is what nearly all are: serializable, on one space, without a time limit,
    and nothing in it but reads and writes of single keys. Then reading, writing and committing go shorter ways that
    look at nothing else. Whoever puts something else into a transaction says ``plain = False`` first; going the general
    way needlessly does no harm."""

    engine: Engine
    backend: Backend
    home: Space | None
    agent: str
    isolation: str
    mode: int
    generation: Generation
    plain: bool = False
    reads: dict[Key, Entry | None] = msgspec.field(default_factory=dict)
    writes: dict[Key, Write] = msgspec.field(default_factory=dict)
    ahead: Ahead | None = None
    attempt: int = 1
    operand_bytes: int = 0
    chains: dict[Key, list[Step]] | None = None
    clears: list[Span] | None = None
    context: ContextToken[Transaction | None] | None = None
    deadline: float | None = None
    gate: Key | None = None
    guards: dict[Key, Guard] | None = None
    held: Any = None
    invariant_reads: set[Key] | None = None
    invariant_spans: list[Span] | None = None
    memos: dict[Any, Any] | None = None
    missed: tuple[Space, tuple[Span, ...]] | None = None
    operation: str | None = None
    lock_timeout_seconds: float = 10.0
    born: int = 0
    pinned: bool = False
    records: dict[Key, Record] | None = None
    replayed: bool = False
    reply: Reply | None = None
    run_id: str | None = None
    settle: Settle | None = None
    spans: list[Span] | None = None
    stale: tuple[Clash, ...] | None = None
    token: Token | None = None
    touched: list[Space] | None = None
    unchecked: list[Space] | None = None
    unsettled: CommitUnknownError | None = None
    _id: int = 0

    @property
    def id(self) -> TransactionId:
        """The transaction's id; made when it is first needed, which a read-only transaction never does."""
        number = self._id
        if not number:
            number = self._id = self.engine.new_id()
        return number

    # -- where it stands ---------------------------------------------------------------------------------------------
    def enter_context(self) -> None:
        """Make this the current transaction of the calling task or thread."""
        self.context = current.set(self)

    def leave_context(self) -> None:
        """Undo `enter_context`, also from another context (a generator's finaliser), and give back the gate."""
        if self.gate is not None:
            self.leave_gate()
        try:
            current.reset(self.context)  # type: ignore[arg-type]
            self.context = None
        except (TypeError, ValueError, RuntimeError):  # never or not wholly entered, of another context, left before
            self.context = None
            if current.get() is self:
                current.set(None)

    def same_context(self) -> bool:
        """Whether the caller is in the task or thread that opened this transaction.

        A ContextVar token can be reset only in the very context that made it, which is the test."""
        if self.context is None:
            return False
        try:
            current.reset(self.context)
        except ValueError:
            return False
        self.context = current.set(self)
        return True

    def touch(self, space: Space) -> None:
        """Note that a second (third ...) space takes part."""
        if self.touched is not None and space in self.touched:
            return
        if space.engine is not self.engine:
            raise UsageError(f"resource {space.name!r} belongs to another store than this session")
        space.rules.admit(self.mode, self.isolation)
        self.plain = False
        self.touched = [*(self.touched or ()), space]
        if self.mode < modes.SERIALIZABLE:
            self.unchecked = [*(self.unchecked or ()), space]

    def spaces(self) -> tuple[Space, ...]:
        """Every space that takes part."""
        home = () if self.home is None else (self.home,)
        return home if self.touched is None else (*home, *self.touched)

    def check_time(self) -> None:
        """Raises `DeadlineExceededError` when ``timeout_seconds`` is over."""
        if self.deadline is not None and self.engine.runtime.monotonic() >= self.deadline:
            raise DeadlineExceededError(
                "timeout_seconds ran out before the commit; nothing was written", transaction_id=f"{self.id:032x}"
            )

    # -- reading -------------------------------------------------------------------------------------------------------
    async def read(self, resource: Resource, key: Any, default: Any = None) -> Any:
        """The value of a key as this transaction sees it, or ``default``."""
        if self.state:
            self.admit_read("read")
        try:
            if (space := resource.space) is not self.home:
                self.touch(space)
            raw = (space.cache.get(key) if type(key) is str else None) or space.encode(key)
            engine, reads, token = self.engine, self.reads, self.token
            new = self.plain and raw not in reads and raw not in self.writes
            if new and (token is not None or raw not in engine.gates.open):
                direct = engine.direct or self.ahead
                if direct is not None and (found := direct.look(raw, token)) is not None:
                    entry, self.token = found
                    reads[raw] = entry
                    if self.calls is None:
                        self.last_call = None
                    return default if entry is None or entry.value is None else resource.thaw(entry.value)
                self.state = BUSY  # the first read of a key in nearly every session: `fetch`, cut short
                reading = await self.backend.read((raw,), token)
                if self.state == BUSY:
                    self.state = ACTIVE
                if not reading.superseded:
                    self.token = reading.token
                    reads[raw] = entry = reading.entries[0]
                    return default if entry is None or entry.value is None else resource.thaw(entry.value)
            value = await self._read_on(raw)
            return default if value is None else resource.thaw(value)
        except BaseException as error:
            self.doom(error)
            raise

    async def _read_on(self, raw: Key) -> bytes | None:
        """The stored form of a key as this transaction sees it, in general."""
        if (self.writes or self.clears) and (own := self.own(raw)) is not MISSING:
            return own  # type: ignore[no-any-return]
        if (entry := self.reads.get(raw, MISSING)) is MISSING or self.mode == modes.NONE:
            entry = await self.fetch(raw)
        value: bytes | None = None if entry is None else entry.value
        if self.writes or self.chains:
            value = self.pending(raw, value)
        if self.invariant_reads is not None:
            self.invariant_reads.add(raw)
        return value

    def own(self, raw: Key) -> Any:
        """The stored form that this transaction has itself decided (None: deleted), or MISSING."""
        if (write := self.writes.get(raw)) is not None:
            kind = type(write)
            return write.value if kind is Put else None if kind is Delete else MISSING  # type: ignore[union-attr]
        if self.clears and any(span.start <= raw < span.stop for span in self.clears):
            return None
        return MISSING

    def pending(self, raw: Key, value: bytes | None) -> bytes | None:
        """The stored form with this transaction's merges applied."""
        write = self.writes.get(raw)
        if type(write) is Merge:
            return self.merged(raw, value, write.operations)
        if self.chains is not None and raw in self.chains:
            return self.chained(raw, value)
        return value

    def merged(self, raw: Key, value: bytes | None, operations: tuple[Operation, ...]) -> bytes:
        """Apply merges on the client; what they refuse becomes the public error."""
        try:
            return merges.apply(value, operations)
        except (BoundBroken, MergeRefused) as refused:
            refused.key = raw
            raise refusals.merge_error(refused, self.id) from None

    def chained(self, raw: Key, value: bytes | None) -> bytes | None:
        """Apply a chain of custom and built-in merges on the client."""
        for step in (self.chains or {})[raw]:
            value = step.apply(value) if type(step) is Custom else self.merged(raw, value, (step,))  # type: ignore[arg-type]
        return value

    async def fetch(self, raw: Key) -> Entry | None:
        """Ask the backend for a key and put it into the read set."""
        if self.deadline is not None:
            self.check_time()
        if self.mode == modes.PESSIMISTIC:
            await read_locked(self, (raw,))
            return self.reads[raw]
        token, gates = self.token, self.engine.gates
        if token is None and self.gate is None and raw in gates.open:
            await self.queue_for(raw)
        if token is None and self.gate == raw and self.plain and (left := gates.left(raw, self)) is not None:
            self.reads[raw], self.token = left
            return left[0]
        newest = self.mode == modes.NONE and self.invariant_reads is None
        wanted = (raw,) if self.unchecked is None else (raw, *self.rules_keys())
        state, self.state = self.state, BUSY
        reading = await self.backend.read(wanted, None if newest else token)
        if self.state == BUSY:
            self.state = state
        entry = reading.entries[0]
        if self.unchecked is not None:
            self.admit_by(reading.entries[1:])
        if token is None or newest:
            self.token = reading.token
        elif reading.superseded and self.mode >= modes.OPTIMISTIC and await extend(self):
            entry = (await self.alone(self.backend.read((raw,), self.token))).entries[0]
        self.reads[raw] = entry
        return entry

    def rules_keys(self) -> list[Key]:
        """Where the rules lie that a session which is not serializable has not looked at yet. It does so in the very
        state that it reads first, so that a floor binds readers too, from the commit that publishes it."""
        return [space.rules_key for space in self.unchecked or ()]

    def admit_by(self, entries: list[Entry | None]) -> None:
        """Learn what was found there. Raises `IsolationError`."""
        spaces, self.unchecked = self.unchecked or [], None
        for space, entry in zip(spaces, entries, strict=True):
            space.learn(entry).admit(self.mode, self.isolation)

    async def queue_for(self, raw: Key) -> None:
        """Wait at the gate of a hot key, for as long as neither this attempt nor one around it holds any."""
        if self.gate is None and not self._enclosed_by_gate():
            if await self.alone(self.engine.gates.enter(raw, self, self.deadline)):
                self.gate = raw
            else:
                self.check_time()

    def _enclosed_by_gate(self) -> bool:
        """Whether a transaction that waits for this one to end holds a gate: to queue then could be to wait for it."""
        outer: Any = current.get() if self.context is None else self.context.old_value
        while type(outer) is Transaction:
            if outer.gate is not None and outer is not self:
                return True
            outer = None if outer.context is None else outer.context.old_value
        return False

    def leave_gate(self, reply: Reply | None = None) -> bool:
        """Let the next one through the gate of the hot key, with what was committed; whether there is one."""
        gate, self.gate = self.gate, None
        left = None if gate is None else left_behind(self.writes.get(gate), reply or self.reply)
        return gate is not None and self.engine.gates.leave(gate, self, left)

    async def need_token(self) -> Token:
        """The snapshot; taken now if nothing was read yet."""
        if self.token is None:
            self.token = await self.alone(self.backend.snapshot())
        return self.token

    def expectations(self, writes: dict[Key, Write]) -> dict[Key, Expectation]:
        """What must still hold of the keys read, and of those written blindly."""
        return modes.read_expectations(
            self.mode, self.reads, writes, self.invariant_reads or (), self.chains or (), self.clears or ()
        )

    def conflict(self, clashes: tuple[Clash, ...]) -> ConflictError:
        """The public form of what a backend refused."""
        return refusals.conflict_error(clashes, self.reads, self.id)

    def before_write(self) -> None:
        """A session that has lost its snapshot may not write from there."""
        if self.stale is not None:
            raise self.conflict(self.stale)

    def rollback(self, *, keep_locks: bool = False) -> None:
        """End without writing anything. ``keep_locks``: the caller awaits `interlock.core.locking.let_go`."""
        if self.state not in ENDED:
            self.state = ROLLED_BACK
        self.error = None
        self.leave_gate()
        if self.held is not None and not keep_locks:
            self.engine.locking.drop(self)  # type: ignore[union-attr]

    def raise_doom(self) -> NoReturn:
        """The exit of a doomed transaction."""
        self.state, error = ROLLED_BACK, self.error
        if self.held is not None:
            self.engine.locking.drop(self)  # type: ignore[union-attr]
        if isinstance(error, Exception):
            raise error.with_traceback(None) if isinstance(error, InterlockError) else error
        raise TransactionError(
            f"a session call was interrupted by {type(error).__name__}, which was swallowed; nothing was written",
            transaction_id=refusals.transaction_text(self.id),
        ) from error
