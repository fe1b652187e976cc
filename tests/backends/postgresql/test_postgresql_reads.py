"""Reads that share a statement say what each would be told by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from interlock.backends.postgresql import PostgreSQLBackend
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.model import Delete, Entry, Key, Reading, Token
from interlock.testing.conformance.world import Subject, key, put

KEYS = [key("k", number) for number in range(6)]


def at_store(url: str, schema: str, body: Callable[[Subject], Awaitable[None]]) -> None:
    """Run a body on a store of its own."""

    async def run() -> None:
        backend = PostgreSQLBackend(url, schema=schema)
        try:
            await body(Subject(backend))
        finally:
            await backend.close()

    asyncio.run(run())


def shown(found: Reading | BaseException) -> list[Entry | None] | str:
    """What a reader makes of an answer."""
    if isinstance(found, BaseException):
        return type(found).__name__
    return found.entries


async def alone(store: Subject, keys: list[Key], at: Token | None) -> Reading | BaseException:
    """Read while nobody else does."""
    try:
        return await store.backend.read(keys, at)
    except SnapshotTooOldError as error:
        return error


async def statements(store: Subject) -> list[str]:
    """The statements that the store's connections have prepared."""
    loop = store.backend._driver._loops[asyncio.get_running_loop()]  # type: ignore[attr-defined]
    return [name for connection in loop.pool._free for name in connection._prepared]


async def agree(store: Subject, asked: list[tuple[list[Key], Token | None]]) -> set[str]:
    """Read all at once and one by one; which kinds of answers there were."""
    together = await asyncio.gather(*[store.backend.read(*each) for each in asked], return_exceptions=True)
    kinds = set()
    for (keys, at), found in zip(asked, together, strict=True):
        single = await alone(store, keys, at)
        assert shown(found) == shown(single)
        if at is None:
            continue
        if isinstance(found, Reading):
            assert isinstance(single, Reading)
            assert (found.token, found.superseded) == (at, single.superseded)
            kinds.add("superseded" if found.superseded else "newest")
            kinds |= {"absent" for entry in found.entries if entry is None}
        else:
            kinds.add(type(found).__name__)
    return kinds


def test_a_snapshot_is_read_together_with_others(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        choose = random.Random(7)
        tokens = [await store.backend.snapshot()]
        for number in range(60):
            written = choose.sample(KEYS, choose.randint(1, 3))
            writes = {name: Delete() if choose.random() < 0.3 else put(number) for name in written}
            await store.commit(writes, quiet=choose.random() < 0.4)
            tokens.append(await store.backend.snapshot())
            if number == 30:
                await store.backend.compact((await store.backend.read(())).at + 1, limit=8)
        asked = [
            (choose.sample(KEYS, choose.randint(1, 4)), choose.choice([None, choose.choice(tokens), tokens[-1]]))
            for _ in range(150)
        ]
        kinds = await agree(store, asked)
        assert kinds == {"newest", "superseded", "absent", "SnapshotTooOldError"}
        assert "read_kept" in await statements(store)

    at_store(postgresql_url, schema, body)


def test_what_was_deleted_and_dropped_is_not_read_as_absent_from_before(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        before = (await store.commit({KEYS[0]: put(1)})).token
        gone = await store.commit({KEYS[0]: Delete()})
        last = await store.commit({KEYS[1]: put(1)})
        await store.backend.compact(gone.at + 1)
        await store.backend.compact(last.at + 1)
        kinds = await agree(store, [([KEYS[0]], before)] * 5 + [([KEYS[0]], last.token)] * 5)
        assert kinds == {"SnapshotTooOldError", "newest", "absent"}

    at_store(postgresql_url, schema, body)


def test_a_token_of_another_store_refuses_its_reader_alone(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        token = (await store.commit({KEYS[0]: put(1)})).token
        foreign = Token(token.store + 1, token.incarnation, token.position, token.detail)
        asked = [token, token, foreign, token]
        found = await asyncio.gather(*[store.backend.read(KEYS[:1], at) for at in asked], return_exceptions=True)
        assert [type(each) for each in found] == [Reading, Reading, UsageError, Reading]

    at_store(postgresql_url, schema, body)
