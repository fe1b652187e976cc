"""`Store.saga`: a saga whose journal lies in the store, so that another process can end what this one began.

Entering looks at the journal, and where a run has not ended takes it over (`interlock.saga.presence`):

- nothing there, or the last run was undone: a new run begins;
- committed: the body is replayed, every step returns what it returned, nothing is called;
- the last run broke off: with ``on_crash="resume"`` it is replayed up to where it stopped and goes on there; with
  ``"rollback"`` it is undone first, and a new run begins, under other idempotency keys;
- decided: what is left of the deferred acts is run first, then it is replayed as committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from interlock.core.engine import Engine
from interlock.errors import UsageError
from interlock.keys import check_name
from interlock.saga import blocking, scope
from interlock.saga import journal as records
from interlock.saga.blocking import SagaScope
from interlock.saga.errors import SagaClosedError
from interlock.saga.frames import Course, Frame, Invariant, open_frame
from interlock.saga.journal import Journal
from interlock.saga.receipts import engines_of
from interlock.saga.recording import Recorder
from interlock.saga.records import FailedUndo
from interlock.saga.recovery import end_run
from interlock.saga.scope import AsyncSagaScope
from interlock.saga.worlds import AWAITING, Blocking, World
from interlock.stepping import step

S = TypeVar("S")

ON_CRASH: Final = ("rollback", "resume")


class DurableSaga(Generic[S]):
    """What `Store.saga` returns; entered by ``async with`` (by ``with`` in `interlock.sync`)."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        saga_id: str,
        agent: str | None,
        state: Any,
        invariants: Sequence[Invariant],
        on_compensation_error: Callable[[FailedUndo], object] | None,
        on_crash: str,
        lease_seconds: float,
        shield_seconds: float,
        stores: Collection[Any] = (),
    ) -> None:
        check_name("a saga's name", name)
        check_name("a saga's id", saga_id)
        if on_crash not in ON_CRASH:
            raise UsageError(f"on_crash is one of {', '.join(ON_CRASH)}, not {on_crash!r}")
        chosen = agent or engine.agent
        if chosen is None:
            raise UsageError("no agent: pass agent=, or open the store with one")
        self._engine = engine
        self._state = state
        self._invariants = tuple(invariants)
        self._hook = on_compensation_error
        self._on_crash = on_crash
        self._shield_seconds = float(shield_seconds)
        self._stores = stores
        self._journal = Journal(engine, name, saga_id, check_name("agent", chosen), lease_seconds)
        self._unused = [True]
        self._frame: Frame | None = None

    async def _open(self, world: World) -> Frame:
        try:
            self._unused.pop()
        except IndexError:
            raise UsageError("a saga is entered once; ask the store for it again") from None
        if open_frame() is not None:
            raise UsageError("a durable saga cannot be nested in another saga: its end would depend on the other's")
        known = await self._journal.enter()
        try:
            recorder = await self._look(world, known)
            course = Course(self._shield_seconds, self._journal.saga_id, recorder)
            prepare_keys(course, self._journal)
            self._frame = Frame(world, course, None, self._state, self._invariants, self._hook)
            self._frame.enter_context()
        except BaseException:
            await self._journal.leave()
            raise
        return self._frame

    async def _look(self, world: World, known: bool) -> Recorder:
        """What the journal says, settled: see the module."""
        journal = self._journal
        facts = {"on_crash": self._on_crash}
        status = journal.head["status"] if known else records.UNDONE
        if status == records.UNDONE:
            journal.open_run(facts)
            return Recorder(journal)
        if status != records.COMMITTED:
            await journal.claim()
        await journal.load()
        if status == records.RUNNING and self._on_crash == "resume":
            return Recorder(journal)
        if status not in records.ENDED:
            engines = await engines_of(self._stores, self._engine.runtime.suspends, journal.agent)
            frame = await end_run(journal, world, self._hook, self._shield_seconds, stores=engines)
            status = journal.head["status"]
            if status not in records.ENDED:
                left = "; ".join(str(failed.error) for failed in frame.failures) or "nobody knows what became of a step"
                raise SagaClosedError(
                    f"an earlier run of saga {journal.title} could not be ended: {left}. See store.dead_letters"
                )
        if status == records.COMMITTED:
            return Recorder(journal, settled=True)
        journal.open_run(facts)
        return Recorder(journal)

    async def __aenter__(self) -> AsyncSagaScope[S]:
        if not self._engine.runtime.suspends:
            raise UsageError("this store is synchronous: write `with`, or open it with interlock")
        return AsyncSagaScope(await self._open(AWAITING))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._frame is not None
        try:
            await scope.leave(self._frame, error)
        finally:
            if not self._journal.leave_at_once():
                await self._frame.world.shielded(self._journal.leave())

    def __enter__(self) -> SagaScope[S]:
        if self._engine.runtime.suspends:
            raise UsageError("this store is asynchronous: write `async with`, or open it with interlock.sync")
        return SagaScope(step(self._open(Blocking())))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._frame is not None
        try:
            blocking.leave(self._frame, error)
        finally:
            if not self._journal.leave_at_once():
                step(self._frame.world.shielded(self._journal.leave()))


def prepare_keys(course: Course, journal: Journal) -> None:
    """Idempotency keys of a run: another run of the same id must not meet the keys that were undone."""
    course.key_prefix = journal.title
    course.key_suffix = journal.key_suffix
