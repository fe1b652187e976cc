"""Merges that the server cannot apply take one round trip as long as nobody else changes the key."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from interlock import merges
from interlock.backends.postgresql import PostgreSQLBackend, guesses
from interlock.model import BoundBroken, Delete, Merge, Span
from interlock.testing.conformance.world import Subject, key, put, step

PRICE, TAGS = key("price"), key("tags")


class Counted(Subject):
    """A store that counts what it sends to commit."""

    def __init__(self, url: str, schema: str) -> None:
        backend = PostgreSQLBackend(url, schema=schema).blocking()
        super().__init__(backend)
        self.sent = 0
        fetch = backend._driver.fetch

        async def counted(name: str, *arguments: Any, **more: Any) -> Any:
            self.sent += name == "commit"
            return await fetch(name, *arguments, **more)

        backend._driver.fetch = counted  # type: ignore[method-assign]

    def merge(self, *operations: Any, **more: Any) -> int:
        """Merge into the price; how many calls that took."""
        before = self.sent
        step(self.commit({PRICE: Merge(operations)}, **more))
        return self.sent - before


def add(amount: str, floor: str | None = None) -> Any:
    return merges.add_operation(Decimal(amount), None if floor is None else Decimal(floor), None)


@pytest.fixture
def stores(postgresql_url: str, schema: str) -> Iterator[tuple[Counted, Counted]]:
    made = Counted(postgresql_url, schema), Counted(postgresql_url, schema)
    yield made
    for store in made:
        step(store.backend.close())


def test_one_round_trip_until_somebody_else_has_merged(stores: tuple[Counted, Counted]) -> None:
    mine, other = stores
    assert [mine.merge(add("1.5")) for _ in range(4)] == [1, 1, 1, 1]
    assert other.merge(add("0.25")) == 2
    assert other.merge(add("0.25")) == 1
    assert mine.merge(add("1.0")) == 2
    assert mine.merge(add("0.0")) == 1  # changes nothing: no new version
    assert mine.merge(add("1.0")) == 1
    assert step(mine.value(PRICE)) == Decimal("8.50")


def test_a_put_or_a_delete_in_between_is_seen(stores: tuple[Counted, Counted]) -> None:
    mine, other = stores
    assert mine.merge(add("1.5")) == 1
    step(other.commit({PRICE: put(Decimal("100"))}))
    assert mine.merge(add("1.5")) == 2
    step(other.commit({PRICE: Delete()}))
    assert mine.merge(add("2.5")) == 2
    step(mine.commit({PRICE: put(Decimal("7"))}))  # by itself, too
    assert mine.merge(add("1.0")) == 2
    assert step(mine.value(PRICE)) == Decimal("8.0")


def test_a_bound_that_only_the_guess_breaks_refuses_nothing(stores: tuple[Counted, Counted]) -> None:
    mine, other = stores
    mine.merge(add("5"))
    other.merge(add("10"))
    assert mine.merge(add("-12", floor="0")) == 2
    other.merge(add("-3"))
    with pytest.raises(BoundBroken):
        mine.merge(add("-1", floor="0"))  # the guess, 3, would have allowed it
    assert step(mine.value(PRICE)) == Decimal("0")


def test_a_clear_in_the_same_commit_comes_first(stores: tuple[Counted, Counted]) -> None:
    mine, _ = stores
    mine.merge(add("5"))
    everything = Span(key("a"), key("z"))
    step(mine.commit({PRICE: Merge((add("2"),))}, clears=(everything,)))
    assert step(mine.value(PRICE)) == Decimal("2")
    assert mine.merge(add("1")) == 1
    assert step(mine.value(PRICE)) == Decimal("3")


def test_what_is_remembered_is_bounded(stores: tuple[Counted, Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "KEYS", 2)
    monkeypatch.setattr(guesses, "BYTES", 40)
    mine, _ = stores
    known = mine.backend._guesses._known  # type: ignore[attr-defined]
    for name in "abc":
        step(mine.commit({key(name): Merge((add("1"),))}))
    assert list(known) == [key("b"), key("c")]
    step(mine.commit({key("b"): Merge((merges.add_operation(Decimal("1E+60"), None, None),))}))
    assert list(known) == [key("c")]
