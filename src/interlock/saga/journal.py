"""The journal of a durable saga: ordinary records in the system space of any backend.

One record for the saga (``saga``: name, id), one for each step (``sagastep``: name, id, run, place), one for each dead
letter. A *run* is one pass of the program through the saga; an id that was undone and is entered again gets the next
run, and so other idempotency keys. What is written when, and why that is enough:

- **begun**, before a step's function is called, with everything that its undo will need. So an effect without a record
  is impossible; a step that is only begun when its coordinator dies may or may not have happened: it is UNKNOWN.
- **done**, with the result. From here on the step is undone by whoever ends the saga, and is never called again.
- **undoing**, before an undo is called, **undone** behind it. An undo that was interrupted runs again (at least once,
  with a key of its own).
- The saga itself: **running**, then **undoing** or **decided** (only if something irreversible follows), then
  **committed**, **undone** or **incomplete**. Once it says *undoing* nothing goes forward any more, once it says
  *decided* nothing goes back.

Every write is one conditional commit that expects the record's version as this coordinator last wrote it *and* the
saga's lease as it was granted. So of two coordinators only the holder can write; the other one learns it at its next
write, which comes before its next act, and stops: `SagaClosedError`, and it undoes nothing, because whoever holds the
lease does.

What must be on the disk before anything else happens is what an act hangs on: *begun*, and where the saga stands.
*Done*, *failed*, *undoing* and *undone* are committed without waiting for the disk. They survive the death of any
process, and the next durable write brings them there with it, since engines keep their commits in order, and expects
them, in case the engine itself has lost some. A power cut before that leaves a step *begun*, and so UNKNOWN, or an
undo to be run again: both as after a crash one moment earlier.

In an asynchronous saga a plain function may be a step, too (a tool that is called like any other). It cannot await the
journal, so what it writes goes over the backend's blocking leaf, on its own thread (`plainly`).

A saga that has ended is kept for ``idempotency_ttl_seconds``, to be replayed; then its records expire.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from interlock import stepping
from interlock.core.engine import Engine
from interlock.errors import UsageError
from interlock.layers.ledger import Ledger, Record
from interlock.model import ABSENT, CommitRefused, Delete, Expectation, Key, Put, Token, Version, Write
from interlock.saga import kinds
from interlock.saga.errors import SagaClosedError

T = TypeVar("T")

SAGAS: Final = kinds.SAGAS
STEPS: Final = kinds.STEPS
LETTERS: Final = kinds.LETTERS

RUNNING, UNDOING, DECIDED, COMMITTED, UNDONE, INCOMPLETE = (
    "running", "undoing", "decided", "committed", "undone", "incomplete",
)  # fmt: skip
ENDED: Final = (COMMITTED, UNDONE)
"""Nothing is left to do."""

EXPIRING_STEPS: Final = 500
"""Up to so many steps of a saga that has ended expire with it, so that its last commit does not grow without bounds."""

Place = int | str

_plain: ContextVar[bool] = ContextVar("interlock_saga_plain", default=False)


def plainly(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a step of a plain function to its end; its journal is written without awaiting."""
    token = _plain.set(True)
    try:
        return stepping.step(coroutine)
    finally:
        _plain.reset(token)


class Fence(Protocol):
    """What keeps other coordinators out: a lease."""

    async def acquire(self) -> None:
        """Take it. Raises `LeaseUnavailableError` while another one holds it."""

    def expectations(self) -> dict[Key, Expectation]:
        """What a commit expects that only the holder may make."""

    async def release(self) -> None:
        """Give it back."""


