"""What servers and files hold of commits: entries, records of the feed, positions. Whoever has write access there, or a
disk that forgets, may have put anything in their place.

The inputs are what the backends themselves write, and the same with something wrong in it: a decoder gives a change
whose parts are of the types that they are said to be, or raises what it declares.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fuzz.shapes import Target, damaged
from interlock.backends.postgresql import record as of_postgresql
from interlock.backends.postgresql import tokens
from interlock.backends.redis import record as of_redis
from interlock.backends.sqlite import connection
from interlock.backends.sqlite import record as of_sqlite
from interlock.backends.sqlite import trail as trails
from interlock.backends.sqlite.past import Past
from interlock.errors import BackendCorruptError, SnapshotTooOldError
from interlock.model import (
    ABSENT,
    UNCHANGED,
    Change,
    CommitRequest,
    Delete,
    Entry,
    Merge,
    Operation,
    Put,
    Span,
    Token,
    Write,
)

TOKEN = Token(1, 2, 3)
_keys = st.binary(min_size=1, max_size=6)
_versions = st.tuples(st.integers(1, 2**50), st.integers(0, 2**64 - 1))
_bounds = st.none() | st.binary(max_size=4)
_names = st.text(max_size=6)
_puts = st.builds(Put, st.binary(max_size=9), st.none() | st.floats(0, 1e9), st.booleans())
_merges = st.lists(
    st.builds(Operation, st.sampled_from(("add", "append")), st.binary(max_size=4), _bounds, _bounds), min_size=1,
    max_size=2,
).map(lambda steps: Merge(tuple(steps)))  # fmt: skip
_writes: st.SearchStrategy[Write] = st.one_of(_puts, st.builds(Delete), _merges)
_spans = st.lists(st.builds(Span, _keys, _keys), max_size=2).map(tuple)
requests = st.builds(
    CommitRequest,
    transaction=st.integers(0, 2**128 - 1), agent=_names, isolation=st.sampled_from(("none", "serializable")),
    snapshot=st.just(TOKEN),
    reads=st.dictionaries(_keys, st.one_of(_versions, st.sampled_from((ABSENT, UNCHANGED))), max_size=3),
    writes=st.dictionaries(_keys, _writes, max_size=3), guards=st.just({}), spans=_spans, clears=_spans,
    operation=st.none() | _names, run_id=st.none() | _names, attempt=st.integers(1, 9),
    observed=st.none() | st.dictionaries(_keys, st.none() | _versions, max_size=2), quiet=st.booleans(),
)  # fmt: skip


def _check_version(found: Any) -> None:
    assert type(found) is tuple
    assert [type(part) for part in found] == [int, int]


def _check_texts(*texts: Any) -> None:
    assert all(text is None or type(text) is str for text in texts)


def _check_write(write: Write) -> None:
    if type(write) is Put:
        assert type(write.value) is bytes
        assert type(write.listed) is bool
        assert write.ttl_seconds is None or isinstance(write.ttl_seconds, int | float)
    elif type(write) is Merge:
        for each in write.operations:
            assert type(each.kind) is str
            assert type(each.operand) is bytes
            assert {type(each.floor), type(each.ceiling)} <= {bytes, type(None)}
    else:
        assert type(write) is Delete


def check(change: Change | None) -> None:
    """Each part of a change is of the type that it is said to be."""
    if change is None:
        return
    _check_version(change.version)
    assert type(change.transaction) is int
    assert type(change.at) is float
    assert type(change.agent) is str
    assert type(change.isolation) is str
    assert type(change.attempt) is int
    _check_texts(change.operation, change.run_id)
    for key, version in change.reads.items():
        assert type(key) is bytes
        if version is not None:
            _check_version(version)
    for key, write in change.writes.items():
        assert type(key) is bytes
        _check_write(write)
    for span in (*change.spans, *change.clears):
        assert [type(bound) for bound in span] == [bytes, bytes]
    assert all(type(key) is bytes for key in change.cleared)


# -- Redis -------------------------------------------------------------------------------------------------------------
def _redis_record(request: CommitRequest) -> bytes:
    forms = {
        key: of_redis.form_of(write)
        for key, write in request.writes.items()
        if type(write) is not Put or write.ttl_seconds is not None or not write.listed
    }
    return of_redis.encode(request, request.transaction.to_bytes(16, "big"), forms)


def _redis_parts(request: CommitRequest) -> list[Any]:
    marks: list[bytes] = []
    for key, write in request.writes.items():
        mark = {Put: b"p", Delete: b"d"}.get(type(write), b"m")
        marks += (mark, key, write.value if type(write) is Put else b"")
    for key in request.reads:
        marks += (b"a", of_redis.pack_pair(7, 9) + key, b"")
    for span in request.clears:
        marks += (b"c", span.start, b"")
    return [[b"1767225600000000", _redis_record(request), marks]]


def _redis_change(parts: list[Any]) -> None:
    check(of_redis.change_of([(7, *part) for part in parts], 1, 2))


def _redis_author(given: tuple[bytes, bytes]) -> None:
    author = of_redis.author_of(*given)
    if author is not None:
        assert [type(author.transaction), type(author.agent), type(author.at)] == [int, str, float]


def _redis_entry(raw: bytes) -> None:
    found = of_redis.entry_of(raw)
    assert type(found) is Entry
    _check_version(found.version)
    assert found.value is None or type(found.value) is bytes
    assert found.expires_at is None or type(found.expires_at) is float


def _redis_pair(raw: bytes) -> None:
    _check_version(of_redis.pair_of(raw))


_redis_entries = st.tuples(
    _versions, st.sampled_from((0, of_redis.TOMBSTONE, of_redis.LARGE, of_redis.EXPIRING)), st.binary(max_size=20)
).map(lambda made: of_redis.pack_pair(*made[0]) + bytes([made[1]]) + made[2])  # fmt: skip


# -- PostgreSQL --------------------------------------------------------------------------------------------------------
def _postgresql_row(request: CommitRequest) -> list[Any]:
    absent = [place for place, found in enumerate(request.reads.values(), 1) if found is ABSENT]
    return [
        of_postgresql.encode(request), [span.start for span in request.clears] or None,
        absent or None, [3] * len(absent), [-5] * len(absent),
        [write.value for write in request.writes.values() if type(write) is Put],
    ]  # fmt: skip


def _postgresql_change(columns: list[Any]) -> None:
    """Those that may be NULL, or hold NULL."""
    check(of_postgresql.change([7 << 8, bytes(15) + b"7", 1767225600.5, "agent", *columns, 1, 0], TOKEN))


def _postgresql_cursor(given: tuple[int, bytes]) -> None:
    snapshot = tokens.from_detail(*given)
    snapshot.shows(snapshot.lowest())
    assert len(tokens.advanced(snapshot, snapshot, snapshot.stop).detail()) % 8 == 0


# -- SQLite ------------------------------------------------------------------------------------------------------------
_images = st.one_of(
    st.none(), st.just(of_sqlite.NOTHING),
    st.tuples(st.integers(1, 99), st.integers(0, 2**62), st.none() | st.binary(max_size=4), st.floats(0, 9),
              st.just(0) | st.binary(max_size=4), st.integers(0, 2)),
)  # fmt: skip
_sqlite_written = st.builds(
    of_sqlite.Written, st.integers(0, 4), st.none() | st.floats(0, 9),
    st.none() | _merges.map(of_sqlite.operations_form), st.none() | st.floats(0, 9), _images,
)  # fmt: skip
_pairs = st.lists(st.tuples(_keys, _keys), max_size=2)
_small_versions = st.tuples(st.integers(1, 99), st.integers(0, 2**63))
_sqlite_records = st.builds(
    of_sqlite.Record, st.dictionaries(_keys, _sqlite_written, max_size=3), st.none() | _names, _names,
    st.none() | _names, st.none() | _names, st.integers(1, 9), st.dictionaries(_keys, st.none() | _small_versions,
    max_size=2), _pairs, _pairs, st.lists(_keys, max_size=2),
).map(of_sqlite.encode)  # fmt: skip


def _sqlite_rows(records: list[bytes]) -> list[Any]:
    return [[bytes(15) + b"7", 1767225600.5, raw] for raw in records]


def _sqlite_changes(rows: list[Any]) -> None:
    """What stands behind the positions, which the table's own key are; its columns take values of any type."""
    placed: list[Any] = [(7 + number, *row) for number, row in enumerate(rows)]

    def newest(keys: list[bytes]) -> dict[bytes, Any]:
        return {key: (key, 6 + len(rows), 5, b"v", 0.0, 0, 1) for key in keys}

    for change in of_sqlite.changes(placed, 1, newest):
        check(change)


