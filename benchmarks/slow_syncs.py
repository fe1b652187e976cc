"""A process on a slower disk: its ``fdatasync`` and ``fsync`` take longer by as much as a file says.

Disks differ in nothing more than in the time of a sync: a tenth of a millisecond where somebody answers for the disk's
cache, two and more where nobody does. So some cells are measured with longer syncs, too: those of a server, and, in a
process of their own, those of SQLite.

For a server, ``commit_delay`` makes a sync longer, too, but at the wrong end: the server sleeps first and then writes
and syncs whatever has come meanwhile, so that who comes while the "disk" is busy is served by it all the same. On a
slow disk he waits for the next sync. So a library of a few lines is compiled and loaded into the process before the
system's own, where there is a compiler (``cc``) and a dynamic linker that does such a thing (``LD_PRELOAD``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.measure import Measure, Sample, only_new_garbage

_FILE: Final = "INTERLOCK_BENCH_SYNC_DELAY"
_SOURCE: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int later(int answer) {
  char text[16] = {0};
  int delay = open(getenv("INTERLOCK_BENCH_SYNC_DELAY"), O_RDONLY);
  if (delay >= 0) {
    if (read(delay, text, 15) > 0 && atoi(text) > 0) usleep(atoi(text));
    close(delay);
  }
  return answer;
}

int fdatasync(int file) {
  static int (*system_call)(int);
  if (!system_call) system_call = (int (*)(int)) dlsym(RTLD_NEXT, "fdatasync");
  return later(system_call(file));
}

int fsync(int file) {
  static int (*system_call)(int);
  if (!system_call) system_call = (int (*)(int)) dlsym(RTLD_NEXT, "fsync");
  return later(system_call(file));
}
"""


def possible() -> bool:
    """Whether syncs can be made longer here."""
    return shutil.which("cc") is not None and sys.platform.startswith("linux")


class SlowSyncs:
    """How much longer the syncs of one process and its children take, which may change while it runs."""

    def __init__(self, directory: Path) -> None:
        self._library = directory / "slow_syncs.so"
        self._delay = directory / "sync_delay"

    def build(self) -> bool:
        """Compile the library; False where that cannot be done."""
        compiler = shutil.which("cc")
        if compiler is None or not possible():
            return False
        source = self._library.with_suffix(".c")
        source.write_text(_SOURCE, "utf-8")
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(source), "-ldl"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        self._library.chmod(0o755)
        self._set(0)
        return True

    def _set(self, milliseconds: int) -> None:
        self._delay.write_text(str(1000 * milliseconds), "ascii")
        self._delay.chmod(0o644)

    @contextlib.contextmanager
    def preloaded(self) -> Iterator[None]:
        """Start a process within this: it and its children sync by the library."""
        os.environ |= {"LD_PRELOAD": str(self._library), _FILE: str(self._delay)}
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ[_FILE]

    @contextlib.contextmanager
    def longer(self, milliseconds: int) -> Iterator[None]:
        """Meanwhile each sync takes so much longer."""
        self._set(milliseconds)
        try:
            yield
        finally:
            self._set(0)


def apart(module: str, group: str, name: str, milliseconds: int) -> Measure:
    """The cell of that name among the ``cells`` of a module, measured in a process whose syncs take so much longer."""

    def measure(seconds: float, directory: Path) -> Sample:
        syncs = SlowSyncs(directory)
        if not syncs.build():
            raise OSError("the few lines of C that make syncs slower cannot be compiled")
        place = directory / "cell"
        place.mkdir()
        command = [sys.executable, "-m", __name__, module, group, name, str(seconds), str(place)]
        with syncs.preloaded(), syncs.longer(milliseconds):
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1])
        return Sample(**json.loads(done.stdout))

    return measure


def main(module: str, group: str, name: str, seconds: str, directory: str) -> None:
    """In that process: measure one cell, and say what was found."""
    found = [cell for cell in importlib.import_module(module).cells() if (cell.group, cell.name) == (group, name)]
    with only_new_garbage():
        sample = found[0].measure(float(seconds), Path(directory))
    sys.stdout.write(json.dumps(dataclasses.asdict(sample)))


if __name__ == "__main__":
    main(*sys.argv[1:])
