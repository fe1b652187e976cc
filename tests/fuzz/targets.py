"""What takes input from outside: public decoders and parsers, each with its inputs and the errors that it declares.

Inputs are random, and valid ones with something changed, cut or put in, which come further in.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

import interlock.sync
from fuzz.shapes import Target, damaged, values
from fuzz.stored import RECORDS
from interlock import codec, keys, merges
from interlock.cli import forms
from interlock.cli.app import app
from interlock.cli.exits import Exit
from interlock.core import idempotency
from interlock.core.cursors import cursor_of, token_of
from interlock.demo.orders import COLUMNS, OrdersFileError, read_export, read_stock
from interlock.errors import BackendCorruptError, InterlockError, SchemaMismatchError
from interlock.layers import desks
from interlock.layers.desks import WAITS
from interlock.layers.effects.records import EFFECT, OUTBOX, effect_key, effect_of
from interlock.layers.leases import EVERYTHING, LEASES
from interlock.layers.ledger import Kind
from interlock.layers.tenures import PULSES, TENURES
from interlock.model import (
    BoundBroken,
    CommitRequest,
    Entry,
    Key,
    MergeRefused,
    Operation,
    Put,
    Span,
    Token,
    Write,
)
from interlock.opening import backend_for
from interlock.saga.journal import LETTERS, PAGES, SAGAS
from interlock.stepping import step
from interlock.testing import Clock
from interlock.testing.histories.records import load

EXACT = (
    type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset, Decimal, UUID, dt.date, dt.time,
    dt.datetime, dt.timedelta,
)  # fmt: skip


frozen = values.map(codec.freeze)
user_keys = st.one_of(
    st.text(min_size=1, max_size=20), st.lists(st.one_of(st.text(max_size=9), st.integers()), min_size=1).map(tuple)
)
stored_keys = user_keys.map(keys.encode)


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


def _load(given: tuple[Kind, bytes]) -> None:
    kind, raw = given
    kind.load(Entry((1, 1), raw))


def _effect(raw: bytes) -> None:
    stored = EFFECT.load(Entry((1, 1), raw))
    effect_of(effect_key("k"), stored, 0.0)


def _table(raw: bytes) -> None:
    desks.table_of(desks.Place(LEASES, LEASES.key("x"), "lease 'x'", EVERYTHING, True), Entry((1, 1), raw))


def _command_line(arguments: list[str]) -> None:
    """A command that ends with one of its exit statuses."""
    status: Any = 0
    try:
        with CliRunner().isolation():
            _COMMAND.main([*filter(_is_harmless, arguments), "--url", "memory://"], prog_name="interlock")
    except SystemExit as end:
        status = end.code or 0
    assert status in set(Exit), status


_COMMAND: Final = get_command(app)  # made once: typer's own `invoke` makes it anew for each call, which takes longer


def _is_harmless(word: str) -> bool:
    """The demo takes a minute, and some options have a command read or write files of whatever name."""
    return not word.startswith(("demo", "-f", "--f", "--i"))


def _damaged_store(given: tuple[int, bytes, bytes]) -> None:
    """One of the system's records is another one now, or lies under another key; every way to it is tried."""
    place, raw, moved = given
    stored = system_records()
    place %= len(stored)
    key, value = stored[place]
    store = interlock.sync.open("memory://", agent="fuzz")
    writes: dict[Key, Write] = {key: Put(value) for key, value in stored}
    if moved.startswith(keys.SYSTEM):
        del writes[key]
        writes[moved] = Put(value)
    else:
        writes[key] = Put(raw)
    with store:
        backend = store._engine.backend
        step(
            backend.commit(
                CommitRequest(store._engine.new_id(), "fuzz", "none", step(backend.snapshot()), {}, writes, {})
            )
        )
        for call in (
            lambda: list(store.effects.list()),
            lambda: store.effects.get("done"),
            lambda: store.effects.dispatch(),
            lambda: store.recover(older_than_seconds=0),
            lambda: list(store.dead_letters.list()),
            lambda: _take(store),
            lambda: store.resource("r").run(lambda session: session.write("x", 1), idempotency_key="k"),
            lambda: list(store.log.changes()),
        ):
            with suppress(InterlockError):
                call()


