"""The asynchronous store: `open`, `Store`, `SharedResource`, `Attempt`.

Shells over `interlock.core`: no rule of isolation lives here. `interlock.sync` has the same names for plain
synchronous code; a test keeps the two the same. Only the first attempt of a `run` is made here and not there: a
coroutine around it alone is 7 % of the instructions of a transaction in memory.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from types import CoroutineType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from typing_extensions import TypeForm

from interlock.attempts import Attempt, Attempts
from interlock.core import diagnosis, handles
from interlock.core import isolation as modes
from interlock.core.commit import commit
from interlock.core.diagnosis import Entry, Outcome
from interlock.core.engine import Engine
from interlock.core.foresight import learn
from interlock.core.idempotency import Record, identify, operation_name
from interlock.core.isolation import Isolation
from interlock.core.log import TransactionLog
from interlock.core.options import DEFAULTS, Options, SessionOptions, choose, lone_key, says_nothing
from interlock.core.retry import RetryPolicy
from interlock.core.retrying import Retrying
from interlock.core.running import Committed, Running, after_failure, look_up, other_colour
from interlock.core.session import AgentSession, AgentView
from interlock.core.space import MergeFunction, Resource
from interlock.core.straight import commit_now, look_now
from interlock.core.transaction import current
from interlock.errors import UsageError
from interlock.keys import UserKey as Key
from interlock.layers.effects.outbox import open_journal
from interlock.layers.effects.store import EffectStore
from interlock.layers.leases import Leasing
from interlock.layers.locks import Locks
from interlock.layers.standing import Lockable
from interlock.opening import backend_for, for_async, shown_url
from interlock.ports import Backend, Runtime
from interlock.runtime import AsyncRuntime
from interlock.saga.serving import Sagas

V = TypeVar("V")
W = TypeVar("W")
D = TypeVar("D")
M = TypeVar("M", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


def open(
    url: str,
    *,
    agent: str | None = None,
    isolation: Isolation = "serializable",
    retry: RetryPolicy | None = None,
    idempotency_ttl_seconds: float = 2_592_000,
    history_seconds: float = 86_400,
    **options: Any,
) -> Store:
    """A store for asynchronous programs. Returns at once; it connects on first use or on ``async with``.

    Args:
        url: ``memory://`` (private), ``memory://name`` (shared in the process), ``sqlite:///path.db``,
            ``sqlite:////absolute/path.db``, ``postgresql://...``, ``redis://...``, ``rediss://...``.
        agent: the agent's name where a call does not give one.
        isolation: the mode where a call does not give one.
        retry: the policy where a call does not give one.
        idempotency_ttl_seconds: how long a used idempotency key is remembered.
        history_seconds: how long superseded versions and the feed are kept; older snapshots are refused.
        options: the backend's own; `UsageError` names those that exist.

    Raises: `UsageError` for anything unknown."""
    settings = diagnosis.settings_of(agent, isolation, retry, idempotency_ttl_seconds, history_seconds)
    store = Store(backend_for(url, options), **settings)
    store._origin = (url, {**settings, **options})
    store._engine.shown_url = shown_url(url)
    return store


class Sessions(Generic[V]):
    """What `Store` and `SharedResource` have in common: ways to open a session or run a function in one."""

    _engine: Engine
    _resource: Resource | None

    def session(self, **options: Unpack[SessionOptions]) -> AgentSession[V]:
        """``async with resource.session(agent=...) as session:`` is one attempt: commit on exit, roll back on an
        exception.

        Inside another session of the same store and task it joins that one like a savepoint."""
        chosen = choose(options, retries=False) if options else DEFAULTS
        return handles.new_session(AgentSession, self._engine, self._resource, chosen)

    async def begin(self, **options: Unpack[SessionOptions]) -> AgentSession[V]:
        """A session for hooks and protocols without a ``with``: end it with `commit` or `rollback`."""
        chosen = choose(options, retries=False) if options else DEFAULTS
        return handles.begin_session(AgentSession, self._engine, self._resource, chosen)

    async def run(
        self, fn: Callable[[AgentSession[V], *Ts], Awaitable[T]], *args: *Ts, **options: Unpack[Options]
    ) -> T:
        """Run ``fn(session, *args)`` as a transaction, the whole function again after each conflict; returns its
        result.

        Positional arguments are the function's, keywords are ours; give the function keywords with `functools.partial`.
        It may run several times: no side effects in it except through `AgentSession.memo`. Inside another session of
        the same store and task it joins that one; `UsageError` for options that contradict it.

        Raises: what ``fn`` raises, `RetriesExhaustedError`, `DeadlineExceededError`, `InvariantError`,
            `IdempotencyMismatchError`, `CommitUnknownError`."""
        engine, home = self._engine, self._resource
        key = lone_key(options) if options else None
        if (options and key is None and not says_nothing(options)) or current.get() is not None:
            result: T = await Running(engine, home, choose(options, retries=True), AgentSession, fn, args).run()
            return result
        if key is None:
            operation, record, fingerprint = operation_name(fn), None, b""
        else:
            operation, record, fingerprint = identify(engine.agent, home, fn, args, key)
            engine.keys_in_use.enter(record, fingerprint, key)
        try:
            txn = engine.start(home, DEFAULTS, None)
            begun = engine.monotonic()
            value: Any = None
            try:  # the first attempt, see `interlock.core.running`
                txn.context = current.set(txn)
                txn.operation = operation
                if record is not None and not look_now(txn, record):
                    await look_up(txn, home, operation, args, record, fingerprint, key or "")
                value = fn(AgentSession(txn, home), *args)
                if type(value) is CoroutineType and engine.suspends:
                    value = await value
                else:
                    value = await other_colour(fn, value, engine.suspends)
                if record is not None:
                    made = Record(key or "", fingerprint, value, engine.idempotency_ttl_seconds, home)
                    txn.records = {record: made}
                if not commit_now(txn):
                    await commit(txn)
                if record is not None and engine.direct is None:
                    learn(home, operation, args, txn)
                return value  # type: ignore[no-any-return]
            except BaseException as error:
                failure = error
            finally:
                txn.leave_context()
            running = after_failure(engine, home, AgentSession, fn, args, key, operation, record, fingerprint)
            return await running.go_on(txn, begun, failure, value)  # type: ignore[no-any-return]
        finally:
            if record is not None:
                engine.keys_in_use.leave(record)

    async def run_detailed(
        self, fn: Callable[[AgentSession[V], *Ts], Awaitable[T]], *args: *Ts, **options: Unpack[Options]
    ) -> Committed[T]:
        """Like `run`, and says what happened: attempts, replay, transaction id, cursor."""
        chosen = choose(options, retries=True) if options else DEFAULTS
        running = Running(self._engine, self._resource, chosen, AgentSession, fn, args)
        return running.detailed(await running.run())

    def transactional(
        self, **options: Unpack[Options]
    ) -> Callable[[Callable[Concatenate[AgentSession[V], P], Awaitable[T]]], Callable[P, Awaitable[T]]]:
        """Decorator: ``fn(session, *args, **kwargs)`` becomes ``fn(*args, **kwargs)``, run as a transaction at each
        call."""
        chosen = choose(options, retries=True) if options else DEFAULTS

        def decorate(fn: Callable[Concatenate[AgentSession[V], P], Awaitable[T]]) -> Callable[P, Awaitable[T]]:
            @functools.wraps(fn)
            async def call(*args: P.args, **kwargs: P.kwargs) -> T:
                if chosen is DEFAULTS and not kwargs:
                    run: Callable[..., Awaitable[T]] = self.run
                    return await run(fn, *args)
                running = Running(self._engine, self._resource, chosen, AgentSession, fn, args, kwargs)
                value: T = await running.run()
                return value

            return call

        return decorate

    def attempts(self, **options: Unpack[Options]) -> AsyncIterator[Attempt[V]]:
        """For bodies in place::

            async for attempt in stock.attempts():
                async with attempt, attempt.session() as session:
                    ...

        Both managers are needed: the outer one decides whether there is another attempt."""
        chosen = choose(options, retries=True) if options else DEFAULTS
        return Attempts(Retrying(self._engine, self._resource, chosen))


class Store(Leasing, Sagas, Sessions[Never]):
    """What a program opens: one backend, and the sessions on it. May be shared by threads and event loops.

    A session of the store itself is bound to no resource: it reads and writes through ``session.on(resource)``."""

    def __init__(
        self,
        backend: Backend,
        *,
        agent: str | None = None,
        isolation: Isolation = "serializable",
        retry: RetryPolicy | None = None,
        idempotency_ttl_seconds: float = 2_592_000,
        history_seconds: float = 86_400,
        runtime: Runtime | None = None,
    ) -> None:
        self._engine = Engine(
            for_async(backend),
            AsyncRuntime() if runtime is None else runtime,
            AgentView,
            agent=agent,
            isolation=isolation,
            retry=RetryPolicy() if retry is None else retry,
            idempotency_ttl_seconds=idempotency_ttl_seconds,
            history_seconds=history_seconds,
        )
        self._engine.locking = Locks(self._engine)
        self._resource = None
        self._journal = open_journal(self._engine)
        self._origin: tuple[str, dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._engine.shown_url or repr(self._engine.backend)}>"

    @overload
    def resource(self, name: str) -> SharedResource[Any]: ...
    @overload
    def resource(self, name: str, type: TypeForm[W]) -> SharedResource[W]: ...
    def resource(self, name: str, type: Any = None) -> SharedResource[Any]:
        """A named keyspace, optionally with the type of its values. Raises `UsageError` for a type that cannot be
        stored."""
        return SharedResource(self._engine, self._engine.resource(name, type))

    async def outcome(self, transaction_id: str) -> Outcome:
        """What became of a transaction. NOT_COMMITTED is final: asking about a running one ends it."""
        return await diagnosis.find_outcome(self._engine, transaction_id)

    @property
    def log(self) -> TransactionLog:
        """The feed of committed transactions."""
        return TransactionLog(self._engine)

    @property
    def effects(self) -> EffectStore:
        """The journal of effects, and the outbox."""
        return EffectStore(self._journal)

    async def compact(self, *, progress: Callable[[int], object] | None = None) -> int:
        """Drop everything older than ``history_seconds`` and every expired record now. The store does it by itself in
        small batches as it works; this is for maintenance.

        ``progress`` is called after each batch with the number of things dropped so far; the last is returned."""
        return await diagnosis.compact_all(self._engine, progress)

    async def close(self) -> None:
        """Release everything; may be called again. Later calls raise `UsageError`."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        self._engine.check_open()
        await self._engine.backend.snapshot()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        diagnosis.refuse_pickle(self._origin)
        return diagnosis.reopen, (open, self._origin)

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            raise UsageError("this store is asynchronous: write `async with`, or open it with interlock.sync")

        def __exit__(self, *_: object) -> None:
            pass


