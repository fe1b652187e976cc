"""Whatever bytes or texts come in, public decoders and parsers answer, or raise the errors that they declare.

``INTERLOCK_FUZZ`` is the number of examples for each target; the default is for every run of the tests, `make soak`
asks for many more. Inputs are random, and valid ones with something changed, cut or put in, which come further in.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import interlock.sync
from interlock import codec, keys, merges
from interlock.cli import forms
from interlock.core import idempotency
from interlock.core.cursors import cursor_of, token_of
from interlock.demo.orders import COLUMNS, OrdersFileError, read_export, read_stock
from interlock.errors import BackendCorruptError, InterlockError
from interlock.model import BoundBroken, Entry, MergeRefused, Operation, Token
from interlock.opening import backend_for
from interlock.testing.histories.records import load

EXAMPLES = int(os.environ.get("INTERLOCK_FUZZ", "200"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)

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
EXACT = (
    type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset, Decimal, UUID, dt.date, dt.time,
    dt.datetime, dt.timedelta,
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


frozen = values.map(codec.freeze)
user_keys = st.one_of(
    st.text(min_size=1, max_size=20), st.lists(st.one_of(st.text(max_size=9), st.integers()), min_size=1).map(tuple)
)
stored_keys = user_keys.map(keys.encode)


@dataclass(frozen=True)
class Target:
    """Something that takes input from outside, and the errors that it declares."""

    name: str
    call: Callable[[Any], object]
    inputs: st.SearchStrategy[Any]
    declared: tuple[type[BaseException], ...]


def _thaw(raw: bytes) -> None:
    assert isinstance(codec.thaw(raw), EXACT)


def _round_trip(value: Any) -> None:
    found = codec.thaw(codec.freeze(value))
    assert type(found) is type(value)
    assert found == value


def _open(url: str) -> None:
    backend_for(url, {})


def _merge(given: tuple[bytes, str, bytes, bytes | None]) -> None:
    before, kind, operand, floor = given
    merges.apply(before, (Operation(kind, operand, floor),))


def _record(raw: bytes) -> None:
    idempotency.read_record(Entry((1, 1), raw), 0.0, None)


def _history(text: str) -> None:
    with suppress(FileExistsError):
        Path("fuzzed").mkdir()
    path = Path("fuzzed/history.jsonl")
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    load(path)


def _orders(content: bytes) -> None:
    read_export(content, {"a"})


records = st.tuples(st.binary(max_size=16), st.binary(min_size=16, max_size=16), values, st.booleans()).map(
    codec.freeze
)
tokens = st.builds(
    Token, st.integers(0, 2**63), st.integers(0, 2**31), st.integers(0, 2**63), st.binary(max_size=8)
).map(cursor_of)
anything = st.one_of(st.binary(max_size=40), damaged(frozen))
texts = st.text(max_size=60)
urls = st.one_of(
    texts,
    st.tuples(st.sampled_from(("memory", "sqlite", "postgresql", "redis", "rediss", "etcd", "MEMORY")), texts).map(
        "://".join
    ),
)
json_texts = st.one_of(
    texts, values.map(lambda value: forms.json_text(forms.to_form(value))),
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | texts, lambda inner: st.lists(inner) |
                 st.dictionaries(st.sampled_from(("$set", "$bytes", "$decimal", "$tuple", "$uuid", "$datetime", "a")),
                                 inner, max_size=2), max_leaves=6).map(json.dumps),
)  # fmt: skip
exports = st.one_of(
    st.binary(max_size=80),
    st.lists(
        st.lists(st.one_of(texts, st.sampled_from(("a", "1", '"', "1.50", "2026-01-01T00:00:00Z"))), max_size=9)
    ).map(lambda rows: "\n".join([",".join(COLUMNS), *map(",".join, rows)]).encode("utf-8", "surrogatepass")),
)
kinds = st.sampled_from(("add", "append", "set_add", "set_remove", "maximum", "minimum", "nonsense"))
lines = st.one_of(
    texts,
    st.lists(
        st.fixed_dictionaries(
            {
                "index": st.integers(), "time": st.integers(0, 9), "process": st.integers(0, 2), "f": st.just("txn"),
                "type": st.sampled_from(("invoke", "ok", "fail", "info", "other")),
                "value": st.lists(st.tuples(st.sampled_from(("r", "w")), texts, st.integers())),
            }
        ),
        max_size=5,
    ).map(lambda rows: "\n".join(map(json.dumps, rows))),
)  # fmt: skip

TARGETS = (
    Target("a stored value", _thaw, anything, (BackendCorruptError,)),
    Target("a value, there and back", _round_trip, values, ()),
    Target("a stored key", keys.decode, st.one_of(st.binary(max_size=30), damaged(stored_keys)), (ValueError,)),
    Target("a key", keys.encode, st.one_of(values, user_keys), (InterlockError,)),
    Target("a URL", _open, urls, (InterlockError,)),
    Target("a cursor", token_of, st.one_of(texts, tokens.map(lambda text: text[:-2]), tokens), (InterlockError,)),
    Target("a key of the command line", forms.parse_key, st.one_of(texts, json_texts), (InterlockError,)),
    Target("a value of the command line", forms.parse_value, json_texts, (InterlockError,)),
    Target("an idempotency record", _record, st.one_of(anything, damaged(records)), (BackendCorruptError,)),
    Target(
        "a merge of damaged bytes", _merge, st.tuples(anything, kinds, anything, st.none() | anything),
        (InterlockError, MergeRefused, BoundBroken),
    ),
    Target("a history", _history, lines, (ValueError,)),
    Target("an export of orders", _orders, exports, (OrdersFileError,)),
    Target("a stock list", read_stock, exports, (OrdersFileError,)),
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=[target.name.replace(" ", "-") for target in TARGETS])
def test_only_declared_errors(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @fuzz
    @given(target.inputs)
    def check(given_input: Any) -> None:
        with suppress(*target.declared):
            target.call(given_input)

    check()


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
