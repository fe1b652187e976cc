"""How the journal of a durable saga lies in the store: pages, results that come later, doubts, and whose it is."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import interlock
import interlock.sync
from cases.faults import Counted, Hooked, LostReplies, Wrapped, is_commit
from interlock import LeaseUnavailableError, LimitExceededError, Saga, SagaClosedError, UsageError, codec, compensable
from interlock.codec import VALUE_BYTES
from interlock.layers.ledger import Ledger
from interlock.layers.tenures import PULSES, Witness
from interlock.model import ABSENT, Delete, Entry
from interlock.saga import kinds, pages
from interlock.saga.journal import PAGES, SAGAS
from interlock.saga.presence import coordinators_of
from interlock.saga.scope import Step
from interlock.stepping import step

_serial = itertools.count()
LOG: list[str] = []


class Boom(Exception):
    """What goes wrong."""


@compensable(name="journal.undo", outside="run")
def undo(what: str) -> None:
    """Takes it back."""
    LOG.append(f"undo {what}")


@compensable(name="journal.act", outside="run")
def act(what: str, size: int = 0) -> str:
    """A step; its result may be large."""
    LOG.append(what)
    return what + "x" * size


@compensable(name="journal.last", kind="irreversible", outside="run")
def last(what: str) -> None:
    """What cannot be undone."""
    LOG.append(f"last {what}")


@compensable(name="journal.act_later", outside="run")
async def act_later(what: str) -> str:
    """The same, asynchronous."""
    LOG.append(what)
    return what


@pytest.fixture(autouse=True)
def _clean() -> None:
    LOG.clear()


def new_stores(count: int = 1) -> list[Any]:
    """Store objects over one engine."""
    url = f"memory://journal-{next(_serial)}"
    return [interlock.sync.open(url, agent=f"a{number}") for number in range(count)]


def found(store: Any, kind: Any) -> list[Any]:
    """The live records of a kind."""
    return [each for each in step(Ledger(store._engine).scan(kind)).records if each.value is not None]


def statuses(store: Any) -> dict[Any, str]:
    """What the store says of all steps, the later pages last."""
    return {place: fields["status"] for each in found(store, PAGES) for place, (_, fields) in each.value.items()}


def kill(saga: Any) -> None:
    """The coordinator of a saga is dead: nothing more comes from it, and its pulse has ended."""
    journal = saga._frame.course.recorder.journal
    presence = journal._presence
    engine = journal.engine
    journal.lost = True
    engine.locking.keeper.remove(presence)
    step(Ledger(engine).commit(
        {presence.key: Delete()}, {presence.key: presence._version}, agent="death", quiet=True
    ))  # fmt: skip
    presence._version = ABSENT
    presence.loss = RuntimeError("dead")
    journal._presence = None
    coordinators_of(engine).leave(journal.head_key, presence)


# -- results -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_result_is_written_though_no_step_follows(scheme: str, tmp_path: Any) -> None:
    """An agent thinks; its coordinator dies meanwhile."""
    url = f"memory://journal-{next(_serial)}" if scheme == "memory" else f"sqlite:///{tmp_path / 'thinks.db'}"
    with interlock.sync.open(url, agent="a") as store, interlock.sync.open(url, agent="rival") as rival:
        backend = rival._engine.backend
        with pytest.raises(Boom), store.saga("s", id="1") as saga:
            saga.step(act, "a", undo=undo)
            for _ in range(100):
                token = step(backend.snapshot())
                if statuses(rival) == {0: "done"}:
                    break
                step(backend.wait(token, 0.5))
            assert statuses(rival) == {0: "done"}
            kill(saga)
            raise Boom
        assert rival.recover(older_than_seconds=0).undone == ("s/1",)
        assert LOG == ["a", "undo a"]


async def test_in_asynchronous_code_it_is_written_too(url: str) -> None:
    async with interlock.open(url, agent="a") as store:
        async with store.saga("s", id="1") as saga:
            await saga.step(act_later, "a", undo=undo)
            ledger = Ledger(store._engine)
            for _ in range(100):
                token = await store._engine.backend.snapshot()
                page = (await ledger.scan(PAGES)).records[0].value
                if page[0][1]["status"] == "done":
                    break
                await store._engine.backend.wait(token, 0.5)
            assert page[0][1]["status"] == "done"


def test_a_step_carries_the_result_before_it_in_one_record() -> None:
    counted = Counted(interlock.MemoryBackend())
    with interlock.sync.Store(counted, agent="a") as store:
        with store.saga("s", id="1") as saga:
            saga.step(act, "a", undo=undo)
            before = len(counted.commits)
            saga.step(act, "b", undo=undo)
            intents = [commit for commit in counted.commits[before:] if commit.durable]
            assert [list(commit.writes) for commit in intents] == [[PAGES.key("s", "1", 1, 0)]]
            assert statuses(store) in ({0: "done", 1: "begun"}, {0: "done", 1: "done"})
        assert statuses(store) == {0: "done", 1: "done"}


def test_a_saga_needs_no_commit_but_its_steps_and_its_end() -> None:
    counted = Counted(interlock.MemoryBackend())
    with interlock.sync.Store(counted, agent="a") as store:
        for number in range(2):
            before = len(counted.commits)
            with store.saga("s", id=f"{number}") as saga:
                for what in "abcde":
                    saga.step(act, what, undo=undo)
        durable = [commit for commit in counted.commits[before:] if commit.durable]
        assert len(durable) == 6


# -- pages -------------------------------------------------------------------------------------------------------------
def test_many_steps_lie_in_pages_of_bounded_size_and_are_undone() -> None:
    store, other = new_stores(2)
    with pytest.raises(Boom), store.saga("s", id="1") as saga:
        for number in range(60):
            saga.step(act, str(number), undo=undo)
        step(saga._frame.course.recorder.journal.flush())
        records = found(other, PAGES)
        assert len(records) > 3
        assert all(len(each.entry.value) < pages.PAGE_BYTES + 1024 for each in records)
        kill(saga)
        raise Boom
    assert other.recover(older_than_seconds=0).undone == ("s/1",)
    assert LOG[60:] == [f"undo {number}" for number in reversed(range(60))]


def test_a_large_result_moves_to_a_page_of_its_own() -> None:
    (store,) = new_stores()
    for _ in range(2):
        with store.saga("s", id="1") as saga:
            for what, size in (("a", 0), ("b", pages.PAGE_BYTES), ("c", VALUE_BYTES // 2), ("d", VALUE_BYTES // 2)):
                assert len(saga.step(act, what, size, undo=undo)) == size + 1
            saga.step(act, "e", undo=undo)
    assert list("abcde") == LOG  # the second time it was replayed
    with pytest.raises(LimitExceededError), store.saga("s", id="2") as saga:
        saga.step(act, "a", undo=undo)
        saga.step(act, "b", VALUE_BYTES, undo=undo)
    assert LOG[5:] == ["a", "b", "undo b", "undo a"]
    store.close()


def test_the_later_page_of_a_step_is_the_newer_one() -> None:
    store, other = new_stores(2)
    with pytest.raises(Boom), store.saga("s", id="1", on_crash="resume") as saga:
        saga.step(act, "a", undo=undo)
        before = found(other, PAGES)[0]
        saga.step(act, "b", pages.PAGE_BYTES, undo=undo)
        step(saga._frame.course.recorder.journal.flush())
        first = next(each for each in found(other, PAGES) if each.key == before.key)
        stale = PAGES.put_plain([pages.encoded(1, {"status": "begun", "order": 1, "fn": "tests:act"})])
        step(Ledger(other._engine).commit({first.key: stale}, {first.key: first.expected}, agent="late", quiet=True))
        assert statuses(other) == {1: "done"}
        kill(saga)
        raise Boom
    store.close()
    other.close()


# -- side by side ------------------------------------------------------------------------------------------------------
def test_parallel_steps_may_be_the_first(url: str) -> None:
    with interlock.sync.open(url, agent="a") as store:
        for _ in range(2):
            with store.saga("s", id="1") as saga:
                done = saga.parallel(*[Step(act, str(number), undo=undo) for number in range(5)])
                assert done == tuple(map(str, range(5)))
        assert sorted(LOG) == list(map(str, range(5)))


async def test_parallel_tasks_may_be_the_first(url: str) -> None:
    async with interlock.open(url, agent="a") as store:
        for _ in range(2):
            async with store.saga("s", id="1") as saga:
                async with asyncio.TaskGroup() as group:
                    for number in range(5):
                        group.create_task(saga.step(act_later, str(number), undo=undo, step_id=str(number)))
        assert sorted(LOG) == list(map(str, range(5)))


async def test_a_plain_function_does_not_wait_for_the_first_step_of_another_task() -> None:
    gate, arrived = asyncio.Event(), asyncio.Event()

    class Slow(Wrapped):
        async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
            if is_commit(name, args) and any(key.startswith(b"\0sagapage") for key in args[0].writes):
                arrived.set()
                await gate.wait()
            return await call()

    async with interlock.Store(Slow(interlock.MemoryBackend()), agent="a") as store:
        async with store.saga("s", id="1") as saga:
            first = asyncio.create_task(saga.step(act_later, "a", undo=undo))
            await arrived.wait()
            with pytest.raises(UsageError, match="cannot wait"):
                act("b")
            gate.set()
            assert await first == "a"


# -- doubts ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("happened", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("at", range(4))
def test_an_interrupt_at_a_commit_leaves_no_doubt(at: int, happened: bool) -> None:
    """Whatever has become of it, the saga is undone and says so."""
    armed = [False]

    class Interrupted(Wrapped):
        async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
            if armed[0] and is_commit(name, args) and args[0].durable:
                armed[0] = False
                if happened:
                    await call()
                raise KeyboardInterrupt
            return await call()

    with interlock.sync.Store(Interrupted(interlock.MemoryBackend()), agent="a") as store:
        with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") as saga:
            for number in range(3):
                armed[0] = at == number
                saga.step(act, str(number), undo=undo)
            armed[0] = at == 3
        done = [line for line in LOG if "undo" not in line]
        (record,) = found(store, SAGAS)
        if at == 3 and happened:  # that it has committed
            assert record.value["status"] == "committed"
        else:
            assert [*done, *(f"undo {what}" for what in reversed(done))] == LOG
            assert record.value["status"] == "undone"
            assert record.value["owner"] is None
            assert saga.report.clean
        assert store.recover(older_than_seconds=0) == interlock.RecoveryReport()


def test_who_did_not_hear_that_a_saga_was_decided_does_not_undo_it() -> None:
    came: list[Any] = []

    class Interrupted(Wrapped):
        async def around(self, name: str, args: tuple[Any, ...], call: Any) -> Any:
            done = await call()
            if not came and is_commit(name, args):
                came.extend(each for each in args[0].writes.values() if b"decided" in getattr(each, "value", b""))
                if came:
                    raise KeyboardInterrupt
            return done

    with interlock.sync.Store(Interrupted(interlock.MemoryBackend()), agent="a") as store:
        with pytest.raises(KeyboardInterrupt), store.saga("s", id="1") as saga:
            saga.step(act, "a", undo=undo)
            saga.defer(last, "b")
        assert LOG == ["a"]
        (record,) = found(store, SAGAS)
        assert record.value["status"] == "decided"
        assert store.recover(older_than_seconds=0).finished == ("s/1",)
        assert LOG == ["a", "last b"]


def test_lost_replies_change_nothing() -> None:
    for at, fault in itertools.product(range(8), ("before", "after")):
        LOG.clear()
        backend = LostReplies(interlock.MemoryBackend(), {at: fault})
        with interlock.sync.Store(backend, agent="a") as store:
            with store.saga("s", id="1") as saga:
                for number in range(5):
                    saga.step(act, str(number), undo=undo)
            assert list("01234") == LOG
            (record,) = found(store, SAGAS)
            assert record.value["status"] == "committed"


# -- whose it is -------------------------------------------------------------------------------------------------------
def test_a_saga_is_coordinated_once_in_a_store_object() -> None:
    (store,) = new_stores()
    with store.saga("s", id="1"), ThreadPoolExecutor(1) as pool:
        with pytest.raises(LeaseUnavailableError, match="coordinated by a0") as caught:
            pool.submit(store.saga("s", id="1").__enter__).result()
        assert caught.value.holders == ("a0",)
        assert store.recover(older_than_seconds=0) == interlock.RecoveryReport()
    with store.saga("s", id="1"):
        pass
    store.close()


def test_a_renewal_in_between_saves_a_saga_from_a_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes over expects the pulse that was seen."""
    backend = interlock.MemoryBackend()
    presences: list[Any] = []
    seen: list[Any] = []

    def renewed(name: str, args: tuple[Any, ...]) -> None:
        if presences and is_commit(name, args) and not seen and presences[0].key in args[0].guards:
            seen.append(step(presences[0].renew(store._engine.locking.ledger)))

    with (
        interlock.sync.Store(backend, agent="a") as store,
        interlock.sync.Store(Hooked(backend, renewed), agent="rival") as rival,
        ThreadPoolExecutor(1) as pool,
        store.saga("s", id="1") as saga,
    ):
        saga.step(act, "a", undo=undo)
        presences.append(saga._frame.course.recorder.journal._presence)
        monkeypatch.setattr(Witness, "look", lambda *arguments: 0.0)  # the rival believes that it is dead
        with pytest.raises(LeaseUnavailableError):
            pool.submit(rival.saga("s", id="1").__enter__).result()
        assert seen
        assert not coordinators_of(rival._engine)._held
        saga.step(act, "b", undo=undo)
    assert LOG == ["a", "b"]


