"""The command as a process: the console script, pipes, terminals, signals, and a machine without the extra."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zygote

MODULE = [sys.executable, "-m", "interlock.cli"]
SCRIPT = Path(sys.executable).with_name("interlock")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A directory with a store that holds a few keys. Copies of a process that has imported the command put them."""
    for words in (("sku-1", "3"), ("sku-2", '{"$decimal": "1.20"}')):
        command = ["-m", "interlock.cli", "put", "stock", *words]
        with zygote.start(*command, directory=tmp_path, environment=environment()) as process:
            said, _ = process.communicate(timeout=100)
        assert process.returncode == 0, said
    return tmp_path


def environment() -> dict[str, str]:
    hidden = {"INTERLOCK_URL", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def interlock(
    directory: Path, *words: str, status: int = 0, program: list[str] = MODULE
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*program, *words], cwd=directory, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_the_console_script(store: Path) -> None:
    assert SCRIPT.exists(), "install the package first: make test does"
    assert interlock(store, "get", "stock", "sku-1", program=[str(SCRIPT)]).stdout == "3\n"
    assert interlock(store, "get", "stock", "nothing", program=[str(SCRIPT)], status=1).stdout == ""
    assert "Usage: interlock" in interlock(store, "--help", program=[str(SCRIPT)]).stdout


def test_the_package_is_the_command_too(store: Path) -> None:
    assert interlock(store, "get", "stock", "sku-1", program=[sys.executable, "-m", "interlock"]).stdout == "3\n"


def test_processes_share_a_file(store: Path) -> None:
    assert interlock(store, "get", "stock", "sku-2").stdout == '{"$decimal": "1.20"}\n'
    assert (store / "interlock.db").exists()
    done = interlock(store, "scan", "stock", "--url", f"sqlite:///{store}/interlock.db")
    assert done.stdout == 'sku-1\t3\nsku-2\t{"$decimal": "1.20"}\n'
    assert done.stderr == ""


@pytest.mark.parametrize("missing", [("typer",), ("rich",), ("typer", "rich")])
def test_without_the_extra(tmp_path: Path, missing: tuple[str, ...]) -> None:
    """One line that says what to install; not even the help needs more."""
    script = (
        "import importlib.util, sys\n"
        f"missing = {missing!r}\n"
        "find_spec = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name in missing else find_spec(name, package)\n"
        "from interlock.cli import main\n"
        "assert not set(missing) & set(sys.modules)\n"
        "sys.exit(main())\n"
    )
    done = interlock(tmp_path, "--help", program=[sys.executable, "-c", script], status=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert 'pip install "interlock[cli]"' in done.stderr
    assert all(name in done.stderr for name in missing)


def test_follow_shows_what_other_processes_commit_and_ends_at_ctrl_c(store: Path) -> None:
    command = [*MODULE, "log", "--follow", "--last", "1", "--json"]
    with subprocess.Popen(
        command, cwd=store, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert written(follower.stdout.readline()) == {"$decimal": "1.20"}
        interlock(store, "put", "stock", "sku-3", "7")
        assert written(follower.stdout.readline()) == 7
        follower.send_signal(signal.SIGINT)
        assert follower.wait(timeout=30) == 130
        assert follower.stderr.read() == ""


def written(line: str) -> Any:
    return json.loads(line)["writes"][0]["value"]


def test_a_reader_that_goes_away_is_no_error(store: Path) -> None:
    """As in ``interlock log --follow | head -1``."""
    command = [*MODULE, "log", "--follow"]
    with subprocess.Popen(
        command, cwd=store, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        follower.stdout.readline()
        follower.stdout.readline()
        follower.stdout.close()
        interlock(store, "put", "stock", "sku-3", "7")
        assert follower.wait(timeout=30) == 141
        assert follower.stderr.read() == ""


def test_a_terminal_gets_a_table(store: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*MODULE, "scan", "stock"], cwd=store, env={**environment(), "TERM": "xterm"}, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how Linux says that the other side of a terminal is closed
            pass
        assert process.wait(timeout=30) == 0
    os.close(ours)
    text = shown.decode()
    assert "key" in text
    assert "sku-2" in text
    assert "─" in text


def test_a_terminal_without_unicode_is_not_in_the_way(store: Path) -> None:
    interlock(store, "put", "shops", "Αθήνα", '"北京"')
    done = subprocess.run(
        [*MODULE, "scan", "shops"],
        cwd=store,
        env={**environment(), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.isascii()
    assert "\\u5317" in done.stdout
