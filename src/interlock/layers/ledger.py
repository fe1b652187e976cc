"""The one way in which layers read and write records of their own.

A record is an ordinary key in the system space: ``SYSTEM``, the kind's name, the encoded parts of its key. Its value is
plain data in the codec's form, with the kind's name and schema number in front, so that a record can be told from
anything else and a later version of the library can say what it does not understand. Parts begin with the tuple's tag
byte, which no name of a kind holds, so no two kinds share a key.

`Ledger.commit` is one conditional write of a few records, as a transaction of its own with its own id. What that
gives a layer:

- It is applied at one point or not at all; a refusal (`CommitRefused`) reaches the layer as the port raised it, because
  only the layer knows what a changed record means to it.
- A lost reply is settled here: the outcome is asked for with a fence, so the commit has happened, or it never will. In
  the latter case it is sent again under a new id; that is safe because the fence makes the first one void, and the
  expectations still say what must hold.
- A quiet commit leaves no record of its outcome. It is sent again as it is, and what it expects of the keys that it
  writes settles it: if the first one has happened, the second is refused and finds the first one's version in place;
  if not, the second puts a version there that the first, coming late, no longer expects.
- `Ledger.gathered` is a quiet commit that may share one commit of the store with others.
- So a layer never sees a write whose fate is open, except when the engine cannot be reached for `SETTLE_SECONDS`
  (`CommitUnknownError`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from interlock import codec, keys
from interlock.core.engine import Engine
from interlock.core.isolation import expectation
from interlock.core.retry import RetryPolicy, backoff_seconds
from interlock.errors import (
    BackendCorruptError,
    BackendUnavailableError,
    CommitUnknownError,
    SchemaMismatchError,
    SnapshotTooOldError,
    UsageError,
    ValueRefusedError,
)
from interlock.layers.gathering import Portion, gathering_of
from interlock.model import (
    NONCE_MASK,
    CommitRefused,
    CommitRequest,
    Delete,
    DuplicateTransaction,
    Entry,
    Expectation,
    Key,
    Page,
    Put,
    Settled,
    Span,
    Token,
    TransactionId,
    Version,
    Write,
)
from interlock.ports import Backend, Runtime

SETTLE_SECONDS: Final = 30.0
"""How long to ask for the outcome of a commit whose reply was lost."""
_SCANS: Final = 100
_PAUSES: Final = RetryPolicy(base_seconds=0.01, cap_seconds=0.5)
_ALL_PARTS: Final = b"\x05"

Part = str | int


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of records: where they lie, and the schema of their values.

    Args:
        name: lower-case ASCII letters; the same for ever.
        schema: the number of the form that this version writes and reads.
        count: how many parts a key has, where each has the same number of them.
    """

    name: str
    schema: int = 1
    count: int | None = None

    def __post_init__(self) -> None:
        if not (self.name.isascii() and self.name.isalpha() and self.name.islower()):
            raise UsageError(f"the name of a kind of records is lower-case ASCII letters, not {self.name!r}")

    def key(self, *parts: Part) -> Key:
        """The stored key of a record. Raises `UsageError` or `LimitExceededError` for parts that make no key."""
        return keys.SYSTEM + self.name.encode() + keys.encode(parts)

    def extended(self, key: Key, part: Part) -> Key:
        """The stored key with one more part. Raises as `key` does."""
        start = 1 + len(self.name)
        return key[:start] + keys.extended(key[start:], part)

    def beside(self, other: Kind, key: Key, *more: Part) -> Key:
        """The stored key with the parts of a key of another kind, and some more behind them. Raises as `key` does."""
        raw = key[1 + len(other.name) :]
        for part in more:
            raw = keys.extended(raw, part)
        return keys.SYSTEM + self.name.encode() + raw

    def parts(self, key: Key) -> tuple[Part, ...]:
        """The parts of a stored key of this kind. Raises `BackendCorruptError` for what is none."""
        found = keys.decode(key[1 + len(self.name) :])
        parts = (found,) if type(found) is str else tuple(found)
        if self.count not in (None, len(parts)):
            raise BackendCorruptError(f"{parts!r} is no key of a record of kind {self.name!r}")
        return parts

    def span(self, *prefix: Part) -> Span:
        """All records of the kind, or those whose first parts are these."""
        raw = keys.SYSTEM + self.name.encode() + (keys.encode(prefix) if prefix else _ALL_PARTS)
        return Span(raw, keys.following(raw))

    def put(self, value: Any, *, ttl_seconds: float | None = None, listed: bool = True) -> Put:
        """The write of a record. Raises `ValueRefusedError` for what is not plain data."""
        return Put(codec.freeze((self.name, self.schema, value)), ttl_seconds, listed)

    def put_plain(self, value: Any) -> Put:
        """The write of a record in which there is nothing but dicts with str keys, lists, str, bytes, bool, None, and
        numbers of 64 bits: the same bytes, encoded without looking at each value first. The layer answers for that."""
        return Put(codec.freeze_plain((self.name, self.schema, value)))

    def load(self, entry: Entry | None) -> Any:
        """The value of an entry; None where there is none.

        Raises `SchemaMismatchError` for a record of a newer version, `BackendCorruptError` for what is no record."""
        if entry is None or entry.value is None:
            return None
        try:
            name, schema, value = codec.thaw(entry.value)
        except (ValueError, TypeError, BackendCorruptError, ValueRefusedError) as error:
            raise BackendCorruptError(f"a record of kind {self.name!r} cannot be read: {error}") from error
        if name != self.name or type(schema) is not int:
            raise BackendCorruptError(f"what lies in the place of a record of kind {self.name!r} is something else")
        if schema != self.schema:
            raise SchemaMismatchError(
                f"a record of kind {self.name!r} has form {schema}, this version of Interlock knows {self.schema}"
            )
        return value


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it was found. ``entry`` is None where there never was one; ``value`` is None where there is none now.
    ``expired``: by the engine's clock, at the moment of reading."""

    key: Key
    entry: Entry | None
    value: Any
    expired: bool = False

    @property
    def expected(self) -> Expectation:
        """What a commit expects that relies on this reading."""
        return expectation(self.entry)

    @property
    def version(self) -> Version | None:
        """The version of a record that is there."""
        return self.entry.version if self.entry is not None and self.entry.value is not None else None


