"""Durable sagas of the asynchronous `Store`: `saga`, `recover`, `dead_letters`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from interlock.core.engine import Engine
from interlock.saga import letters, recovery
from interlock.saga.durable import DurableSaga
from interlock.saga.records import FailedUndo
from interlock.saga.recovery import RecoveryReport
from interlock.saga.scope import AsyncSagaScope
from interlock.saga.worlds import AWAITING

if TYPE_CHECKING:
    from interlock.store import Store

S = TypeVar("S")


class DeadLetters:
    """`Store.dead_letters`: what durable sagas have left standing, for a person or a later try."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self) -> AsyncIterator[FailedUndo]:
        """All letters; ``dead_letter`` of each is the id that the other calls take."""
        return letters.list_letters(self._engine)

    async def retry(
        self,
        id: str,
        *,
        modules: Collection[str] = (),
        undo: Mapping[str, Callable[..., object]] | None = None,
        stores: Collection[Store] = (),
    ) -> bool:
        """Try again: run the undo, or ask the step's ``verify``; whether it is settled now.

        ``stores``: as for `recover`.

        Raises: `NotFoundError`, `LeaseUnavailableError` while the saga's coordinator works."""
        return await letters.retry(self._engine, AWAITING, id, modules, undo, stores=stores)

    async def skip(self, id: str, *, reason: str) -> None:
        """Leave the step as it is, for ever. The saga ends with its last letter."""
        await letters.skip(self._engine, AWAITING, id, reason)

    async def done(self, id: str, result: object = None) -> None:
        """It has been done by hand: the undo, or the deferred act with this result."""
        await letters.mark_done(self._engine, AWAITING, id, result)


class Sagas:
    """`Store.saga`, `Store.recover` and `Store.dead_letters`."""

    _engine: Engine

    @overload
    def saga(
        self,
        name: str,
        *,
        id: str,
        agent: str | None = None,
        state: None = None,
        invariants: Sequence[Callable[[Any], object]] = (),
        on_compensation_error: Callable[[FailedUndo], object] | None = None,
        on_crash: Literal["rollback", "resume"] = "rollback",
        lease_seconds: float = 30,
        shield_seconds: float = 60,
        stores: Collection[Store] = (),
    ) -> AbstractAsyncContextManager[AsyncSagaScope[None], None]: ...
    @overload
    def saga(
        self,
        name: str,
        *,
        id: str,
        agent: str | None = None,
        state: S,
        invariants: Sequence[Callable[[S], object]] = (),
        on_compensation_error: Callable[[FailedUndo], object] | None = None,
        on_crash: Literal["rollback", "resume"] = "rollback",
        lease_seconds: float = 30,
        shield_seconds: float = 60,
        stores: Collection[Store] = (),
    ) -> AbstractAsyncContextManager[AsyncSagaScope[S], None]: ...
    def saga(
        self,
        name: str,
        *,
        id: str,
        agent: str | None = None,
        state: Any = None,
        invariants: Sequence[Callable[[Any], object]] = (),
        on_compensation_error: Callable[[FailedUndo], object] | None = None,
        on_crash: Literal["rollback", "resume"] = "rollback",
        lease_seconds: float = 30,
        shield_seconds: float = 60,
        stores: Collection[Store] = (),
    ) -> AbstractAsyncContextManager[AsyncSagaScope[Any], None]:
        """``async with store.saga("order", id=order_id) as saga:`` is a saga whose journal is in the store.

        A saga that committed is replayed when its id is entered again: each step returns what it returned. One that
        broke off is undone, by the next who enters it or by `recover`, and then begins anew under other idempotency
        keys; with ``on_crash="resume"`` it goes on where it stopped. Functions must be found again by name, arguments
        and results kept exactly.

        Args:
            name, id: the saga is known by both.
            agent: who runs it; default: the store's.
            state, invariants, on_compensation_error, shield_seconds: as for `Saga`. The state is not kept.
            on_crash: what becomes of a run that broke off.
            lease_seconds: how long after the last sign of life of its coordinator it counts as dead.
            stores: other stores to which it commits by ``transact``, for undoing an earlier run that broke off.

        Raises: on entering `LeaseUnavailableError` while another coordinator runs it, `SagaClosedError` if an earlier
            run could not be ended; in the body `JournalMismatchError` if a replay does other things than before, and
            `SagaClosedError` before a step is called if another coordinator has begun it or taken it over meanwhile."""
        saga: DurableSaga[Any] = DurableSaga(
            self._engine, name, id, agent, state, invariants, on_compensation_error, on_crash, lease_seconds,
            shield_seconds, stores,
        )  # fmt: skip
        return saga

    async def recover(
        self,
        *,
        name: str | None = None,
        modules: Collection[str] = (),
        older_than_seconds: float = 60,
        undo: Mapping[str, Callable[..., object]] | None = None,
        stores: Collection[Store] = (),
        limit: int | None = None,
        agent: str | None = None,
        lease_seconds: float = 30,
    ) -> RecoveryReport:
        """End every saga whose coordinator is gone: undo it, or finish it if it had been decided.

        Undos are found by name among the functions that this process has decorated with `compensable` or used as
        undos, never by importing what the journal names.

        Args:
            name: only sagas of this name; default: all.
            modules: only functions that were defined in these modules; empty: any of them.
            older_than_seconds: sagas that began later are left alone.
            undo: functions by name (``"module:function"``), for undos that are not known otherwise.
            stores: other open stores to which these sagas have committed by ``transact``; which is which is told by
                what lies in them. Those that are not given are in ``missing_stores``.
            limit: how many sagas at most.
            agent: on whose behalf; default: the store's agent.
            lease_seconds: how long after the last sign of life of this recovery another one may take over.

        Returns: what was done. A living coordinator's saga is in ``live``."""
        return await recovery.recover(
            self._engine, AWAITING, agent=agent, name=name, modules=modules,
            older_than_seconds=older_than_seconds, undo=undo, stores=stores, limit=limit, lease_seconds=lease_seconds,
        )  # fmt: skip

    @property
    def dead_letters(self) -> DeadLetters:
        """What durable sagas have left standing."""
        return DeadLetters(self._engine)
