"""Spans: whether anything in a range has changed since the snapshot."""

from __future__ import annotations

import pytest

from interlock import codec
from interlock.model import Delete, Merge, Operation, Span, Token
from interlock.testing.conformance.world import EVERYTHING, Subject, World, in_both_worlds, key, put, span

WATCHED = span("b", "d")


def _add(amount: int) -> Merge:
    return Merge((Operation("add", codec.freeze(amount)),))


async def _watched(world: World) -> tuple[Subject, Token]:
    store = world.open()
    await store.commit({key(text): put(1) for text in ("a", "b", "bb", "d", "e")})
    return store, await store.backend.snapshot()


@pytest.mark.parametrize("inside", ["b", "ba", "bb", "c"])
@in_both_worlds
async def test_a_put_inside_a_span_is_a_clash(world: World, inside: str) -> None:
    store, snapshot = await _watched(world)
    reply = await store.commit({key(inside): put(2)}, agent="intruder")
    clashes = await store.refused({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)
    (clash,) = clashes.values()
    assert (clash.key, clash.kind, clash.span) == (key(inside), "range", WATCHED)
    assert clash.current is not None
    assert clash.current.version == reply.version
    assert clash.author is not None
    assert clash.author.agent == "intruder"


@in_both_worlds
async def test_a_delete_inside_a_span_is_a_clash(world: World) -> None:
    store, snapshot = await _watched(world)
    await store.commit({key("bb"): Delete()})
    clashes = await store.refused({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)
    assert clashes[key("bb")].kind == "range"


@in_both_worlds
async def test_a_clear_that_deletes_inside_a_span_is_a_clash(world: World) -> None:
    store, snapshot = await _watched(world)
    await store.commit(clears=(span("bb", "z"),))
    clashes = await store.refused({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)
    assert set(clashes) == {key("bb")}


@in_both_worlds
async def test_a_merge_inside_a_span_is_a_clash_if_it_changes_anything(world: World) -> None:
    store, snapshot = await _watched(world)
    await store.commit({key("b"): _add(0)})
    await store.commit({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)
    await store.commit({key("b"): _add(1)})
    await store.refused({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)


@in_both_worlds
async def test_a_quiet_commit_inside_a_span_is_a_clash(world: World) -> None:
    store, snapshot = await _watched(world)
    await store.commit({key("c"): put(1)}, quiet=True)
    await store.refused({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)
    newer = await store.backend.snapshot()
    await store.commit({key("c"): Delete()}, quiet=True)
    await store.refused({key("x"): put(1)}, spans=(WATCHED,), snapshot=newer)


@pytest.mark.parametrize("outside", ["a", "ab", "d", "e"])
@in_both_worlds
async def test_a_change_outside_a_span_is_none(world: World, outside: str) -> None:
    store, snapshot = await _watched(world)
    await store.commit({key(outside): put(2)})
    await store.commit({key(outside): Delete()})
    await store.commit(clears=(span("d", None), span(None, "b")))
    await store.commit({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)


@in_both_worlds
async def test_an_empty_span_is_watched_too(world: World) -> None:
    store, snapshot = await _watched(world)
    nothing = span("m", "n")
    await store.commit({key("x"): put(1)}, spans=(nothing,), snapshot=snapshot)
    await store.commit({key("mm"): put(1)})
    clashes = await store.refused({key("x"): put(2)}, spans=(nothing,), snapshot=snapshot)
    assert clashes[key("mm")].span == nothing


@in_both_worlds
async def test_an_unlisted_entry_is_in_no_span(world: World) -> None:
    store, snapshot = await _watched(world)
    await store.commit({key("ba"): put(1, listed=False)})
    await store.commit({key("ba"): put(2, listed=False)})
    await store.commit({key("ba"): Delete()})
    await store.commit({key("x"): put(1)}, spans=(WATCHED,), snapshot=snapshot)


@in_both_worlds
async def test_what_a_commit_writes_itself_is_no_clash(world: World) -> None:
    store, snapshot = await _watched(world)
    await store.commit({key("b"): put(2), key("c"): put(2)}, spans=(WATCHED,), clears=(WATCHED,), snapshot=snapshot)
    assert await store.listing(where=WATCHED) == {key("b"): 2, key("c"): 2}


@in_both_worlds
async def test_what_happened_before_the_snapshot_is_no_clash(world: World) -> None:
    store, old = await _watched(world)
    await store.commit({key("b"): put(2), key("c"): put(2), key("bb"): Delete()})
    snapshot = await store.backend.snapshot()
    await store.commit({key("x"): put(1)}, spans=(WATCHED, EVERYTHING), snapshot=snapshot)
    await store.refused({key("x"): put(1)}, spans=(WATCHED,), snapshot=old)


@in_both_worlds
async def test_each_changed_span_is_named(world: World) -> None:
    store, snapshot = await _watched(world)
    await store.commit({key("b"): put(2), key("e"): put(2)})
    spans = (span("a", "b"), span("b", "c"), span("c", "d"), span("e", None))
    clashes = await store.refused({key("x"): put(1)}, spans=spans, reads={key("q"): (1, 1)}, snapshot=snapshot)
    assert {name: clash.span for name, clash in clashes.items()} == {
        key("b"): spans[1], key("e"): spans[3], key("q"): None,
    }  # fmt: skip


@pytest.mark.parametrize(("in_span", "commits"), [(2, 400), (2000, 3)])
@in_both_worlds
async def test_a_span_is_judged_right_whatever_it_costs(world: World, in_span: int, commits: int) -> None:
    store = world.open()
    watched = Span(key("w", 0), key("w", 1 << 20))
    await store.commit({key("w", number): put(0) for number in range(in_span)})
    await store.commit({key("v"): put(0), key("x"): put(0)})
    snapshot = await store.backend.snapshot()
    for number in range(commits):
        await store.commit({key("v"): put(number), key("x"): put(number), key("z", number): put(0)}, durable=False)
    await store.commit({key("result"): put(1)}, spans=(watched,), snapshot=snapshot)
    await store.commit({key("w", in_span // 2): put(1)})
    clashes = await store.refused({key("result"): put(2)}, spans=(watched,), snapshot=snapshot)
    assert set(clashes) == {key("w", in_span // 2)}
