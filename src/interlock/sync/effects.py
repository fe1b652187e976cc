"""The journal of effects and the executor for synchronous code: `interlock.layers.effects.store`, stepped."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

from typing_extensions import deprecated

from interlock.core.retry import RetryPolicy
from interlock.layers.effects import reconciling
from interlock.layers.effects.answers import Answer
from interlock.layers.effects.dispatching import HANDLER_RETRY, Dispatch, Dispatched, Handler
from interlock.layers.effects.executing import Executed, Execution
from interlock.layers.effects.journal import CLAIM_SECONDS, Journal
from interlock.layers.effects.reconciling import Reconciled
from interlock.layers.effects.records import Effect, EffectStatus, check_key
from interlock.layers.effects.store import WAIT_SECONDS, check_seconds, declare_handler, journal_of
from interlock.stepping import AsyncFunctionInSyncCode, step

T = TypeVar("T")

Probe = Callable[[str], Answer[Any]]


class HasEffects(Protocol):
    """A store."""

    @property
    def effects(self) -> EffectStore:
        """Its journal."""
        ...


class EffectStore:
    """The journal of effects of a store: what was intended, what became of it, and the outbox."""

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def effects(self) -> EffectStore:
        """This journal, so that it may be given where a store may."""
        return self

    def get(self, key: str, *, effect: str | None = None) -> Effect | None:
        """An effect; None if its key is not known, or no longer.

        ``effect`` is the name that it was staged under, "" for one of `IdempotentExecutor`; needed only where several
        have the same key. Raises `UsageError` then."""
        return step(reconciling.get(self._journal, key, effect))

    def list(self, status: EffectStatus | None = None) -> builtins.list[Effect]:
        """All effects that the journal keeps, in the order of their keys, or those of one status.

        An effect whose claim has ended without a word counts as UNKNOWN."""
        return step(reconciling.list_effects(self._journal, status))

    def handler(
        self, effect: str, act: Callable[..., Any], *, verify: Probe | None = None, retry: RetryPolicy = HANDLER_RETRY
    ) -> None:
        """Say what `dispatch` does with the effects that are staged under a name, in this process.

        Args:
            effect: the name.
            act: ``act(payload)``; a parameter ``idempotency_key`` is filled in with the effect's key.
            verify: ``verify(key)`` answers ``Happened(result)``, NOT_HAPPENED or CANNOT_TELL. With it, an effect whose
                end is unknown is not executed again before it has said NOT_HAPPENED.
            retry: how often a handler that raises is called before its effect is parked as FAILED, and the pauses in
                between.

        Raises: `UsageError` for a function that cannot be called like that."""
        declare_handler(self._journal, effect, act, verify, retry)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of this store object, by the name of their effect."""
        return MappingProxyType(self._journal.handlers)

    def dispatch(self, *, limit: int | None = None) -> Dispatched:
        """Execute what has been staged and is due, at most ``limit`` effects; returns when nothing more is due.

        At least once each, in the order of their commits where they share a key. May be called by any number of tasks,
        threads and processes at once. A handler that raises is logged and reported, not raised."""
        return step(Dispatch(self._journal, limit).run())

    def reconcile(
        self, key: str | None = None, *, effect: str | None = None, verify: Probe | None = None
    ) -> Reconciled:
        """Ask what became of an effect (of all, without a key) whose end nobody has recorded. Executes nothing.

        Happened: SUCCEEDED. NOT_HAPPENED: PENDING, so that it may be executed again. ``verify`` is asked, or without
        it the one of the effect's handler; without any, a claim that has ended is recorded as UNKNOWN. Raises
        `NotFoundError` for a key that is not known."""
        return step(reconciling.reconcile(self._journal, key, effect, verify))

    def resolve(self, key: str, status: EffectStatus, result: Any = None, *, effect: str | None = None) -> Effect:
        """Say what became of an effect: SUCCEEDED with this result, FAILED, or PENDING (it has not happened, and may be
        executed again).

        Raises: `NotFoundError`; `UsageError` while it is being executed, or if it has succeeded; `ValueRefusedError`
            for a result that cannot be stored."""
        return step(reconciling.resolve(self._journal, key, status, result, effect))


