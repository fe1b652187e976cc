"""Commits that go to the server together.

Under load a call, a transaction of the server and a sync of its log are worth more than what a commit does, so
commits of one process that queue while earlier ones are under way share them (`gathering`). Each stays a commit of its
own: it is judged by itself, has a version, a feed record and a result of its own, and a refusal refuses that one only.

A group holds no two commits that touch the same key, except by merges of the newest value (`Group.takes`). So what each
of them expects holds or fails whatever the others do, and one look at the server judges all. Merges of one key are
applied in the order of their places, each to what the one before it left; every step in between is kept as a superseded
version, so that a cursor in the middle of a group is a snapshot like any other.

The group takes the locks that its commits would take, each once in its strongest mode, in the order that is the same
for everybody (`locks`): the argument of the package's docstring holds for the group as for one commit. None of them
writes into a range that another one validates, so a range, too, holds or fails whatever the others do. Those that
validate the same range need the same lock: in one transaction they do not wait for each other. Commits with clears,
quiet ones and those that may be lost go alone: they would make the others wait or share their fate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

from interlock.backends.postgresql import locks, requests
from interlock.backends.postgresql import record as records
from interlock.backends.postgresql.home import Driver, Home, Row
from interlock.backends.postgresql.record import signed, token_of
from interlock.backends.postgresql.tokens import behind_own, from_detail, parsed
from interlock.errors import BackendCorruptError, SnapshotTooOldError
from interlock.model import (
    NONCE_MASK,
    UNCHANGED,
    CommitRequest,
    DuplicateTransaction,
    Expectation,
    Key,
    Merge,
    Merged,
    Operation,
    Put,
    Reply,
    Span,
    Write,
)

COMMITS: Final = 64
"""The most commits of a group; places in a transaction are `tokens.ROOM`."""
KEYS: Final = 256
"""A group that has so many keys takes no more commits: locks lie in a table that all connections share."""
SPANS: Final = 16
"""A commit that validates more ranges goes alone, and a group that does takes no more commits."""
BYTES: Final = 1 << 20
"""Nor one that has so many bytes of values."""


class Job:
    """A commit that may go with others, and what became of it."""

    __slots__ = (
        "answer",
        "expected",
        "future",
        "locking",
        "merge",
        "others",
        "puts",
        "ranges",
        "record",
        "request",
        "snapshot",
        "taken",
        "tell",
    )

    def __init__(
        self,
        request: CommitRequest,
        puts: list[tuple[Key, Put]],
        others: list[Key],
        merge: tuple[Key, Merge] | None,
        locking: bool,
    ) -> None:
        self.request = request
        self.puts = puts
        self.others = others
        self.merge = merge
        self.snapshot = from_detail(request.snapshot.position, request.snapshot.detail)
        self.expected: list[tuple[Key, Expectation]] = [*request.reads.items(), *request.guards.items()]
        self.locking = locking
        self.ranges: Sequence[bytes] = () if not request.spans else locks.ranges(request.spans)
        self.record = records.encode(request)
        self.taken = False
        self.tell: Callable[[Reply], object] | None = None
        self.future: Any = None
        self.answer: Reply | Exception | None = None

    def touches(self, written: set[Key]) -> bool:
        """Whether it reads, writes or merges any of these keys."""
        return not (written.isdisjoint(self.request.writes) and written.isdisjoint([key for key, _ in self.expected]))

    def writes_into(self, spans: Sequence[Span]) -> bool:
        """Whether it writes or merges a key of any of these ranges."""
        return any(_lies_in(key, spans) for key in self.request.writes)


def job(request: CommitRequest, *, locking: bool) -> Job | None:
    """A job for a request, or None if it has to go alone (see the module's docstring)."""
    if not request.durable or request.quiet or request.clears or request.alive or request.fetch:
        return None
    if "\0" in request.agent or not request.writes:
        return None
    if len(request.reads) + len(request.writes) > KEYS or len(request.spans) > SPANS:
        return None
    puts: list[tuple[Key, Put]] = []
    deletes: list[Key] = []
    merge: tuple[Key, Merge] | None = None
    size = 0
    for key, write in request.writes.items():
        if type(write) is Put:
            puts.append((key, write))
            size += len(write.value)
        elif type(write) is Merge:
            if merge is not None or not all(map(requests.is_native, write.operations)):
                return None
            merge = (key, write)
        else:
            deletes.append(key)
    if size > BYTES or UNCHANGED in request.reads.values() or UNCHANGED in request.guards.values():
        return None
    return Job(request, puts, deletes, merge, locking)


class Group:
    """Commits that go together, in their order."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._read: set[Key] = set()
        self._written: set[Key] = set()
        self._merged: set[Key] = set()
        self.spans: list[Span] = []
        self._bytes = 0

    def is_full(self) -> bool:
        """Whether nothing more should be taken."""
        keys = len(self._read) + len(self._written)
        return len(self.jobs) >= COMMITS or keys >= KEYS or len(self.spans) >= SPANS or self._bytes >= BYTES

    def takes(self, job: Job) -> bool:
        """Take a job unless it touches what another one writes, or writes what another one touches."""
        writes: dict[Key, Write] = job.request.writes
        merged = job.merge[0] if job.merge is not None else None
        read, written = self._read, self._written
        for key, _ in job.expected:
            if key in written or key in self._merged:
                return False
        for key in writes:
            if key in written or key in read or (key is not merged and key in self._merged):
                return False
        spans = job.request.spans
        if self.spans and any(_lies_in(key, self.spans) for key in writes):
            return False
        if spans and any(_lies_in(key, spans) for keys in (written, self._merged) for key in keys):
            return False
        self.spans += spans
        self.jobs.append(job)
        read.update([key for key, _ in job.expected])
        written.update([key for key in writes if key is not merged])
        if merged is not None:
            self._merged.add(merged)
        self._bytes += sum([len(put.value) for _, put in job.puts])
        return True


def _lies_in(key: Key, spans: Sequence[Span]) -> bool:
    return any(span.start <= key < span.stop for span in spans)


def _locks(jobs: Sequence[Job]) -> list[int] | None:
    """The locks of all, each once in its strongest mode. The few keys of most commits are looked up together."""
    if not jobs[0].locking:
        return None
    salt = jobs[0].request.snapshot.store.to_bytes(8, "big")
    written: list[Key] = []
    read: set[Key] = set()
    spans: list[Span] = []
    wanted: dict[int, int] = {}
    for job in jobs:
        request = job.request
        keys = len(request.writes) + len(job.expected)
        if keys <= locks.FEW_KEYS and len(request.spans) <= locks.FEW_SPANS:
            written += request.writes
            read.update(request.reads, request.guards)
            spans += request.spans
            continue
        for number in requests.lock_numbers(request):
            locks.want(wanted, number)
    few = locks.of_few(salt, written, read, spans)
    if not wanted:
        return few
    for number in few:
        locks.want(wanted, number)
    return sorted(wanted.values())


def _ends(counts: Iterable[int]) -> list[int]:
    return list(accumulate(counts, initial=0))


def _expected(jobs: Sequence[Job]) -> tuple[Any, ...]:
    """What the commits expect; at the end, once, what all of them do: mostly that the rules of their resource hold."""
    first = jobs[0].request.guards
    shared = {key: found for key, found in first.items() if all(job.request.guards.get(key) is found for job in jobs)}
    places: list[int] = []
    keys: list[Key] = []
    positions: list[int] = []
    nonces: list[int] = []

    def expect(place: int, key: Key, found: Expectation) -> None:
        places.append(place)
        keys.append(key)
        if isinstance(found, tuple):
            positions.append(found[0])
            nonces.append(signed(found[1]))
        else:  # ABSENT: `job` takes no other mark
            positions.append(-1)
            nonces.append(0)

    ends = [0]
    for job in jobs:
        for place, (key, found) in enumerate(job.request.reads.items(), 1):
            expect(place, key, found)
        if len(job.request.guards) > len(shared):
            for key, found in job.request.guards.items():
                if key not in shared:
                    expect(0, key, found)
        ends.append(len(keys))
    for key, found in shared.items():
        expect(0, key, found)
    return ends, places, keys, positions, nonces


def _written(jobs: Sequence[Job]) -> tuple[Any, ...]:
    commits: list[int] = []
    keys: list[Key] = []
    values: list[bytes | None] = []
    ttls: list[float | None] = []
    listed: list[bool] = []
    ends = [0]
    for number, job in enumerate(jobs, 1):
        for key, put in job.puts:
            commits.append(number)
            keys.append(key)
            values.append(put.value)
            ttls.append(put.ttl_seconds)
            listed.append(put.listed)
        for key in job.others:
            commits.append(number)
            keys.append(key)
            values.append(None)
            ttls.append(None)
            listed.append(False)
        ends.append(len(keys))
    put_ends = [start + len(job.puts) for start, job in zip(ends, jobs, strict=False)]
    if not keys:
        return put_ends, ends, None, None, None, None, None
    return put_ends, ends, commits, keys, values, ttls, listed


def _merging(jobs: Sequence[Job]) -> tuple[Any, ...]:
    slots: dict[Key, int] = {}
    places: list[int | None] = []
    steps: list[Operation] = []
    ends = [0]
    for job in jobs:
        if job.merge is None:
            places.append(None)
        else:
            places.append(slots.setdefault(job.merge[0], len(slots) + 1))
            steps += job.merge[1].operations
        ends.append(len(steps))
    if not slots:
        return (None,) * 7
    return (
        list(slots),
        places,
        ends,
        [requests.NATIVE[step.kind] for step in steps],
        [step.operand for step in steps],
        [step.floor for step in steps],
        [step.ceiling for step in steps],
    )


def _validated(jobs: Sequence[Job]) -> tuple[Any, ...]:
    spans = [span for job in jobs for span in job.request.spans]
    if not spans:
        return None, None, None
    ends = _ends([len(job.request.spans) for job in jobs])
    return ends, [span.start for span in spans], [span.stop for span in spans]


def arguments(jobs: Sequence[Job]) -> tuple[Any, ...]:
    """The arguments of the server's function ``commit_group``."""
    ids = [job.request.transaction for job in jobs]
    return (
        _locks(jobs),
        [number.to_bytes(16, "big") for number in ids],
        [signed(number & NONCE_MASK) for number in ids],
        [job.request.agent for job in jobs],
        [job.record for job in jobs],
        [job.snapshot.stop for job in jobs],
        min([job.snapshot.lowest() for job in jobs]),
        _ends([len(job.snapshot.open) for job in jobs]),
        [position for job in jobs for position in job.snapshot.open],
        *_expected(jobs),
        *_written(jobs),
        *_merging(jobs),
        *_validated(jobs),
    )


def settled(jobs: Sequence[Job], row: Row, home: Home) -> list[Reply | Exception]:
    """What became of each job of a group, by the answer of the server's function."""
    statuses, own, at, seen, newest, changed, before, clashing = row[:8]
    answers: list[Reply | Exception] = []
    place = 0
    last = (own or 0) + statuses.count(requests.DONE) - 1
    token = token_of(home.store, home.epoch, behind_own(parsed(seen), newest, last))
    for number, (job, status) in enumerate(zip(jobs, statuses, strict=True)):
        if status != requests.DONE:
            answers.append(_refusal(job, status, number, before, clashing, row[8:]))
            continue
        merged = None
        if job.merge is not None:
            merged = {job.merge[0]: Merged(changed[number], before[number])}
        answers.append(Reply((own + place, job.request.transaction & NONCE_MASK), token, at, merged))
        place += 1
    return answers


def _refusal(job: Job, status: int, number: int, before: Any, clashing: Any, columns: Sequence[Any]) -> Exception:
    if status == requests.CLASHES:
        mine = [place for place, commit in enumerate(clashing or ()) if commit == number + 1]
        return requests.clashes(job.request, [[column[place] for place in mine] for column in columns])
    if status == requests.MERGE_REFUSED:
        assert job.merge is not None
        try:
            requests.applied(*job.merge, before[number])
        except Exception as refusal:  # BoundBroken or MergeRefused, with what it says
            return refusal
        return BackendCorruptError("the server has refused a merge that can be applied: are its functions changed?")
    if status == requests.TOO_OLD:
        return SnapshotTooOldError("the store no longer keeps the snapshot of this transaction")
    return DuplicateTransaction(status == requests.COMMITTED)


def call(jobs: Sequence[Job]) -> tuple[str, tuple[Any, ...]]:
    """The statement for some jobs, and its arguments. One job alone is cheaper by the function for any commit."""
    if len(jobs) > 1:
        return "commit_group", arguments(jobs)
    (job,) = jobs
    return "commit", requests.arguments(job.request, job.snapshot, {}, _locks((job,)), job.record)


def outcomes(jobs: Sequence[Job], row: Row, home: Home) -> list[Reply | Exception]:
    """What became of each job, by the answer to `call`."""
    if len(jobs) > 1:
        return settled(jobs, row, home)
    try:
        return [requests.settled(jobs[0].request, requests.Answer(*row), home)]
    except Exception as refusal:  # what the port raises for a refusal
        return [refusal]


async def commit_alone(driver: Driver, job: Job) -> Reply:
    """A job by itself, for drivers that do not gather. Raises what `interlock.ports.Backend.commit` does."""
    name, wanted = call((job,))
    rows, home = await driver.fetch(name, wanted, at=job.request.snapshot, commits=True)
    return requests.settled(job.request, requests.Answer(*rows[0]), home)
