"""`run_plainly` and `run_keyed` of `interlock.core.running` for synchronous code, without a coroutine where nothing is
rare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock.core.commit import commit
from interlock.core.engine import Engine
from interlock.core.foresight import learn
from interlock.core.idempotency import Record, identify, operation_name
from interlock.core.options import DEFAULTS, Chosen
from interlock.core.running import Running, look_up, other_colour
from interlock.core.space import Resource
from interlock.core.straight import commit_now, look_now
from interlock.core.transaction import current
from interlock.stepping import AgentSession, step


def run_plainly(engine: Engine, home: Resource | None, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a function as a transaction, without options and outside every session."""
    txn = engine.start(home, DEFAULTS, None)
    begun, value = engine.monotonic(), None
    try:
        txn.context = current.set(txn)
        txn.operation = operation_name(fn)
        value = fn(AgentSession(txn, home), *arguments)
        if value is not None and hasattr(value, "__await__"):
            step(other_colour(fn, value, suspends=False))
        if not commit_now(txn):
            step(commit(txn))
        return value
    except BaseException as error:
        failure = error
    finally:
        txn.leave_context()
    running = Running(engine, home, DEFAULTS, AgentSession, fn, arguments)
    return step(running.go_on(txn, begun, failure, value))


def run_keyed(
    engine: Engine,
    home: Resource | None,
    fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    key: str,
) -> Any:
    """The same with an idempotency key and no other option."""
    operation, record, fingerprint = identify(engine.agent, home, fn, arguments, key)
    engine.keys_in_use.enter(record, fingerprint, key)
    try:
        txn = engine.start(home, DEFAULTS, None)
        begun, value = engine.monotonic(), None
        try:
            txn.context = current.set(txn)
            txn.operation = operation
            if not look_now(txn, record):
                step(look_up(txn, home, operation, arguments, record, fingerprint, key))
            value = fn(AgentSession(txn, home), *arguments)
            if value is not None and hasattr(value, "__await__"):
                step(other_colour(fn, value, suspends=False))
            txn.records = {record: Record(key, fingerprint, value, engine.idempotency_ttl_seconds, home)}
            if not commit_now(txn):
                step(commit(txn))
            if engine.direct is None:
                learn(home, operation, arguments, txn)
            return value
        except BaseException as error:
            failure = error
        finally:
            txn.leave_context()
        chosen = Chosen(idempotency_key=key, usual=True)
        running = Running(engine, home, chosen, AgentSession, fn, arguments, {}, operation, record, fingerprint)
        return step(running.go_on(txn, begun, failure, value))
    finally:
        engine.keys_in_use.leave(record)
