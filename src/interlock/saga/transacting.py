"""`saga.transact`: a transaction as a step, undone by the inverse that it leaves behind.

In a durable saga over the same store the step's record, its result and the inverse are written *in the transaction's
own commit*, under the saga's lease: the transaction and the knowledge of how to undo it exist together or not at all,
and the step costs no commit of its own. The undo's commit carries the step's record too, which then says *undone*: so
an undo that died before it could say so is not applied again, which would matter to an ``add``.

Over another store the record says begun before and done behind it, and the transaction leaves a receipt in its own
store (`interlock.saga.receipts`), which answers the same questions for whoever recovers the saga and has that store at
hand. An interrupted transaction of a living saga is settled by asking its store for the outcome.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

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
from interlock.layers.effects.calls import close_unused
from interlock.model import Clash, Expectation, Key
from interlock.saga.errors import SagaClosedError
from interlock.saga.frames import Frame
from interlock.saga.inverses import RECORD, VALUE, Piece, PutBack, apply, capture, restored
from interlock.saga.journal import Journal
from interlock.saga.matching import Plan, name_of
from interlock.saga.pages import Place
from interlock.saga.receipts import Receipt, identity_of
from interlock.saga.recorded import load_result, no_hint, place_of
from interlock.saga.records import StepRecord, declare
from interlock.saga.registry import path_of
from interlock.saga.storing import store_value
from interlock.stepping import step

if TYPE_CHECKING:
    from interlock.saga.recording import Recorder

REPLAYED: Final[list[Piece]] = [["replayed"]]
"""The inverse of what was no commit, but the replay of an earlier one."""


class Forward(Running, eq=False):
    """The forward transaction; an idempotency key is bound to the program's function, not to ours around it."""

    original: Any = None

    def identify(self, key: str, parent: Transaction | None) -> Key:
        """See `Running.identify`."""
        ours, self.fn = self.fn, self.original
        try:
            return super().identify(key, parent)
        finally:
            self.fn = ours


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
        self.receipt: Receipt | None = None
        self.home_identity = ""
        self.earlier: dict[str, Any] | None = None
        if frame.course.recorder is not None:
            options.setdefault("agent", frame.course.recorder.journal.agent)
            options.setdefault("run_id", frame.course.recorder.journal.title)
        chosen = choose({**options, "detached": True}, retries=True)
        self.agent = chosen.agent or engine.agent or ""
        self._running = Forward(engine, home, chosen, handle, self._body(), arguments, original=fn)
        self.record = self._declare()

    def _declare(self) -> StepRecord:
        suspends = self.engine.runtime.suspends
        forward = self.forward if suspends else lambda: step(self.forward())
        back = undo_of(self.back, suspends)
        verify = probe_of(self.verify, suspends)
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
                close_unused(value)
                raise UsageError(f"{name_of(fn)} is an async function; use `async with`")
            step(self._prepare(session._txn, value))
            return value

        return plain

    async def _prepare(self, txn: Transaction, value: Any) -> None:
        """Before the commit: note the inverse, and let the commit carry the step's record, or leave a receipt."""
        self.value = value
        self.transaction = txn.id
        self.pieces = await capture(txn, self._noted())
        if self._running.record is not None:
            self.pieces.append([RECORD, self._running.record])
        recorder = self.frame.course.recorder
        if recorder is None:
            return
        if self.receipt is not None:
            self.receipt.carried_by(txn, self._outcome())
        else:
            writes, expected = recorder.journal.carried(place_of(self.record), self._facts())
            carry(txn, guards=guards_of(expected), writes=writes)

    def _noted(self) -> set[Key]:
        """The keys of this store whose values the saga's steps have noted so far."""
        recorder = self.frame.course.recorder
        if recorder is not None:
            steps = recorder.journal.steps.values()
            mine = self.home_identity or None
            found = [each["inverse"] for each in steps if "inverse" in each and each.get("store") == mine]
        else:
            top = self.frame
            while top.parent is not None:
                top = top.parent
            others = [record.transacting for record in top.all_records()]
            found = [each.pieces for each in others if each is not None and each.engine is self.engine]
        return {piece[1] for pieces in found for piece in pieces if piece[0] == VALUE}

    @property
    def carries(self) -> bool:
        """Whether the saga's journal is in the store of this transaction."""
        recorder = self.frame.course.recorder
        return recorder is not None and recorder.journal.engine is self.engine

    def _outcome(self) -> dict[str, Any]:
        """What is known when the transaction has committed."""
        return {
            "result": store_value(self.value, no_hint, f"the result of {name_of(self.fn)}"),
            "inverse": self.pieces,
            "transaction": transaction_text(self.transaction),
        }

    def _facts(self) -> dict[str, Any]:
        """The step's record once the transaction has committed."""
        return {**self.begun(), **self._outcome(), "status": "done", "agent": self.agent}

    async def describe(self, recorder: Recorder) -> dict[str, Any]:
        """What identifies the step when the saga is run again; for another store with the name of a new receipt."""
        if not self.carries:
            self.home_identity = await identity_of(self.engine, recorder.journal.agent)
            self.receipt = Receipt(self.engine, f"{self.engine.runtime.random_bits(128):032x}")
        return self.begun()

    def begun(self) -> dict[str, Any]:
        """The same, when it has been described."""
        raw = codec.canonical(list(self.arguments))
        facts = {
            "fn": path_of(self.fn),
            "label": self.record.label(),
            "print": hashlib.blake2b(raw, digest_size=16).digest(),
            "key": self.frame.step_key(self.record),
            "kind": "transact",
            "order": self.record.position,
        }
        if self.receipt is not None:
            facts |= {"store": self.home_identity, "url": self.engine.shown_url, "receipt": self.receipt.id}
        return facts

    async def forward(self) -> Any:
        """Run it until it commits."""
        value = await self._running.run()
        if self._running.replay is not None:
            self.pieces, self.transaction, self.value = REPLAYED, 0, value
        elif self.carries:
            recorder, txn = self.frame.course.recorder, self._running.last_transaction
            assert recorder is not None
            assert txn is not None
            await _told(recorder.journal, place_of(self.record), self._facts(), txn)
        return value

    def unsaid(self) -> dict[str, Any] | None:
        """What the journal has to be told behind the transaction; None where its own commit has done so."""
        return None if self.carries and self._running.replay is None else self._facts()

    async def back(self) -> None:
        """Take it back. Raises `ConflictError` where somebody else has changed a value since."""
        recorder = self.frame.course.recorder
        refuse_replayed(self.pieces, name_of(self.fn))
        if self.receipt is not None:
            assert recorder is not None
            others = receipts_in(recorder.journal, self.home_identity)
            await self.receipt.take_back(self.agent, recorder.journal.title, others, self.force)
        elif recorder is not None:
            await take_back(recorder.journal, place_of(self.record), self.force)
        elif self.pieces:
            known = self.frame.course.put_back
            txn = await apply(self.engine, self.agent, self.pieces, self.transaction, self.force, known)
            known |= restored(self.pieces, txn.id)

    async def verify(self, key: str) -> Answer[Any]:
        """Whether an interrupted transaction has committed. Its store settles it for ever."""
        if self.earlier is not None:
            return await self._ask_receipt(self.earlier)
        if not self.transaction:
            return NOT_HAPPENED
        outcome = await find_outcome(self.engine, transaction_text(self.transaction))
        if outcome is Outcome.COMMITTED:
            if self.carries:
                assert self.frame.course.recorder is not None
                await self.frame.course.recorder.journal.learn_step(place_of(self.record))
            return Happened(self.value)
        return NOT_HAPPENED if outcome is Outcome.NOT_COMMITTED else CANNOT_TELL

    async def _ask_receipt(self, earlier: dict[str, Any]) -> Answer[Any]:
        """What became of the transaction of an earlier process, before this saga was entered again."""
        receipt = Receipt(self.engine, earlier["receipt"])
        recorder = self.frame.course.recorder
        assert recorder is not None
        found = await receipt.settle(recorder.journal.agent, await age_of(recorder.journal))
        if found is None:
            return NOT_HAPPENED
        self.receipt, self.earlier = receipt, None
        self.pieces, self.transaction = found.get("inverse", []), int(found["transaction"], 16)
        self.value = load_result(self.fn, None, found["result"]) if "result" in found else None
        return Happened(self.value)


