"""Objects of `interlock.sync` in a form that a body for `interlock` can await.

A `Dressed` object has the calls of its inner one. Those that an asynchronous store has to await come as async
functions that never suspend, iterators can be used with ``async for``, managers with ``async with``. Functions that are
handed in are async as well; `undressed` turns each into a plain function, always the same one for the same function,
with its name, its parameters and (if it closes over something) a closure, because idempotency keys bind all of these.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import interlock.sync
from interlock.testing.conformance.world import step

T = TypeVar("T")

_AWAITED: Final = {
    *("run", "run_detailed", "begin", "outcome", "compact", "close", "read", "get", "entry", "head", "wait"),
    *("expect", "exists", "read_many", "write", "update", "delete", "clear", "update_where", "add", "append"),
    *("set_add", "set_remove", "maximum", "minimum", "merge", "memo", "check", "commit", "rollback"),
}
_ITERATED: Final = {"scan", "history", "changes", "attempts"}
_DRESSED: Final = (
    interlock.sync.Store,
    interlock.sync.SharedResource,
    interlock.sync.AgentView,
    interlock.sync.Attempt,
    interlock.sync.TransactionLog,
)


class Dressed:
    """See the module."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "transactional":
            return functools.partial(_transactional, found)
        if name == "invariant":
            return functools.partial(_invariant, found)
        if name in _AWAITED:
            return functools.partial(_awaited, found)
        if callable(found):
            return functools.partial(_called, found, name in _ITERATED)
        return dress(found)

    async def __aenter__(self) -> Any:
        entered = self.inner.__enter__()
        return self if entered is self.inner else dress(entered)

    async def __aexit__(self, *exception: Any) -> Any:
        return self.inner.__exit__(*exception)


class _Rows(AsyncIterator[T]):
    """A plain iterator for ``async for``; no async generator, which would have to be closed by an event loop."""

    def __init__(self, rows: Iterator[T]) -> None:
        self._rows = rows

    async def __anext__(self) -> T:
        for row in self._rows:
            return dress(row)  # type: ignore[no-any-return]
        raise StopAsyncIteration


def dress(value: Any) -> Any:
    """A synchronous object dressed; anything else as it is."""
    return Dressed(value) if isinstance(value, _DRESSED) else value


def undressed(value: Any) -> Any:
    """What the synchronous world is to be given for ``value``."""
    if isinstance(value, Dressed):
        return value.inner
    if isinstance(value, functools.partial):
        return functools.partial(undressed(value.func), *value.args, **value.keywords)
    if inspect.iscoroutinefunction(value):
        return _plain(value)
    return value


async def _awaited(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return _called(call, False, *arguments, **named)


def _called(call: Callable[..., Any], iterated: bool, *arguments: Any, **named: Any) -> Any:
    given = {name: undressed(value) for name, value in named.items()}
    found = call(*[undressed(value) for value in arguments], **given)
    return _Rows(found) if iterated else dress(found)


def _invariant(call: Callable[..., Any], name: Any, check: Any = None) -> Any:
    if check is not None:
        call(name, undressed(check))
        return check

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        call(name)(undressed(fn))
        return fn

    return decorate


def _transactional(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        plain = call(**options)(undressed(fn))

        @functools.wraps(fn)
        async def run(*arguments: Any, **named: Any) -> Any:
            return plain(*arguments, **named)

        return run

    return decorate


_plains: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _plain(fn: Any) -> Any:
    """The same plain function for the same async one; of a method, a method of the same object."""
    if inspect.ismethod(fn):
        return types.MethodType(_plain(fn.__func__), fn.__self__)
    found = _plains.get(fn)
    if found is None:
        world = {"_fn": fn, "_step": step, "_dress": dress}
        code = _open.__code__
        found = types.FunctionType(code, world)
        if fn.__closure__:
            found = _closed(fn)
        functools.update_wrapper(found, fn)
        _plains[fn] = found
    return found


def _open(*arguments: Any, **named: Any) -> Any:
    # runs with other globals, so that it closes over nothing: see _plain
    return _step(_fn(*[_dress(argument) for argument in arguments], **named))  # type: ignore[name-defined]  # noqa: F821


def _closed(fn: Any) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        return step(fn(*[dress(argument) for argument in arguments], **named))

    return call
