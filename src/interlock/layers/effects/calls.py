"""The caller's act: how it is called, what its payload's fingerprint is, and what its errors mean.

**What an error means.** An act that raises says that it failed, and the record becomes FAILED: whoever calls again with
the same key executes it again (after asking ``verify``, where there is one). But some errors do not say that: the
request was sent and no answer came. They are recorded as UNKNOWN, because a repetition might do it twice:

- everything that is no `Exception`: cancellation, Ctrl-C, `SystemExit`;
- `EffectUnknownError`, by which an act can say so itself, and every other error of this library that is
  ``maybe_committed``;
- `TimeoutError`, `ConnectionError`, and any error with a class in its ancestry whose name speaks of a timeout, a
  connection, a transport or a network, which is how HTTP libraries, model providers and drivers call theirs
  (``ReadTimeout``, ``APIConnectionError``, ``RemoteDisconnected``). `ConnectionRefusedError` alone is a failure:
  nothing was sent;
- an error that was raised from one of these, or while one was handled.

The names are a heuristic, and it errs to the safe side: taken for unknown, an effect waits for somebody to look.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import msgspec

from interlock import codec
from interlock.core.idempotency import operation_name
from interlock.errors import InterlockError, LimitExceededError, UsageError, ValueRefusedError

_FINGERPRINT_BYTES: Final = 16
_SIMPLE: Final = frozenset((str, int, bool, type(None)))
_NO_ANSWER: Final = re.compile(
    r"time(d)?out|connect(ion)?error|disconnect|connectionreset|transport|network", re.IGNORECASE
)
_CHAIN: Final = 20
KEY_PARAMETER: Final = "idempotency_key"
_ANY_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
_VARIADIC: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class Act:
    """A function and its arguments, looked through and checked; ``named`` is what it is called with by name."""

    __slots__ = ("arguments", "fn", "named", "operation", "values")

    def __init__(self, fn: Callable[..., Any], arguments: tuple[Any, ...], key: str) -> None:
        if not callable(fn):
            raise UsageError(f"an act is a function, not {type(fn).__name__}")
        inner: Any = fn
        named: dict[str, Any] = {}
        while isinstance(inner, functools.partial):
            arguments, named = (*inner.args, *arguments), {**inner.keywords, **named}
            inner = inner.func
        self.fn = inner
        self.operation = operation_name(inner)
        self.arguments, self.named, self.values = _bind(inner, arguments, named, key)

    def call(self) -> Any:
        """Call it; what it returns may have to be awaited."""
        return self.fn(*self.arguments, **self.named)

    def fingerprint(self) -> bytes:
        """Binds the act's name and its arguments by name. Raises `UsageError` for what has no stored form."""
        values = self.values
        if _SIMPLE.issuperset(map(type, values.values())):
            try:
                raw = msgspec.msgpack.encode(("plain act", self.operation, sorted(values.items())))
            except (ValueError, OverflowError):  # half a surrogate pair, a large int: judged below
                pass
            else:
                return hashlib.blake2b(raw, digest_size=_FINGERPRINT_BYTES).digest()
        try:
            return _digest(("act", self.operation, values))
        except (ValueRefusedError, LimitExceededError) as error:
            raise UsageError(
                f"the arguments of {self.operation} cannot be part of a fingerprint ({error}); pass ids instead of "
                "objects, or pass payload="
            ) from error


def _bind(
    fn: Any, arguments: tuple[Any, ...], named: dict[str, Any], key: str
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """What to call it with, by place and by name, and all arguments by name but the key.

    Raises `UsageError` if it cannot be called so."""
    if type(fn) is FunctionType and not named:
        code = fn.__code__
        names = code.co_varnames[: code.co_argcount]
        if not code.co_flags & _VARIADIC and not code.co_kwonlyargcount:
            if len(names) == len(arguments) and KEY_PARAMETER not in names:
                return arguments, {}, dict(zip(names, arguments, strict=True))
            if len(names) == len(arguments) + 1 and names[-1] == KEY_PARAMETER:
                return (*arguments, key), {}, dict(zip(names, arguments, strict=False))
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return arguments, named, {"": arguments, **named}
    try:
        place = list(signature.parameters).index(KEY_PARAMETER)
    except ValueError:
        place = -1
    if place >= 0 and KEY_PARAMETER not in named:
        arguments, named = _with_key(signature, place, arguments, named, key)
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as error:
        raise UsageError(f"{operation_name(fn)} cannot be called like this: {error}") from None
    bound.apply_defaults()
    return arguments, named, {name: value for name, value in bound.arguments.items() if name != KEY_PARAMETER}


def _with_key(
    signature: inspect.Signature, place: int, arguments: tuple[Any, ...], named: dict[str, Any], key: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the key filled in, if they fit the signature without it; as they are otherwise."""
    others = [each for each in signature.parameters.values() if each.name != KEY_PARAMETER]
    try:
        signature.replace(parameters=others).bind(*arguments, **named)
    except (TypeError, ValueError):
        return arguments, named
    kind = signature.parameters[KEY_PARAMETER].kind
    if kind is not inspect.Parameter.KEYWORD_ONLY and place <= len(arguments):
        return (*arguments[:place], key, *arguments[place:]), named
    return arguments, {**named, KEY_PARAMETER: key}


def _digest(what: Any) -> bytes:
    return hashlib.blake2b(codec.canonical(what), digest_size=_FINGERPRINT_BYTES).digest()


def payload_fingerprint(effect: str, payload: Any) -> bytes:
    """Binds what the user passes. Raises `ValueRefusedError` if it has no stored form."""
    return _digest(("payload", effect, payload))


def is_unanswered(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether an act that raised this may have been done all the same. ``handled`` is what was being handled already
    when the act was called, and says nothing about it."""
    seen: set[int] = set() if handled is None else {id(handled)}
    pending = [error]
    while pending and len(seen) < _CHAIN:
        found = pending.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if _says_nothing(found):
            return True
        if isinstance(found, BaseExceptionGroup):
            pending += found.exceptions
        pending += [cause for cause in (found.__cause__, found.__context__) if cause is not None]
    return False


def _says_nothing(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return not isinstance(error, BaseExceptionGroup)
    if isinstance(error, InterlockError):
        return error.maybe_committed
    if isinstance(error, ConnectionRefusedError):
        return False
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    return any(_NO_ANSWER.search(kind.__name__) for kind in type(error).__mro__)


def refuse_async(fn: Any, what: str) -> None:
    """Raises `UsageError` for an async function in synchronous code, before it is called."""
    if fn is None or (type(fn) is FunctionType and not fn.__code__.co_flags & _ANY_ASYNC and not fn.__dict__):
        return
    if inspect.iscoroutinefunction(fn):
        raise UsageError(f"the {what} is an async function: use interlock, not interlock.sync")


def close_unused(value: Any) -> None:
    """A coroutine that will not be awaited."""
    if inspect.iscoroutine(value):
        value.close()
