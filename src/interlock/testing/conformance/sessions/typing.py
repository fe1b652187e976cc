"""Typed resources: values of a declared type come back as exactly what they were, or are refused with the path."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
import pytest

import interlock
from interlock.testing.conformance.sessions.desk import Desk, at_desk, contents, fill, listed

T = TypeVar("T")
Session = interlock.AgentSession[Any]


class Colour(enum.Enum):
    """What a field may be."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    """A part of an order."""

    article: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Order:
    """A dataclass with other ones inside."""

    id: UUID
    lines: list[Line]
    at: dt.datetime
    by_name: dict[str, Line] = field(default_factory=dict)
    colour: Colour | None = None
    place: tuple[int, float] = (0, 0.0)


@dataclass
class Box(Generic[T]):
    """A generic dataclass."""

    inside: T
    history: list[T]


class Cat(msgspec.Struct, tag="cat"):
    """One of two structs."""

    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    """The other one."""

    name: str
    weight: float | None = None


class Point(msgspec.Struct, tag=7, array_like=True):
    """A struct whose stored form is a list."""

    x: int
    y: int


class Renamed(msgspec.Struct, rename="camel", frozen=True):
    """A struct whose stored names differ."""

    first_name: str
    is_open: bool = False


ORDER = Order(
    UUID(int=7),
    [Line("nut", Decimal("1.50"), {"a", "b"}), Line("bolt", Decimal(2))],
    dt.datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=dt.UTC),
    {"x": Line("é", Decimal(0))},
    Colour.BLUE,
    (1, 2.5),
)

GOOD: list[tuple[Any, list[Any]]] = [
    (int, [0, -(10**30)]),
    (float, [1.0, -0.0, 5e-324]),
    (str, ["", "é\0😀"]),
    (bytes, [b"", b"\0\xff"]),
    (bool, [True, False]),
    (Decimal, [Decimal("1.10"), Decimal("-0")]),
    (UUID, [UUID(int=1)]),
    (dt.date, [dt.date(2026, 1, 1)]),
    (dt.timedelta, [dt.timedelta(days=-1, microseconds=1)]),
    (int | None, [None, 5]),
    (int | str, [1, "1"]),
    (list[int], [[], [1, 2**70]]),
    (tuple[int, ...], [(), (1, 2)]),
    (set[str], [set(), {"a", "b"}]),
    (frozenset[int], [frozenset({1, 2})]),
    (dict[str, Any], [{}, {"b": (1, {2}), "a": None}]),
    (list[tuple[int, str]], [[(1, "a")]]),
    (Order, [ORDER]),
    (list[Line], [[Line("a", Decimal(1))]]),
    (dict[str, Line | None], [{"a": None, "b": Line("b", Decimal(1))}]),
    (Box[int], [Box(1, [2, 3])]),
    (Box[Line], [Box(Line("a", Decimal(1)), [])]),
    (Cat | Dog, [Cat(), Cat(3), Dog("Rex", 2.5), Dog("Rex")]),
    (Renamed, [Renamed("Ada", True)]),
    (Point, [Point(1, 2)]),
    (Colour, [Colour.RED, Colour.BLUE]),
]


def spelled(value: Any) -> Any:
    """A value with the type of each of its parts; sets in an order that does not depend on the process."""
    kind = type(value)
    if kind in (set, frozenset):
        return kind, sorted(map(spelled, value), key=repr)
    if kind in (list, tuple):
        return kind, [spelled(item) for item in value]
    if kind is dict:
        return kind, [(key, spelled(item)) for key, item in value.items()]
    if is_dataclass(kind):
        return kind, [(each.name, spelled(getattr(value, each.name))) for each in fields(kind)]
    if issubclass(kind, msgspec.Struct):
        return kind, [(name, spelled(getattr(value, name))) for name in kind.__struct_fields__]
    return kind, repr(value)


@pytest.mark.parametrize(("declared", "values"), GOOD, ids=[str(each).rpartition(".")[2] for each, _ in GOOD])
@at_desk
async def test_typed_values_come_back_exactly(desk: Desk, declared: Any, values: list[Any]) -> None:
    things = desk.open().resource("things", declared)
    async with things.session() as session:
        for number, value in enumerate(values):
            await session.write(("n", number), value)
            read = await session.read(("n", number))
            assert read == value
            assert type(read) is type(value)
            assert spelled(read) == spelled(value)
            assert (
                read is not value
                or value in (None, True, False, *Colour)
                or isinstance(value, (int, str, bytes, tuple))
            )
        assert [value for _, value in await listed(session.scan())] == values
    assert [value for _, value in await listed(things.scan())] == values


@dataclass
class Converting:
    """Changes what it is given."""

    number: int

    def __post_init__(self) -> None:
        self.number = int(self.number)


@dataclass
class Hiding:
    """Holds more than its fields."""

    a: int

    def __post_init__(self) -> None:
        self.cache = [self.a]


class Special(Line):
    """A subclass of what was declared."""


def _with_extra() -> Line:
    line = Line("a", Decimal(1))
    line.extra = 5  # type: ignore[attr-defined]
    return line


BAD: list[tuple[Any, Callable[[], Any], str]] = [
    (int, lambda: 1.0, "$"),
    (int, lambda: True, "$"),
    (float, lambda: 1, "$"),
    (str, lambda: b"x", "$"),
    (dt.date, lambda: dt.datetime(2026, 1, 1), "$"),
    (int | None, lambda: "5", "$"),
    (list[int], lambda: [1, "2"], "$"),
    (list[int], lambda: (1, 2), "$"),
    (tuple[int, ...], lambda: [1], "$"),
    (list[float], lambda: [1], "$[0]"),
    (dict[str, Any], lambda: {"a": object()}, "$.a"),
    (Line, lambda: Line("a", 1.5), "$"),  # type: ignore[arg-type]
    (Line, lambda: Line("a", Decimal("NaN")), "$.price"),
    (Line, lambda: Special("a", Decimal(1)), "$"),
    (Line, _with_extra, "$.extra"),
    (Line, lambda: {"article": "a", "price": Decimal(1), "tags": set()}, "$"),
    (Hiding, lambda: _changed(Hiding(1)), "$.cache"),
    (list[Line], lambda: [Line("a", Decimal(1)), Line("b", Decimal(1), ["x"])], "$[1].tags"),  # type: ignore[arg-type]
    (Box[int], lambda: Box("x", []), "$"),
    (Cat | Dog, lambda: Line("a", Decimal(1)), "$"),
    (Any, lambda: Line("a", Decimal(1)), "$"),
    (Any, lambda: {"deep": [Colour.RED]}, "$.deep[0]"),
]


def _changed(value: Hiding) -> Hiding:
    value.cache.append(7)
    return value


@pytest.mark.parametrize(("declared", "make", "path"), BAD, ids=range(len(BAD)))
@at_desk
async def test_typed_values_that_would_not_are_refused(
    desk: Desk, declared: Any, make: Callable[[], Any], path: str
) -> None:
    things = desk.open().resource("things", declared)
    session = await things.begin()
    with pytest.raises(interlock.ValueRefusedError) as caught:
        await session.write("a", make())
    assert caught.value.path == path
    with pytest.raises(interlock.ValueRefusedError):
        await session.commit()
    assert await contents(desk.resource()) == {}


@at_desk
async def test_a_value_that_changes_itself_is_kept_as_it_became(desk: Desk) -> None:
    things = desk.open().resource("things", Converting)
    async with things.session() as session:
        await session.write("a", Converting("5"))  # type: ignore[arg-type]
    assert await things.read("a") == Converting(5)


@at_desk
async def test_types_that_cannot_be_stored_are_refused_at_once(desk: Desk) -> None:
    @dataclass
    class Holder:
        inside: complex

    store = desk.open()
    for declared in (object, complex, Holder, list[complex], Callable[[], int], 7, "int"):
        with pytest.raises(interlock.UsageError):
            store.resource("things", declared)  # type: ignore[arg-type]


@at_desk
async def test_the_same_data_through_several_types(desk: Desk) -> None:
    """Untyped it shows as plain data; through a type that does not fit it is refused, never converted."""
    store = desk.open()
    lines, plain, numbers = store.resource("things", Line), store.resource("things"), store.resource("things", int)
    async with lines.session() as session:
        await session.write("a", Line("nut", Decimal("1.5"), {"x"}))
        assert await session.on(plain).read("a") == {"article": "nut", "price": Decimal("1.5"), "tags": {"x"}}
        await session.on(plain).write("b", 5)
        assert await session.on(numbers).read("b") == 5
    for typed, key in ((numbers, "a"), (lines, "b")):
        with pytest.raises(interlock.ValueRefusedError, match="stored"):
            await typed.read(key)
        with pytest.raises(interlock.ValueRefusedError, match="stored"):
            async with typed.session() as session:
                await session.read(key)
        with pytest.raises(interlock.ValueRefusedError, match="stored"):
            await listed(typed.scan())


@at_desk
async def test_merges_of_typed_resources(desk: Desk) -> None:
    """They may not make a value of another type, whatever is stored by now."""
    store = desk.open()
    numbers, money, lists = store.resource("n", int), store.resource("m", Decimal), store.resource("l", list[Line])
    sets, orders, optional = store.resource("s", set[int]), store.resource("o", Order), store.resource("x", int | None)
    async with store.session() as session:
        await session.on(numbers).add("a", 5)
        await session.on(numbers).maximum("a", 7)
        await session.on(money).add("a", Decimal("0.1"))
        await session.on(lists).append("a", Line("nut", Decimal(1)))
        await session.on(sets).set_add("a", 5)
        await session.on(sets).set_remove("a", 6)
        await session.on(optional).add("a", 1)
        await session.on(orders).merge("a", ORDER, using="last")
    assert await numbers.read("a") == 7
    assert await lists.read("a") == [Line("nut", Decimal(1))]
    assert await sets.read("a") == {5}
    assert await orders.read("a") == ORDER
    wrong: list[tuple[Any, str, tuple[Any, ...]]] = [
        (numbers, "add", (Decimal(1),)),
        (money, "add", (1,)),
        (orders, "add", (1,)),
        (numbers, "append", (1,)),
        (numbers, "maximum", ("text",)),
        (lists, "append", (Line("nut", 1.5),)),  # type: ignore[arg-type]
        (lists, "append", ({"article": "nut"},)),
        (lists, "set_add", (1,)),
        (sets, "set_add", ("text",)),
        (sets, "append", (1,)),
        (optional, "append", (1,)),
        (orders, "merge", (Line("a", Decimal(1)), "last")),
    ]
    for resource, call, arguments in wrong:
        session = await resource.begin()
        with pytest.raises(interlock.ValueRefusedError):
            await getattr(session, call)("new", *arguments)
        await session.rollback()


@at_desk
async def test_registered_merges_of_typed_resources(desk: Desk) -> None:
    orders = desk.open().resource("orders", Box[int])

    @orders.register_merge("push")
    def push(value: Box[int] | None, operand: Any) -> Any:
        return operand if isinstance(operand, str) else Box(operand, [*(value.history if value else []), operand])

    for number in (1, 2):
        async with orders.session() as session:
            await session.merge("a", number, using="push")
    assert await orders.read("a") == Box(2, [1, 2])
    with pytest.raises(interlock.ValueRefusedError):
        async with orders.session() as session:
            await session.merge("a", "no box", using="push")
    assert await orders.read("a") == Box(2, [1, 2])


@at_desk
async def test_typed_updates_and_results(desk: Desk) -> None:
    lines = desk.open().resource("lines", Line)
    await fill(lines, {"a": Line("a", Decimal(1)), "b": Line("b", Decimal(2))})

    async def raise_prices(session: interlock.AgentSession[Line]) -> int:
        return await session.update_where(lambda _, line: Line(line.article, line.price * 2, line.tags))

    assert await lines.run(raise_prices) == 2
    assert (await lines.run(first, idempotency_key="K")) == Line("a", Decimal(2))
    again = await lines.run_detailed(first, idempotency_key="K")
    assert (again.value, again.replayed) == (Line("a", Decimal(2)), True)
    entry = await lines.entry("a")
    assert entry is not None
    assert entry.value == Line("a", Decimal(2))


async def first(session: interlock.AgentSession[Line]) -> Line:
    """Return a value of the resource's own type."""
    await session.write("c", Line("c", Decimal(3)))
    return await session.expect("a")
