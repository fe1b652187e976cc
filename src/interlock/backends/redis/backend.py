"""The Redis backend as a port. A leaf is a driver and a runtime; what both do is here.

Every method is one call of one script, except where it says so; a read of the newest state is one plain command.
"""

from __future__ import annotations

from typing import Any, Final

from interlock.backends.redis import failures, requests
from interlock.backends.redis.home import DURABILITIES, Driver, Known, Lost, Options
from interlock.backends.redis.reading import CLOSED, KEYS_PER_CALL, Reader, misplaced, too_old
from interlock.backends.redis.record import MICRO, entry_of, pair_of
from interlock.backends.redis.scripts import DONE, Calls, Command, Part, answers
from interlock.backends.redis.shared import Together
from interlock.errors import (
    BackendUnavailableError,
    CommitUnknownError,
    LimitExceededError,
    SnapshotTooOldError,
    UsageError,
)
from interlock.model import (
    NONCE_MASK,
    Change,
    CommitRefused,
    CommitRequest,
    Delete,
    DuplicateTransaction,
    Expectation,
    Key,
    Reply,
    Settled,
    Token,
    TransactionId,
)
from interlock.ports import Capability, Runtime
from interlock.runtime import AsyncRuntime, BlockingRuntime

SYSTEM_AGENT: Final = "interlock"
"""The agent in whose name expired entries are deleted."""

_DROPPED_PER_CALL: Final = 100


