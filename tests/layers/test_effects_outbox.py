"""Effects that are staged in a session: committed with it or not at all, dispatched in order, tried again, parked."""

from __future__ import annotations

from typing import Any

import pytest

from cases.faults import Counted
from cases.support import World, everywhere, increment
from interlock import (
    CANNOT_TELL,
    NOT_HAPPENED,
    EffectStatus,
    Happened,
    IdempotencyMismatchError,
    LimitExceededError,
    RetryPolicy,
    UsageError,
    ValueRefusedError,
)
from interlock.layers.effects.journal import Journal
from layers.effects_support import say

AT_ONCE = RetryPolicy(max_attempts=3, base_seconds=0)
ISOLATIONS = ("none", "snapshot", "optimistic", "serializable")


class Post:
    """A handler that notes what it is given, and fails as often as it is told."""

    def __init__(self, name: str, got: list[Any]) -> None:
        self.name = name
        self.got = got
        self.raises: list[BaseException] = []

    async def send(self, payload: Any, idempotency_key: str) -> Any:
        """Returns the length of the list so far."""
        self.got.append((self.name, payload, idempotency_key))
        if self.raises:
            raise self.raises.pop(0)
        return len(self.got)


def handled(store: Any, *names: str, **settings: Any) -> tuple[list[Any], dict[str, Post]]:
    """Handlers of these names, and what they are given."""
    got: list[Any] = []
    posts = {name: Post(name, got) for name in names}
    for name, post in posts.items():
        store.effects.handler(name, post.send, **{"retry": AT_ONCE, **settings})
    return got, posts


def counts(done: Any) -> dict[str, int]:
    """What is not 0 in a report."""
    return {name: getattr(done, name) for name in type(done).__slots__ if getattr(done, name)}


