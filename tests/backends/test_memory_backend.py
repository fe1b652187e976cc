"""What the memory backend promises beyond the contract of the port: names, forks, clocks, interrupts, and leaving
nothing behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import linecache
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import interlock.backends.memory
from interlock import codec
from interlock.backends.memory import MemoryBackend
from interlock.errors import UnsupportedError, UsageError
from interlock.model import CommitRequest, Delete, Entry, Merge, Operation, Settled, Token
from interlock.ports import Backend, direct_way
from interlock.testing.conformance.world import EVERYTHING, Subject, key, new_transaction, put, span, step, thawed

_names = (f"test-{number}" for number in itertools.count())


def _add(amount: int, floor: int | None = None) -> Merge:
    return Merge((Operation("add", codec.freeze(amount), None if floor is None else codec.freeze(floor)),))


class Clock:
    """Time that the test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# -- names -------------------------------------------------------------------------------------------------------------
def test_a_name_is_shared_in_the_process_and_outlives_those_who_close() -> None:
    name = next(_names)
    first, second = Subject(MemoryBackend(name)), Subject(MemoryBackend(name))
    step(first.commit({key("a"): put(1)}))
    assert step(second.value(key("a"))) == 1
    step(first.backend.close())
    with pytest.raises(UsageError):
        step(first.value(key("a")))
    step(second.commit({key("a"): put(2)}))
    step(second.backend.close())
    del first, second
    gc.collect()
    assert step(Subject(MemoryBackend(name)).value(key("a"))) == 2


def test_stores_without_a_name_and_with_other_names_are_apart() -> None:
    stores = [Subject(MemoryBackend(name)) for name in (None, None, next(_names), next(_names))]
    step(stores[0].commit({key("a"): put(1)}))
    assert [step(store.value(key("a"))) for store in stores] == [1, None, None, None]
    tokens = [step(store.backend.snapshot()) for store in stores]
    assert len({token.store for token in tokens}) == 4


def test_closing_a_leaf_leaves_other_objects_of_that_name_alone() -> None:
    name = next(_names)
    store, other = Subject(MemoryBackend(name)), Subject(MemoryBackend(name))
    step(store.backend.blocking().close())
    with pytest.raises(UsageError):
        step(store.backend.snapshot())
    with pytest.raises(UsageError):
        store.backend.blocking()
    assert step(other.value(key("a"))) is None


def test_a_memory_store_is_not_pickled() -> None:
    with pytest.raises(UnsupportedError) as caught:
        pickle.dumps(MemoryBackend(next(_names)))
    assert caught.value.capability == "processes"


def test_it_says_its_name() -> None:
    assert repr(MemoryBackend()) == "MemoryBackend()"
    assert repr(MemoryBackend("shop")) == "MemoryBackend('shop')"


