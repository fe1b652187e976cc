"""Commits that share a call stay commits of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import codec, merges
from interlock.backends.postgresql import PostgreSQLBackend, groups, loops
from interlock.backends.postgresql import tokens as tk
from interlock.backends.postgresql.home import Options
from interlock.backends.postgresql.loops import Commits
from interlock.backends.postgresql.tokens import ROOM, Snapshot
from interlock.errors import SnapshotTooOldError, UsageError
from interlock.model import (
    ABSENT,
    UNCHANGED,
    BoundBroken,
    Change,
    CommitRefused,
    CommitRequest,
    Delete,
    DuplicateTransaction,
    Merge,
    Operation,
    Put,
    Reply,
    Settled,
    Span,
    Token,
)
from interlock.testing.conformance.world import Subject, key, new_transaction, put, thawed

HOT = key("hot")
TOKEN = Token(1, 1, 1)


def add(amount: int, floor: int | None = None) -> Merge:
    return Merge((merges.add_operation(amount, floor, None),))


def at_store(url: str, schema: str, body: Callable[[Subject], Awaitable[None]], **options: Any) -> None:
    """Run a body on a store of its own."""

    async def run() -> None:
        backend = PostgreSQLBackend(url, schema=schema, **options)
        try:
            await body(Subject(backend))
        finally:
            await backend.close()

    asyncio.run(run())


async def at_once(store: Subject, requests: list[CommitRequest]) -> list[Reply | BaseException]:
    """Commit all of them in the same moment, so that those that can be go together."""
    return list(await asyncio.gather(*map(store.backend.commit, requests), return_exceptions=True))


def transaction_of(reply: Any) -> int:
    """Which of the server's transactions a commit was part of."""
    assert isinstance(reply, Reply), reply
    return reply.version[0] // ROOM


