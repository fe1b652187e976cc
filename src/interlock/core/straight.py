"""The straight ways: reading, writing and committing by plain functions, where the backend has a short way in.

Over a backend that only computes (`interlock.ports.Direct`), the coroutine of a call costs more than the call itself.
The functions here do what `Transaction.read`, `interlock.core.writing.write` and `interlock.core.commit.commit` do with
a plain transaction (`Transaction.plain`), or do nothing and say so: then the caller goes the general way, which also
finds out what was wrong. So they never refuse anything themselves, and whatever is rare is not looked at here:

- a commit that is refused is sent once more by the general way, which is judged anew. Refused, it had written nothing;
- the state is BUSY or SENDING meanwhile, as on the general way, so a second thread or task that uses the session at
  the same time is refused there.
"""

from __future__ import annotations

from math import floor
from typing import Any, Final

from interlock.core.calls import ACTIVE, BUSY, COMMITTED, ROLLED_BACK, SENDING
from interlock.core.requests import footprint
from interlock.core.space import Resource
from interlock.core.transaction import Transaction, process
from interlock.model import Key, Put

UNDONE: Final[Any] = object()
"""What `read_now` returns when it has not read."""


def read_now(txn: Transaction, resource: Resource, key: Any, default: Any) -> Any:
    """The value of a key that a plain transaction reads for the first time; UNDONE: ask `Transaction.read`."""
    space = resource.space
    if txn.state or not txn.plain or space is not txn.home or type(key) is not str:
        return UNDONE
    raw, direct = space.cache.get(key), txn.engine.direct
    if raw is None or direct is None or raw in txn.reads or raw in txn.writes:
        return UNDONE
    token = txn.token
    if token is None and raw in txn.engine.gates.open:
        return UNDONE
    txn.state = BUSY
    try:
        found = direct.look(raw, token)
        if txn.state == BUSY:
            txn.state = ACTIVE
        if found is None:
            return UNDONE
        entry, txn.token = found
        txn.reads[raw] = entry
        return default if entry is None or entry.value is None else resource.thaw(entry.value)
    except BaseException as error:
        txn.doom(error)
        raise


def look_now(txn: Transaction, record: Key) -> bool:
    """Take the snapshot in which an idempotency key has no record; False: look for it in general."""
    direct = txn.engine.direct
    found = None if direct is None else direct.look(record, None)
    if found is None or found[0] is not None:
        return False
    txn.token = found[1]
    return True


def write_now(txn: Transaction, resource: Resource, key: Any, value: Any) -> bool:
    """Put a value into a plain transaction; False: ask `interlock.core.writing.write`."""
    space = resource.space
    if txn.state or not txn.plain or space is not txn.home or type(key) is not str:
        return False
    raw = space.cache.get(key)
    if raw is None:
        return False
    txn.state = BUSY
    try:
        txn.writes[raw] = Put(resource.freeze(value))
        if txn.state == BUSY:
            txn.state = ACTIVE
        return True
    except BaseException as error:
        txn.doom(error)
        raise


def commit_now(txn: Transaction) -> bool:
    """Commit a plain transaction, its idempotency records included; False: ask `interlock.core.commit.commit`."""
    engine, token, last = txn.engine, txn.token, txn.last_call
    direct, writes, records = engine.putting, txn.writes, txn.records
    if direct is None or token is None or txn.state or not txn.plain or not (writes or records):
        return False
    if txn.gate is not None or txn.calls is not None or (last is not None and last.cr_frame is not None):
        return False
    rules = txn.home.rules  # type: ignore[union-attr]
    if not rules.free or txn.generation is not process.generation:
        return False
    left, reads = engine.until_housekeeping, txn.reads
    if left <= 1 or len(writes) + len(reads) >= engine.few_keys:
        return False
    number = txn._id
    if fresh := not number:  # as `Engine.new_id`
        time, random_bits = engine.time, engine.random_bits
        number = txn._id = (floor(time() * 1000) << 80) | random_bits(80)
    txn.state = SENDING
    try:
        absent: tuple[Key, ...] = rules.absent
        if records is not None:
            writes = writes.copy()
            for key, record in records.items():
                writes[key] = record.put(record.fingerprint or footprint(txn), number)
            absent = (*absent, *records)
        with direct.lock:
            reply = direct.put(
                number, fresh, txn.agent, txn.isolation, token, reads, writes, absent,
                txn.operation, txn.run_id, txn.attempt,
            )  # fmt: skip
    except BaseException as error:
        txn.state, txn.error = ROLLED_BACK, error
        raise
    if reply is None:
        txn.state = ACTIVE
        return False
    txn.reply, txn.state = reply, COMMITTED
    engine.until_housekeeping = left - 1
    return True
