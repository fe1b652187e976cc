"""Cases of kind key: every character is literal, no two keys collide, and one limit holds everywhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cases.support import World, drop_schema, everywhere, increment, put, put_all, rows
from interlock import LimitExceededError, UsageError
from interlock.keys import KEY_BYTES, NAME_BYTES

WILD = [
    "a",
    "a\0",
    "a\0b",
    "a\1",
    "%",
    "_",
    "\\",
    "*",
    "?",
    "[",
    "]",
    "[a-z]",
    "^",
    "\n",
    "\0",
    "%%",
    "a%",
    "a_",
    "a*",
    "ab",
    "abc",
    "a\\%",
    "{}",
    ".*",
]


@everywhere
async def test_R121_wildcards_mean_nothing(world: World) -> None:
    store = world.open()
    names = [name for name in WILD if not name.isspace()]
    for name in names:
        await store.resource(name).run(put_all, {key: f"{name} {key}" for key in WILD})
    for name in names:
        resource = store.resource(name)
        everything = await rows(resource.scan())
        assert everything == [(key, f"{name} {key}") for key in sorted(WILD)]
        for prefix in WILD:
            literal = [key for key in sorted(WILD) if key.startswith(prefix)]
            assert [key for key, _ in await rows(resource.scan(prefix))] == literal
    for prefix in ("%", "a", "\\", "[", "*"):
        async with store.resource("%").session() as session:
            await session.clear(prefix)
        async with store.resource("_").session() as session:
            await session.update_where(lambda key, value: value + "!", prefix)
    gone = [key for key in sorted(WILD) if key.startswith(("%", "a", "\\", "[", "*"))]
    assert [key for key, _ in await rows(store.resource("%").scan())] == [
        key for key in sorted(WILD) if key not in gone
    ]
    for name in names:
        if name not in ("%", "_"):
            assert await rows(store.resource(name).scan()) == [(key, f"{name} {key}") for key in sorted(WILD)]
    changed = [key for key, value in await rows(store.resource("_").scan()) if value.endswith("!")]
    assert changed == gone


@everywhere
async def test_R122_a_prefix_ends_at_a_boundary(world: World) -> None:
    nodes = world.open().resource("nodes")
    keys: list[Any] = [
        "t",
        "ta",
        ("t",),
        ("t", "a"),
        ("t", "a", "x"),
        ("t", "a", 1),
        ("t", "ab"),
        ("t", "a\0"),
        ("t", 1),
    ]
    keys += [("node1",), ("node1", 0), ("node10",), ("node10", 0), ("t", "A"), ("u",)]
    await nodes.run(put_all, {key: str(key) for key in keys})
    assert [key for key, _ in await rows(nodes.scan(("t", "a")))] == [("t", "a"), ("t", "a", "x"), ("t", "a", 1)]
    assert [key for key, _ in await rows(nodes.scan(("node1",)))] == [("node1",), ("node1", 0)]
    assert [key for key, _ in await rows(nodes.scan("t"))] == ["t", "ta"], "a text prefix takes texts only"
    async with nodes.session() as session:
        await session.clear(("t", "a"))
        await session.clear(("node1",))
    left = [key for key, _ in await rows(nodes.scan())]
    assert left == [
        "t",
        "ta",
        ("node10",),
        ("node10", 0),
        ("t",),
        ("t", "A"),
        ("t", "a\0"),
        ("t", "ab"),
        ("t", 1),
        ("u",),
    ]


@everywhere
async def test_R123_parts_never_run_into_each_other(world: World) -> None:
    store = world.open()
    pairs: list[tuple[str, Any]] = [
        ("users", "archive:k"),
        ("users:archive", "k"),
        ("a-b", "c"),
        ("a", "b-c"),
        ("a", ("b", "c")),
        ("a", ("b-c",)),
        ("a", ("bc",)),
        ("a", "bc"),
        ("ab", "c"),
        ("a", ("b", "c", "")),
        ("a", ("b", "", "c")),
        ("a", ("", "b", "c")),
        ("a", ("b\0", "c")),
        ("a", ("b", "\0c")),
        ("a", ("b\0c",)),
        ("a", ("b\0\xff", "c")),
        ("a", ("b", 1)),
        ("a", ("b", "1")),
        ("a", ("b1",)),
        ("a", ("b", -1)),
        ("a", ("b", 256)),
        ("a", ("b", 1, 0)),
    ]
    for number, (name, key) in enumerate(pairs):
        await store.resource(name).run(put, key, number)
    for number, (name, key) in enumerate(pairs):
        assert await store.resource(name).read(key) == number
    assert sum([len(await rows(store.resource(name).scan())) for name in {name for name, _ in pairs}]) == len(pairs)


@everywhere
async def test_R123_idempotency_keys_do_not_run_into_names(world: World) -> None:
    store = world.open()
    names = ["users", "users:archive", "a-b", "a", "a\0b", "-", "'"]
    keys = ["archive:k", "k", "c", "b-c", "b\0c"]
    counters = store.resource("counters")

    async def operation(session: Any) -> int:
        return await increment(session.on(counters))

    operations = ["f", "g", "fg", "é" * 2000, "é" * 2000 + "f"]
    for operation.__qualname__ in operations:
        for target in (store, *map(store.resource, names)):
            for key in keys:
                done = await target.run_detailed(operation, idempotency_key=key, idempotency_fingerprint=0)
                assert not done.replayed
    assert await counters.read("n") == len(operations) * (1 + len(names)) * len(keys)


@everywhere
async def test_R124_names_are_never_part_of_a_statement(world: World) -> None:
    store = world.open()
    evil = [
        "'; DROP TABLE current; --",
        '"; DELETE FROM feed; --',
        "' OR '1'='1",
        "/* comment */",
        "$.path[*]",
        "a'b\"c`d",
        "x\\'; --",
        ":name ?1 @p $v",
        "{0} %s %(a)s",
        "\u2019\uff07",
    ]
    for name in evil:
        resource = store.resource(name)
        for key in evil:
            await resource.run(put, key, key, agent=name, idempotency_key=key, run_id=key)
        async with resource.session(agent=name) as session:
            await session.set_add(("set", *evil), name)
        assert [key for key, _ in await rows(resource.scan())] == [*sorted(evil), ("set", *evil)]
        entry = await resource.entry(evil[0])
        assert (entry.agent, entry.value) == (name, evil[0])
    assert len(await rows(store.log.changes())) == len(evil) * (len(evil) + 1)
    name = "x'; DROP TABLE current; --"
    for option in ("table", "table_prefix", "schema", "pragma"):
        if option not in world.options:
            with pytest.raises(UsageError, match=option):
                world.open(**{option: name})
        else:
            assert await world.open(**{option: name}).resource(evil[0]).read(evil[0]) is None
            assert await store.resource(evil[0]).read(evil[0]) == evil[0]
            assert drop_schema(world.url, name), "the name was taken literally"


@everywhere
async def test_R126_one_limit_for_the_length_of_a_key(world: World) -> None:
    store = world.open()
    resource = store.resource("long")
    dice = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    for length in (255, 500, KEY_BYTES - 2):
        for key in ("a" * length, "".join(dice.choices(letters, k=length)), "é" * (length // 2)):
            await resource.run(put, key, length)
            assert await resource.read(key) == length
    stored = len(await rows(resource.scan()))
    too_long: list[Any] = [
        "a" * (KEY_BYTES - 1),
        "é" * (KEY_BYTES // 2),
        "a" * 2704,
        "".join(dice.choices(letters, k=2704)),
        "a" * 10_000,
        "\U0001f600" * 10_000,
        ("a" * 500, "b" * 600),
        tuple(range(600)),
        ("n", 10**600),
        ("n", 10**5000),
    ]
    for key in too_long:
        session = await resource.begin()
        for call in ("read", "exists", "expect", "delete"):
            with pytest.raises(LimitExceededError) as caught:
                await getattr(await resource.begin(), call)(key)
            assert caught.value.limit == "key_bytes"
        with pytest.raises(LimitExceededError):
            await session.write(key, 1)
        with pytest.raises(LimitExceededError):
            await resource.read(key)
        with pytest.raises(LimitExceededError):
            await rows(resource.scan(key))
    for name in ("x" * (NAME_BYTES + 1), "é" * 200, "x" * 10_000):
        with pytest.raises(LimitExceededError) as caught:
            store.resource(name)
        assert caught.value.limit == "name_bytes"
    for key in ("", (), None, 5, 1.5, b"k", ["a"], ("a", None), ("a", 1.5), ("a", True), ("a", ("b",)), "\ud800"):
        with pytest.raises(UsageError):
            await resource.run(put, key, 1)
    assert len(await rows(resource.scan())) == stored


@everywhere
async def test_R123_effects_do_not_run_into_each_other(world: World) -> None:
    store = world.open()
    pairs = [("users", "archive:k"), ("users:archive", "k"), ("a-b", "c"), ("a", "b-c"), ("a\0", "b"), ("a", "\0b")]
    sent: list[Any] = []

    async def send(payload: Any, idempotency_key: str) -> None:
        sent.append((payload, idempotency_key))

    async with store.session() as session:
        for effect, key in pairs:
            store.effects.handler(effect, send)
            await session.stage(effect, effect, key=key)
    await store.effects.dispatch()
    assert sorted(sent) == sorted(pairs)
    assert len({(each.effect, each.key) for each in await store.effects.list()}) == len(pairs)
