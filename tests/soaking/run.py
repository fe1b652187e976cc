"""The long run, and its summary.

    python -m soaking.run --seconds 1800 [--json FILE] [--seed N] [--least N]   (with tests/ on the path: `make soak`)

Exit status 1 if anything was violated, has failed, or was never tried."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from soaking.lanes import LANES, chance, wanted
from soaking.results import Report, Summary, summed

ROOT = Path(__file__).parents[2]
_GRACE_SECONDS = 1800.0
_LOOK_SECONDS = 1.0
_FUZZED = 1_000_000
"""Inputs to decoders and parsers that a run of `_FULL_SECONDS` has to make; a shorter one as many fewer."""
_FULL_SECONDS = 1800.0
_START_SECONDS = 60.0
"""What of it is for the samples that they are made from."""


def start(lane: str, number: int, until: float, seconds: float, seed: int, directory: Path) -> subprocess.Popen[bytes]:
    """A lane in a process of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT / "tests"), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    told = directory / f"{lane}-{number}.jsonl"
    told.touch()
    command = [sys.executable, "-m", "soaking.run", "--lane", lane, "--until", str(until), "--seconds", str(seconds)]
    return subprocess.Popen(
        [*command, "--seed", str(seed + number * 100_000_000), "--report", str(told)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stderr=(directory / f"{lane}-{number}.err").open("wb"),
    )  # fmt: skip


def live(options: argparse.Namespace) -> None:
    """A lane's process. It ends what it has started when it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    report = Report(Path(options.report))
    if options.lane == "chance":
        chance(report, options.until, options.seconds)
    else:
        LANES[options.lane](report, options.until, options.seed)


def least_fuzzed(seconds: float) -> int:
    """How many inputs a run of so many seconds has to make."""
    return round(_FUZZED * max(0.0, seconds - _START_SECONDS) / (_FULL_SECONDS - _START_SECONDS))


def soak(options: argparse.Namespace, console: Console, directory: Path) -> Summary:
    """Run all lanes, and sum up."""
    until = time.monotonic() + options.seconds
    lanes = [("simulations", number) for number in range(options.simulations)]
    lanes += [("histories", 0), ("fuzzing", 0), ("chance", 0)]
    processes = {
        (lane, number): start(lane, number, until, options.seconds, options.seed, directory) for lane, number in lanes
    }
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("soak", total=options.seconds)
            while any(process.poll() is None for process in processes.values()):
                count = summed(sorted(directory.glob("*.jsonl"))).transactions
                left = max(0.0, until - time.monotonic())
                bar.update(task, completed=options.seconds - left, description=f"{count:,} transactions")
                if time.monotonic() > until + _GRACE_SECONDS:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired, StopIteration):
                    next(process for process in processes.values() if process.poll() is None).wait(_LOOK_SECONDS)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
    summary = summed(sorted(directory.glob("*.jsonl")))
    for (lane, number), process in processes.items():
        if process.wait():
            said = (directory / f"{lane}-{number}.err").read_text(errors="replace")[-3000:]
            summary.failures.append(f"the lane {lane} ended with status {process.returncode}: {said}")
    summary.failures += [f"not proved: {each}" for each in summary.missing(wanted(options.seconds))]
    if summary.transactions < options.least:
        summary.failures.append(f"only {summary.transactions:,} transactions, fewer than {options.least:,}")
    fuzzed, wanted_inputs = sum(summary.fuzzed.values()), least_fuzzed(options.seconds)
    if fuzzed < wanted_inputs:
        summary.failures.append(f"only {fuzzed:,} inputs fuzzed, fewer than {wanted_inputs:,}")
    return summary


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="soaking.run")
    parser.add_argument("--seconds", type=float, default=1800.0, help="for how long")
    parser.add_argument("--seed", type=int, default=0, help="decides what is tried")
    parser.add_argument("--least", type=int, default=0, help="fewer transactions are a failure")
    parser.add_argument("--simulations", type=int, default=os.cpu_count() or 1, help="processes that simulate")
    parser.add_argument("--json", type=Path, help="where the summary goes, for scripts")
    for inner in ("--lane", "--report"):
        parser.add_argument(inner, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lane:
        live(options)
        return 0
    console, began = Console(stderr=True), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="interlock-soak-") as directory:
        summary = soak(options, console, Path(directory))
    took, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    if options.json:
        options.json.write_text(
            json.dumps({"seconds": round(took), "cpu_seconds": round(cpu), **summary.as_json()}, indent=2) + "\n"
        )
    out = Console(highlight=False)
    out.print(summary.table())
    for line in [f"took {took:,.0f} s, in which its processes had {cpu:,.0f} s of a core", *summary.lines()]:
        out.print(line, markup=False, soft_wrap=True)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