class Found(msgspec.Struct, frozen=True, gc=False):
    """What a reading of records found: in the order asked for, or of keys; ``at`` is the engine's clock (of a scan:
    None), ``more``: the scan was cut off at its limit."""

    records: tuple[Record, ...]
    token: Token
    at: float | None = None
    more: bool = False


class Done(msgspec.Struct, frozen=True, gc=False):
    """A commit that happened, ``at`` this time of the engine's (None: not known here). ``version`` is None only if its
    reply was lost and everything that it wrote has been overwritten since; ``fetched`` is then from a later moment,
    too."""

    transaction: TransactionId
    version: Version | None
    token: Token
    fetched: tuple[Entry | None, ...] = ()
    at: float | None = None


class Ledger:
    """The records of the layers of one store object; in the store's own world, or in that of a background thread."""

    __slots__ = ("backend", "engine", "gathering", "runtime")

    def __init__(self, engine: Engine, *, backend: Backend | None = None, runtime: Runtime | None = None) -> None:
        self.engine = engine
        self.backend = engine.backend if backend is None else backend
        self.runtime = engine.runtime if runtime is None else runtime
        self.gathering = gathering_of(engine)

    async def read(self, kind: Kind, wanted: Sequence[Key], at: Token | None = None) -> Found:
        """Records of one kind by their keys, as of a snapshot or the newest. Raises as `Backend.read` and `Kind.load`
        do."""
        reading = await self.backend.read(wanted, at)
        found = [
            Record(key, entry, kind.load(entry), is_expired(entry, reading.at))
            for key, entry in zip(wanted, reading.entries, strict=True)
        ]
        return Found(tuple(found), reading.token, reading.at)

    async def scan(
        self,
        kind: Kind,
        prefix: tuple[Part, ...] = (),
        *,
        after: tuple[Part, ...] | None = None,
        limit: int = 1000,
        at: Token | None = None,
    ) -> Found:
        """Listed records of a kind in key order, ``limit`` at most, those whose keys begin with ``prefix`` and lie
        behind ``after``. Whether one has expired is not judged here."""
        span = kind.span(*prefix)
        if after is not None:
            span = Span(max(span.start, kind.key(*after) + b"\0"), span.stop)
        page = await self._page(span, at, limit)
        found = [Record(key, entry, kind.load(entry)) for key, entry in page.items]
        return Found(tuple(found), page.token, more=page.more)

    async def _page(self, span: Span, at: Token | None, limit: int) -> Page:
        """A scan; of the newest state again, if a quiet commit has overwritten something in the middle of it."""
        for _ in range(_SCANS):
            try:
                return await self.backend.scan(span, at, limit=limit)
            except SnapshotTooOldError:
                if at is not None:
                    raise
        return await self.backend.scan(span, at, limit=limit)

    async def commit(
        self,
        writes: Mapping[Key, Write],
        expectations: Mapping[Key, Expectation],
        *,
        agent: str,
        alive: Iterable[Key] = (),
        durable: bool = True,
        quiet: bool = False,
        fetch: Sequence[Key] = (),
        snapshot: Token | None = None,
        operation: str | None = None,
        earlier: Sequence[CommitRequest] = (),
    ) -> Done:
        """Write records, if everything is as expected; a transaction of its own.

        Args:
            agent: whose doing it is, for the feed.
            alive: keys among the expectations that must not have expired either.
            durable, quiet, fetch: as in `interlock.model.CommitRequest`. A quiet commit expects something of each key
                that it writes, see above.
            snapshot: what the expectations were read from; taken now if not given, which is one more call.
            earlier: quiet requests in which these writes were sent before, and whose replies were lost.

        Raises: `CommitRefused`, `SnapshotTooOldError`, `BackendUnavailableError` (nothing was written);
            `CommitUnknownError` if a lost reply could not be settled in time."""
        backend = self.backend
        token = await backend.snapshot() if snapshot is None else snapshot
        lost = list(earlier)
        until = self.runtime.monotonic() + SETTLE_SECONDS
        while True:
            transaction = self.engine.new_id()
            request = CommitRequest(
                transaction, agent, "serializable", token, {}, dict(writes), dict(expectations),
                operation=operation, alive=frozenset(alive), durable=durable, quiet=quiet, fetch=tuple(fetch),
            )  # fmt: skip
            try:
                reply = await backend.commit(request)
            except CommitUnknownError as unknown:
                lost.append(request)
                if quiet:
                    await self._pause(len(lost), until, unknown)
                elif await self._happened(transaction, until, unknown):
                    return (await self._late_reply(request, [request]))[0]
            except DuplicateTransaction as duplicate:
                if duplicate.committed:  # on its way the request came twice
                    return (await self._late_reply(request, [request]))[0]
            except CommitRefused:
                if quiet and lost:
                    done, in_place = await self._late_reply(request, lost)
                    if in_place:
                        return done
                raise
            else:
                return Done(transaction, reply.version, reply.token, reply.fetched)

    async def gathered(
        self,
        writes: Mapping[Key, Write],
        expectations: Mapping[Key, Expectation],
        *,
        agent: str,
        durable: bool = True,
        snapshot: Token | None = None,
    ) -> Done:
        """A quiet `commit`, made together with those that are wanted meanwhile (`interlock.layers.gathering`).

        Raises as `commit` does, but for `SnapshotTooOldError`: what is expected is exact, so any snapshot does."""
        return await self.gather(Portion(writes, expectations, agent, durable, snapshot))

    async def gather(self, part: Portion) -> Done:
        """As `gathered`, for a caller who has put the parts together, and who uses them for nothing else from here
        on."""
        if self.backend is not self.engine.backend:
            try:
                return await self._alone(part, snapshot=part.token)
            except SnapshotTooOldError:
                return await self._alone(part)
        gathering = self.gathering
        if part.token is not None and gathering.may_go_alone(part.durable):
            sent = gathering.send_alone(part.writes, part.expectations, part.agent, part.durable, part.token)
            if sent is not None:
                request, reply = sent
                if reply is None:
                    return await self._alone(part, earlier=(request,))
                return Done(request.transaction, reply.version, reply.token, at=reply.at)
        await gathering.send(part)
        reply = part.reply
        if reply is not None:
            return Done(part.transaction, reply.version, reply.token, at=reply.at)
        if part.error is not None:
            raise part.error
        assert part.lost is not None
        return await self._alone(part, earlier=(part.lost,))

    async def _alone(
        self, part: Portion, *, snapshot: Token | None = None, earlier: Sequence[CommitRequest] = ()
    ) -> Done:
        """A part as a commit of its own."""
        return await self.commit(
            part.writes, part.expectations, agent=part.agent, durable=part.durable, quiet=True, snapshot=snapshot,
            earlier=earlier,
        )  # fmt: skip

    async def _happened(self, transaction: TransactionId, until: float, unknown: CommitUnknownError) -> bool:
        """Whether a commit has happened; if not, it cannot any more."""
        failures = 1
        while True:
            try:
                settled, _ = await self.backend.outcome(transaction, fence=True)
            except (BackendUnavailableError, CommitUnknownError) as error:
                failures += 1
                await self._pause(failures, until, unknown, error)
            else:
                if settled is Settled.COMMITTED:
                    return True
                if settled is Settled.FENCED:
                    return False
                raise unknown

    async def _pause(
        self, failures: int, until: float, unknown: CommitUnknownError, cause: BaseException | None = None
    ) -> None:
        """Wait before asking once more. Raises ``unknown`` when the time is over."""
        runtime = self.runtime
        seconds = backoff_seconds(_PAUSES, failures, runtime.uniform)
        if runtime.monotonic() + seconds >= until:
            raise unknown from cause
        if seconds > 0:
            await runtime.sleep(seconds)

    async def _late_reply(self, last: CommitRequest, sent: Sequence[CommitRequest]) -> tuple[Done, bool]:
        """The reply to a commit whose own was lost, as far as it can still be told, and whether all that it wrote is in
        place. A version is known again by the nonce, which is the transaction's own: of ``last`` or of one of those in
        which the same was ``sent`` before."""
        reading = await self.backend.read([*last.writes, *last.fetch])
        nonces = {request.transaction & NONCE_MASK for request in sent}
        own: list[Version] = []
        in_place = True
        for write, entry in zip(last.writes.values(), reading.entries, strict=False):
            live = entry is not None and entry.value is not None
            if entry is not None and entry.version[1] in nonces:
                own.append(entry.version)
            elif live or type(write) is not Delete:
                in_place = False
        fetched = tuple(reading.entries[len(last.writes) :])
        return Done(last.transaction, own[0] if own else None, reading.token, fetched), in_place


def is_expired(entry: Entry | None, at: float) -> bool:
    """Whether an entry has expired at a moment of the engine's clock."""
    return entry is not None and entry.expires_at is not None and entry.expires_at <= at
