"""`run_demo`: the whole demonstration as a function. Three runs of the same orders by the same agents, each judged.

1. ``isolation none``: every agent reads and writes as it likes; the baseline, and proof that the input is hard enough;
2. ``interlock``: the same function as one serializable transaction, with the order's id as its idempotency key;
3. ``interlock + kill -9``: the same again, while one process is killed midway and replaced.

Nothing here prints; progress goes to a function that the caller passes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

from interlock.demo import shop
from interlock.demo.messages import Job
from interlock.demo.orders import Export, Order, read_export, read_stock
from interlock.demo.supervisor import DemoError, Gathered, run_column
from interlock.demo.truth import Truth, Verdict, judge, truth_of
from interlock.errors import UsageError

DATA: Final = Path(__file__).parent / "data"
"""Where the shipped ``orders.csv`` and ``stock.csv`` lie; ``examples/`` of a checkout holds the same files."""

MAX_PROCESSES: Final = 64
MAX_AGENTS: Final = 64

__all__ = ["COLUMNS", "DATA", "Column", "ColumnResult", "DemoError", "DemoOptions", "DemoResult", "run_demo"]


@dataclass(frozen=True, slots=True)
class Column:
    """One way to run the orders. ``safe``: everything that is counted as wrong has to be zero."""

    name: str
    isolation: str
    safe: bool
    kill: bool = False


COLUMNS: Final = (
    Column("isolation none", "none", safe=False),
    Column("interlock", "serializable", safe=True),
    Column("interlock + kill -9", "serializable", safe=True, kill=True),
)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run. ``orders`` and ``stock``: files, or None for the shipped ones. ``url``: a store that processes
    share, or None for a new SQLite file for each column. ``agents`` is for each of the ``processes``.
    ``think_seconds``: the least and the most that an agent thinks about an order. ``limit_seconds``: the longest that
    one column may take."""

    orders: Path | None = None
    stock: Path | None = None
    url: str | None = None
    agents: int = 4
    processes: int = 4
    seed: int = 0
    think_seconds: tuple[float, float] = (0.002, 0.008)
    limit_seconds: float = 300.0
    columns: tuple[Column, ...] = COLUMNS

    def __post_init__(self) -> None:
        if not 1 <= self.agents <= MAX_AGENTS or not 1 <= self.processes <= MAX_PROCESSES:
            raise UsageError(f"agents must be 1 to {MAX_AGENTS}, processes 1 to {MAX_PROCESSES}")
        if not 0 <= self.think_seconds[0] <= self.think_seconds[1]:
            raise UsageError(f"think_seconds must be the least and the most, not {self.think_seconds!r}")


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """What came of one column. ``failures`` are errors of deliveries that could not be processed, each a sentence.

    ``conflicts``: runs of the function that were lost to another agent's commit; ``retries``: runs after a delivery's
    first. ``replays``: deliveries of an order that was done before, answered with its entry. ``p50_seconds`` and
    ``p99_seconds`` are of deliveries that were applied, thinking and retries included."""

    name: str
    safe: bool
    verdict: Verdict
    orders_sold: int
    orders_refused: int
    commits: int
    conflicts: int
    retries: int
    replays: int
    contradictions: int
    failures: tuple[str, ...]
    processes_killed: int
    seconds: float
    commits_per_second: float
    p50_seconds: float
    p99_seconds: float

    @property
    def clean(self) -> bool:
        """Whether everything that has to be zero is zero."""
        return self.verdict.clean and not self.failures


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The whole demonstration: the input in figures, and the columns."""

    rows: int
    deliveries: int
    distinct_orders: int
    refused_rows: Mapping[str, int]
    units_in_stock: int
    units_wanted: int
    units_sellable: int
    agents: int
    processes: int
    columns: tuple[ColumnResult, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Whether every column of Interlock is clean."""
        return all(column.clean for column in self.columns if column.safe)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know so as not to be misled."""
        notes = []
        if any(column.verdict.clean for column in self.columns if not column.safe):
            notes.append(
                "Nothing went wrong without isolation either, so this run proves nothing: "
                "use more orders, agents or processes."
            )
        for column, wanted in zip(self.columns, COLUMNS, strict=False):
            if wanted.kill and column.name == wanted.name and not column.processes_killed:
                notes.append("No process could be killed before it was done: use more orders.")
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        columns = [{**asdict(column), "clean": column.clean} for column in self.columns]
        return {**asdict(self), "columns": columns, "ok": self.ok, "notes": list(self.notes)}


Progress = Callable[[str, int, int], None]
"""Called with a column's name, its deliveries that are done, and all of them."""


