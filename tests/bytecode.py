"""The processes of a run share the work of compiling what the tests consist of.

In a new checkout nothing is compiled, and each process that runs tests imports all of them, at the same time as the
others: each would compile it all, and pytest's rewriting of assertions makes that longer than all else that comes
before the first test. So each compiles a share first and leaves it where Python and pytest look for it. There is no
waiting: who comes to a file whose share is not done compiles it for himself, as without this.

A module is compiled by whoever would import it, but without the import's effects: it is executed in a namespace in
which nothing can be imported, and the first thing that every module of ours does is to import something.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parent
LIBRARY = TESTS.parent / "src"


def compile_share(config: pytest.Config) -> None:
    """Compile what falls to this process, if it is one of several that may leave compiled modules behind them."""
    given = getattr(config, "workerinput", None)
    if given is None or sys.dont_write_bytecode:
        return
    number, count = int(given["workerid"].removeprefix("gw")), given["workercount"]
    paths = sorted(path for root in (TESTS, LIBRARY) for path in root.rglob("*.py"))
    for path in paths[number::count]:
        compile_module(path)


def compile_module(path: Path) -> bool:
    """Have a module compiled; whether it was one that the import system knows how to compile."""
    spec = _found(path)
    if spec is None or spec.loader is None:
        return False
    module = ModuleType(spec.name)
    module.__spec__, module.__file__ = spec, str(path)
    vars(module)["__builtins__"] = {}
    try:
        spec.loader.exec_module(module)
    except (ImportError, NameError):  # it has no way to import, and no names
        pass
    return True


def _found(path: Path) -> ModuleSpec | None:
    """What an import of the file would find."""
    below = path.relative_to(LIBRARY) if path.is_relative_to(LIBRARY) else Path(path.name)
    name = ".".join(below.with_suffix("").parts)
    for finder in sys.meta_path:
        spec = finder.find_spec(name, [str(path.parent)])
        if spec is not None and spec.origin == str(path):
            return spec
    return importlib.util.spec_from_file_location(name, path)
