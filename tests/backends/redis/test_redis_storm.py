"""Everything at once: skews, phantoms, lost updates, escrow, snapshots, the feed, while compaction drops the past."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from interlock import codec
from interlock.backends.redis import RedisBackend
from interlock.errors import SnapshotTooOldError
from interlock.model import (
    ABSENT,
    BoundBroken,
    CommitRefused,
    Delete,
    Entry,
    Expectation,
    Merge,
    Operation,
    Span,
    Token,
    TransactionId,
)
from interlock.testing.conformance.world import Subject, key, put, thawed

COMMITS = 3000


def _seen(entry: Entry | None) -> Expectation:
    return ABSENT if entry is None or entry.value is None else entry.version


def _number(entry: Entry | None) -> int:
    return thawed(entry) or 0


def _add(amount: int, floor: int | None = None) -> Merge:
    return Merge((Operation("add", codec.freeze(amount), None if floor is None else codec.freeze(floor)),))


class Storm:
    """A store, two backends on it, and what was acknowledged."""

    def __init__(self, url: str, name: str) -> None:
        self.stores = [Subject(RedisBackend(url, name=name)) for _ in range(2)]
        self.acknowledged: dict[TransactionId, int] = {}
        self.happened: Counter[str] = Counter()
        self.compactions = 0
        self._turns = itertools.count()
        self.random = random.Random(7)

    @property
    def over(self) -> bool:
        return len(self.acknowledged) >= COMMITS

    async def repeat(self, job: Callable[[Subject, int], Awaitable[None]]) -> None:
        """Do something until enough was committed."""
        while not self.over:
            turn = next(self._turns)
            try:
                await job(self.stores[turn % 2], turn)
            except (CommitRefused, SnapshotTooOldError, BoundBroken) as refusal:
                self.happened[type(refusal).__name__] += 1

    async def commit(self, store: Subject, *arguments: object, **more: object) -> None:
        request = await store.request(*arguments, **more)  # type: ignore[arg-type]
        reply = await store.backend.commit(request)
        self.acknowledged[request.transaction] = reply.version[0]

    async def skew(self, store: Subject, turn: int) -> None:
        """Of two keys at most one may exist."""
        pair = [key("skew", turn % 5, side) for side in ("left", "right")]
        reading = await store.backend.read(pair)
        there = [name for name, entry in zip(pair, reading.entries, strict=True) if _seen(entry) is not ABSENT]
        assert len(there) < 2, "write skew over absent keys"
        reads = {name: _seen(entry) for name, entry in zip(pair, reading.entries, strict=True)}
        writes = {there[0]: Delete()} if there else {self.random.choice(pair): put(turn)}
        await self.commit(store, writes, reads=reads, snapshot=reading.token)

    async def phantom(self, store: Subject, turn: int) -> None:
        """A range has no member, or two to five."""
        where = Span(key("range", turn % 3, 0), key("range", turn % 3, 1 << 62))
        page = await store.backend.scan(where, limit=3)
        names = [name for name, _ in page.items]
        while page.more:
            page = await store.backend.scan(Span(names[-1] + b"\0", where.stop), page.token, limit=3)
            names += [name for name, _ in page.items]
        assert len(names) in (0, 2, 3, 4, 5), "a phantom"
        more: dict[str, object] = {"spans": (where,), "snapshot": page.token}
        if not names:
            await self.commit(store, {key("range", turn % 3, turn + place): put(0) for place in (1, 2)}, **more)
        elif len(names) < 5 and turn % 2:
            await self.commit(store, {key("range", turn % 3, turn): put(0)}, **more)
        elif len(names) > 2:
            await self.commit(store, {self.random.choice(names): Delete()}, **more)
        else:
            await self.commit(store, {}, clears=(where,), **more)

    async def count(self, store: Subject, turn: int) -> None:
        """A read and a write of a counter."""
        name = key("count", turn % 3)
        reading = await store.backend.read([name])
        (entry,) = reading.entries
        await self.commit(store, {name: put(_number(entry) + 1)}, reads={name: _seen(entry)}, snapshot=reading.token)
        self.happened["counted"] += 1

    async def escrow(self, store: Subject, turn: int) -> None:
        """Two counters that never fall below zero and always agree, one of them with 3,000 digits."""
        amount = self.random.choice((-3, -2, -1, 1, 2))
        await self.commit(store, {key("small"): _add(amount, 0), key("big"): _add(amount * 10**3000)})

    async def look(self, store: Subject, turn: int) -> None:
        """Transfers keep a sum, in every snapshot."""
        names = [key("account", number) for number in range(8)]
        if turn % 2:
            giver, taker = self.random.sample(names, 2)
            await self.commit(store, {giver: _add(-1), taker: _add(1)})
            return
        reading = await store.backend.read(names[:4])
        await asyncio.sleep(0)
        rest = await store.backend.read(names[4:], reading.token)
        assert sum(map(_number, (*reading.entries, *rest.entries))) == 0, "a torn snapshot"
        page = await store.backend.scan(Span(names[0], key("account", 99)), reading.token)
        assert sum(_number(entry) for _, entry in page.items) == 0, "a torn scan"

    async def follow(self, seen: list[tuple[int, TransactionId]]) -> None:
        """Read the feed, and let the past be dropped behind us."""
        cursor: Token | None = None
        store = self.stores[0]
        while not self.over or cursor != await store.backend.snapshot():
            changes, cursor = await store.backend.changes(cursor, limit=100)
            seen += [(change.version[0], change.transaction) for change in changes if change.agent == "tester"]
            if changes and len(seen) > 300:
                self.compactions += await self.stores[1].backend.compact(changes[0].at - 0.05, limit=200)


def test_nothing_that_must_not_happen_happens(redis_url: str, name: str) -> None:
    storm = Storm(redis_url, name)
    seen: list[tuple[int, TransactionId]] = []

    async def run() -> None:
        jobs = [storm.skew] * 6 + [storm.phantom] * 6 + [storm.count] * 4 + [storm.escrow] * 3 + [storm.look] * 4
        await asyncio.gather(storm.follow(seen), *[storm.repeat(job) for job in jobs])
        store = storm.stores[0]
        values = await store.backend.read([key("small"), key("big"), *[key("count", number) for number in range(3)]])
        small, big, *counts = map(_number, values.entries)
        assert small >= 0
        assert small * 10**3000 == big
        assert sum(counts) == storm.happened["counted"], "an update was lost"
        while await store.backend.compact(await store.backend.now() + 1):
            pass
        listing = await store.listing()
        assert len(listing) < 60
        for each in storm.stores:
            await each.backend.close()

    asyncio.run(run())
    assert [position for position, _ in seen] == sorted({position for position, _ in seen}), "not one order"
    assert {transaction: position for position, transaction in seen} == storm.acknowledged, "missed, or doubled"
    assert storm.happened["CommitRefused"] > 0
    assert storm.compactions > 0
