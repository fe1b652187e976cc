"""Ending sagas whose coordinator is gone, from any process that knows the functions.

`recover` takes over each open saga whose coordinator shows no sign of life. Then the run is
ended by the very code that ends one in its own process: backwards from the journal's records, or forwards if it was
decided. A step of which nobody knows, or an undo that fails or cannot be found, becomes a dead letter and stops
nothing; every recovery tries it again, until it succeeds or a person has dealt with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from interlock.core.engine import Engine
from interlock.errors import BackendCorruptError, SchemaMismatchError, UsageError
from interlock.keys import check_name
from interlock.layers.errors import LeaseUnavailableError
from interlock.layers.ledger import Ledger
from interlock.saga import journal as records
from interlock.saga.compensation import go_forward, roll_back
from interlock.saga.deferred import Deferred
from interlock.saga.errors import SagaAbortedError
from interlock.saga.frames import COMMITTED, INCOMPLETE, Course, Frame
from interlock.saga.journal import SAGAS, Journal
from interlock.saga.pages import Place
from interlock.saga.receipts import engines_of
from interlock.saga.recorded import place_of, record_from
from interlock.saga.recording import Recorder
from interlock.saga.records import FailedUndo, State, labels
from interlock.saga.worlds import World

PAGE: Final = 200
SKIPPED: Final = ("done", "skipped")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `Store.recover` did. Sagas are named ``name/id``.

    ``undone``: ended backwards; ``finished``: ended forwards, because they had been decided; ``unknown``: steps of
    which nobody knows (``name/id: step``); ``dead_letters``: ids of what is left for a person; ``missing_undo``: undos
    that this process does not know; ``live``: sagas left alone, as their coordinator works or they are too young;
    ``resumable``: sagas with ``on_crash="resume"``, which wait to be entered again; ``missing_stores``: other stores
    with transactions of these sagas, by URL without secrets, which were not given."""

    undone: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    dead_letters: tuple[str, ...] = ()
    missing_undo: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    resumable: tuple[str, ...] = ()
    missing_stores: tuple[str, ...] = ()


async def end_run(
    journal: Journal,
    world: World,
    hook: Callable[[FailedUndo], object] | None,
    shield_seconds: float,
    *,
    modules: Collection[str] = (),
    undos: Mapping[str, Any] | None = None,
    stores: Mapping[str, Engine] | None = None,
    only: Place | None = None,
) -> Frame:
    """End a run that broke off; the caller has taken it over. ``only``: try this one step's undo."""
    recorder = Recorder(journal, only=only)
    recorder.modules, recorder.undos, recorder.stores = modules, undos or {}, stores or {}
    course = Course(shield_seconds, journal.saga_id, recorder)
    course.key_prefix = journal.title
    frame = Frame(world, course, None, None, (), hook)
    if journal.head["status"] == records.DECIDED:
        await _finish_forward(frame, recorder)
    else:
        await roll_back(frame, SagaAbortedError("the saga's coordinator is gone", reason="recovered"))
    return frame


async def _finish_forward(frame: Frame, recorder: Recorder) -> None:
    waiting = [
        (place, value)
        for place, value in recorder.journal.steps.items()
        if value.get("kind") == "deferred" and value["status"] not in SKIPPED
    ]
    waiting.sort(key=lambda item: item[1]["order"])
    for place, value in waiting:
        record = record_from(place, value, recorder.journal.key_of(place))
        record.state = State.RUNNING
        if not recorder.find_deferred(record, value):
            frame.status = INCOMPLETE
            return
        frame.deferred.append(Deferred(record))
    failed, interruption = await frame.world.shielded(go_forward(frame))
    frame.status = COMMITTED if failed is None else INCOMPLETE
    if interruption is not None:
        raise interruption


