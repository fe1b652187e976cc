"""Cases of kind value: what comes back is what went in, or it is refused with the path before anything is written."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import math
import os
import tracemalloc
import uuid
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from cases.support import World, between_processes, everywhere, increment, put, put_all, rows
from cases.workers import Worker
from interlock import InvariantError, LimitExceededError, RetryPolicy, UsageError, ValueRefusedError
from interlock.codec import VALUE_BYTES


@dataclasses.dataclass
class Box:
    """A typed value."""

    content: dict[Any, Any]


def same(one: Any, other: Any) -> bool:
    """Equal in type as well as in value, at any depth, and with dicts in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return one == other and sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal | dt.timezone):
        return repr(one) == repr(other)
    if isinstance(one, dt.datetime | dt.time):
        return one.replace(tzinfo=None) == other.replace(tzinfo=None) and zone(one) == zone(other)
    return bool(one == other)


def zone(moment: Any) -> Any:
    """Everything that is to be kept about a time's zone."""
    info = moment.tzinfo
    return moment.fold, type(info), None if info is None else str(info), moment.utcoffset()


async def keeps(world: World, values: list[Any]) -> None:
    """Each value comes back exactly: alone, nested, from the same store object and from another one."""
    store = world.open()
    kept, other = store.resource("kept"), world.open().resource("kept")
    for value in values:
        nested = {"list": [value], "tuple": (value, {"deep": value})}
        await kept.run(put_all, {"alone": value, "nested": nested})
        for resource in (kept, other):
            assert same(await resource.read("alone"), value), f"{value!r:.80} came back as something else"
            assert same(await resource.read("nested"), nested), f"{value!r:.80} in containers came back otherwise"


async def refuses(world: World, values: list[tuple[Any, str]]) -> None:
    """Each value is refused with the path at the write, by every way in, and nothing of the commit is written."""
    store = world.open()
    kept = store.resource("refused")
    await kept.run(put, "kept", 1)
    before = len(await rows(store.log.changes()))
    for value, path in values:
        session = await kept.begin()
        await session.write("neighbour", "of a refused value")
        with pytest.raises(ValueRefusedError) as caught:
            await session.write("refused", {"orders": [1, value]})
        assert caught.value.path == f"$.orders[1]{path}"
        with pytest.raises(ValueRefusedError):
            await session.commit()
        for call, *arguments in (
            ("append", "list", value),
            ("merge", "merged", value, "last"),
            ("update", "kept", lambda _, value=value: value),
        ):
            session = await kept.begin()
            with pytest.raises(ValueRefusedError):
                await getattr(session, call)(*arguments)
            with pytest.raises(ValueRefusedError):
                await session.commit()
        session = await kept.begin()
        with pytest.raises(ValueRefusedError):
            await session.update_where(lambda key, _, value=value: value)
        with pytest.raises(ValueRefusedError):
            await kept.run(returning, value, idempotency_key="K", idempotency_fingerprint=1)
        with pytest.raises(ValueRefusedError):
            await kept.run(increment, idempotency_key="K", idempotency_fingerprint=[value])
    assert await rows(kept.scan()) == [("kept", 1)]
    assert len(await rows(store.log.changes())) == before


async def returning(session: Any, value: Any) -> Any:
    """What it returns would be kept with the idempotency key."""
    await session.write("neighbour", "of a refused value")
    return [value]


@everywhere
async def test_R109_odd_texts(world: World) -> None:
    await keeps(
        world,
        [
            "\0",
            "a\0b\0",
            "\x01\x1f\x7f\x85",
            "😀 \U0010ffff",
            "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
            "\ufeff",
            "e\u0301",
            "",
        ],
    )
    await refuses(world, [("\ud83d", ""), ("a\udc00b", ""), ({"k": "\udfff"}, ".k")])
    await refuses(world, [({"\ud800": 1}, "")])


@everywhere
async def test_R111_not_a_number_and_infinities(world: World) -> None:
    await keeps(world, [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e16, 1.0])
    await refuses(world, [(math.nan, ""), (math.inf, ""), (-math.inf, "")])
    await refuses(world, [({"a": (1.0, math.nan)}, ".a[1]"), (Decimal("NaN"), ""), (Decimal("-Infinity"), "")])


