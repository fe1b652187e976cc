"""Records of layers: keys, values, one conditional write, lost replies; and what a session carries for a layer."""

from __future__ import annotations

from typing import Any

import pytest

from cases.faults import LostReplies
from cases.support import World, everywhere
from interlock import BackendCorruptError, ConflictError, LimitExceededError, SchemaMismatchError, UsageError, codec
from interlock.core.carrying import Guard, carry
from interlock.layers.ledger import Kind, Ledger
from interlock.model import ABSENT, Clash, CommitRefused, CommitRequest, Delete, Put

NOTE = Kind("note")


def ledger_of(store: Any) -> Ledger:
    return Ledger(store._engine)


def test_kinds_do_not_share_keys() -> None:
    first, second = Kind("note").key("book", 1), Kind("notebook").key(1)
    assert first != second
    assert Kind("note").parts(first) == ("book", 1)
    assert Kind("note").parts(Kind("note").key("one")) == ("one",)
    for part in (2, -2, 1 << 70, "two", "with\0nothing"):
        assert NOTE.extended(NOTE.key("book", 1), part) == NOTE.key("book", 1, part)
    with pytest.raises(LimitExceededError):
        NOTE.extended(NOTE.key("book", 1), "x" * 4096)
    span = NOTE.span("book")
    assert span.start <= first < span.stop
    assert not span.start <= second < span.stop
    assert not span.start <= NOTE.key("bookish") < span.stop
    for bad in ("", "Note", "a b", "n1", "ä"):
        with pytest.raises(UsageError):
            Kind(bad)


@everywhere
async def test_records_are_written_read_and_scanned(world: World) -> None:
    ledger = ledger_of(world.open())
    keys = [NOTE.key("a", number) for number in range(3)]
    await ledger.commit({key: NOTE.put({"n": n}) for n, key in enumerate(keys)}, {keys[0]: ABSENT}, agent="layer")
    found = await ledger.read(NOTE, [*keys, NOTE.key("none")])
    assert [record.value for record in found.records] == [{"n": 0}, {"n": 1}, {"n": 2}, None]
    assert found.records[3].expected is ABSENT
    assert found.records[3].version is None
    done = await ledger.commit(
        {keys[1]: Delete()}, {keys[1]: found.records[1].expected}, agent="layer", fetch=[keys[0], keys[1]]
    )
    assert NOTE.load(done.fetched[0]) == {"n": 0}
    assert NOTE.load(done.fetched[1]) is None
    page = await ledger.scan(NOTE, ("a",), limit=1)
    assert ([NOTE.parts(record.key) for record in page.records], page.more) == ([("a", 0)], True)
    rest = await ledger.scan(NOTE, ("a",), after=("a", 0))
    assert ([NOTE.parts(record.key) for record in rest.records], rest.more) == ([("a", 2)], False)
    with pytest.raises(CommitRefused):
        await ledger.commit({keys[1]: NOTE.put(1)}, {keys[0]: ABSENT}, agent="layer")


@everywhere
async def test_what_cannot_be_read_is_said(world: World) -> None:
    ledger = ledger_of(world.open())
    key = NOTE.key("k")
    for value, error in (
        (codec.freeze("something else"), BackendCorruptError),
        (codec.freeze(("other", 1, "value")), BackendCorruptError),
        (codec.freeze(("note", 2, "value")), SchemaMismatchError),
        (b"m\xc1", BackendCorruptError),
    ):
        await ledger.commit({key: Put(value)}, {}, agent="layer")
        with pytest.raises(error):
            await ledger.read(NOTE, [key])


@everywhere
async def test_a_lost_reply_is_settled(world: World) -> None:
    """Lost on its way: sent again. Lost on the way back: known by its own version."""
    for quiet in (False, True):
        faulty = LostReplies(world.backend(), {1: "before", 2: "after"})
        ledger = ledger_of(world.over(faulty))
        key = NOTE.key("lost", str(quiet))
        done = await ledger.commit({key: NOTE.put(1)}, {key: ABSENT}, agent="layer", quiet=quiet, fetch=[key])
        assert len(faulty.commits) == (3 if quiet else 2)
        assert (await ledger.read(NOTE, [key])).records[0].version == done.version
        assert NOTE.load(done.fetched[0]) == 1


@everywhere
async def test_a_session_carries_guards_and_writes(world: World) -> None:
    store = world.open()
    ledger, stock = ledger_of(store), store.resource("stock")
    key, staged = NOTE.key("guard"), NOTE.key("staged")
    done = await ledger.commit({key: NOTE.put(1)}, {}, agent="layer")
    assert done.version is not None

    async def work(value: int, guard: Guard) -> None:
        async with stock.session() as session:
            await session.write("a", value)
            carry(transaction_of(session), guards={key: guard}, writes={staged: NOTE.put(value)})

    await work(1, Guard(done.version))
    assert (await ledger.read(NOTE, [staged])).records[0].value == 1
    with pytest.raises(ConflictError):
        await work(2, Guard(ABSENT))
    with pytest.raises(KeyError):
        await work(2, Guard(ABSENT, refused=lambda guard, clash: KeyError(clash.key)))

    def learn(guard: Guard, clash: Clash) -> None:
        assert clash.current is not None
        guard.expected = clash.current.version

    await work(3, Guard(ABSENT, refused=learn))
    assert await stock.read("a") == 3
    assert (await ledger.read(NOTE, [staged])).records[0].value == 3


@everywhere
async def test_a_guard_alone_makes_a_session_one_that_is_validated(world: World) -> None:
    stock = world.open().resource("stock")
    async with stock.session() as session:
        await session.read("a")
        carry(transaction_of(session), guards={NOTE.key("none"): Guard(ABSENT)})
    session = await stock.begin()
    carry(transaction_of(session), guards={NOTE.key("none"): Guard((1, 1))})
    with pytest.raises(ConflictError):
        await session.commit()


@everywhere
async def test_a_savepoint_takes_back_what_was_carried(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    kept, dropped = NOTE.key("kept"), NOTE.key("dropped")
    async with stock.session() as session:
        txn = transaction_of(session)
        await session.write("a", 1)
        carry(txn, guards={kept: Guard(ABSENT)}, writes={kept: NOTE.put(1)})
        with pytest.raises(LookupError), session.savepoint():
            carry(txn, guards={dropped: Guard((1, 1))}, writes={dropped: NOTE.put(1)})
            raise LookupError
    found = await ledger_of(store).read(NOTE, [kept, dropped])
    assert [record.value for record in found.records] == [1, None]
    with pytest.raises(UsageError):
        carry(txn, guards={kept: Guard(ABSENT)})


@everywhere
async def test_carried_guards_can_ask_for_what_is_alive(world: World) -> None:
    backend = Seen(world.backend(), {})
    stock = world.over(backend).resource("stock")
    key = NOTE.key("k")
    with pytest.raises(ConflictError):
        async with stock.session() as session:
            await session.write("a", 1)
            carry(transaction_of(session), guards={key: Guard((1, 1), alive=True)})
    request: CommitRequest = backend.commits[-1]
    assert request.alive == frozenset({key})
    assert request.guards[key] == (1, 1)


class Seen(LostReplies):
    """Notes commits."""


def transaction_of(session: Any) -> Any:
    return getattr(session, "inner", session)._txn
