"""The commands about effects: ``effects list``, ``show``, ``reconcile``, ``resolve``, ``dispatch``.

Handlers and probes are a program's, so `reconcile` and `dispatch` import its modules: they take over the handlers of
every store that such a module has as a global, and call its ``register_effects(effects)``, if it has one, with
something to call ``handler`` on. Where one of the handlers is asynchronous all are run on an event loop, otherwise none
is, so that a handler that blocks does not keep its own claim from being renewed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Annotated, Any, Final, NoReturn

import typer

import interlock
from interlock import Dispatched, Effect, EffectStatus, Reconciled, sync
from interlock.cli.exits import Exit
from interlock.cli.forms import parse_value, printable, to_form
from interlock.cli.options import DEFAULT_URL, AsJson, Limit, Url, opened, require_store
from interlock.cli.output import NOTHING, Output, reporting, shown_time
from interlock.errors import NotFoundError, UsageError

REGISTER: Final = "register_effects"
_LOOK_SECONDS: Final = 1.0

EffectKey = Annotated[str, typer.Argument(metavar="KEY", help="The effect's key.", show_default=False)]
EffectName = Annotated[
    str | None,
    typer.Option("--effect", metavar="NAME", help="The name that it was staged under, where several have the key."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module with handlers; may be given several times."),
]


class Status(Enum):
    """What `list` may be asked for."""

    pending = "pending"
    executing = "executing"
    succeeded = "succeeded"
    failed = "failed"
    unknown = "unknown"


class Verdict(Enum):
    """What somebody who has looked may say."""

    succeeded = "succeeded"
    failed = "failed"
    pending = "pending"


class Handlers:
    """Handlers by the name of their effect, collected before there is a store to give them to."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Any, Any, Any]] = {}

    def handler(self, effect: str, act: Callable[..., Any], *, verify: Any = None, retry: Any = None) -> None:
        """As `EffectStore.handler`."""
        self.found[effect] = (act, verify, retry)

    def give(self, effects: Any) -> None:
        """Declare them all."""
        for effect, (act, verify, retry) in self.found.items():
            effects.handler(effect, act, verify=verify, **({} if retry is None else {"retry": retry}))

    @property
    def asynchronous(self) -> bool:
        """Whether one of them has to be awaited."""
        return any(
            inspect.iscoroutinefunction(each) for act, verify, _ in self.found.values() for each in (act, verify)
        )


def load(modules: list[str] | None) -> Handlers:
    """The handlers of modules. Raises `UsageError` for one that cannot be imported or has none."""
    handlers = Handlers()
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in modules or ():
        before = len(handlers.found)
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"module {name!r} cannot be imported: {error}") from error
        for value in list(vars(module).values()):
            if isinstance(value, interlock.Store | sync.Store):
                for effect, handler in value.effects.handlers.items():
                    handlers.handler(effect, handler.act, verify=handler.verify, retry=handler.retry)
        register = getattr(module, REGISTER, None)
        if register is not None:
            register(handlers)
        if len(handlers.found) == before:
            raise UsageError(f"module {name!r} has neither a store with handlers nor {REGISTER}(effects)")
    return handlers


def list_effects(
    status: Annotated[Status | None, typer.Option(help="Only effects of this status.", show_default="all")] = None,
    limit: Limit = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the effects that the journal keeps, in the order of their keys.

    An effect whose claim has ended without a word counts as unknown.

    \b
      interlock effects list --status unknown
    """
    with opened(url, as_json=as_json) as (store, output):
        wanted = None if status is None else EffectStatus(status.value)
        output.listing(
            ("key", "effect", "status", "attempts", "updated", "error"),
            islice(store.effects.list(wanted), limit),
            effect_form,
            _cells,
        )


def show(key: EffectKey, effect: EffectName = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one effect. Exit status 1 if there is none.

    \b
      interlock effects show order-42
    """
    with opened(url, as_json=as_json) as (store, output):
        found = store.effects.get(key, effect=effect)
        if found is None:
            raise NotFoundError(f"there is no effect under {key!r}", resource="effects", key=key)
        output.record(effect_form(found), indent=2 if output.tabular else None)


def reconcile(
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="The effect's key.", show_default="all that is unknown")
    ] = None,
    effect: EffectName = None,
    modules: Imports = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Ask the probes of the handlers what became of effects whose end nobody has recorded. Executes nothing.

    Without a probe a claim that has ended is recorded as unknown. Exit status 1 if something stays unknown.

    \b
      interlock effects reconcile --import shop.effects
    """
    with reporting(as_json=as_json) as output:
        handlers = load(modules)
        require_store(url)

        def work(effects: Any) -> Any:
            return effects.reconcile(key, effect=effect)

        report: Reconciled = _run(url, handlers, work)
        form = {
            name: [{"key": each[0], "effect": each[1]} for each in getattr(report, name)]
            for name in ("happened", "not_happened", "unknown", "live")
        }
        form["errors"] = [{"key": key, "effect": name, "error": error} for (key, name), error in report.errors.items()]
        _say(output, form)
    if report.unknown:
        raise typer.Exit(Exit.NEGATIVE)


def resolve(
    key: EffectKey,
    status: Annotated[Verdict, typer.Argument(help="What became of it; pending: it has not happened, do it again.")],
    result: Annotated[
        str | None, typer.Argument(metavar="RESULT", help="Its result as JSON, as `get` shows values.")
    ] = None,
    effect: EffectName = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say what became of an effect, after having looked. Refused while somebody executes it.

    \b
      interlock effects resolve order-42 succeeded '{"charge": "ch_1"}'
      interlock effects resolve order-43 pending
    """
    with opened(url, as_json=as_json, agent="cli") as (store, output):
        value = None if result is None else parse_value(result)
        done = store.effects.resolve(key, EffectStatus(status.value), value, effect=effect)
        if as_json:
            output.record(effect_form(done))
        else:
            output.line(f"{key} is {done.status.value}")


