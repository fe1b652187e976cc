"""A backend that declares nothing passes the tests of what it does not declare, and a liar does not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from interlock.backends.bridges import Delegate
from interlock.backends.memory import MemoryBackend
from interlock.errors import UnsupportedError
from interlock.model import Author, CommitRequest, Entry, Key, Put, Reply, Token
from interlock.ports import Backend, Capability
from interlock.testing import conformance
from interlock.testing.conformance.world import World, world

T = TypeVar("T")

__all__ = ["world"]


class Bare(Delegate):
    """The memory backend without clock, expiry and history."""

    suspends = False
    blocks = False

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.capabilities = frozenset()

    def __reduce__(self) -> Any:
        raise UnsupportedError("one process only", capability="processes")

    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        return await coroutine

    async def now(self) -> float:
        """Refused."""
        raise UnsupportedError("no clock", capability="clock")

    async def history(self, key: Key, *, limit: int = 100) -> list[tuple[Entry, Author | None]]:
        """Refused."""
        raise UnsupportedError("no history", capability="history")

    async def commit(self, request: CommitRequest) -> Reply:
        """Without expiry."""
        if any(type(write) is Put and write.ttl_seconds is not None for write in request.writes.values()):
            raise UnsupportedError("no expiry", capability="expiry")
        return await self.inner.commit(request)

    async def wait(self, since: Token, timeout_seconds: float, keys: Sequence[Key] | None = None) -> bool:
        """As the inner backend waits."""
        return await self.inner.wait(since, timeout_seconds, keys)

    async def close(self) -> None:
        """Close the inner backend."""
        await self.inner.close()

    def blocking(self) -> Backend:
        """A bare leaf."""
        return Bare(self.inner.blocking())


@pytest.fixture
def backend() -> Callable[[], Backend]:
    return lambda: Bare(MemoryBackend())


_TESTS = [
    conformance.test_the_clock_never_runs_backwards,
    conformance.test_history_has_every_version_newest_first,
    conformance.test_an_entry_says_when_it_expires,
    conformance.test_an_expired_entry_is_refused_where_it_must_be_alive,
    conformance.test_an_expired_entry_counts_as_present_until_it_is_compacted,
    conformance.test_what_replaced_an_expired_entry_does_not_expire_with_it,
    conformance.test_a_shared_store_is_pickled_as_its_address,
]


@pytest.mark.parametrize("test", _TESTS, ids=lambda test: str(test.__name__))
def test_what_is_not_declared_is_refused_by_name(test: Callable[..., None], world: World) -> None:
    test(world=world)


@pytest.mark.parametrize("test", _TESTS, ids=lambda test: str(test.__name__))
def test_a_backend_that_declares_what_it_refuses_fails(test: Callable[..., None]) -> None:
    def liar() -> Backend:
        bare = Bare(MemoryBackend())
        bare.capabilities = frozenset(Capability)
        return bare

    lying = World("awaited", liar)
    with pytest.raises(UnsupportedError):
        test(world=lying)
    lying.close()


@pytest.mark.parametrize("test", _TESTS, ids=lambda test: str(test.__name__))
def test_a_backend_that_does_not_refuse_what_it_does_not_declare_fails(test: Callable[..., None]) -> None:
    def modest() -> Backend:
        backend = MemoryBackend()
        backend.capabilities = frozenset()  # type: ignore[misc]
        return backend

    if test is conformance.test_a_shared_store_is_pickled_as_its_address:
        return  # the memory backend does refuse this
    hiding = World("awaited", modest)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test(world=hiding)
    hiding.close()
