"""Whatever bytes or texts come in, public decoders and parsers answer, or raise the errors that they declare.

``INTERLOCK_FUZZ`` is the number of examples for each target that Hypothesis makes; of damaged samples there are then 25
times as many. The default is for every run of the tests, `make soak` makes inputs for as long as it lasts.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interlock.sync
from fuzz.damage import BATCH, FuzzError, batch, main, meet_batch, samples
from fuzz.targets import TARGETS, Target
from interlock.errors import InterlockError
from soak import usual

EXAMPLES = int(os.environ.get("INTERLOCK_FUZZ") or usual(200, 15))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.parametrize("target", TARGETS, ids=[target.name.replace(" ", "-") for target in TARGETS])
def test_only_declared_errors(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @fuzz
    @given(target.inputs)
    def check(given_input: Any) -> None:
        target.meet(given_input)

    check()


@pytest.mark.parametrize("target", TARGETS, ids=[target.name.replace(" ", "-") for target in TARGETS])
def test_only_declared_errors_from_damaged_samples(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    batches = max(1, EXAMPLES // 200 if target.slow else EXAMPLES // 25)
    assert sum(meet_batch(target, number) for number in range(batches)) == batches * BATCH


def test_a_batch_can_be_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    """By the number that a failure prints, with nothing kept; and a failure prints it."""

    def refuse(made: bytes) -> None:
        if b"\xff" in made:
            raise ZeroDivisionError

    (values,) = (target for target in TARGETS if target.name == "a stored value")
    made = list(batch(values, 7))
    samples.cache_clear()
    assert list(batch(values, 7)) == made
    assert list(batch(values, 8)) != made
    with pytest.raises(FuzzError, match=r"fuzz\.damage .a stored value. 7"):
        meet_batch(replace(values, call=refuse), 7)
    main("a stored value", "7")
    assert capsys.readouterr().out == "200 inputs to a stored value: only declared errors\n"


def test_a_damaged_file_gives_typed_errors(tmp_path: Path) -> None:
    """Any bytes of a SQLite file are changed; whatever is then read and written ends in an answer or a typed error."""
    whole = tmp_path / "whole.db"
    with interlock.sync.open(f"sqlite:///{whole}", agent="test") as store:
        for number in range(30):
            with store.resource("r").session(idempotency_key=f"k{number}") as session:
                session.write(("key", number % 7), {"n": number, "text": "x" * 40})
    image = whole.read_bytes()
    numbers = itertools.count()
    changed = st.tuples(st.integers(0, len(image) - 1), st.integers(0, 255))

    @settings(fuzz, max_examples=max(20, EXAMPLES // 10))
    @given(st.lists(changed, min_size=1, max_size=40), st.booleans())
    def check(changes: list[tuple[int, int]], cut: bool) -> None:
        raw = bytearray(image)
        for place, byte in changes:
            raw[place] = byte
        path = tmp_path / f"damaged{next(numbers)}.db"
        path.write_bytes(raw[: changes[0][0]] if cut else raw)
        try:
            with suppress(InterlockError), interlock.sync.open(f"sqlite:///{path}", agent="test") as store:
                resource = store.resource("r")
                for call in (
                    lambda: list(resource.scan()),
                    lambda: list(resource.history(("key", 1))),
                    lambda: list(store.log.changes()),
                    lambda: resource.run(lambda session: session.write("x", 1)),
                    lambda: store.compact(),
                ):
                    with suppress(InterlockError):
                        call()
        finally:
            for left in tmp_path.glob(f"{path.name}*"):
                left.unlink()

    check()
