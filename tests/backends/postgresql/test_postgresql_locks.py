"""Which commits wait for each other, and which do not: one is held open on a connection of its own, another comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.backends.postgresql import PostgreSQLBackend, groups, locks
from interlock.backends.postgresql import record as records
from interlock.backends.postgresql.requests import arguments, lock_numbers
from interlock.backends.postgresql.statements import statements
from interlock.backends.postgresql.tokens import from_detail
from interlock.errors import UsageError
from interlock.model import ABSENT, CommitRefused, CommitRequest, Delete, Key, Reply, Span, Token
from interlock.testing.conformance.world import EVERYTHING, SPACE, Subject, key, put, step

PATIENCE_SECONDS = 30.0


class Bench:
    """A store, and commits that are held open."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.store = Subject(PostgreSQLBackend(url, schema=schema).blocking())
        self.texts = statements(schema)
        self._texts = [self.texts[name] for name in ("commit", "commit_group")]
        self.snapshot = step(self.store.backend.snapshot())

    def request(self, writes: dict[bytes, Any], **more: Any) -> CommitRequest:
        return step(self.store.request(writes, snapshot=self.snapshot, **more))

    def hold(self, request: CommitRequest, *, together: bool) -> psycopg.Connection[Any]:
        """Do all that the commit does except for ending it; ``together``: as a member of a group if it can be."""
        connection = psycopg.connect(self.url, cursor_factory=psycopg.RawCursor)
        token = request.snapshot
        job = groups.job(request, locking=True) if together else None
        if job is None:
            snapshot = from_detail(token.position, token.detail)
            wanted = arguments(request, snapshot, {}, lock_numbers(request), records.encode(request))
        else:
            wanted = groups.arguments([job])
        row = connection.cursor(binary=True).execute(self._texts[job is not None], wanted).fetchone()
        assert row is not None
        assert row[0] in (0, [0])
        return connection

    def waits(self, thread: threading.Thread) -> bool:
        """True as soon as a commit of this store waits for a lock, False as soon as the thread has ended."""
        with psycopg.connect(self.url, autocommit=True) as observer:
            while thread.is_alive():
                found = observer.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = ANY(%s)",
                    (self._texts,),
                ).fetchone()
                if found is not None and found[0]:
                    return True
        return False


@pytest.fixture
def bench(postgresql_url: str, schema: str) -> Iterator[Bench]:
    made = Bench(postgresql_url, schema)
    yield made
    step(made.store.backend.close())


