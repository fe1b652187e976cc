"""What a history is made of, how it is written while it happens, and how it is read afterwards.

A history is a file of JSON objects, one a line, in the form that the checkers of the Jepsen family read::

    {"index": 7, "time": 12345, "type": "invoke", "process": 3, "f": "txn", "value": [["append", "x", 1], ...]}

``time`` is in nanoseconds of the machine's monotonic clock, which all processes of one machine share. ``type`` is
``invoke`` before the first call into the library, and then exactly one of

- ``ok``: the commit returned; the reads are filled in;
- ``fail``: the library *guarantees* that nothing was done;
- ``info``: nobody can tell. A process whose operation ended like this makes no other one; its thread goes on under a
  new number.

Every operating-system process writes a file of its own, each line in one system call, so that a killed process leaves
whole lines behind; an operation that it had begun and not ended is ``info``. `load` merges the files by time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from interlock.errors import InterlockError

Step = list[Any]
"""One step of a transaction: ``[what, key, value]``."""

Ending = Literal["ok", "fail", "info"]

_PAST_END: Final = 1 << 63
"""When an operation ends whose end nobody has seen: later than everything."""


class Line(msgspec.Struct, frozen=True):
    """One line of a file, as others read it too."""

    index: int
    time: int
    type: Literal["invoke", "ok", "fail", "info"]
    process: int
    f: str
    value: list[Step]
    error: str | None = None


@dataclass(frozen=True)
class Transaction:
    """An operation of a history: when it was called and when it ended (nanoseconds), how, and what it did.

    ``steps`` holds what was read as far as that is known: all of it where ``ending`` is ok."""

    number: int
    process: int
    begun: int
    ended: int
    ending: Ending
    steps: tuple[tuple[Any, ...], ...]
    error: str | None = None

    @property
    def happened(self) -> bool:
        """Whether it is known to have been committed."""
        return self.ending == "ok"

    def __str__(self) -> str:
        done = ", ".join(f"{what} {key} {shown(value)}" for what, key, value in self.steps)
        return f"T{self.number} ({self.ending}: {done})"


def shown(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:30]} ... {text[-25:]}"


def ending_of(error: BaseException) -> Ending:
    """What an error says about its transaction. Only the library's own word that nothing was done counts as failed."""
    return "fail" if isinstance(error, InterlockError) and not error.maybe_committed else "info"


class Recording:
    """Notes what the threads of one process do. ``stride`` keeps the numbers of all threads of all processes apart: a
    thread whose operation ended as info takes its number plus ``stride``. ``clock`` gives nanoseconds."""

    def __init__(self, stride: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.lines: list[Line] = []
        self._stride = stride
        self._clock = clock
        self._mutex = threading.Lock()
        self._index = 0

    def begin(self, process: int, steps: Sequence[Step], f: str = "txn") -> None:
        """Note that an operation begins."""
        self._write("invoke", process, steps, None, f)

    def end(
        self, process: int, ending: Ending, steps: Sequence[Step], error: BaseException | None = None, f: str = "txn"
    ) -> int:
        """Note how it ended; returns the number under which the thread goes on."""
        self._write(ending, process, steps, None if error is None else f"{type(error).__name__}: {error}"[:300], f)
        return process + self._stride if ending == "info" else process

    def _write(self, type_: Any, process: int, steps: Sequence[Step], error: str | None, f: str) -> None:
        with self._mutex:  # the index has to grow along the file
            copied = [list(step) for step in steps]
            self._put(Line(self._index, self._clock(), type_, process, f, copied, error))
            self._index += 1

    def _put(self, line: Line) -> None:
        self.lines.append(line)


class Recorder(Recording):
    """Writes to a file of its own in ``directory``; ``name`` is the file's stem."""

    def __init__(self, directory: Path, name: str, stride: int) -> None:
        super().__init__(stride)
        self._file = os.open(directory / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()

    def _put(self, line: Line) -> None:
        os.write(self._file, self._encoder.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(frozen=True)
class History:
    """The transactions of a run in the order in which they began; ``final`` is the last read of every key."""

    transactions: tuple[Transaction, ...]
    final: Transaction | None = None
    torn_lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def ok(self) -> Iterable[Transaction]:
        """Those that are known to have been committed."""
        return (each for each in self.transactions if each.ending == "ok")


def merge(directory: Path, target: Path) -> History:
    """Write the files of a run as one, ordered by time, with an index of its own: the form that is handed to others.
    Returns the history."""
    lines, torn = _lines(sorted(path for path in directory.glob("*.jsonl") if path != target))
    encode = msgspec.json.Encoder().encode
    with target.open("wb") as file:
        for index, line in enumerate(lines):
            file.write(encode(msgspec.structs.replace(line, index=index)) + b"\n")
    return of_lines(lines, torn)


def lines_of(directory: Path) -> list[Line]:
    """The lines of the processes' own files, by time."""
    return _lines(sorted(directory.glob("*.jsonl")))[0]


def _lines(paths: Iterable[Path]) -> tuple[list[Line], int]:
    decoder = msgspec.json.Decoder(Line)
    lines, torn = [], 0
    for path in paths:
        for raw in path.read_bytes().split(b"\n"):
            if not raw:
                continue
            try:
                lines.append(decoder.decode(raw))
            except msgspec.DecodeError:
                torn += 1
    lines.sort(key=lambda line: line.time)
    return lines, torn


def load(path: Path) -> History:
    """A history from a merged file, or from a directory of the processes' own files.

    Raises `ValueError` where an operation ends that was never begun, or one process does two things at once."""
    lines, torn = _lines([path] if path.is_file() else sorted(path.glob("*.jsonl")))
    return of_lines(lines, torn)


def of_lines(lines: Iterable[Line], torn: int = 0) -> History:
    """A history from its lines in order of time. Raises `ValueError` as `load` does."""
    begun: dict[int, Line] = {}
    made: list[tuple[Line, Line | None]] = []
    counts = {"ok": 0, "fail": 0, "info": 0}
    for line in lines:
        if line.type == "invoke":
            if line.process in begun:
                raise ValueError(f"process {line.process} begins at {line.time} what it has begun already")
            begun[line.process] = line
            continue
        start = begun.pop(line.process, None)
        if start is None:
            raise ValueError(f"process {line.process} ends at {line.time} what it has not begun")
        made.append((start, line))
    made += [(start, None) for start in begun.values()]
    made.sort(key=lambda pair: pair[0].time)
    transactions: list[Transaction] = []
    final = None
    for number, (start, end) in enumerate(made):
        ending: Ending = "info" if end is None else end.type  # type: ignore[assignment]
        steps = start.value if end is None else end.value
        ended = _PAST_END if end is None or ending == "info" else end.time
        frozen = tuple(tuple(step) for step in steps)
        each = Transaction(number, start.process, start.time, ended, ending, frozen, None if end is None else end.error)
        transactions.append(each)
        if start.f == "final":
            final = each
        else:
            counts[ending] += 1
    return History(tuple(transactions), final, torn, counts)