class Journal:
    """The records of one run of one saga, as its coordinator writes them."""

    def __init__(self, engine: Engine, name: str, saga_id: str, agent: str, fence: Fence) -> None:
        self.engine = engine
        self._ledger = Ledger(engine)
        self._leaf: Ledger | None = None
        self.name = name
        self.saga_id = saga_id
        self.agent = agent
        self.fence = fence
        self.lost = False
        self.head_key = SAGAS.key(name, saga_id)
        self.head: dict[str, Any] = {}
        self.steps: dict[Place, dict[str, Any]] = {}
        self.next_run = 1
        self._at = 0.0
        """The engine's time when the journal was read."""
        self._unwritten = False
        """Whether this run has begun without a record so far."""
        self._prefix = b""
        self._keys: dict[Place, Key] = {}
        self._puts: dict[Place, Put] = {}
        """The steps as they were last encoded."""
        self._versions: dict[Key, Expectation] = {}
        self._unsynced: set[Key] = set()
        self._token: Token | None = None

    @property
    def run(self) -> int:
        """Which pass through the saga this is, from 1."""
        number: int = self.head.get("run", 1)
        return number

    @property
    def title(self) -> str:
        """The saga in reports: ``name/id``."""
        return f"{self.name}/{self.saga_id}"

    def step_key(self, place: Place) -> Key:
        """Where a step of this run lies."""
        key = self._keys.get(place)
        if key is None:
            prefix = self._prefix or STEPS.key(self.name, self.saga_id, self.run)
            self._prefix = prefix
            key = self._keys[place] = STEPS.extended(prefix, place)
        return key

    def letter_id(self, place: Place) -> str:
        """The name of a step's dead letter."""
        return f"{self.title}/{self.run}/{place}"

    @property
    def ledger(self) -> Ledger:
        """Where the records lie, for whoever awaits or for a plain function."""
        if not (_plain.get() and self.engine.runtime.suspends):
            return self._ledger
        if self._leaf is None:
            backend = self.engine.backend.blocking()
            if backend.suspends:
                raise UsageError(
                    "a plain function cannot be a step of an asynchronous durable saga over this backend, which cannot "
                    "block: make the function async, or use `await saga.step(...)`"
                )
            self._leaf = Ledger(self.engine, backend=backend, runtime=self.engine.runtime.blocking())
        return self._leaf

    # -- reading -------------------------------------------------------------------------------------------------------
    async def load(self) -> bool:
        """Read the saga and the steps of its last run; whether there is one."""
        found = await self.ledger.read(SAGAS, [self.head_key])
        head = found.records[0]
        self._token, self._at = found.token, found.at or 0.0
        self._versions[self.head_key] = ABSENT if head.version is None else head.version
        if head.value is None:
            return False
        self.next_run = head.value["run"] + 1
        if head.expired:
            return False
        self.head = dict(head.value)
        self._forget_steps()
        after: tuple[Any, ...] | None = None
        while True:
            page = await self.ledger.scan(STEPS, (self.name, self.saga_id, self.run), after=after)
            for record in page.records:
                self._learn(record)
            if not page.more:
                return True
            after = STEPS.parts(page.records[-1].key)

    def _forget_steps(self) -> None:
        """Another run: its steps have other keys."""
        self.steps.clear()
        self._prefix = b""
        self._keys.clear()
        self._puts.clear()

    def _learn(self, record: Record) -> None:
        if record.value is not None and record.version is not None:
            place = STEPS.parts(record.key)[-1]
            self.steps[place] = dict(record.value)
            self._versions[record.key] = record.version

    async def learn_step(self, place: Place) -> None:
        """Read a step's record again, after a commit that carried it and whose end nobody saw."""
        self._puts.pop(place, None)
        self._learn((await self.ledger.read(STEPS, [self.step_key(place)])).records[0])

    # -- writing -------------------------------------------------------------------------------------------------------
    def open_run(self, facts: Mapping[str, Any]) -> None:
        """Begin the next run. Its steps have keys of their own.

        Nothing is written yet: until the first step begins there is nothing to undo, and the commit that begins it
        brings the saga's own record with it."""
        number = self.next_run
        self._forget_steps()
        self.head = {**facts, "status": RUNNING, "run": number, "agent": self.agent, "at": self._at}
        self._unwritten = True

    async def write_head(self) -> None:
        """Write the saga's own record, if this run has none."""
        if self._unwritten:
            await self._write({})

    async def set_status(self, status: str, extra: Mapping[Key, Write] | None = None) -> None:
        """Move the saga on, with other records in the same commit."""
        head = {**self.head, "status": status}
        kept = self.engine.idempotency_ttl_seconds if status in ENDED else None
        writes: dict[Key, Write] = {self.head_key: SAGAS.put(head, ttl_seconds=kept), **(extra or {})}
        if kept is not None and len(self.steps) <= EXPIRING_STEPS:
            for place in self.steps:
                writes[self.step_key(place)] = Put(self._put(place).value, kept)
        await self._write(writes)
        self.head = head

    async def write_step(
        self,
        place: Place,
        changes: Mapping[str, Any],
        letter: Mapping[str, Any] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """Write a step's record anew, and its dead letter with it."""
        value = {**self.steps.get(place, {}), **changes}
        put = _encoded(value)
        writes: dict[Key, Write] = {self.step_key(place): put}
        if letter is not None:
            key = LETTERS.key(self.letter_id(place))
            self._versions.setdefault(key, ABSENT)
            writes[key] = LETTERS.put({
                "name": self.name, "id": self.saga_id, "run": self.run, "place": place, **letter,
            })  # fmt: skip
        await self._write(writes, durable=durable)
        self.steps[place], self._puts[place] = value, put

    def _put(self, place: Place) -> Put:
        """The write of a step as it is known here."""
        put = self._puts.get(place)
        return _encoded(self.steps[place]) if put is None else put

    async def drop_letter(self, place: Place, changes: Mapping[str, Any]) -> None:
        """Write a step's record anew and take its dead letter away."""
        value = {**self.steps.get(place, {}), **changes}
        key = LETTERS.key(self.letter_id(place))
        await self._know(key)
        put = _encoded(value)
        writes: dict[Key, Write] = {self.step_key(place): put}
        stood = self._versions[key] is not ABSENT
        if stood:
            writes[key] = Delete()
        await self._write(writes, durable=stood)
        self.steps[place], self._puts[place] = value, put

    async def _know(self, key: Key) -> None:
        if key not in self._versions:
            found = await self.ledger.read(LETTERS, [key])
            version = found.records[0].version
            self._versions[key] = ABSENT if version is None else version

    async def know_letter(self, place: Place) -> None:
        """Learn whether a step has a dead letter already, before one is written."""
        await self._know(LETTERS.key(self.letter_id(place)))

    async def _write(self, writes: Mapping[Key, Write], *, durable: bool = True) -> None:
        if self._unwritten:
            durable = True
            writes = {self.head_key: SAGAS.put(self.head), **writes}
        expected = {key: self._versions.get(key, ABSENT) for key in writes}
        if durable:
            expected = {**self._volatile(), **expected}
        try:
            done = await self._commit(writes, expected, durable)
        except CommitRefused as refused:
            self.lost = True
            raise SagaClosedError(
                f"saga {self.title} was taken over by another process, which goes on with it or undoes it; nothing "
                "more is done here"
            ) from refused
        self._token = done.token
        self._unwritten = False
        for key, write in writes.items():
            if type(write) is Delete:
                self._versions[key] = ABSENT
            elif done.version is not None:
                self._versions[key] = done.version
        if durable:
            self._unsynced.clear()
        else:
            self._unsynced.update(writes)

    def _volatile(self) -> dict[Key, Expectation]:
        """What the next durable commit expects, so that nothing durable stands on a record that the engine has lost."""
        return {key: self._versions[key] for key in self._unsynced}

    async def _commit(self, writes: Mapping[Key, Write], expected: dict[Key, Expectation], durable: bool) -> Any:
        expected = {**expected, **self.fence.expectations()}
        return await self.ledger.gathered(writes, expected, agent=self.agent, durable=durable, snapshot=self._token)

    # -- as a part of somebody else's commit ---------------------------------------------------------------------------
    def carried(self, place: Place, changes: Mapping[str, Any]) -> tuple[dict[Key, Write], dict[Key, Expectation]]:
        """A step's record for the commit of a session of the same store, and what that commit has to expect."""
        assert not self._unwritten, "the saga's own record comes first: write_head"
        key = self.step_key(place)
        value = {**self.steps.get(place, {}), **changes}
        expected = {**self._volatile(), key: self._versions.get(key, ABSENT), **self.fence.expectations()}
        return {key: STEPS.put(value)}, expected

    async def carried_letter(self, place: Place) -> tuple[dict[Key, Write], dict[Key, Expectation]]:
        """The end of a step's dead letter, for such a commit."""
        await self.know_letter(place)
        letter = LETTERS.key(self.letter_id(place))
        stands = self._versions[letter]
        return {} if stands is ABSENT else {letter: Delete()}, {letter: stands}

    def dropped_letter(self, place: Place) -> None:
        """That commit has happened."""
        self._versions[LETTERS.key(self.letter_id(place))] = ABSENT

    def carried_done(self, place: Place, changes: Mapping[str, Any], version: Version) -> None:
        """That commit has happened."""
        self.steps[place] = {**self.steps.get(place, {}), **changes}
        self._puts.pop(place, None)
        self._versions[self.step_key(place)] = version


def _encoded(step: dict[str, Any]) -> Put:
    """The write of a step. What `interlock.saga.recorded` and `interlock.saga.recording` put into one is plain; a
    transaction's inverse need not be."""
    return STEPS.put(step) if "inverse" in step else STEPS.put_plain(step)
