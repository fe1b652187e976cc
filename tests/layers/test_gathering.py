"""Commits of layers that are wanted at the same time: what they share, and that no caller notices the others."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import interlock
import interlock.sync
from cases.faults import Counted, is_commit
from interlock import BackendUnavailableError, CommitUnknownError
from interlock.errors import SnapshotTooOldError
from interlock.layers.gathering import MIXED, PARTS, Gathering, Portion
from interlock.layers.ledger import Kind, Ledger
from interlock.model import ABSENT, Clash, CommitRefused, Delete, Put
from interlock.stepping import step

NOTE = Kind("note")


def on_a_loop(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own."""

    @functools.wraps(body)
    def run(**named: Any) -> None:
        asyncio.run(body(**named))

    return run


class Gated(Counted):
    """Commits wait until they are let through; each may have a fault: "before" it arrives, "after" it, or an error."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.open = asyncio.Event()
        self.one_by_one = False
        """Whether whoever is let through closes behind itself."""
        self.arrived = asyncio.Semaphore(0)
        self.faults: dict[int, Any] = {}

    async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
        """Hold it."""
        if not is_commit(name, args):
            self.calls.append(name)
            return await call()
        self.commits.append(args[0])
        fault = self.faults.get(len(self.commits))
        self.arrived.release()
        await self.open.wait()
        if self.one_by_one:
            self.open.clear()
        if isinstance(fault, Exception):
            raise fault
        if fault == "before":
            raise CommitUnknownError("lost", transaction_id="")
        reply = await call()
        if fault == "after":
            raise CommitUnknownError("lost", transaction_id="")
        if fault == "interrupted":
            raise asyncio.CancelledError
        return reply


class Callers:
    """Callers of one ledger over a gated backend; the first is on its way when the others come."""

    def __init__(self) -> None:
        self.backend = Gated(interlock.MemoryBackend())
        self.store = interlock.Store(self.backend, agent="a")
        self.ledger = Ledger(self.store._engine)
        self.tasks: list[asyncio.Task[Any]] = []

    async def write(self, name: str, value: int, expected: Any = ABSENT, **more: Any) -> Any:
        """One commit of one record."""
        key = NOTE.key(name)
        return await self.ledger.gathered({key: NOTE.put(value)}, {key: expected}, agent="a", **more)

    async def begin(self, *writes: tuple[Any, ...]) -> None:
        """Begin commits; the first of all is under way when this returns."""
        for write in writes:
            first = not self.tasks
            self.tasks.append(asyncio.create_task(self.write(*write)))
            if first:
                await self.backend.arrived.acquire()
            await asyncio.sleep(0)

    async def let_one_through(self) -> None:
        """Let the first commit end; the next one is under way when this returns."""
        self.backend.one_by_one = True
        self.backend.open.set()
        await self.tasks[0]
        await self.backend.arrived.acquire()
        self.backend.one_by_one = False

    async def end(self) -> list[Any]:
        """Let everything through; what became of each."""
        self.backend.open.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)

    async def values(self, *names: str) -> list[Any]:
        """What is written."""
        found = await self.ledger.read(NOTE, [NOTE.key(name) for name in names])
        return [record.value for record in found.records]

    def sizes(self) -> list[int]:
        """How many records each commit has written."""
        return [len(commit.writes) for commit in self.backend.commits]


@on_a_loop
async def test_what_is_wanted_meanwhile_goes_together() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2), ("c", 3), ("d", 4))
    done = await callers.end()
    assert callers.sizes() == [1, 3]
    assert [each.transaction for each in done[1:]] == [callers.backend.commits[1].transaction] * 3
    versions = [record.version for record in (await callers.ledger.read(NOTE, list(map(NOTE.key, "abcd")))).records]
    assert versions == [each.version for each in done]
    assert all(commit.quiet for commit in callers.backend.commits)


@on_a_loop
async def test_a_caller_alone_sends_at_once() -> None:
    callers = Callers()
    callers.backend.open.set()
    for number in range(3):
        await callers.write(f"k{number}", number)
    assert callers.sizes() == [1, 1, 1]
    assert callers.backend.calls == ["snapshot"]  # only before the first


@on_a_loop
async def test_one_that_does_not_hold_is_refused_alone() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2), ("c", 3, (1, 1)), ("d", 4, (2, 2)), ("e", 5))
    done = await callers.end()
    assert callers.sizes() == [1, 4, 2]
    for place, name in ((2, "c"), (3, "d")):
        assert isinstance(done[place], CommitRefused)
        assert [clash.key for clash in done[place].clashes] == [NOTE.key(name)]
    assert await callers.values(*"abcde") == [1, 2, None, None, 5]


@on_a_loop
async def test_a_group_that_is_refused_as_a_whole() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2, (1, 1)), ("c", 3, (1, 1)))
    done = await callers.end()
    assert callers.sizes() == [1, 2]
    assert [type(each) for each in done[1:]] == [CommitRefused, CommitRefused]


@on_a_loop
async def test_a_refusal_that_names_nothing_is_everybodys() -> None:
    """Nobody is sent again for ever."""
    callers = Callers()
    callers.backend.faults = {2: CommitRefused((Clash(b"elsewhere", "read", None),))}
    await callers.begin(("a", 1), ("b", 2), ("c", 3))
    done = await callers.end()
    assert [(type(each), each.clashes) for each in done[1:]] == [(CommitRefused, ())] * 2
    assert callers.sizes() == [1, 2]
    assert await callers.values(*"abc") == [1, None, None]


@on_a_loop
async def test_a_snapshot_that_is_always_too_old() -> None:
    callers = Callers()
    callers.backend.faults = {number: SnapshotTooOldError("old") for number in range(2, 6)}
    await callers.begin(("a", 1), ("b", 2), ("c", 3))
    done = await callers.end()
    assert [type(each) for each in done[1:]] == [SnapshotTooOldError] * 2
    assert callers.sizes() == [1, 2, 2, 2, 2]
    await callers.write("d", 4)
    assert await callers.values(*"abcd") == [1, None, None, 4]


@on_a_loop
async def test_a_commit_of_several_agents_is_nobodys() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2))
    for agent in ("a", "another"):
        key = NOTE.key(agent, "own")
        part = callers.ledger.gathered({key: NOTE.put(1)}, {key: ABSENT}, agent=agent)
        callers.tasks.append(asyncio.create_task(part))
        await asyncio.sleep(0)
    await callers.end()
    assert callers.sizes() == [1, 3]
    assert [commit.agent for commit in callers.backend.commits] == ["a", MIXED]


@on_a_loop
async def test_what_is_left_of_several_agents_when_one_is_refused_is_nobodys_too() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2), ("c", 3, (1, 1)))
    key = NOTE.key("another", "own")
    part = callers.ledger.gathered({key: NOTE.put(1)}, {key: ABSENT}, agent="another")
    callers.tasks.append(asyncio.create_task(part))
    await asyncio.sleep(0)
    await callers.end()
    assert callers.sizes() == [1, 3, 2]
    assert [commit.agent for commit in callers.backend.commits] == ["a", MIXED, MIXED]


@on_a_loop
async def test_nobody_writes_what_another_one_expects() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 1), ("b", 2), ("c", 1))
    done = await callers.end()
    assert callers.sizes() == [1, 2, 1]
    assert isinstance(done[2], CommitRefused)  # behind the first of the key, which it does not expect
    assert await callers.values(*"abc") == [1, 1, 1]


def test_what_fits_together() -> None:
    guard, key, other = b"guard", b"key", b"other"

    def fit(writes: Any, expectations: Any) -> bool:
        one = Portion({key: Put(b"1")}, {key: ABSENT, guard: (1, 1)}, "a", True, None)
        return Portion(writes, expectations, "b", True, None).fits(one.writes, one.expectations)

    assert Portion({key: Put(b"12"), other: Delete(), guard: Put(b"3")}, {}, "a", True, None).size == 3
    assert fit({other: Put(b"2")}, {other: ABSENT, guard: (1, 1)})
    assert not fit({other: Put(b"2")}, {guard: (2, 1)})
    assert not fit({guard: Delete()}, {guard: (1, 1)})
    assert not fit({other: Put(b"2")}, {key: ABSENT})


@on_a_loop
async def test_durable_if_one_of_them_is() -> None:
    callers = Callers()
    await callers.begin(("a", 1))
    for name, durable in (("b", False), ("c", True), ("d", False)):
        callers.tasks.append(asyncio.create_task(callers.write(name, 1, durable=durable)))
    await asyncio.sleep(0)
    await callers.end()
    assert [commit.durable for commit in callers.backend.commits] == [True, True]
    callers.backend.open.set()
    await callers.write("e", 1, durable=False)
    assert not callers.backend.commits[-1].durable


@on_a_loop
async def test_a_commit_carries_only_so_many() -> None:
    callers = Callers()
    await callers.begin(("first", 1), *((f"k{number}", number) for number in range(PARTS + 5)))
    await callers.end()
    assert callers.sizes() == [1, PARTS, 5]
    big = Callers()
    await big.begin(("first", 1), *((f"k{number}", "x" * 200_000) for number in range(3)))
    await big.end()
    assert big.sizes() == [1, 1, 1, 1]


@pytest.mark.parametrize("fault", ["before", "after"])
@on_a_loop
async def test_a_lost_reply_is_settled_for_each(fault: str) -> None:
    callers = Callers()
    callers.backend.faults = {2: fault, 4: "after"}
    await callers.begin(("a", 1), ("b", 2), ("c", 3, (1, 1)), ("d", 4))
    done = await callers.end()
    assert await callers.values(*"abd") == [1, 2, 4]
    assert isinstance(done[2], CommitRefused)
    for place, name in ((1, "b"), (3, "d")):
        record = (await callers.ledger.read(NOTE, [NOTE.key(name)])).records[0]
        assert done[place].version == record.version


@on_a_loop
async def test_a_failure_is_everybodys_own() -> None:
    callers = Callers()
    callers.backend.faults = {2: BackendUnavailableError("down"), 3: SnapshotTooOldError("old")}
    await callers.begin(("a", 1), ("b", 2), ("c", 3))
    done = await callers.end()
    assert [type(each) for each in done[1:]] == [BackendUnavailableError] * 2
    assert done[1] is not done[2]
    await callers.write("d", 4)  # the snapshot was too old: a new one is taken
    assert callers.sizes() == [1, 2, 1, 1]
    assert await callers.values(*"abcd") == [1, None, None, 4]


@on_a_loop
async def test_who_is_cancelled_while_waiting_takes_its_part_back() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2), ("c", 3))
    callers.tasks[1].cancel()
    await asyncio.wait([callers.tasks[1]])
    done = await callers.end()
    assert isinstance(done[1], asyncio.CancelledError)
    assert callers.sizes() == [1, 1]
    assert await callers.values(*"abc") == [1, None, 3]


@pytest.mark.parametrize(
    ("fault", "said", "values"),
    [
        (None, "it happened", [1, 2, 3]),
        (BackendUnavailableError("down"), "nothing was written", [1, None, None]),
        ("before", "it may or may not happen", [1, 2, None]),
    ],
    ids=["done", "fails", "lost"],
)
@on_a_loop
async def test_who_is_cancelled_on_the_way_waits_for_the_answer(fault: Any, said: str, values: list[Any]) -> None:
    callers = Callers()
    callers.backend.faults = {2: fault}
    notes: list[str] = []

    async def noting() -> None:
        try:
            await callers.write("c", 3)
        except asyncio.CancelledError as cancelled:
            notes.extend(cancelled.__notes__)
            raise

    await callers.begin(("a", 1), ("b", 2))
    callers.tasks.append(asyncio.create_task(noting()))
    await asyncio.sleep(0)
    await callers.let_one_through()
    callers.tasks[2].cancel()
    await asyncio.sleep(0)
    assert not callers.tasks[2].done()
    done = await callers.end()
    assert isinstance(done[2], asyncio.CancelledError)
    assert said in notes[0]
    assert await callers.values(*"abc") == values


@on_a_loop
async def test_who_is_closed_on_the_way_waits_for_nothing() -> None:
    """Nothing may be awaited there; the commit goes on without its caller."""
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2))
    closed = callers.write("c", 3)
    closed.send(None)
    await callers.let_one_through()
    closed.close()
    await callers.end()
    assert callers.sizes() == [1, 2]
    assert await callers.values(*"abc") == [1, 2, 3]


@on_a_loop
async def test_who_is_cancelled_while_it_lets_others_come_writes_nothing() -> None:
    """The sender waits a moment for those who were just woken; its part is taken back, and others may send."""
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2), ("c", 3))
    await callers.end()
    assert callers.sizes() == [1, 2]
    notes: list[str] = []

    async def noting() -> None:
        try:
            await callers.write("d", 4)
        except asyncio.CancelledError as cancelled:
            notes.extend(cancelled.__notes__)
            raise

    sender = asyncio.create_task(noting())
    await asyncio.sleep(0)
    sender.cancel()
    await asyncio.wait([sender])
    assert sender.cancelled()
    assert "taken back before it began" in notes[0]
    await callers.write("e", 5)
    assert callers.sizes() == [1, 2, 1]
    assert await callers.values(*"abcde") == [1, 2, 3, None, 5]


@on_a_loop
async def test_who_is_cancelled_when_told_to_send_tells_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2), ("c", 3))
    passed_on = Gathering._pass_on
    told: list[Any] = []

    def pass_on(self: Gathering) -> Any:
        following = passed_on(self)
        told.append(following)
        if len(told) == 1:  # the second is told, and cancelled before it hears of it
            callers.tasks[1].cancel()
        return following

    monkeypatch.setattr(Gathering, "_pass_on", pass_on)
    done = await callers.end()
    assert isinstance(done[1], asyncio.CancelledError)
    assert await callers.values(*"abc") == [1, None, 3]
    assert callers.sizes() == [1, 1]
    assert len(told) == 3  # by the first, by the one that was cancelled, and by the third, which finds nobody
    await callers.write("d", 4)


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@on_a_loop
async def test_the_sender_is_interrupted(behind: bool) -> None:
    """The others find out for themselves, and are written once."""
    callers = Callers()
    if behind:
        callers.backend.faults = {2: "interrupted"}
    await callers.begin(("a", 1), ("b", 2), ("c", 3), ("d", 4))
    if behind:
        callers.backend.open.set()
        await callers.tasks[0]
    else:
        await callers.let_one_through()
        callers.tasks[1].cancel()
        await asyncio.wait([callers.tasks[1]])
    done = await callers.end()
    assert isinstance(done[1], asyncio.CancelledError)
    assert await callers.values(*"abcd") == [1, 2 if behind else None, 3, 4]
    for place, name in ((2, "c"), (3, "d")):
        assert done[place].version == (await callers.ledger.read(NOTE, [NOTE.key(name)])).records[0].version


@on_a_loop
async def test_a_forked_child_sends_its_own() -> None:
    callers = Callers()
    await callers.begin(("a", 1), ("b", 2))
    gathering = callers.store._engine.shared[Gathering]
    gathering._process = -1  # as a child finds it, whose parent has a commit on its way
    callers.tasks.append(asyncio.create_task(callers.write("c", 3)))
    await callers.backend.arrived.acquire()
    assert len(callers.backend.commits) == 2
    parents = callers.tasks.pop(1)
    parents.cancel()  # as when the child ends: it is nowhere in the child's queue
    callers.backend.open.set()
    await asyncio.gather(*callers.tasks)
    assert parents.cancelled()


def test_threads(tmp_path: Path) -> None:
    """Everything is written once, by however few commits."""
    backend = Counted(interlock.SQLiteBackend(tmp_path / "gathered.db"))
    count, each = 8, 25
    with interlock.sync.Store(backend, agent="a") as store:
        ledger = Ledger(store._engine)
        found: list[BaseException] = []

        def work(own: int) -> Callable[[], None]:
            def run() -> None:
                try:
                    for number in range(each):
                        key, value = NOTE.key(own, number), NOTE.put(number)
                        step(ledger.gathered({key: value}, {key: ABSENT}, agent="a", durable=bool(number % 2)))
                        with pytest.raises(CommitRefused):
                            step(ledger.gathered({key: value}, {key: ABSENT}, agent="a"))
                except BaseException as error:
                    found.append(error)

            return run

        threads = [threading.Thread(target=work(own)) for own in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not found
        assert len(step(ledger.scan(NOTE)).records) == count * each
        assert sum(len(commit.writes) for commit in backend.commits) >= count * each


class Sending:
    """What goes by `interlock.ports.Direct.send` of a SQLite store, and with which fault."""

    def __init__(self, store: interlock.sync.Store) -> None:
        self.ledger = Ledger(store._engine)
        self.gathering = self.ledger.gathering
        assert self.gathering._send is not None
        self._inner = self.gathering._send
        self.gathering._send = self._send
        self.sent: list[Any] = []
        self.faults: list[Any] = []

    def _send(self, request: Any) -> Any:
        fault = self.faults.pop(0) if self.faults else None
        if fault == "too old":
            raise SnapshotTooOldError("too old")
        reply = None if fault == "lost before" else self._inner(request)
        self.sent.append(reply)
        if fault is not None:
            raise CommitUnknownError("lost", transaction_id="")
        return reply

    def write(self, name: str, value: int, expected: Any = ABSENT) -> Any:
        """One commit of one record."""
        key = NOTE.key(name)
        token = step(self.ledger.backend.snapshot())
        return step(self.ledger.gathered({key: NOTE.put(value)}, {key: expected}, agent="a", snapshot=token))

    def record(self, name: str) -> Any:
        """What is written."""
        return step(self.ledger.read(NOTE, [NOTE.key(name)])).records[0]


def on_a_thread(body: Callable[[Sending], None]) -> Callable[[Path], None]:
    """Run a test on a thread of its own, which may commit itself."""

    def run(tmp_path: Path) -> None:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                with interlock.sync.open(f"sqlite:///{tmp_path / 'store.db'}", agent="a") as store:
                    store.resource("opened").run(lambda session: session.write("k", 1))
                    body(Sending(store))
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    return run


@on_a_thread
def test_who_is_alone_is_done_with_one_call(sending: Sending) -> None:
    first = sending.write("a", 1)
    assert first.version == sending.sent[0].version == sending.record("a").version
    second = sending.write("a", 2, first.version)
    assert second.version == sending.record("a").version
    assert sending.record("a").value == 2
    with pytest.raises(CommitRefused):
        sending.write("a", 3, first.version)
    assert sending.record("a").value == 2
    assert not sending.gathering._busy
    assert not sending.gathering._queue


@on_a_thread
def test_a_lost_reply_to_who_is_alone_is_settled(sending: Sending) -> None:
    sending.faults = ["lost after"]
    assert sending.write("a", 1).version == sending.sent[0].version == sending.record("a").version
    sending.faults = ["lost before"]
    assert sending.write("b", 1).version == sending.record("b").version
    assert sending.sent[1] is None


@on_a_thread
def test_a_snapshot_that_is_too_old_is_taken_anew(sending: Sending) -> None:
    sending.faults = ["too old"]
    sending.write("a", 1)
    assert sending.record("a").value == 1
    assert not sending.sent


@on_a_thread
def test_nobody_is_alone_while_others_commit(sending: Sending) -> None:
    sending.gathering._expected = 2.0
    sending.write("a", 1)
    assert not sending.sent
    assert sending.record("a").value == 1
