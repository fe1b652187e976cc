"""How a transaction ends well: invariants, the request, and what may come back.

The request carries, besides what the isolation mode validates, guards that are not reads of the agent: the rules of
every space that takes part (`interlock.core.space`), the absence of each idempotency record, and the newest values
that registered merge functions were applied to. If only such guards fail, the agent's decision still stands: the
session learns the new rules or merges again, and sends the same request once more. If a record is there, the work was
done before: a replay, not a conflict. If anything that the agent saw has changed, it is a conflict and nobody's to
repair but the retry loop's.

A read-only transaction sends nothing: it read one consistent snapshot, and has nothing to be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from interlock.core import idempotency, refusals
from interlock.core import isolation as modes
from interlock.core.calls import ACTIVE, CHECKING, COMMITTED, DOOMED, ROLLED_BACK, SENDING
from interlock.core.carrying import learn_guards
from interlock.core.engine import Engine
from interlock.core.locking import give_way, let_go
from interlock.core.requests import assemble, footprint, plain_request
from interlock.core.rules import Rules
from interlock.core.space import Space
from interlock.core.transaction import Transaction, process
from interlock.errors import CommitUnknownError, ConflictError, InvariantError
from interlock.model import (
    ABSENT,
    BoundBroken,
    CommitRefused,
    CommitRequest,
    DuplicateTransaction,
    Entry,
    Expectation,
    Key,
    MergeRefused,
    Put,
    Reply,
    Write,
)

_REPAIRS = 100
"""How often one commit is sent again after its guards failed, before that counts as a conflict."""


_REFUSALS: Final = (CommitRefused, DuplicateTransaction, BoundBroken, MergeRefused)
"""What a backend says when it has understood a request and does not apply it."""


class Replay(BaseException):
    """The record of an idempotency key is there: the work was done before. Never leaves the library."""

    def __init__(self, result: Any, transaction_id: str, *, ran: bool = True) -> None:
        super().__init__()
        self.result = result
        self.transaction_id = transaction_id
        self.ran = ran


async def commit(txn: Transaction) -> Reply | None:
    """Validate and apply; None for a read-only transaction. Raises what refused it; then nothing was written."""
    last = txn.last_call
    if txn.calls is not None or (last is not None and last.cr_frame is not None):
        txn.settle_calls()
    if txn.state:
        if txn.state == DOOMED:
            txn.raise_doom()
        txn.refuse("commit")
    try:
        if not (txn.writes or txn.records or txn.clears or txn.chains or txn.guards):
            txn.state = COMMITTED
            return None
        if txn.generation is not process.generation:
            txn.engine.check_generation(txn.generation)
        rules = None if txn.home is None else txn.home.rules
        if txn.plain and rules is not None and not rules.ruled:
            if txn.token is None:
                await txn.need_token()
            request = plain_request(txn, rules)
            txn.state = SENDING
            try:
                telling = None if txn.gate is None else txn.engine.telling
                if telling is None:
                    reply = await txn.backend.commit(request)
                else:  # the gate is handed on before anything else is done with the reply
                    reply = await telling(request, txn.leave_gate)
            except _REFUSALS as refused:
                sending = _prepare(txn, [rules])
                await _take_refusal(sending, refused, request)
                reply = await _send(sending)
        else:
            reply = await _commit_in_general(txn)
        txn.reply = reply
        txn.state = COMMITTED
    except BaseException as error:
        txn.state, txn.error = ROLLED_BACK, error
        if type(error) is CommitUnknownError:
            txn.unsettled = error
        raise
    finally:
        followed = txn.gate is not None and txn.leave_gate()
        if txn.held is not None:
            await let_go(txn)
    engine = txn.engine
    if followed and engine.direct is None:
        await _stand_back(engine)
    engine.until_housekeeping -= 1
    if engine.until_housekeeping <= 0:
        await engine.housekeep()
    return reply


async def _stand_back(engine: Engine) -> None:
    """Let whoever has got the gate of a hot key send his commit before the caller goes on with something else: all who
    queue wait for that commit, nobody waits for the caller."""
    try:
        await engine.runtime.sleep(0)
    except BaseException as interruption:
        interruption.add_note("the commit had been done before")
        raise


def _writes_to(txn: Transaction, space: Space) -> bool:
    prefix = space.prefix
    if any(key.startswith(prefix) for key in txn.writes) or any(key.startswith(prefix) for key in txn.chains or ()):
        return True
    return any(span.start.startswith(prefix) for span in txn.clears or ())


async def _abide(txn: Transaction) -> list[Rules]:
    """Hold the transaction to the rules of every space that takes part, those that an invariant reads included; the
    rules by which it was judged, which its request expects to be in force."""
    picked: list[Rules] = []
    while len(picked) < len(txn.spaces()):
        rules = txn.spaces()[len(picked)].rules
        picked.append(rules)
        if rules.ruled:
            rules.admit(txn.mode, txn.isolation)
            if _writes_to(txn, rules.space):
                rules.admit_writer()
                await _check_invariants(txn, rules)
    return picked


async def _check_invariants(txn: Transaction, rules: Rules) -> None:
    """Evaluate each invariant over the transaction's own view. What it reads is validated in every mode."""
    if txn.invariant_reads is None:
        if txn.mode == modes.NONE:
            txn.token = await txn.alone(txn.backend.snapshot())
        txn.plain = False
        txn.invariant_reads, txn.invariant_spans = set(), []
    txn.state = CHECKING
    for name, (check, resource) in rules.invariants.items():
        answer: Any = check(txn.engine.make_view(txn, resource))
        if hasattr(answer, "__await__"):
            answer = await answer
        txn.settle_calls()
        if txn.state != CHECKING:
            txn.raise_doom()
        if not answer:
            raise InvariantError(
                f"invariant {name!r} of resource {rules.space.name!r} would be broken",
                transaction_id=refusals.transaction_text(txn.id),
                invariant=name,
                resource=rules.space.name,
            )
    txn.state = ACTIVE


