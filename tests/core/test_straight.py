"""The straight ways of a blocking session, while a second thread uses the same session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import interlock.sync
from interlock import UsageError
from interlock.model import Key, Token

ONE = "one task or thread at a time"


def in_a_thread(job: Callable[[], object]) -> list[UsageError]:
    """Do something in another thread; the error with which that was refused."""
    caught: list[UsageError] = []

    def run() -> None:
        try:
            job()
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30.0)
    return caught


class Meanwhile:
    """The direct way into a backend; behind each look something else happens before it answers."""

    puts = True

    def __init__(self, inner: Any, happens: Callable[[], None]) -> None:
        self._inner = inner
        self._happens = happens

    def look(self, key: Key, at: Token | None) -> Any:
        found = self._inner.look(key, at)
        self._happens()
        return found

    def put(self, *arguments: Any) -> Any:
        return self._inner.put(*arguments)


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_thread_that_comes_in_while_another_one_reads_dooms_the_session(call: str) -> None:
    refused: list[UsageError] = []
    with interlock.sync.open("memory://", agent="a") as store:
        stock: Any = store.resource("stock")
        assert (stock.read("a"), stock.read("b")) == (None, None)
        engine = stock._resource.space.engine
        direct = engine.direct
        with pytest.raises(UsageError, match=ONE), stock.session() as session:
            session.write("a", 1)

            def interfere() -> None:
                refused.extend(in_a_thread(lambda: session.read("a") if call == "read" else session.write("a", 2)))

            engine.direct = Meanwhile(direct, interfere)
            assert session.read("b") is None
        engine.direct = direct
        assert [ONE in str(error) for error in refused] == [True]
        assert stock.read("a") is None


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_thread_that_comes_in_while_another_one_writes_dooms_the_session(call: str) -> None:
    refused: list[UsageError] = []
    with interlock.sync.open("memory://", agent="a") as store:
        stock: Any = store.resource("stock")
        assert (stock.read("a"), stock.read("b")) == (None, None)
        resource = stock._resource
        freeze = resource.freeze
        with pytest.raises(UsageError, match=ONE), stock.session() as session:

            def interfere(value: object) -> bytes:
                resource.freeze = freeze
                refused.extend(in_a_thread(lambda: session.read("a") if call == "read" else session.write("b", 2)))
                frozen: bytes = freeze(value)
                return frozen

            resource.freeze = interfere
            session.write("a", 1)
        assert [ONE in str(error) for error in refused] == [True]
        assert (stock.read("a"), stock.read("b")) == (None, None)