# -- forks -------------------------------------------------------------------------------------------------------------
def _in_child(check: Callable[[], bool]) -> bool:
    """Fork, run the check in the child, and say what came of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:
        good = False
        try:
            good = check()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_is_refused_by_every_call() -> None:
    store = Subject(MemoryBackend(next(_names)))
    token = step(store.commit({key("a"): put(1)})).token
    request = step(store.request({key("a"): put(2)}))
    backend = store.backend
    leaf = backend.blocking()
    calls: list[Callable[[], Any]] = [
        backend.snapshot,
        lambda: backend.read([key("a")]),
        lambda: backend.scan(EVERYTHING),
        lambda: backend.commit(request),
        lambda: backend.outcome(1, fence=True),
        lambda: backend.changes(None),
        lambda: backend.wait(token, 0.0),
        lambda: backend.history(key("a")),
        backend.now,
        lambda: backend.compact(0.0),
        leaf.snapshot,
    ]

    def check() -> bool:
        return all(_refusal(call).endswith("open one in the child") for call in calls)

    assert _in_child(check)
    assert step(store.value(key("a"))) == 1


def _refusal(call: Callable[[], Any]) -> str:
    try:
        step(call())
    except UsageError as error:
        return str(error)
    return ""


def test_a_child_opens_a_store_of_its_own_even_while_a_commit_holds_the_lock() -> None:
    name = next(_names)
    backend = MemoryBackend(name)
    step(Subject(backend).commit({key("a"): put(1)}))

    def check() -> bool:
        mine = Subject(MemoryBackend(name))
        step(mine.commit({key("b"): put(2)}))
        return step(mine.listing()) == {key("b"): 2}

    with backend._engine.state.lock:
        assert _in_child(check)
    assert step(Subject(backend).listing()) == {key("a"): 1}


# -- clocks ------------------------------------------------------------------------------------------------------------
def test_the_clock_may_be_given_and_never_runs_backwards() -> None:
    clock = Clock()
    store = Subject(MemoryBackend(clock=clock))
    assert step(store.backend.now()) == 1000.0
    clock.now = 1010.0
    assert step(store.commit({key("a"): put(1)})).at == 1010.0
    clock.now = 900.0
    assert step(store.backend.now()) == 1010.0
    assert step(store.commit({key("a"): put(2)})).at == 1010.0
    assert step(store.backend.read([key("a")])).at == 1010.0
    direct = direct_way(store.backend)
    assert direct is not None
    token = step(store.backend.snapshot())
    with direct.lock:
        reply = direct.put(new_transaction(), True, "a", "s", token, {}, {key("a"): put(3)}, (), None, None, 1)
    assert reply is not None
    assert reply.at == 1010.0


def test_a_named_store_has_one_clock() -> None:
    name, clock = next(_names), Clock()
    MemoryBackend(name, clock=clock)
    MemoryBackend(name, clock=clock)
    MemoryBackend(name)
    with pytest.raises(UsageError):
        MemoryBackend(name, clock=Clock())


def test_entries_expire_by_the_engines_clock() -> None:
    clock = Clock()
    store = Subject(MemoryBackend(clock=clock))
    step(store.commit({key("a"): put(1, ttl_seconds=10.0), key("b"): put(1, ttl_seconds=20.0)}))
    step(store.commit({key("b"): put(2, ttl_seconds=30.0)}))
    assert step(store.backend.compact(0.0)) == 0
    clock.now = 1010.0
    assert step(store.backend.compact(0.0)) == 1
    assert step(store.listing()) == {key("b"): 2}
    clock.now = 1029.9
    assert step(store.backend.compact(0.0)) == 0
    clock.now = 1030.0
    assert step(store.backend.compact(0.0)) == 1
    assert step(store.listing()) == {}
    assert [change.agent for change in step(store.feed())] == ["tester", "tester", "interlock", "interlock"]


# -- reading -----------------------------------------------------------------------------------------------------------
def test_a_copy_of_the_newest_token_shows_the_newest_state() -> None:
    store = Subject(MemoryBackend())
    newest = step(store.commit({key("a"): put(1)})).token
    token = Token(newest.store, newest.incarnation, newest.position)
    assert token is not newest
    reading = step(store.backend.read([key("a"), key("never")], token))
    assert [thawed(entry) for entry in reading.entries] == [1, None]
    assert (reading.token, reading.superseded) == (newest, False)


# -- waiting -----------------------------------------------------------------------------------------------------------
def test_waiting_on_trio() -> None:
    store = Subject(MemoryBackend())

    async def main() -> None:
        token = await store.backend.snapshot()
        assert await store.backend.wait(token, 0.01) is False
        ends: list[bool] = []

        async def wait() -> None:
            ends.append(await store.backend.wait(token, 30.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while not store.backend._engine.state.waiters:  # type: ignore[attr-defined]
                await trio.sleep(0)
            await trio.to_thread.run_sync(lambda: step(store.commit({key("a"): put(1)})))
        assert ends == [True]

    trio.run(main)


def test_one_commit_wakes_everybody_on_every_loop() -> None:
    store = Subject(MemoryBackend())
    state = store.backend._engine.state  # type: ignore[attr-defined]
    token = step(store.backend.snapshot())
    ends: list[bool] = []

    async def wait_in_loop() -> None:
        ends.extend(await asyncio.gather(*[store.backend.wait(token, 30.0) for _ in range(5)]))

    threads = [threading.Thread(target=lambda: asyncio.run(wait_in_loop())) for _ in range(2)]
    leaf = store.backend.blocking()
    threads += [threading.Thread(target=lambda: ends.append(step(leaf.wait(token, 30.0)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(state.waiters) < 12:
        pass
    step(store.commit({key("a"): put(1)}))
    for thread in threads:
        thread.join(30)
    assert ends == [True] * 12
    assert state.waiters == {}


def test_a_cancelled_wait_leaves_no_waiter_behind() -> None:
    store = Subject(MemoryBackend())
    state = store.backend._engine.state  # type: ignore[attr-defined]

    async def main() -> None:
        token = await store.backend.snapshot()
        task = asyncio.create_task(store.backend.wait(token, 30.0))
        await asyncio.sleep(0)
        assert len(state.waiters) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert state.waiters == {}

    asyncio.run(main())


def test_closing_ends_the_waiting_of_that_object_only() -> None:
    name = next(_names)
    mine, other = MemoryBackend(name), MemoryBackend(name)

    async def main() -> None:
        token = await mine.snapshot()
        waits = [asyncio.create_task(backend.wait(token, 30.0)) for backend in (mine, other)]
        await asyncio.sleep(0)
        await mine.close()
        with pytest.raises(UsageError):
            await waits[0]
        assert not waits[1].done()
        await Subject(other).commit({key("a"): put(1)})
        assert await waits[1] is True

    asyncio.run(main())


def test_stepped_callers_take_the_leaf_to_wait() -> None:
    store = Subject(MemoryBackend())
    token = step(store.backend.snapshot())
    with pytest.raises(UsageError, match="no event loop"):
        step(store.backend.wait(token, 0.0))
    assert step(store.backend.blocking().wait(token, 0.0)) is False


# -- leaving nothing behind --------------------------------------------------------------------------------------------
def _compact_all(store: Subject) -> None:
    while step(store.backend.compact(1e12)):
        pass


def test_compaction_leaves_nothing_but_live_entries() -> None:
    store = Subject(MemoryBackend())
    state = store.backend._engine.state  # type: ignore[attr-defined]
    for number in range(50):
        step(store.commit({key("n", number % 5): put(number), key("u", number): put(1, listed=False)}))
        step(store.commit({key("lock", number % 3): put(number)}, quiet=True))
        step(store.commit({key("n", number % 5): Delete(), key("u", number): Delete()}))
        step(store.commit({key("lock", number % 3): Delete()}, quiet=True))
        step(store.backend.outcome(new_transaction(), fence=True))
    step(store.listing())
    step(store.commit({key("kept"): put(1)}))
    _compact_all(store)
    assert list(state.current) == [key("kept")]
    assert not any((state.chains, state.torn, state.log, state.records, state.fences))
    assert list(state.order.walk(EVERYTHING)) == [key("kept")]


def test_refused_commits_leave_nothing_behind() -> None:
    store = Subject(MemoryBackend())
    state = store.backend._engine.state  # type: ignore[attr-defined]
    for number in range(10):
        with pytest.raises(Exception, match="Operation"):
            step(store.commit({key("order", number): put(1), key("stock"): _add(-1, floor=0)}))
        step(store.refused({key("order", number): put(1)}, reads={key("stock"): (1, 1)}))
    assert not any((state.current, state.chains, state.log, state.records, state.order.fresh))


def test_a_long_history_is_trimmed_and_found_fast() -> None:
    store = Subject(MemoryBackend())
    tokens = [step(store.commit({key("a"): put(number)})).token for number in range(3000)]
    assert [step(store.value(key("a"), tokens[number])) for number in (0, 1, 1500, 2998, 2999)] == [
        0,
        1,
        1500,
        2998,
        2999,
    ]
    assert len(step(store.backend.history(key("a"), limit=10_000))) == 3000
    at = step(store.backend.read([])).at
    step(store.backend.compact(at + 1.0, limit=1000))
    assert len(step(store.backend.history(key("a"), limit=10_000))) == 2001
    assert step(store.value(key("a"), tokens[999])) == 999
    assert step(store.backend.outcome(new_transaction(), fence=False))[0] is Settled.UNSEEN


# -- interrupts --------------------------------------------------------------------------------------------------------
_HERE = str(Path(interlock.backends.memory.__file__).parent)


class _Interrupting:
    """Raises KeyboardInterrupt at the nth line that the memory backend runs, as a signal handler might."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self._before: Any = None

    def __enter__(self) -> _Interrupting:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)  # coverage.py's, if it measures

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_HERE) else None

    def _leaves_block(self, frame: FrameType) -> bool:
        """A ``with`` is traced once more before it releases the lock; no signal is ever delivered there."""
        return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and not self._leaves_block(frame):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


