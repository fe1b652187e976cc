"""Session handles of the synchronous world: the same calls, each stepped to its end.

The core is one set of coroutines that await only their ports. Over a backend whose coroutines never suspend such a
coroutine ends in a single ``send(None)``, on the caller's thread, without any event loop: Ctrl-C stops it there, a
fork does not hang it, and nothing goes on behind the caller's back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, TypeVarTuple, cast, overload

from typing_extensions import deprecated

from interlock.core import carrying, extension, handles, memos, scanning, writing
from interlock.core.calls import ACTIVE, READY
from interlock.core.commit import commit
from interlock.core.cursors import cursor_of
from interlock.core.isolation import Isolation
from interlock.core.refusals import transaction_text
from interlock.core.running import Committed
from interlock.core.straight import UNDONE, commit_now, read_now, write_now
from interlock.core.transaction import MISSING, current
from interlock.errors import UsageError
from interlock.keys import UserKey as Key
from interlock.model import Delete

if TYPE_CHECKING:
    from interlock.sync.store import SharedResource

V = TypeVar("V")
W = TypeVar("W")
D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")
N = TypeVar("N", bound=int | Decimal)
Ts = TypeVarTuple("Ts")


class AsyncFunctionInSyncCode:
    """What a type checker says that an async function in synchronous code returns. It never exists."""


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends. Raises `UsageError` if it does."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise _suspended(coroutine)


def _suspended(coroutine: Coroutine[Any, Any, Any]) -> UsageError:
    coroutine.close()
    return UsageError("the backend suspended in synchronous code; it has no blocking leaf")


def step_all(rows: AsyncIterator[T], stepping: Callable[[Any], Any] = step) -> Iterator[T]:
    """The synchronous form of an asynchronous iterator that never suspends."""
    generator: Any = rows
    try:
        while True:
            try:
                row = stepping(generator.__anext__())
            except StopAsyncIteration:
                return
            yield row
    finally:
        step(generator.aclose())


class AgentView(handles.Handle, Generic[V], eq=False):
    """A read-only view of a transaction: what an invariant is given."""

    @overload
    def read(self, key: Key) -> V | None: ...
    @overload
    def read(self, key: Key, default: D) -> V | D: ...
    def read(self, key: Key, default: Any = None) -> Any:
        """The value of a key as this session sees it, or ``default`` where there is none."""
        txn, home = self._txn, self._home
        if home is not None and txn.thread is None:
            value = read_now(txn, home, key, default)
            if value is not UNDONE:
                return value
        return self._do(txn.read(home or self._bound("read"), key, default))

    def expect(self, key: Key) -> V:
        """The value of a key. Raises `NotFoundError` where there is none."""
        value: V = self._do(handles.expect(self._txn, self._bound("expect"), key))
        return value

    def exists(self, key: Key) -> bool:
        """Whether a key has a value; counts as reading it."""
        return self._do(handles.exists(self._txn, self._bound("exists"), key))

    def read_many(self, keys: Iterable[Key]) -> dict[Key, V]:
        """The values of several keys in one round trip; keys without a value are left out."""
        return self._do(scanning.read_many(self._txn, self._bound("read_many"), list(keys)))

    def scan(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        stop: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[Key, V]]:
        """Keys and values in key order: of everything, of a prefix, or from ``start`` up to (not including) ``stop``.

        A text prefix takes every text that begins with it; a tuple takes itself and the tuples that begin with all its
        parts. What was consumed is validated at the commit."""
        rows = scanning.scan(self._txn, self._bound("scan"), prefix, start, stop, limit, reverse)
        return step_all(rows, self._do)

    def on(self, resource: SharedResource[W]) -> AgentView[W]:
        """The same view of another resource of the same store."""
        return self._sibling(resource._resource)  # type: ignore[no-any-return]

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        """Step a call to its end; refuse one that begins while another thread is inside this session."""
        txn, me = self._txn, get_ident()
        owner = txn.thread
        if owner is not None and owner != me:
            call.close()
            name = getattr(call, "__name__", "call")
            error = UsageError(f"session.{name} while another thread uses the session: one thread at a time")
            txn.doom(error)
            raise error
        txn.thread = me
        try:
            call.send(None)
        except StopIteration as stop:  # as in `step`, without a call of its own
            value: T = stop.value
            return value
        finally:
            txn.thread = owner
        raise _suspended(call)


class AgentSession(AgentView[V], eq=False):
    """One agent's transaction. Use it in one thread at a time.

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

    def write(self, key: Key, value: V) -> None:
        """Put a value. Raises `ValueRefusedError` at once if it cannot be stored exactly."""
        txn, home = self._txn, self._home
        if home is None or txn.thread is not None or not write_now(txn, home, key, value):
            self._do(writing.write(txn, home or self._bound("write"), key, value))

    def delete(self, key: Key) -> None:
        """Remove a value; no effect where there is none."""
        return self._do(writing.delete(self._txn, self._bound("delete"), key))

    def clear(self, prefix: Key | None = None, *, start: Key | None = None, stop: Key | None = None) -> None:
        """Delete every key of a range (of everything, if nothing is said), also keys that appear before the commit."""
        return self._do(writing.clear(self._txn, self._bound("clear"), prefix, start, stop))

    @overload
    def update(self, key: Key, fn: Callable[[V], V]) -> V: ...
    @overload
    def update(self, key: Key, fn: Callable[[V], V], default: V) -> V: ...
    def update(self, key: Key, fn: Callable[[V], V], default: Any = MISSING) -> V:
        """Read, apply ``fn``, write; returns the new value. `NotFoundError` without a value and without a default."""
        value: V = self._do(writing.update(self._txn, self._bound("update"), key, fn, default))
        return value

    def update_where(
        self,
        fn: Callable[[Key, V], V | Delete],
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        stop: Key | None = None,
    ) -> int:
        """Give every key of a range the value ``fn(key, value)``, or remove it for `DELETE`; returns how many
        changed."""
        return self._do(scanning.update_where(self._txn, self._bound("update_where"), fn, prefix, start, stop))

    def add(self: AgentSession[N], key: Key, amount: N, *, floor: N | None = None, ceiling: N | None = None) -> None:
        """Add to a number (0 if absent) without reading it, so that adders never conflict.

        A bound refuses the commit with `InvariantError` if this step would cross it (escrow)."""
        return self._do(writing.add(self._txn, self._bound("add"), key, amount, floor, ceiling))

    def append(self: AgentSession[list[E]], key: Key, item: E) -> None:
        """Append to a list ([] if absent) without reading it."""
        return self._do(writing.append(self._txn, self._bound("append"), key, item))

    def set_add(self: AgentSession[set[E]], key: Key, item: E) -> None:
        """Add to a set of str, bytes and int (empty if absent) without reading it."""
        return self._do(writing.set_add(self._txn, self._bound("set_add"), key, item))

    def set_remove(self: AgentSession[set[E]], key: Key, item: E) -> None:
        """Remove from a set of str, bytes and int without reading it."""
        return self._do(writing.set_remove(self._txn, self._bound("set_remove"), key, item))

    def maximum(self, key: Key, value: V) -> None:
        """Keep the larger of the stored value and ``value`` (``value`` if absent) without reading it."""
        return self._do(writing.maximum(self._txn, self._bound("maximum"), key, value))

    def minimum(self, key: Key, value: V) -> None:
        """Keep the smaller of the stored value and ``value`` (``value`` if absent) without reading it."""
        return self._do(writing.minimum(self._txn, self._bound("minimum"), key, value))

    def merge(self, key: Key, operand: object, using: str) -> None:
        """Merge by a function registered with `SharedResource.register_merge`, or by ``"last"`` (last writer wins).

        The function is applied to the newest value at the commit, without running the agent again."""
        return self._do(writing.merge(self._txn, self._bound("merge"), key, operand, using))

    @overload
    @deprecated("async function in synchronous code: use interlock, not interlock.sync")
    def memo(self, fn: Callable[[*Ts], Coroutine[Any, Any, Any]], *args: *Ts) -> AsyncFunctionInSyncCode: ...
    @overload
    def memo(self, fn: Callable[[*Ts], T], *args: *Ts) -> T: ...
    def memo(self, fn: Callable[..., Any], *args: Any) -> Any:  # type: ignore[misc]
        """Call ``fn(*args)`` once for each function and arguments, also over re-runs: the place for model calls."""
        return self._do(memos.memo(self._txn, fn, args))

    def stage(self, effect: str, payload: object, *, key: str) -> None:
        """Intend an effect: it is committed with this session, or not at all, and executed after that by
        `EffectStore.dispatch`, at least once, with the handler of its name.

        ``key`` names the one intended act; staging the same again does nothing, with another payload it raises
        `IdempotencyMismatchError`. Effects that share a key are executed in the order of their commits."""
        return self._do(handles.stage(self._txn, effect, payload, key))

    def check(self) -> None:
        """`ConflictError` now if anything read has changed, else the snapshot moves forward."""
        return self._do(extension.check(self._txn))

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

    def commit(self) -> Committed[None]:
        """Commit now. The session has ended after that, well or not."""
        handles.refuse_joined(self, "commit")
        return handles.committed(self._txn, self._do(handles.finish(self._txn)))

    def rollback(self) -> None:
        """Leave without writing anything and without an error; a nested session takes back its own part."""
        handles.roll_back(self)

    def __enter__(self) -> Self:
        txn = self._txn
        if self._mark is None and txn.state == READY and not txn.engine.closed:  # `open_context`, without a call
            txn.state = ACTIVE
            txn.context = current.set(txn)
        else:
            handles.open_context(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        txn = self._txn
        if self._mark is not None:
            handles.close_joined(self, error)
            return
        try:
            if error is None and txn.state == ACTIVE:
                if txn.thread is not None or not commit_now(txn):
                    plain = txn.settle is None and txn.records is None  # then this is what `finish` does
                    self._do(commit(txn) if plain else handles.finish(txn))
            else:
                ending = handles.leave(txn, error)
                if ending is not None:
                    self._do(ending)
        finally:
            txn.leave_context()