def dispatch(
    modules: Imports = None,
    limit: Limit = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is staged from now on.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Execute the effects that are staged and due, with the handlers of the modules.

    Any number of dispatchers may run at once. Exit status 1 if an effect was parked as failed or is unknown.

    \b
      interlock effects dispatch --import shop.effects --follow
    """
    with reporting(as_json=as_json) as output:
        handlers = load(modules)
        if not handlers.found:
            raise UsageError("no handlers: name a module that has some with --import")
        if follow and limit is not None:
            raise UsageError("--follow and --limit exclude each other")
        require_store(url)
        done = (
            _follow(url, handlers, output) if follow else _run(url, handlers, lambda each: each.dispatch(limit=limit))
        )
        _say(output, _counts(done))
    if done.failed or done.unknown:
        raise typer.Exit(Exit.NEGATIVE)


def _run(url: str, handlers: Handlers, work: Callable[[Any], Any]) -> Any:
    """Do something with the effects of a store, in the world that the handlers need."""

    async def awaited() -> Any:
        async with interlock.open(url, agent="cli") as store:
            handlers.give(store.effects)
            return await work(store.effects)

    if handlers.asynchronous:
        return asyncio.run(awaited())
    with sync.open(url, agent="cli") as store:
        handlers.give(store.effects)
        return work(store.effects)


def _follow(url: str, handlers: Handlers, output: Output) -> NoReturn:
    """Dispatch until interrupted; a line for each round in which something was done."""

    async def awaited() -> NoReturn:
        async with interlock.open(url, agent="cli") as store:
            handlers.give(store.effects)
            while True:
                cursor = await store.log.head()
                _say_round(output, await store.effects.dispatch())
                await store.log.wait(cursor, timeout_seconds=_LOOK_SECONDS)

    if handlers.asynchronous:
        asyncio.run(awaited())
    with sync.open(url, agent="cli") as store:
        handlers.give(store.effects)
        while True:
            cursor = store.log.head()
            _say_round(output, store.effects.dispatch())
            store.log.wait(cursor, timeout_seconds=_LOOK_SECONDS)


def _say_round(output: Output, done: Dispatched) -> None:
    if done.succeeded or done.failed or done.retrying:
        _say(output, _counts(done))


def _counts(done: Dispatched) -> dict[str, int]:
    names = ("succeeded", "failed", "retrying", "waiting", "unknown", "unhandled")
    return {name: getattr(done, name) for name in names}


def _say(output: Output, form: dict[str, Any]) -> None:
    """JSON, or a line of what there is."""
    if output.as_json:
        output.record(form)
        return
    shown = {name: value if isinstance(value, int) else len(value) for name, value in form.items()}
    output.line(
        ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in shown.items() if count) or "nothing to do"
    )


def effect_form(effect: Effect) -> dict[str, Any]:
    """An effect as JSON."""
    return {
        "key": effect.key,
        "effect": effect.effect or None,
        "status": effect.status.value,
        "result": to_form(effect.result),
        "error": effect.error,
        "payload": to_form(effect.payload),
        "operation": effect.operation,
        "agent": effect.agent or None,
        "attempts": effect.attempts,
        "claimed_by": effect.claimed_by or None,
        "seconds_left": effect.seconds_left,
        "created_at": effect.created_at.isoformat(),
        "updated_at": effect.updated_at.isoformat(),
        "due_at": None if effect.due_at is None else effect.due_at.isoformat(),
    }


def _cells(effect: Effect) -> tuple[str, ...]:
    return (
        printable(effect.key),
        printable(effect.effect) or NOTHING,
        effect.status.value,
        str(effect.attempts),
        shown_time(effect.updated_at),
        NOTHING if effect.error is None else printable(effect.error),
    )