def _furnished() -> tuple[Subject, Token]:
    store = Subject(MemoryBackend(clock=itertools.count(1000).__next__))
    step(store.commit({key("a"): put(1), key("b"): put(1), key("n"): put(1), key("c1"): put(1), key("c2"): put(1)}))
    step(store.commit({key("b"): put(2), key("gone"): put(1, ttl_seconds=0.5)}))
    step(store.commit({key("lock"): put(1)}, quiet=True))
    return store, step(store.backend.snapshot())


def _shown(store: Subject) -> dict[str, Any]:
    """Everything that can be seen of a store."""
    names = [key(text) for text in ("a", "b", "n", "c1", "c2", "new", "gone", "lock", "hidden")]
    entries = step(store.backend.read(names)).entries
    return {
        "values": [thawed(entry) for entry in entries],
        "listing": step(store.listing()),
        "history": [[thawed(entry) for entry, _ in step(store.backend.history(name))] for name in names],
        "feed": [sorted(change.writes) for change in step(store.feed())],
        "newest": len({entry.version for entry in entries if entry is not None}),
    }


async def _put_directly(store: Subject) -> None:
    direct = direct_way(store.backend)
    assert direct is not None
    found = direct.look(key("a"), None)
    assert found is not None
    entry, token = found
    writes = {
        key("a"): put(5),
        key("b"): put(5),
        key("new"): put(5),
        key("hidden"): put(1, ttl_seconds=9.0, listed=False),
    }
    with direct.lock:
        reply = direct.put(
            new_transaction(), True, "a", "serializable", token, {key("a"): entry}, writes, (), None, None, 1
        )
    assert reply is not None


