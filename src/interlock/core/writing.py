"""The write set: puts, deletes, merges, clears. Nothing here asks the engine for more than a value or a snapshot.

One entry per key. A put or delete discards the key's earlier merges; a merge after an own put, delete or clear is
folded into it on the spot; merges of a key that this transaction has not decided stay operations, to be applied by
the engine to the newest value, so they take no read dependency. A key on which a registered merge function is used
becomes a *chain*: at commit the whole chain is computed here from the newest value, and the commit repeated until
that value stays the same, without running the agent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock import codec, merges
from interlock.core import isolation as modes
from interlock.core.chains import Custom, Step
from interlock.core.locking import key_span, lock
from interlock.core.space import Resource, Space
from interlock.core.transaction import DELETE, MISSING, Transaction
from interlock.core.typed import PLAIN
from interlock.errors import NotFoundError, UsageError
from interlock.model import Key, Merge, Operation, Put, Span

LAST_WRITER_WINS = "last"


async def write(txn: Transaction, resource: Resource, key: Any, value: Any) -> None:
    """Put a value."""
    if txn.state:
        txn.refuse("write")
    try:
        space = resource.space
        if space is not txn.home:
            txn.touch(space)
        raw = (space.cache.get(key) if type(key) is str else None) or space.encode(key)
        if txn.plain:
            txn.writes[raw] = Put(resource.freeze(value))
            if txn.calls is None:
                txn.last_call = None
            return
        txn.before_write()
        await _prepare(txn, space, raw)
        txn.writes[raw] = Put(resource.freeze(value))
        if txn.chains is not None:
            txn.chains.pop(raw, None)
    except BaseException as error:
        txn.doom(error)
        raise


async def _prepare(txn: Transaction, space: Space, raw: Key) -> None:
    """What a write needs beforehand: a snapshot that it has not changed since, or a lock."""
    if txn.mode == modes.PESSIMISTIC:
        await lock(txn, space, (key_span(raw),))
    elif txn.token is None and txn.mode in (modes.SNAPSHOT, modes.OPTIMISTIC):
        await txn.need_token()


async def claim(txn: Transaction, resource: Resource, span_of: Callable[[], Span]) -> None:
    """Lock a range, or a key, before it is read in order to be written."""
    try:
        if resource.space is not txn.home:
            txn.touch(resource.space)
        await lock(txn, resource.space, (span_of(),))
    except BaseException as error:
        txn.doom(error)
        raise


def put(txn: Transaction, raw: Key, frozen: bytes) -> None:
    """Decide a key's value."""
    txn.writes[raw] = Put(frozen)
    if txn.chains is not None:
        txn.chains.pop(raw, None)


async def delete(txn: Transaction, resource: Resource, key: Any) -> None:
    """Remove a value."""
    if txn.state:
        txn.refuse("delete")
    try:
        if resource.space is not txn.home:
            txn.touch(resource.space)
        if txn.stale is not None:
            txn.before_write()
        raw = resource.encode(key)
        if not txn.plain:
            await _prepare(txn, resource.space, raw)
    except BaseException as error:
        txn.doom(error)
        raise
    remove(txn, raw)


def remove(txn: Transaction, raw: Key) -> None:
    """Decide that a key has no value."""
    txn.writes[raw] = DELETE
    if txn.chains is not None:
        txn.chains.pop(raw, None)


async def update(txn: Transaction, resource: Resource, key: Any, fn: Any, default: Any = MISSING) -> Any:
    """Read, apply ``fn``, write; returns the new value."""
    if txn.mode == modes.PESSIMISTIC and not txn.state:
        await claim(txn, resource, lambda: key_span(resource.encode(key)))
    value = await txn.read(resource, key, MISSING)
    try:
        if value is MISSING:
            if default is MISSING:
                raise not_found(resource, key)
            value = default
        new = fn(value)
    except BaseException as error:
        txn.doom(error)
        raise
    await write(txn, resource, key, new)
    return new


def not_found(resource: Resource, key: Any) -> NotFoundError:
    """The error for a key that should have a value."""
    name = resource.space.name
    return NotFoundError(f"there is no value under {key!r} in resource {name!r}", resource=name, key=key)


async def clear(txn: Transaction, resource: Resource, prefix: Any, start: Any, stop: Any) -> None:
    """Delete every key of a range, also those that appear in it before the commit."""
    if txn.state:
        txn.refuse("clear")
    try:
        if resource.space is not txn.home:
            txn.touch(resource.space)
        txn.before_write()
        span = resource.space.span(prefix, start, stop)
        if txn.mode == modes.PESSIMISTIC:
            await lock(txn, resource.space, (span,))
        await txn.need_token()
    except BaseException as error:
        txn.doom(error)
        raise
    for raw in [raw for raw in txn.writes if span.start <= raw < span.stop]:
        del txn.writes[raw]
    for raw in [raw for raw in txn.chains or () if span.start <= raw < span.stop]:
        del (txn.chains or {})[raw]
    txn.plain = False
    txn.clears = [*(txn.clears or ()), Span(*span)]


