"""Reading and rewriting ranges: a backend's pages with the transaction's own writes laid over them.

What was scanned is put into the read set as a span, which is validated as a whole: membership and content. The span
grows with what the caller has really consumed: a page is fetched when it is needed, small ones first, and only the
fetched part counts, so that taking the first key of a queue does not depend on its tail. In the modes that do not
validate spans, the keys that were found count as keys read (and an insert into the range goes unnoticed: the phantom
that those modes allow).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from interlock.core import isolation as modes
from interlock.core import writing
from interlock.core.extension import extend
from interlock.core.locking import lock, read_locked, space_of
from interlock.core.space import Resource
from interlock.core.transaction import DELETE, MISSING, Transaction
from interlock.errors import UsageError
from interlock.model import Key, Page, Span

_FIRST_PAGE = 32
_LAST_PAGE = 1024


async def scan(
    txn: Transaction,
    resource: Resource,
    prefix: Any = None,
    start: Any = None,
    stop: Any = None,
    limit: int | None = None,
    reverse: bool = False,
) -> AsyncIterator[tuple[Any, Any]]:
    """Keys and values of a range in key order, as the transaction sees them."""
    left = check_limit(limit)
    async for rows in _pages(txn, resource, prefix, start, stop, left, reverse, "scan"):
        for raw, value in rows:
            try:
                row = (resource.space.decode(raw), resource.thaw(value))
            except BaseException as error:
                txn.doom(error)
                raise
            yield row
            if left is not None:
                left -= 1
                if left <= 0:
                    return


def check_limit(limit: int | None) -> int | None:
    """Raises `UsageError` for a limit that is not a whole number from 1."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"limit is a whole number from 1, not {limit!r}")
    return limit


async def _pages(
    txn: Transaction,
    resource: Resource,
    prefix: Any,
    start: Any,
    stop: Any,
    limit: int | None,
    reverse: bool,
    call: str,
) -> AsyncIterator[list[tuple[Key, bytes]]]:
    if txn.state:
        txn.admit_read(call)
    try:
        if resource.space is not txn.home:
            txn.touch(resource.space)
        rest = resource.space.span(prefix, start, stop)
    except BaseException as error:
        txn.doom(error)
        raise
    size = min(limit or _FIRST_PAGE, _LAST_PAGE)
    while rest.start < rest.stop:
        try:
            if txn.state:
                txn.admit_read(call)
            page = await _page(txn, rest, size, reverse)
            seen, rest = _cut(rest, page, reverse)
            rows = _overlay(txn, seen, page, reverse)
        except BaseException as error:
            txn.doom(error)
            raise
        yield rows
        size = min(2 * size, _LAST_PAGE)


async def _page(txn: Transaction, span: Span, size: int, reverse: bool) -> Page:
    """The next page; notes what was read, and moves the snapshot forward where that is possible."""
    txn.check_time()
    newest = txn.mode == modes.NONE and txn.invariant_spans is None
    if txn.mode == modes.PESSIMISTIC:
        await lock(txn, space_of(txn, span.start), (span,), shared=True)
    page = await txn.alone(txn.backend.scan(span, None if newest else txn.token, limit=size, reverse=reverse))
    if txn.unchecked is not None:
        found = await txn.alone(txn.backend.read(txn.rules_keys(), page.token))
        txn.admit_by(found.entries)
    if txn.token is None or newest:
        txn.token = page.token
    elif page.superseded and txn.mode >= modes.OPTIMISTIC and await extend(txn):
        page = await txn.alone(txn.backend.scan(span, txn.token, limit=size, reverse=reverse))
    return page


def _cut(span: Span, page: Page, reverse: bool) -> tuple[Span, Span]:
    """What a page has covered of a span, and what is left of it."""
    if not page.more or not page.items:
        return span, Span(span.stop, span.stop)
    last = page.items[-1][0]
    if reverse:
        return Span(last, span.stop), Span(span.start, last)
    after = last + b"\0"
    return Span(span.start, after), Span(after, span.stop)