def _sqlite_images(raw: bytes) -> None:
    found = of_sqlite.decode_replaced(raw)
    for key in found.written:
        of_sqlite.replaced_of(key, found)
    record = of_sqlite.decode(raw)
    assert all(type(key) is bytes for key in of_sqlite.listed_keys(record))
    for key in record.written:
        of_sqlite.image_of(key, record)


_trails = st.one_of(
    st.integers(0, 6),
    st.lists(st.integers(1, 2**40), min_size=2, max_size=6).map(
        lambda made: of_sqlite.encode([made[0] + 4, *made[1:]])
    ),
)


def _sqlite_trail(trail: Any) -> None:
    assert type(trails.back(trail, 9, 3)) is int
    following = trails.following(trail, 9)
    assert type(following) in (int, bytes)


def _sqlite_chain(records: list[bytes]) -> None:
    """From the newest version of a key to what an old snapshot shows, which ends, whatever lies on the way."""

    class Found:
        def __init__(self, row: Any) -> None:
            self.fetchone = lambda: row

    past = Past(lambda _, places: Found((records[places[0]],) if 0 <= places[0] < len(records) else None))
    past.as_of((b"k", len(records) - 1, 5, b"v", 0.0, trails.FIRST, 1), 0, for_feed=True)


@st.composite
def _chains(draw: Any) -> list[bytes]:
    """Records of which each has replaced the version before."""
    steps = draw(st.lists(st.integers(0, 3), min_size=3, max_size=9))
    made = [b""]
    for place, step in enumerate(steps, 1):
        image = (max(0, place - 1 - step), 5, b"v", 0.0, draw(_trails), 1)
        made.append(of_sqlite.encode(of_sqlite.Record({b"k": of_sqlite.Written(0, None, None, None, image)}, "a")))
    return made


