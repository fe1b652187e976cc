"""The asynchronous handles: `AgentSession` and the read-only `AgentView`.

Each call hands out the core's coroutine and remembers it (`Transaction.admit_call`), so that a call that is never
awaited, or that overlaps another, is found and dooms the session. Writes touch only the write set, but are awaited
all the same: one colour for users, and the place where a mode that validates blind writes takes its snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, TypeVarTuple, cast, overload

from interlock.core import carrying, extension, handles, memos, scanning, writing
from interlock.core.calls import ACTIVE, READY
from interlock.core.commit import commit
from interlock.core.cursors import cursor_of
from interlock.core.isolation import Isolation
from interlock.core.locking import let_go
from interlock.core.refusals import transaction_text
from interlock.core.running import Committed
from interlock.core.straight import commit_now
from interlock.core.transaction import MISSING, current
from interlock.keys import UserKey as Key
from interlock.model import Delete

if TYPE_CHECKING:
    from interlock.store import SharedResource

V = TypeVar("V")
W = TypeVar("W")
D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")
N = TypeVar("N", bound=int | Decimal)
Ts = TypeVarTuple("Ts")

Call = Coroutine[Any, Any, T]


class AgentView(handles.Handle, Generic[V], eq=False):
    """A read-only view of a transaction: what an invariant is given."""

    @overload
    def read(self, key: Key) -> Call[V | None]: ...
    @overload
    def read(self, key: Key, default: D) -> Call[V | D]: ...
    def read(self, key: Key, default: Any = None) -> Call[Any]:
        """The value of a key as this session sees it, or ``default`` where there is none."""
        txn = self._txn
        call = txn.read(self._home or self._bound("read"), key, default)
        last = txn.last_call
        if last is not None and last.cr_frame is not None:
            txn.admit_call(call)
        txn.last_call = call
        return call

    def expect(self, key: Key) -> Call[V]:
        """The value of a key. Raises `NotFoundError` where there is none."""
        return self._admit(handles.expect(self._txn, self._bound("expect"), key))

    def exists(self, key: Key) -> Call[bool]:
        """Whether a key has a value; counts as reading it."""
        return self._admit(handles.exists(self._txn, self._bound("exists"), key))

    def read_many(self, keys: Iterable[Key]) -> Call[dict[Key, V]]:
        """The values of several keys in one round trip; keys without a value are left out."""
        return self._admit(scanning.read_many(self._txn, self._bound("read_many"), list(keys)))

    def scan(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        stop: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[Key, V]]:
        """Keys and values in key order: of everything, of a prefix, or from ``start`` up to (not including) ``stop``.

        A text prefix takes every text that begins with it; a tuple takes itself and the tuples that begin with all its
        parts. Use it with ``async for``; what was consumed is validated at the commit."""
        return scanning.scan(self._txn, self._bound("scan"), prefix, start, stop, limit, reverse)

    def on(self, resource: SharedResource[W]) -> AgentView[W]:
        """The same view of another resource of the same store."""
        return self._sibling(resource._resource)  # type: ignore[no-any-return]

    def _admit(self, call: Call[T]) -> Call[T]:
        self._txn.admit_call(call)
        return call


class AgentSession(AgentView[V], eq=False):
    """One agent's transaction. Use it in one task at a time, and await every call.

    Values read are copies: changing one changes nothing. A call that fails dooms the session: even if its error is
    swallowed, the session cannot commit."""

    @property
    def transaction_id(self) -> str:
        """The id under which `Store.outcome` and the feed know this transaction."""
        return transaction_text(self._txn.id)

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._txn.agent

    @property
    def isolation(self) -> Isolation:
        """The isolation mode."""
        return cast(Isolation, self._txn.isolation)

    @property
    def attempt(self) -> int:
        """Which attempt of `run` or `attempts` this is, from 1."""
        return self._txn.attempt

    @property
    def snapshot(self) -> str | None:
        """The cursor of the snapshot that is read from; None before the first read."""
        return None if self._txn.token is None else cursor_of(self._txn.token)

    @property
    def replayed(self) -> bool:
        """True after the end, if the same idempotency key had been used before and nothing was written again."""
        return self._txn.replayed

    def on(self, resource: SharedResource[W]) -> AgentSession[W]:
        """This session on another resource of the same store."""
        return self._sibling(resource._resource)  # type: ignore[no-any-return]

    def write(self, key: Key, value: V) -> Call[None]:
        """Put a value. Raises `ValueRefusedError` at once if it cannot be stored exactly."""
        txn = self._txn
        call = writing.write(txn, self._home or self._bound("write"), key, value)
        last = txn.last_call
        if last is not None and last.cr_frame is not None:
            txn.admit_call(call)
        txn.last_call = call
        return call

    def delete(self, key: Key) -> Call[None]:
        """Remove a value; no effect where there is none."""
        return self._admit(writing.delete(self._txn, self._bound("delete"), key))

    def clear(self, prefix: Key | None = None, *, start: Key | None = None, stop: Key | None = None) -> Call[None]:
        """Delete every key of a range (of everything, if nothing is said), also keys that appear before the commit."""
        return self._admit(writing.clear(self._txn, self._bound("clear"), prefix, start, stop))

    @overload
    def update(self, key: Key, fn: Callable[[V], V]) -> Call[V]: ...
    @overload
    def update(self, key: Key, fn: Callable[[V], V], default: V) -> Call[V]: ...
    def update(self, key: Key, fn: Callable[[V], V], default: Any = MISSING) -> Call[V]:
        """Read, apply ``fn``, write; returns the new value. `NotFoundError` without a value and without a default."""
        return self._admit(writing.update(self._txn, self._bound("update"), key, fn, default))

    def update_where(
        self,
        fn: Callable[[Key, V], V | Delete],
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        stop: Key | None = None,
    ) -> Call[int]:
        """Give every key of a range the value ``fn(key, value)``, or remove it for `DELETE`; returns how many
        changed."""
        return self._admit(scanning.update_where(self._txn, self._bound("update_where"), fn, prefix, start, stop))

    def add(
        self: AgentSession[N], key: Key, amount: N, *, floor: N | None = None, ceiling: N | None = None
    ) -> Call[None]:
        """Add to a number (0 if absent) without reading it, so that adders never conflict.

        A bound refuses the commit with `InvariantError` if this step would cross it (escrow)."""
        return self._admit(writing.add(self._txn, self._bound("add"), key, amount, floor, ceiling))

    def append(self: AgentSession[list[E]], key: Key, item: E) -> Call[None]:
        """Append to a list ([] if absent) without reading it."""
        return self._admit(writing.append(self._txn, self._bound("append"), key, item))

    def set_add(self: AgentSession[set[E]], key: Key, item: E) -> Call[None]:
        """Add to a set of str, bytes and int (empty if absent) without reading it."""
        return self._admit(writing.set_add(self._txn, self._bound("set_add"), key, item))

    def set_remove(self: AgentSession[set[E]], key: Key, item: E) -> Call[None]:
        """Remove from a set of str, bytes and int without reading it."""
        return self._admit(writing.set_remove(self._txn, self._bound("set_remove"), key, item))

    def maximum(self, key: Key, value: V) -> Call[None]:
        """Keep the larger of the stored value and ``value`` (``value`` if absent) without reading it."""
        return self._admit(writing.maximum(self._txn, self._bound("maximum"), key, value))

    def minimum(self, key: Key, value: V) -> Call[None]:
        """Keep the smaller of the stored value and ``value`` (``value`` if absent) without reading it."""
        return self._admit(writing.minimum(self._txn, self._bound("minimum"), key, value))

    def merge(self, key: Key, operand: object, using: str) -> Call[None]:
        """Merge by a function registered with `SharedResource.register_merge`, or by ``"last"`` (last writer wins).

        The function is applied to the newest value at the commit, without running the agent again."""
        return self._admit(writing.merge(self._txn, self._bound("merge"), key, operand, using))

    def memo(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> Call[T]:
        """Await ``fn(*args)`` once for each function and arguments, also over re-runs: the place for model calls."""
        return self._admit(memos.memo(self._txn, fn, args))

    def stage(self, effect: str, payload: object, *, key: str) -> Call[None]:
        """Intend an effect: it is committed with this session, or not at all, and executed after that by
        `EffectStore.dispatch`, at least once, with the handler of its name.

        ``key`` names the one intended act; staging the same again does nothing, with another payload it raises
        `IdempotencyMismatchError`. Effects that share a key are executed in the order of their commits."""
        return self._admit(handles.stage(self._txn, effect, payload, key))

    def check(self) -> Call[None]:
        """`ConflictError` now if anything read has changed, else the snapshot moves forward."""
        return self._admit(extension.check(self._txn))

    def doom(self, reason: str) -> None:
        """From now on this session cannot commit; its exit raises `TransactionError` with the reason."""
        handles.doom(self._txn, reason)

    def fence(self, held: carrying.Fence) -> None:
        """Bind the commit to a lease or lock: it is refused with `FencedError` once that has passed to somebody else.

        Raises `LeaseLostError` if that is known already. A session that is fenced is validated even if it only
        reads."""
        carrying.fence(self._txn, held)

    def savepoint(self) -> AbstractContextManager[None, None]:
        """An exception that leaves the ``with`` takes back what was written inside it; reads stay in the read set."""
        return handles.Savepoint(self._txn)

    async def commit(self) -> Committed[None]:
        """Commit now. The session has ended after that, well or not."""
        handles.refuse_joined(self, "commit")
        return handles.committed(self._txn, await handles.finish(self._txn))

    async def rollback(self) -> None:
        """Leave without writing anything and without an error; a nested session takes back its own part."""
        handles.roll_back(self, keep_locks=True)
        if self._txn.held is not None and self._mark is None:
            await let_go(self._txn)

    async def __aenter__(self) -> Self:
        txn = self._txn
        if self._mark is None and txn.state == READY and not txn.engine.closed:  # `open_context`, without a call
            txn.state = ACTIVE
            txn.context = current.set(txn)
        else:
            handles.open_context(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        txn = self._txn
        if self._mark is not None:
            handles.close_joined(self, error)
            return
        try:
            if error is None and txn.state == ACTIVE:
                if not commit_now(txn):
                    plain = txn.settle is None and txn.records is None  # then this is what `finish` does
                    await (commit(txn) if plain else handles.finish(txn))
            else:
                ending = handles.leave(txn, error)
                if ending is not None:
                    await ending
        finally:
            txn.leave_context()
