"""The public API through the eyes of two type checkers, as a user's program has them.

The programs in `typing/` are correct: mypy and pyright, both strict, find nothing in them, and they run. In
`typing/wrong.py` is a collection of mistakes: both checkers refuse every line that is marked ``# WANT``, and no other.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zygote

DIRECTORY = Path(__file__).parent / "typing"
WRONG = DIRECTORY / "wrong.py"
PROGRAMS = [path for path in sorted(DIRECTORY.glob("*.py")) if path != WRONG]

Complaints = dict[tuple[str, int], list[str]]
"""(file name, line from 1) -> what a checker says there."""


def run(directory: Path, *words: str) -> str:
    """The output of a checker; its exit status says only whether there were complaints."""
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=directory, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(directory: Path) -> Complaints:
    """mypy as a user runs it: strict, without this repository's settings, against the installed package."""
    found: Complaints = {}
    for line in run(directory, "mypy", "--strict", "--enable-error-code=deprecated", "--output=json", ".").splitlines():
        complaint = json.loads(line)
        if complaint["severity"] == "error":
            found.setdefault((Path(complaint["file"]).name, complaint["line"]), []).append(complaint["message"])
    return found


def pyright(directory: Path) -> Complaints:
    """pyright likewise; a warning counts as well."""
    found: Complaints = {}
    (directory / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    report = json.loads(run(directory, "pyright", "--outputjson", "--warnings", "--pythonpath", sys.executable))
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS) + 1
    for complaint in report["generalDiagnostics"]:
        place = Path(complaint["file"]).name, complaint["range"]["start"]["line"] + 1
        found.setdefault(place, []).append(complaint["message"])
    return found


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Complaints:
    """What a checker says of copies of all programs, somewhere else: it runs once for all tests of all processes of the
    run, and whoever comes second waits for the first."""
    directory = tmp_path_factory.mktemp(request.param.__name__)
    shared = directory.parent
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    said = shared / f"{request.param.__name__}.pickle"
    with open(shared / f"{request.param.__name__}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            for path in [*PROGRAMS, WRONG]:
                shutil.copy(path, directory)
            said.write_bytes(pickle.dumps(request.param(directory)))
    found: Complaints = pickle.loads(said.read_bytes())
    return found


def wanted(text: str) -> dict[int, str]:
    """Line -> the mistake that is marked there."""
    marks = ((line, re.search(r"# WANT (.+)", code)) for line, code in enumerate(text.splitlines(), 1))
    return {line: mark[1] for line, mark in marks if mark}


def test_programs_have_no_complaints(complaints: Complaints) -> None:
    wrong = [f"{name}:{line}: {said[0]}" for (name, line), said in complaints.items() if name != WRONG.name]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_mistake_is_refused(complaints: Complaints) -> None:
    marks = wanted(WRONG.read_text("utf-8"))
    missed = [f"{line}: {mistake}" for line, mistake in marks.items() if (WRONG.name, line) not in complaints]
    assert not missed, "\n" + "\n".join(missed)
    assert len(marks) >= 22


def test_only_the_mistakes_are_refused(complaints: Complaints) -> None:
    marks = wanted(WRONG.read_text("utf-8"))
    said_of = {line: said[0] for (name, line), said in complaints.items() if name == WRONG.name}
    beyond = [f"{line}: {said}" for line, said in said_of.items() if line not in marks]
    assert not beyond, "\n" + "\n".join(beyond)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program_runs(path: Path, tmp_path: Path) -> None:
    warned = "import runpy, sys, warnings; warnings.simplefilter('error')"
    program = f"{warned}; runpy.run_path(sys.argv[1], run_name='__main__')"
    with zygote.start("-c", program, str(path), directory=tmp_path, stderr=subprocess.PIPE) as process:
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    assert not complaints


def test_a_program_runs_by_itself(tmp_path: Path) -> None:
    """The others are copies of a process that has imported the library."""
    command = [sys.executable, "-W", "error", str(PROGRAMS[-1])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
