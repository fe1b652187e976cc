"""Idempotency keys: one intended act, one effect, one answer, however often it is asked for and by how many at once."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, fill, listed

Session = interlock.AgentSession[Any]

runs: list[Any] = []
"""What the functions below have been called with; cleared by each test that looks."""


async def reserve(session: Session, article: str, quantity: int = 1, *, note: Any = None) -> int:
    """A read-modify-write, as it is typical."""
    runs.append((article, quantity, note))
    left: int = await session.read(article, 10) - quantity
    await session.write(article, left)
    return left


async def give(session: Session, value: Any) -> Any:
    """Return what was given."""
    runs.append(value)
    await session.add("given", 1)
    return value


async def find(session: Session, make: str) -> Any:
    """Return something that is made here."""
    await session.add("found", 1)
    return RESULTS[make]


@at_desk
async def test_the_same_key_is_done_once(desk: Desk) -> None:
    """Also by another store object, after other changes, with the same answer as the first time."""
    store = desk.open()
    stock = store.resource("stock")
    runs.clear()
    first = await stock.run_detailed(reserve, "nut", 3, idempotency_key="order 1")
    await fill(stock, {"nut": 100})
    again = await stock.run_detailed(reserve, "nut", 3, idempotency_key="order 1")
    elsewhere = await desk.resource("stock").run_detailed(reserve, "nut", 3, idempotency_key="order 1")
    assert (first.value, first.replayed, first.attempts) == (7, False, 1)
    for done in (again, elsewhere):
        assert (done.value, done.replayed, done.attempts, done.cursor) == (7, True, 0, None)
        assert done.transaction_id == first.transaction_id
    assert await stock.run(reserve, "nut", 3, idempotency_key="order 1") == 7
    assert await stock.run(reserve, "nut", 3, idempotency_key="order 2") == 97
    assert len(runs) == 2
    assert await contents(stock) == {"nut": 97}
    assert len(await listed(store.log.changes())) == 3


@at_desk
async def test_a_key_means_one_thing(desk: Desk) -> None:
    """Other arguments, another agent, another fingerprint: refused, and nothing is run."""
    stock = desk.resource("stock")
    await stock.run(reserve, "nut", 3, idempotency_key="K")
    runs.clear()
    for call in (
        partial(stock.run, reserve, "nut", 4),
        partial(stock.run, reserve, "bolt", 3),
        partial(stock.run, partial(reserve, note="x"), "nut", 3),
        partial(stock.run, reserve, "nut", 3, agent="somebody else"),
        partial(stock.run, reserve, "nut", 3, idempotency_fingerprint="x"),
        partial(stock.run, reserve, "nut", True),
    ):
        with pytest.raises(interlock.IdempotencyMismatchError, match="'K'") as caught:
            await call(idempotency_key="K")
        assert caught.value.idempotency_key == "K"
        assert not caught.value.retryable
    assert runs == []
    assert await contents(stock) == {"nut": 7}


@at_desk
async def test_keys_are_of_one_resource_and_operation(desk: Desk) -> None:
    store = desk.open()
    stock, shop = store.resource("stock"), store.resource("shop")
    await stock.run(reserve, "nut", idempotency_key="K")
    await shop.run(reserve, "nut", idempotency_key="K")
    await stock.run(give, "nut", idempotency_key="K")
    async with stock.session(idempotency_key="K") as session:
        await session.write("a", 1)
    assert await contents(stock) == {"a": 1, "given": 1, "nut": 9}
    assert await contents(shop) == {"nut": 9}

    async def both(session: interlock.AgentSession[Any]) -> str:
        await session.on(stock).write("b", 1)
        return "both"

    await store.run(both, idempotency_key="K", idempotency_fingerprint=1)
    assert (await store.run_detailed(both, idempotency_key="K", idempotency_fingerprint=1)).replayed


@at_desk
async def test_arguments_count_by_name_and_value(desk: Desk) -> None:
    """However they are given, and in whatever order the keys of a dict are."""
    stock = desk.resource("stock")
    note = {"a": {"x": 1, "y": [1, 2]}, "b": 2}
    turned = {"b": 2, "a": {"y": [1, 2], "x": 1}}
    done = await stock.run_detailed(partial(reserve, note=note), "nut", 1, idempotency_key="K")
    assert not done.replayed
    runs.clear()
    call_it: Any = partial(reserve)
    calls = [
        partial(call_it, "nut", 1, note=turned),
        partial(call_it, "nut", note=turned),
        partial(partial(call_it, note="other"), "nut", quantity=1, note=note),
        partial(call_it, article="nut", quantity=1, note=note),
    ]
    for call in calls:
        assert (await stock.run_detailed(call, idempotency_key="K")).replayed

    @stock.transactional(idempotency_key="K2", idempotency_fingerprint=note)
    async def decorated(session: Session) -> None:
        await session.add("n", 1)

    await decorated()
    await decorated()
    assert await stock.read("n") == 1
    assert runs == []


@dataclass
class Shop:
    """An object with a method, which is one of its arguments."""

    name: str

    async def open(self, session: Session, word: str) -> str:
        """Write a word."""
        await session.append(self.name, word)
        return f"{self.name}: {word}"

    @classmethod
    async def found(cls, session: Session, word: str) -> str:
        """Write a word, whatever the object."""
        await session.append("found", word)
        return word


class Opaque:
    """An object that nobody can tell from another one by its fields."""

    async def open(self, session: Session, word: str) -> None:
        """Write a word."""
        await session.append("opaque", word)


@at_desk
async def test_a_method_brings_its_object(desk: Desk) -> None:
    stock = desk.resource("stock")
    assert await stock.run(Shop("a").open, "x", idempotency_key="K") == "a: x"
    assert (await stock.run_detailed(Shop("a").open, "x", idempotency_key="K")).replayed
    with pytest.raises(interlock.IdempotencyMismatchError):
        await stock.run(Shop("b").open, "x", idempotency_key="K")
    assert await stock.run(Shop.found, "x", idempotency_key="K") == "x"
    assert (await stock.run_detailed(Shop("c").found, "x", idempotency_key="K")).replayed
    with pytest.raises(interlock.UsageError, match="idempotency_fingerprint"):
        await stock.run(Opaque().open, "x", idempotency_key="K")
    await stock.run(Opaque().open, "x", idempotency_key="K", idempotency_fingerprint=1)
    assert await contents(stock) == {"a": ["x"], "found": ["x"], "opaque": ["x"]}


@at_desk
async def test_what_a_key_could_not_bind_is_refused(desk: Desk) -> None:
    """Unless the caller says what it is bound to."""
    stock = desk.resource("stock")
    outer = 5

    async def closing(session: Session) -> int:
        await session.write("closing", outer)
        return outer

    for fn, arguments, word in (
        (closing, (), "outer" if desk.awaited else "closes over"),
        (give, (object(),), "idempotency_fingerprint"),
        (give, (float("nan"),), "idempotency_fingerprint"),
        (give, ("half a pair \ud800",), "idempotency_fingerprint"),
        (give, (10**5000,), "idempotency_fingerprint"),
        (give, ({1: 2},), "idempotency_fingerprint"),
        (reserve, (), "article"),
        (reserve, ("nut", 1, 2), "cannot be called"),
    ):
        with pytest.raises(interlock.UsageError, match=word):
            await stock.run(fn, *arguments, idempotency_key="K")  # type: ignore[arg-type]
    nameless: Any = lambda session: give(session, 1)  # noqa: E731
    if desk.awaited:
        with pytest.raises(interlock.UsageError, match="lambda"):
            await stock.run(nameless, idempotency_key="K")
    assert await contents(stock) == {}
    assert await stock.run(closing, idempotency_key="K", idempotency_fingerprint=["v1", 5]) == 5
    assert (await stock.run_detailed(closing, idempotency_key="K", idempotency_fingerprint=["v1", 5])).replayed
    with pytest.raises(interlock.ValueRefusedError):
        await stock.run(closing, idempotency_key="K", idempotency_fingerprint=object())
    with pytest.raises(interlock.UsageError, match="idempotency_key"):
        await stock.run(closing, idempotency_fingerprint=1)


RESULTS: dict[str, Any] = {
    "none": None,
    "text": "é😀\0",
    "number": 10**40,
    "money": Decimal("1.20"),
    "tuple": (1, [2, {3}], frozenset({"x"})),
    "moment": dt.datetime(2026, 3, 29, 2, 30, fold=1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
    "nested": {"a": [1.5, True, None, b"\0\xff"]},
    "object": object(),
    "infinite": [1, {"x": float("inf")}],
    "huge": "x" * (1 << 21),
}


@at_desk
async def test_a_replay_answers_with_the_same_value_and_type(desk: Desk) -> None:
    stock = desk.resource("stock")
    for number, (name, value) in enumerate(RESULTS.items()):
        if name in ("object", "infinite", "huge"):
            continue
        first = await stock.run(find, name, idempotency_key=f"K{number}")
        again = await stock.run_detailed(find, name, idempotency_key=f"K{number}")
        assert again.replayed
        assert first == again.value == value
        assert type(again.value) is type(value)
        assert repr(again.value) == repr(value)
    assert await stock.read("found") == 7


@at_desk
async def test_a_result_that_cannot_be_kept_is_refused_before_the_commit(desk: Desk) -> None:
    stock = desk.resource("stock")
    for name, path in (("object", "$"), ("infinite", "$[1].x")):
        with pytest.raises(interlock.ValueRefusedError, match="returns") as caught:
            await stock.run(find, name, idempotency_key="K")
        assert caught.value.path == path
    with pytest.raises(interlock.ValueRefusedError, match="returns"):
        await stock.run(find, "huge", idempotency_key="K")
    assert await contents(stock) == {}
    await stock.run(find, "none", idempotency_key="K")
    assert isinstance(await stock.run(find, "object"), object)


@at_desk
async def test_a_failure_is_not_kept(desk: Desk) -> None:
    stock = desk.resource("stock")
    with pytest.raises(TypeError):
        await stock.run(reserve, "nut", "three", idempotency_key="K")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await stock.run(reserve, "nut", "three", idempotency_key="K")  # type: ignore[arg-type]
    assert await stock.run(reserve, "nut", 3, idempotency_key="K") == 7