def test_a_pulse_that_no_saga_needs_ends_with_its_next_renewal() -> None:
    (store,) = new_stores()
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        presence = saga._frame.course.recorder.journal._presence
        ledger = store._engine.locking.ledger
        step(presence.renew(ledger))
        assert step(ledger.read(PULSES, [presence.key])).records[0].version is not None
    step(presence.renew(ledger))
    assert step(ledger.read(PULSES, [presence.key])).records[0].version is None
    assert presence.over
    with store.saga("s", id="2") as saga:
        saga.step(act, "b", undo=undo)
        assert saga._frame.course.recorder.journal._presence is not presence
    store.close()


def test_one_pulse_is_put_for_sagas_that_begin_at_once() -> None:
    counted = Counted(interlock.MemoryBackend())
    barrier = threading.Barrier(8)
    with interlock.sync.Store(counted, agent="a") as store, ThreadPoolExecutor(8) as pool:

        def one(number: int) -> None:
            barrier.wait()
            with store.saga("s", id=f"{number}") as saga:
                saga.step(act, "a", undo=undo)

        list(pool.map(one, range(8)))
    pulses = {key for commit in counted.commits for key in commit.writes if key.startswith(b"\0pulse")}
    assert len(pulses) == 1


def test_a_pulse_that_was_lost_is_put_again() -> None:
    store, other = new_stores(2)
    with store.saga("s", id="1") as saga:
        saga.step(act, "a", undo=undo)
        presence = saga._frame.course.recorder.journal._presence
        ledger = Ledger(other._engine)
        step(ledger.commit(
            {presence.key: Delete()}, {presence.key: presence._version}, agent="crash", quiet=True
        ))  # fmt: skip
        step(presence.renew(store._engine.locking.ledger))
        with pytest.raises(LeaseUnavailableError), ThreadPoolExecutor(1) as pool:
            pool.submit(other.saga("s", id="1").__enter__).result()
    store.close()
    other.close()