Invariant = Callable[[AgentView[V]], Awaitable[bool]]


class SharedResource(Lockable, Sessions[V]):
    """A named keyspace of a store. Its own reads are for diagnosis: never validated, refused inside a session."""

    _resource: Resource

    def __init__(self, engine: Engine, resource: Resource) -> None:
        self._engine = engine
        self._resource = resource

    @property
    def name(self) -> str:
        """The resource's name."""
        return self._resource.space.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @overload
    async def read(self, key: Key) -> V | None: ...
    @overload
    async def read(self, key: Key, default: D) -> V | D: ...
    async def read(self, key: Key, default: Any = None) -> Any:
        """The newest committed value, for diagnosis. Inside a session: `UsageError`, use `AgentSession.read`."""
        return await diagnosis.diagnose(self._engine, self._resource, key, default)

    @overload
    async def get(self, key: Key) -> V | None: ...
    @overload
    async def get(self, key: Key, default: D) -> V | D: ...
    async def get(self, key: Key, default: Any = None) -> Any:
        """The same as `read`."""
        return await diagnosis.diagnose(self._engine, self._resource, key, default)

    async def entry(self, key: Key) -> Entry[V] | None:
        """The newest version of a key with who wrote it and when; None where there is no value."""
        found = [entry async for entry in diagnosis.versions(self._engine, self._resource, key, 1)]
        return found[0] if found and not found[0].deleted else None

    def history(self, key: Key, *, limit: int | None = None) -> AsyncIterator[Entry[V]]:
        """The kept versions of a key, newest first, at most ``limit``; those that removed it included."""
        return diagnosis.versions(self._engine, self._resource, key, limit)

    def scan(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        stop: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[Key, V]]:
        """Keys and values as of one moment, in key order, for diagnosis."""
        return diagnosis.rows(self._engine, self._resource, prefix, start, stop, limit, reverse)

    def require(self, *, isolation: Isolation) -> None:
        """Set the weakest isolation that may touch this resource; published in the store with the next commit to it,
        and then binding for every process. A weaker session gets `IsolationError`."""
        self._resource.space.require(modes.rank(isolation))

    @overload
    def invariant(self, name: str) -> Callable[[Invariant[V]], Invariant[V]]: ...
    @overload
    def invariant(self, name: str, check: Invariant[V]) -> Invariant[V]: ...
    def invariant(self, name: str, check: Any = None) -> Any:
        """Declare a rule, also as a decorator: ``await check(view)`` must be true of every commit to this resource.

        It is evaluated at the commit over the session's own view, and what it reads is validated in every mode; a
        breach is `InvariantError`. Its name is published in the store: a process that has not declared it may not
        write."""
        return diagnosis.declare(self._resource.space.declare_invariant, name, check, self._resource)

    @overload
    def register_merge(self, name: str) -> Callable[[M], M]: ...
    @overload
    def register_merge(self, name: str, function: M) -> M: ...
    def register_merge(self, name: str, function: MergeFunction | None = None) -> Any:
        """Register ``function(value or None, operand) -> value`` for `AgentSession.merge`, also as a decorator."""
        return diagnosis.register_merge(self._resource, name, function)
