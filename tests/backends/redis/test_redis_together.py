"""Commits that arrive together are one call, and come out as if each had been a call of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from interlock import codec
from interlock.backends.redis import RedisBackend, requests
from interlock.backends.redis.scripts import Calls
from interlock.errors import BackendError
from interlock.model import (
    ABSENT,
    UNCHANGED,
    BoundBroken,
    CommitRefused,
    CommitRequest,
    Delete,
    DuplicateTransaction,
    Entry,
    Expectation,
    Key,
    Merge,
    MergeRefused,
    Operation,
    Put,
    Token,
    Write,
)
from interlock.testing.conformance.world import Subject, examples, key, new_transaction, put
from redis_servers import RedisServer

_KEYS = [key("k", number) for number in range(5)]


def _write(source: random.Random) -> Write:
    amount, bound = codec.freeze(source.randrange(1, 99)), codec.freeze(500)
    kinds: list[Callable[[], Write]] = [
        lambda: put(source.randrange(1000)),
        lambda: put(source.randrange(1000), ttl_seconds=source.choice((0.0, 1e6))),
        lambda: put(source.randrange(1000), listed=False),
        lambda: put(["x" * source.choice((10, 5000))]),
        Delete,
        lambda: Merge((Operation("add", amount, None, source.choice((None, bound))),)),
        lambda: Merge((Operation("append", codec.freeze_element("end")),)),
        lambda: Merge((Operation("last", source.choice((amount, codec.freeze("y" * 5000)))),)),
    ]
    return source.choice(kinds)()


def _request(source: random.Random, seen: dict[Key, Entry | None], token: Token, transaction: int) -> CommitRequest:
    """A request on few keys, so that many of a turn want the same ones."""

    def expected(name: Key) -> Expectation:
        entry = seen[name]
        return source.choice((UNCHANGED, ABSENT if entry is None or entry.value is None else entry.version))

    names = source.sample(_KEYS, 5)
    reads = {name: expected(name) for name in names[: source.randrange(3)]}
    guards = {name: expected(name) for name in names[3 : source.randrange(3, 5)]}
    writes = {name: _write(source) for name in source.sample(_KEYS, source.randrange(3))}
    alive = frozenset(name for name in (*reads, *guards) if source.random() < 0.3)
    quiet = source.random() < 0.3
    return CommitRequest(
        transaction, f"a{transaction % 97}", "serializable", token, reads, writes, guards, alive=alive, quiet=quiet
    )


def _said(entry: Entry | None) -> Any:
    """An entry without a time."""
    return entry and (entry.version, entry.value, entry.expires_at is None)


async def _outcome(store: Subject, request: CommitRequest) -> Any:
    """What became of a commit, without the times."""
    try:
        reply = await store.backend.commit(request)
    except CommitRefused as refused:
        return [
            (clash.key, clash.kind, _said(clash.current), clash.author and clash.author.agent)
            for clash in refused.clashes
        ]
    except DuplicateTransaction as refused:
        return refused.committed
    except (BoundBroken, MergeRefused) as refused:
        return type(refused), refused.key
    return reply.version, reply.merged


def _scripts(client: redis.Redis) -> int:
    found: int = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    return found


async def _kept(store: Subject, client: redis.Redis, name: str) -> list[Any]:
    """What the store has afterwards, without the times."""
    calls = Calls(name)
    head: Any = client.hget(calls.entries, "s")
    return [
        head[:8] + head[16:],
        [
            [(_said(entry), author and author.agent) for entry, author in await store.backend.history(each)]
            for each in _KEYS
        ],
        await store.listing(),
        [(change.version, change.agent, change.reads, change.writes) for change in await store.feed()],
        sorted(client.zrange(calls.expiring, 0, -1)),
        client.zrange(calls.keys[1], 0, -1),
        client.zrange(calls.keys[2], 0, -1) and client.zcard(calls.keys[2]),
        client.hgetall(calls.keys[6]),
        sorted(client.hkeys(calls.entries)),
    ]


def test_commits_of_one_call_come_out_as_those_of_many(server: RedisServer) -> None:
    source = random.Random(5)

    async def run() -> None:
        client = redis.Redis.from_url(server.url)
        one, many = (Subject(RedisBackend(server.url, name=name)) for name in ("one", "many"))
        for store in (one, many):
            await store.commit({_KEYS[0]: put(0)}, transaction=1 << 120)
        calls = commits = 0
        for _ in range(examples(60)):
            token, other = await one.backend.snapshot(), await many.backend.snapshot()
            assert token.position == other.position
            seen = dict(zip(_KEYS, (await one.backend.read(_KEYS)).entries, strict=True))
            requests: list[CommitRequest] = []
            for _ in range(source.randrange(2, 12)):
                again = requests and source.random() < 0.05
                transaction = requests[-1].transaction if again else new_transaction()
                requests.append(_request(source, seen, token, transaction))
            before = _scripts(client)
            together = await asyncio.gather(*[_outcome(one, request) for request in requests])
            calls, commits = calls + _scripts(client) - before, commits + len(requests)
            for request, outcome in zip(requests, together, strict=True):
                fields = {name: getattr(request, name) for name in request.__struct_fields__}
                assert await _outcome(many, CommitRequest(**fields | {"snapshot": other})) == outcome
        assert calls < commits / 3, "one call for many, unless they are large"
        found = await _kept(one, client, "one")
        assert found == await _kept(many, client, "many")
        assert found[6] > examples(50)
        await one.backend.close()
        await many.backend.close()

    asyncio.run(run())


def test_one_that_is_refused_changes_nothing_for_the_others(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        first = await store.commit({key("a"): put(1)})
        token = await store.backend.snapshot()
        requests = [
            await store.request({key("a"): put(2)}, reads={key("a"): first.version}, agent="winner"),
            await store.request({key("a"): put(3), key("b"): put(3)}, reads={key("a"): first.version}),
            await store.request({key("c"): put(4)}, reads={key("b"): ABSENT}, snapshot=token),
        ]
        won, lost, third = await asyncio.gather(
            *[store.backend.commit(request) for request in requests], return_exceptions=True
        )
        assert not isinstance(won, BaseException)
        assert not isinstance(third, BaseException)
        assert third.version[0] == won.version[0] + 1
        assert isinstance(lost, CommitRefused)
        (clash,) = lost.clashes
        assert clash.author is not None
        assert (clash.author.agent, clash.author.transaction) == ("winner", requests[0].transaction)
        assert clash.current is not None
        assert clash.current.version == won.version
        assert await store.listing() == {key("a"): 2, key("c"): 4}
        await store.backend.close()

    asyncio.run(run())


def test_a_merge_finds_the_large_value_that_was_put_just_before_it(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        append = Merge((Operation("append", codec.freeze_element("end")),))
        requests = [await store.request({key("a"): write}) for write in (put(["x" * 5000]), append, append)]
        await asyncio.gather(*[store.backend.commit(request) for request in requests])
        assert await store.value(key("a")) == ["x" * 5000, "end", "end"]
        await store.backend.close()

    asyncio.run(run())


def test_a_damaged_entry_stops_only_the_commit_that_meets_it(server: RedisServer) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        await store.commit({key("bad"): Put(b"i1"), key("good", 0): Put(b"i1")})
        with redis.Redis.from_url(server.url) as client:
            client.hset(Calls("interlock").entries, key("bad"), b"short")
        add = Merge((Operation("add", b"i1"),))
        names = [key("good", 0), key("bad"), key("good", 1), key("good", 0)]
        requests = [
            await store.request({name: add}, guards={name: UNCHANGED} if name == key("bad") else {}) for name in names
        ]
        outcomes = await asyncio.gather(
            *[store.backend.commit(request) for request in requests], return_exceptions=True
        )
        assert [isinstance(outcome, BackendError) for outcome in outcomes] == [False, True, False, False]
        assert not outcomes[1].maybe_committed  # type: ignore[union-attr]
        assert [await store.value(name) for name in names if name != key("bad")] == [3, 1, 3]
        await store.backend.close()

    asyncio.run(run())


@pytest.mark.parametrize("cut", [False, True])
def test_a_caller_who_leaves_takes_nothing_from_the_others(server: RedisServer, cut: bool) -> None:
    async def run() -> None:
        store = Subject(RedisBackend(server.url))
        requests = [await store.request({key("n", number): put(number)}) for number in range(4)]
        tasks = [asyncio.ensure_future(store.backend.commit(request)) for request in requests]
        await asyncio.sleep(0)
        if cut:
            await asyncio.sleep(0)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await tasks[1]
        assert caught.value.__notes__ == ["the commit had begun and was not abandoned: it was done"]
        await asyncio.gather(tasks[0], *tasks[2:])
        assert await store.listing() == {key("n", number): number for number in range(4)}
        await store.backend.close()

    asyncio.run(run())


def test_guards_are_forgotten_as_words_when_they_are_many() -> None:
    """A store with very many resources keeps no more of them in memory for it."""
    for number in range(2 * requests._MOST_NAMED + 10):
        guard = key("guard", number)
        assert requests._name(guard) == b"\r\n$%d\r\n%s" % (len(guard), guard) == requests._named[guard]
        assert len(requests._named) <= requests._MOST_NAMED