def test_times_that_are_none_are_refused() -> None:
    (store,) = new_stores()
    for seconds in (0, -1, "1"):
        with pytest.raises(UsageError, match="lease_seconds"), store.saga("s", id="1", lease_seconds=seconds):
            raise AssertionError("the body ran")
    store.close()


def test_two_that_begin_at_the_same_moment() -> None:
    store, other = new_stores(2)
    with ThreadPoolExecutor(1) as pool, pytest.raises(SagaClosedError), store.saga("s", id="1") as saga:

        def rival() -> None:
            with other.saga("s", id="1") as theirs:
                theirs.step(act, "theirs", undo=undo)

        pool.submit(rival).result()
        saga.step(act, "ours", undo=undo)
    assert LOG == ["theirs"]
    store.close()
    other.close()


def test_what_has_ended_needs_no_collector() -> None:
    """A saga is freed when its last reference goes, and is not left to the collector of cycles."""
    (store,) = new_stores()
    freed = []
    gc.disable()
    try:
        for make in (Saga, lambda: store.saga("s", id="1")):
            with make() as saga:
                saga.step(act, "a", undo=undo)
                with saga.savepoint():
                    saga.step(act, "b", undo=undo)
            weakref.finalize(saga._frame.world, freed.append, 1)
            del saga
    finally:
        gc.enable()
    assert len(freed) == 2
    store.close()


