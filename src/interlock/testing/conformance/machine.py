"""Random steps, done by a store and by the reference model, must have the same results.

A failing run is shrunk to the fewest steps that show the fault and printed as a program. Tokens that the store may
have forgotten (after a compaction, or for the name that quiet commits write) are marked as frail: from there a store
may answer rightly or refuse with `SnapshotTooOldError`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from interlock import codec, model
from interlock.errors import SnapshotTooOldError
from interlock.model import (
    BoundBroken,
    Change,
    CommitRefused,
    CommitRequest,
    Delete,
    DuplicateTransaction,
    Entry,
    Expectation,
    Merge,
    MergeRefused,
    Operation,
    Put,
    Settled,
    Span,
    Token,
    Write,
)
from interlock.testing.conformance.reference import (
    ABSENT,
    OTHER,
    SEEN,
    UNCHANGED,
    Attempt,
    Reference,
    Row,
    Step,
    Verdict,
    listed,
    live,
)
from interlock.testing.conformance.world import SPACE, World, examples, key, new_transaction, thawed

T = TypeVar("T")

_LISTED = ["a", "b", "c", "d"]
_UNLISTED = ["u1", "u2"]
_NAMES = _LISTED + _UNLISTED
_QUIET = "u-quiet"
_ENDS = ["", "a", "b", "bb", "c", "d", "e"]

_numbers = st.integers(-3, 3)
_values = st.one_of(_numbers, st.text("xy", max_size=2), st.lists(_numbers, max_size=2), st.sets(_numbers, max_size=2))
_operations = st.one_of(
    st.builds(Step, st.just("add"), _numbers, st.none() | st.just(0), st.none() | st.just(4)),
    st.builds(Step, st.sampled_from(["append", "set_add", "set_remove", "maximum", "minimum"]), _numbers),
    st.builds(Step, st.just("last"), _values),
)
_puts = st.builds(lambda value: (Step("put", value),), _values)
_plain = _puts | st.just((Step("delete"),))
_merges = st.lists(_operations, min_size=1, max_size=3).map(lambda steps: tuple(steps))
_listed_writes = st.dictionaries(st.sampled_from(_LISTED), _plain | _merges, max_size=3)
_unlisted_writes = st.dictionaries(st.sampled_from(_UNLISTED), _plain, max_size=1)
_spans = st.tuples(st.sampled_from(_ENDS), st.sampled_from(_ENDS)).map(lambda ends: (min(ends), max(ends)))
_reads = st.dictionaries(
    st.sampled_from(_NAMES), st.sampled_from([SEEN, SEEN, SEEN, SEEN, ABSENT, UNCHANGED, OTHER]), max_size=3
)


@dataclass(frozen=True)
class Plan:
    """A commit to be tried; ``back`` chooses its snapshot among the last ones."""

    back: int
    reads: dict[str, str]
    writes: dict[str, tuple[Step, ...]]
    spans: tuple[tuple[str, str], ...] = ()
    clears: tuple[tuple[str, str], ...] = ()
    as_guards: bool = False


_plans = st.one_of(
    st.builds(Plan, st.just(0), st.just({}), st.dictionaries(st.sampled_from(_NAMES), _puts, min_size=1, max_size=3)),
    st.builds(Plan, st.integers(0, 1), _reads, _listed_writes),
    st.builds(
        Plan,
        st.integers(0, 3),
        _reads,
        st.builds(lambda some, others: {**some, **others}, _listed_writes, _unlisted_writes),
        st.lists(_spans, max_size=2, unique=True).map(tuple),
        st.lists(_spans, max_size=1).map(tuple),
        st.booleans(),
    ),
)


def _span(ends: tuple[str, str]) -> Span:
    start, stop = ends
    return Span(key(start) if start else SPACE, key(stop) if stop else SPACE)


def _write(name: str, steps: tuple[Step, ...]) -> Write:
    first = steps[0]
    if first.kind == "put":
        return Put(codec.freeze(first.value), None, listed(name))
    if first.kind == "delete":
        return Delete()
    return Merge(tuple(_operation(step) for step in steps))


def _operation(step: Step) -> Operation:
    freeze = codec.freeze_element if step.kind in ("append", "set_add", "set_remove") else codec.freeze
    floor, ceiling = (None if bound is None else codec.freeze(bound) for bound in (step.floor, step.ceiling))
    return Operation(step.kind, freeze(step.value), floor, ceiling)


def _agrees(entry: Entry | None, row: Row | None) -> bool:
    """Whether an entry shows what the reference has. A tombstone may have been dropped."""
    if row is None or row.value is None:
        return thawed(entry) is None
    return entry is not None and entry.version == row.version and thawed(entry) == row.value


class Steps(RuleBasedStateMachine):
    """The store and the reference, side by side."""

    world: World

    @initialize()
    def begin(self) -> None:
        """A fresh store."""
        self.store = self.world.open()
        self.backend = self.store.backend
        self.reference = Reference()
        self.done: list[CommitRequest] = []
        self.fenced: list[CommitRequest] = []
        self.tokens: list[tuple[Token, int, bool]] = [(self.call(self.backend.snapshot()), 0, False)]

    def teardown(self) -> None:
        """Everything must agree at the end as well."""
        if hasattr(self, "backend"):
            self.look_at_everything()
            self.call(self.backend.close())

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in this world."""
        return self.world.call(coroutine)

    def remember(self, token: Token) -> None:
        """A token of the newest state."""
        self.tokens.append((token, len(self.reference.states) - 1, False))
        del self.tokens[1:-8]

    def token(self, back: int) -> tuple[Token, int, bool]:
        """One of the remembered tokens; 0 is the newest."""
        return self.tokens[-1 - back % len(self.tokens)]

    def make_frail(self) -> None:
        """From now on the store may refuse all tokens taken so far."""
        self.tokens = [(token, index, True) for token, index, _ in self.tokens]

    @rule(plans=st.lists(_plans, min_size=1, max_size=5))
    def commit(self, plans: list[Plan]) -> None:
        """Some commits, each from any remembered snapshot."""
        for plan in plans:
            token, index, frail = self.token(plan.back)
            attempt = Attempt(index, plan.reads, plan.writes, plan.spans, plan.clears)
            expectations = {key(name): self.expectation(name, how, index) for name, how in plan.reads.items()}
            request = CommitRequest(
                new_transaction(),
                "machine",
                "serializable",
                token,
                {} if plan.as_guards else expectations,
                {key(name): _write(name, steps) for name, steps in plan.writes.items()},
                expectations if plan.as_guards else {},
                tuple(_span(ends) for ends in plan.spans),
                tuple(_span(ends) for ends in plan.clears),
            )
            self.send(request, attempt, frail)

    def expectation(self, name: str, how: str, index: int) -> Expectation:
        """What the request says of a read."""
        row = self.reference.states[index].get(name)
        if how == OTHER:
            return (1 << 40, 1)
        if how == UNCHANGED:
            return model.UNCHANGED
        if how == ABSENT or row is None or row.value is None:
            return model.ABSENT
        return row.version

    def send(self, request: CommitRequest, attempt: Attempt, frail: bool) -> None:
        """Commit, and compare what becomes of it."""
        verdict = self.reference.judge(attempt)
        try:
            reply = self.call(self.backend.commit(request))
        except SnapshotTooOldError:
            assert frail
        except CommitRefused as refused:
            self.compare_clashes(refused, verdict)
        except (BoundBroken, MergeRefused) as refused:
            assert not verdict.must
            assert not verdict.must_spans
            self.compare_merges(refused, verdict)
        else:
            assert not verdict.must
            assert not verdict.must_spans
            assert not verdict.merges
            if request.writes or request.clears:
                assert reply.version > max((row.version for row in self.reference.newest.values()), default=(0, 0))
                self.reference.commit(attempt, verdict, request.transaction, reply.version)
                self.done.append(request)
            self.remember(reply.token)

    def compare_merges(self, refused: BoundBroken | MergeRefused, verdict: Verdict) -> None:
        """The merge that was refused is one that has to be."""
        reason = "bound" if isinstance(refused, BoundBroken) else "kind"
        assert (refused.key, reason) in {(key(name), why) for name, why in verdict.merges.items()}

    def compare_clashes(self, refused: CommitRefused, verdict: Verdict) -> None:
        """Every expectation that does not hold is named, and no other."""
        named = {clash.key for clash in refused.clashes if clash.kind != "range"}
        assert named == {key(name) for name in verdict.must}
        spans = {clash.span for clash in refused.clashes if clash.kind == "range"}
        must, may = ({_span(ends) for ends in each} for each in (verdict.must_spans, verdict.may_spans))
        assert must <= spans <= must | may
        for clash in refused.clashes:
            if clash.span is not None:
                assert clash.span.start <= clash.key < clash.span.stop
            row = next((row for name, row in self.reference.newest.items() if key(name) == clash.key), None)
            assert _agrees(clash.current, row)

    @rule(value=st.none() | _numbers)
    def write_quietly(self, value: int | None) -> None:
        """A quiet write to a name of its own."""
        write = Delete() if value is None else Put(codec.freeze(value), None, False)
        reply = self.call(self.store.commit({key(_QUIET): write}, quiet=True, durable=False))
        self.reference.quietly(_QUIET, value, reply.version)
        self.remember(reply.token)

    @rule(back=st.integers(0, 8), names=st.lists(st.sampled_from(_NAMES), max_size=4))
    def read(self, back: int, names: list[str]) -> None:
        """Several names, as of any snapshot."""
        token, index, frail = self.token(back)
        try:
            reading = self.call(self.backend.read([key(name) for name in names], token))
        except SnapshotTooOldError:
            assert frail
            return
        state = self.reference.states[index]
        for name, entry in zip(names, reading.entries, strict=True):
            assert _agrees(entry, state.get(name))
        changed = any(live(self.reference.newest.get(name)) != live(state.get(name)) for name in names)
        assert reading.superseded or not changed

    @rule(back=st.integers(0, 8), ends=_spans, limit=st.integers(1, 5), reverse=st.booleans())
    def scan(self, back: int, ends: tuple[str, str], limit: int, reverse: bool) -> None:
        """A page of a range, as of any snapshot."""
        token, index, frail = self.token(back)
        try:
            page = self.call(self.backend.scan(_span(ends), token, limit=limit, reverse=reverse))
        except SnapshotTooOldError:
            assert frail
            return
        rows = list(self.reference.shown(index, *ends).items())
        if reverse:
            rows.reverse()
        assert [name for name, _ in page.items] == [key(name) for name, _ in rows[:limit]]
        for (_, entry), (_, row) in zip(page.items, rows, strict=False):
            assert _agrees(entry, row)
        assert page.more is (len(rows) > limit)

    @rule(back=st.integers(0, 8), limit=st.integers(1, 4))
    def follow(self, back: int, limit: int) -> None:
        """Some of the feed, from any cursor."""
        token, index, frail = self.token(back)
        try:
            changes, cursor = self.call(self.backend.changes(token, limit=limit))
        except SnapshotTooOldError:
            assert frail
            return
        later = [record for record in self.reference.feed if record.index > index]
        self.compare_feed(changes, len(later[:limit]))
        assert [change.version for change in changes] == [record.version for record in later[:limit]]
        if len(later) <= limit:
            self.remember(cursor)

    def compare_feed(self, changes: list[Change], count: int) -> None:
        """Records of the feed tell what happened."""
        assert len(changes) == count
        records = {record.transaction: record for record in self.reference.feed}
        for change in changes:
            record = records[change.transaction]
            assert change.version == record.version
            assert change.writes.keys() == {key(name) for name in record.names}
            assert set(change.cleared) == {key(name) for name in record.cleared}

    @rule(back=st.integers(0, 5))
    def send_again(self, back: int) -> None:
        """A transaction that has committed does not commit again."""
        if self.done:
            assert self.refusal(self.done[-1 - back % len(self.done)]) in (True, None)

    def refusal(self, request: CommitRequest) -> bool | None:
        """Commit what must be refused as known already: whether it is known as committed; None if it is too old."""
        try:
            self.call(self.backend.commit(request))
        except DuplicateTransaction as duplicate:
            return duplicate.committed
        except SnapshotTooOldError:
            assert any(frail for _, _, frail in self.tokens)
            return None
        raise AssertionError("a transaction that is settled has committed")

    @rule(back=st.integers(0, 5), fence=st.booleans())
    def ask(self, back: int, fence: bool) -> None:
        """The outcome of something that has committed."""
        if self.done:
            request = self.done[-1 - back % len(self.done)]
            settled, change = self.call(self.backend.outcome(request.transaction, fence=fence))
            if settled is Settled.FORGOTTEN:
                assert any(frail for _, _, frail in self.tokens)
            else:
                assert settled is Settled.COMMITTED
                if change is not None:
                    self.compare_feed([change], 1)

    @rule()
    def fence(self) -> None:
        """A transaction that never commits."""
        request = self.call(self.store.request({key("a"): Put(codec.freeze(99))}))
        settled, _ = self.call(self.backend.outcome(request.transaction, fence=True))
        assert settled is Settled.FENCED
        self.fenced.append(request)

    @rule(back=st.integers(0, 5))
    def send_fenced(self, back: int) -> None:
        """What is fenced stays so."""
        if self.fenced:
            assert self.refusal(self.fenced[-1 - back % len(self.fenced)]) in (False, None)

    @rule(limit=st.integers(1, 20))
    def compact(self, limit: int) -> None:
        """Some of the past goes."""
        at = self.call(self.backend.read([])).at
        self.call(self.backend.compact(at + 1.0, limit=limit))
        self.make_frail()
        self.remember(self.call(self.backend.snapshot()))

    @invariant()
    def look_at_everything(self) -> None:
        """The newest state agrees, by key and by scan."""
        if not hasattr(self, "backend"):
            return
        names = [*_NAMES, _QUIET]
        reading = self.call(self.backend.read([key(name) for name in names]))
        for name, entry in zip(names, reading.entries, strict=True):
            assert _agrees(entry, self.reference.newest.get(name)), name
        page = self.call(self.backend.scan(Span(SPACE, key("zz")), limit=100))
        rows = self.reference.shown(len(self.reference.states) - 1, "", "zz")
        assert [name for name, _ in page.items] == [key(name) for name in rows]


def test_random_steps_have_the_same_results_as_the_reference(world: World) -> None:
    """Shrunk failures are printed as a program."""

    class Machine(Steps):
        pass

    Machine.world = world
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(20),
            stateful_step_count=40,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
