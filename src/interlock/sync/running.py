"""The first attempt of a synchronous `run`, as `interlock.store.Sessions.run` makes it, without a coroutine where
nothing is rare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock.core.commit import commit
from interlock.core.engine import Engine
from interlock.core.foresight import learn
from interlock.core.idempotency import Record, identify, operation_name
from interlock.core.options import DEFAULTS
from interlock.core.running import after_failure, look_up, other_colour
from interlock.core.space import Resource
from interlock.core.straight import commit_now, look_now
from interlock.core.transaction import current
from interlock.stepping import AgentSession, step


def run_in_place(
    engine: Engine, home: Resource | None, fn: Callable[..., Any], arguments: tuple[Any, ...], key: str | None
) -> Any:
    """Run a function as a transaction, without options or with an idempotency key alone, outside every session."""
    if key is None:
        operation, record, fingerprint = operation_name(fn), None, b""
    else:
        operation, record, fingerprint = identify(engine.agent, home, fn, arguments, key)
        engine.keys_in_use.enter(record, fingerprint, key)
    try:
        txn = engine.start(home, DEFAULTS, None)
        begun, value = engine.monotonic(), None
        try:
            txn.context = current.set(txn)
            txn.operation = operation
            if record is not None and not look_now(txn, record):
                step(look_up(txn, home, operation, arguments, record, fingerprint, key or ""))
            value = fn(AgentSession(txn, home), *arguments)
            if value is not None and hasattr(value, "__await__"):
                step(other_colour(fn, value, suspends=False))
            if record is not None:
                txn.records = {record: Record(key or "", fingerprint, value, engine.idempotency_ttl_seconds, home)}
            if not commit_now(txn):
                step(commit(txn))
            if record is not None and engine.direct is None:
                learn(home, operation, arguments, txn)
            return value
        except BaseException as error:
            failure = error
        finally:
            txn.leave_context()
        running = after_failure(engine, home, AgentSession, fn, arguments, key, operation, record, fingerprint)
        return step(running.go_on(txn, begun, failure, value))
    finally:
        if record is not None:
            engine.keys_in_use.leave(record)
