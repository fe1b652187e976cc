"""A pytest plugin that breaks the library: one defect of the catalogue, put into a module's source as it is imported.

    INTERLOCK_DEFECT="reads are not validated" PYTHONPATH=tests python -m pytest -p defects.patching ...

The defect's text has to occur exactly once in the module, so a catalogue that no longer fits the code fails loudly.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from defects.catalogue import NAMED, Defect


def broken(source: str, defect: Defect) -> str:
    """The source with the defect in it. Raises `ValueError` where it does not fit."""
    for old, new in defect.changes:
        found = source.count(old)
        if found != 1:
            raise ValueError(f"defect {defect.name!r}: {old!r} occurs {found} times in {defect.module}")
        source = source.replace(old, new)
    return source


class _Breaker(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, defect: Defect) -> None:
        self.defect = defect

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.defect.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        assert found is not None
        assert found.origin is not None
        package = found.submodule_search_locations is not None
        spec = importlib.util.spec_from_loader(name, self, origin=found.origin, is_package=package)
        if spec is not None and package:
            spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        origin = module.__spec__.origin if module.__spec__ is not None else None
        assert origin is not None
        module.__file__ = origin
        with open(origin, encoding="utf-8") as file:
            source = broken(file.read(), self.defect)
        exec(compile(source, origin, "exec"), module.__dict__)


wanted = os.environ.get("INTERLOCK_DEFECT")
if wanted is not None:
    if "interlock" in sys.modules:
        raise RuntimeError("the library has been imported before it could be broken")
    sys.meta_path.insert(0, _Breaker(NAMED[wanted]))
