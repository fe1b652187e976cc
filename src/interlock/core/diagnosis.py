"""What `Store` and `SharedResource` of both worlds do outside transactions: outcomes, diagnostic reads, declarations.

Coroutines that suspend only where the backend does, so that the asynchronous facade awaits them and the synchronous
one steps them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar

from interlock.core.engine import Engine
from interlock.core.isolation import Isolation
from interlock.core.log import transaction_number
from interlock.core.moments import moment_of
from interlock.core.refusals import transaction_text, version_text
from interlock.core.retry import RetryPolicy
from interlock.core.scanning import check_limit
from interlock.core.space import Resource
from interlock.core.transaction import current
from interlock.errors import BackendError, CommitUnknownError, UnsupportedError, UsageError
from interlock.keys import UserKey as Key
from interlock.keys import check_name
from interlock.model import Settled

V = TypeVar("V")

_PAGE = 500
_EVERY_VERSION = 1_000_000


class Outcome(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    """Final: it never will."""
    UNKNOWN = "unknown"
    """The engine cannot be reached, or the id is older than what the store keeps."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """A version of a key, for diagnosis. ``at`` is the engine's time; ``transaction_id`` and ``agent`` are "" and
    ``at`` is None where the engine no longer knows. ``value`` is None and ``deleted`` True for a version that removed
    the key."""

    key: Key
    value: V | None
    version: str
    transaction_id: str
    agent: str
    at: datetime | None
    deleted: bool = False


def settings_of(
    agent: str | None,
    isolation: Isolation,
    retry: RetryPolicy | None,
    idempotency_ttl_seconds: float,
    history_seconds: float,
) -> dict[str, Any]:
    """The keyword arguments of `Store`, as `open` takes them."""
    return {
        "agent": agent,
        "isolation": isolation,
        "retry": retry,
        "idempotency_ttl_seconds": idempotency_ttl_seconds,
        "history_seconds": history_seconds,
    }


def reopen(opener: Callable[..., Any], origin: tuple[str, dict[str, Any]]) -> Any:
    """Unpickling a store: the same URL and options in this process."""
    url, settings = origin
    return opener(url, **settings)


def refuse_pickle(origin: tuple[str, dict[str, Any]] | None) -> None:
    """Raises `UnsupportedError` for a store that no other process can open."""
    if origin is None:
        raise UnsupportedError(
            "a store made from a backend object cannot be pickled; use open(url)", capability="processes"
        )
    if origin[0].startswith("memory:"):
        raise UnsupportedError(
            "a memory store lives in one process and cannot be pickled; use sqlite:///", capability="processes"
        )


async def find_outcome(engine: Engine, transaction_id: str) -> Outcome:
    """`Store.outcome` of both worlds."""
    engine.check_open()
    number = transaction_number(transaction_id)
    try:
        settled, _ = await engine.backend.outcome(number, fence=True)
    except (BackendError, CommitUnknownError):
        return Outcome.UNKNOWN
    if settled is Settled.COMMITTED:
        return Outcome.COMMITTED
    return Outcome.NOT_COMMITTED if settled is Settled.FENCED else Outcome.UNKNOWN


async def compact_all(engine: Engine, progress: Callable[[int], object] | None) -> int:
    """`Store.compact` of both worlds."""
    engine.check_open()
    dropped = 0
    while found := await engine.compact(1000):
        dropped += found
        if progress is not None:
            progress(dropped)
    return dropped


def declare(declarer: Callable[..., None], name: str, check: Any, resource: Resource) -> Any:
    """`invariant` of both worlds."""
    if check is not None:
        declarer(name, check, resource)
        return check

    def decorate(function: Any) -> Any:
        declarer(name, function, resource)
        return function

    return decorate


def register_merge(resource: Resource, name: str, function: Any) -> Any:
    """`register_merge` of both worlds."""
    check_name("a merge function's name", name)

    def register(given: Any) -> Any:
        if not callable(given):
            raise UsageError(f"a merge function takes (value or None, operand), {given!r:.40} is not callable")
        if name == "last" or resource.space.merges.get(name, given) is not given:
            raise UsageError(f"resource {resource.space.name!r} already has a merge function {name!r}")
        resource.space.merges[name] = given
        return given

    return register if function is None else register(function)


def refuse_in_session(engine: Engine, call: str) -> None:
    """Diagnostic reads inside a session are nearly always a mistake."""
    engine.check_open()
    open_transaction = current.get()
    if open_transaction is not None and open_transaction.engine is engine and open_transaction.state == 0:
        raise UsageError(f"resource.{call} is not validated; inside a session use session.{call}")


async def diagnose(engine: Engine, resource: Resource, key: Key, default: Any) -> Any:
    """`read` and `get` of both worlds."""
    refuse_in_session(engine, "read")
    entry = (await engine.backend.read((resource.encode(key),))).entries[0]
    return default if entry is None or entry.value is None else resource.thaw(entry.value)


async def rows(
    engine: Engine, resource: Resource, prefix: Any, start: Any, stop: Any, limit: int | None, reverse: bool
) -> AsyncIterator[tuple[Any, Any]]:
    """`scan` of both worlds."""
    refuse_in_session(engine, "scan")
    span, token, left = resource.space.span(prefix, start, stop), None, check_limit(limit)
    while True:
        size = _PAGE if left is None else min(left, _PAGE)
        page = await engine.backend.scan(span, token, limit=size, reverse=reverse)
        token = page.token
        for raw, entry in page.items:
            if entry.value is not None:
                yield resource.space.decode(raw), resource.thaw(entry.value)
        left = None if left is None else left - len(page.items)
        if not page.more or not page.items or left == 0:
            return
        last = page.items[-1][0]
        span = span._replace(stop=last) if reverse else span._replace(start=last + b"\0")


async def versions(engine: Engine, resource: Resource, key: Key, limit: int | None) -> AsyncIterator[Entry[Any]]:
    """`history` of both worlds."""
    refuse_in_session(engine, "history")
    count = check_limit(limit)
    found = await engine.backend.history(resource.encode(key), limit=_EVERY_VERSION if count is None else count)
    for entry, author in found:
        yield Entry(
            key=key,
            value=None if entry.value is None else resource.thaw(entry.value),
            version=version_text(entry.version) or "",
            transaction_id="" if author is None else transaction_text(author.transaction),
            agent="" if author is None else author.agent,
            at=None if author is None else moment_of(author.at),
            deleted=entry.value is None,
        )