class RedisBackend(Reader):
    """A store on a Redis server (6.2 or newer) or Valkey; see `interlock.ports.Backend` for the methods.

    ``target`` is a URL (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://host:port,.../service``) or a
    client of redis-py, whose address and credentials are taken. Nothing is connected before the first use. ``name``
    tells the stores of one server apart. ``durability`` says what an acknowledgement has to mean: "fsync", that the
    commit is on the primary's disk; "replicated", that ``replicas`` replicas have it; "none", nothing. A server that
    is not set up for it is refused. ``connections`` is the most connections of the blocking leaf, ``grace_seconds``
    how long a cancelled caller waits for the answer to a commit that was sent, ``connect_seconds`` how long for a
    connection. After ``reply_seconds`` without a word from the server (a quarter more at most) a connection is given
    up: a commit under way ends in `CommitUnknownError`, everything else in `BackendUnavailableError`.
    Raises `UsageError` for options that make no sense.
    """

    capabilities = frozenset(Capability)
    limits = requests.LIMITS

    def __init__(
        self,
        target: Any,
        *,
        name: str = "interlock",
        connections: int = 10,
        durability: str = "fsync",
        replicas: int = 1,
        grace_seconds: float = 5.0,
        connect_seconds: float = 10.0,
        reply_seconds: float = 20.0,
        runtime: Runtime | None = None,
    ) -> None:
        if durability not in DURABILITIES:
            raise UsageError(f"durability is one of {', '.join(DURABILITIES)}, not {durability!r}")
        if connections < 1 or replicas < 1 or not (grace_seconds >= 0 and connect_seconds > 0 and reply_seconds > 0):
            raise UsageError(
                "connections and replicas are at least 1, grace_seconds at least 0, "
                "connect_seconds and reply_seconds more than 0"
            )
        if type(target) is not str:
            target = _address_of(target)
        seconds = float(grace_seconds), float(connect_seconds), float(reply_seconds)
        options = Options(target, name, connections, durability, replicas, *seconds)
        self._join(options, AsyncRuntime() if runtime is None else runtime, Known(), [])

    def _join(self, options: Options, runtime: Runtime, known: Known, family: list[RedisBackend]) -> None:
        self._options = options
        self._runtime = runtime
        self._known = known
        self._calls = Calls(options.name)
        self._confirms = options.confirmation is not None
        self._driver: Driver = _driver(options, self._calls, known, suspends=runtime.suspends)
        self._family = family  # a backend and its blocking leaf: closed together
        family.append(self)
        self._closed = False
        self._last_time = 0
        self.suspends = runtime.suspends
        self.blocks = not runtime.suspends

    def __repr__(self) -> str:
        return f"RedisBackend(name={self._options.name!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._options, self.suspends)

    # -- writing -------------------------------------------------------------------------------------------------------
    async def commit(self, request: CommitRequest) -> Reply:
        """Validate, then apply, atomically: one call. Merges that the server does not compute take one more, or more
        while others change the same keys."""
        requests.check(request)
        token = request.snapshot
        writes = bool(request.writes or request.clears)
        copies = writes and request.durable and self._confirms
        computed: dict[Key, bytes] | None = None
        while True:
            part = requests.packed_commit(request, computed)
            begun = None if copies or self._closed else self._driver.commit(part)
            if begun is None:
                answer = await self._asked(part, writes=writes, copies=copies)
            else:
                try:
                    answer = await begun
                except BaseException as interrupt:
                    if writes and type(interrupt) is not GeneratorExit:
                        await self._driver.wait_out(begun, interrupt)
                    raise
                if type(answer) is not list:
                    answer = await self._asked_again(answer, part, writes=writes)
            if answer[0] != requests.OUTSIDE:
                break
            computed = (computed or {}) | requests.compute(request, answer[1])
        if answer[0] != DONE:
            raise self._refusal(request, answer)
        position, at = answer[1], answer[2] / MICRO
        token = Token(token.store, token.incarnation, position)
        if len(answer) == 3:
            return Reply((position, request.transaction & NONCE_MASK), token, at)
        return Reply(
            (position, request.transaction & NONCE_MASK if writes else int.from_bytes(answer[5], "big")),
            token,
            at,
            requests.merged(request, answer[3]) if answer[3] else None,
            tuple([entry_of(raw) for raw in answer[4]]) if request.fetch else (),
        )

    async def _asked(self, part: Part, *, writes: bool, copies: bool = False) -> Any:
        """The answer to a commit that goes alone; with ``copies`` once the replicas have what it wrote."""
        return await self._sent(self._calls.commits((part,)), writes=writes, copies=copies)

    async def _sent(self, command: Command, *, writes: bool, copies: bool = False) -> Any:
        reply, *confirmed = await self.ask(command, commits=writes, copies=copies)
        (answer,) = answers(reply)
        if confirmed and answer[0] == DONE and confirmed[0] < self._options.replicas:
            raise CommitUnknownError(f"the primary has the commit, but of its replicas only {confirmed[0]} in time")
        return answer

    async def _asked_again(self, reply: Any, part: Part, *, writes: bool) -> Any:
        """The answer to a commit after a reply that is none: repeated if it certainly was not done, or if it would not
        write. An error that several commits have met together may be about one of them only: each learns alone
        whether it is the one."""
        command: Command = self._calls.commits((part,))
        if type(reply) is Together:
            reply = reply.reply
            if not failures.code_of(str(reply)):
                return await self._sent(command, writes=writes)
        if type(reply) is Lost:
            if (writes and reply.sent) or reply.silent:
                raise failures.lost(reply.text, commits=writes and reply.sent)
        else:
            (command,) = await self._mend(reply, (command,), 1)
        return await self._sent(command, writes=writes)

    def _refusal(self, request: CommitRequest, answer: list[Any]) -> Exception:
        status = answer[0]
        if status == requests.CLASHES:
            return requests.clashes(request, answer[2])
        if status == requests.ELSEWHERE:
            return misplaced(request.snapshot, answer[1])
        if status == requests.KNOWN:
            return DuplicateTransaction(answer[1][:1] == b"C")
        if status == requests.TOO_MANY:
            return LimitExceededError(
                f"a commit may clear {requests.CLEARED_KEYS} keys on Redis; clear smaller ranges",
                limit="cleared_keys",
                allowed=requests.CLEARED_KEYS,
                found=requests.CLEARED_KEYS + 1,
            )
        return too_old()

    async def outcome(self, transaction: TransactionId, *, fence: bool) -> tuple[Settled, Change | None]:
        """What became of a transaction; with ``fence`` for good. Two calls where it committed."""
        again = b"1" if self._options.durability == "replicated" else b"0"
        wanted = (transaction.to_bytes(16, "big"), b"1" if fence else b"0", again)
        answer, *confirmed = await self.ask((*self._calls.outcome, *wanted), copies=True)
        if answer[0] == 3:
            raise failures.vanished()
        if confirmed and answer[0] >= 0 and confirmed[0] < self._options.replicas:
            raise BackendUnavailableError("too few replicas confirm what became of the transaction")
        if answer[0] != 1:
            return {0: Settled.FENCED, -1: Settled.UNSEEN, -2: Settled.FORGOTTEN}[answer[0]], None
        token = await self.snapshot()
        try:
            changes, _ = await self.records(Token(token.store, token.incarnation, answer[1] - 1), 1, 1)
        except SnapshotTooOldError:
            return Settled.COMMITTED, None
        return Settled.COMMITTED, next((each for each in changes if each.transaction == transaction), None)

    # -- keeping -------------------------------------------------------------------------------------------------------
    async def compact(self, before: float, *, limit: int = 1000) -> int:
        """Drop what is older than ``before``, and what has expired. In calls of a hundred feed records."""
        dropped = await self._expire(limit)
        edge = b"%d" % round(before * MICRO)
        for first in range(0, limit, _DROPPED_PER_CALL):
            count = b"%d" % min(_DROPPED_PER_CALL, limit - first)
            count_dropped, more = await self.page((*self._calls.compact, edge, count), None)
            dropped += count_dropped
            if not count_dropped or not more:
                break
        return dropped

    async def _expire(self, limit: int) -> int:
        """Delete up to ``limit`` expired entries by an ordinary commit."""
        count = b"%d" % min(limit, KEYS_PER_CALL)
        meta, position, found = await self.page((*self._calls.expired, count), None)
        if not found:
            return 0
        reads: dict[Key, Expectation] = {found[place]: pair_of(found[place + 1]) for place in range(0, len(found), 2)}
        now = int(self._runtime.time() * 1000)
        request = CommitRequest(
            now << 80 | self._runtime.random_bits(80),
            SYSTEM_AGENT,
            "none",
            Token(*pair_of(meta), position),
            {},
            {key: Delete() for key in reads},
            reads,
            operation="compact",
        )
        try:
            await self.commit(request)
        except CommitRefused:  # somebody has just renewed one of them; the next call looks again
            return 0
        return len(reads)

    async def close(self) -> None:
        """Close the connections, those of the other leaf too, and refuse more. The store is on the server and stays."""
        if not self._closed:
            for member in self._family:
                member._closed = True
                if member is not self:
                    member._driver.cut()
            await self._driver.close()

    def blocking(self) -> RedisBackend:
        """The same store for callers that step."""
        if self._closed:
            raise UsageError(CLOSED)
        for member in self._family:
            if not member.suspends:
                return member
        leaf = RedisBackend.__new__(RedisBackend)
        leaf._join(self._options, BlockingRuntime(), self._known, self._family)
        return leaf


_MISSING: Final = "Redis needs packages that are not installed ({}): pip install 'interlock[redis]'"


def _address_of(target: Any) -> Any:
    try:
        from interlock.backends.redis.address import address_of
    except ImportError as error:
        raise UsageError(_MISSING.format(error.name)) from None
    return address_of(target)


def _driver(options: Options, calls: Calls, known: Known, *, suspends: bool) -> Driver:
    """The driver of a leaf, imported only now."""
    try:
        if suspends:
            from interlock.backends.redis.asynchronous import AsyncDriver

            return AsyncDriver(options, calls, known)
        from interlock.backends.redis.blocking import BlockingDriver

        return BlockingDriver(options, calls, known)
    except ImportError as error:
        raise UsageError(_MISSING.format(error.name)) from None


def _rebuild(options: Options, suspends: bool) -> RedisBackend:
    backend = RedisBackend.__new__(RedisBackend)
    backend._join(options, AsyncRuntime() if suspends else BlockingRuntime(), Known(), [])
    return backend
