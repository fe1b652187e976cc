"""What all targets of the fuzzing share: what a target is, random values, and bytes with something wrong in them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(),
        st.binary(), st.decimals(allow_nan=False, allow_infinity=False), st.uuids(), st.dates(), st.times(),
        st.timedeltas(), st.datetimes(), st.datetimes(timezones=st.just(dt.UTC)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)  # fmt: skip


@st.composite
def damaged(draw: Any, whole: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes of which some are changed, cut or put in."""
    raw = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(raw)))
        match draw(st.sampled_from(("change", "cut", "put", "end"))):
            case "change" if place < len(raw):
                raw[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del raw[place : place + draw(st.integers(1, 4))]
            case "put":
                raw[place:place] = draw(st.binary(min_size=1, max_size=4))
            case "end":
                del raw[place:]
    return bytes(raw)


@dataclass(frozen=True)
class Target:
    """Something that takes input from outside, and the errors that it declares.

    ``loose``: what may come in the place of any part of an input; otherwise what is bytes or a text stays so. ``slow``:
    an input takes it milliseconds."""

    name: str
    call: Callable[[Any], object]
    inputs: st.SearchStrategy[Any]
    declared: tuple[type[BaseException], ...]
    loose: tuple[Any, ...] = ()
    slow: bool = False

    def meet(self, made: Any) -> None:
        """Give it an input. Any error that it does not declare is raised."""
        with suppress(*self.declared):
            self.call(made)