class IdempotentExecutor:
    """Executes acts on the outside world at most once for each key, whoever calls, in whatever process.

    Args:
        store: a store, or ``store.effects``.
        claim_seconds: how long the claim of an execution lasts if its process dies; while the act runs it is renewed.
        wait_seconds: how long to wait for the result of an execution elsewhere.
        durable_results: make the result durable before `execute` returns, at the price of a second sync of the disk. By
            default it is written at once and made durable with the store's next durable commit: after a power cut in
            between the effect is UNKNOWN. It is never executed twice either way.
    """

    __slots__ = ("_claim_seconds", "_durable", "_journal", "_wait_seconds")

    def __init__(
        self,
        store: HasEffects,
        *,
        claim_seconds: float = CLAIM_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        durable_results: bool = False,
    ) -> None:
        self._journal = journal_of(store, EffectStore)
        self._claim_seconds = check_seconds("claim_seconds", claim_seconds)
        self._wait_seconds = check_seconds("wait_seconds", wait_seconds)
        self._durable = durable_results

    @overload
    @deprecated("async function in synchronous code: use interlock, not interlock.sync")
    def execute(
        self,
        key: str,
        act: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        payload: object = None,
        verify: Probe | None = None,
    ) -> AsyncFunctionInSyncCode: ...
    @overload
    def execute(
        self, key: str, act: Callable[..., T], *args: Any, payload: object = None, verify: Probe | None = None
    ) -> T: ...
    def execute(
        self, key: str, act: Callable[..., Any], *args: Any, payload: object = None, verify: Probe | None = None
    ) -> Any:
        """Execute ``act(*args)``, unless that was done before under this key; returns what it returned then or now.

        Args:
            key: names the one intended act.
            act: a function; a parameter ``idempotency_key`` is filled in with the key.
            args: its arguments; its own keywords go through `functools.partial`.
            payload: what the key is bound to; default: the act's name and arguments. The same key with something else
                is refused.
            verify: ``verify(key)`` answers ``Happened(result)``, NOT_HAPPENED or CANNOT_TELL, when an earlier execution
                has failed or was interrupted.

        Raises: what the act raises; `EffectUnknownError` if it may or may not have been done; `EffectInProgressError`
            if it is executed elsewhere for longer than ``wait_seconds``; `EffectFailedError` if the execution that was
            waited for failed; `IdempotencyMismatchError`; `ValueRefusedError` if it was done but its result cannot be
            stored; `UsageError` if the act cannot be called like this."""
        return step(self._execution(key, act, args, payload, verify).run())

    @overload
    @deprecated("async function in synchronous code: use interlock, not interlock.sync")
    def execute_detailed(
        self,
        key: str,
        act: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        payload: object = None,
        verify: Probe | None = None,
    ) -> AsyncFunctionInSyncCode: ...
    @overload
    def execute_detailed(
        self, key: str, act: Callable[..., T], *args: Any, payload: object = None, verify: Probe | None = None
    ) -> Executed[T]: ...
    def execute_detailed(
        self, key: str, act: Callable[..., Any], *args: Any, payload: object = None, verify: Probe | None = None
    ) -> Any:
        """Like `execute`, and says whether the result is that of an earlier execution."""
        execution = self._execution(key, act, args, payload, verify)
        value = step(execution.run())
        return Executed(value, key, execution.replayed)

    def _execution(
        self, key: str, act: Callable[..., Any], args: tuple[Any, ...], payload: object, verify: Probe | None
    ) -> Execution:
        return Execution(
            self._journal, check_key(key), act, args, payload, verify, self._claim_seconds, self._wait_seconds,
            durable=self._durable,
        )  # fmt: skip
