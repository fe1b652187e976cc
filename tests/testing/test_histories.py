"""Recorded histories: the judges find each kind of violation, and short runs of every workload are clean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tally
from interlock.errors import CommitUnknownError, ConflictError, UsageError
from interlock.testing.histories import MODELS, WORKLOADS, History, Recorder, Settings, load, run
from interlock.testing.histories.graph import Model
from interlock.testing.histories.records import Line, ending_of, of_lines
from interlock.testing.histories.running import overlapping
from soak import usual

STRICT: Model = "strict-serializable"
SNAPSHOT: Model = "strong-snapshot-isolation"
COMMITTED: Model = "read-committed"


def history(*operations: tuple[int, int, str, list[list[Any]]], final: list[list[Any]] | None = None) -> History:
    """A history from (begun, ended, ending, steps); each operation is another process."""
    lines = []
    for process, (begun, ended, ending, steps) in enumerate(operations):
        lines.append(Line(0, begun, "invoke", process, "txn", steps))
        if ending != "killed":
            lines.append(Line(0, ended, ending, process, "txn", steps))  # type: ignore[arg-type]
    if final is not None:
        lines += [Line(0, 1000, "invoke", 99, "final", final), Line(0, 1001, "ok", 99, "final", final)]
    return of_lines(sorted(lines, key=lambda line: line.time))


def names(workload: str, made: History, model: Model = STRICT) -> set[str]:
    """The names of the violations."""
    return {each.name for each in WORKLOADS[workload].judge(made, model).violations}


def both(first: list[list[Any]], second: list[list[Any]], **more: Any) -> History:
    """Two transactions that overlap."""
    return history((0, 10, "ok", first), (1, 11, "ok", second), **more)


WRITE_SKEW = both(
    [["r", "x", []], ["r", "y", []], ["append", "x", 1]],
    [["r", "x", []], ["r", "y", []], ["append", "y", 2]],
    final=[["r", "x", [1]], ["r", "y", [2]]],
)
READ_SKEW = both(
    [["r", "x", []], ["r", "y", [2]]],
    [["append", "x", 1], ["append", "y", 2]],
    final=[["r", "x", [1]], ["r", "y", [2]]],
)
CIRCULAR_READS = both([["append", "x", 1], ["r", "y", [2]]], [["append", "y", 2], ["r", "x", [1]]])


def test_write_skew_is_a_circle_of_serialisability_and_none_of_snapshots() -> None:
    assert names("list-append", WRITE_SKEW) == {"G2-item"}
    assert names("list-append", WRITE_SKEW, SNAPSHOT) == set()


def test_read_skew_is_a_circle_of_both_and_none_of_read_committed() -> None:
    assert names("list-append", READ_SKEW) == {"G-single"}
    assert names("list-append", READ_SKEW, SNAPSHOT) == {"G-single"}
    assert names("list-append", READ_SKEW, COMMITTED) == set()


def test_circular_information_flow_is_a_circle_of_all() -> None:
    for model in (STRICT, SNAPSHOT, COMMITTED):
        assert names("list-append", CIRCULAR_READS, model) == {"G1c"}


def test_a_dirty_write_is_a_circle_of_all() -> None:
    made = both(
        [["append", "x", 1], ["append", "y", 1]],
        [["append", "x", 2], ["append", "y", 2]],
        final=[["r", "x", [1, 2]], ["r", "y", [2, 1]]],
    )
    assert names("list-append", made, COMMITTED) == {"G0"}


def test_a_stale_read_is_a_circle_with_real_time() -> None:
    made = history((0, 1, "ok", [["append", "x", 1]]), (2, 3, "ok", [["r", "x", []]]), final=[["r", "x", [1]]])
    assert names("list-append", made) == {"G-single-realtime"}
    assert names("list-append", made, SNAPSHOT) == {"G-single-realtime"}


def test_real_time_follows_from_the_last_ends_alone() -> None:
    made = history(
        (0, 1, "ok", [["append", "x", 1]]),
        (2, 3, "ok", [["append", "z", 5]]),
        (4, 5, "ok", [["append", "z", 6]]),
        (6, 7, "ok", [["r", "x", []]]),
        final=[["r", "x", [1]], ["r", "z", [5, 6]]],
    )
    assert names("list-append", made) == {"G-single-realtime"}


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("G1a", history((0, 1, "fail", [["append", "x", 1]]), (2, 3, "ok", [["r", "x", [1]]]))),
        ("G1b", both([["append", "x", 1], ["append", "x", 2]], [["r", "x", [1]]], final=[["r", "x", [1, 2]]])),
        ("internal", history((0, 1, "ok", [["append", "x", 1], ["r", "x", []]]))),
        ("internal", both([["r", "x", []], ["r", "x", [1]]], [["append", "x", 1]])),
        ("incompatible order", both([["r", "x", [1, 2]]], [["r", "x", [2]]])),
        ("doubled append", history((0, 1, "ok", [["append", "x", 1]]), final=[["r", "x", [1, 1]]])),
        ("lost append", history((0, 1, "ok", [["append", "x", 1]]), final=[["r", "x", []]])),
        ("value from nowhere", history((0, 1, "ok", [["r", "x", [7]]]))),
    ],
)
def test_what_a_single_read_of_a_list_shows(name: str, made: History) -> None:
    assert name in names("list-append", made)


def test_an_append_of_unknown_end_may_be_there_or_not() -> None:
    for held in ([], [1]):
        for ending in ("info", "killed"):
            made = history((0, 1, ending, [["append", "x", 1]]), final=[["r", "x", held]])
            assert names("list-append", made) == set()


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("G1a", history((0, 1, "fail", [["w", "x", 1]]), (2, 3, "ok", [["r", "x", 1]]))),
        ("G1b", both([["w", "x", 1], ["w", "x", 2]], [["r", "x", 1]])),
        ("internal", history((0, 1, "ok", [["w", "x", 1], ["r", "x", None]]))),
        ("G2-item", both([["r", "x", None], ["r", "y", None], ["w", "x", 1]], [["r", "x", None], ["w", "y", 2]])),
        ("G-single-realtime", history((0, 1, "ok", [["w", "x", 1]]), (2, 3, "ok", [["r", "x", None]]))),
        (
            "G-single-realtime",
            history((0, 1, "ok", [["w", "x", 1]]), (2, 3, "ok", [["w", "x", 2]]), (4, 5, "ok", [["r", "x", 1]])),
        ),
        (
            "G2-item",  # a lost update: both replaced the same version
            history(
                (0, 1, "ok", [["w", "x", 1]]),
                (2, 10, "ok", [["r", "x", 1], ["w", "x", 2]]),
                (3, 11, "ok", [["r", "x", 1], ["w", "x", 3]]),
            ),
        ),
    ],
)
def test_registers(name: str, made: History) -> None:
    assert name in names("rw-register", made)


def test_a_lost_update_breaks_snapshot_isolation_too() -> None:
    made = history(
        (0, 1, "ok", [["w", "x", 1]]),
        (2, 10, "ok", [["r", "x", 1], ["w", "x", 2]]),
        (3, 11, "ok", [["r", "x", 1], ["w", "x", 3]]),
    )
    assert names("rw-register", made, SNAPSHOT)


def test_a_phantom_is_a_circle_of_scans() -> None:
    made = both([["rp", "g", {}], ["w", "h/1", 1]], [["rp", "h", {}], ["w", "g/2", 2]])
    assert names("predicate", made) == {"G2-item"}
    assert names("predicate", made, SNAPSHOT) == set()
    serial = both([["rp", "g", {}], ["w", "h/1", 1]], [["rp", "h", {"h/1": 1}], ["w", "g/2", 2]])
    assert names("predicate", serial) == set()


@pytest.mark.parametrize(
    ("workload", "name", "made"),
    [
        ("bank", "sum", history((0, 1, "ok", [["r", f"account-{n}", 9] for n in range(8)]))),
        ("bank", "below zero", history((0, 1, "ok", [["r", "account-0", -1]]))),
        ("doctors", "nobody on call", history((0, 1, "ok", [["r", f"shift1/{n}", False] for n in range(3)]))),
        ("slots", "double booking", history((0, 1, "ok", [["rp", "d", {"a": [0, 5], "b": [4, 6]}]]))),
        ("counter", "count", history((0, 1, "ok", [["add", "c", 1]]), final=[["r", "c", 0]])),
        ("counter", "count", history((0, 1, "fail", [["add", "c", 1]]), (0, 1, "ok", [["add", "c", 1]]),
                                     final=[["r", "c", 2]])),
        ("monotonic", "stale read", history((0, 1, "ok", [["w", "g", 5]]), (2, 3, "ok", [["r", "g", 4]]))),
        ("opacity", "inconsistent read", history((0, 1, "fail", [["r", "x", 80], ["r", "y", 1]]))),
        ("ids", "given twice", both([["take", "next", 3]], [["take", "next", 3]])),
        ("claims", "claimed twice", both([["claim", "t", "a"]], [["claim", "t", "b"]])),
        ("claims", "lost claim", history((0, 1, "ok", [["claim", "t", "a"]]), final=[["r", "t", "b"]])),
    ],
)  # fmt: skip
def test_what_must_stay_true(workload: str, name: str, made: History) -> None:
    assert name in names(workload, made)


def test_a_circle_is_told_in_words() -> None:
    (found,) = WORKLOADS["list-append"].judge(WRITE_SKEW, STRICT).violations
    assert found.explanation.splitlines() == [
        "G2-item: a circle of 2 transactions",
        "  T0 came before T1: the first read y without 2, which the second appended",
        "  T1 came before T0: the first read x without 1, which the second appended",
        "  so each of them came before itself, which is impossible",
    ]


# -- records ---------------------------------------------------------------------------------------------------------
def test_a_recorder_retires_a_process_whose_operation_is_unknown(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "one", stride=4)
    recorder.begin(1, [["append", "x", 1]])
    after = recorder.end(1, "info", [["append", "x", 1]], CommitUnknownError("lost", transaction_id="1"))
    recorder.begin(after, [["r", "x", None]])
    assert recorder.end(after, "ok", [["r", "x", [1]]]) == after == 5
    recorder.begin(after, [["append", "x", 2]])
    recorder.close()
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"index": 9, "ti')
    made = load(tmp_path)
    assert [each.ending for each in made.transactions] == ["info", "ok", "info"]
    assert made.torn_lines == 1
    assert made.counts == {"ok": 1, "fail": 0, "info": 2}
    lines = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()[:-1]]
    assert set(lines[0]) == {"index", "time", "type", "process", "f", "value", "error"}
    assert [line["type"] for line in lines] == ["invoke", "info", "invoke", "ok", "invoke"]


def test_only_the_librarys_word_counts_as_failed() -> None:
    assert ending_of(ConflictError("lost")) == "fail"
    assert ending_of(CommitUnknownError("lost", transaction_id="1")) == "info"
    assert ending_of(OSError("gone")) == "info"


def test_a_history_in_which_one_process_does_two_things_is_refused() -> None:
    with pytest.raises(ValueError, match="begun already"):
        of_lines([Line(0, 0, "invoke", 1, "txn", []), Line(1, 1, "invoke", 1, "txn", [])])
    with pytest.raises(ValueError, match="not begun"):
        of_lines([Line(0, 0, "ok", 1, "txn", [])])


def test_overlap_is_counted() -> None:
    apart = history((0, 1, "ok", []), (2, 3, "ok", []), (4, 9, "ok", []), (5, 6, "ok", []))
    assert overlapping(apart) == 0.5


# -- runs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_run_in_memory_is_clean_and_its_control_is_not(workload: str, tmp_path: Path) -> None:
    settings = Settings(workload, f"memory://{tmp_path.name}", seconds=0.6, processes=1, threads=4, least=usual(50, 20))
    verdict = run(settings, tmp_path)
    assert verdict.findings.violations == []
    assert verdict.vacuous == []
    assert verdict.control_violations is None or verdict.control_violations > 0
    tally.note("memory", verdict.counts)


@pytest.mark.parametrize("mode", [mode for mode in MODELS if mode not in ("serializable", "pessimistic")])
def test_every_mode_keeps_its_own_promise(mode: Any, tmp_path: Path) -> None:
    settings = Settings(
        "list-append", f"memory://{tmp_path.name}", mode, seconds=usual(0.6, 0.3), processes=1, least=usual(50, 20)
    )
    verdict = run(settings, tmp_path)
    assert verdict.findings.violations == []
    assert verdict.vacuous == []


def test_processes_that_are_killed_and_stopped_on_one_file(tmp_path: Path) -> None:
    settings = Settings(
        "list-append", f"sqlite:///{tmp_path}/store.db", seconds=4.0, processes=2, threads=3, least=100,
        faults=("kill", "stop"), fault_seconds=0.4,
    )  # fmt: skip
    verdict = run(settings, tmp_path / "out")
    assert verdict.findings.violations == []
    assert verdict.vacuous == []
    assert verdict.fired["kill"] >= 1
    assert verdict.fired["stop"] >= 1
    tally.note("sqlite", verdict.counts, verdict.fired)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings("nonsense", "memory://"), "no workload 'nonsense'"),
        (Settings("slots", "memory://", mode="optimistic", processes=1), "does not promise"),
        (Settings("bank", "memory://", processes=2), "one process's"),
        (Settings("bank", "sqlite:///x.db", faults=("flood",)), "no fault flood"),  # type: ignore[arg-type]
    ],
)
def test_a_run_that_cannot_be_is_refused(settings: Settings, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        run(settings, tmp_path)


def test_the_command_runs_and_judges_again(tmp_path: Path) -> None:
    def command(*arguments: str) -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "interlock.testing.histories", *arguments, "--json"], capture_output=True, text=True
        )
        return done.returncode, json.loads(done.stdout)

    url = f"sqlite:///{tmp_path}/store.db"
    status, told = command(
        "run", "--workload", "bank", "--url", url, "--seconds", "1", "--least", "10", "--no-control",
        "--processes", "1", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert (status, told["passed"], told["violations"]) == (0, True, [])
    status, again = command("check", told["history"], "--workload", "bank")
    assert (status, again["counts"]) == (0, told["counts"])
    broken = tmp_path / "broken.jsonl"
    broken.write_text(
        '{"index":0,"time":0,"type":"invoke","process":0,"f":"txn","value":[["r","account-0",null]]}\n'
        '{"index":1,"time":1,"type":"ok","process":0,"f":"txn","value":[["r","account-0",-5]]}\n'
    )
    status, again = command("check", str(broken), "--workload", "bank")
    assert status == 1
    assert again["violations"][0]["name"] == "below zero"