A, B = key("a"), key("b")
IN, NEAR = key("log", 1), key("log", 2)
LOG = Span(key("log", 0), key("log", 1 << 20))
CHILDREN = Span(key("log", 1), key("log", 2))
CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "overwrites": ({"writes": {A: put(1)}}, {"writes": {A: put(2)}, "reads": {A: ABSENT}}),
    "skew": ({"writes": {A: put(1)}, "reads": {B: ABSENT}}, {"writes": {B: put(1)}, "reads": {A: ABSENT}}),
    "phantom": ({"writes": {IN: put(1)}}, {"writes": {B: put(1)}, "spans": (LOG,)}),
    "phantom below": ({"writes": {key("log", 1, "x"): put(1)}}, {"writes": {B: put(1)}, "spans": (LOG,)}),
    "phantom in a narrow span": ({"writes": {IN: put(1)}}, {"writes": {B: put(1)}, "spans": (CHILDREN,)}),
    "phantom anywhere": ({"writes": {IN: put(1)}}, {"writes": {B: put(1)}, "spans": (EVERYTHING,)}),
    "two scanners": (
        {"writes": {IN: put(1)}, "spans": (LOG,)},
        {"writes": {NEAR: put(1)}, "spans": (LOG,)},
    ),
    "many keys": (
        {"writes": {key("log", number): put(1) for number in range(100)}},
        {"writes": {B: put(1)}, "reads": {NEAR: ABSENT}},
    ),
    "many resources": (
        {"writes": {key("log", number, "leaf"): put(1) for number in range(300)}},
        {"writes": {B: put(1)}, "reads": {key("log", 7, "leaf"): ABSENT}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("case", CONFLICTS)
def test_who_depends_on_a_commit_waits_for_it_and_sees_it(bench: Bench, case: str, together: bool) -> None:
    first, second = (bench.request(**fields) for fields in CONFLICTS[case])
    held = bench.hold(first, together=together)
    refusals: list[CommitRefused] = []

    def commit() -> None:
        try:
            step(bench.store.backend.commit(second))
        except CommitRefused as refused:
            refusals.append(refused)

    thread = threading.Thread(target=commit)
    thread.start()
    waited = bench.waits(thread)
    held.commit()
    held.close()
    thread.join(PATIENCE_SECONDS)
    assert waited
    assert len(refusals) == 1


@pytest.mark.parametrize("together", [False, True])
def test_a_tombstone_that_is_being_dropped_does_not_swallow_a_write(
    bench: Bench, together: bool, request: pytest.FixtureRequest
) -> None:
    """Compaction takes no locks of ours: it may drop a tombstone between the look at it and the write in its place."""
    step(bench.store.commit({A: put(1)}))
    last = step(bench.store.commit({A: Delete()}))
    step(bench.store.commit({B: put(1)}))
    holder = psycopg.connect(bench.url, cursor_factory=psycopg.RawCursor)
    request.addfinalizer(holder.close)
    stop = last.version[0] + 1
    dropped = holder.cursor(binary=True).execute(bench.texts["compact"], (1, [], stop, [], 100)).fetchone()
    assert dropped == (4,)  # two transactions, a superseded version, a tombstone
    job, other = (groups.job(bench.request({name: put(2)}), locking=True) for name in (A, key("c")))
    assert job is not None
    assert other is not None
    name, wanted = groups.call([job, other] if together else [job])
    answers: list[Any] = []

    def commit() -> None:
        with psycopg.connect(bench.url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
            answers.append(connection.cursor(binary=True).execute(bench.texts[name], wanted).fetchone())

    thread = threading.Thread(target=commit)
    thread.start()
    waited = bench.waits(thread)
    holder.commit()
    thread.join(PATIENCE_SECONDS)
    assert waited
    assert answers[0][0] == ([0, 0] if together else 0)
    assert step(bench.store.value(A)) == 2


INDEPENDENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other keys": ({"writes": {A: put(1)}}, {"writes": {B: put(1)}}),
    "the same prefix": ({"writes": {IN: put(1)}}, {"writes": {NEAR: put(1)}}),
    "both read one key": (
        {"writes": {A: put(1)}, "reads": {key("c"): ABSENT}},
        {"writes": {B: put(1)}, "reads": {key("c"): ABSENT}},
    ),
    "a scan elsewhere": ({"writes": {A: put(1)}, "spans": (LOG,)}, {"writes": {key("other", 1): put(1)}}),
    "a clear elsewhere": ({"writes": {A: put(1)}, "clears": (LOG,)}, {"writes": {key("other", 1): put(1)}}),
    "many keys elsewhere": (
        {"writes": {key("log", number): put(1) for number in range(100)}},
        {"writes": {key("other", 1): put(1)}},
    ),
}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("case", INDEPENDENT)
def test_independent_commits_do_not_wait(bench: Bench, case: str, together: bool) -> None:
    first, second = (bench.request(**fields) for fields in INDEPENDENT[case])
    held = bench.hold(first, together=together)
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(step(bench.store.backend.commit(second))))
    thread.start()
    waited = bench.waits(thread)
    held.commit()
    held.close()
    thread.join(PATIENCE_SECONDS)
    assert not waited
    assert len(replies) == 1
    entries = step(bench.store.backend.read([*first.writes, *second.writes])).entries
    assert all(entry is not None for entry in entries)


def test_the_order_is_the_same_for_everybody() -> None:
    """Prefixes first, then keys; each lock once and in its stronger mode."""
    salt = b"salt"
    everything = locks.numbers(salt, [A, IN], [A, B, NEAR], [LOG])
    assert everything == sorted(everything)
    assert len({number | 1 for number in everything}) == len(everything)
    assert locks.numbers(salt, [A, B], [], []) == locks.numbers(salt, [B, A], [A], [])
    assert locks.numbers(b"other", [A], [], []) != locks.numbers(salt, [A], [], [])


SOME = [A, B, IN, NEAR, key("log"), key("log", 1, 2), key("log", 1), key("n", -1)]
RANGES = [LOG, EVERYTHING, Span(IN, NEAR), Span(key("log", 1), key("log", 1, 9)), Span(B, A), Span(A, A)]


@given(st.lists(st.sampled_from(SOME)), st.lists(st.sampled_from(SOME)), st.lists(st.sampled_from(RANGES), max_size=4))
def test_few_keys_and_spans_take_the_locks_that_any_do(written: list[Key], read: list[Key], spans: list[Span]) -> None:
    plan = locks.Plan(b"salt")
    for name in written:
        plan.key(name, exclusive=True)
    for name in read:
        plan.key(name, exclusive=False)
    for span in spans:
        plan.span(span)
    assert locks.of_few(b"salt", written, read, spans) == plan.numbers()


def test_a_large_commit_takes_few_locks() -> None:
    salt = b"salt"
    assert len(locks.numbers(salt, [key("n", number) for number in range(10_000)], [], [])) < 5
    assert len(locks.numbers(salt, [], [key("n", number, "leaf") for number in range(10_000)], [])) < 5
    assert len(locks.numbers(salt, [key(f"text {number}") for number in range(10_000)], [], [])) < 5


def test_a_span_stands_on_what_all_its_keys_have_in_common() -> None:
    assert locks.covering(LOG)[-1] == key("log", 0)[:-2]
    assert locks.covering(EVERYTHING) == (SPACE,)
    assert locks.covering(Span(key("a"), key("b"))) == (SPACE,)
    assert locks.covering(Span(key("log", 1), key("log", 1, "zz"))) == locks.cuts(key("log", 1))
    with pytest.raises(UsageError):
        locks.covering(Span(b"\x01", b"\x02"))


def test_large_and_small_commits_of_a_group_take_the_locks_of_each() -> None:
    def job(number: int, *names: Key) -> groups.Job:
        writes = {name: put(number) for name in names}
        token = Token(7, 1, 1, b"")
        request = CommitRequest(number, "a", "serializable", token, {}, writes, dict.fromkeys(writes, ABSENT))
        return groups.Job(request, [], [], None, True)

    jobs = [
        job(1, *(key("many", number) for number in range(locks.FEW_KEYS + 1))),
        job(2, A),
        job(3, B, key("many", 0)),
    ]
    strongest: dict[int, int] = {}
    for each in jobs:
        for number in lock_numbers(each.request):
            locks.want(strongest, number)
    assert groups._locks(jobs) == sorted(strongest.values())
