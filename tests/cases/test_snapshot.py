"""Cases of kind snapshot: a state is put back as it was, in place, or it is said what could not be."""

from __future__ import annotations

import collections
import io
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pydantic
import pytest

from interlock import Saga, snapshot


class Client:
    """Something with a connection."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()
        self.calls = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it."""
        self.buffer.close()


def test_R099_what_cannot_be_copied_is_kept_by_reference_and_named() -> None:
    generator = (number for number in range(3))
    state: dict[str, Any] = {
        "tools": [threading.Lock(), {"client": Client()}],
        "stream": generator,
        "file": io.StringIO("text"),
        "n": 1,
    }
    with pytest.raises(LookupError), Saga(state) as saga:
        state["n"] = 2
        state["tools"].append("more")
        state["tools"][1]["client"].calls += 1
        del state["stream"]
        raise LookupError
    assert state["n"] == 1
    assert len(state["tools"]) == 2
    assert state["stream"] is generator
    assert state["tools"][1]["client"].calls == 1  # a client is not ours to turn back
    assert set(saga.report.kept) == {
        "$.tools[0] (lock)",
        "$.tools[1].client (Client)",
        "$.stream (generator)",
        "$.file (StringIO)",
    }


def test_R100_a_second_restore_gives_the_original_again() -> None:
    state = {"items": [1, 2], "deep": {"x": [0]}}
    taken = snapshot(state)
    for _ in range(3):
        state["items"].append(3)
        state["deep"]["x"][0] = 9
        state["new"] = []
        taken.restore()
        assert state == {"items": [1, 2], "deep": {"x": [0]}}
        assert taken.diff() == []


class Names(list[str]):
    """A list with something on it."""

    owner: Any


class Node:
    """Part of a cycle."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer: Node | None = None


def test_R102_aliases_cycles_and_classes_stay() -> None:
    one, two, names = Node("one"), Node("two"), Names(["a"])
    one.peer, two.peer, names.owner = two, one, one
    state: Any = {"a": [1], "one": one, "names": names, "tuple": ([2], one)}
    state["b"], state["self"] = state["a"], state
    taken = snapshot(state)
    alias = state["a"]
    state["b"] = [1]
    alias.append(5)
    one.peer, names.owner = None, None
    names.append("b")
    state["tuple"][0].append(3)
    del state["self"]
    taken.restore()
    assert state["a"] is state["b"] is alias == [1]
    assert state["self"] is state
    assert one.peer is two
    assert two.peer is one
    assert type(names) is Names
    assert names == ["a"]
    assert names.owner is one
    assert state["tuple"] == ([2], one)


class Odd:
    """Its == is of no use."""

    def __init__(self) -> None:
        self.value = 1

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def test_R105_nothing_is_compared_by_the_programs_own_equality() -> None:
    array, odd = np.arange(4.0), Odd()
    state: dict[str, Any] = {"array": array, "nan": float("nan"), "odd": odd, "objects": np.array([[1], None], object)}
    taken = snapshot(state)
    assert taken.diff() == []
    assert not taken.changed()
    with pytest.raises(LookupError), Saga(state, invariants=[lambda state: state["array"].sum() >= 0]) as saga:
        saga.step(array.fill, 7)
        odd.value = 2
        state["nan"] = float("nan")
        assert set(taken.diff()) == {
            "$.array: array([0., 1., 2., 3.]) -> array([7., 7., 7., 7.])",
            "$.odd.value: 1 -> 2",
        }
        raise LookupError
    assert array.tolist() == [0, 1, 2, 3]
    assert state["array"] is array
    assert odd.value == 1


@dataclass(slots=True)
class Slotted:
    """A dataclass without a dict."""

    n: int
    items: list[int] = field(default_factory=list)
    late: Any = field(init=False)


@dataclass(frozen=True)
class Frozen:
    """It cannot be changed, what it holds can."""

    items: list[int]


class Model(pydantic.BaseModel):
    """Private and extra attributes."""

    model_config = pydantic.ConfigDict(extra="allow")
    n: int
    _secret: list[int] = pydantic.PrivateAttr(default_factory=list)


def test_R106_slots_private_and_extra_attributes_come_back() -> None:
    slotted, frozen, model = Slotted(1), Frozen([1]), Model.model_validate({"n": 1, "extra": [1]})
    queue, default = collections.deque([1, 2, 3], maxlen=3), collections.defaultdict(list, {"a": [1]})
    ordered = collections.OrderedDict(a=1, b=2)
    state = [slotted, frozen, model, queue, default, ordered, {3, 4}]
    taken = snapshot(state)
    slotted.n, slotted.late = 2, "set now"
    slotted.items.append(1)
    frozen.items.append(2)
    object.__setattr__(frozen, "items", [9])
    model.n = 2
    model.extra.append(2)  # type: ignore[attr-defined]
    model.more = 1  # type: ignore[attr-defined]
    model._secret.append(1)
    queue.append(4)
    default["b"].append(2)
    ordered.move_to_end("a")
    state[6].add(5)  # type: ignore[union-attr]
    taken.restore()
    assert (slotted.n, slotted.items, hasattr(slotted, "late")) == (1, [], False)
    assert frozen.items == [1]
    assert (model.n, model.extra, model._secret) == (1, [1], [])  # type: ignore[attr-defined]
    assert model.model_extra == {"extra": [1]}
    assert model.model_fields_set == {"n", "extra"}
    assert list(queue) == [1, 2, 3]
    assert default == {"a": [1]}
    assert list(ordered) == ["a", "b"]
    assert state[6] == {3, 4}
