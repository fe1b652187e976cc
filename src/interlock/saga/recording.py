"""Between the engine of sagas and the journal: what each step writes, and what it finds there when it is run again.

A saga that is entered again is *replayed*: a step whose record is done returns its recorded result and is not called.
It must be the step that was recorded: the same function and arguments at the same place, or `JournalMismatchError`,
after which nothing goes forward any more. A step that was only begun is settled by its ``verify``; without an answer
the saga is undone. Recorded steps that the program has not reached when it ends are a mismatch, too; all of them are
undone with the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from interlock import codec
from interlock.core.engine import Engine
from interlock.errors import InterlockError, UsageError, ValueRefusedError
from interlock.layers.effects.answers import NOT_HAPPENED, Happened
from interlock.saga import journal as records
from interlock.saga.errors import JournalMismatchError, StepUnknownError
from interlock.saga.journal import Journal
from interlock.saga.kinds import label_of
from interlock.saga.matching import name_of, takes_key
from interlock.saga.pages import Place
from interlock.saga.receipts import met
from interlock.saga.recorded import (
    LEFT_ALONE,
    check_durable,
    facts_of,
    load_result,
    no_hint,
    place_of,
    record_from,
    result_hint,
    unknown_function,
)
from interlock.saga.records import State, StepRecord, plain
from interlock.saga.registry import find, path_of
from interlock.saga.storing import hints_of, load_value, store_value, what_of
from interlock.saga.transacting import recall
from interlock.saga.verifying import ask
from interlock.wording import error_text

if TYPE_CHECKING:
    from interlock.saga.frames import Frame


class Recorder:
    """The journal of a running saga, as the engine uses it. ``settled``: the saga was committed before, and is only
    replayed."""

    def __init__(self, journal: Journal, *, settled: bool = False, only: Place | None = None) -> None:
        self.journal = journal
        self.only = only
        self.settled = settled
        self.replays = bool(journal.steps)
        self._unreached = set(journal.steps)
        self._late: list[Place] = []
        self.modules: Collection[str] = ()
        self.undos: Mapping[str, Any] = {}
        self.stores: Mapping[str, Engine] = {}
        self.missing: list[str] = []
        self.missing_stores: list[str] = []

    @property
    def lost(self) -> bool:
        """Whether another coordinator has taken over: this one undoes nothing any more."""
        return self.journal.lost

    @property
    def has_unreached(self) -> bool:
        """Whether the program has not come to some recorded step yet."""
        return bool(self._unreached)

    # -- forward -------------------------------------------------------------------------------------------------------
    async def begin(self, frame: Frame, record: StepRecord) -> bool:
        """A step is about to be called; True: it was done before, and ``record.result`` is what it returned."""
        transacting = record.transacting
        if transacting is None:
            facts = facts_of(frame, record)
        else:
            facts = await transacting.describe(self)
        place = record.position if record.step_id is None else record.step_id
        recorded = self.journal.steps.get(place)
        if recorded is not None:
            if place not in self._unreached:
                raise UsageError(f"two steps of saga {self.journal.title} have the id {place!r}")
            self._unreached.discard(place)
            self._check_same(frame, record, place, recorded, facts)
            if await self._replay(frame, record, place, recorded):
                return True
        elif self.settled:
            raise self._mismatch(frame, place, f"{record.label()} is not among the steps of this saga, which committed")
        if transacting is not None and transacting.carries:
            await self.journal.ready()
        else:
            facts["status"], facts["order"] = "begun", record.position
            await self.journal.begin(place, facts)
        return False

    def _check_same(
        self, frame: Frame, record: StepRecord, place: Place, recorded: dict[str, Any], facts: dict[str, Any]
    ) -> None:
        if recorded["fn"] != facts["fn"]:
            said = f"the journal has {recorded['fn']} there, the program calls {facts['fn']}"
            raise self._mismatch(frame, place, said)
        if recorded.get("print") != facts["print"]:
            raise self._mismatch(frame, place, f"{record.label()} is called with other arguments than before")
        if recorded.get("store") != facts.get("store"):
            raise self._mismatch(frame, place, f"{record.label()} commits to another store than before")

    def _mismatch(self, frame: Frame, place: Place, said: str) -> JournalMismatchError:
        error = JournalMismatchError(
            f"saga {self.journal.title} does other things than its journal says, at step {place}: {said}",
            saga_id=self.journal.saga_id,
            position=place if type(place) is int else -1,
        )
        frame.doom(error)
        return error

    async def _replay(self, frame: Frame, record: StepRecord, place: Place, recorded: dict[str, Any]) -> bool:
        status = recorded["status"]
        if status == "done":
            record.result = load_result(record.fn, record.undo, recorded["result"])
            if record.transacting is not None:
                recall(self, record, recorded)
            return True
        if status == "begun":
            if record.transacting is not None:
                record.transacting.earlier = recorded
            verdict = await ask(frame, record)
            if isinstance(verdict, Happened):
                record.result = verdict.result
                self.done(frame, record)
                return True
            if record.transacting is not None:
                record.transacting.earlier = None
            if verdict is not NOT_HAPPENED:
                record.called = True
                raise StepUnknownError(
                    f"step {record.label()} was interrupted when its process died, and nobody knows whether it "
                    "happened; the saga cannot go on",
                    step=record.label(),
                )
        return False

    def done(self, frame: Frame, record: StepRecord) -> None:
        """A step has succeeded. Raises `ValueRefusedError` if its result cannot be kept."""
        if record.transacting is not None:
            unsaid = record.transacting.unsaid()
            if unsaid is not None:
                self.journal.note(place_of(record), unsaid)
            return
        try:
            stored = [False, codec.freeze(record.result)]
        except ValueRefusedError:
            stored = store_value(
                record.result, lambda: result_hint(record.fn, record.undo), f"the result of {name_of(record.fn)}"
            )
        place = record.position if record.step_id is None else record.step_id
        self.journal.note(place, {"status": "done", "result": stored, "order": record.order})

    def failed(self, record: StepRecord) -> None:
        """A step has failed by its own word."""
        if record.called and not self.settled and place_of(record) in self.journal.steps:
            self.journal.note(place_of(record), {"status": "failed"})
        elif place_of(record) in self.journal.steps:
            self._late.append(place_of(record))

    def refuse_unreached(self, frame: Frame) -> None:
        """Raises `JournalMismatchError` if the program has ended without some recorded steps."""
        if self._unreached:
            place = min(self._unreached, key=str)
            raise self._mismatch(
                frame, place, f"the program ended without {label_of(place, self.journal.steps[place])}"
            )

    async def decide(self, deferred: list[StepRecord]) -> None:
        """Everything has succeeded: nothing is undone from here on."""
        if self.settled:
            return
        acts: dict[Place, dict[str, Any]] = {}
        for record in deferred:
            value = {
                "fn": path_of(record.source),
                "label": record.label(),
                "status": "pending",
                "kind": "deferred",
                "key": record.key,
                "arguments": [store_value(each, no_hint, "an argument") for each in record.arguments],
                "order": record.position,
                "verify": None if record.verify_source is None else path_of(record.verify_source),
            }
            acts[place_of(record)] = value
        if acts:
            self.journal.put_steps(acts)
        await self.journal.set_status(records.DECIDED if deferred else records.COMMITTED)

    async def committed(self) -> None:
        """Every deferred act has run."""
        if not self.settled and self.journal.head["status"] != records.COMMITTED:
            await self.journal.set_status(records.COMMITTED)

    async def begin_deferred(self, frame: Frame, record: StepRecord) -> bool:
        """A deferred act is about to run; True: it has run before."""
        place = place_of(record)
        recorded = self.journal.steps[place]
        if recorded["status"] == "done":
            record.result = load_result(record.fn, None, recorded["result"])
            return True
        if recorded["status"] in ("begun", "unknown"):
            verdict = await ask(frame, record)
            if isinstance(verdict, Happened):
                record.result = verdict.result
                self.done(frame, record)
                return True
            if verdict is not NOT_HAPPENED:
                raise TimeoutError("it was interrupted when its process died, and nobody knows whether it happened")
        await self.journal.write_step(place, {"status": "begun"})
        return False

    async def deferred_failed(self, record: StepRecord) -> None:
        """A deferred act has failed: the saga stays open, with a dead letter."""
        place = place_of(record)
        status = "unknown" if record.state is State.UNKNOWN else "pending"
        await self.journal.know_letter(place)
        letter = {
            "step": record.label(),
            "error": _said(record.error),
            "why": "deferred",
        }
        await self.journal.write_step(place, {"status": status}, letter)

    def admit_deferred(self, frame: Frame, record: StepRecord) -> None:
        """An act is deferred: it must be found again by its name, and its arguments kept."""
        check_durable(record)
        for each in record.arguments:
            store_value(each, no_hint, f"an argument of {name_of(record.fn)}")
        frame.step_key(record)
        place = place_of(record)
        recorded = self.journal.steps.get(place)
        if recorded is None:
            return
        if recorded["fn"] != path_of(record.source):
            raise self._mismatch(frame, place, f"the journal has {recorded['fn']} there, the program {record.label()}")
        self._unreached.discard(place)

    # -- back ----------------------------------------------------------------------------------------------------------
    async def roll_back(self, frame: Frame) -> None:
        """The saga is going to be undone: recorded steps that were not reached are undone with it."""
        if frame.parent is not None or self.settled:
            return
        if self.journal.head["status"] == records.RUNNING:
            await self.journal.set_status(records.UNDOING)
        for place in self._late:
            self.journal.note(place, {"status": "failed"})
        for place in self._unreached:
            record = record_from(place, self.journal.steps[place], self.journal.key_of(place))
            if self.only is not None and self.only != place:
                record.state = LEFT_ALONE.get(record.state, record.state)
            frame.records.append(record)
        self._unreached.clear()

    def find_functions(self, record: StepRecord) -> None:
        """Give a step that is known from the journal only its undo, its probe and its arguments. What cannot be found
        makes the undo fail, with `UsageError`."""
        stored = record.stored
        if stored is None:
            return
        record.stored, record.loaded = None, {}
        if stored.get("kind") == "transact":
            recall(self, record, stored)
            return
        if stored.get("verify") is not None:
            record.verify = plain(find(stored["verify"], self.modules))
        if stored.get("undo") is None:
            return
        path = stored["undo"]
        undo = self.undos.get(path) or find(path, self.modules)
        if undo is None:
            self.missing.append(path)
            record.undo_error = UsageError(
                f"the undo {path} is not known in this process: import the module that declares it with @compensable, "
                "name it in modules=, or give it in undo="
            )
            return
        record.undo = plain(undo)
        try:
            hints = hints_of(record.undo)
            record.loaded = {
                name: load_value(kept, lambda name=name: hints.get(name), what_of(record.undo, name))  # type: ignore[misc]
                for name, kept in stored.get("kept", {}).items()
            }
            record.arguments = tuple(load_value(each, no_hint, "an argument") for each in stored.get("positional", ()))
            if "result" in stored:
                fn = find(stored["fn"], self.modules)
                record.result = load_result(
                    unknown_function if fn is None else plain(fn), record.undo, stored["result"]
                )
        except InterlockError as refused:
            record.undo_error = refused

    def find_deferred(self, record: StepRecord, stored: dict[str, Any]) -> bool:
        """Give a deferred act its function and arguments; False where this process does not know it."""
        fn = find(stored["fn"], self.modules)
        if fn is None:
            self.missing.append(stored["fn"])
            return False
        record.fn = plain(fn)
        record.source = fn
        record.arguments = tuple(load_value(each, no_hint, "an argument") for each in stored["arguments"])
        record.takes_key = takes_key(record.fn, record.arguments, {})
        if stored.get("verify") is not None:
            record.verify = plain(find(stored["verify"], self.modules))
        return True

    async def undoing(self, record: StepRecord) -> None:
        """An undo is about to run: by who coordinates the saga, and nobody else."""
        await self.journal.write_step(place_of(record), {"status": "undoing"}, durable=False)

    async def undone(self, record: StepRecord) -> None:
        """An undo has succeeded. That of a transaction has said so in its own commit."""
        if self.journal.steps.get(place_of(record), {}).get("status") != "undone":
            await self.journal.drop_letter(place_of(record), {"status": "undone"})

    def engine_of(self, identity: str) -> Engine | None:
        """Another store of this saga's: one that was given, or that this process has used for such a step."""
        return self.stores.get(identity) or met(identity, self.journal.engine.runtime.suspends)

    async def left(self, record: StepRecord, error: BaseException | None) -> str:
        """A step stands: its undo failed, or nobody knows. Returns the id of its dead letter."""
        place = place_of(record)
        status = "unknown" if record.state is State.UNKNOWN else "undo failed"
        letter = {"step": record.label(), "error": _said(error), "why": status}
        known = {} if record.transacting is None else record.transacting.begun()
        await self.journal.know_letter(place)
        await self.journal.write_step(place, {**known, "status": status}, letter)
        return self.journal.letter_id(place)

    async def ended(self, whole: bool) -> None:
        """The rollback of the root has come to its end. One that committed stays so, whatever becomes of the dead
        letters that its nested sagas have left."""
        if not self.settled and self.journal.head["status"] != records.COMMITTED:
            await self.journal.set_status(records.UNDONE if whole else records.INCOMPLETE)


def _said(error: BaseException | None) -> str:
    """What a dead letter says of an error, if there is one."""
    return "it was interrupted, and nobody knows whether it happened" if error is None else error_text(error)
