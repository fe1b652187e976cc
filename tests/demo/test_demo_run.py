"""The demonstration as a whole, small: real processes on a real file, each result judged; and how it fails."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from interlock.demo import command, supervisor
from interlock.demo.main import COLUMNS, ColumnResult, DemoError, DemoOptions, DemoResult, percentile, run_demo
from interlock.demo.orders import COLUMNS as FILE_COLUMNS
from interlock.demo.orders import OrdersFileError
from interlock.demo.report import money, render
from interlock.demo.truth import Verdict
from interlock.errors import UsageError
from redis_servers import redis_server
from servers import postgresql_server

NONE, INTERLOCK, KILLED = COLUMNS


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """200 orders of three articles; every fifth comes again in the row behind it, which falls to the other process."""
    stock = tmp_path / "stock.csv"
    stock.write_text("SKU,On hand\nMUG,70\nTEE,60\nCAP,25\n", "utf-8")
    rows = [",".join(FILE_COLUMNS)]
    for number in range(200):
        article = ("MUG", "TEE", "CAP")[number % 3]
        row = f"#{number},2025-11-28T09:00:00Z,이서연,a@b.c,{article},{1 + number % 2},EUR 9.99,KR,,"
        rows += [row] * (2 if number % 5 == 0 else 1)
    rows.append("#bad,2025-11-28T09:00:00Z,이서연,a@b.c,MUG,two,EUR 9.99,KR,,")
    orders = tmp_path / "orders.csv"
    orders.write_text("\n".join(rows) + "\n", "utf-8")
    return orders, stock


@pytest.fixture
def small(files: tuple[Path, Path]) -> DemoOptions:
    orders, stock = files
    return DemoOptions(
        orders=orders, stock=stock, agents=2, processes=2, think_seconds=(0.002, 0.005), limit_seconds=100
    )


@pytest.mark.usefixtures("copies")
def test_interlock_is_clean_killed_or_not_and_the_same_code_without_it_is_not(small: DemoOptions) -> None:
    seen: dict[str, list[int]] = {}
    result = run_demo(small, lambda name, done, total: seen.setdefault(name, []).append(done))
    assert (result.rows, result.deliveries, result.distinct_orders) == (241, 240, 200)
    assert result.refused_rows == {"bad quantity": 1}
    none, interlock, killed = result.columns
    assert none.verdict.units_oversold > 0
    assert none.verdict.orders_lost > 0
    assert none.verdict.applied_twice > 0
    assert none.verdict.revenue_error
    for column in (interlock, killed):
        assert column.verdict == Verdict()
        assert column.failures == ()
        assert column.orders_sold + column.orders_refused == 200
        assert column.commits_per_second > 0
    assert interlock.commits == 200
    assert interlock.replays == 40
    assert interlock.conflicts >= interlock.retries > 0
    assert killed.processes_killed == 1
    assert killed.replays > 40, "the replacement did the killed one's part again"
    assert result.ok
    assert result.notes == ()
    for counts in seen.values():
        assert counts == sorted(counts)
        assert counts[-1] == 240


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("start", [postgresql_server, redis_server])
def test_on_a_server_too_nothing_is_lost_whoever_is_killed(small: DemoOptions, start: Callable[[], Any]) -> None:
    with start() as server:
        result = run_demo(replace(small, url=server.url, columns=(KILLED,)))
    (column,) = result.columns
    assert (column.failures, column.clean, column.processes_killed) == ((), True, 1)
    assert column.orders_sold > 0
    assert column.replays > 0


@pytest.mark.usefixtures("copies")
def test_a_given_store_is_used_under_new_names_each_time(small: DemoOptions, tmp_path: Path) -> None:
    options = replace(small, url=f"sqlite:///{tmp_path}/given.db", columns=(INTERLOCK,))
    first, second = run_demo(options), run_demo(options)
    assert first.ok
    assert second.ok
    assert second.columns[0].commits == 200, "not replays of the first run"
    assert (tmp_path / "given.db").exists()


@pytest.mark.usefixtures("copies")
def test_a_run_that_shows_nothing_says_so(small: DemoOptions) -> None:
    alone = run_demo(replace(small, agents=1, processes=1, columns=(NONE,)))
    assert alone.columns[0].verdict.clean
    assert "proves nothing" in alone.notes[0]


def test_processes_that_do_not_share_the_store_are_refused(small: DemoOptions) -> None:
    with pytest.raises(DemoError, match="not one that processes share"):
        run_demo(replace(small, url="memory://shop", columns=(INTERLOCK,)))


def test_a_process_that_ends_by_itself_is_an_error_with_its_words(
    small: DemoOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = supervisor.pack
    monkeypatch.setattr(supervisor, "pack", lambda message: whole(message)[:40] + b"\n")
    with pytest.raises(DemoError, match=r"ended with status 1: (?s:.*)DecodeError"):
        run_demo(replace(small, columns=(INTERLOCK,)))


def test_what_takes_too_long_is_ended_and_nothing_is_left(small: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen = supervisor.subprocess.Popen

    def remember(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(supervisor.subprocess, "Popen", remember)
    with pytest.raises(DemoError, match=r"not done after 0\.01 seconds"):
        run_demo(replace(small, limit_seconds=0.01, columns=(INTERLOCK,)))
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_options_are_checked_first() -> None:
    for wrong in ({"agents": 0}, {"agents": 65}, {"processes": 0}, {"processes": 65}, {"think_seconds": (0.2, 0.1)}):
        with pytest.raises(UsageError):
            DemoOptions(**wrong)  # type: ignore[arg-type]


def test_files_that_are_no_input_are_refused_before_anything_is_started(files: tuple[Path, Path]) -> None:
    orders, stock = files
    with pytest.raises(OrdersFileError):
        run_demo(DemoOptions(orders=stock, stock=stock))
    with pytest.raises(OrdersFileError):
        run_demo(DemoOptions(orders=orders, stock=orders))
    with pytest.raises(FileNotFoundError):
        run_demo(DemoOptions(orders=orders.parent / "none.csv"))


def test_workers_find_the_library_that_runs_them() -> None:
    first = supervisor.environment()["PYTHONPATH"].split(os.pathsep)[0]
    assert (Path(first) / "interlock" / "demo" / "worker.py").exists()


@pytest.mark.parametrize(
    ("ordered", "percent", "expected"),
    [([], 50, 0.0), ([7.0], 99, 7.0), ([1.0, 2.0], 50, 1.0), ([float(n) for n in range(1, 101)], 99, 99.0)],
)
def test_percentiles_are_nearest_rank(ordered: list[float], percent: float, expected: float) -> None:
    assert percentile(ordered, percent) == expected


def column(name: str, *, safe: bool, verdict: Verdict = Verdict(), failures: tuple[str, ...] = ()) -> ColumnResult:  # noqa: B008
    return ColumnResult(name, safe, verdict, 1, 2, 3, 4, 5, 6, 7, failures, 1, 1.5, 1234.5, 0.0123, 0.4567)


def result(*columns: ColumnResult) -> DemoResult:
    return DemoResult(10, 9, 8, {"bad price": 1}, 5, 6, 5, 4, 4, columns)


WRONG = Verdict(7, 6, 5, 4, {"EUR": -123456, "JPY": 7}, 3, 2, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"units_oversold": 1},
        {"orders_lost": 1},
        {"acknowledged_lost": 1},
        {"applied_twice": 1},
        {"revenue_error": {"EUR": 1}},
        {"stock_error_units": 1},
        {"wrong_decisions": 1},
        {"foreign_records": 1},
    ],
)
def test_any_figure_that_is_not_zero_makes_an_interlock_column_fail(changes: dict[str, Any]) -> None:
    wrong = replace(Verdict(), **changes)
    assert not result(column("interlock", safe=True, verdict=wrong)).ok
    assert result(column("isolation none", safe=False, verdict=wrong), column("interlock", safe=True)).ok
    assert not result(column("interlock", safe=True, failures=("line 3: the disk is full",))).ok


def shown(demo_result: DemoResult) -> str:
    console = Console(width=140, record=True, file=open(os.devnull, "w"), force_terminal=False)  # noqa: SIM115
    console.print(render(demo_result))
    console.file.close()
    return console.export_text()


def test_the_table_shows_every_figure() -> None:
    text = shown(result(column("isolation none", safe=False, verdict=WRONG), column("interlock", safe=True)))
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    for name, figure in (
        ("units oversold", " 7 "),
        ("orders lost", " 6 "),
        ("orders applied twice", " 4 "),
        ("revenue error", "EUR -1,234.56"),
        ("conflicts", " 4 "),
        ("retries", " 5 "),
        ("commits/s", "1,23"),
        ("p50 ms", "12.3"),
        ("p99 ms", "456.7"),
    ):
        assert figure in rows[name], name
    assert "JPY +7" in text
    assert "1 bad price" in text
    assert "got something wrong" not in text


def test_the_report_says_what_went_wrong() -> None:
    text = shown(result(column("interlock", safe=True, verdict=WRONG, failures=("line 3: the disk is full",))))
    assert "got something wrong" in text
    assert "line 3: the disk is full" in text


def test_money_is_written_by_the_currencys_digits() -> None:
    assert money({}) == "0"
    assert money({"EUR": 5, "JPY": -5, "KWD": 1005}) == "EUR +0.05\nJPY -5\nKWD +1.005"


@pytest.fixture
def invoke() -> Callable[..., Any]:
    app = typer.Typer()
    app.command()(command.demo)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_the_command_ends_with_1_if_interlock_is_wrong(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean, wrong = column("interlock", safe=True), column("interlock", safe=True, verdict=WRONG)
    for columns, status in (((clean,), 0), ((wrong,), 1)):
        monkeypatch.setattr(command, "run_demo", lambda options, show, columns=columns: result(*columns))
        assert invoke("--no-sagas").exit_code == status
        assert json.loads(invoke("--json", "--no-sagas").stdout)["ok"] is (status == 0)


def test_the_command_runs_and_reports_json(invoke: Callable[..., Any], files: tuple[Path, Path]) -> None:
    orders, stock = map(str, files)
    ran = invoke(
        "--orders", orders, "--stock", stock, "--agents", "2", "--processes", "2", "--json", "--seed", "3", "--no-sagas"
    )
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert [found["name"] for found in report["columns"]] == [each.name for each in COLUMNS]
    assert report["columns"][1]["clean"] is True
    assert report["columns"][0]["verdict"]["units_oversold"] > 0


def test_the_command_ends_with_2_if_it_cannot_run(invoke: Callable[..., Any], files: tuple[Path, Path]) -> None:
    _, stock = map(str, files)
    ran = invoke("--orders", stock)
    assert ran.exit_code == 2
    assert "header" in ran.stderr
    assert invoke("--url", "nonsense://").exit_code == 2
    assert invoke("--agents", "0").exit_code == 2
