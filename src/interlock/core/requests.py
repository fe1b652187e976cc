"""From a transaction's sets to the request that a backend judges: what is expected, what is written, within bounds.

`plain_request` is the short way for a plain transaction (`interlock.core.transaction.Transaction.plain`) whose home has
no rules; `assemble` is the whole. For a plain transaction both make the same request, because all that `assemble` looks
at besides has then never been touched.
"""

from __future__ import annotations

from typing import Final

from interlock.core import idempotency
from interlock.core import isolation as modes
from interlock.core.carrying import add_guards
from interlock.core.rules import Rules
from interlock.core.transaction import Transaction
from interlock.errors import LimitExceededError
from interlock.model import ABSENT, UNCHANGED, CommitRequest, Expectation, Key, Merge, Put, Span, Version, Write

_NOTHING: Final[frozenset[Key]] = frozenset()


def plain_request(txn: Transaction, rules: Rules) -> CommitRequest:
    """The request of a plain transaction, its idempotency records included."""
    token, writes = txn.token, txn.writes
    assert token is not None
    guards: dict[Key, Expectation] = {rules.key: rules.expected, rules.locks_key: ABSENT}
    if txn.records is not None:
        writes = dict(writes)
        for key, record in txn.records.items():
            writes[key] = record.put(record.fingerprint or footprint(txn), txn.id)
            guards[key] = ABSENT
    reads: dict[Key, Expectation] = {}
    observed: dict[Key, Version | None] | None = None
    for key, entry in txn.reads.items():
        if entry is None:
            reads[key] = ABSENT
        elif entry.value is None:
            reads[key] = ABSENT
            observed = observed or {}
            observed[key] = entry.version
        else:
            reads[key] = entry.version
    if len(writes) + len(reads) > txn.engine.few_keys:
        check_limits(txn, writes, len(reads), 0)
    txn._id = txn._id or txn.engine.new_id()
    return CommitRequest(
        txn._id, txn.agent, txn.isolation, token, reads, writes, guards, (), (),
        txn.operation, txn.run_id, txn.attempt, observed,
    )  # fmt: skip


def assemble(txn: Transaction, writes: dict[Key, Write], guards: dict[Key, Expectation]) -> CommitRequest:
    """The request of any transaction, with the writes and guards of this sending of it."""
    token = txn.token
    assert token is not None
    reads = txn.expectations(txn.writes)
    for key in [key for key, expected in reads.items() if expected is UNCHANGED]:
        guards[key] = reads.pop(key)  # written blindly: not a read, for those who judge the feed
    observed = modes.observed_reads(txn.reads, reads) or None
    spans: tuple[Span, ...] = ()
    if txn.spans is not None:
        spans = modes.validated_spans(txn.mode, txn.spans, txn.invariant_spans or ())
    alive = _NOTHING if txn.guards is None and txn.held is None else add_guards(txn, guards)
    check_limits(txn, writes, len(reads), len(spans))
    return CommitRequest(
        txn.id, txn.agent, txn.isolation, token, reads, writes, guards, spans,
        () if txn.clears is None else tuple(txn.clears),
        txn.operation, txn.run_id, txn.attempt, observed, alive,
    )  # fmt: skip


def footprint(txn: Transaction) -> bytes:
    """The fingerprint of a bare session: of what it writes."""
    if txn.clears is None and txn.chains is None:
        return idempotency.footprint_fingerprint(txn.agent, txn.writes)
    spans = [part for span in txn.clears or () for part in span]
    return idempotency.footprint_fingerprint(txn.agent, [*txn.writes, *(txn.chains or ()), *spans])


def check_limits(txn: Transaction, writes: dict[Key, Write], reads: int, spans: int) -> None:
    """Raises `LimitExceededError` for a request that is larger than the backend takes."""
    limits = txn.backend.limits
    size = sum([_size(write) for write in writes.values()])
    for name, found in (("writes", len(writes)), ("reads", reads), ("spans", spans), ("commit_bytes", size)):
        allowed: int = getattr(limits, name)
        if found > allowed:
            what = f"a transaction of {found} {name.replace('_', ' ')} is larger than {allowed}; split it"
            raise LimitExceededError(what, limit=name, allowed=allowed, found=found)


def _size(write: Write) -> int:
    if type(write) is Put:
        return len(write.value)
    return sum(len(operation.operand) for operation in write.operations) if type(write) is Merge else 0
