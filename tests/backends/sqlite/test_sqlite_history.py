"""Old snapshots: right or refused, whatever was written, quietly or not, and compacted since."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlite_support import Store, add, delete, key, new_transaction, number, opened, step, value_of

from interlock.backends.sqlite import SQLiteBackend, record, schema, trail
from interlock.backends.sqlite.past import Past
from interlock.errors import SnapshotTooOldError
from interlock.model import ABSENT, CommitRequest, Delete, Key, Merge, Put, Settled, Span, Token, Write

NAMES = [key("k", part) for part in range(6)]
EVERYTHING = Span(key("k", 0), key("k", 100))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store.db") as made:
        yield made


class Model:
    """Every state that the store has had, with the tokens that lead there."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.states: list[tuple[Token, float, dict[Key, int]]] = [(store.snapshot(), 0.0, {})]
        self.writes: dict[int, dict[Key, Write]] = {}
        self.quiet: dict[Key, int] = {}
        """The index of the state that the last quiet write of a key made."""
        self.horizon = 0
        self.right = self.refused = 0

    def commit(self) -> None:
        """A random commit."""
        chance = self.chance
        state = dict(self.states[-1][2])
        writes: dict[Key, Write] = {}
        quiet = chance.random() < 0.01
        for name in chance.sample(NAMES, chance.randrange(1, 4)):
            what = chance.random()
            if what < 0.5:
                state[name] = chance.randrange(1000)
                writes[name] = number(state[name])
            elif what < 0.75:
                state[name] = state.get(name, 0) + 1
                writes[name] = add(1)
            else:
                state.pop(name, None)
                writes[name] = delete()
        request = self.store.request(writes, quiet=quiet)
        reply = step(self.store.backend.commit(request))
        self.states.append((reply.token, reply.at, state))
        if quiet:
            self.quiet.update(dict.fromkeys(writes, len(self.states) - 1))
        else:
            self.writes[request.transaction] = writes

    def read(self) -> None:
        """A random look at a random state."""
        index = self.chance.randrange(len(self.states))
        token, _, state = self.states[index]
        names = self.chance.sample(NAMES, self.chance.randrange(1, 5))
        try:
            if self.chance.random() < 0.3:
                names = NAMES
                reverse = self.chance.random() < 0.5
                limit = self.chance.randrange(1, 8)
                page = step(self.store.backend.scan(EVERYTHING, token, limit=limit, reverse=reverse))
                shown = sorted(state.items(), reverse=reverse)
                assert [(name, value_of(entry)) for name, entry in page.items] == shown[:limit]
                assert page.more == (len(shown) > limit)
            else:
                entries = step(self.store.backend.read(names, token)).entries
                assert [value_of(entry) for entry in entries] == [state.get(name) for name in names]
        except SnapshotTooOldError:
            assert index < self.horizon or any(self.quiet.get(name, 0) > index for name in names)
            self.refused += 1
        else:
            self.right += 1

    def follow(self) -> None:
        """The feed from a random state to the end: every commit, with what it wrote."""
        index = self.chance.randrange(len(self.states))
        cursor = self.states[index][0]
        found = []
        try:
            while True:
                changes, token = step(self.store.backend.changes(cursor, limit=self.chance.randrange(1, 20)))
                found += changes
                if not changes:
                    assert token.position == self.states[-1][0].position
                    break
                cursor = token
        except SnapshotTooOldError:
            assert index < self.horizon
            return
        positions = [change.version[0] for change in found]
        kept = [tok.position for tok, _, _ in self.states[index + 1 :]]
        assert positions == sorted(set(positions))
        assert set(positions) <= set(kept)
        for change in found:
            assert change.writes == self.writes[change.transaction]

    def compact(self) -> None:
        """Drop what is older than a random state."""
        index = self.chance.randrange(max(0, len(self.states) - 60), len(self.states))
        while step(self.store.backend.compact(self.states[index][1], limit=self.chance.randrange(5, 50))):
            pass
        self.horizon = max(self.horizon, index)