@dataclass(slots=True)
class _Sending:
    """One decision on its way: what is fixed about it, and the guards that may be learnt anew."""

    txn: Transaction
    rules: list[Rules]
    records: dict[Key, Put]
    fingerprints: dict[Key, bytes]
    record_expectations: dict[Key, Expectation]
    published: list[tuple[Space, Put]]
    locks: dict[Key, Mapping[Key, Expectation]]


async def _commit_in_general(txn: Transaction) -> Reply:
    """The commit of a transaction of any kind."""
    rules = await _abide(txn)
    if txn.deadline is not None:
        txn.check_time()
    txn.state = SENDING
    if txn.token is None:
        await txn.need_token()
    return await _send(_prepare(txn, rules))


async def _send(sending: _Sending) -> Reply:
    """Send the decision until it is taken or cannot be repaired."""
    for _ in range(_REPAIRS):
        request = await _request(sending)
        try:
            reply = await sending.txn.backend.commit(request)
        except _REFUSALS as refused:
            await _take_refusal(sending, refused, request)
        else:
            for space, put in sending.published:
                space.learn(Entry(reply.version, put.value))
            return reply
    raise ConflictError("the rules or merged values of this commit changed again and again; try later")


async def _take_refusal(sending: _Sending, refused: Exception, request: CommitRequest) -> None:
    """After a refusal: returns if the same decision may be sent again, else raises what it means."""
    txn = sending.txn
    if isinstance(refused, CommitRefused):
        if not await _repair(sending, refused, request):
            raise txn.conflict(refused.clashes) from None
    elif isinstance(refused, DuplicateTransaction):
        raise _fenced(txn, refused) from None
    elif isinstance(refused, BoundBroken | MergeRefused):
        raise refusals.merge_error(refused, txn.id) from None


def _prepare(txn: Transaction, rules: list[Rules]) -> _Sending:
    """What has to be kept between repairs."""
    sending = _Sending(txn, rules, {}, {}, {}, [], {})
    for key, record in (txn.records or {}).items():
        sending.fingerprints[key] = fingerprint = record.fingerprint or footprint(txn)
        sending.records[key] = record.put(fingerprint, txn.id)
        sending.record_expectations[key] = ABSENT
    return sending


def _fenced(txn: Transaction, duplicate: DuplicateTransaction) -> ConflictError | CommitUnknownError:
    """Refused for its id. If that is committed, then by this very transaction: the request came twice, on its way."""
    name = refusals.transaction_text(txn.id)
    if duplicate.committed:
        return CommitUnknownError(f"transaction {name} is committed, its reply was lost", transaction_id=name)
    return ConflictError(f"transaction {name} was ended by a question for its outcome", transaction_id=name)