@everywhere
async def test_R112_large_integers_and_empty_containers(world: World) -> None:
    large = [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, -(10**3999)]
    await keeps(world, [*large, [], {}, (), set(), frozenset(), [[]], [{}], {"a": [], "b": {}}, True, False, 0, 1])

    store = world.open()
    sums = store.resource("sums")
    for number in large[:-1]:  # through the engine's own arithmetic
        async with sums.session() as session:
            await session.add("sum", number)
        async with sums.session() as session:
            await session.maximum("maximum", number)
            await session.set_add("set", number)
            await session.append("list", number)
    assert same(await sums.read("sum"), sum(large[:-1]))
    assert same(await sums.read("maximum"), 10**30)
    assert same(await sums.read("set"), set(large[:-1]))
    assert same(await sums.read("list"), large[:-1])
    async with sums.session() as session:
        for number in large[:-1]:
            await session.set_remove("set", number)
    assert same(await sums.read("set"), set())
    with pytest.raises(InvariantError) as caught:
        async with sums.session() as session:
            await session.add("bounded", 2**64 + 1, ceiling=2**64)
    assert (caught.value.bound, caught.value.current) == (2**64, 0)


MOMENT = dt.datetime(2026, 10, 25, 2, 30, 15, 123456)
MOMENTS: list[Any] = [
    MOMENT,
    MOMENT.replace(tzinfo=dt.UTC),
    MOMENT.replace(tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
    MOMENT.replace(tzinfo=dt.timezone(-dt.timedelta(hours=3, seconds=7), "odd")),
    MOMENT.replace(tzinfo=ZoneInfo("Europe/Berlin")),
    MOMENT.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    dt.datetime.min,
    dt.datetime.max,
    dt.date(2026, 2, 28),
    dt.time(23, 59, 59, 999999),
    dt.time(1, 2, tzinfo=dt.UTC),
    dt.timedelta(days=-1, microseconds=1),
    dt.timedelta.max,
]


class OddZone(dt.tzinfo):
    """A zone that another process could not make again."""

    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def dst(self, moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(0)

    def tzname(self, moment: dt.datetime | None) -> str:
        return "odd"


@everywhere
async def test_R114_times_keep_their_kind_and_zone(world: World) -> None:
    await keeps(world, MOMENTS)
    await refuses(world, [(MOMENT.replace(tzinfo=OddZone()), ""), (dt.time(1, tzinfo=OddZone()), "")])


@between_processes
async def test_R114_a_reader_in_another_time_zone_sees_the_same(world: World) -> None:
    await world.open().resource("moments").run(put, "all", MOMENTS)
    for zone_name in (
        ("UTC", "America/St_Johns") if world.is_server else ("UTC", "Pacific/Auckland", "America/St_Johns")
    ):
        worker = Worker("show_moments", url=world.place, environment={"TZ": zone_name})
        shown = worker.result()
        assert shown["moments"] == [repr(moment) for moment in MOMENTS]
        assert shown["zone"] == ("UTC" if zone_name == "UTC" else shown["zone"])


@everywhere
async def test_R115_keys_of_dicts_are_texts(world: World) -> None:
    odd: list[dict[Any, Any]] = [
        {1: "a", "1": "b"},
        {True: 1},
        {None: 1},
        {1: "x", "k": "y"},
        {(1, 2): 3},
        {1.5: 1},
        {b"a": 1},
        {uuid.uuid4(): 1},
        {10**5000: 1},
    ]
    await refuses(world, [(value, "") for value in odd])
    await refuses(world, [({"a": [{"b": {2: 1}}]}, ".a[0].b")])
    boxes = world.open().resource("boxes", Box)
    for value in odd:
        with pytest.raises(ValueRefusedError) as caught:
            await boxes.run(put, "box", Box(value))
        assert caught.value.path == "$.content"
    await keeps(world, [{"1": "b", "": 0, "b": 1, "a": 2, "\0": 3, ".": 4, "True": 5}])


@everywhere
async def test_R117_integers_of_thousands_of_digits(world: World) -> None:
    await keeps(world, [2**63, 10**3999, 1 - 10**4000])
    await refuses(world, [(10**5000, ""), (-(10**4000), ""), ({"n": [10**5000]}, ".n[0]"), (Decimal("1" * 5000), "")])
    kept = world.open().resource("kept")
    await kept.run(put, "n", 10**3999)

    async def add(session: Any, amount: int) -> None:
        await session.add("n", amount)

    with pytest.raises(ValueRefusedError):
        await kept.run(add, 10**5000)
    with pytest.raises(ValueRefusedError):  # only the sum is too long
        await kept.run(add, 10**4000 - 1)
    assert same(await kept.read("n"), 10**3999)
    done = await kept.run_detailed(add, 2**63, idempotency_key="K")
    again = await kept.run_detailed(add, 2**63, idempotency_key="K")
    assert (again.replayed, again.transaction_id) == (True, done.transaction_id)
    with pytest.raises(UsageError):
        await kept.run(add, 10**5000, idempotency_key="K")
    assert same(await kept.read("n"), 10**3999 + 2**63)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


@everywhere
async def test_R118_containers_come_back_as_they_are_or_not_at_all(world: World) -> None:
    exact: list[Any] = [
        {(1, "a"), (2, "b")},
        frozenset({("x",), frozenset({1})}),
        {1, "1", b"1", 1.5},
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("1E+10"),
        b"\x00\xff",
        uuid.UUID(int=5),
        (),
        (1, (2, [3])),
        None,
        [None, {"a": None}],
    ]
    await keeps(world, exact)
    refused: list[Any] = [
        collections.deque([1], maxlen=2),
        collections.defaultdict(list, a=[1]),
        collections.Counter("aab"),
        collections.OrderedDict(a=1),
        collections.namedtuple("Point", "x y")(1, 2),
        Colour.RED,
        Level.LOW,
        Name("text"),
        bytearray(b"x"),
        memoryview(b"x"),
        range(3),
        object(),
        len,
        1j,
        iter([]),
        os.environ,
    ]
    await refuses(world, [(value, "") for value in refused])
    cycle: list[Any] = []
    cycle.append(cycle)
    kept = world.open().resource("kept")
    with pytest.raises(ValueRefusedError):
        await kept.run(put, "cycle", cycle)
    assert not await kept.read("cycle")


@everywhere
async def test_R120_a_value_above_the_limit_takes_its_whole_commit_along(world: World) -> None:
    store = world.open()
    blobs = store.resource("blobs")
    for large in (b"x" * VALUE_BYTES, "y" * VALUE_BYTES, ["z" * 1000] * 1100, {"k": list(range(600_000))}):
        with pytest.raises(LimitExceededError) as caught:
            await blobs.run(put_all, {"before": 1, "large": large, "after": 2})
        assert (caught.value.limit, caught.value.allowed) == ("value_bytes", VALUE_BYTES)
        assert caught.value.found > VALUE_BYTES
    assert await rows(blobs.scan()) == []
    assert await rows(store.log.changes()) == []
    fits = os.urandom(VALUE_BYTES - 6)
    await blobs.run(put_all, {"before": 1, "large": fits, "after": 2})
    assert await blobs.read("large") == fits

    async with blobs.session() as session:
        await session.append("list", "x" * (VALUE_BYTES // 2))
    with pytest.raises(ValueRefusedError, match=r"\(\"log\", n\)"):  # a merge that would outgrow it
        async with blobs.session() as session:
            await session.write("neighbour", 1)
            await session.append("list", "x" * (VALUE_BYTES // 2))
    assert not await blobs.read("neighbour")


@everywhere
async def test_R120_a_commit_of_too_much_is_refused_before_it_is_sent(world: World) -> None:
    blobs = world.open().resource("blobs")
    large = b"x" * (VALUE_BYTES - 16)
    with pytest.raises(LimitExceededError) as caught:
        await blobs.run(put_all, {("blob", number): large for number in range(65)})
    assert caught.value.limit == "commit_bytes"
    with pytest.raises(LimitExceededError) as caught:
        await blobs.run(put_all, {("small", number): 1 for number in range(10_001)})
    assert caught.value.limit == "writes"
    assert await rows(blobs.scan()) == []


@everywhere
async def test_R120_fifty_megabytes_and_ten_retries_need_bounded_memory(world: World) -> None:
    blobs = world.open(retry=RetryPolicy(max_attempts=10, base_seconds=0.0001)).resource("blobs")
    huge = b"x" * 50_000_000
    attempts: list[int] = []

    async def body(session: Any) -> None:
        attempts.append(session.attempt)
        await session.read("hot")
        if session.attempt < 10:
            await blobs.run(put, "hot", session.attempt, detached=True)
            await session.write("hot", -1)  # lost in a conflict
            return
        await session.write("huge", huge)

    tracemalloc.start()
    try:
        with pytest.raises(LimitExceededError):
            await blobs.run(body)
        for _ in range(10):
            with pytest.raises(LimitExceededError):
                await blobs.run(put, "huge", huge)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert attempts == list(range(1, 11))
    assert peak < 3 * len(huge)
    assert kept < len(huge) // 5