_ACTS: dict[str, Callable[[Subject], Any]] = {
    "commit": lambda store: store.commit({key("a"): put(5), key("b"): put(5), key("new"): put(5)}),
    "everything": lambda store: store.commit(
        {
            key("a"): put(9),
            key("n"): _add(1),
            key("b"): Delete(),
            key("hidden"): put(1, listed=False),
            key("new"): _add(3),
        },
        clears=(span("c", "d"),),
        spans=(span("x", "z"),),
        reads={key("gone"): step(store.version(key("gone")))},
    ),
    "direct": _put_directly,
    "quiet": lambda store: store.commit({key("lock"): Delete(), key("a"): put(7), key("new"): put(1)}, quiet=True),
    "expire": lambda store: store.backend.compact(0.0),
}


@pytest.mark.parametrize("act", list(_ACTS))
def test_an_interrupt_at_any_line_leaves_all_or_nothing(act: str) -> None:
    before, token = _furnished()
    untouched = _shown(before)
    step(_ACTS[act](before))
    done = _shown(before)
    assert untouched != done
    seen = []
    for nth in itertools.count(1):
        store, token = _furnished()
        old = step(store.listing(token))
        coroutine = _ACTS[act](store)
        interrupting = _Interrupting(nth)
        try:
            with interrupting:
                step(coroutine)
        except KeyboardInterrupt:
            pass
        shown = _shown(store)
        assert shown in (untouched, done), f"torn by an interrupt at line {nth}"
        seen.append(shown == done)
        if act != "quiet" or shown == untouched:
            assert step(store.listing(token)) == old
        step(store.commit({key("new"): put("next"), key("b"): put("next")}))
        assert step(store.value(key("new"))) == "next"
        if interrupting.left > 0:
            break
    assert seen == sorted(seen), "what was done comes undone"
    assert seen[0] is False
    assert seen[-1] is True


@pytest.mark.parametrize("act", ["commit", "direct", "quiet"])
def test_a_look_in_the_middle_of_a_commit_sees_all_or_nothing_of_it(act: str) -> None:
    """The look takes no lock; so it is made here from every place that a commit may have come to."""
    names = [key(text) for text in ("a", "b", "new", "lock")]
    answered = 0
    for nth in itertools.count(1):
        store, before = _furnished()
        direct = direct_way(store.backend)
        assert direct is not None
        at_first = step(store.backend.read(names)).entries
        interrupting = _Interrupting(nth)
        try:
            with interrupting:
                step(_ACTS[act](store))
        except KeyboardInterrupt:
            pass
        looks = [direct.look(name, None) for name in names]
        early = [direct.look(name, before) for name in names]
        last = step(store.backend.snapshot())
        at_last = step(store.backend.read(names)).entries
        for look, then, now in zip(looks, at_first, at_last, strict=True):
            answered += look is not None
            assert look in (None, (then, before), (now, last))
        for look, then in zip(early, at_first, strict=True):
            assert look in (None, (then, before))
        if interrupting.left > 0:
            assert [look and look[0] for look in looks] == at_last
            break
    assert answered