async def _request(sending: _Sending) -> CommitRequest:
    txn = sending.txn
    writes = txn.writes
    guards: dict[Key, Expectation] = {}
    sending.published = []
    for rules in sending.rules:
        guards[rules.key] = rules.expected
        if txn.mode != modes.PESSIMISTIC and _writes_to(txn, rules.space):
            guards.update(sending.locks.get(rules.locks_key, {rules.locks_key: ABSENT}))
        if rules.pending:
            sending.published.append((rules.space, rules.publication()))
    if sending.records or sending.published or txn.chains:
        writes = {**writes, **sending.records}
        guards.update(sending.record_expectations)
        writes.update((space.rules_key, put) for space, put in sending.published)
        if txn.chains:
            await _compute_chains(txn, writes, guards)
    return assemble(txn, writes, guards)


async def _compute_chains(txn: Transaction, writes: dict[Key, Write], guards: dict[Key, Expectation]) -> None:
    """Apply registered merge functions to the newest values, and guard that they stay the newest."""
    chains = txn.chains or {}
    reading = await txn.backend.read(list(chains))
    for key, entry in zip(chains, reading.entries, strict=True):
        value = txn.chained(key, None if entry is None else entry.value)
        assert value is not None  # a chain has a step, and every step makes a value
        writes[key] = Put(value)
        guards[key] = modes.expectation(entry)


async def _repair(sending: _Sending, refused: CommitRefused, request: CommitRequest) -> bool:
    """After a refusal: True if the same decision may be sent again. Raises `Replay` if it was done before."""
    txn = sending.txn
    failed = {clash.key for clash in refused.clashes if clash.kind != "range"}
    found = [key for key in sending.records if key in failed]
    if found:
        await _replay(sending, found)
    learnable = [number for number, rules in enumerate(sending.rules) if rules.key in failed]
    if learnable:
        await _relearn(sending, learnable)
    relearnt = [sending.rules[number].key for number in learnable]
    guarded = learn_guards(txn, refused.clashes) if txn.guards or txn.held else ()
    expected = {rules.space: {rules.locks_key, *sending.locks.get(rules.locks_key, ())} for rules in sending.rules}
    locked = [space for space, keys in expected.items() if not failed.isdisjoint(keys)]
    keys_of_locks = [key for space in locked for key in expected[space]]
    repairable = {*found, *relearnt, *guarded, *keys_of_locks, *(txn.chains or {})} - request.reads.keys()
    if not all(clash.kind != "range" and clash.key in repairable for clash in refused.clashes):
        return False
    for space in locked:
        sending.locks[space.locks_key] = await give_way(txn, space)
    return True


async def _relearn(sending: _Sending, numbers: list[int]) -> None:
    """Learn rules that others have published meanwhile, and hold the transaction to them. What it was judged by stays:
    an invariant that was declared here only now was not evaluated, so it counts as unknown."""
    txn = sending.txn
    reading = await txn.backend.read([sending.rules[number].key for number in numbers])
    for number, entry in zip(numbers, reading.entries, strict=True):
        rules = sending.rules[number] = sending.rules[number].learnt(entry)
        rules.space.learn(entry, newest=True)
        rules.admit(txn.mode, txn.isolation)
        if _writes_to(txn, rules.space):
            rules.admit_writer()


async def _replay(sending: _Sending, found: list[Key]) -> None:
    reading = await sending.txn.backend.read(found)
    for key, entry in zip(found, reading.entries, strict=True):
        record = (sending.txn.records or {})[key]
        stored = idempotency.read_record(entry, reading.at, record.home)
        if stored is None:  # expired and not compacted yet: it may be replaced, by one of those who try
            sending.record_expectations[key] = modes.expectation(entry)
            continue
        if record.nested:  # only a part of this transaction was done before: that part must not be done again
            raise ConflictError(
                f"idempotency key {record.idempotency_key!r} was used by another transaction meanwhile",
                transaction_id=refusals.transaction_text(sending.txn.id),
            )
        idempotency.check_fingerprint(stored.fingerprint, sending.fingerprints[key], record.idempotency_key)
        raise Replay(stored.result, stored.transaction_id)
