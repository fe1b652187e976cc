"""Whatever is wrong with a field of a saga's records, it is a typed error where the record is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import interlock
from interlock import codec, compensable, keys
from interlock.model import CommitRequest, Entry, Key, Put, Span
from interlock.saga import kinds
from interlock.saga.shapes import check_receipt, check_step
from interlock.stepping import step
from interlock.sync import Store

DROP = object()
JUNK = (DROP, None, True, 7, "x", b"", [], [[]], {"a": 1}, float("nan"))


@compensable(name="shapes.act", outside="run")
def act(amount: int, idempotency_key: str = "") -> int:
    return amount


@compensable(name="shapes.undo", outside="run")
def undo(result: int, amount: int) -> None:
    if amount == 3:
        raise RuntimeError("not now")


@compensable(name="shapes.send", outside="run")
def send(amount: int) -> None:
    if amount == 5:
        raise RuntimeError("not now")


def book(session: Any) -> None:
    session.add("sum", 1, floor=0)
    session.set_add("names", "a")
    session.write("last", 1)


def order(store: Store, other: Store, saga_id: str, last: int) -> None:
    with store.saga("order", id=saga_id) as saga:
        saga.step(act, 1, undo=undo, step_id="one")
        saga.step(act, last, undo=undo, undo_retry=interlock.RetryPolicy(max_attempts=1))
        saga.transact(store.resource("r"), book)
        saga.transact(other.resource("r"), book)
        if last == 3:
            saga.abort("no")
        saga.defer(send, last)


def records(store: Store) -> dict[Key, bytes]:
    found = step(store._engine.backend.scan(Span(keys.SYSTEM, keys.following(keys.SYSTEM))))
    return {key: entry.value for key, entry in found.items if entry.value is not None}


def put(store: Store, raw: dict[Key, bytes]) -> None:
    backend, writes = store._engine.backend, {key: Put(value) for key, value in raw.items()}
    step(backend.commit(CommitRequest(store._engine.new_id(), "a", "none", step(backend.snapshot()), {}, writes, {})))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from places(each, (*path, index))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    first, rest = path[0], path[1:]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if not rest and new is DROP:
        del copy[first]
    else:
        copy[first] = changed(copy[first], rest, new)
    return copy


def opened(raw: bytes) -> Any:
    name, schema, value = codec.thaw(raw)
    return [name, schema, [kinds.unpack(each) for each in value] if name == "sagapage" else value]


def closed(record: Any) -> bytes:
    if type(record) is list and len(record) == 3 and record[0] == "sagapage" and type(record[2]) is list:
        record = [*record[:2], [codec.freeze(each) for each in record[2]]]
    return codec.freeze(record)


def new_store() -> Store:
    return interlock.sync.open("memory://", agent="a", retry=interlock.RetryPolicy(max_attempts=1))


@pytest.fixture(scope="module")
def journals() -> tuple[dict[Key, bytes], dict[Key, bytes]]:
    """Those of two sagas: one with a dead letter of an undo, one with a dead letter of a deferred act."""
    with new_store() as store, new_store() as other:
        for saga_id, last in (("undone", 3), ("decided", 5)):
            with suppress(interlock.InterlockError, RuntimeError, ExceptionGroup):
                order(store, other, saga_id, last)
        assert len(list(store.dead_letters.list())) == 2
        return records(store), records(other)


def damages(raw: dict[Key, bytes]) -> Iterator[tuple[Key, bytes]]:
    for key, value in raw.items():
        record = opened(value)
        for path in places(record):
            for junk in JUNK:
                if path:
                    with suppress(interlock.ValueRefusedError):
                        yield key, closed(changed(record, path, junk))


def use(store: Store, other: Store) -> None:
    for last, saga_id in ((3, "undone"), (5, "decided")):
        with suppress(interlock.InterlockError, RuntimeError):
            order(store, other, saga_id, last)
    with suppress(interlock.InterlockError):
        for letter in list(store.dead_letters.list()):
            with suppress(interlock.InterlockError):
                store.dead_letters.retry(letter.dead_letter or "", stores=[other])
    with suppress(interlock.InterlockError):
        store.recover(older_than_seconds=0, stores=[other])


@pytest.mark.parametrize("part", range(8))
def test_a_damaged_field_is_a_typed_error(journals: tuple[dict[Key, bytes], dict[Key, bytes]], part: int) -> None:
    own, others = journals
    seen = 0
    for number, (key, raw) in enumerate([*damages(own), *damages(others)]):
        if number % 40 != part * 5:
            continue
        with new_store() as store, new_store() as other:
            put(store, {**own, key: raw} if key in own else own)
            put(other, {**others, key: raw} if key in others else others)
            use(store, other)
            seen += 1
    assert seen > 20


DONE: dict[str, Any] = {"fn": "m:f", "status": "done", "order": 1, "result": [False, b"m\xc0"]}
BOOKED: dict[str, Any] = {
    **DONE, "kind": "transact", "label": "book", "agent": "a", "transaction": "0f", "inverse": [],
}  # fmt: skip
USER = keys.USER + b"\x02r\0" + keys.encode("k")


@pytest.mark.parametrize(
    ("step_fields", "missing"),
    [
        (DONE, "fn"), (DONE, "result"), ({**DONE, "undo": "m:u", "plan": [0, [], []]}, "plan"),
        ({**DONE, "kind": "deferred", "arguments": []}, "arguments"), (BOOKED, "label"), (BOOKED, "agent"),
        (BOOKED, "transaction"), ({**BOOKED, "store": "s", "receipt": "r"}, "receipt"),
        ({**BOOKED, "undo_transaction": "1"}, "inverse"),
    ],
)  # fmt: skip
def test_a_step_without_what_is_needed_of_it(step_fields: dict[str, Any], missing: str) -> None:
    check_step(step_fields)
    with pytest.raises(interlock.BackendCorruptError, match=f"has no '{missing}'"):
        check_step({name: value for name, value in step_fields.items() if name != missing})


@pytest.mark.parametrize(
    "piece",
    [
        [], ["replayed", 1], ["value", USER, None], ["value", USER, 1, None], ["value", b"x", None, None],
        ["value", keys.USER, None, None], ["record"], ["record", USER, 1], ["add", USER, [[b"i1", None]]],
        ["add", USER, [[None, None, None]]], ["add", USER, [[b"ix", None, None]]], ["set", USER, [b"a"]],
        ["set", USER, ["a"], []], ["other", USER],
    ],
)  # fmt: skip
def test_an_inverse_that_cannot_be_applied(piece: list[Any]) -> None:
    check_step({**BOOKED, "inverse": [["value", USER, b"i1", 7], ["add", USER, [[b"i1", b"i0", None]]]]})
    with pytest.raises(interlock.BackendCorruptError, match="no good 'inverse'"):
        check_step({**BOOKED, "inverse": [piece]})


def test_a_receipt_that_says_nothing() -> None:
    check_receipt({"status": "void"})
    for damaged in (None, [], {}, {"status": "lost"}, {"status": "done"}, {"status": "undone", "undo": "x"}):
        with pytest.raises(interlock.BackendCorruptError):
            check_receipt(damaged)


def test_a_record_without_content_is_none() -> None:
    for kind in (kinds.SAGAS, kinds.PAGES, kinds.LETTERS):
        empty = codec.freeze((kind.name, kind.schema, None))
        with pytest.raises(interlock.BackendCorruptError):
            kind.load(Entry((1, 1), empty))
