"""Every cell of the benchmarks runs for a few milliseconds, and what comes out has the form that is promised.

Times are not looked at: a test that depends on the speed of a machine says nothing about the code."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import (
    command,
    effects,
    locks,
    memory,
    peers,
    plots,
    postgresql,
    report,
    sagas,
    scale,
    slow_syncs,
    sqlite,
)  # fmt: skip
from benchmarks import redis as redis_cells
from benchmarks.floors import postgresql as postgresql_floors
from benchmarks.floors import redis as redis_floors
from benchmarks.floors.memory import LeastSession, LeastStore, Refused
from benchmarks.floors.sqlite import LeastRows, SameRows, commit_inline, connect
from benchmarks.floors.sqlite import Refused as RowsRefused
from benchmarks.measure import (
    Cell,
    Figures,
    Sample,
    Target,
    interleave,
    measure_awaits,
    measure_calls,
    percentile,
)  # fmt: skip
from benchmarks.report import Report
from benchmarks.slow_syncs import SlowSyncs
from benchmarks.workload import VALUE, changed
from servers import missing

TASKS, THREADS = (1, 3), (1, 2)


def measured(cells: list[Cell], directory: Path, seconds: float = 0.002) -> list[Figures]:
    steps: list[str] = []
    found = interleave(cells, seconds=seconds, repetitions=1, directory=directory, step=steps.append)
    assert steps == [f"{cell.group}: {cell.name}" for cell in cells]
    assert not list(directory.iterdir()), "a cell leaves nothing behind"
    for cell, figures in zip(cells, found, strict=True):
        assert (figures.group, figures.name, figures.floor) == (cell.group, cell.name, cell.floor)
        assert figures.commits_per_second > 0
        assert 0 < figures.p50_ms <= figures.p99_ms
        assert figures.cpu_us > 0
        floors = [other.name for other in cells if other.floor and other.group == cell.group and other is not cell]
        assert [ratio.floor for ratio in figures.ratios] == floors
        assert all(math.isfinite(ratio.median) and ratio.median > 0 for ratio in figures.ratios)
        judged = {ratio.floor for ratio in figures.ratios if ratio.met is not None}
        assert judged == {target.floor for target in cell.targets}
    return found


def test_a_cell_makes_something_in_however_little_time() -> None:
    """The machine may do something else as soon as the clock has been looked at."""

    async def awaited(number: int) -> None:
        pass

    assert measure_calls(lambda number: None, 0.0).commits > 0
    assert asyncio.run(measure_awaits(awaited, 0.0)).commits > 0


def test_memory_cells(tmp_path: Path) -> None:
    found = measured(memory.cells(), tmp_path)
    assert {figures.name for figures in found if not figures.floor} == {
        "port level", "async session", "async run", "sync session", "sync run"
    }  # fmt: skip


def test_saga_cells(tmp_path: Path) -> None:
    found = measured(sagas.cells((1, 2)), tmp_path)
    assert {"with Saga", "async with Saga", "with store.saga", "async with store.saga"} <= {
        figures.name for figures in found
    }


def test_lock_cells(tmp_path: Path) -> None:
    found = measured(locks.cells(2), tmp_path)
    assert [figures.name for figures in found] == 2 * [locks.MANY, locks.ONE, locks.FREE]


def test_sqlite_cells(tmp_path: Path) -> None:
    found = measured(sqlite.cells(TASKS, THREADS), tmp_path)
    assert [(figures.group, "key" in figures.name) for figures in found if "run" in figures.name] == [
        (sqlite.group_of(count, what), keyed)
        for what, counts in (("task", TASKS), ("thread", THREADS))
        for count in counts
        for keyed in (False, True)
    ]


def test_effect_cells(tmp_path: Path) -> None:
    found = measured(effects.cells((1, 3)), tmp_path)
    assert {figures.name for figures in found if not figures.floor} == {
        f"{colour} execute{durable}" for colour in ("async", "sync") for durable in ("", ", durable results")
    }
    peers = 2 * (len(effects.PACKAGES) - len(effects.missing()))
    assert len([figures for figures in found if figures.floor]) == peers + 3  # one caller has one floor, many have two


def test_postgresql_cells(tmp_path: Path, postgresql_url: str) -> None:
    found = measured(postgresql.cells(postgresql_url, (2,), (2,)), tmp_path)
    assert [figures.name for figures in found if figures.group == postgresql.group_of(2) and not figures.floor] == [
        "port level", "async run", "async run, keyed"
    ]  # fmt: skip
    targets = {(cell.group, cell.name): cell.targets for cell in postgresql.cells(postgresql_url)}
    assert {target.ratio for target in targets[postgresql.group_of(32), "async run"]} == {0.8, 4.0}
    hot = "PostgreSQL, one hot key, 32 tasks"
    assert [targets[hot, name][0].ratio for name in ("async run", "async run, add")] == [3.0, 10.0]
    assert asyncio.run(postgresql.describe(postgresql_url))["postgresql_synchronous_commit"] == "on"


def test_a_slower_server_is_the_same_server(postgresql_url: str) -> None:
    with psycopg.connect(postgresql.slower(postgresql_url, 3)) as connection:
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in ("commit_delay", "commit_siblings")]
    assert shown == [("3000",), ("0",)]


def test_a_slow_sync_takes_as_long_as_is_said(tmp_path: Path) -> None:
    syncs = SlowSyncs(tmp_path)
    if not syncs.build():
        missing("a compiler of C", "no cc on this system, or it is not Linux")
    timed = (
        "import os, sys, time; file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "for line in sys.stdin:\n"
        "    begun = time.monotonic(); os.fdatasync(file); print(time.monotonic() - begun, flush=True)"
    )
    command = [sys.executable, "-c", timed, str(tmp_path / "synced")]
    with syncs.preloaded():
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert "LD_PRELOAD" not in os.environ

    def sync() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    with process:
        with syncs.longer(300):
            assert sync() >= 0.3
        assert min(sync() for _ in range(20)) < 0.3


def test_effects_on_a_slower_disk(tmp_path: Path) -> None:
    if not slow_syncs.possible():
        missing("a compiler of C", "no cc on this system, or it is not Linux")
    here = effects.cells()
    slower = effects.all_cells()[len(here) :]
    assert [cell.name for cell in slower] == [cell.name for cell in here]
    assert [cell.targets for cell in slower] == [cell.targets for cell in here]
    (alone,) = [cell for cell in slower if cell.name == "sync execute" and ", 1 at once" in cell.group]
    sample = alone.measure(0.05, tmp_path)
    assert sample.commits > 0
    assert sample.latencies_seconds[0] >= 1e-3 * effects.DELAYS_MS[0]  # at least one sync before the act


def test_redis_cells(tmp_path: Path, redis_url: str) -> None:
    urls = {redis_cells.ALWAYS: redis_url}
    found = measured(redis_cells.cells(urls, (2,), (2,)), tmp_path)
    runs = [figures for figures in found if figures.name == "async run"]
    assert [figures.group for figures in runs] == [
        redis_cells.group_of(redis_cells.ALWAYS, 2), "Redis, appendfsync always, 2 tasks, one hot key"
    ]  # fmt: skip
    assert all(figures.server_us is not None and figures.server_us > 0 for figures in runs)
    assert runs[0].server_ratio is not None
    assert runs[0].server_ratio.floor == redis_cells.FLOOR
    targets = {
        cell.group: {target.ratio for target in cell.targets}
        for cell in redis_cells.cells({redis_cells.ALWAYS: "", redis_cells.NONE: ""})
        if cell.targets and cell.server_times == 2.0
    }
    assert sorted(targets.values(), key=min) == [{0.5, 3.0}, {0.65, 3.0}]
    with redis.Redis.from_url(redis_url) as client:
        assert not client.keys("{bench_*"), "a cell leaves nothing behind"


def test_cells_that_are_run_by_default_have_the_task_counts_of_the_targets() -> None:
    groups = {cell.group for cell in sqlite.cells() if cell.targets}
    assert {sqlite.group_of(count, "task") for count in (1, 8, 32)} <= groups


def test_peers_that_are_installed(tmp_path: Path) -> None:
    cells = peers.memory_cells() + peers.sqlite_cells((2,), (1, 2))
    assert "BEGIN IMMEDIATE, retried" in {cell.name for cell in cells}
    measured(cells, tmp_path)


def test_scale(tmp_path: Path) -> None:
    steps: list[str] = []
    points = scale.measure(largest=10, versions=10, seconds=0.001, repetitions=1, directory=tmp_path, step=steps.append)
    assert len(steps) == scale.step_count(10, 10, 1)
    assert {(point.backend, point.axis, point.count) for point in points} == {
        (backend, axis, count)
        for backend in ("memory", "SQLite")
        for axis, count in (("keys", 10), ("versions", 1), ("versions", 10))
    }
    reads_of_old = [point for point in points if point.call == "read the oldest version"]
    assert {point.axis for point in reads_of_old} == {"versions"}
    assert all(0 < point.p50_us <= point.p99_us and point.cpu_us > 0 for point in points)


def test_sizes() -> None:
    assert scale.sizes_up_to(1_000_000, 1_000) == [1_000, 10_000, 100_000, 1_000_000]
    assert scale.sizes_up_to(100, 1) == [1, 10, 100]


@pytest.fixture
def small(tmp_path: Path) -> Report:
    def cell(name: str, commits: int, *, floor: bool = False) -> Cell:
        def measure(seconds: float, directory: Path) -> Sample:
            return Sample(commits, 1.0, 0.5, [0.001, 0.002, 0.003])

        targets = () if floor else (Target("floor", 0.6),)
        return Cell("group", name, measure, floor=floor, targets=targets)

    cells = [cell("floor", 100, floor=True), cell("good", 70), cell("bad", 50)]
    figures = interleave(cells, seconds=1, repetitions=3, directory=tmp_path, step=lambda name: None)
    points = [scale.Point("memory", "keys", count, "read", 2.0, 3.0, 1.0) for count in (10, 100)]
    return Report({"command": "x", "cores": 2}, {"seconds": 1}, figures, points)


def test_ratios_are_judged(small: Report) -> None:
    floor, good, bad = small.cells
    assert floor.ratios == []
    assert (good.ratios[0].median, good.ratios[0].met) == (0.7, True)
    assert (bad.ratios[0].median, bad.ratios[0].met) == (0.5, False)
    assert good.cpu_us == pytest.approx(1e6 * 0.5 / 70)
    assert (good.p50_ms, good.p99_ms) == (2.0, 3.0)


def test_a_table_and_a_file_say_the_same(small: Report, tmp_path: Path) -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    report.show(small, console)
    text = console.export_text()
    assert "0.70" in text
    assert "missed" in text
    small.write_markdown(tmp_path / "found.md")
    markdown = (tmp_path / "found.md").read_text("utf-8")
    assert "| good | 70 | 2.000 | 3.000 | 7,142.9 | 0.70 (0.70-0.70) met |" in markdown
    assert "| call, figure | 10 | 100 |\n|---|---:|---:|\n" in markdown
    small.write(tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert [cell["name"] for cell in found["cells"]] == ["floor", "good", "bad"]
    assert found["cells"][1]["ratios"][0]["met"] is True
    assert found["scale"][1]["count"] == 100


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plots(small: Report, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    made = plots.draw(small, tmp_path / "plots", kind)
    assert [path.name for path in made] == [f"sqlite-ratios.{kind}", f"sqlite-latencies.{kind}", f"scale.{kind}"]
    assert all(path.stat().st_size > 1000 for path in made)


def test_percentiles() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert (percentile(ordered, 50), percentile(ordered, 99), percentile([7.0], 99)) == (51.0, 100.0, 7.0)


def test_the_command(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(command.run)
    words = ["memory", "--seconds", "0.001", "--repetitions", "1", "--json", str(tmp_path / "found.json")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert {"date", "cores", "python", "sqlite", "load_before"} <= found["machine"].keys()
    assert not any("/" in str(value) for value in found["machine"].values()), "no paths in what may be published"
    assert CliRunner().invoke(app, ["nothing"]).exit_code != 0


# --- the floors are safe, or they would be no floors ------------------------------------------------------------------


def test_the_memory_floor_refuses_and_replays() -> None:
    store = LeastStore()
    first = store.commit("a", {"k": 0}, {"k": b"1"}, "once")
    assert store.commit("a", {"k": 0}, {"k": b"1"}, "once") == first
    with pytest.raises(Refused):
        store.commit("a", {"k": 0}, {"k": b"2"}, store.new_id())
    assert store.read("k") == (first, b"1")


def test_the_session_floor_refuses_what_was_read_and_has_changed() -> None:
    async def interleaved(store: LeastStore) -> None:
        async with LeastSession(store, "outer") as outer:
            await outer.write("k", await outer.read("k", "nothing") + "!")
            async with LeastSession(store, "inner") as inner:
                await inner.write("k", "inner")

    store = LeastStore()
    with pytest.raises(Refused):
        asyncio.run(interleaved(store))
    assert store.records.keys() == {"inner"}


@pytest.mark.parametrize("make", [LeastRows, SameRows])
def test_the_rows_floors_refuse_and_replay(make: type[LeastRows | SameRows], tmp_path: Path) -> None:
    rows = make()
    connection = connect(tmp_path / "floor.db")
    rows.create(connection, ["k"])
    text, version = rows.read(connection, "k")
    assert text == VALUE
    for _ in range(2):
        commit_inline(connection, rows, "k", changed(text), version, "once")
    text, newer = rows.read(connection, "k")
    assert text == changed(VALUE)
    with pytest.raises(RowsRefused):
        commit_inline(connection, rows, "k", "x", version, "twice")
    assert rows.read(connection, "k") == (text, newer)
    connection.close()


@pytest.mark.parametrize("make", [postgresql_floors.Floor, postgresql_floors.GlobalLock, postgresql_floors.Statements])
def test_the_postgresql_floors_refuse(make: type[postgresql_floors.Floor], postgresql_url: str) -> None:
    async def run(schema: str) -> None:
        await postgresql_floors.create(postgresql_url, schema, ["k"])
        async with make(postgresql_url, schema, 2) as floor:
            version, text = await floor.read("k")
            assert (version, text) == (0, VALUE)
            newer = await floor.commit("k", version, "new", "one")
            with pytest.raises(postgresql_floors.Refused):
                await floor.commit("k", version, "newer", "two")
            if make is not postgresql_floors.Statements:
                assert await floor.commit("k", version, "new", "one") == newer, "a repeated request is answered"
            assert await floor.read("k") == (newer, "new")
        await postgresql_floors.drop(postgresql_url, schema)

    asyncio.run(run(f"floors_{os.getpid()}_{make.__name__.lower()}"))


@pytest.mark.parametrize("make", [redis_floors.Multiplexed, redis_floors.RedisPy])
def test_the_redis_floors_refuse_and_replay(make: type[redis_floors.Floor], redis_url: str) -> None:
    async def run(name: str) -> None:
        async with make(redis_url, name, 2) as floor:
            await floor.fill(["k"])
            version, text = await floor.read("k")
            assert text == VALUE
            newer = await floor.commit("k", version, "new", "one")
            assert await floor.commit("k", version, "new", "one") == newer
            with pytest.raises(redis_floors.Refused):
                await floor.commit("k", version, "newer", "two")
            assert await floor.read("k") == (newer, "new")

    name = f"floors_{os.getpid()}"
    with redis_floors.emptied(redis_url, name):
        asyncio.run(run(name))


def test_the_watched_floor_refuses_what_has_changed_meanwhile(redis_url: str) -> None:
    async def run(name: str) -> None:
        async with redis_floors.Watched(redis_url, name, 2) as floor:
            assert isinstance(floor, redis_floors.Watched)
            await floor.fill(["k"])

            def interfere(text: str) -> str:
                with redis.Redis.from_url(redis_url) as client:
                    client.set(f"{{{name}}}:value:k", b"\xa1x")
                return text

            with pytest.raises(redis_floors.Refused):
                await floor.change("k", interfere, "one")
            await floor.change("k", str.upper, "one")
            await floor.change("k", str.lower, "one")
        with redis.Redis.from_url(redis_url) as client:
            assert client.get(f"{{{name}}}:value:k") == b"\xa1X", "once for each request"

    name = f"floors_{os.getpid()}"
    with redis_floors.emptied(redis_url, name):
        asyncio.run(run(name))