def undo_of(act: Callable[[], Coroutine[Any, Any, None]], suspends: bool) -> Callable[[], Any]:
    """An undo of ours as a function of the saga's colour."""
    return act if suspends else lambda: step(act())


def probe_of(act: Callable[[str], Coroutine[Any, Any, Answer[Any]]], suspends: bool) -> Callable[[str], Any]:
    """The same for a probe."""
    return act if suspends else lambda key: step(act(key))


def guards_of(expected: dict[Key, Expectation]) -> dict[Key, Guard]:
    """What a commit expects that only the saga's coordinator may make."""
    return {key: Guard(each, refused=_taken_over) for key, each in expected.items()}


def _taken_over(guard: Guard, clash: Clash) -> BaseException:
    return SagaClosedError("the saga was taken over by another process; the transaction was not committed")


def refuse_replayed(pieces: list[Piece], name: str) -> None:
    """Raises `UsageError` for a step that has committed nothing itself."""
    if pieces == REPLAYED:
        raise UsageError(
            f"{name} was a replay of an earlier commit under its idempotency key; what that one replaced is not known "
            "here"
        )


async def take_back(journal: Journal, place: Place, force: Any = None) -> None:
    """Take back a recorded transaction of the journal's own store, and say so in the same commit."""
    stored = journal.steps[place]
    refuse_replayed(stored["inverse"], stored["label"])
    if stored["status"] == "undone" or not stored["inverse"]:
        return
    letter = await journal.carried_letter(place)
    agent, transaction = stored["agent"] or journal.agent, int(stored["transaction"], 16)
    known: PutBack = {}
    for each in journal.steps.values():
        if "undo_transaction" in each:
            known |= restored(each["inverse"], int(each["undo_transaction"], 16))

    def note(txn: Transaction) -> None:
        writes, expected = journal.carried(place, undone(txn))
        carry(txn, guards=guards_of({**expected, **letter[1]}), writes={**writes, **letter[0]})

    def undone(txn: Transaction) -> dict[str, Any]:
        return {"status": "undone", "undo_transaction": transaction_text(txn.id)}

    txn = await apply(journal.engine, agent, stored["inverse"], transaction, force, known, note, journal.title)
    await _told(journal, place, undone(txn), txn)
    journal.dropped_letter(place)