def _quiet(_name: str, _done: int, _total: int) -> None:
    """No progress wanted."""


def run_demo(options: DemoOptions | None = None, on_progress: Progress = _quiet) -> DemoResult:
    """Run every column and judge it. Takes some seconds for each.

    Raises `OrdersFileError` for a file that cannot be read as orders or stock, `OSError` for one that cannot be
    opened, `DemoError` if the processes cannot do their work, and what `interlock.open` raises for a wrong URL."""
    options = options or DemoOptions()
    opening = read_stock((options.stock or DATA / "stock.csv").read_bytes())
    export = read_export((options.orders or DATA / "orders.csv").read_bytes(), opening)
    truth = truth_of(export.orders, opening)
    run = os.urandom(4).hex()
    columns = tuple(
        _run_column(options, column, f"demo-{run}-{number}", export.orders, truth, on_progress)
        for number, column in enumerate(options.columns, start=1)
    )
    return _summary(options, export, truth, columns)


def _summary(options: DemoOptions, export: Export, truth: Truth, columns: tuple[ColumnResult, ...]) -> DemoResult:
    return DemoResult(
        rows=export.rows,
        deliveries=len(export.orders),
        distinct_orders=len(truth.orders),
        refused_rows=dict(Counter(refusal.reason.value for refusal in export.refusals).most_common()),
        units_in_stock=sum(truth.opening.values()),
        units_wanted=truth.wanted_units,
        units_sellable=truth.sellable_units,
        agents=options.agents,
        processes=options.processes,
        columns=columns,
    )


@contextlib.contextmanager
def _store_url(url: str | None) -> Iterator[str]:
    """The URL that was given, or that of a new SQLite file that is gone afterwards."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="interlock-demo-") as folder:
        yield f"sqlite:///{folder}/shop.db"


def _jobs(options: DemoOptions, column: Column, url: str, prefix: str, orders: tuple[Order, ...]) -> list[Job]:
    """Every n-th delivery for each process."""
    return [
        Job(
            url=url,
            prefix=prefix,
            process=number + 1,
            incarnation=1,
            agents=options.agents,
            seed=options.seed,
            think_seconds=options.think_seconds,
            isolation=column.isolation,
            keyed=column.safe,
            orders=orders[number :: options.processes],
        )
        for number in range(options.processes)
    ]


def _run_column(
    options: DemoOptions,
    column: Column,
    prefix: str,
    orders: tuple[Order, ...],
    truth: Truth,
    on_progress: Progress,
) -> ColumnResult:
    on_progress(column.name, 0, len(orders))
    with _store_url(options.url) as url:
        shop.open_shop(url, prefix, truth.opening)
        gathered = run_column(
            _jobs(options, column, url, prefix, orders),
            opening_units=sum(truth.opening.values()),
            kill=column.kill,
            limit_seconds=options.limit_seconds,
            on_progress=lambda done: on_progress(column.name, done, len(orders)),
        )
        closing = shop.close_shop(url, prefix)
    entries = [message.entry for message in gathered.acknowledged]
    records = {entry.order_id: entry for page in closing.ledger.values() for entry in page}
    verdict = judge(truth, closing, entries)
    return _result(column, gathered, verdict, Counter(entry.sold for entry in records.values()))


def _result(column: Column, gathered: Gathered, verdict: Verdict, decisions: Counter[bool]) -> ColumnResult:
    applied = [message for message in gathered.acknowledged if message.applied]
    times = sorted(message.seconds for message in applied)
    return ColumnResult(
        name=column.name,
        safe=column.safe,
        verdict=verdict,
        orders_sold=decisions[True],
        orders_refused=decisions[False],
        commits=len(applied),
        conflicts=sum(message.lost for message in gathered.acknowledged),
        retries=sum(max(0, message.runs - 1) for message in gathered.acknowledged),
        replays=len(gathered.acknowledged) - len(applied),
        contradictions=len(gathered.contradicted),
        failures=tuple(f"line {failed.line}: {failed.error}" for failed in gathered.failed),
        processes_killed=gathered.processes_killed,
        seconds=gathered.seconds,
        commits_per_second=len(applied) / gathered.seconds if gathered.seconds else 0.0,
        p50_seconds=percentile(times, 50),
        p99_seconds=percentile(times, 99),
    )


def percentile(ordered: list[float], percent: float) -> float:
    """Nearest rank of a sorted list; 0 for an empty one."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0
