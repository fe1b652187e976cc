"""Backends that misbehave on purpose: wrappers around a real one, for both colours."""

from __future__ import annotations

import copy
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from interlock.errors import CommitUnknownError

Call = Callable[[], Awaitable[Any]]


class Wrapped:
    """A backend that hands each call to `around`, which may do as it likes. Its leaf for steppers shares its state."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    suspends = property(lambda self: self.inner.suspends)
    blocks = property(lambda self: self.inner.blocks)
    capabilities = property(lambda self: self.inner.capabilities)
    limits = property(lambda self: self.inner.limits)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*args: Any, **named: Any) -> Any:
            return await self.around(name, args, lambda: method(*args, **named))

        return call

    async def around(self, name: str, args: tuple[Any, ...], call: Call) -> Any:
        """What becomes of one call of the port."""
        return await call()

    def blocking(self) -> Wrapped:
        """The same faults over the engine's blocking leaf."""
        leaf = copy.copy(self)
        leaf.inner = self.inner.blocking()
        return leaf

    def __reduce_ex__(self, protocol: Any) -> Any:  # copy.copy must not ask the inner backend how to pickle
        return _copied, (type(self), dict(self.__dict__))


def _copied(kind: type[Wrapped], state: dict[str, Any]) -> Wrapped:
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


def is_commit(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call is a commit that writes, and no mere validation."""
    return name == "commit" and bool(args[0].writes or args[0].clears)


class Counted(Wrapped):
    """Notes the name of every call of the port; ``commits`` are those that write."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.commits: list[Any] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Call) -> Any:
        """Note it."""
        self.calls.append(name)
        if is_commit(name, args):
            self.commits.append(args[0])
        return await call()


class LostReplies(Counted):
    """Loses the replies to some commits: ``plan[n]`` says what happens to the n-th (from 1).

    "before": it never arrives; "after": it is done, and the reply is lost; otherwise an error to raise instead."""

    def __init__(self, inner: Any, plan: dict[int, Any]) -> None:
        super().__init__(inner)
        self.plan = plan

    async def around(self, name: str, args: tuple[Any, ...], call: Call) -> Any:
        """Lose it, if it is its turn."""
        fault = None
        if is_commit(name, args):
            self.commits.append(args[0])
            fault = self.plan.get(len(self.commits))
        if fault is None:
            return await call()
        if fault == "after":
            await call()
        if isinstance(fault, BaseException):
            raise fault
        raise CommitUnknownError("the connection was lost", transaction_id=f"{args[0].transaction:032x}")


class Broken(Wrapped):
    """Works until ``error`` is set; from then on every call of the port raises it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.broken: list[Exception] = []

    async def around(self, name: str, args: tuple[Any, ...], call: Call) -> Any:
        """Fail, once it is broken."""
        if self.broken and name != "close":
            raise self.broken[0]
        return await call()


class Hooked(Wrapped):
    """Calls ``hook(name, args)`` before each call of the port; what the hook raises comes instead of the call."""

    def __init__(self, inner: Any, hook: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__(inner)
        self.hook = hook

    async def around(self, name: str, args: tuple[Any, ...], call: Call) -> Any:
        """Ask the hook first."""
        self.hook(name, args)
        return await call()


@types.coroutine
def pause() -> Generator[None, None, None]:
    """Suspend once, on asyncio or under a test that drives the coroutine by hand."""
    yield


class Pausing(Wrapped):
    """Suspends before and after each call, so that a caller can be cancelled at every point where anything happens."""

    async def around(self, name: str, args: tuple[Any, ...], call: Call) -> Any:
        """Pause, call, pause."""
        await pause()
        result = await call()
        await pause()
        return result