def test_the_direct_way_says_none_to_what_is_not_for_it() -> None:
    store = Subject(MemoryBackend())
    direct = direct_way(store.backend)
    assert direct is not None
    version = step(store.commit({key("a"): put(1), key("b"): put(1)})).version
    found = direct.look(key("a"), None)
    assert found is not None
    entry, token = found
    assert entry is not None
    assert entry.version == version

    def send(reads: Any, writes: Any, absent: Any = (), transaction: int = 0) -> Any:
        with direct.lock:
            sent = (transaction, False) if transaction else (new_transaction(), True)
            return direct.put(*sent, "a", "s", token, reads, writes, absent, None, None, 1)

    written = {key("b"): put(2)}
    assert send({key("a"): Entry(version, b"i1")}, written) is None
    assert send({key("new"): entry}, written) is None
    assert send({key("b"): None}, written) is None
    assert send({}, written, (key("a"),)) is None
    assert send({}, {key("b"): Delete()}) is None
    assert send({}, {key("b"): put(2), key("n"): _add(1)}) is None
    fenced = new_transaction()
    step(store.backend.outcome(fenced, fence=True))
    assert send({}, written, (), fenced) is None
    assert step(store.value(key("b"))) == 1
    assert [change.version for change in step(store.feed())] == [version]


_ENTRIES: dict[str, Callable[[Subject, Any], Any]] = {
    "by the general way": lambda store, send: step(store.commit({key("b"): put(1)})),
    "unlisted": lambda store, send: step(store.commit({key("b"): put(1, listed=False)})),
    "merged": lambda store, send: step(store.commit({key("b"): _add(1)})),
    "quietly": lambda store, send: step(store.commit({key("b"): put(1)}, quiet=True)),
    "by the direct way": lambda store, send: send({key("b"): put(1)}, ()),
    "over a tombstone": lambda store, send: (
        step(store.commit({key("b"): put(0)})),
        step(store.commit({key("b"): Delete()})),
        send({key("a"): put(1)}, (key("b"),)),
        step(store.commit({key("b"): put(1)})),
    ),
}


@pytest.mark.parametrize("how", list(_ENTRIES))
def test_what_was_absent_is_looked_at_again_once_it_may_be_there(how: str) -> None:
    """The same tuple of absent keys is asked for again and again, and is not looked up each time."""
    store = Subject(MemoryBackend())
    direct = direct_way(store.backend)
    assert direct is not None
    absent = (key("b"), key("c"))

    def send(writes: Any, absent: Any) -> Any:
        with direct.lock:
            token = store.backend._engine.state.token  # type: ignore[attr-defined]
            return direct.put(new_transaction(), True, "a", "s", token, {}, writes, absent, None, None, 1)

    for number in range(3):
        assert send({key("a"): put(number)}, absent) is not None
    _ENTRIES[how](store, send)
    assert send({key("a"): put(9)}, absent) is None
    assert step(store.value(key("a"))) != 9
    step(store.commit({key("b"): Delete()}))
    assert send({key("a"): put(9)}, absent) is not None


def test_transactions_are_found_however_late_somebody_asks() -> None:
    store = Subject(MemoryBackend())
    ids = [new_transaction() for _ in range(6)]
    for number in ids[:3]:
        step(store.commit({key("a"): put(1)}, transaction=number))
    assert step(store.backend.outcome(ids[0], fence=False))[0] is Settled.COMMITTED
    for number in ids[3:]:
        step(store.commit({key("b"): put(1)}, transaction=number))
    assert [step(store.backend.outcome(number, fence=True))[0] for number in ids] == [Settled.COMMITTED] * 6
    assert step(store.backend.outcome(new_transaction(), fence=False))[0] is Settled.UNSEEN


def test_a_transaction_that_is_sent_twice_by_the_direct_way_happens_once() -> None:
    store = Subject(MemoryBackend())
    direct = direct_way(store.backend)
    assert direct is not None
    token, number = step(store.backend.snapshot()), new_transaction()
    sent = number, False, "a", "s", token, {}, {key("a"): put(1)}, (key("b"),), "op", "run", 2
    with direct.lock:
        assert direct.put(*sent) is not None
        assert direct.put(*sent) is None
    settled, change = step(store.backend.outcome(number, fence=True))
    assert settled is Settled.COMMITTED
    assert change is not None
    assert (change.agent, change.operation, change.run_id, change.attempt) == ("a", "op", "run", 2)


