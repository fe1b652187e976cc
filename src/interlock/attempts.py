"""Attempts for bodies in place, in asynchronous code: see `SharedResource.attempts`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from interlock.core import handles
from interlock.core.calls import READY
from interlock.core.retrying import Retrying
from interlock.core.session import AgentSession
from interlock.core.transaction import Transaction
from interlock.errors import UsageError

V = TypeVar("V")


class Attempts(AsyncIterator["Attempt[Any]"]):
    """Attempts until one is done. No generator: who leaves the loop early leaves nothing for an event loop to close."""

    def __init__(self, retrying: Retrying) -> None:
        self._retrying = retrying
        self._attempt: Attempt[Any] | None = None

    async def __anext__(self) -> Attempt[Any]:
        if self._attempt is None:
            handles.refuse_nested_attempts(self._retrying.engine, self._retrying.chosen)
        elif self._attempt._over():
            raise StopAsyncIteration
        else:
            await self._retrying.pause()
        self._attempt = Attempt(self._retrying)
        return self._attempt


class Attempt(Generic[V]):
    """One attempt of `attempts`: decides at its exit whether a failure allows another one."""

    __slots__ = ("_done", "_entered", "_retrying", "_session", "_txn")

    def __init__(self, retrying: Retrying) -> None:
        self._retrying = retrying
        self._txn: Transaction | None = None
        self._session: AgentSession[V] | None = None
        self._done = False
        self._entered = False

    def _over(self) -> bool:
        """Whether there is no other attempt after this one."""
        if not self._entered:
            raise UsageError("an attempt was not entered; write `async with attempt, attempt.session() as session:`")
        return self._done

    @property
    def number(self) -> int:
        """Which attempt this is, from 1."""
        return self._retrying.attempt + (0 if self._entered else 1)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise UsageError("an attempt is entered once")
        self._txn = await self._retrying.begin()
        self._txn.state = READY
        self._entered = True
        return self

    def session(self) -> AgentSession[V]:
        """The session of this attempt, to be entered inside it."""
        if self._txn is None or self._session is not None:
            raise UsageError("write `async with attempt, attempt.session() as session:`, one session for each attempt")
        self._txn.settle = self._retrying.settle
        self._session = AgentSession(self._txn, self._retrying.home)
        handles.prepare(self._session, self._retrying.home, self._retrying.chosen)
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        txn = self._txn
        assert txn is not None
        txn.leave_gate()
        if error is None:
            self._done = True
            return False
        return handles.judge(self._retrying, error, txn)