def test_commits_of_the_same_moment_share_a_transaction_and_nothing_else(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        start = await store.backend.snapshot()
        requests = [await store.request({key("k", n): put(n)}, agent=f"a{n}") for n in range(20)]
        replies = await at_once(store, requests)
        assert len({transaction_of(reply) for reply in replies}) == 1
        changes = await store.feed(start)
        assert [change.transaction for change in changes] == [request.transaction for request in requests]
        assert [change.version for change in changes] == [
            reply.version for reply in replies if isinstance(reply, Reply)
        ]
        assert [change.agent for change in changes] == [f"a{n}" for n in range(20)]
        for number, change in enumerate(changes):  # in the middle of a group a cursor is a snapshot like any other
            assert await store.listing(change.token) == {key("k", n): n for n in range(number + 1)}
            assert [later.version for later in await store.feed(change.token)] == [
                later.version for later in changes[number + 1 :]
            ]
            assert (await store.backend.outcome(change.transaction, fence=False))[0] is Settled.COMMITTED

    at_store(postgresql_url, schema, body)


def test_merges_of_one_key_each_have_their_turn(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        await store.commit({HOT: put(10)})
        start = await store.backend.snapshot()
        amounts = [-4, -4, -4, 7, -4, 0, 3]
        requests = [
            await store.request({HOT: add(amount, floor=0), key("r", n): put(n)}) for n, amount in enumerate(amounts)
        ]
        replies = await at_once(store, requests)
        before = [reply.merged[HOT] if isinstance(reply, Reply) and reply.merged else reply for reply in replies]
        assert isinstance(before[2], BoundBroken)
        assert before[2].key == HOT
        found = [(entry[0], codec.thaw(entry[1] or b"")) for n, entry in enumerate(before) if n != 2]  # type: ignore[index]
        assert found == [(True, 10), (True, 6), (True, 2), (True, 9), (False, 5), (True, 5)]
        assert len({transaction_of(reply) for n, reply in enumerate(replies) if n != 2}) == 1
        assert await store.value(HOT) == 8
        changes = await store.feed(start)
        assert [await store.value(HOT, change.token) for change in changes] == [6, 2, 9, 5, 5, 8]
        kept = [thawed(entry) for entry, _ in await store.backend.history(HOT)]
        assert kept == [8, 5, 9, 2, 6, 10]
        authors = [author.transaction for _, author in await store.backend.history(HOT) if author is not None]
        assert authors[0] == requests[6].transaction
        assert await store.value(key("r", 2)) is None

    at_store(postgresql_url, schema, body)


def test_a_refusal_refuses_one(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        stale = (await store.commit({key("s"): put(0)})).version
        newer = await store.commit({key("s"): put(1)}, agent="rival")
        done = await store.request({key("d"): put(0)})
        await store.backend.commit(done)
        fenced = new_transaction()
        await store.backend.outcome(fenced, fence=True)
        requests = [
            await store.request({key("a"): put(1)}, reads={key("never"): ABSENT}),
            await store.request({key("b"): put(1)}, reads={key("s"): stale, key("also"): ABSENT}),
            await store.request({key("c"): put(1)}, guards={key("rules"): ABSENT}),
            await store.request({key("e"): put(1)}, transaction=fenced),
            done,
            await store.request({key("f"): Delete()}, reads={key("f"): ABSENT}),
        ]
        answers = await at_once(store, requests)
        assert [type(answer) for answer in answers] == [
            Reply, CommitRefused, Reply, DuplicateTransaction, DuplicateTransaction, Reply,
        ]  # fmt: skip
        (clash,) = answers[1].clashes  # type: ignore[union-attr]
        assert (clash.key, clash.kind, clash.current.version, clash.author.agent) == (
            key("s"), "read", newer.version, "rival",
        )  # fmt: skip
        assert [answers[n].committed for n in (3, 4)] == [False, True]  # type: ignore[union-attr]
        assert set(await store.listing()) == {key("s"), key("d"), key("a"), key("c")}

    at_store(postgresql_url, schema, body)


def test_what_all_of_a_group_expect_is_judged_for_each(postgresql_url: str, schema: str) -> None:
    """It is sent once. Each that is refused for it is told so, beside what else refuses it."""

    async def body(store: Subject) -> None:
        rules = (await store.commit({key("rules"): put(0)})).version
        expected: dict[bytes, Any] = {key("rules"): rules, key("locks"): ABSENT}

        async def requests(round_: int) -> list[CommitRequest]:
            found = [
                await store.request({key("k", n, round_): put(n)}, reads={key("k", n, round_): ABSENT}, guards=expected)
                for n in range(4)
            ]
            found.append(await store.request({key("x", round_): put(0)}, reads={key("gone"): rules}, guards=expected))
            found.append(await store.request({key("y", round_): put(0)}, guards={**expected, key("own"): ABSENT}))
            return found

        answers = await at_once(store, await requests(1))
        assert [type(answer) for answer in answers] == [Reply] * 4 + [CommitRefused, Reply]
        assert [clash.key for clash in answers[4].clashes] == [key("gone")]  # type: ignore[union-attr]
        assert len({transaction_of(answers[n]) for n in (0, 1, 2, 3, 5)}) == 1
        held = (await store.commit({key("locks"): put(1), key("own"): put(1)})).version
        answers = await at_once(store, await requests(2))
        assert [type(answer) for answer in answers] == [CommitRefused] * 6
        clashing = [{(clash.key, clash.kind) for clash in answer.clashes} for answer in answers]  # type: ignore[union-attr]
        locked = (key("locks"), "read")
        assert clashing == [*[{locked}] * 4, {(key("gone"), "read"), locked}, {(key("own"), "read"), locked}]
        assert answers[0].clashes[0].current.version == held  # type: ignore[union-attr]

    at_store(postgresql_url, schema, body)


def test_a_commit_that_goes_alone_is_answered_in_the_same_ways(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        old = (await store.commit({key("a"): put(0)})).token
        for number in range(5):
            last = await store.commit({key("a"): put(number)})
        await store.backend.compact(last.at + 1)
        fetch = key("a"), key("never")  # who fetches goes alone

        reply = await store.commit({key("b"): put(1)}, fetch=fetch)
        assert [thawed(entry) for entry in reply.fetched] == [4, None]
        with pytest.raises(SnapshotTooOldError):
            await store.commit({key("x"): put(0)}, fetch=fetch, snapshot=old)
        done = await store.request({key("d"): put(0)}, fetch=fetch)
        again = await store.request({key("e"): put(0)}, fetch=fetch, reads={key("e"): ABSENT})  # clashes with itself
        fenced, overtaken = new_transaction(), new_transaction()
        late = await store.request({key("x"): put(0)}, fetch=fetch, transaction=fenced)
        clashing = await store.request({key("x"): put(0)}, fetch=fetch, transaction=overtaken, reads={key("a"): ABSENT})
        for request in (done, again):
            await store.backend.commit(request)
        for transaction in (fenced, overtaken):
            await store.backend.outcome(transaction, fence=True)
        for request, committed in ((done, True), (again, True), (late, False), (clashing, False)):
            with pytest.raises(DuplicateTransaction) as caught:
                await store.backend.commit(request)
            assert caught.value.committed is committed
        clashes = await store.refused({key("x"): put(0)}, fetch=fetch, reads={key("never"): (1, 1)})
        assert (clashes[key("never")].current, clashes[key("never")].author) == (None, None)
        assert await store.value(key("x")) is None

    at_store(postgresql_url, schema, body)


def test_an_agent_that_the_server_cannot_name_is_refused_before_anything_is_sent(
    postgresql_url: str, schema: str
) -> None:
    async def body(store: Subject) -> None:
        before = await store.backend.snapshot()
        with pytest.raises(UsageError, match="NUL"):
            await store.commit({key("a"): put(1)}, agent="a\0b")
        assert await store.feed(before) == []
        assert await store.value(key("a")) is None

    at_store(postgresql_url, schema, body)


def test_without_advisory_locks_commits_go_together_as_well(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        requests = [await store.request({key("k", n): put(n)}, reads={key("r", n): ABSENT}) for n in range(5)]
        replies = await at_once(store, requests)
        assert len({transaction_of(reply) for reply in replies}) == 1
        assert await store.listing() == {key("k", n): n for n in range(5)}

    at_store(postgresql_url, schema, body, locking="serializable")


def test_who_comes_twice_to_a_group_and_clashes_with_himself_is_told_that_he_was_there(
    postgresql_url: str, schema: str
) -> None:
    async def body(store: Subject) -> None:
        await store.commit({key("a"): put(0)})
        done = await store.request({key("d"): put(0)}, reads={key("d"): ABSENT})
        fenced = new_transaction()
        late = await store.request({key("x"): put(0)}, transaction=fenced, reads={key("a"): ABSENT})
        await store.backend.commit(done)
        await store.backend.outcome(fenced, fence=True)
        fresh = [await store.request({key("k", n): put(n)}) for n in range(3)]
        answers = await at_once(store, [done, *fresh, late])
        assert [type(answer) for answer in answers] == [DuplicateTransaction, *[Reply] * 3, DuplicateTransaction]
        assert [answers[n].committed for n in (0, 4)] == [True, False]  # type: ignore[union-attr]
        assert len({transaction_of(answer) for answer in answers[1:4]}) == 1
        assert await store.value(key("x")) is None

    at_store(postgresql_url, schema, body)


def test_a_deleted_key_that_is_expected_absent_is_recorded(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        await store.commit({key("a"): put(1), key("b"): put(1)})
        gone = await store.commit({key("a"): Delete(), key("b"): Delete()})
        start = await store.backend.snapshot()
        requests = [
            await store.request({key("x", n): put(n)}, reads={key("new", n): ABSENT, key(name): ABSENT})
            for n, name in enumerate("ab")
        ]
        assert len({transaction_of(reply) for reply in await at_once(store, requests)}) == 1
        assert [change.reads for change in await store.feed(start)] == [
            {key("new", n): None, key(name): gone.version} for n, name in enumerate("ab")
        ]

    at_store(postgresql_url, schema, body)


def test_a_snapshot_below_the_horizon_is_refused_alone(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        old = (await store.commit({key("a"): put(0)})).token
        for number in range(5):
            last = await store.commit({key("a"): put(number)})
        await store.backend.compact(last.at + 1)
        requests = [
            await store.request({key("w"): put(0)}),  # after so many callers who were alone it goes by itself
            await store.request({key("x"): put(0)}, snapshot=old),
            await store.request({key("y"): put(0)}),
        ]
        answers = await at_once(store, requests)
        assert [type(answer) for answer in answers] == [Reply, SnapshotTooOldError, Reply]

    at_store(postgresql_url, schema, body)


LOG = Span(key("log", 0), key("log", 100))
OTHER = Span(key("other", 0), key("other", 100))


def test_commits_that_validate_ranges_go_together(postgresql_url: str, schema: str) -> None:
    async def body(store: Subject) -> None:
        old = await store.backend.snapshot()
        await store.commit({key("log", 1): put(1)}, agent="rival")
        start = await store.backend.snapshot()
        requests = [await store.request({key("report", n): put(n)}, spans=(OTHER, LOG)) for n in range(4)]
        late = await store.request({key("report", 4): put(4)}, spans=(OTHER, LOG), snapshot=old)
        counted = await store.request({HOT: add(1)}, spans=(LOG,))
        answers = await at_once(store, [*requests[:2], late, *requests[2:], counted])
        refused = answers.pop(2)
        assert isinstance(refused, CommitRefused)
        (clash,) = refused.clashes
        assert (clash.key, clash.kind, clash.span) == (key("log", 1), "range", LOG)
        assert clash.author is not None
        assert clash.author.agent == "rival"
        assert len({transaction_of(answer) for answer in answers}) == 1
        changes = await store.feed(start)
        assert [change.transaction for change in changes] == [*[r.transaction for r in requests], counted.transaction]
        assert [change.spans for change in changes] == [(OTHER, LOG)] * 4 + [(LOG,)]
        assert await store.value(HOT) == 1

    at_store(postgresql_url, schema, body)


@pytest.mark.parametrize("writer_first", [False, True])
def test_nobody_goes_together_with_who_writes_into_his_range(
    postgresql_url: str, schema: str, writer_first: bool
) -> None:
    async def body(store: Subject) -> None:
        scanner = await store.request({key("report"): put(0)}, spans=(LOG,))
        writers = [
            await store.request({key("log", 7): put(0)}, spans=(OTHER,)),
            await store.request({key("log", 8): add(1)}, spans=(OTHER,)),
        ]
        answers = await at_once(store, [*writers, scanner] if writer_first else [scanner, *writers])
        found = [type(answer) for answer in answers]
        assert found == ([Reply, Reply, CommitRefused] if writer_first else [Reply, Reply, Reply])
        if not writer_first:
            first, *others = map(transaction_of, answers)
            assert first < min(others)

    at_store(postgresql_url, schema, body)


def test_a_snapshot_that_hides_a_commit_in_a_range_is_refused(postgresql_url: str, schema: str) -> None:
    """The commit lies below the end of the snapshot: only what the snapshot hides tells."""

    async def body(store: Subject) -> None:
        await store.commit({key("log", 1): put(1)})
        hidden = await store.commit({key("log", 2): put(2)})
        last = await store.commit({key("log", 3): put(3)})
        seen = Snapshot(last.version[0] + 1, (tk.whole(hidden.version[0] // ROOM),))
        token = Token(last.token.store, last.token.incarnation, seen.stop, seen.detail())
        requests = [
            await store.request({key("report", n): put(n)}, spans=(LOG,), snapshot=token if n == 1 else None)
            for n in range(3)
        ]
        answers = await at_once(store, requests)
        assert [type(answer) for answer in answers] == [Reply, CommitRefused, Reply]
        assert [clash.key for clash in answers[1].clashes] == [key("log", 2)]  # type: ignore[union-attr]

    at_store(postgresql_url, schema, body)


@pytest.fixture
def under_way(monkeypatch: pytest.MonkeyPatch) -> Callable[[], asyncio.Event]:
    """Makes an event of the next call: set when its commits are out of the queue and it is about to be sent."""

    def watch() -> asyncio.Event:
        event, call = asyncio.Event(), groups.call

        def noticed(jobs: Sequence[groups.Job]) -> tuple[str, tuple[Any, ...]]:
            event.set()
            return call(jobs)

        monkeypatch.setattr(groups, "call", noticed)
        return event

    return watch


def test_a_commit_that_is_cancelled_in_the_queue_has_not_happened(
    postgresql_url: str, schema: str, under_way: Callable[[], asyncio.Event]
) -> None:
    async def body(store: Subject) -> None:
        await store.commit({HOT: put(0)})
        snapshot = await store.backend.snapshot()
        requests = [await store.request({HOT: put(n)}, snapshot=snapshot) for n in range(10)]  # one in each call
        begun = under_way()
        tasks = [asyncio.ensure_future(store.backend.commit(request)) for request in requests]
        await begun.wait()
        for task in tasks[5:]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [n >= 5 for n in range(10)]
        assert all(not getattr(answer, "__notes__", ()) for answer in answers[5:])
        settled = [(await store.backend.outcome(request.transaction, fence=True))[0] for request in requests]
        assert settled == [Settled.COMMITTED] * 5 + [Settled.FENCED] * 5

    at_store(postgresql_url, schema, body)


def test_who_would_wait_for_a_call_under_way_holds_nobody_up(
    postgresql_url: str, schema: str, under_way: Callable[[], asyncio.Event]
) -> None:
    """Commits of a key that is being written stay at home; whoever touches something else passes them."""

    async def body(store: Subject) -> None:
        await store.commit({HOT: put(0)})
        snapshot = await store.backend.snapshot()
        hot = [await store.request({HOT: add(1)}, snapshot=snapshot) for _ in range(20)]
        cold = [await store.request({key("k", n): put(n)}, snapshot=snapshot) for n in range(5)]
        begun = under_way()
        first = asyncio.ensure_future(store.backend.commit(hot[0]))
        await begun.wait()
        late = [asyncio.ensure_future(store.backend.commit(request)) for request in [*hot[1:], *cold]]
        replies = await asyncio.gather(first, *late)
        groups_of = [transaction_of(reply) for reply in replies]
        assert len(set(groups_of[1:20])) == 1, "they did not go together"
        assert groups_of[0] not in groups_of[1:]
        assert len(set(groups_of[20:])) == 1
        assert await store.value(HOT) == 20

    at_store(postgresql_url, schema, body)


class HeldCommits(Commits):
    """Calls that are answered when the test says so. Without a server."""

    def __init__(self) -> None:
        super().__init__(None, 10)  # type: ignore[arg-type]
        self.sent: list[list[bytes]] = []
        self.may_end = asyncio.Event()

    async def _answers(self, jobs: list[groups.Job]) -> list[Reply | Exception]:
        self.sent.append([written for job in jobs for written in job.request.writes])
        await self.may_end.wait()
        return [Reply((1, 1), TOKEN, 0.0) for _ in jobs]


def test_who_validates_the_range_of_a_call_under_way_waits_here_and_not_on_a_connection() -> None:
    """There it would wait for that call's locks, and could take nobody along who comes meanwhile."""

    async def run() -> None:
        commits = HeldCommits()

        async def come(number: int, span: Span) -> asyncio.Future[Any]:
            """In a step of the loop of its own."""
            request = CommitRequest(
                new_transaction(), "a", "serializable", TOKEN, {}, {key(number): put(0)}, {}, (span,)
            )
            job = groups.job(request, locking=True)
            assert job is not None
            job.future = asyncio.get_running_loop().create_future()
            commits.gatherer.add(job)
            for _ in range(3):
                await asyncio.sleep(0)
            return job.future

        coming = [await come(0, LOG), await come(1, LOG), await come(2, OTHER), await come(3, LOG)]
        assert commits.sent == [[key(0)], [key(2)]]
        commits.may_end.set()
        await asyncio.gather(*coming)
        assert commits.sent == [[key(0)], [key(2)], [key(1), key(3)]]
        coming = [await come(4, LOG), await come(5, LOG)]
        await asyncio.gather(*coming)
        assert commits.sent[3:] == [[key(4)], [key(5)]], "a range stays as if a call were under way"

    asyncio.run(run())


async def _span_job(number: int, *spans: Span, writes: bytes | None = None) -> groups.Job:
    name = key(number) if writes is None else writes
    request = CommitRequest(new_transaction(), "a", "serializable", TOKEN, {}, {name: put(0)}, {}, spans)
    job = groups.job(request, locking=True)
    assert job is not None
    job.future = asyncio.get_running_loop().create_future()
    return job


def test_who_writes_into_the_range_of_a_call_under_way_waits_here_and_not_on_a_connection() -> None:
    async def run() -> None:
        commits = HeldCommits()
        jobs = [await _span_job(0, LOG)]
        commits.gatherer.add(jobs[0])
        for _ in range(3):
            await asyncio.sleep(0)
        for more in (await _span_job(1, writes=key("log", 5)), await _span_job(2)):
            jobs.append(more)
            commits.gatherer.add(more)
        for _ in range(3):
            await asyncio.sleep(0)
        assert commits.sent == [[key(0)], [key(2)]]
        commits.may_end.set()
        await asyncio.gather(*[job.future for job in jobs])
        assert commits.sent == [[key(0)], [key(2)], [key("log", 5)]]
        last = await _span_job(3, writes=key("log", 5))
        commits.gatherer.add(last)
        await last.future
        assert commits.sent[3:] == [[key("log", 5)]]
        assert not commits._spans

    asyncio.run(run())


@pytest.mark.parametrize("held_up", [False, True])
def test_ranges_go_with_all_others_until_a_call_was_held_up(monkeypatch: pytest.MonkeyPatch, held_up: bool) -> None:
    monkeypatch.setattr(loops, "SLOW_SECONDS", 0.0 if held_up else 1e9)

    async def run() -> None:
        loop = loops.Loop(None, Options("", "s", 10, "fsync", 1.0, 1.0), {})  # type: ignore[arg-type]
        commits = loop._commits = HeldCommits()
        commits.may_end.set()
        jobs = [await _span_job(0, LOG), await _span_job(1)]
        for job in jobs:
            assert loop.commits(job) is commits.gatherer
            commits.gatherer.add(job)
        await asyncio.gather(*[job.future for job in jobs])
        assert commits.sent == [[key(0), key(1)]]
        for _ in range(loops.APART):
            assert loop.commits(await _span_job(2, LOG)) is (loop._wide if held_up else commits).gatherer
            assert loop.commits(await _span_job(2)) is commits.gatherer
        assert loop.commits(await _span_job(2, LOG)) is commits.gatherer, "then it is tried again"

    asyncio.run(run())


def _random_request(chance: random.Random, known: dict[bytes, Any]) -> dict[str, Any]:
    """Reads what was last seen of some keys, and puts, deletes or merges some."""
    names = [key("k", n) for n in range(6)]
    writes: dict[bytes, Any] = {}
    for name in chance.sample(names, chance.randint(1, 2)):
        writes[name] = chance.choice([put(chance.randint(0, 9)), Delete(), put(0), add(chance.randint(-3, 5), floor=0)])
    if chance.random() < 0.5:
        writes[HOT] = add(chance.randint(-3, 3), floor=-2)
    reads = {name: known.get(name, ABSENT) for name in chance.sample(names, chance.randint(0, 2))}
    unseen = [name for name in names if name not in reads]
    guards: dict[bytes, Any] = {key("rules"): ABSENT} if chance.random() < 0.9 else {}
    if chance.random() < 0.1:
        guards[unseen[0]] = UNCHANGED
    return {"writes": writes, "reads": reads, "guards": guards}


async def _attack(stores: list[Subject], seed: int) -> dict[int, Reply]:
    """Random programs of several stores (each with connections and queues of its own) over the same few keys."""
    acknowledged: dict[int, Reply] = {}

    async def program(number: int) -> None:
        chance = random.Random(seed * 1000 + number)
        store = stores[number % len(stores)]
        for _ in range(12):
            reading = await store.backend.read([key("k", n) for n in range(6)])
            known = {
                key("k", n): entry.version
                for n, entry in enumerate(reading.entries)
                if entry is not None and entry.value is not None
            }
            request = await store.request(snapshot=reading.token, **_random_request(chance, known))
            try:
                acknowledged[request.transaction] = await store.backend.commit(request)
            except (CommitRefused, BoundBroken):
                pass

    await asyncio.gather(*(program(number) for number in range(16)))
    return acknowledged


def _replayed(state: dict[bytes, bytes], change: Change) -> dict[bytes, bytes]:
    """The state after a change, by the rules and not by the server."""
    after = dict(state)
    for name, write in change.writes.items():
        if isinstance(write, Put):
            after[name] = write.value
        elif isinstance(write, Merge):
            after[name] = merges.apply(after.get(name), write.operations)
        else:
            after.pop(name, None)
    return after


@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_is_what_its_commits_make_one_after_another(postgresql_url: str, schema: str, seed: int) -> None:
    async def body(store: Subject) -> None:
        other = PostgreSQLBackend(postgresql_url, schema=schema)
        start = await store.backend.snapshot()
        acknowledged = await _attack([store, Subject(other)], seed)
        changes = await store.feed(start)
        assert {change.transaction: change.version for change in changes} == {
            transaction: reply.version for transaction, reply in acknowledged.items()
        }
        assert len({change.version[0] // ROOM for change in changes}) < len(changes), "nothing went together"
        names = [*[key("k", n) for n in range(6)], HOT]
        state: dict[bytes, bytes] = {}
        versions: dict[bytes, Any] = {}
        for place, change in enumerate(changes):
            for name, found in change.reads.items():
                assert found == versions.get(name), "a read does not say what lay there"
            for name, merged in (acknowledged[change.transaction].merged or {}).items():
                assert merged.before == state.get(name), "a merge was applied to something else"
            before, state = state, _replayed(state, change)
            versions |= {name: change.version for name in change.writes if state.get(name) != before.get(name)
                         or isinstance(change.writes[name], Put)}  # fmt: skip
            entries = (await store.backend.read(names, change.token)).entries
            shown = {name: entry.value for name, entry in zip(names, entries, strict=True) if entry and entry.value}
            assert shown == state, f"the snapshot behind change {place} shows something else"
        assert [later.version for later in await store.feed(changes[len(changes) // 2].token)] == [
            later.version for later in changes[len(changes) // 2 + 1 :]
        ]
        await other.close()

    at_store(postgresql_url, schema, body)


# -- positions, snapshots and cursors by themselves --------------------------------------------------------------------
@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Transactions by how many commits each has (0: none), and in which order they become visible."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    order = draw(st.permutations(range(len(sizes))))
    return [[(10 + n) * ROOM + place for place in range(size)] for n, size in enumerate(sizes)], list(order)


@given(histories(), st.data())
@settings(max_examples=300, deadline=None)
def test_cursors_contain_exactly_what_they_have_passed(
    history: tuple[list[list[int]], list[int]], data: st.DataObject
) -> None:
    blocks, order = history

    def seen(count: int) -> tuple[Snapshot, list[int]]:
        visible = {block for n in order[:count] for block in blocks[n]}
        running = [10 + n for n in order[count:]]
        raw = Snapshot((10 + len(blocks)) * ROOM, tuple(sorted(map(tk.whole, running))))
        return tk.clamped(raw, max(visible, default=None)), sorted(visible)

    first, second = sorted((data.draw(st.integers(0, len(order))), data.draw(st.integers(0, len(order)))))
    since, old = seen(first)
    until, new = seen(second)
    everything = [position for block in blocks for position in block]
    assert [position for position in everything if since.shows(position)] == old
    passed = set(old)
    cursor = since
    for position in [position for position in new if position not in passed]:
        block = next(block for block in blocks if position in block)
        rest = len(block) - 1 - block.index(position)
        cursor = tk.advanced(cursor, until, position, rest)
        passed.add(position)
        assert {each for each in everything if cursor.shows(each)} == passed
        assert tk.from_detail(cursor.stop, cursor.detail()) == cursor
        assert all(cursor.shows(each) for each in range(10 * ROOM, cursor.lowest()) if each in everything)
        assert tk.contains(cursor, since.stop, since.open)
        assert tk.contains(until, cursor.stop, cursor.open)
        assert tk.contains(since, cursor.stop, cursor.open) == (not passed - set(old))


def test_a_token_never_reaches_beyond_what_it_is_made_of() -> None:
    """Not even if a server's counter were turned back, so that there are records from beyond its end."""
    seen = Snapshot(10 * ROOM, (tk.whole(8),))
    assert tk.clamped(seen, 20 * ROOM) == seen
    assert tk.clamped(seen, 9 * ROOM) == Snapshot(9 * ROOM + 1, (tk.whole(8),))
    assert tk.clamped(seen, 7 * ROOM) == Snapshot(7 * ROOM + 1)
    assert tk.clamped(seen, None) == Snapshot(1)


def test_a_group_takes_what_does_not_touch() -> None:
    group = groups.Group()

    def taken(writes: dict[bytes, Any], reads: dict[bytes, Any] | None = None) -> bool:
        request = CommitRequest(new_transaction(), "a", "serializable", TOKEN, reads or {}, writes, {})
        job = groups.job(request, locking=False)
        assert job is not None
        return group.takes(job)

    assert taken({key("a"): put(1), HOT: add(1)}, {key("b"): ABSENT})
    assert taken({HOT: add(2), key("c"): put(1)}, {key("b"): ABSENT})
    assert not taken({key("a"): put(2)})
    assert not taken({key("b"): put(2)})
    assert not taken({key("x"): put(2)}, {key("a"): ABSENT})
    assert not taken({key("x"): put(2)}, {HOT: ABSENT})
    assert not taken({HOT: put(2)})
    assert not taken({key("a"): add(2)})
    assert taken({key("d"): add(2)})
    assert not taken({key("d"): Delete()})
    assert len(group.jobs) == 3


@pytest.mark.parametrize(
    "more",
    [
        {"durable": False}, {"quiet": True}, {"fetch": (HOT,)}, {"reads": {HOT: UNCHANGED}},
        {"alive": frozenset((HOT,))},
        {"writes": {HOT: Merge((Operation("maximum", codec.freeze(1)),))}}, {"writes": {}},
        {"writes": {HOT: add(1), key("b"): add(1)}},
    ],
)  # fmt: skip
def test_what_goes_alone(more: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"reads": {}, "writes": {HOT: put(1)}, "guards": {}} | more
    request = CommitRequest(new_transaction(), "a", "serializable", TOKEN, **fields)
    assert groups.job(request, locking=False) is None
