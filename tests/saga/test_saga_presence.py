"""The sign of life that the sagas of a store object share, when something happens at a bad moment; and the job that
writes late results."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import interlock
import interlock.sync
import interlock.testing.sync
from cases.faults import Broken, Hooked, Pausing, is_commit
from interlock import BackendUnavailableError
from interlock.errors import SnapshotTooOldError
from interlock.layers.ledger import Ledger
from interlock.layers.tenures import PULSES
from interlock.model import Delete
from interlock.saga.lags import Lags, lags_of
from interlock.saga.presence import Coordinators, Presence, coordinators_of
from interlock.stepping import step
from interlock.testing import Clock

SECONDS = 30.0


class Held:
    """A store with what its sagas share, on a clock."""

    def __init__(self, backend: Any = None) -> None:
        self.clock = Clock()
        memory = interlock.MemoryBackend(clock=self.clock.engine_time)
        self.backend = memory if backend is None else backend(memory)
        self.store = interlock.sync.Store(self.backend, agent="a", runtime=self.clock.runtime(suspends=False))
        self.engine = self.store._engine
        self.ledger: Ledger = Ledger(self.engine)
        self.shared: Coordinators = coordinators_of(self.engine)

    def enter(self, saga: bytes) -> Presence:
        """Begin to coordinate."""
        return step(self.shared.enter(saga, saga.decode(), "a", SECONDS))

    def pulse(self, presence: Presence) -> Any:
        """The record."""
        return step(self.ledger.read(PULSES, [presence.key])).records[0]


def test_one_that_was_not_renewed_for_long_is_renewed_for_the_next_saga() -> None:
    """It is the same owner: what it coordinates already stays its own."""
    held = Held()
    first = held.enter(b"1")
    version = held.pulse(first).version
    held.clock._elapsed += SECONDS / 2  # nobody is woken: as in a process that was stopped
    assert not first.is_unsure(held.clock.monotonic())
    assert held.enter(b"2") is first
    assert first.sagas == 2
    assert held.pulse(first).version != version
    first.lose(RuntimeError("the store is closed"))
    assert not first.is_good(held.clock.monotonic())
    assert held.enter(b"3") is not first
    held.store.close()


def test_one_whose_pulse_was_taken_away_ends_without_it() -> None:
    held = Held()
    presence = held.enter(b"1")
    held.shared.leave(b"1", presence)
    step(
        held.ledger.commit(
            {presence.key: Delete()}, {presence.key: held.pulse(presence).version}, agent="b", quiet=True
        )
    )
    step(presence.renew(held.ledger))
    assert presence.over
    assert held.pulse(presence).version is None
    held.store.close()


def test_a_renewal_from_a_snapshot_that_is_too_old_is_sent_again() -> None:
    errors: list[Exception] = []

    def hook(name: str, args: tuple[Any, ...]) -> None:
        if is_commit(name, args) and errors:
            raise errors.pop()

    held = Held(lambda inner: Hooked(inner, hook))
    presence = held.enter(b"1")
    version = held.pulse(presence).version
    errors.append(SnapshotTooOldError("too old"))
    step(presence.renew(held.ledger))
    assert not errors
    assert held.pulse(presence).version != version
    errors += [SnapshotTooOldError("too old")] * 5
    with pytest.raises(BackendUnavailableError, match="kept changing"):
        step(presence.renew(held.ledger))
    assert not errors
    held.store.close()


def test_a_saga_that_could_not_be_entered_is_not_held() -> None:
    held = Held(Broken)
    held.backend.broken.append(BackendUnavailableError("the server has gone"))
    with pytest.raises(BackendUnavailableError):
        held.enter(b"1")
    assert not held.shared._held
    held.backend.broken.clear()
    presence = held.enter(b"1")
    assert presence.sagas == 1
    held.store.close()


def test_what_a_parent_coordinates_its_forked_child_does_not() -> None:
    held = Held()
    presence = held.enter(b"1")
    presence._process = held.shared._process = -1  # as a child sees what its parent has left
    assert not presence.is_good(held.clock.monotonic())
    child = held.enter(b"1")
    assert child.owner != presence.owner
    held.store.close()


def test_who_waited_for_the_same_pulse_takes_the_one_that_was_put() -> None:
    async def both() -> None:
        commits: list[int] = []

        def hook(name: str, args: tuple[Any, ...]) -> None:
            commits.extend([1] if is_commit(name, args) else [])

        async with interlock.Store(Hooked(Pausing(interlock.MemoryBackend()), hook), agent="a") as store:
            shared = coordinators_of(store._engine)
            one, other = await asyncio.gather(
                *(shared.enter(saga, saga.decode(), "a", SECONDS) for saga in (b"1", b"2"))
            )
            assert one is other
            assert (one.sagas, len(commits)) == (2, 1)

    asyncio.run(both())


class Late:
    """A journal whose results cannot be written."""

    title = "late"
    watched = False

    def __init__(self, held: Held) -> None:
        self.held = held
        self.tries = 0

    def lag(self) -> int:
        """The same change at each look, until it was tried."""
        return 0 if self.tries else 1

    async def flush(self) -> None:
        """In vain."""
        self.tries += 1
        raise BackendUnavailableError("the server has gone")


def test_late_results_that_cannot_be_written_are_left_to_their_saga(caplog: pytest.LogCaptureFixture) -> None:
    """The job that writes them goes on, for the others."""
    held = Held()
    lags: Lags = lags_of(held.engine)
    late = Late(held)
    late.watched, lags._watched[late] = True, 0
    with caplog.at_level(logging.INFO, "interlock"):
        step(lags._work())  # a clock moves when it is slept by
    assert late.tries == 1
    assert "could not be written yet" in caplog.text
    assert not late.watched
    held.store.close()
