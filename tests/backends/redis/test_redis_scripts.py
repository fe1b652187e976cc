"""The scripts: reloaded after a flush, applied once, exact as Python is, bounded, and within their own keys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import hiredis
import pytest
import redis

from interlock import codec
from interlock.backends.redis import RedisBackend, requests
from interlock.backends.redis.failures import lost, refused
from interlock.backends.redis.scripts import TEXTS, Calls
from interlock.errors import (
    BackendError,
    BackendUnavailableError,
    CommitUnknownError,
    LimitExceededError,
    UnsupportedError,
    UsageError,
)
from interlock.merges import apply
from interlock.model import (
    ABSENT,
    UNCHANGED,
    BoundBroken,
    CommitRefused,
    Delete,
    Key,
    Merge,
    Merged,
    MergeRefused,
    Operation,
    Put,
    Span,
)
from interlock.testing.conformance.world import EVERYTHING, Subject, key, put, step, thawed
from redis_servers import RedisServer


def test_scripts_that_were_flushed_are_loaded_again_and_applied_once(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        leaf = store.backend.blocking()
        add = Merge((Operation("add", b"i1"),))
        await store.commit({key("a"): add})
        for _ in range(5):
            server.ask("SCRIPT", "FLUSH")
            await asyncio.gather(*[store.commit({key("a"): add}) for _ in range(10)])  # in one pipeline
            server.ask("SCRIPT", "FLUSH")
            await leaf.commit(await store.request({key("a"): add}))
            server.ask("SCRIPT", "FLUSH")
            assert len(await store.listing()) == 1
        assert await store.value(key("a")) == 1 + 5 * 11
        assert len(await store.feed()) == 1 + 5 * 11
        await store.backend.close()

    asyncio.run(run())


def test_nothing_but_the_declared_keys_is_touched(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url, name="declared"))
        large = {key("large", number): put("x" * 10_000) for number in range(3)}
        await store.commit(large | {key("t"): put(1, ttl_seconds=60.0), key("u"): put(1, listed=False)})
        await store.commit({name: put(2) for name in large} | {key("t"): Delete()}, clears=(EVERYTHING,))
        await store.backend.outcome(1 << 127, fence=True)
        await store.backend.close()

    asyncio.run(run())
    declared = set(Calls("declared").keys)
    assert {name.encode() if type(name) is str else name for name in server.ask("KEYS", "*")} <= declared


def _random_int(source: random.Random) -> int:
    return source.choice((-1, 1)) * source.randrange(10 ** source.choice((1, 3, 7, 8, 14, 15, 16, 30, 400, 3998)))


def test_sums_of_ints_are_those_of_python(redis_url: str, name: str) -> None:
    source = random.Random(1)
    leaf = RedisBackend(redis_url, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        for number in range(40):
            pairs = [(_random_int(source), _random_int(source)) for _ in range(50)]
            pairs += [(value, -value) for value, _ in pairs[:5]]
            pairs += [(10**power - 1, 10**rest) for power, rest in ((15, 0), (16, 0), (21, 7), (28, 14), (35, 0))]
            pairs += [(-(10**power), 10**rest) for power, rest in ((15, 0), (16, 8), (21, 7), (28, 14), (35, 0))]
            await store.commit({key(number, place): put(left) for place, (left, _) in enumerate(pairs)})
            reply = await store.commit(
                {
                    key(number, place): Merge((Operation("add", codec.freeze(right)),))
                    for place, (_, right) in enumerate(pairs)
                }
            )
            entries = (await leaf.read([key(number, place) for place in range(len(pairs))])).entries
            for place, (left, right) in enumerate(pairs):
                assert thawed(entries[place]) == left + right
                assert reply.merged is not None
                assert reply.merged[key(number, place)] == Merged(right != 0, codec.freeze(left))
        await leaf.close()

    step(run())


def _random_decimal(source: random.Random) -> Decimal:
    digits = source.randrange(10 ** source.choice((0, 1, 2, 6, 15, 30, 400)) + 1)
    power = source.choice((0, 0, -2, -2, -1, 3, -7, -20, 15, 200, -350))
    return Decimal((source.choice((0, 1)), tuple(map(int, str(digits))), power))


def test_sums_and_bounds_of_decimals_are_those_of_python(redis_url: str, name: str) -> None:
    source = random.Random(3)
    leaf = RedisBackend(redis_url, name=name).blocking()
    zeros = [Decimal(text) for text in ("0", "-0", "0.00", "-0.00", "0E+5", "-0E-9", "1E+3", "-1E-7", "0.10")]

    async def run() -> None:
        store = Subject(leaf)
        for number in range(30):
            pairs = [(_random_decimal(source), _random_decimal(source)) for _ in range(40)]
            pairs += [(source.choice(zeros), source.choice(zeros)) for _ in range(20)]
            pairs += [(value, -value) for value, _ in pairs[:3]]
            names = [key(number, place) for place in range(len(pairs))]
            await store.commit({each: put(left) for each, (left, _) in zip(names, pairs, strict=True)})
            steps = [
                Operation(source.choice(("add", "add", "maximum", "minimum")), codec.freeze(right))
                for _, right in pairs
            ]
            wanted = [apply(codec.freeze(left), (each,)) for each, (left, _) in zip(steps, pairs, strict=True)]
            await store.commit({each: Merge((taken,)) for each, taken in zip(names, steps, strict=True)})
            entries = (await leaf.read(names)).entries
            assert [entry.value for entry in entries if entry is not None] == wanted
            left, right = pairs[0]
            bounds = [codec.freeze(left + right + shift) for shift in (Decimal("-0.01"), Decimal(0), Decimal("0.01"))]
            for floor, ceiling in ((bound, other) for bound in (*bounds, None) for other in (*bounds, None)):
                taken = Operation("add", codec.freeze(right), floor, ceiling)
                await store.commit({key("bounded"): put(left)})
                try:
                    after = apply(codec.freeze(left), (taken,))
                except BoundBroken:
                    with pytest.raises(BoundBroken):
                        await store.commit({key("bounded"): Merge((taken,))})
                else:
                    await store.commit({key("bounded"): Merge((taken,))})
                    entry = await store.entry(key("bounded"))
                    assert entry is not None
                    assert entry.value == after
        await leaf.close()

    step(run())


_OPERATIONS: dict[str, Callable[[random.Random], bytes]] = {
    "add": lambda source: codec.freeze(source.choice((_random_int(source), Decimal(source.randint(-99, 99)) / 8))),
    "append": lambda source: codec.freeze_element(source.choice(("a", 1, None, [1.5]))),
    "set_add": lambda source: codec.freeze_member(source.choice(("a", "ab", b"\xff", b"\0", 3, -3, 10**9))),
    "set_remove": lambda source: codec.freeze_member(source.choice(("a", "ab", b"\xff", b"\0", 3, -3))),
    "maximum": lambda source: codec.freeze(source.choice((_random_int(source), "text", Decimal("1.5"), 2.5))),
    "minimum": lambda source: codec.freeze(source.choice((_random_int(source), b"raw", Decimal("-1.50")))),
    "last": lambda source: codec.freeze(source.choice((1, [1], {"a", "b"}, Decimal(1), "x"))),
}


def test_merges_of_all_kinds_are_those_of_the_algebra(redis_url: str, name: str) -> None:
    source = random.Random(2)
    leaf = RedisBackend(redis_url, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        values: dict[Key, bytes | None] = {key("n", number): None for number in range(6)}
        for _ in range(400):
            which = source.choice(list(values))
            kinds = source.sample(list(_OPERATIONS), source.randint(1, 2))
            bound = codec.freeze(source.randint(-10, 10)) if kinds == ["add"] and source.random() < 0.5 else None
            steps = tuple(Operation(kind, _OPERATIONS[kind](source), bound, None) for kind in kinds)
            if bound is not None and steps[0].operand[:1] != b"i":
                continue
            try:
                wanted = apply(values[which], steps)
            except (BoundBroken, MergeRefused) as refusal:
                with pytest.raises(type(refusal)):
                    await store.commit({which: Merge(steps)})
                if source.random() < 0.3:
                    await store.commit({which: Delete()})
                    values[which] = None
                continue
            await store.commit({which: Merge(steps)})
            entry = await store.entry(which)
            assert entry is not None
            assert entry.value == wanted
            values[which] = wanted
        await leaf.close()

    step(run())


def test_what_is_too_large_to_merge_on_the_server_is_merged_beside_it(redis_url: str, name: str) -> None:
    leaf = RedisBackend(redis_url, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        members = set(range(3000))
        await store.commit({key("set"): put(members), key("list"): put(["x" * 1000] * 500)})
        await store.commit(
            {
                key("set"): Merge((Operation("set_add", codec.freeze_member(9999)),)),
                key("list"): Merge((Operation("append", codec.freeze_element("end")),)),
            }
        )
        assert await store.value(key("set")) == members | {9999}
        assert (await store.value(key("list")))[-1] == "end"
        await leaf.close()

    step(run())


def test_merges_that_are_computed_beside_the_server_are_never_lost(redis_url: str, name: str) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(redis_url, name=name))
        rise = [Merge((Operation("maximum", codec.freeze(f"{number:02}")),)) for number in range(30)]
        await asyncio.gather(
            *[store.commit({key("a"): rise[number], key("n", number): put(1)}) for number in range(30)]
        )
        assert await store.value(key("a")) == "29"
        assert len(await store.listing()) == 31
        await store.backend.close()

    asyncio.run(run())


def test_one_commit_has_keys_of_every_kind(redis_url: str, name: str) -> None:
    """Read and written, only written, guarded and written, only guarded."""
    leaf = RedisBackend(redis_url, name=name).blocking()
    writes = {key("read"): put(2), key("record"): put(2, ttl_seconds=60.0), key("other"): put(2)}

    async def run() -> None:
        store = Subject(leaf)
        first = await store.commit({key("read"): put(1), key("guarded"): put(1)})
        guards: dict[Key, Any] = {key("guarded"): UNCHANGED, key("record"): ABSENT}
        reply = await store.commit(writes, reads={key("read"): first.version}, guards=guards)
        assert await store.listing() == {key("guarded"): 1, key("read"): 2, key("record"): 2, key("other"): 2}
        clashes = await store.refused(writes, reads={key("read"): reply.version}, guards=guards)
        assert {clash.key: clash.kind for clash in clashes.values()} == {key("record"): "read"}
        await store.commit({key("guarded"): put(3)})
        clashes = await store.refused({key("other"): put(3)}, guards=guards, snapshot=reply.token)
        assert {clash.key: clash.kind for clash in clashes.values()} == {key("guarded"): "write", key("record"): "read"}
        await leaf.close()

    step(run())


def test_counts_are_bounded_before_anything_is_sent(redis_url: str, name: str) -> None:
    leaf = RedisBackend(redis_url, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        await store.commit({key("n", number): put(0) for number in range(requests.LIMITS.writes)})
        await store.commit({key("m"): put(0)})
        with pytest.raises(LimitExceededError) as caught:
            await store.commit({key("n", number): put(0) for number in range(requests.LIMITS.writes + 1)})
        assert caught.value.limit == "writes"
        with pytest.raises(LimitExceededError) as caught:
            await store.commit(
                {key("x"): put(1)}, reads={key("n", number): ABSENT for number in range(requests.LIMITS.reads + 1)}
            )
        assert caught.value.limit == "reads"
        with pytest.raises(LimitExceededError) as caught:
            await store.commit({key("x"): put(1)}, spans=(Span(b"\1", b"\2"),) * (requests.LIMITS.spans + 1))
        assert caught.value.limit == "spans"
        with pytest.raises(LimitExceededError) as caught:
            await store.commit({key("x"): put(1)}, fetch=tuple(key("n", number) for number in range(2001)))
        assert caught.value.limit == "fetched"
        before = await store.backend.snapshot()
        with pytest.raises(LimitExceededError) as caught:
            await store.commit(clears=(EVERYTHING,))
        assert caught.value.limit == "cleared_keys"
        assert await store.backend.snapshot() == before
        await leaf.close()

    step(run())


def test_a_long_wait_over_a_large_range_is_refused_rather_than_searched_for_ever(redis_url: str, name: str) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(redis_url, name=name))
        where = Span(key("n", 0), key("n", 1 << 20))
        await store.commit({key("n", number): put(0) for number in range(6000)})
        snapshot = await store.backend.snapshot()
        for _ in range(20):
            await asyncio.gather(*[store.commit({key("other"): put(1)}, durable=False) for _ in range(100)])
        await store.commit({key("x"): put(1)}, spans=(where,), snapshot=snapshot)
        for _ in range(31):
            await asyncio.gather(*[store.commit({key("other"): put(1)}, durable=False) for _ in range(100)])
        with pytest.raises(CommitRefused) as caught:
            await store.commit({key("x"): put(1)}, spans=(where,), snapshot=snapshot)
        (clash,) = caught.value.clashes
        assert (clash.kind, clash.current) == ("range", None)
        small = Span(key("n", 5), key("n", 9))
        await store.commit({key("x"): put(1)}, spans=(small,), snapshot=snapshot)
        await store.backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0.0, 1e9, 1e300])
def test_a_life_may_be_of_any_length(redis_url: str, name: str, seconds: float) -> None:
    leaf = RedisBackend(redis_url, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        reply = await store.commit({key("a"): put(1, ttl_seconds=seconds)})
        entry = await store.entry(key("a"))
        assert entry is not None
        assert entry.expires_at is not None
        assert entry.expires_at >= reply.at
        assert await leaf.compact(0.0) == (1 if seconds == 0.0 else 0)
        await leaf.close()

    step(run())


def test_compaction_keeps_a_tombstone_that_a_snapshot_could_miss(redis_url: str, name: str) -> None:
    leaf = RedisBackend(redis_url, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        await store.commit({key("a"): put(1)})
        first = await store.commit({key("a"): Delete()})
        await store.commit({key("a"): put(2)})
        snapshot = await store.backend.snapshot()
        await store.commit({key("a"): Delete()})
        while await leaf.compact(first.at + 1e-6):
            pass
        await store.refused({key("b"): put(1)}, reads={key("a"): UNCHANGED}, snapshot=snapshot)
        await store.refused({key("b"): put(1)}, spans=(EVERYTHING,), snapshot=snapshot)
        assert await store.value(key("a"), snapshot) == 2
        await leaf.close()

    step(run())


@pytest.mark.parametrize("parts", [1, 3])
def test_a_commit_of_very_many_keys_is_one_record_whatever_the_page(redis_url: str, name: str, parts: int) -> None:
    leaf = RedisBackend(redis_url, name=name).blocking()

    async def run() -> None:
        store = Subject(leaf)
        count = 1500 * parts
        for turn in range(3):
            await store.commit({key("n", number): put(turn) for number in range(count)})
        cursor, seen = None, []
        for _ in range(3):
            changes, cursor = await leaf.changes(cursor, limit=1)
            seen += changes
        assert [len(change.writes) for change in seen] == [count] * 3
        assert all(seen[turn].writes[key("n", 7)] == put(turn) for turn in range(3))
        await store.compact_all()
        assert await store.value(key("n", count - 1)) == 2
        await leaf.close()

    step(run())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("NOSCRIPT No matching script.", BackendUnavailableError),
        ("LOADING Redis is loading the dataset in memory", BackendUnavailableError),
        ("READONLY You can't write against a read only replica.", BackendUnavailableError),
        ("OOM command not allowed when used memory > 'maxmemory'.", BackendUnavailableError),
        ("MISCONF Errors writing to the AOF file", BackendUnavailableError),
        ("NOREPLICAS Not enough good replicas to write.", BackendUnavailableError),
        ("MASTERDOWN Link with MASTER is down", BackendUnavailableError),
        ("CLUSTERDOWN The cluster is down", BackendUnavailableError),
        ("MOVED 3999 127.0.0.1:6381", BackendUnavailableError),
        ("ASK 3999 127.0.0.1:6381", BackendUnavailableError),
        ("BUSY Redis is busy running a script.", BackendUnavailableError),
        (
            "ERR Error running script (call to f_1): @user_script:8: @user_script: 8: -OOM command",
            BackendUnavailableError,
        ),
        ("CROSSSLOT Keys in request don't hash to the same slot", UnsupportedError),
        ("NOPERM this user has no permissions to run the 'eval' command", BackendError),
        ("ERR something else about a BUSYKEY", BackendError),
    ],
)
def test_definite_errors_say_that_nothing_was_written(text: str, error: type[BackendError]) -> None:
    assert type(refused(text)) is error
    assert not refused(text).maybe_committed


def test_a_connection_that_breaks_leaves_a_commit_unknown_and_nothing_else() -> None:
    assert type(lost("gone", commits=True)) is CommitUnknownError
    assert type(lost("gone", commits=False)) is BackendUnavailableError


@pytest.mark.parametrize("wrong", ["", "a b", "{a}", "a{b}c", "a\0", "é", "x" * 65, 7, None])
def test_a_name_that_would_not_be_one_slot_is_refused(redis_url: str, wrong: Any) -> None:
    with pytest.raises(UsageError):
        RedisBackend(redis_url, name=wrong)


def test_the_scripts_fit_the_oldest_lua(server: RedisServer) -> None:
    with redis.Redis(port=server.port) as client:
        for text in TEXTS.values():
            client.script_load(text.decode())


def test_a_reply_that_is_no_reply_ends_the_connection(redis_url: str, name: str) -> None:
    """What comes instead of an answer is never taken for one."""

    async def run() -> None:
        backend = RedisBackend(redis_url, name=name)
        await backend.snapshot()
        (links,) = backend._driver._loops.values()  # type: ignore[attr-defined]
        links.link.data_received(b"+OK\r\n")
        assert links.link.broken
        await backend.commit(await Subject(backend).request({key("a"): Put(b"i1")}))
        await backend.close()

    asyncio.run(run())
    assert issubclass(hiredis.ProtocolError, Exception)
