"""Keys that have no row, answered from memory: never one that has a row, whoever writes, deletes or compacts."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlite_support import Store, delete, key, number, opened, step

from interlock.backends.sqlite import gaps as gaps_module
from interlock.backends.sqlite import newest
from interlock.backends.sqlite.gaps import Gaps
from interlock.model import ABSENT, CommitRefused, Token


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store.db") as made:
        yield made


def kept(store: Store, name: bytes, at: Token | None = None) -> bool:
    """Whether a key is answered from memory."""
    return store.backend._engine.newest.read((name,), at) is not None


def test_no_gap_covers_a_row_and_gaps_are_disjoint() -> None:
    """Random rows that come and go, with gaps learnt in between, beside the plain truth."""
    chance = random.Random(7)
    gaps, rows = Gaps(), {b"\0", b"\xff"}
    hits = 0
    for _ in range(2000):
        name = chance.randbytes(1)
        what = chance.random()
        if what < 0.3:
            rows.add(name)
            gaps.fill(name)
        elif what < 0.55 and name not in (b"\0", b"\xff"):
            rows.discard(name)
            gaps.remove(name)
        elif what < 0.6 and name not in rows:
            gaps.add(max(row for row in rows if row < name), min(row for row in rows if row > name))
        covered = [bytes([byte]) for byte in range(256) if gaps.cover(bytes([byte]))]
        assert rows.isdisjoint(covered)
        assert rows.issuperset(gaps.starts)
        assert gaps.starts == sorted(set(gaps.starts))
        hits += len(covered)
    assert hits > 2000


def test_what_lies_beside_a_key_that_was_sought_in_vain_is_known_too(store: Store) -> None:
    first, last = key("n", 0), key("n", 99)
    store.commit({first: number(0), last: number(99)})
    assert not kept(store, key("n", 50))
    assert store.entry(key("n", 50)) is None
    store.commit({first: number(1)})
    assert all(kept(store, key("n", part)) for part in range(100))
    assert not kept(store, key("o")), "behind the last key nothing is known"
    reply = store.commit({key("n", 7): number(7)}, guards={key("n", 7): ABSENT, key("n", 8): ABSENT})
    assert store.value(key("n", 7)) == 7
    assert [kept(store, key("n", part)) for part in (6, 8)] == [True, True]
    assert step(store.backend.read((key("n", 6), key("n", 7)), reply.token)).token == reply.token
    with pytest.raises(CommitRefused):
        store.commit({key("n", 8): number(8)}, guards={key("n", 7): ABSENT})


def test_what_a_reader_finds_is_kept_for_those_who_come_later(store: Store) -> None:
    name, other = key("a"), key("b")
    store.commit({name: number(1), other: number(1)})
    store.backend._engine.newest.forget()
    store.commit({other: number(2)})
    assert not kept(store, name)
    assert store.value(name) == 1
    assert kept(store, name)
    store.commit({other: number(3)})
    assert kept(store, name)
    assert store.value(name) == 1


def test_what_is_of_a_newer_state_is_not_put_beside_an_older_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit comes between the look at the state that is shown and the look into the file."""
    name = key("a")
    store.commit({name: number(0), key("b"): number(0)})
    store.backend._engine.newest.forget()
    store.commit({key("b"): number(1)})
    before = store.snapshot()
    shown = store.backend._engine.newest.shown(before)
    assert shown is not None
    store.commit({name: number(1)})
    store.backend._engine.newest.forget()
    with monkeypatch.context() as patched:
        patched.setattr(type(store.backend._engine.newest), "shown", lambda *_: shown)
        assert store.value(name) == 1
        assert store.value(name, before) == 0
    assert not shown.learnt


@pytest.mark.parametrize("half_bytes", [newest._HALF_BYTES, 3 * newest._ROW_BYTES], ids=["all rows kept", "few"])
@pytest.mark.parametrize("most", [gaps_module._MOST, 6], ids=["all gaps kept", "few"])
def test_memory_says_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_bytes: int, most: int
) -> None:
    """Random puts, deletes, compactions and reads by two writers; every key is compared with the table itself."""
    monkeypatch.setattr(gaps_module, "_MOST", most)
    monkeypatch.setattr(newest, "_HALF_BYTES", half_bytes)
    chance = random.Random(5)
    names = [key("n", part) for part in range(40)]
    absent = 0
    with opened(tmp_path / "store.db") as store, opened(tmp_path / "store.db") as other:
        raw = sqlite3.connect(tmp_path / "store.db")
        store.commit({names[0]: number(0), names[-1]: number(0)})
        for turn in range(400):
            mine = other if turn % 50 == 49 else store
            name = chance.choice(names)
            what = chance.random()
            if what < 0.3:
                mine.commit({name: number(turn)})
            elif what < 0.5:
                mine.commit({name: delete(), chance.choice(names): number(turn)})
            elif what < 0.6:
                step(mine.backend.compact(step(mine.backend.now()) + 1))
            else:
                mine.entry(name)
            rows = dict(raw.execute("SELECT key, position FROM current").fetchall())
            memory = mine.backend._engine.newest
            assert rows.keys() >= set(memory._gaps.starts if memory.shown(None) else ())
            for looked in names:
                reading = memory.read((looked,), None)
                if reading is not None:
                    entry = reading.entries[0]
                    assert (None if entry is None else entry.version[0]) == rows.get(looked)
                    absent += entry is None
        raw.close()
    assert absent > 300
