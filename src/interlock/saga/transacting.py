"""`saga.transact`: a transaction as a step, undone by the inverse that it leaves behind.

In a durable saga over the same store the step's record, its result and the inverse are written *in the transaction's
own commit*, under the saga's lease: the transaction and the knowledge of how to undo it exist together or not at all,
and the step costs no commit of its own. Over another store the record says begun before and done behind it; if the
coordinator dies in between, the step is UNKNOWN. An interrupted transaction is settled by asking its store for the
outcome.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

from interlock import codec
from interlock.core.carrying import Guard, carry
from interlock.core.diagnosis import Outcome, find_outcome
from interlock.core.engine import Engine
from interlock.core.options import choose
from interlock.core.refusals import transaction_text
from interlock.core.running import Running
from interlock.core.transaction import Transaction
from interlock.errors import UsageError
from interlock.layers.effects.answers import CANNOT_TELL, NOT_HAPPENED, Answer, Happened
from interlock.model import Clash
from interlock.saga.errors import SagaClosedError
from interlock.saga.frames import Frame
from interlock.saga.inverses import Piece, apply, capture
from interlock.saga.matching import name_of
from interlock.saga.recorded import no_hint, place_of
from interlock.saga.records import StepRecord, declare
from interlock.saga.registry import path_of
from interlock.saga.storing import store_value
from interlock.stepping import step


class Transacting:
    """One `transact`: the forward transaction, what it replaced, and its undo."""

    def __init__(
        self,
        frame: Frame,
        engine: Engine,
        handle: Callable[[Transaction, Any], Any],
        home: Any,
        fn: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        force: Callable[[Any], bool | None] | None,
    ) -> None:
        if not callable(fn):
            raise UsageError(f"transact takes a function and its arguments, not {type(fn).__name__}")
        if frame.world.runtime.suspends is not engine.runtime.suspends:
            raise UsageError("saga and store are of two colours: take both from interlock, or from interlock.sync")
        self.frame = frame
        self.engine = engine
        self.fn = fn
        self.arguments = arguments
        self.force = force
        self.pieces: list[Piece] = []
        self.transaction = 0
        self.value: Any = None
        self.lost_track = False
        if frame.course.recorder is not None:
            options.setdefault("agent", frame.course.recorder.journal.agent)
        chosen = choose({**options, "detached": True}, retries=True)
        self.agent = chosen.agent or engine.agent or ""
        self._running = Running(engine, home, chosen, handle, self._body(), arguments)
        self.record = self._declare()

    def _declare(self) -> StepRecord:
        suspends = self.engine.runtime.suspends
        forward = self.forward if suspends else lambda: step(self.forward())
        back = self.back if suspends else lambda: step(self.back())
        verify = self.verify if suspends else lambda key: step(self.verify(key))
        record = declare(forward, (), {}, None, undo=back, verify=verify)
        record.name = name_of(self.fn)
        record.transacting = self
        return record

    def _body(self) -> Callable[..., Any]:
        fn = self.fn
        if self.engine.runtime.suspends:

            @functools.wraps(fn)
            async def body(session: Any, *args: Any) -> Any:
                value = fn(session, *args)
                if not hasattr(type(value), "__await__"):
                    raise UsageError(f"{name_of(fn)} is not an async function")
                value = await value
                await self._prepare(session._txn, value)
                return value

            return body

        @functools.wraps(fn)
        def plain(session: Any, *args: Any) -> Any:
            value = fn(session, *args)
            if hasattr(type(value), "__await__"):
                raise UsageError(f"{name_of(fn)} is an async function; use `async with`")
            step(self._prepare(session._txn, value))
            return value

        return plain

    async def _prepare(self, txn: Transaction, value: Any) -> None:
        """Before the commit: note the inverse, and let the commit carry the step's record."""
        self.value = value
        self.transaction = txn.id
        self.pieces = await capture(txn)
        recorder = self.frame.course.recorder
        if recorder is not None and self.carries:
            writes, expected = recorder.journal.carried(place_of(self.record), self._facts())
            guards = {key: Guard(each, refused=_taken_over) for key, each in expected.items()}
            carry(txn, guards=guards, writes=writes)

    @property
    def carries(self) -> bool:
        """Whether the saga's journal is in the store of this transaction."""
        recorder = self.frame.course.recorder
        return recorder is not None and recorder.journal.engine is self.engine

    def _facts(self) -> dict[str, Any]:
        """The step's record once the transaction has committed."""
        return {
            **self.begun(),
            "status": "done",
            "result": store_value(self.value, no_hint, f"the result of {name_of(self.fn)}"),
            "inverse": self.pieces,
            "transaction": transaction_text(self.transaction),
            "here": self.carries,
            "agent": self.agent,
        }

    def begun(self) -> dict[str, Any]:
        """What identifies the step when the saga is run again."""
        raw = codec.canonical(list(self.arguments))
        return {
            "fn": path_of(self.fn),
            "label": self.record.label(),
            "print": hashlib.blake2b(raw, digest_size=16).digest(),
            "key": self.frame.step_key(self.record),
            "kind": "transact",
            "order": self.record.position,
        }

    async def forward(self) -> Any:
        """Run it until it commits."""
        value = await self._running.run()
        if self._running.replay is not None:
            self.pieces, self.transaction = [["replayed"]], 0
        recorder = self.frame.course.recorder
        if recorder is not None:
            if self.carries and self._running.replay is None:
                txn = self._running.last_transaction
                version = None if txn is None or txn.reply is None else txn.reply.version
                recorder.journal.carried_done(place_of(self.record), self._facts(), version)
            else:
                await recorder.journal.write_step(place_of(self.record), self._facts())
        return value

    async def back(self) -> None:
        """Take it back. Raises `ConflictError` where somebody else has changed a value since."""
        if self.pieces == [["replayed"]]:
            raise UsageError(
                f"{name_of(self.fn)} was a replay of an earlier commit under its idempotency key; what that one "
                "replaced is not known here"
            )
        if self.pieces:
            await apply(self.engine, self.agent, self.pieces, self.transaction, self.force)

    async def verify(self, key: str) -> Answer[Any]:
        """Whether an interrupted transaction has committed. Its store settles it for ever."""
        if self.lost_track:
            return CANNOT_TELL
        if not self.transaction:
            return NOT_HAPPENED
        outcome = await find_outcome(self.engine, transaction_text(self.transaction))
        if outcome is Outcome.COMMITTED:
            return Happened(self.value)
        return NOT_HAPPENED if outcome is Outcome.NOT_COMMITTED else CANNOT_TELL


def _taken_over(guard: Guard, clash: Clash) -> BaseException:
    return SagaClosedError("the saga was taken over by another process; the transaction was not committed")


def inverse_from(engine: Engine, stored: dict[str, Any]) -> Callable[[], Coroutine[Any, Any, None] | None]:
    """The undo of a recorded transaction, for whoever recovers it."""

    async def back() -> None:
        if not stored.get("here"):
            raise UsageError("this transaction was committed to another store than the saga's journal: undo it there")
        await apply(engine, stored["agent"] or "recovery", stored["inverse"], int(stored["transaction"], 16))

    return back if engine.runtime.suspends else lambda: step(back())