def test_a_subclass_or_a_proxy_has_no_direct_way_and_a_closed_store_refuses_it() -> None:
    class Watched(MemoryBackend):
        pass

    class Proxy:
        def __init__(self, inner: MemoryBackend) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    assert direct_way(Watched()) is None
    assert direct_way(Proxy(MemoryBackend())) is None  # type: ignore[arg-type]
    backend = MemoryBackend()
    direct = direct_way(backend)
    assert direct is not None
    token = step(backend.snapshot())
    step(backend.close())
    with pytest.raises(UsageError, match="closed"):
        direct.look(key("a"), None)
    with pytest.raises(UsageError, match="closed"), direct.lock:
        direct.put(new_transaction(), True, "a", "s", token, {}, {key("a"): put(1)}, (), None, None, 1)


_FIRST: dict[str, Callable[[Subject, CommitRequest, Token], Any]] = {
    "read": lambda store, request, before: store.backend.read([key("a")]),
    "scan": lambda store, request, before: store.backend.scan(EVERYTHING),
    "history": lambda store, request, before: store.backend.history(key("a")),
    "changes": lambda store, request, before: store.backend.changes(before),
    "outcome": lambda store, request, before: store.backend.outcome(request.transaction, fence=True),
    "wait": lambda store, request, before: store.backend.blocking().wait(before, 30.0),
    "compact": lambda store, request, before: store.backend.compact(0.0),
    "commit": lambda store, request, before: store.commit({key("b"): put(5)}),
}


@pytest.mark.parametrize("call", list(_FIRST))
def test_whoever_comes_after_an_interrupt_ends_the_commit_first(call: str) -> None:
    """A commit that was noted and not put in place has happened, whatever is asked next."""
    store, before = _furnished()
    state = store.backend._engine.state  # type: ignore[attr-defined]
    request = step(store.request({key("a"): put(5)}))
    for nth in itertools.count(1):
        coroutine = store.backend.commit(request)
        with pytest.raises(KeyboardInterrupt), _Interrupting(nth):
            step(coroutine)
        if state.pending is not None:
            break
    found = step(_FIRST[call](store, request, before))
    assert state.pending is None
    assert step(store.value(key("a"))) == 5
    if call == "outcome":
        assert found[0] is Settled.COMMITTED
    elif call == "changes":
        assert [change.transaction for change in found[0]] == [request.transaction]
    elif call == "wait":
        assert found is True


def test_an_interrupted_compaction_can_be_gone_on_with() -> None:
    for nth in itertools.count(1):
        store, _ = _furnished()
        step(store.commit({key("b"): put(3)}))
        step(store.commit({key("a"): Delete(), key("lock"): Delete()}))
        newest = step(store.backend.snapshot())
        values = step(store.listing(newest, span(None, "g")))
        interrupting = _Interrupting(nth)
        coroutine = store.backend.compact(1e9)
        try:
            with interrupting:
                step(coroutine)
        except KeyboardInterrupt:
            pass
        assert step(store.listing(None, span(None, "g"))) == values
        _compact_all(store)
        state = store.backend._engine.state  # type: ignore[attr-defined]
        assert step(store.listing(None, span(None, "g"))) == values
        assert not any((state.chains, state.torn, state.log, state.records))
        assert set(state.current) == set(step(store.listing()))
        if interrupting.left > 0:
            break


def test_a_wake_up_that_was_interrupted_is_made_up_for_by_the_next_commit() -> None:
    for nth in itertools.count(1):
        store, token = _furnished()
        ends: list[bool] = []
        leaf = store.backend.blocking()

        def wait(leaf: Backend = leaf, token: Token = token, ends: list[bool] = ends) -> None:
            ends.append(step(leaf.wait(token, 30.0)))

        thread = threading.Thread(target=wait)
        thread.start()
        while not ends and not store.backend._engine.state.waiters:  # type: ignore[attr-defined]
            pass
        interrupting = _Interrupting(nth)
        coroutine = store.commit({key("a"): put(5)})
        try:
            with interrupting:
                step(coroutine)
        except KeyboardInterrupt:
            step(store.commit({key("a"): put(6)}))
        thread.join(20.0)
        assert ends == [True], f"nobody is woken after an interrupt at line {nth}"
        if interrupting.left > 0:
            break