async def add(txn: Transaction, resource: Resource, key: Any, amount: Any, floor: Any, ceiling: Any) -> None:
    """Add to a number."""
    await _merge(txn, resource, key, "add", lambda: merges.add_operation(amount, floor, ceiling))


async def append(txn: Transaction, resource: Resource, key: Any, item: Any) -> None:
    """Append to a list."""
    await _merge(txn, resource, key, "append", lambda: Operation("append", resource.element(item)))


async def set_add(txn: Transaction, resource: Resource, key: Any, item: Any) -> None:
    """Add to a set of str, bytes and int."""
    await _merge(txn, resource, key, "set_add", lambda: Operation("set_add", codec.freeze_member(item)))


async def set_remove(txn: Transaction, resource: Resource, key: Any, item: Any) -> None:
    """Remove from a set of str, bytes and int."""
    await _merge(txn, resource, key, "set_remove", lambda: Operation("set_remove", codec.freeze_member(item)))


async def maximum(txn: Transaction, resource: Resource, key: Any, value: Any) -> None:
    """Keep the larger of the stored value and ``value``."""
    await _merge(txn, resource, key, "maximum", lambda: merges.extreme_operation("maximum", value))


async def minimum(txn: Transaction, resource: Resource, key: Any, value: Any) -> None:
    """Keep the smaller of the stored value and ``value``."""
    await _merge(txn, resource, key, "minimum", lambda: merges.extreme_operation("minimum", value))


async def merge(txn: Transaction, resource: Resource, key: Any, operand: Any, using: str) -> None:
    """Merge by a registered function, or by the built-in ``"last"`` (last writer wins)."""
    if using == LAST_WRITER_WINS:
        await _merge(txn, resource, key, "merge", lambda: Operation("last", resource.freeze(operand)))
        return

    def custom() -> Custom:
        function = resource.space.merges.get(using)
        if function is None:
            known = ", ".join(sorted([*resource.space.merges, LAST_WRITER_WINS]))
            raise UsageError(
                f"no merge function {using!r} is registered for {resource.space.name!r}; there are {known}"
            )
        return Custom(function, operand, resource)

    await _merge(txn, resource, key, "merge", custom)


async def _merge(txn: Transaction, resource: Resource, key: Any, call: str, make: Any) -> None:
    if txn.state:
        txn.refuse(call)
    try:
        if resource.space is not txn.home:
            txn.touch(resource.space)
        if txn.stale is not None:
            txn.before_write()
        raw = resource.encode(key)
        step = make()
        if type(step) is Operation and resource.type is not PLAIN:
            resource.type.admit(step)
        if txn.mode == modes.PESSIMISTIC:
            await lock(txn, resource.space, (key_span(raw),))
        _note_step(txn, raw, step)
    except BaseException as error:
        txn.doom(error)
        raise


def _note_step(txn: Transaction, raw: Key, step: Step) -> None:
    own = txn.own(raw)
    if own is not MISSING:
        put(txn, raw, step.apply(own) if isinstance(step, Custom) else txn.merged(raw, own, (step,)))
        return
    chain = None if txn.chains is None else txn.chains.get(raw)
    before = txn.writes.get(raw)
    if chain is not None:
        chain.append(step)
    elif isinstance(step, Custom):
        earlier: list[Step] = list(before.operations) if type(before) is Merge else []
        txn.writes.pop(raw, None)
        txn.plain = False
        txn.chains = txn.chains or {}
        txn.chains[raw] = [*earlier, step]
    else:
        earlier_operations = before.operations if type(before) is Merge else ()
        txn.writes[raw] = Merge(merges.fold((*earlier_operations, step)))
        txn.operand_bytes += len(step.operand)
        if txn.operand_bytes > codec.VALUE_BYTES:  # more than a value of one key may take: the commit has to count
            txn.plain = False


class Mark:
    """A place in a transaction to roll back to: everything but the reads, which stay in the read set."""

    __slots__ = ("_chains", "_clears", "_guards", "_records", "_txn", "_writes", "handles")

    def __init__(self, txn: Transaction) -> None:
        self.handles: list[Any] = []
        self._txn = txn
        self._writes = dict(txn.writes)
        self._chains = {key: list(chain) for key, chain in (txn.chains or {}).items()}
        self._clears = list(txn.clears or ())
        self._records = dict(txn.records or {})
        self._guards = txn.guards

    def restore(self) -> None:
        """Take back what was written since. A doomed transaction stays doomed."""
        txn = self._txn
        txn.writes = dict(self._writes)
        txn.chains = {key: list(chain) for key, chain in self._chains.items()} or None
        txn.clears = list(self._clears) or None
        txn.records = dict(self._records) or None
        txn.guards = self._guards