def _overlay(txn: Transaction, seen: Span, page: Page, reverse: bool) -> list[tuple[Key, bytes]]:
    txn.plain = False
    txn.spans = txn.spans or []
    txn.spans.append(seen)
    if txn.invariant_spans is not None:
        txn.invariant_spans.append(seen)
    found: dict[Key, bytes | None] = {}
    keyed = txn.mode < modes.SERIALIZABLE
    for key, entry in page.items:
        if keyed:
            txn.reads.setdefault(key, entry)
        found[key] = entry.value
    if txn.writes or txn.clears or txn.chains:
        for key in {*found, *txn.writes, *(txn.chains or ())}:
            if seen.start <= key < seen.stop:
                _lay_over(txn, key, found, keyed)
    rows = [(key, value) for key, value in found.items() if value is not None]
    rows.sort(reverse=reverse)
    return rows


def _lay_over(txn: Transaction, key: Key, found: dict[Key, bytes | None], keyed: bool) -> None:
    """Put what the transaction itself did to a key in the place of what the page has."""
    own = txn.own(key)
    if own is not MISSING:
        found[key] = own
        return
    if keyed and key not in found:  # what it merged counts as read, also where there was nothing
        txn.reads.setdefault(key, None)
    found[key] = txn.pending(key, found.get(key))


async def update_where(
    txn: Transaction, resource: Resource, fn: Any, prefix: Any = None, start: Any = None, stop: Any = None
) -> int:
    """Give every key of a range a new value, or `DELETE` it; returns how many were changed."""
    if txn.mode == modes.PESSIMISTIC and not txn.state:
        await writing.claim(txn, resource, lambda: resource.space.span(prefix, start, stop))
    pages = _pages(txn, resource, prefix, start, stop, None, False, "update_where")
    rows = [row async for page in pages for row in page]
    changed = 0
    try:
        txn.before_write()
        for raw, value in rows:
            new = fn(resource.space.decode(raw), resource.thaw(value))
            if new is DELETE:
                writing.remove(txn, raw)
                changed += 1
                continue
            frozen = resource.freeze(new)
            if frozen != value:
                writing.put(txn, raw, frozen)
                changed += 1
    except BaseException as error:
        txn.doom(error)
        raise
    return changed


async def read_many(txn: Transaction, resource: Resource, wanted: list[Any]) -> dict[Any, Any]:
    """Several keys in one round trip; those without a value are left out."""
    if txn.state:
        txn.admit_read("read_many")
    try:
        if resource.space is not txn.home:
            txn.touch(resource.space)
        raws = [resource.encode(key) for key in wanted]
        await _fetch_all(txn, raws)
        found = {}
        for key, raw in zip(wanted, raws, strict=True):
            value = txn.own(raw)
            if value is MISSING:
                entry = txn.reads[raw]
                value = txn.pending(raw, None if entry is None else entry.value)
            if value is not None:
                found[key] = resource.thaw(value)
        return found
    except BaseException as error:
        txn.doom(error)
        raise


async def _fetch_all(txn: Transaction, raws: list[Key]) -> None:
    """Put keys into the read set, all from one state; see `Transaction.fetch`."""
    undecided = [raw for raw in dict.fromkeys(raws) if txn.own(raw) is MISSING]
    if txn.invariant_reads is not None:
        txn.invariant_reads.update(undecided)
    missing = undecided if txn.mode == modes.NONE else [raw for raw in undecided if raw not in txn.reads]
    if not missing:
        return
    txn.check_time()
    if txn.mode == modes.PESSIMISTIC:
        await read_locked(txn, missing)
        return
    if txn.token is None:
        for raw in missing:
            if raw in txn.engine.gates.open:
                await txn.queue_for(raw)
    newest = txn.mode == modes.NONE and txn.invariant_reads is None
    reading = await txn.alone(txn.backend.read([*missing, *txn.rules_keys()], None if newest else txn.token))
    if txn.unchecked is not None:
        txn.admit_by(reading.entries[len(missing) :])
    if txn.token is None or newest:
        txn.token = reading.token
    elif reading.superseded and txn.mode >= modes.OPTIMISTIC and await extend(txn):
        reading = await txn.alone(txn.backend.read(missing, txn.token))
    txn.reads.update(zip(missing, reading.entries, strict=False))