async def _told(journal: Journal, place: Place, facts: dict[str, Any], txn: Transaction) -> None:
    """Note in the journal that a commit with a step's record has happened. Where its reply was lost and the engine does
    not tell the version either, the record is read."""
    if txn.reply is None:
        await journal.learn_step(place)
    else:
        journal.carried_done(place, facts, txn.reply.version)


def receipts_in(journal: Journal, identity: str) -> list[str]:
    """The receipts of a saga's steps in a store."""
    return [each["receipt"] for each in journal.steps.values() if each.get("store") == identity and "receipt" in each]


async def age_of(journal: Journal) -> float:
    """For how long the run has been going on, in seconds."""
    at: float = journal.head["at"]
    return await journal.engine.backend.now() - at


def recall(recorder: Recorder, record: StepRecord, stored: dict[str, Any]) -> None:
    """Give a transaction that is known from the journal only its undo, and its probe where nobody knows about it."""
    journal, suspends = recorder.journal, recorder.journal.engine.runtime.suspends
    record.plan = Plan()
    if "store" not in stored:
        if "inverse" in stored:
            record.undo = undo_of(lambda: take_back(journal, place_of(record)), suspends)
        return
    engine = recorder.engine_of(stored["store"])
    if engine is None:
        named = stored["url"] or stored["store"]
        recorder.missing_stores.append(named)
        record.error = record.undo_error = UsageError(
            f"{record.label()} is a transaction on another store, {named}: open it and give it in stores=, or on the "
            "command line with --store"
        )
        return
    receipt = Receipt(engine, stored["receipt"])
    pieces: list[Piece] = stored.get("inverse", [])

    async def back() -> None:
        refuse_replayed(pieces, record.label())
        others = receipts_in(journal, stored["store"])
        await receipt.take_back(stored.get("agent") or journal.agent, journal.title, others)

    async def verify(key: str) -> Answer[Any]:
        found = await receipt.settle(journal.agent, await age_of(journal))
        return NOT_HAPPENED if found is None else Happened(None)

    record.undo, record.verify = undo_of(back, suspends), probe_of(verify, suspends)
