"""What one store object shares between its transactions: the backend, the runtime, the spaces, the gates, the
housekeeping.

The asynchronous and the synchronous `Store` are shells over this class. It is used by many threads and event loops at
once; what is written after construction is either guarded by the gates' mutex or is a single dictionary operation.

A store keeps itself small: every `HOUSEKEEPING_COMMITS` commits the session that happens to pass compacts a small
batch, so that history, feed and expired records stay bounded without anybody scheduling anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from math import floor
from typing import Any, Final

from interlock.codec import VALUE_BYTES
from interlock.core import isolation as modes
from interlock.core.calls import ENDED
from interlock.core.carrying import fence
from interlock.core.isolation import Isolation
from interlock.core.locking import Locking
from interlock.core.options import Chosen
from interlock.core.retry import RetryPolicy
from interlock.core.space import Resource, Space
from interlock.core.transaction import Generation, Transaction, current, process
from interlock.core.typed import PLAIN, value_type
from interlock.errors import InterlockError, UnsupportedError, UsageError
from interlock.gates import Gates, KeysInUse
from interlock.keys import check_name
from interlock.ports import Backend, Runtime, direct_way, telling_way

HOUSEKEEPING_COMMITS: Final = 512
"""After how many commits of one store object a batch is compacted."""
HOUSEKEEPING_LIMIT: Final = 2048
"""How many feed records one batch may drop; more than come in, so that a backlog shrinks."""

Stage = Callable[[Transaction, str, Any, str], Coroutine[Any, Any, None]]

log = logging.getLogger("interlock")


class Engine:
    """The shared part of a store object. Not for users: `Store` is."""

    def __init__(
        self,
        backend: Backend,
        runtime: Runtime,
        make_view: Callable[[Transaction, Resource], Any],
        *,
        agent: str | None,
        isolation: Isolation,
        retry: RetryPolicy,
        idempotency_ttl_seconds: float,
        history_seconds: float,
    ) -> None:
        if agent is not None:
            check_name("agent", agent)
        self.default_mode = modes.rank(isolation)
        if type(retry) is not RetryPolicy:
            raise UsageError(f"retry is a RetryPolicy, not {type(retry).__name__}")
        for name, seconds in (
            ("idempotency_ttl_seconds", idempotency_ttl_seconds),
            ("history_seconds", history_seconds),
        ):
            if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
                raise UsageError(f"{name} is a number of seconds above 0, not {seconds!r}")
        self.backend = backend
        self.direct = direct_way(backend)
        self.putting = None if self.direct is None or not self.direct.puts else self.direct
        """The direct way, if commits go by it."""
        self.telling = telling_way(backend)
        self.runtime = runtime
        self.suspends = runtime.suspends
        self.monotonic = runtime.monotonic
        self.time = runtime.time
        self.random_bits = runtime.random_bits
        """Each of these is asked for in every transaction, and is found faster here."""
        self.make_view = make_view
        self.agent = agent
        self.isolation: Isolation = isolation
        self._serializable = self.default_mode == modes.SERIALIZABLE
        self.retry = retry
        self.idempotency_ttl_seconds = float(idempotency_ttl_seconds)
        self.history_seconds = float(history_seconds)
        self.gates = Gates(runtime)
        self.keys_in_use = KeysInUse()
        self.closed = False
        self.shown_url = ""
        """Where the store is, for people: the URL that it was opened by, without user and password."""
        self.stage: Stage | None = None
        """How a session stages an effect; set by the layer that keeps them."""
        self.closing: list[Callable[[], None]] = []
        """What layers do before the backend is closed."""
        self.shared: dict[type, object] = {}
        """What layers keep for the whole of a store object, by its class."""
        self._spaces: dict[str, Space] = {}
        self._resources: dict[tuple[str, Any], Resource] = {}
        self.until_housekeeping = HOUSEKEEPING_COMMITS
        limits = backend.limits
        self.few_keys: Final = min(limits.writes, limits.reads, limits.commit_bytes // VALUE_BYTES - 1)
        """A request of so few keys is within the backend's limits, whatever their values; larger ones are counted."""
        self.locking: Locking | None = None

    def new_id(self) -> int:
        """A transaction id: 48 bits of milliseconds, then 80 random bits, so that ids are roughly in order of time."""
        return (floor(self.time() * 1000) << 80) | self.random_bits(80)

    def resource(self, name: str, declared: Any = None) -> Resource:
        """A resource seen through a type. Raises `UsageError` for a bad name or a type that cannot be stored."""
        try:
            found = self._resources.get((name, declared))
        except TypeError:
            raise UsageError(f"the type of a resource is a type, not {declared!r}") from None
        if found is None:
            space = self._spaces.get(check_name("a resource's name", name))
            if space is None:
                space = self._spaces.setdefault(name, Space(self, name))
            found = Resource(space, PLAIN if declared is None else value_type(declared))
            found = self._resources.setdefault((name, declared), found)
        return found

    def start(self, home: Resource | None, chosen: Chosen, parent: Transaction | None) -> Transaction:
        """A new transaction with the options of the call, of the enclosing session, or of the store."""
        if self.closed:
            self.check_open()
        generation, agent = process.generation, self.agent
        if chosen.usual and agent is not None and home is not None and self._serializable:
            return Transaction(
                self, self.backend, home.space, agent, self.isolation, self.default_mode, generation, True
            )
        agent = chosen.agent or (parent.agent if parent is not None else self.agent)
        if agent is None:
            raise UsageError("no agent: pass agent=, or open the store with one")
        if chosen.isolation is None:
            mode, isolation = self.default_mode, self.isolation
        else:
            mode, isolation = modes.RANKS[chosen.isolation], chosen.isolation
        space = None if home is None else home.space
        plain = space is not None and mode == modes.SERIALIZABLE and chosen.timeout_seconds is None
        txn = Transaction(self, self.backend, space, agent, isolation, mode, generation, plain)
        if mode < modes.SERIALIZABLE and space is not None:
            space.rules.admit(mode, isolation)
            txn.unchecked = [space]
        txn.run_id = chosen.run_id if chosen.run_id is not None else (None if parent is None else parent.run_id)
        if chosen.timeout_seconds is not None:
            txn.deadline = self.runtime.monotonic() + chosen.timeout_seconds
        txn.lock_timeout_seconds = chosen.lock_timeout_seconds
        if chosen.fence is not None:
            fence(txn, chosen.fence)
        return txn

    def check_open(self) -> None:
        """Raises `UsageError` after `close`."""
        if self.closed:
            raise UsageError("the store is closed")

    def parent(self, chosen: Chosen) -> Transaction | None:
        """The transaction that a new session or `run` joins; None where there is none.

        Raises `UsageError` in a task or thread that only inherited the context, and for options that it does not
        meet."""
        if self.closed:
            self.check_open()
        open_transaction = current.get()
        if open_transaction is None or open_transaction.engine is not self or chosen.detached:
            return None
        if open_transaction.state in ENDED or open_transaction.context is None:  # or interrupted while it was entered
            return None
        if not open_transaction.same_context():
            raise UsageError(
                "a session of another task or thread is open in this context; await it there, or pass detached=True "
                "for a transaction of its own"
            )
        if open_transaction.state:
            open_transaction.refuse("session or run inside it")
        if not chosen.usual:
            _check_joining(open_transaction, chosen)
        return open_transaction

    def check_generation(self, generation: Generation) -> None:
        """Raises `UsageError` for a session that was begun before a fork and is used in the child."""
        if generation is not process.generation:
            raise UsageError("this session was begun before os.fork(); begin a new one in the child")

    async def housekeep(self) -> None:
        """Compact a batch. A failure is logged, never raised: the commit after which this comes has happened."""
        self.until_housekeeping = HOUSEKEEPING_COMMITS
        try:
            await self.compact(HOUSEKEEPING_LIMIT)
        except UnsupportedError:
            pass
        except InterlockError as error:
            log.warning("compaction failed and will be tried again: %s", error)
        except BaseException as interrupt:
            interrupt.add_note(
                "interlock: the transaction was COMMITTED; only the cleaning up after it was interrupted"
            )
            raise

    async def compact(self, limit: int) -> int:
        """Drop what is older than the store's history; returns how many things were dropped."""
        now = await self.backend.now()
        return await self.backend.compact(now - self.history_seconds, limit=limit)

    async def close(self) -> None:
        """Close the backend; may be called again."""
        self.closed = True
        if self.locking is not None:
            self.locking.close()
        for close in self.closing:
            close()
        await self.backend.close()


def _check_joining(parent: Transaction, chosen: Chosen) -> None:
    """What joins a transaction is done by its agent, under its run id, in its mode: no option may say otherwise. A
    weaker isolation does not, because it gets more than it asks for; nor do ``retry`` and ``timeout_seconds``, which
    belong to whoever begins attempts."""
    weaker = chosen.isolation is None or modes.rank(chosen.isolation) <= parent.mode
    for option, wanted, found in (
        ("agent", chosen.agent, parent.agent),
        ("run_id", chosen.run_id, parent.run_id),
        ("isolation", None if weaker else chosen.isolation, parent.isolation),
    ):
        if wanted is not None and wanted != found:
            raise UsageError(
                f"{option}={wanted!r} inside a session whose {option} is {found!r}: what joins it becomes part of it; "
                "pass detached=True for a transaction of its own"
            )