@pytest.mark.parametrize("seed", range(4))
def test_old_snapshots_agree_with_a_model(store: Store, seed: int) -> None:
    model = Model(store, seed)
    for turn in range(400):
        model.commit()
        for _ in range(3):
            model.read()
        if turn % 10 == 0:
            model.follow()
        if turn % 150 == 149:
            model.compact()
    assert model.right > 400
    assert model.refused > 10


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33, 255, 256, 257, 273, 600])
def test_every_version_of_a_long_chain_is_found(store: Store, count: int) -> None:
    tokens = [store.commit({key("a"): number(turn)}).token for turn in range(count)]
    steps = range(0, count, max(1, count // 60))
    assert [store.value(key("a"), tokens[turn]) for turn in steps] == list(steps)
    versions = step(store.backend.history(key("a"), limit=10_000))
    assert [value_of(entry) for entry, _ in versions] == list(reversed(range(count)))
    assert all(author is not None and author.agent == "tester" for _, author in versions)


def test_a_version_far_back_is_found_in_few_steps(store: Store) -> None:
    """20,000 versions of one key; the statements of the reads back are counted, not timed."""
    first = store.commit({key("a"): number(-1)}).token
    tokens: list[Token] = []

    async def fill() -> None:
        backend = SQLiteBackend(store.backend.path, synchronous="OFF")
        token = await backend.snapshot()
        for _ in range(200):
            requests = [
                CommitRequest(new_transaction(), "t", "none", token, {}, {key("a"): add(1)}, {}) for _ in range(100)
            ]
            tokens.extend([reply.token for reply in await asyncio.gather(*map(backend.commit, requests))])
        await backend.close()

    asyncio.run(fill())
    reader = store.backend._engine.local.reader
    for place, token in ((-1, first), (100, tokens[100]), (10_000, tokens[10_000]), (19_900, tokens[19_900])):
        reader._past._records.clear()
        asked = 0

        def count(statement: str) -> None:
            nonlocal asked
            asked += 1

        reader.connection.set_trace_callback(count)
        assert store.value(key("a"), token) == place
        reader.connection.set_trace_callback(None)
        assert asked <= 14


def test_trails_lead_back_to_every_version() -> None:
    """The trail by itself: from the newest of n versions to each of them."""
    for count in (1, 16, 17, 300, 4200):
        trails: list[int | bytes] = [trail.FIRST]
        for position in range(1, count):
            trails.append(trail.following(trails[-1], position))
        for wanted in range(1, count + 1, max(1, count // 50)):
            position, steps = count, 0
            while position > wanted:
                position = trail.back(trails[position - 1], position, wanted) - 1
                assert position >= wanted
                steps += 1
            assert steps <= 12


def test_quiet_overwrites_refuse_older_snapshots_and_never_lie(store: Store) -> None:
    lock = key("lock")
    absent = store.snapshot()
    loud = store.commit({lock: number(1)})
    quiet = store.commit({lock: number(2)}, quiet=True)
    again = store.commit({lock: number(3)}, quiet=True)
    assert store.value(lock, again.token) == 3
    for token in (absent, loud.token, quiet.token):
        with pytest.raises(SnapshotTooOldError):
            store.entry(lock, token)
    (change,) = store.feed()
    assert change.writes == {lock: number(1)}
    after = store.commit({lock: number(4)})
    assert (store.value(lock, again.token), store.value(lock, after.token)) == (3, 4)
    assert [value_of(entry) for entry, _ in step(store.backend.history(lock))] == [4, 3]
    assert [change.writes for change in store.feed()] == [{lock: number(1)}, {lock: number(4)}]


def test_what_is_deleted_quietly_is_gone_without_a_trace(store: Store) -> None:
    lock = key("lock")
    store.commit({lock: number(1)}, quiet=True)
    held = store.snapshot()
    store.commit({lock: delete()}, quiet=True)
    free = store.snapshot()
    assert store.entry(lock) is None
    store.commit({lock: number(2)}, quiet=True)
    assert store.entry(lock, free) is None
    with pytest.raises(SnapshotTooOldError):
        store.entry(lock, held)
    while step(store.backend.compact(step(store.backend.now()) + 1)):
        pass
    assert store.value(lock) == 2


def test_compaction_leaves_what_snapshots_above_the_horizon_need(store: Store) -> None:
    names = [key("n", part) for part in range(50)]
    store.commit({name: number(1) for name in names})
    middle = store.commit({name: number(2) for name in names[:25]})
    store.commit({name: delete() for name in names[:10]})
    last = store.commit({name: number(3) for name in names[20:]})
    assert step(store.backend.compact(math.nextafter(middle.at, math.inf), limit=100)) == 2
    entries = step(store.backend.read(names, middle.token)).entries
    assert [value_of(entry) for entry in entries] == [2] * 25 + [1] * 25
    assert step(store.backend.compact(last.at + 1, limit=100)) == 2 + 10
    with pytest.raises(SnapshotTooOldError):
        store.entry(names[0], middle.token)
    raw = store.backend._engine.local.reader.connection
    assert raw.execute("SELECT count(*) FROM feed").fetchone() == (1,)
    assert raw.execute("SELECT count(*) FROM current").fetchone() == (40,)


def test_expired_entries_go_in_bounded_batches(store: Store) -> None:
    records = [key("r", part) for part in range(95)]
    for place in range(0, 95, 5):
        store.commit({name: Put(b"i1", 1e-6, False) for name in records[place : place + 5]})
    kept = key("kept")
    store.commit({kept: Put(b"i1", 1e-6, False)})
    store.commit({kept: Put(b"i2", 1000.0, False)})
    merged = store.commit({key("m"): Put(b"i1", 1e-6)})
    store.commit({key("m"): add(1)})
    before = store.snapshot()
    counts = []
    while count := step(store.backend.compact(0.0, limit=20)):
        counts.append(count)
    assert sum(counts) == 96
    assert max(counts) <= 20
    assert store.value(kept) == 2
    assert store.value(key("m")) is None
    assert store.value(records[0]) is None
    assert store.value(key("m"), merged.token) == 1
    changes = store.feed(before)
    assert {change.agent for change in changes} == {"interlock"}
    assert sum(len(change.writes) for change in changes) == 96
    assert all(type(write) is Delete for change in changes for write in change.writes.values())
    assert step(store.backend.compact(0.0)) == 0


def test_r148_commits_cost_the_same_beside_a_long_past(store: Store) -> None:
    """20,000 records that have not been compacted; then they are, in small steps."""
    names = [key("n", part) for part in range(2000)]
    for place in range(10):
        store.commit({name: number(place) for name in names})
    for turn in range(300):
        store.commit({key("one"): number(turn)})
    before = step(store.backend.now()) + 1
    counts = []
    while count := step(store.backend.compact(before, limit=50)):
        counts.append(count)
    assert max(counts) <= 51
    assert sum(counts) == 310
    assert store.value(names[7]) == 9


def test_compaction_reads_no_record_that_it_does_not_need(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bulk load leaves large records. Whoever compacts later looks at those alone that name what expires, or what was
    deleted, and at no more of these at once than take a moment."""
    decoded: list[int] = []
    decode = record.decode

    def counting(raw: bytes) -> record.Record:
        decoded.append(len(raw))
        return decode(raw)

    monkeypatch.setattr(record, "decode", counting)
    large = [key("n", part) for part in range(2000)]
    for turn in range(3):
        store.commit({name: number(turn) for name in large})
    assert step(store.backend.compact(step(store.backend.now()) + 1)) == 3
    assert decoded == []
    for turn in range(2):
        store.commit({key("e", turn, part): Put(b"i1" + b"x" * 600, 1000.0) for part in range(2000)})
        store.commit({key("e", turn, part): Put(b"i1" + b"x" * 600, 1000.0) for part in range(2000)})
    counts = []
    for _ in range(5):
        decoded.clear()
        step(store.backend.compact(0.0))
        counts.append(len(decoded))
    assert counts == [1, 1, 1, 1, 0]
    store.commit({large[0]: delete()})
    decoded.clear()
    step(store.backend.compact(step(store.backend.now()) + 1))
    assert len(decoded) == 1


def test_a_change_tells_everything_that_was_asked(store: Store) -> None:
    a, b, c, d = (key(name) for name in "abcd")
    put = store.commit({a: number(1), b: number(1)})
    store.commit({b: delete()})
    gone = store.entry(b)
    assert gone is not None
    request = store.request(
        {
            a: Merge((*add(5).operations, *add(-1, 0).operations)),
            c: Put(b"i7", 30.5, False),
            d: delete(),
            b: add(0),
        },
        reads={a: put.version, b: ABSENT, d: ABSENT},
        spans=(Span(c, d),),
        clears=(Span(key("x"), key("y")),),
        operation="reserve",
        run_id="run-1",
        attempt=3,
        observed={key("seen"): (1, 2), key("unseen"): None},
    )
    reply = step(store.backend.commit(request))
    settled, change = step(store.backend.outcome(request.transaction, fence=True))
    assert settled is Settled.COMMITTED
    assert change is not None
    assert change == store.feed()[-1]
    assert (change.version, change.token, change.at) == (reply.version, reply.token, reply.at)
    assert (change.agent, change.isolation, change.operation) == ("tester", "serializable", "reserve")
    assert (change.run_id, change.attempt) == ("run-1", 3)
    assert change.writes == request.writes
    assert change.reads == {a: put.version, b: gone.version, d: None, key("seen"): (1, 2), key("unseen"): None}
    assert (change.spans, change.clears, change.cleared) == (request.spans, request.clears, ())


def test_the_store_stays_small(store: Store) -> None:
    """What is dropped makes room for what comes; the log is used again."""
    path = Path(store.backend.path)
    sizes = []
    for turn in range(6):
        for _ in range(150):
            store.commit({key("a"): Put(b"m" + b"x" * 20_000)})
        while step(store.backend.compact(step(store.backend.now()) + 1)):
            pass
        sizes.append(path.stat().st_size)
        if turn:
            assert Path(f"{path}-wal").stat().st_size < 16 << 20
    assert sizes[-1] <= 1.2 * max(sizes[:3])


def test_records_are_what_they_were() -> None:
    """The stored form is a promise to files that exist: this record was written by version 2."""
    raw = bytes.fromhex("9a81c403016b619500c0c0c0960105c4026931000201a174ac73657269616c697a61626c65c0c00180909090")
    decoded = record.decode(raw)
    assert schema.VERSION == 2
    assert (decoded.agent, decoded.isolation, decoded.attempt) == ("t", "serializable", 1)
    assert decoded.written == {b"\x01ka": record.Written(record.PUT, None, None, None, (1, 5, b"i1", 0.0, 2, 1))}


def test_a_damaged_trail_ends() -> None:
    """Its number is counted up digit by digit, and nothing has no last digit."""
    for count in (0, -4, 3):
        with pytest.raises(ValueError, match="a trail with the number"):
            trail.following(record.encode([count, 5]), 9)


def test_a_damaged_chain_ends() -> None:
    """A version that has replaced itself, or a younger one, is no way to an older one."""
    for place in (9, 10):
        image = (place, 5, b"v", 0.0, trail.FIRST, 1)
        raw = record.encode(record.Record({b"k": record.Written(record.PUT, None, None, None, image)}, "a"))
        found = Found(raw)
        with pytest.raises(ValueError, match="not older"):
            Past(lambda *_, found=found: found).as_of((b"k", 9, 5, b"v", 0.0, trail.FIRST, 1), 1)


class Found:
    """A feed in which the same record lies everywhere."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def fetchone(self) -> tuple[bytes]:
        """The record."""
        return (self.raw,)
