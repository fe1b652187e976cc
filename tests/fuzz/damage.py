"""Bad inputs by the hundred thousand: samples that Hypothesis has made, damaged by a generator that costs microseconds.

Hypothesis finds the shapes, and takes a good part of a millisecond for each input. What finds the place where a decoder
believes a byte too many is the sheer number of inputs. So each target has some hundred samples, always the same, and
a *batch* is `BATCH` of them with something wrong, drawn from ``random.Random`` of the target's name and the batch's
number: whoever knows the two makes the same inputs again, and

    PYTHONPATH=tests python -m fuzz.damage "a stored value" 17

gives the batch 17 to its target once more. Where a sample is valid, so are most of its parts; that is how far in the
damage gets.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.shapes import Target
from fuzz.targets import TARGETS

BATCH: Final = 200
_SAMPLES: Final = 120
_TEXTS: Final = (
    "\0",
    "\x7f",
    "é",
    "\u2028",
    "😀",
    "'",
    '"',
    "\\",
    "{",
    "[",
    "$",
    "%",
    "/",
    ":",
    "-",
    "9" * 25,
    "1e999",
    ",",
)
_BYTES: Final = (
    b"\xff", b"\x00", b"\x80", b"\x90", b"\xc0", b"\xc1", b"\xc4\xff", b"\xd9\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff", b"\xc9\x00\x00\x00\x01", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8,
    b"\xc7\x0c\xff", b"\xd3\x80" + bytes(7), b"i-", b"m", b"\xed\xa0\x80",
)  # fmt: skip
"""What msgpack, UTF-8 and our own forms take for a beginning: of much that does not follow, of numbers at the edge."""


class FuzzError(Exception):
    """A target has raised what it does not declare; says what to run."""


@functools.cache
def samples(target: Target) -> tuple[Any, ...]:
    """Inputs of a target, the same in every process."""
    found: list[Any] = []

    @seed(0)
    @settings(
        max_examples=_SAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(target.inputs)
    def collect(made: Any) -> None:
        found.append(made)

    collect()
    return tuple(found)


class Damage:
    """Makes inputs out of samples. ``loose``: see `Target`."""

    def __init__(self, dice: random.Random, loose: tuple[Any, ...]) -> None:
        self._dice = dice
        self._loose = loose

    def of(self, value: Any) -> Any:
        """A value with something wrong in it."""
        kind = type(value)
        if kind is bytes:
            return self._bytes(value)
        if kind is str:
            return self._text(value)
        if kind is bool or value is None:
            return value
        if kind is int:
            return self._number(value)
        if kind is list or kind is tuple:
            return self._row(value, kind)
        if kind is dict and value:
            place = self._dice.choice(list(value))
            return {**value, place: self.of(value[place])}
        return value

    def _row(self, row: Any, kind: type) -> Any:
        made = list(row)
        if not made:
            return row
        place = int(self._dice.random() * len(made))
        if kind is list and self._dice.random() < 0.2:
            if self._dice.random() < 0.5:
                del made[place]
            else:
                made.insert(place, self._dice.choice(made))
            return made or row
        if self._loose and self._dice.random() < 0.2:
            made[place] = self._dice.choice(self._loose)
        else:
            made[place] = self.of(made[place])
        return kind(made)

    def _number(self, value: int) -> int:
        draw = self._dice.random()
        if draw < 0.4:
            return value + self._dice.choice((-1, 1))
        if draw < 0.8:
            return value ^ (1 << int(self._dice.random() * 70))
        return -value

    def _bytes(self, raw: bytes) -> bytes:
        dice, made = self._dice, bytearray(raw)
        for _ in range(1 + int(dice.random() * dice.random() * 4)):
            place, draw = int(dice.random() * (len(made) + 1)), dice.random()
            if draw < 0.35 and place < len(made):
                made[place] ^= 1 << int(dice.random() * 8)
            elif draw < 0.5 and place < len(made):
                made[place] = int(dice.random() * 256)
            elif draw < 0.65:
                del made[place : place + 1 + int(dice.random() * 4)]
            elif draw < 0.85:
                made[place:place] = dice.choice(_BYTES)
            elif draw < 0.93:
                made[place:place] = made[: 1 + int(dice.random() * 8)]
            else:
                del made[place:]
        return bytes(made)

    def _text(self, text: str) -> str:
        dice = self._dice
        for _ in range(1 + int(dice.random() * 3)):
            place, draw = int(dice.random() * (len(text) + 1)), dice.random()
            if draw < 0.4:
                text = text[:place] + text[place + 1 + int(dice.random() * 3) :]
            elif draw < 0.8:
                text = text[:place] + dice.choice(_TEXTS) + text[place:]
            elif draw < 0.9:
                text = text[:place] + chr(32 + int(dice.random() * 95)) + text[place + 1 :]
            else:
                text = text[place:] + text[:place]
        return text


def batch(target: Target, number: int) -> Iterator[Any]:
    """The inputs of a batch."""
    dice = random.Random(f"{target.name} {number}")
    known, damage = samples(target), Damage(dice, target.loose)
    for _ in range(BATCH):
        made = dice.choice(known)
        for _ in range(1 + int(dice.random() * 2)):
            made = damage.of(made)
        yield made


def meet_batch(target: Target, number: int) -> int:
    """Give a batch to its target; how many inputs that was. Raises `FuzzError`."""
    count = 0
    for made in batch(target, number):
        count += 1
        try:
            target.meet(made)
        except BaseException as error:
            raise FuzzError(
                f"{target.name}: {error!r} is not declared; the input was {made!r}. Again with: "
                f'PYTHONPATH=tests python -m fuzz.damage "{target.name}" {number}'
            ) from error
    return count


def main(name: str, number: str) -> None:
    """Give one batch to one target."""
    (target,) = (target for target in TARGETS if target.name == name)
    with tempfile.TemporaryDirectory(prefix="interlock-fuzz-") as place, contextlib.chdir(place):
        print(f"{meet_batch(target, int(number))} inputs to {name}: only declared errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