_CORRUPT = (BackendCorruptError,)
RECORDS = (
    Target("an entry of Redis", _redis_entry, st.binary(max_size=40) | damaged(_redis_entries), _CORRUPT),
    Target("a head of Redis", _redis_pair, st.binary(max_size=40), _CORRUPT),
    Target("a record of Redis", _redis_change, requests.map(_redis_parts), _CORRUPT),
    Target(
        "an author on Redis", _redis_author,
        st.tuples(st.just(b"1767225600000000"), st.binary(max_size=30) | damaged(requests.map(_redis_record))),
        _CORRUPT,
    ),
    Target("a record of PostgreSQL", _postgresql_change, requests.map(_postgresql_row), _CORRUPT, loose=(None,)),
    Target("a cursor of PostgreSQL", _postgresql_cursor, st.tuples(st.integers(0, 2**63), st.binary(max_size=40)), ()),
    Target(
        "a record of SQLite", _sqlite_changes, st.lists(_sqlite_records, min_size=1, max_size=2).map(_sqlite_rows),
        connection.FAILURES, loose=(None, 0, -1, 2**63 - 1, 0.5, "", "x", b"", b"x"),
    ),
    Target("an image on SQLite", _sqlite_images, _sqlite_records, connection.FAILURES),
    Target("a trail of SQLite", _sqlite_trail, _trails, connection.FAILURES),
    Target("a chain of versions on SQLite", _sqlite_chain, _chains(), (*connection.FAILURES, SnapshotTooOldError)),
)  # fmt: skip
"""SQLite's decoders raise what `connection.failure` turns into `BackendCorruptError`, in one place for all of them."""