def test_plain_data_lies_in_a_page_as_msgpack() -> None:
    plain = (0, {"label": "é", "raw": b"\0", "none": None, "deep": [1, [True, -2.5]]})
    assert kinds.unpack(kinds.pack(plain)) == list(plain)
    large = (1, {"n": 1 << 70})
    assert kinds.unpack(kinds.pack(large)) == large  # in the form of any other value
    with pytest.raises(interlock.ValueRefusedError):
        kinds.pack((0, {"label": "\ud800"}))
    for damaged in (b"", b"\xc1", kinds.pack(plain)[:-1], b"m\xc1", 7, None, "m"):
        (record,) = [Entry((1, 1), codec.freeze(("sagapage", 1, [damaged])), None)]
        with pytest.raises(interlock.BackendCorruptError):
            PAGES.load(record)
    nameless = kinds.pack((1, {"status": "begun", "order": 1}))
    with pytest.raises(interlock.BackendCorruptError, match="has no 'fn'"):
        PAGES.load(Entry((1, 1), codec.freeze(("sagapage", 1, [nameless])), None))


def test_what_a_recorded_step_is_called() -> None:
    assert kinds.label_of(0, {"fn": "shop.orders:Payments.charge"}) == "charge"
    assert kinds.label_of(0, {"fn": "charge"}) == "charge"  # a name that was given
    assert kinds.label_of(0, {"fn": "shop:charge", "label": "pay"}) == "pay"
    assert kinds.label_of("first", {"fn": "shop:charge"}) == "first"
