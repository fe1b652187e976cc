"""Cells, samples, and what is made of them.

Machines are noisy, and the noise comes in spells. So the cells that are compared take turns within each repetition, in
an order that is reversed from one repetition to the next, and a ratio is the median of the ratios of neighbours, never
the ratio of figures from different minutes.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PERCENTILES: Final = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_WARM: Final = 500
_BLOCK: Final = 50
_LATENCIES: Final = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """One cell in one repetition. ``latencies_seconds`` is sorted. ``server_seconds`` is what a server has needed for
    one commit, where it says so."""

    commits: int
    wall_seconds: float
    cpu_seconds: float
    latencies_seconds: list[float]
    server_seconds: float | None = None

    @property
    def rate(self) -> float:
        """Commits per second."""
        return self.commits / self.wall_seconds

    @property
    def cpu(self) -> float:
        """Seconds of processor time, of all threads, for each commit."""
        return self.cpu_seconds / self.commits


Measure = Callable[[float, Path], Sample]
"""Measure for about so many seconds in an empty directory."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio to a floor should be: at most, or at least."""

    floor: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Cell:
    """Something to be measured. Cells of one group are compared with the floors of that group.

    ``by_cpu``: the ratio is that of processor time (less is better), not of commits per second (more is better).
    ``server_times``: how many times the server's time for the first floor of the group this cell may need."""

    group: str
    name: str
    measure: Measure
    floor: bool = False
    by_cpu: bool = False
    targets: tuple[Target, ...] = ()
    server_times: float | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A cell against a floor: the median over the repetitions, and the span in which half of them lie."""

    floor: str
    median: float
    low: float
    high: float
    target: float | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What is reported of a cell; medians over the repetitions."""

    group: str
    name: str
    floor: bool
    by_cpu: bool
    repetitions: int
    commits_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    latency_ms: dict[str, float]
    ratios: list[Ratio] = field(default_factory=list)
    server_us: float | None = None
    server_ratio: Ratio | None = None


Step = Callable[[str], None]
"""Told what is measured next."""


def interleave(
    cells: Sequence[Cell], *, seconds: float, repetitions: int, directory: Path | None, step: Step
) -> list[Figures]:
    """Measure all cells, in turns. ``directory``: where files are made (and removed); None: the system's own place."""
    samples: list[list[Sample]] = [[] for _ in cells]
    places = list(range(len(cells)))
    for _ in range(repetitions):
        for place in places:
            cell = cells[place]
            step(f"{cell.group}: {cell.name}")
            with tempfile.TemporaryDirectory(prefix="interlock-bench-", dir=directory) as made, only_new_garbage():
                samples[place].append(cell.measure(seconds, Path(made)))
        places.reverse()
    found = dict(zip(((cell.group, cell.name) for cell in cells), samples, strict=True))
    return [_figures(cell, own, cells, found) for cell, own in zip(cells, samples, strict=True)]


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Hide from the garbage collector whatever is there already.

    A full collection looks at every object of the process. Which cell it hits is chance, and what it costs depends on
    what the benchmark itself has imported; so a cell pays for its own objects only. Where somebody has hidden objects
    before, as the tests do, they stay so."""
    hidden = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not hidden:
            gc.unfreeze()


def _figures(
    cell: Cell, samples: list[Sample], cells: Sequence[Cell], found: dict[tuple[str, str], list[Sample]]
) -> Figures:
    pooled = sorted(latency for sample in samples for latency in sample.latencies_seconds)
    ratios = [
        _ratio(cell, samples, other.name, found[other.group, other.name])
        for other in cells
        if other.floor and other.group == cell.group and other.name != cell.name
    ]
    return Figures(
        cell.group,
        cell.name,
        cell.floor,
        cell.by_cpu,
        len(samples),
        statistics.median(sample.rate for sample in samples),
        1e3 * statistics.median(percentile(sample.latencies_seconds, 50) for sample in samples),
        1e3 * statistics.median(percentile(sample.latencies_seconds, 99) for sample in samples),
        1e6 * statistics.median(sample.cpu for sample in samples),
        {str(percent): 1e3 * percentile(pooled, percent) for percent in PERCENTILES},
        ratios,
        _server_us(samples),
        _server_ratio(cell, samples, cells, found),
    )


def _server_us(samples: list[Sample]) -> float | None:
    times = [sample.server_seconds for sample in samples if sample.server_seconds is not None]
    return 1e6 * statistics.median(times) if times else None


def _server_ratio(
    cell: Cell, samples: list[Sample], cells: Sequence[Cell], found: dict[tuple[str, str], list[Sample]]
) -> Ratio | None:
    """The server's time beside that for the first floor of the group."""
    first = next((other for other in cells if other.floor and other.group == cell.group), cell)
    pairs = sorted(
        own.server_seconds / least.server_seconds
        for own, least in zip(samples, found[first.group, first.name], strict=True)
        if own.server_seconds and least.server_seconds
    )
    if not pairs or first is cell:
        return None
    median, target = statistics.median(pairs), cell.server_times
    met = None if target is None else median <= target
    return Ratio(first.name, median, percentile(pairs, 25), percentile(pairs, 75), target, met)


def _ratio(cell: Cell, samples: list[Sample], floor: str, floors: list[Sample]) -> Ratio:
    pairs = sorted(
        own.cpu / least.cpu if cell.by_cpu else own.rate / least.rate
        for own, least in zip(samples, floors, strict=True)
    )
    median = statistics.median(pairs)
    target = next((target.ratio for target in cell.targets if target.floor == floor), None)
    met = None if target is None else median <= target if cell.by_cpu else median >= target
    return Ratio(floor, median, percentile(pairs, 25), percentile(pairs, 75), target, met)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` per cent of an ordered sequence lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def measure_calls(call: Callable[[int], object], seconds: float) -> Sample:
    """Call with 0, 1, 2 ...: to get warm, then for about so long, then some times more with a clock around each."""
    clock = time.perf_counter
    count = _WARM
    for i in range(count):
        call(i)
    cpu, started = time.process_time(), clock()
    while count == _WARM or clock() - started < seconds:
        for i in range(count, count + _BLOCK):
            call(i)
        count += _BLOCK
    cpu, wall = time.process_time() - cpu, clock() - started
    latencies = []
    for i in range(count, count + _LATENCIES):
        begun = clock()
        call(i)
        latencies.append(clock() - begun)
    return Sample(count - _WARM, wall, cpu, sorted(latencies))


async def measure_awaits(call: Callable[[int], Awaitable[object]], seconds: float) -> Sample:
    """As `measure_calls`, for something to be awaited."""
    clock = time.perf_counter
    count = _WARM
    for i in range(count):
        await call(i)
    cpu, started = time.process_time(), clock()
    while count == _WARM or clock() - started < seconds:
        for i in range(count, count + _BLOCK):
            await call(i)
        count += _BLOCK
    cpu, wall = time.process_time() - cpu, clock() - started
    latencies = []
    for i in range(count, count + _LATENCIES):
        begun = clock()
        await call(i)
        latencies.append(clock() - begun)
    return Sample(count - _WARM, wall, cpu, sorted(latencies))
