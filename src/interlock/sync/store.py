"""The synchronous store: `open`, `Store`, `SharedResource`, `Attempt`.

No event loop and no background thread of ours: the coroutines of the core are stepped on the caller's thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
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

from typing_extensions import TypeForm, deprecated

from interlock.core import diagnosis, handles
from interlock.core import isolation as modes
from interlock.core.diagnosis import Entry, Outcome
from interlock.core.engine import Engine
from interlock.core.isolation import Isolation
from interlock.core.options import DEFAULTS, Options, SessionOptions, choose, lone_key, says_nothing
from interlock.core.retry import RetryPolicy
from interlock.core.retrying import Retrying
from interlock.core.running import Committed, Running
from interlock.core.space import MergeFunction, Resource
from interlock.core.transaction import current
from interlock.errors import UsageError
from interlock.keys import UserKey as Key
from interlock.layers.effects.outbox import open_journal
from interlock.layers.locks import Locks
from interlock.opening import backend_for, for_sync, shown_url
from interlock.ports import Backend, Runtime
from interlock.runtime import BlockingRuntime
from interlock.stepping import AgentSession, AgentView, AsyncFunctionInSyncCode, step, step_all
from interlock.sync.attempts import Attempt, attempts_of
from interlock.sync.effects import EffectStore
from interlock.sync.holdings import Leasing, Lockable
from interlock.sync.log import TransactionLog
from interlock.sync.running import run_in_place
from interlock.sync.sagas import Sagas

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
    """A store for plain synchronous programs. Returns at once; it connects on first use or on ``with``.

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
        """``with resource.session(agent=...) as session:`` is one attempt: commit on exit, roll back on an exception.

        Inside another session of the same store and task it joins that one like a savepoint."""
        chosen = choose(options, retries=False) if options else DEFAULTS
        return handles.new_session(AgentSession, self._engine, self._resource, chosen)

    def begin(self, **options: Unpack[SessionOptions]) -> AgentSession[V]:
        """A session for hooks and protocols without a ``with``: end it with `commit` or `rollback`."""
        chosen = choose(options, retries=False) if options else DEFAULTS
        return handles.begin_session(AgentSession, self._engine, self._resource, chosen)

    @overload
    @deprecated("async function in synchronous code: use interlock, not interlock.sync")
    def run(
        self,
        fn: Callable[[AgentSession[V], *Ts], Coroutine[Any, Any, Any]],
        *args: *Ts,
        **options: Unpack[Options],
    ) -> AsyncFunctionInSyncCode: ...
    @overload
    def run(self, fn: Callable[[AgentSession[V], *Ts], T], *args: *Ts, **options: Unpack[Options]) -> T: ...
    def run(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Run ``fn(session, *args)`` as a transaction, the whole function again after each conflict; returns its
        result.

        Positional arguments are the function's, keywords are ours; give the function keywords with `functools.partial`.
        It may run several times: no side effects in it except through `AgentSession.memo`. Inside another session of
        the same store and task it joins that one; `UsageError` for options that contradict it.

        Raises: what ``fn`` raises, `RetriesExhaustedError`, `DeadlineExceededError`, `InvariantError`,
            `IdempotencyMismatchError`, `CommitUnknownError`."""
        key = lone_key(options) if options else None
        if (options and key is None and not says_nothing(options)) or current.get() is not None:
            chosen = choose(options, retries=True)
            return step(Running(self._engine, self._resource, chosen, AgentSession, fn, args).run())
        return run_in_place(self._engine, self._resource, fn, args, key)

    @overload
    @deprecated("async function in synchronous code: use interlock, not interlock.sync")
    def run_detailed(  # type: ignore[overload-overlap]
        self,
        fn: Callable[[AgentSession[V], *Ts], Coroutine[Any, Any, Any]],
        *args: *Ts,
        **options: Unpack[Options],
    ) -> AsyncFunctionInSyncCode: ...
    @overload
    def run_detailed(
        self, fn: Callable[[AgentSession[V], *Ts], T], *args: *Ts, **options: Unpack[Options]
    ) -> Committed[T]: ...
    def run_detailed(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Like `run`, and says what happened: attempts, replay, transaction id, cursor."""
        chosen = choose(options, retries=True) if options else DEFAULTS
        running = Running(self._engine, self._resource, chosen, AgentSession, fn, args)
        return running.detailed(step(running.run()))

    def transactional(
        self, **options: Unpack[Options]
    ) -> Callable[[Callable[Concatenate[AgentSession[V], P], T]], Callable[P, T]]:
        """Decorator: ``fn(session, *args, **kwargs)`` becomes ``fn(*args, **kwargs)``, run as a transaction at each
        call."""
        chosen = choose(options, retries=True) if options else DEFAULTS

        def decorate(fn: Callable[Concatenate[AgentSession[V], P], T]) -> Callable[P, T]:
            @functools.wraps(fn)
            def call(*args: P.args, **kwargs: P.kwargs) -> T:
                if chosen is DEFAULTS and not kwargs and current.get() is None:
                    plain: T = run_in_place(self._engine, self._resource, fn, args, None)
                    return plain
                running = Running(self._engine, self._resource, chosen, AgentSession, fn, args, kwargs)
                value: T = step(running.run())
                return value

            return call

        return decorate

    def attempts(self, **options: Unpack[Options]) -> Iterator[Attempt[V]]:
        """For bodies in place::

            for attempt in stock.attempts():
                with attempt, attempt.session() as session:
                    ...

        Both managers are needed: the outer one decides whether there is another attempt."""
        chosen = choose(options, retries=True) if options else DEFAULTS
        return attempts_of(Retrying(self._engine, self._resource, chosen))


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
            for_sync(backend),
            BlockingRuntime() if runtime is None else runtime,
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

    def outcome(self, transaction_id: str) -> Outcome:
        """What became of a transaction. NOT_COMMITTED is final: asking about a running one ends it."""
        return step(diagnosis.find_outcome(self._engine, transaction_id))

    @property
    def log(self) -> TransactionLog:
        """The feed of committed transactions."""
        return TransactionLog(self._engine)

    @property
    def effects(self) -> EffectStore:
        """The journal of effects, and the outbox."""
        return EffectStore(self._journal)

    def compact(self, *, progress: Callable[[int], object] | None = None) -> int:
        """Drop everything older than ``history_seconds`` and every expired record now. The store does it by itself in
        small batches as it works; this is for maintenance.

        ``progress`` is called after each batch with the number of things dropped so far; the last is returned."""
        return step(diagnosis.compact_all(self._engine, progress))

    def close(self) -> None:
        """Release everything; may be called again. Later calls raise `UsageError`."""
        step(self._engine.close())

    def __enter__(self) -> Self:
        self._engine.check_open()
        step(self._engine.backend.snapshot())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        diagnosis.refuse_pickle(self._origin)
        return diagnosis.reopen, (open, self._origin)

    if not TYPE_CHECKING:

        async def __aenter__(self) -> None:
            raise UsageError("this store is synchronous: write `with`, or open it with interlock.open")

        async def __aexit__(self, *_: object) -> None:
            pass


Invariant = Callable[[AgentView[V]], bool]


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
    def read(self, key: Key) -> V | None: ...
    @overload
    def read(self, key: Key, default: D) -> V | D: ...
    def read(self, key: Key, default: Any = None) -> Any:
        """The newest committed value, for diagnosis. Inside a session: `UsageError`, use `AgentSession.read`."""
        return step(diagnosis.diagnose(self._engine, self._resource, key, default))

    @overload
    def get(self, key: Key) -> V | None: ...
    @overload
    def get(self, key: Key, default: D) -> V | D: ...
    def get(self, key: Key, default: Any = None) -> Any:
        """The same as `read`."""
        return step(diagnosis.diagnose(self._engine, self._resource, key, default))

    def entry(self, key: Key) -> Entry[V] | None:
        """The newest version of a key with who wrote it and when; None where there is no value."""
        found = list(step_all(diagnosis.versions(self._engine, self._resource, key, 1)))
        return found[0] if found and not found[0].deleted else None

    def history(self, key: Key, *, limit: int | None = None) -> Iterator[Entry[V]]:
        """The kept versions of a key, newest first, at most ``limit``; those that removed it included."""
        return step_all(diagnosis.versions(self._engine, self._resource, key, limit))

    def scan(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        stop: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[Key, V]]:
        """Keys and values as of one moment, in key order, for diagnosis."""
        return step_all(diagnosis.rows(self._engine, self._resource, prefix, start, stop, limit, reverse))

    def require(self, *, isolation: Isolation) -> None:
        """Set the weakest isolation that may touch this resource; published in the store with the next commit to it,
        and then binding for every process. A weaker session gets `IsolationError`."""
        self._resource.space.require(modes.rank(isolation))

    @overload
    def invariant(self, name: str) -> Callable[[Invariant[V]], Invariant[V]]: ...
    @overload
    def invariant(self, name: str, check: Invariant[V]) -> Invariant[V]: ...
    def invariant(self, name: str, check: Any = None) -> Any:
        """Declare a rule, also as a decorator: ``check(view)`` must be true of every commit to this resource.

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
