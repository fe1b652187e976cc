"""A server on a slower disk: its ``fdatasync`` takes longer by as much as a file says.

``commit_delay`` makes a sync longer, too, but at the wrong end: the server sleeps first and then writes and syncs
whatever has come meanwhile, so that who comes while the "disk" is busy is served by it all the same. On a slow disk he
waits for the next sync. So a library of a few lines is compiled and loaded into the server before the system's own,
where there is a compiler (``cc``) and a dynamic linker that does such a thing (``LD_PRELOAD``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FILE: Final = "INTERLOCK_BENCH_SYNC_DELAY"
_SOURCE: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int file) {
  static int (*system_call)(int);
  char text[16] = {0};
  int delay, answer;
  if (!system_call) system_call = (int (*)(int)) dlsym(RTLD_NEXT, "fdatasync");
  answer = system_call(file);
  delay = open(getenv("INTERLOCK_BENCH_SYNC_DELAY"), O_RDONLY);
  if (delay >= 0) {
    if (read(delay, text, 15) > 0 && atoi(text) > 0) usleep(atoi(text));
    close(delay);
  }
  return answer;
}
"""


class SlowSyncs:
    """How much longer the syncs of one server take, which may change while it runs."""

    def __init__(self, directory: Path) -> None:
        self._library = directory / "slow_syncs.so"
        self._delay = directory / "sync_delay"

    def build(self) -> bool:
        """Compile the library; False where that cannot be done."""
        compiler = shutil.which("cc")
        if compiler is None or not sys.platform.startswith("linux"):
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
        """Start the server within this: it and its processes sync by the library."""
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
