"""Dead letters: steps of durable sagas that still stand, because their undo failed or nobody knows about them.

A letter lies beside the step's record and is written and removed in the same commits. Whoever deals with it takes
the saga over meanwhile; when the last one is gone the saga has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from interlock.core.engine import Engine
from interlock.errors import BackendCorruptError, NotFoundError, UsageError
from interlock.layers.ledger import Ledger
from interlock.saga import journal as records
from interlock.saga.errors import SagaError
from interlock.saga.journal import LETTERS, Journal
from interlock.saga.pages import Place
from interlock.saga.receipts import engines_of
from interlock.saga.records import FailedUndo
from interlock.saga.recovery import end_run
from interlock.saga.storing import load_value, store_value
from interlock.saga.worlds import World

_SETTLED = ("undone", "skipped", "failed")


async def list_letters(engine: Engine) -> AsyncIterator[FailedUndo]:
    """All of them, in the order of their ids."""
    ledger = Ledger(engine)
    after: tuple[Any, ...] | None = None
    while True:
        page = await ledger.scan(LETTERS, after=after, limit=200)
        for record in page.records:
            if record.value is not None:
                yield await _shown(engine, str(LETTERS.parts(record.key)[0]), record.value)
        if not page.more:
            return
        after = LETTERS.parts(page.records[-1].key)


async def _shown(engine: Engine, letter: str, value: Mapping[str, Any]) -> FailedUndo:
    key = records.PAGES.key(value["name"], value["id"], value["run"], value["page"])
    page = (await Ledger(engine).read(records.PAGES, [key])).records[0].value or {}
    _, step = page.get(value["place"], (b"", {}))
    arguments = {name: _plain(stored) for name, stored in step.get("kept", {}).items()}
    result = _plain(step["result"]) if "result" in step else None
    why = SagaError(f"{value['why']}: {value['error']}")
    return FailedUndo(value["id"], value["step"], arguments, result, why, None, letter)


def _plain(stored: list[Any]) -> Any:
    return load_value(stored, lambda: Any, "a value") if not stored[0] else stored[1]


class Desk:
    """One letter, with its saga taken over."""

    def __init__(self, engine: Engine, world: World, letter: str, value: Mapping[str, Any], agent: str | None) -> None:
        self.letter = letter
        self.world = world
        self.place: Place = value["place"]
        chosen = agent or engine.agent or "recovery"
        name, saga_id = value["name"], value["id"]
        self.journal = Journal(engine, name, saga_id, chosen, 30)

    async def __aenter__(self) -> Desk:
        journal = self.journal
        if not await journal.enter():
            await journal.leave()
            raise NotFoundError(f"the saga of dead letter {self.letter!r} is gone")
        try:
            await journal.claim()
            await journal.load()
            if self.place not in journal.steps:
                raise BackendCorruptError(f"dead letter {self.letter!r} is about a step that its saga does not have")
        except BaseException:
            await self.world.shielded(journal.leave())
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.world.shielded(self.journal.leave())

    async def settle(self, changes: Mapping[str, Any]) -> None:
        """Write down what a person has decided; the saga ends with its last letter."""
        journal = self.journal
        await journal.drop_letter(self.place, changes)
        steps = journal.steps.values()
        if journal.head["status"] == records.DECIDED:
            open_acts = [
                each for each in steps if each.get("kind") == "deferred" and each["status"] not in ("done", "skipped")
            ]
            if not open_acts:
                await journal.set_status(records.COMMITTED)
        elif journal.head["status"] == records.INCOMPLETE and all(each["status"] in _SETTLED for each in steps):
            await journal.set_status(records.UNDONE)


async def _desk(engine: Engine, world: World, letter: str, agent: str | None) -> Desk:
    if type(letter) is not str or not letter:
        raise UsageError(f"a dead letter's id is a text, not {letter!r}")
    found = (await Ledger(engine).read(LETTERS, [LETTERS.key(letter)])).records[0]
    if found.value is None:
        raise NotFoundError(f"there is no dead letter {letter!r}")
    return Desk(engine, world, letter, found.value, agent)


async def retry(
    engine: Engine,
    world: World,
    letter: str,
    modules: Collection[str] = (),
    undo: Mapping[str, Any] | None = None,
    agent: str | None = None,
    stores: Collection[Any] = (),
) -> bool:
    """Try again what the letter is about; whether it is settled now."""
    engines = await engines_of(stores, engine.runtime.suspends, agent or engine.agent or "recovery")
    async with await _desk(engine, world, letter, agent) as desk:
        await end_run(desk.journal, world, None, 60, modules=modules, undos=undo, stores=engines, only=desk.place)
        return desk.journal.steps[desk.place]["status"] in (*_SETTLED, "done")


async def skip(engine: Engine, world: World, letter: str, reason: str, agent: str | None = None) -> None:
    """Leave it as it is, for ever, with a reason."""
    if type(reason) is not str or not reason:
        raise UsageError("skip needs a reason")
    async with await _desk(engine, world, letter, agent) as desk:
        await desk.settle({"status": "skipped", "reason": reason})


async def mark_done(engine: Engine, world: World, letter: str, result: Any, agent: str | None = None) -> None:
    """A person has done it by hand: the undo, or the deferred act with this result."""
    async with await _desk(engine, world, letter, agent) as desk:
        deferred = desk.journal.steps[desk.place].get("kind") == "deferred"
        stored = store_value(result, lambda: None, "the result")
        await desk.settle({"status": "done", "result": stored} if deferred else {"status": "undone"})