async def recover(
    engine: Engine,
    world: World,
    *,
    agent: str | None = None,
    name: str | None = None,
    modules: Collection[str] = (),
    older_than_seconds: float = 60,
    undo: Mapping[str, Any] | None = None,
    stores: Collection[Any] = (),
    limit: int | None = None,
    lease_seconds: float = 30,
    shield_seconds: float = 60,
) -> RecoveryReport:
    """See `Store.recover`."""
    if isinstance(modules, str):
        raise UsageError("modules is a collection of names of modules, not one text")
    if type(older_than_seconds) not in (int, float) or older_than_seconds < 0:
        raise UsageError(f"older_than_seconds is a number of seconds from 0, not {older_than_seconds!r}")
    if name is not None:
        check_name("a saga's name", name)
    found: dict[str, list[str]] = {field: [] for field in RecoveryReport.__slots__}
    who = agent or engine.agent or "recovery"
    engines = await engines_of(stores, engine.runtime.suspends, who)
    now = await engine.backend.now()
    ended = 0
    async for saga, saga_id, head in _sagas(engine, False, name):
        title = f"{saga}/{saga_id}"
        if limit is not None and ended >= limit:
            break
        if head["status"] == records.RUNNING and head.get("on_crash") == "resume":
            found["resumable"].append(title)
            continue
        if now - head["at"] < older_than_seconds:
            found["live"].append(title)
            continue
        journal = Journal(engine, saga, saga_id, who, lease_seconds)
        try:
            known = await journal.enter()
        except LeaseUnavailableError:
            found["live"].append(title)
            continue
        try:
            if known and journal.head["status"] not in records.ENDED:
                await journal.claim()
                await journal.load()
                frame = await end_run(journal, world, None, shield_seconds, modules=modules, undos=undo, stores=engines)
                _note(found, journal, frame)
                ended += 1
        except LeaseUnavailableError:
            found["live"].append(title)
        except (BackendCorruptError, SchemaMismatchError) as unreadable:  # the other sagas are ended all the same
            found["unknown"].append(f"{title}: {unreadable}")
        finally:
            await world.shielded(journal.leave())
    return RecoveryReport(**{field: tuple(dict.fromkeys(each)) for field, each in found.items()})


def _note(found: dict[str, list[str]], journal: Journal, frame: Frame) -> None:
    status = journal.head["status"]
    if status == records.UNDONE:
        found["undone"].append(journal.title)
    elif status == records.COMMITTED:
        found["finished"].append(journal.title)
    recorder = frame.course.recorder
    assert recorder is not None
    found["missing_undo"] += recorder.missing
    found["missing_stores"] += recorder.missing_stores
    deferred = [each._record for each in frame.deferred]
    everything = [*frame.records, *(each for each in deferred if each not in frame.records)]
    for record, label in zip(everything, labels(everything), strict=True):
        if record.state is State.UNKNOWN:
            found["unknown"].append(f"{journal.title}: {label}")
        if record.state in (State.UNKNOWN, State.UNDO_FAILED) or (record in deferred and record.state is State.FAILED):
            found["dead_letters"].append(journal.letter_id(place_of(record)))


@dataclass(frozen=True, slots=True)
class SagaEntry:
    """A durable saga as the journal has it. ``at``: when its run began, by the engine's clock."""

    name: str
    id: str
    status: str
    run: int
    agent: str
    at: float


async def list_sagas(engine: Engine, *, ended: bool = False) -> AsyncIterator[SagaEntry]:
    """The sagas that have not ended, or all of them, by name and id."""
    async for name, saga_id, head in _sagas(engine, ended):
        yield SagaEntry(name, saga_id, head["status"], head["run"], head["agent"], head["at"])


async def _sagas(
    engine: Engine, ended: bool, only: str | None = None
) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    ledger = Ledger(engine)
    after: tuple[Any, ...] | None = None
    while True:
        page = await ledger.scan(SAGAS, () if only is None else (only,), after=after, limit=PAGE)
        for record in page.records:
            if record.value is not None and (ended or record.value["status"] not in records.ENDED):
                name, saga_id = SAGAS.parts(record.key)
                yield str(name), str(saga_id), record.value
        if not page.more:
            return
        after = SAGAS.parts(page.records[-1].key)
