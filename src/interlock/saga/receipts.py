"""Receipts: what a transaction of a durable saga leaves in its own store, where that is not the journal's.

The journal says *begun* before such a transaction and *done* behind it. If the coordinator dies in between, somebody
else has to find out what became of it, and to take it back, possibly a month later. For that the transaction writes
one more record in its own commit: a receipt, with its result and its inverse, under a name that the journal has noted
beforehand. It expects that there is none, and so the three questions have exact answers, whatever was on its way to
either store when the coordinator died or was stopped:

- *Has it happened?* The receipt is there, or it is not. Who finds none writes a void one in its place; the transaction
  expects none, so from then on it can never happen (`Receipt.settle`).
- *What would take it back?* The receipt says so; it was committed with the transaction or not at all.
- *Has it been taken back?* The undo's transaction turns the receipt into an undone one and expects it as it was read.
  So of two that undo one succeeds, and an undo that is run again, because the first one died before it could tell the
  journal, finds that nothing is left to do (`Receipt.take_back`).

A receipt that was undone says which versions the undo has put back, for the undos of the saga's earlier steps.

A journal names the other store by the identity that is kept in that store itself (`identity_of`), so a recovery that
is given stores knows which one is meant, and never looks into a wrong one. Receipts expire: after that an undo is
refused instead of guessed, and an open question stays open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from interlock.core.carrying import Guard, carry
from interlock.core.engine import Engine
from interlock.core.transaction import Transaction
from interlock.errors import BackendCorruptError, UsageError
from interlock.layers.ledger import Kind, Ledger, Record
from interlock.model import ABSENT, NONCE_MASK, Clash, CommitRefused, Key
from interlock.saga.errors import SagaClosedError
from interlock.saga.inverses import PutBack, apply, restored
from interlock.saga.shapes import check_receipt

RECEIPTS: Final = Kind("sagareceipt")
IDENTITIES: Final = Kind("storeid")
DONE, VOID, UNDONE = "done", "void", "undone"

KEPT_SECONDS: Final = 90 * 86_400.0
"""How long a receipt is kept at least."""

_identities: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()
_met: WeakValueDictionary[tuple[str, bool], Engine] = WeakValueDictionary()


async def identity_of(engine: Engine, agent: str) -> str:
    """The identity of a store, which is written into it when it is first asked for."""
    known = _identities.get(engine)
    if known is not None:
        return known
    ledger, key = Ledger(engine), IDENTITIES.key("own")
    record = (await ledger.read(IDENTITIES, [key])).records[0]
    if record.value is None:
        made = f"{engine.runtime.random_bits(128):032x}"
        try:
            await ledger.commit({key: IDENTITIES.put(made)}, {key: record.expected}, agent=agent, quiet=True)
        except CommitRefused:  # somebody else has just given it one
            pass
        record = (await ledger.read(IDENTITIES, [key])).records[0]
    identity = record.value
    if type(identity) is not str:
        raise BackendCorruptError("the identity of this store is no text")
    _identities[engine] = identity
    _met[identity, engine.runtime.suspends] = engine
    return identity


def met(identity: str, suspends: bool) -> Engine | None:
    """A store of this process that has been asked for its identity before, and is still open."""
    engine = _met.get((identity, suspends))
    return None if engine is None or engine.closed else engine


async def engines_of(stores: Collection[Any], suspends: bool, agent: str) -> dict[str, Engine]:
    """The stores that a caller has given, by identity. Raises `UsageError` for anything else."""
    if isinstance(stores, str) or not isinstance(stores, Collection):
        raise UsageError("stores is a collection of open stores")
    found = {}
    for store in stores:
        engine = getattr(store, "_engine", None)
        if not isinstance(engine, Engine):
            raise UsageError(f"stores holds open stores, not {type(store).__name__}")
        if engine.runtime.suspends is not suspends:
            raise UsageError("the stores are of two colours: take all from interlock, or from interlock.sync")
        found[await identity_of(engine, agent)] = engine
    return found


class Receipt:
    """One receipt, in the store of its transaction. ``id`` is known to the journal."""

    __slots__ = ("engine", "id", "key")

    def __init__(self, engine: Engine, receipt_id: str) -> None:
        self.engine = engine
        self.id = receipt_id
        self.key = RECEIPTS.key(receipt_id)

    def carried_by(self, txn: Transaction, facts: dict[str, Any]) -> None:
        """Make it part of the transaction's commit."""
        write = RECEIPTS.put({**facts, "status": DONE}, ttl_seconds=self._kept)
        carry(txn, guards={self.key: Guard(ABSENT, refused=_taken_over)}, writes={self.key: write})

    @property
    def _kept(self) -> float:
        return max(KEPT_SECONDS, self.engine.idempotency_ttl_seconds)

    async def _read(self) -> Record:
        return (await self._read_with(()))[0]

    async def _read_with(self, others: Iterable[Key]) -> Sequence[Record]:
        """This receipt and others. Raises `BackendCorruptError` for what is none."""
        found = (await Ledger(self.engine).read(RECEIPTS, [self.key, *others])).records
        for record in found:
            if record.version is not None:
                check_receipt(record.value)
        return found

    async def settle(self, agent: str, age_seconds: float) -> dict[str, Any] | None:
        """What is known of the transaction for ever: its receipt; None: it has not happened, and never will.

        Raises `UsageError` where a receipt may have expired: the saga began ``age_seconds`` ago."""
        record = await self._read()
        if record.value is None:
            if age_seconds > self._kept / 2:
                raise UsageError("this transaction began so long ago that its receipt may have expired")
            write = RECEIPTS.put({"status": VOID}, ttl_seconds=self._kept)
            try:
                await Ledger(self.engine).commit(
                    {self.key: write}, {self.key: record.expected}, agent=agent, quiet=True
                )
            except CommitRefused:
                record = await self._read()
        found: dict[str, Any] | None = record.value
        return None if found is None or found["status"] == VOID else found

    async def take_back(self, agent: str, saga: str, others: Iterable[str], force: Any = None) -> None:
        """Take the transaction back, once, whoever asks how often. ``others``: receipts of the saga's other steps in
        this store. Raises as `apply`, and `UsageError` without a receipt."""
        record, *rest = await self._read_with(map(RECEIPTS.key, others))
        facts = record.value
        if facts is None:
            raise UsageError("the receipt of this transaction has expired, or was never in this store; undo it by hand")
        if facts["status"] != DONE:
            return
        put_back: PutBack = {}
        for other in rest:
            if other.value is not None and other.value["status"] == UNDONE:
                put_back |= {(key, other.value["undo"]): nonce for key, nonce in other.value["put_back"]}

        def note(txn: Transaction) -> None:
            own = [[key, nonce] for (key, _), nonce in restored(facts["inverse"], txn.id).items()]
            undone = {"status": UNDONE, "undo": txn.id & NONCE_MASK, "put_back": own}
            write = RECEIPTS.put(undone, ttl_seconds=self._kept)
            carry(txn, guards={self.key: Guard(record.expected, refused=_taken_over)}, writes={self.key: write})

        await apply(self.engine, agent, facts["inverse"], int(facts["transaction"], 16), force, put_back, note, saga)


def _taken_over(guard: Guard, clash: Clash) -> BaseException:
    return SagaClosedError("the saga was taken over by another process; the transaction was not committed")