@everywhere
async def test_an_effect_is_committed_with_the_state_and_dispatched_after_it(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    for isolation in ISOLATIONS:
        key = f"order {isolation}"
        async with stock.session(isolation=isolation, agent="buyer") as session:
            await session.write("sku", 1)
            await session.stage("email", {"to": "ann"}, key=key)
            assert await store.effects.get(key) is None
        effect = await store.effects.get(key)
        assert (effect.status, effect.payload, effect.agent) == (EffectStatus.PENDING, {"to": "ann"}, "buyer")
        assert effect.effect == effect.operation == "email"
    got, _ = handled(store, "email")
    assert counts(await store.effects.dispatch(limit=1)) == {"succeeded": 1}
    assert counts(await store.effects.dispatch()) == {"succeeded": 3}
    assert counts(await store.effects.dispatch()) == {}
    assert sorted(key for _, _, key in got) == sorted(f"order {isolation}" for isolation in ISOLATIONS)
    assert {each.status for each in await store.effects.list()} == {EffectStatus.SUCCEEDED}
    assert (await store.effects.get(got[0][2])).result == 1


@everywhere
async def test_what_is_rolled_back_is_not_staged(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    got, _ = handled(store, "email")

    class Stop(Exception):
        pass

    with pytest.raises(Stop):
        async with stock.session() as session:
            await session.stage("email", 1, key="a")
            raise Stop
    async with stock.session() as session:
        await session.stage("email", 2, key="b")
        with pytest.raises(Stop):
            with session.savepoint():
                await session.stage("email", 3, key="c")
                raise Stop
        with session.savepoint():
            await session.stage("email", 4, key="d")
    await store.effects.dispatch()
    assert [payload for _, payload, _ in got] == [2, 4]


@everywhere
async def test_a_read_only_session_with_a_staged_effect_commits(world: World) -> None:
    store = world.open()
    stock = store.resource("stock")
    await stock.run(increment)
    before = await store.log.head()
    async with stock.session() as session:
        assert await session.read("n") == 1
        await session.stage("email", 1, key="a")
    changes = [change async for change in store.log.changes(before)]
    assert [list(change.reads) for change in changes] == [[("stock", "n")]]
    async with store.session() as session:
        await session.stage("email", 1, key="b")
    assert [each.key for each in await store.effects.list(EffectStatus.PENDING)] == ["a", "b"]


@everywhere
async def test_the_feed_names_the_effects_of_a_commit(world: World) -> None:
    store = world.open()
    cursor = await store.log.head()
    async with store.resource("stock").session(run_id="run 7") as session:
        await session.write("sku", 1)
        await session.stage("email", {"to": "ann"}, key="order-1")
        await session.stage("sms", None, key="order-1")
    async with store.resource("stock").session() as session:
        await session.write("sku", 2)
    changes = [change async for change in store.log.changes(cursor)]
    assert [set(change.effects) for change in changes] == [{("email", "order-1"), ("sms", "order-1")}, set()]
    assert changes[0].run_id == "run 7"
    assert set(changes[0].writes) == {("stock", "sku")}


@everywhere
async def test_attempts_that_lose_stage_nothing(world: World) -> None:
    store, rival = world.open(), world.open()
    stock = store.resource("stock")
    tries: list[int] = []

    async def body(session: Any) -> None:
        await session.stage("email", len(tries), key=f"mail {len(tries)}")
        value = await session.read("n", 0)
        tries.append(value)
        if len(tries) < 3:
            await rival.resource("stock").run(increment, detached=True)
        await session.write("n", value + 1)

    await stock.run(body)
    assert len(tries) == 3
    assert [each.key for each in await store.effects.list()] == ["mail 2"]


@everywhere
async def test_the_same_effect_twice_is_one(world: World) -> None:
    store = world.open()
    got, _ = handled(store, "email", "sms")
    for _ in range(2):
        async with store.session() as session:
            await session.stage("email", {"a": 1, "b": 2}, key="k")
            await session.stage("email", {"b": 2, "a": 1}, key="k")
            await session.stage("sms", {"a": 1, "b": 2}, key="k")
    with pytest.raises(IdempotencyMismatchError):
        async with store.session() as session:
            await session.stage("email", {"a": 2}, key="k")
    with pytest.raises(IdempotencyMismatchError):
        async with store.session() as session:
            await session.stage("email", 1, key="j")
            await session.stage("email", 2, key="j")
    await store.effects.dispatch()
    assert [name for name, _, _ in got] == ["email", "sms"]
    with pytest.raises(UsageError, match="several effects"):
        await store.effects.get("k")
    assert (await store.effects.get("k", effect="sms")).effect == "sms"
    assert await store.effects.get("k", effect="fax") is None


@everywhere
async def test_two_sessions_stage_the_same_at_once(world: World) -> None:
    store = world.open()
    big = "x" * 3000
    for payload, other, wanted in ((1, 1, None), (1, 2, IdempotencyMismatchError), (big, big, interlock_conflict())):
        key = f"k{str(payload)[:1]}{str(other)[:1]}"
        first, second = await store.begin(), await store.begin()
        await first.stage("email", payload, key=key)
        await second.stage("email", other, key=key)
        await second.on(store.resource("stock")).write(key, 1)
        await first.commit()
        if wanted is None:
            await second.commit()
            assert await store.resource("stock").read(key) == 1
        else:
            with pytest.raises(wanted):
                await second.commit()
            assert await store.resource("stock").read(key) is None
    assert len(await store.effects.list()) == 3


def interlock_conflict() -> type[Exception]:
    """What tells a session to run again."""
    from interlock import ConflictError

    return ConflictError


@everywhere
async def test_bad_effects_doom_their_session(world: World) -> None:
    store = world.open()
    for arguments, error in (
        (("", 1, "k"), UsageError),
        (("email", 1, " "), UsageError),
        (("email", 1, "k" * 256), LimitExceededError),
        (("email", object(), "k"), ValueRefusedError),
    ):
        effect, payload, key = arguments
        session = await store.begin()
        with pytest.raises(error):
            await session.stage(effect, payload, key=key)
        with pytest.raises(error):
            await session.commit()
    ended = await store.begin()
    await ended.rollback()
    with pytest.raises(UsageError):
        await ended.stage("email", 1, key="k")
    with pytest.raises(UsageError, match="cannot be called"):
        store.effects.handler("email", say)
        store.effects.handler("email", two)
    with pytest.raises(UsageError):
        store.effects.handler("", say)
    with pytest.raises(UsageError):
        store.effects.handler("email", say, verify=5)
    with pytest.raises(UsageError):
        store.effects.handler("email", say, retry=5)
    with pytest.raises(UsageError):
        await store.effects.dispatch(limit=0)
    assert await store.effects.list() == []


def two(one: Any, other: Any) -> None:
    """Not a handler: it takes two arguments."""


@everywhere
async def test_effects_of_one_key_go_in_the_order_of_their_commits(world: World) -> None:
    store = world.open()
    names = ["z", "m", "a", "k", "b"]
    got, posts = handled(store, *names)
    for name in names[:3]:
        async with store.session() as session:
            await session.stage(name, name, key="order")
    async with store.session() as session:
        await session.stage("k", "k", key="order")
        await session.stage("b", "b", key="order")
    posts["m"].raises = [RuntimeError("not yet")]
    done = await store.effects.dispatch()
    assert counts(done) == {"succeeded": 1, "retrying": 1, "waiting": 3}
    assert counts(await store.effects.dispatch()) == {"succeeded": 4}
    assert [name for name, _, _ in got] == ["z", "m", "m", "a", "k", "b"]


@everywhere
async def test_without_a_pause_an_effect_is_due_at_once_however_long_its_reading_took(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.open()
    got, posts = handled(store, "a")
    async with store.session() as session:
        await session.stage("a", 1, key="order")
    posts["a"].raises = [ValueError("no")]
    moment = Journal.moment
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "moment", lambda journal: tuple(each - 5.0 for each in moment(journal)))
        assert counts(await store.effects.dispatch()) == {"retrying": 1}
    assert counts(await store.effects.dispatch()) == {"succeeded": 1}
    assert len(got) == 2


@everywhere
async def test_a_poison_message_is_parked_and_those_behind_it_go_on(world: World) -> None:
    store = world.open()
    got, posts = handled(store, "a", "b")
    async with store.session() as session:
        await session.stage("a", 1, key="order")
        await session.stage("b", 2, key="order")
    posts["a"].raises = [ValueError(f"no {number}") for number in range(3)]
    for _ in range(2):
        assert counts(await store.effects.dispatch()) == {"retrying": 1, "waiting": 1}
    assert counts(await store.effects.dispatch()) == {"failed": 1, "succeeded": 1}
    effect = await store.effects.get("order", effect="a")
    assert (effect.status, effect.error, effect.attempts) == (EffectStatus.FAILED, "ValueError: no 2", 3)
    assert counts(await store.effects.dispatch()) == {}
    await store.effects.resolve("order", EffectStatus.PENDING, effect="a")
    assert counts(await store.effects.dispatch()) == {"succeeded": 1}
    assert [name for name, _, _ in got] == ["a", "a", "a", "b", "a"]


@everywhere
async def test_staging_a_parked_effect_again_tries_it_again(world: World) -> None:
    store = world.open()
    got, posts = handled(store, "a", retry=RetryPolicy(max_attempts=1))
    posts["a"].raises = [ValueError()]
    for wanted in ({"failed": 1}, {"succeeded": 1}):
        async with store.session() as session:
            await session.stage("a", 1, key="k")
        assert counts(await store.effects.dispatch()) == wanted
    assert len(got) == 2


@everywhere
async def test_the_next_attempt_has_its_time(world: World) -> None:
    store = world.open()
    got, posts = handled(store, "a", retry=RetryPolicy(base_seconds=5e6, cap_seconds=1e8))
    async with store.session() as session:
        await session.stage("a", 1, key="k")
    posts["a"].raises = [ValueError("no")]
    assert counts(await store.effects.dispatch()) == {"retrying": 1}
    effect = await store.effects.get("k")
    assert (effect.status, effect.error) == (EffectStatus.PENDING, "ValueError: no")
    assert effect.due_at > effect.updated_at
    other = world.open()
    handled(other, "a")
    assert counts(await other.effects.dispatch()) == {"waiting": 1}
    assert len(got) == 1


@everywhere
async def test_without_a_handler_an_effect_waits_for_a_process_that_has_one(world: World) -> None:
    store = world.open()
    handled(store, "b")
    async with store.session() as session:
        await session.stage("a", 1, key="order")
        await session.stage("b", 1, key="order")
        await session.stage("b", 1, key="other")
    assert counts(await store.effects.dispatch()) == {"unhandled": 1, "waiting": 1, "succeeded": 1}
    got, _ = handled(store, "a")
    assert counts(await store.effects.dispatch()) == {"succeeded": 2}
    assert len(got) == 1


@everywhere
async def test_an_unknown_effect_with_a_probe_is_not_repeated_blindly(world: World) -> None:
    store = world.open()
    for key, answer, wanted in (
        ("a", Happened("then"), {"succeeded": 1}),
        ("b", NOT_HAPPENED, {"succeeded": 1}),
        ("c", CANNOT_TELL, {"unknown": 1}),
    ):
        got, posts = handled(store, key, verify=say(answer))
        async with store.session() as session:
            await session.stage(key, 1, key=key)
            await session.stage("behind", 1, key=key)
        posts[key].raises = [TimeoutError()]
        assert counts(await store.effects.dispatch(limit=1))["unknown"] == 1
        store.effects.handler("behind", posts[key].send)
        assert (await store.effects.get(key, effect=key)).status is EffectStatus.UNKNOWN
        done = counts(await store.effects.dispatch())
        assert done.pop("waiting", 0) == (1 if answer is CANNOT_TELL else 0)
        assert done == (wanted if answer is CANNOT_TELL else {"succeeded": 2})
        assert len(got) == {"a": 2, "b": 3, "c": 1}[key]
        if answer is CANNOT_TELL:
            effect = await store.effects.get(key, effect=key)
            assert (effect.status, effect.error) == (EffectStatus.UNKNOWN, "TimeoutError; verify cannot tell")
            await store.effects.resolve(key, EffectStatus.SUCCEEDED, 5, effect=key)
            assert counts(await store.effects.dispatch()) == {"succeeded": 1}


@everywhere
async def test_without_a_probe_the_unknown_is_executed_again(world: World) -> None:
    store = world.open()
    got, posts = handled(store, "a")
    async with store.session() as session:
        await session.stage("a", 1, key="k")
    posts["a"].raises = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        await store.effects.dispatch()
    assert (await store.effects.get("k")).status is EffectStatus.UNKNOWN
    assert counts(await store.effects.dispatch()) == {"succeeded": 1}
    assert got == [("a", 1, "k")] * 2


@everywhere
async def test_reconcile_asks_the_probe_of_the_handler(world: World) -> None:
    store = world.open()
    got, posts = handled(store, "a", verify=say(NOT_HAPPENED))
    async with store.session() as session:
        await session.stage("a", 1, key="k")
    posts["a"].raises = [TimeoutError()]
    await store.effects.dispatch()
    report = await store.effects.reconcile()
    assert report.not_happened == [("k", "a")]
    assert (await store.effects.get("k")).status is EffectStatus.PENDING
    assert counts(await store.effects.dispatch()) == {"succeeded": 1}
    assert len(got) == 2


@everywhere
async def test_a_result_of_a_handler_that_cannot_be_stored_is_left_out(world: World) -> None:
    store = world.open()

    async def send(payload: Any) -> Any:
        return object()

    store.effects.handler("a", send)
    async with store.session() as session:
        await session.stage("a", 1, key="k")
    assert counts(await store.effects.dispatch()) == {"succeeded": 1}
    effect = await store.effects.get("k")
    assert (effect.status, effect.result) == (EffectStatus.SUCCEEDED, None)
    assert "could not be stored" in effect.error


@everywhere
async def test_many_effects_many_dispatchers_each_once(world: World) -> None:
    stores = [world.open() for _ in range(3)]
    async with stores[0].session() as session:
        for number in range(230):
            await session.stage("a", number, key=f"k{number:03}")
            await session.stage("b", number, key=f"k{number:03}")
    got: list[Any] = []
    for store in stores:
        for name in "ab":
            store.effects.handler(name, Post(name, got).send)

    async def job(number: int) -> Any:
        return await stores[number].effects.dispatch()

    reports = world.together(3, job)
    assert sum(report.succeeded for report in reports) + (await stores[0].effects.dispatch()).succeeded == 460
    assert len(got) == 460
    for number in range(230):
        assert [name for name, payload, _ in got if payload == number] == ["a", "b"]


@everywhere
async def test_what_an_effect_costs(world: World) -> None:
    counted = Counted(world.backend())
    store = world.over(counted)
    handled(store, "email")
    stock = store.resource("stock")
    await stock.run(increment)
    counted.commits.clear()
    async with stock.session() as session:
        await session.write("n", 5)
        await session.stage("email", 1, key="k")
    assert len(counted.commits) == 1
    await store.effects.dispatch()
    assert [commit.durable for commit in counted.commits] == [True, True, True]
