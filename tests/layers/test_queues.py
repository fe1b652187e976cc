"""The table of locks, by properties: never two in each other's way, nobody overtaken, nobody waits for himself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.layers import queues
from interlock.layers.queues import EMPTY, Seat, Table, Target

WHOLE = Target(b"a", b"z")
owners = st.sampled_from(["one", "two", "three", "four"])
letters = st.sampled_from([bytes([letter]) for letter in b"abcdef"])
targets = st.builds(lambda start, wide, shared: Target(start, start + (b"\xff" if wide else b"\0"), shared), letters,
                    st.booleans(), st.booleans())  # fmt: skip
wishes = st.lists(targets, min_size=1, max_size=3)
steps = st.lists(st.tuples(st.sampled_from(["want", "give up", "leave"]), owners, wishes), max_size=25)


def seat_of(table: Table, owner: str) -> Seat:
    return table.seats.get(owner) or Seat(owner, owner, len(owner), 30.0)


def clashing(table: Table) -> bool:
    """Whether two owners hold what cannot be held at once."""
    seats = list(table.seats.values())
    return any(
        one.clashes_with(other)
        for place, seat in enumerate(seats)
        for rival in seats[place + 1 :]
        for one in seat.held
        for other in rival.held
    )


def settle(table: Table) -> Table:
    """Grant whatever can be granted, in the order of the queue."""
    while True:
        waiting = sorted((seat for seat in table.seats.values() if seat.wants), key=lambda seat: seat.turn)
        for seat in waiting:
            if not queues.in_the_way(table, seat.owner, seat.wants):
                table = queues.granted(table, seat, seat.wants, WHOLE)
                break
        else:
            return table


@given(steps)
def test_no_sequence_of_steps_grants_what_clashes(script: list[tuple[str, str, list[Target]]]) -> None:
    table = EMPTY
    for what, owner, wants in script:
        seat = seat_of(table, owner)
        if what == "leave":
            table = table.without([owner])
        elif what == "give up":
            table = queues.given_up(table, owner)
        elif not seat.wants:
            table = queues.queued(table, seat, wants)
        table = settle(table)
        assert not clashing(table)
        assert queues.from_plain(table.plain()) == table
        for each in table.seats.values():
            assert each.held or each.wants, "an empty seat is left over"
            if each.wants:
                assert each.owner not in [blocker.owner for blocker in queues.in_the_way(table, each.owner, each.wants)]


@given(wishes, wishes, wishes)
def test_who_comes_later_does_not_overtake(held: list[Target], first: list[Target], later: list[Target]) -> None:
    table = queues.granted(EMPTY, seat_of(EMPTY, "one"), held, WHOLE)
    table = queues.queued(table, seat_of(table, "two"), first)
    ahead = [seat.owner for seat in queues.in_the_way(table, "three", later)]
    assert ("two" in ahead) == any(a.clashes_with(b) for a in first for b in later)


@given(wishes, wishes)
def test_everything_wanted_is_covered_once_granted(one: list[Target], two: list[Target]) -> None:
    table = queues.granted(EMPTY, seat_of(EMPTY, "one"), one, WHOLE)
    table = queues.granted(table, seat_of(table, "one"), two, WHOLE)
    assert not queues.missing(table, "one", [*one, *two])


def test_a_shared_lock_can_be_made_exclusive_past_those_who_wait_for_it() -> None:
    key = Target(b"a", b"a\0")
    read = Target(b"a", b"a\0", shared=True)
    table = queues.granted(EMPTY, seat_of(EMPTY, "one"), [read], WHOLE)
    table = queues.queued(table, seat_of(table, "two"), [key])
    assert queues.in_the_way(table, "one", [key]) == []
    assert [seat.owner for seat in queues.in_the_way(table, "two", [key])] == ["one"]
    assert [seat.owner for seat in queues.in_the_way(table, "three", [read])] == ["two"]


def test_too_many_targets_become_one() -> None:
    many = [Target(b"b%d" % number, b"b%d\0" % number, shared=True) for number in range(queues.MANY_TARGETS + 1)]
    table = queues.granted(EMPTY, seat_of(EMPTY, "one"), many, WHOLE)
    assert table.seats["one"].held == (Target(WHOLE.start, WHOLE.stop, shared=True),)


def test_rings() -> None:
    assert queues.ring({"a": ["b"], "b": ["c"], "c": ["a"]}, "a") == ["a", "b", "c"]
    assert queues.ring({"a": ["b", "c"], "b": [], "c": ["d"], "d": ["a"]}, "a") == ["a", "c", "d"]
    assert queues.ring({"a": ["b"], "b": ["c"], "c": ["b"]}, "a") == []
    assert queues.ring({}, "a") == []


def test_condemned_and_pardoned() -> None:
    key = Target(b"a", b"a\0")
    table = queues.queued(EMPTY, seat_of(EMPTY, "one"), [key])
    assert queues.condemned(table, "one", ("a", "b")).seats["one"].victim == ("a", "b")
    assert queues.given_up(queues.condemned(table, "one", ("a", "b")), "one") == Table({}, 1)
    assert queues.given_up(table, "nobody") is table


SEAT = ["owner", "agent", "1f", 5.0, [[b"a", b"b", True]], [], 1, []]


@pytest.mark.parametrize(
    "damaged",
    [
        7, [], [1], [None, [SEAT]], [1, [SEAT[:-1]]], [1, [[7, *SEAT[1:]]]], [1, [[*SEAT[:2], 31, *SEAT[3:]]]],
        [1, [[*SEAT[:2], "x", *SEAT[3:]]]], [1, [[*SEAT[:4], [[b"a", 7, True]], *SEAT[5:]]]],
        [1, [[*SEAT[:4], [[b"a"]], *SEAT[5:]]]], [1, [[*SEAT[:6], None, []]]], [1, [[*SEAT[:7], [7]]]],
    ],
)  # fmt: skip
def test_a_damaged_table_is_not_gone_on_with(damaged: Any) -> None:
    assert queues.from_plain([1, [SEAT]]).seats["owner"].held == (Target(b"a", b"b", True),)
    with pytest.raises(ValueError):
        queues.from_plain(damaged)