def _take(store: interlock.sync.Store) -> None:
    with store.lease("held", wait_seconds=0):
        pass


@functools.cache
def system_records() -> tuple[tuple[Key, bytes], ...]:
    """What a store keeps for itself after it has been used: of effects, an outbox, a saga with a dead letter, a lease,
    an idempotent commit."""
    clock = Clock()  # the same bytes each time, so that an input can be made again
    store = interlock.sync.Store(
        interlock.MemoryBackend(clock=clock.engine_time), agent="fuzz", runtime=clock.runtime(suspends=False)
    )
    interlock.sync.IdempotentExecutor(store).execute("done", _act)
    with store.resource("r").session(idempotency_key="k") as session:
        session.write("x", 1)
        session.stage("mail", {"to": "a"}, key="m")
    with suppress(ZeroDivisionError, InterlockError), store.saga("order", id="o1") as saga:
        saga.step(_COMPENSABLE, undo=_UNDO, step_id="one")
        raise ZeroDivisionError
    with store.lease("held", ttl_seconds=600):
        backend = store._engine.backend
        found = step(backend.scan(Span(keys.SYSTEM, keys.following(keys.SYSTEM))))
    return tuple((key, entry.value) for key, entry in found.items if entry.value is not None)


def _act() -> str:
    return "done"


def _fails(result: object) -> None:
    raise RuntimeError("not now")


_COMPENSABLE: Final = interlock.compensable(name="fuzz.step", outside="run")(_act)
_UNDO: Final = interlock.compensable(name="fuzz.undo", outside="run")(_fails)


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

layers = st.sampled_from((SAGAS, PAGES, LETTERS, TENURES, PULSES, OUTBOX, WAITS))
framed = st.tuples(st.sampled_from(("saga", "sagapage", "effect", "lease", "tenure")), st.integers(0, 2), values).map(
    codec.freeze
)
system_bytes = st.one_of(st.binary(max_size=40), framed, st.integers(0, 99).map(
    lambda place: system_records()[place % len(system_records())][1]))  # fmt: skip
system_bytes = st.one_of(system_bytes, damaged(system_bytes))
system_keys = st.integers(0, 99).map(lambda place: system_records()[place % len(system_records())][0])
words = st.one_of(
    texts, urls, json_texts,
    st.sampled_from((
        "get", "put", "scan", "history", "log", "outcome", "compact", "leases", "effects", "list", "show", "reconcile",
        "resolve", "dispatch", "sagas", "recover", "dead-letters", "retry", "skip", "done", "stock", "mug", "--json",
        "--limit", "1", "-1", "--since", "--text", "--if-absent", "--if-version", "--start", "--stop", "--reverse",
        "--agent", "--last", "--effect", "succeeded", "--older-than", "--result", "--reason", "--history-seconds",
        "--url", "memory://", "--help", "--version",
    )),
)  # fmt: skip
command_lines = st.lists(words, max_size=8)

TARGETS = (
    Target("a stored value", _thaw, anything, (BackendCorruptError,)),
    Target("a value, there and back", _round_trip, values, ()),
    Target("a stored key", keys.decode, st.one_of(st.binary(max_size=30), damaged(stored_keys)),
           (BackendCorruptError,)),
    Target("a key of a resource", keys.split, damaged(stored_keys.map((keys.USER + b"\x02r\0").__add__)),
           (BackendCorruptError,)),
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
    Target("a record of a layer", _load, st.tuples(layers, system_bytes), (BackendCorruptError, SchemaMismatchError)),
    Target("an effect's record", _effect, system_bytes, (BackendCorruptError, SchemaMismatchError)),
    Target("a table of leases and locks", _table, system_bytes, (BackendCorruptError, SchemaMismatchError)),
    Target("a store with a damaged record", _damaged_store,
        st.tuples(st.integers(0, 99), system_bytes, st.just(b"") | damaged(system_keys)), (),
           slow=True),
    Target("a command line", _command_line, command_lines, (), slow=True),
    Target("a history", _history, lines, (ValueError,), slow=True),
    Target("an export of orders", _orders, exports, (OrdersFileError,)),
    Target("a stock list", read_stock, exports, (OrdersFileError,)),
    *RECORDS,
)  # fmt: skip
