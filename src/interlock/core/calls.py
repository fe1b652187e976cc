"""The states of an attempt, and the watch over its calls.

Each call of an asynchronous handle gives out a coroutine. The last one is remembered: one that has not finished when
the next call comes is either used by two tasks at once, which is refused, or was made and not yet awaited, which is
legal only if it is awaited before the end. So a forgotten ``await`` never loses a write in silence.

The commonest calls take themselves off at their end (``last_call`` is None then), where ``calls`` is None: no call was
ever made while another had not finished, so the one that is remembered is the one that ends, or one of which it is a
part and which waits for nothing but its parts. That is only to spare whoever comes next a look at it.

While a call waits for the engine the attempt is BUSY, and while it is being committed it is CHECKING (invariants may
read) and then SENDING. Every other call meets that state and is refused, however many were made before.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from interlock.errors import UsageError
from interlock.wording import message_of

T = TypeVar("T")
A = TypeVar("A", bound="Attempted")

ACTIVE, READY, DOOMED, COMMITTED, ROLLED_BACK, LEFT_BEHIND, BUSY, CHECKING, SENDING, LEFT = range(10)
_STATES: Final = (
    "active",
    "not entered yet",
    "doomed",
    "already committed",
    "already rolled back",
    "of the process before os.fork()",
    "busy with another call: a session is used by one task or thread at a time",
    "being committed",
    "being committed",
    "already left; what it did is part of the session that it had joined",
)
ENDED: Final = (COMMITTED, ROLLED_BACK, LEFT_BEHIND, LEFT)
LIVE: Final = (ACTIVE, BUSY, CHECKING)


class Attempted(msgspec.Struct, eq=False, kw_only=True):
    """State, error and calls of one attempt.

    A struct, here and in `interlock.core.transaction`, because its many fields get their defaults without running any
    Python."""

    state: int = ACTIVE
    error: BaseException | None = None
    last_call: Any = None
    calls: list[Any] | None = None
    thread: int | None = None

    def refuse(self, call: str) -> NoReturn:
        """Raises `UsageError` for a call that the state does not allow."""
        if self.state == DOOMED:
            raise UsageError(
                f"session.{call}: the session is doomed, it can only be rolled back: {message_of(self.error)}"
            ) from self.error
        error = UsageError(f"session.{call}: the session is {_STATES[self.state]}")
        if self.state == BUSY:
            self.doom(error)
        raise error

    def admit_read(self, call: str) -> None:
        """Refuse a read that the state does not allow; the views of invariants may read while it is CHECKING."""
        if self.state != CHECKING:
            self.refuse(call)

    async def alone(self, call: Awaitable[T]) -> T:
        """Await the engine; meanwhile every other call is refused. Whoever calls this dooms the attempt on an error."""
        before, self.state = self.state, BUSY
        result = await call
        if self.state == BUSY:
            self.state = before
        return result

    def doom(self, error: BaseException) -> None:
        """From now on it cannot commit; its exit raises ``error``."""
        if self.state in LIVE:
            self.state, self.error = DOOMED, error

    def admit_call(self, call: Coroutine[Any, Any, Any]) -> None:
        """Remember the coroutine that a handle gives out, to find calls that overlap or are never awaited."""
        last = self.last_call
        if last is not None and last.cr_frame is not None:
            self._look_at_unfinished(last, call)
        self.last_call = call

    def _look_at_unfinished(self, last: Any, call: Any) -> None:
        if inspect.getcoroutinestate(last) == inspect.CORO_CREATED:
            self.calls = [*(self.calls or ()), last]  # legal if it is awaited before the end
            return
        call.close()
        error = UsageError(f"session.{_name(last)} has not finished: a session is used by one task at a time")
        self.doom(error)
        raise error

    def settle_calls(self) -> None:
        """At the end: a call that was never awaited, or still runs elsewhere, dooms the transaction."""
        last = self.last_call
        if self.calls is None and (last is None or last.cr_frame is None):
            return
        open_calls = [call for call in (*(self.calls or ()), last) if call is not None and call.cr_frame is not None]
        self.calls = self.last_call = None
        if not open_calls:
            return
        names = ", ".join(f"session.{_name(call)}" for call in open_calls)
        for call in open_calls:
            if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
                call.close()
        self.doom(UsageError(f"never awaited to its end: {names}. Nothing was written; put an await in front"))


def stored_plainly(kind: type[A]) -> type[A]:
    """Have the fields of a struct stored as those of any object are, in half the time.

    A struct asks at each store whether the collector has to hear of it now. The collector must know the instances of
    ``kind`` from the beginning, because they hold something that can be part of a cycle. (What the class's body says of
    storing, msgspec replaces.)"""
    kind.__setattr__ = object.__setattr__  # type: ignore[method-assign]
    kind.__delattr__ = object.__delattr__  # type: ignore[method-assign]
    return kind


def _name(call: Any) -> str:
    return str(call.__name__).lstrip("_")
