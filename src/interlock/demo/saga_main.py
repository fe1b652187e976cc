"""`run_saga_demo`: the second part of the demonstration. The same orders twice, coordinators killed in both.

1. ``try/except + kill -9``: plain calls, with every failure thought of but the coordinator's own;
2. ``saga + kill -9``: the same acts as a durable saga; in the end another process recovers.

Each column has an outside world of its own and, unless a URL is given, a new store. In a given one everything has names
of the run's own, and the recovery ends the sagas of that name only: those of somebody else are not the demonstration's
to end. Nothing here prints.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import interlock.sync
from interlock.demo.coordinator import Purchase
from interlock.demo.main import MAX_PROCESSES
from interlock.demo.outside import read_log
from interlock.demo.saga_run import Kills, SagaGathered, run_saga_column
from interlock.demo.saga_truth import SagaVerdict, judge_sagas
from interlock.demo.supervisor import DemoError
from interlock.errors import UsageError

PLAIN: Final = "try/except + kill -9"
SAGA: Final = "saga + kill -9"
ARTICLES: Final = ("MUG", "TEE", "CAP", "BAG", "PEN", "SOCK")


@dataclass(frozen=True, slots=True)
class SagaOptions:
    """How many ``orders`` come, how many coordinator ``processes`` deal with them, and at how many orders one is killed
    (``kills``). ``url``: a store that processes share, or None for a new SQLite file for each column.
    ``limit_seconds``: the longest that one column may take."""

    url: str | None = None
    orders: int = 100
    processes: int = 4
    kills: int = 8
    seed: int = 0
    limit_seconds: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= MAX_PROCESSES:
            raise UsageError(f"processes must be 1 to {MAX_PROCESSES}")
        if not 0 <= self.kills <= self.orders or not self.orders:
            raise UsageError("orders must be at least 1, and kills at most as many")


@dataclass(frozen=True, slots=True)
class SagaColumn:
    """What came of one column. ``dead_letters``: steps that recovery could not settle. ``orders`` stand in the store
    in the end; ``undone`` and ``finished`` are what recovery did with abandoned sagas; ``broken`` orders ended with an
    error of the store and were left to it too."""

    name: str
    safe: bool
    verdict: SagaVerdict
    orders: int
    coordinators_killed: int
    broken: int
    undone: int
    finished: int
    dead_letters: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether everything that has to be zero is zero."""
        return self.verdict.clean and not self.dead_letters


@dataclass(frozen=True, slots=True)
class SagaResult:
    """The second part: the input in figures, and the columns."""

    orders: int
    processes: int
    columns: tuple[SagaColumn, ...]

    @property
    def ok(self) -> bool:
        """Whether the column of sagas is clean."""
        return all(column.clean for column in self.columns if column.safe)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know so as not to be misled."""
        notes = []
        if any(column.verdict.clean for column in self.columns if not column.safe):
            notes.append("Nothing went wrong without sagas either, so this run proves nothing: use another seed.")
        if any(not column.undone + column.finished for column in self.columns if column.safe):
            notes.append("No coordinator was killed in the middle of an order: use another seed.")
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        columns = [{**asdict(column), "clean": column.clean} for column in self.columns]
        return {**asdict(self), "columns": columns, "ok": self.ok, "notes": list(self.notes)}


Progress = Callable[[str, int, int], None]


def _quiet(_name: str, _done: int, _total: int) -> None:
    """No progress wanted."""


def purchases_of(options: SagaOptions) -> tuple[Purchase, ...]:
    """The orders that a seed stands for."""
    random = Random(f"{options.seed}/purchases")
    return tuple(
        Purchase(f"o-{number}", random.choice(ARTICLES), random.randint(1, 3), random.randrange(500, 20_000))
        for number in range(1, options.orders + 1)
    )


def run_saga_demo(options: SagaOptions | None = None, on_progress: Progress = _quiet) -> SagaResult:
    """Run both columns and judge them. Takes some seconds for each.

    Raises `DemoError` if the processes cannot do their work."""
    options = options or SagaOptions()
    if options.url is not None and options.url.startswith("memory:"):
        raise DemoError(f"{options.url}: processes cannot share a store in memory")
    purchases = purchases_of(options)
    units = max(1, sum(purchase.quantity for purchase in purchases) // len(ARTICLES))
    opening = dict.fromkeys(ARTICLES, units)  # so that some articles are sold out before the end
    columns = tuple(_run_column(options, name, name == SAGA, purchases, opening, on_progress) for name in (PLAIN, SAGA))
    return SagaResult(options.orders, options.processes, columns)


def _run_column(
    options: SagaOptions,
    name: str,
    durable: bool,
    purchases: tuple[Purchase, ...],
    opening: Mapping[str, int],
    on_progress: Progress,
) -> SagaColumn:
    victims = Random(f"{options.seed}/kills").sample([purchase.order for purchase in purchases], options.kills)
    on_progress(name, 0, len(purchases))
    prefix = "" if options.url is None else f"demo-{os.urandom(4).hex()}-"
    with tempfile.TemporaryDirectory(prefix="interlock-demo-") as folder:
        url, log = options.url or f"sqlite:///{folder}/orders.db", Path(folder) / "outside.log"
        with (
            interlock.sync.open(url, agent="supervisor") as store,
            store.resource(f"{prefix}stock").session() as session,
        ):
            for article, units in opening.items():
                session.write(article, units)
        parts = [purchases[number :: options.processes] for number in range(options.processes)]
        gathered = run_saga_column(
            url,
            log,
            [part for part in parts if part],
            prefix=prefix,
            durable=durable,
            seed=options.seed,
            kills=Kills(frozenset(victims), seed=options.seed),
            limit_seconds=options.limit_seconds,
            on_progress=lambda done: on_progress(name, done, len(purchases)),
        )
        return _judged(name, durable, gathered, (url, prefix), log, opening)


def _judged(
    name: str, durable: bool, gathered: SagaGathered, place: tuple[str, str], log: Path, opening: Mapping[str, int]
) -> SagaColumn:
    url, prefix = place
    with interlock.sync.open(url, agent="supervisor") as store:
        stock = {str(article): units for article, units in store.resource(f"{prefix}stock").scan()}
        orders = {str(order): Purchase(**written) for order, written in store.resource(f"{prefix}orders").scan()}
    return SagaColumn(
        name=name,
        safe=durable,
        verdict=judge_sagas(opening, stock, orders, read_log(log), gathered.completed),
        orders=len(orders),
        coordinators_killed=gathered.coordinators_killed,
        broken=len(gathered.broken),
        undone=len(gathered.undone),
        finished=len(gathered.finished),
        dead_letters=len(set(gathered.left)),
        seconds=gathered.seconds,
    )
