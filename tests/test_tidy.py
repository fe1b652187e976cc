"""The house rules, enforced: see `tidy.py` for the rules and their tables.

First the rules over the repository, then a self-test of each rule with a snippet that breaks it, because a rule that
cannot fail protects nothing.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tidy
from tidy import Source

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "interlock"

Rule = Callable[[Source], Iterator[str]]

LIBRARY_RULES: list[Rule] = [
    tidy.import_directions,
    tidy.lengths,
    tidy.module_docstring,
    tidy.no_print,
    tidy.no_bare_except,
    tidy.finished,
    tidy.ignores_have_codes,
    tidy.glossary,
    tidy.units,
    tidy.no_loops_in_locks,
]
TEST_RULES: list[Rule] = [tidy.module_docstring, tidy.no_bare_except, tidy.finished, tidy.ignores_have_codes]

SLEEPS: dict[str, str] = {
    "tests/cases/support.py": "between two looks, in the place of a loop that takes a processor for itself",
    "tests/cases/test_postgresql.py": "an agent thinks for longer than the server's limit",
    "tests/cases/test_workloads.py": "agents that think",
    "tests/soaking/lanes.py": "a lane leaves the others its time",
}
"""Test files that may sleep -> why. Agents that think are a reason; waiting for another thread is not."""

PUBLIC_MODULES = ["interlock", "interlock.sync", "interlock.testing", "interlock.testing.sync"]
OPTIONAL = {"typer", "rich", "pydantic", "trio", "pytest", "hypothesis", "matplotlib"}
FENCES = {"python", "console", "text", "sh", "sql", "toml", "json", "diff"}
MARKDOWN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read(paths: list[Path]) -> list[Source]:
    return [Source(path.stem, path.read_text("utf-8"), str(path.relative_to(ROOT))) for path in paths]


@functools.cache
def library_files() -> list[Source]:
    return tidy.sources(PACKAGE, ROOT)


@functools.cache
def files_of_tests() -> list[Source]:
    return read(sorted((ROOT / "tests").rglob("*.py")))


# --- the repository ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", LIBRARY_RULES, ids=lambda rule: rule.__name__)
def test_library(rule: Rule) -> None:
    wrong = [sentence for source in library_files() for sentence in rule(source)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("rule", TEST_RULES, ids=lambda rule: rule.__name__)
def test_tests(rule: Rule) -> None:
    wrong = [sentence for source in files_of_tests() for sentence in rule(source)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_tests_do_not_sleep() -> None:
    found = {source.shown: list(tidy.no_sleeps(source)) for source in files_of_tests()}
    wrong = [sentence for shown, sentences in found.items() if shown not in SLEEPS for sentence in sentences]
    assert not wrong, "\n" + "\n".join(wrong)
    stale = [shown for shown in SLEEPS if not found.get(shown)]
    assert not stale, f"these have a reason to sleep and do not: {stale}"
    assert all(len(reason.split()) >= 3 for reason in SLEEPS.values()), "a reason is a sentence"


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_names_have_docstrings(name: str) -> None:
    assert not (wrong := list(undocumented(importlib.import_module(name)))), "\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_parameters_are_in_our_words_and_units(name: str) -> None:
    assert not (wrong := list(misnamed(importlib.import_module(name)))), "\n" + "\n".join(wrong)


def test_importing_the_library_loads_nothing_optional() -> None:
    """What an extra brings is imported when it is used, never by `import interlock`."""
    script = "import sys, interlock, interlock.sync; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not (loaded := OPTIONAL & set(done.stdout.split())), f"`import interlock` also imports {loaded}"


def test_changelog_says_what_is_new() -> None:
    assert not (wrong := changelog(read_text("CHANGELOG.md"), version())), wrong


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_markdown_blocks_are_of_a_kind_that_is_run_or_known(path: Path) -> None:
    """`test_docs.py` runs blocks marked python; one marked py or pycon would promise something that nobody checks."""
    assert not (unknown := set(tidy.fences(path.read_text("utf-8"))) - FENCES), f"{path.name}: {unknown}"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_every_python_block_is_executed(path: Path) -> None:
    """The executed blocks are counted against a reading of the fences that shares no code with the collector."""
    from test_docs import blocks

    text = path.read_text("utf-8")
    assert sum(block.language == "python" for block in blocks(text)) == list(tidy.fences(text)).count("python")


def test_decisions_are_numbered_and_complete() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        headings = re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Context", "Choice", "Price", "When to revisit"], page.name


# --- what needs more than one file ------------------------------------------------------------------------------------


def read_text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def version() -> str:
    found = re.search(r'^version = "(.+)"$', read_text("pyproject.toml"), re.MULTILINE)
    assert found
    return found[1]


def changelog(text: str, version: str) -> str | None:
    """What is wrong with a changelog: its newest section is neither Unreleased nor this version."""
    sections = re.findall(r"^## \[?([^\]\s]+)", text, re.MULTILINE)
    if not sections or sections[0] not in ("Unreleased", version):
        return f"the first section is neither Unreleased nor {version}: {sections[:1]}"
    return None


def undocumented(module: ModuleType) -> Iterator[str]:
    """Public classes and functions of a module, and their public methods and properties, that say nothing."""
    if not inspect.getdoc(module):
        yield f"{module.__name__} has no docstring"
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) and thing.__module__.startswith(("interlock", module.__name__)):
            yield from _undocumented_class(module.__name__, thing)
        elif inspect.isroutine(thing) and not inspect.getdoc(thing):
            yield f"{module.__name__}.{name} has no docstring"


def _undocumented_class(where: str, thing: type) -> Iterator[str]:
    if not vars(thing).get("__doc__"):
        yield f"{where}.{thing.__name__} has no docstring"
    if issubclass(thing, enum.Enum):
        return
    for base in thing.__mro__:
        if not base.__module__.startswith(("interlock", thing.__module__)):
            continue
        for name, member in vars(base).items():
            callable_member = inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
            if not name.startswith("_") and callable_member and not inspect.getdoc(getattr(thing, name)):
                yield f"{where}.{thing.__name__}.{name} has no docstring"


def misnamed(module: ModuleType) -> Iterator[str]:
    """Exported names, their public members, parameters and typed keywords that break the glossary or lack a unit."""
    for name in module.__all__:
        thing = getattr(module, name)
        named = [(name, None), *_members(thing)] if inspect.isclass(thing) else [(name, None), *_parameters(thing)]
        for word, annotation in named:
            for sentence in [*tidy.banned_words(word), *tidy.wrong_units(word, annotation)]:
                yield f"{module.__name__}.{name}: {sentence}"


def _members(thing: type) -> Iterator[tuple[str, str | None]]:
    for base in thing.__mro__:
        if base.__module__.startswith(("interlock", thing.__module__)):
            fields = vars(base).get("__annotations__", {})
            yield from ((name, str(annotation)) for name, annotation in fields.items() if not name.startswith("_"))
            for name, member in vars(base).items():
                if name == "__init__" or not name.startswith("_"):
                    yield name, None
                    yield from _parameters(getattr(member, "__func__", member))


def _parameters(thing: object) -> Iterator[tuple[str, str | None]]:
    if inspect.isfunction(thing):
        for name, parameter in inspect.signature(thing).parameters.items():
            if not name.startswith("_"):
                yield name, str(parameter.annotation)


# --- each rule can fail -----------------------------------------------------------------------------------------------

LONG = "def f():\n" + "    x = 1\n" * 61
EXACT = 'def f():\n    """Two\n    lines."""\n' + "    x = 1\n" * 59

BREAKS: list[tuple[Rule, str, str, str]] = [
    (tidy.import_directions, "model", "import interlock.core.session", "may not import interlock.core"),
    (tidy.import_directions, "errors", "from interlock import model", "may not import interlock.model"),
    (tidy.import_directions, "backends.memory", "from interlock.core import session", "may not import interlock.core"),
    (tidy.import_directions, "backends.memory", "from interlock.backends import sqlite", "imports backend"),
    (tidy.import_directions, "backends.memory", "from interlock.backends.sqlite import x", "imports backend"),
    (tidy.import_directions, "core.session", "import interlock", "may not import the package itself"),
    (tidy.import_directions, "core.session", "from interlock import sync", "may not import interlock.sync"),
    (tidy.import_directions, "core.session", "from interlock import open", "may not import the package itself"),
    (tidy.import_directions, "core.session", "def f():\n    import asyncio", "the core imports asyncio"),
    (tidy.import_directions, "core.session", "from interlock.store import Store", "may not import interlock.store"),
    (
        tidy.import_directions,
        "core.log",
        "if TYPE_CHECKING:\n    import interlock.store",
        "may not import interlock.store",
    ),
    (tidy.import_directions, "core.retry", "from time import monotonic", "the core imports time"),
    (tidy.import_directions, "core.retry", "from . import session", "relative import"),
    (tidy.import_directions, "codec", "import sqlite3", "sqlite3 is imported outside"),
    (tidy.import_directions, "sync", "import rich", "rich is imported outside"),
    (tidy.import_directions, "sync", "import numpy.linalg", "numpy has no row"),
    (tidy.import_directions, "helpers", "", "has no row in IMPORTS"),
    (tidy.lengths, "keys", "x = 1\n" * 401, "401 lines"),
    (tidy.lengths, "keys", LONG, "f has 62 lines"),
    (tidy.lengths, "keys", "async " + LONG, "f has 62 lines"),
    (tidy.module_docstring, "keys", "import os", "no docstring"),
    (tidy.module_docstring, "keys", '"""  """', "no docstring"),
    (tidy.no_print, "keys", "def f():\n    print(1)", "print()"),
    (tidy.no_bare_except, "keys", "try:\n    f()\nexcept:\n    g()", "bare except"),
    (tidy.finished, "keys", "x = 1  # " + "TO" + "DO later", "in a comment"),
    (tidy.finished, "keys", "raise Not" + "ImplementedError", "UnsupportedError"),
    (tidy.finished, "keys", "raise Not" + "ImplementedError('x')", "UnsupportedError"),
    (tidy.ignores_have_codes, "keys", "x = 1  # type" + ": ignore", "without an error code"),
    (tidy.ignores_have_codes, "keys", "x = 1  # pyright" + ": ignore", "without an error code"),
    (tidy.ignores_have_codes, "keys", "x = 1  # no" + "qa", "without an error code"),
    (tidy.glossary, "keys", "def begin_txn(): ...", "but transaction"),
    (tidy.glossary, "keys", "class LockMgr: ...", "but store or session"),
    (tidy.glossary, "keys", "class TxnState: ...", "but transaction"),
    (tidy.glossary, "keys", "def f(*, cb): ...", "but callback"),
    (tidy.glossary, "keys", "class A:\n    db: str", "but store or backend"),
    (tidy.glossary, "keys", "class A:\n    def __init__(self, conn): ...", "but connection"),
    (tidy.units, "keys", "def f(timeout: float | None): ...", "does not end in _seconds"),
    (tidy.units, "keys", "def f(seconds_to_wait: float): ...", "does not end in _seconds"),
    (tidy.units, "keys", "def f(ttl_ms: int): ...", "durations end in _seconds"),
    (tidy.units, "keys", "class A:\n    max_size: int = 3", "amounts of data in _bytes"),
    (tidy.no_loops_in_locks, "keys", "with self._mutex:\n    if x:\n        for y in z: ...", "within a lock"),
    (tidy.no_loops_in_locks, "keys", "with lock:\n    x = [y for y in z if y]", "within a lock"),
    (tidy.no_loops_in_locks, "keys", "a.b = threading.Semaphore(3)\nwith a.b:\n    while x: ...", "within a lock"),
    (tidy.no_sleeps, "test_x", "import time\ntime.sleep(1)", "time.sleep"),
    (tidy.no_sleeps, "test_x", "async def f():\n    await asyncio.sleep(0.01)", "asyncio.sleep"),
    (tidy.no_sleeps, "test_x", "from time import sleep as nap\nnap(1)", "nap"),
]

KEEPS: list[tuple[Rule, str, str]] = [
    (tidy.import_directions, "backends.sqlite.writer", "import sqlite3\nfrom interlock.backends.sqlite import schema"),
    (tidy.import_directions, "backends.memory", "from interlock.backends import bridges\nfrom interlock import merges"),
    (
        tidy.import_directions,
        "core.session",
        "import inspect, interlock.ports\nfrom interlock.core import retry",
    ),
    (tidy.import_directions, "core.session", "if TYPE_CHECKING:\n    from interlock.store import SharedResource"),
    (tidy.import_directions, "cli.main", "import typer, interlock\nfrom interlock import sync, Outcome"),
    (tidy.lengths, "keys", EXACT + "x = 1\n" * (400 - EXACT.count("\n"))),
    (tidy.no_print, "cli.main", "print(1)"),
    (tidy.no_bare_except, "keys", "try:\n    f()\nexcept ValueError:\n    g()"),
    (tidy.finished, "keys", 'x = "TODO"\ny = NotImplemented'),
    (tidy.ignores_have_codes, "keys", "x = 1  # type: ignore[misc]\ny = 1  # noqa: E501\ns = '# type: ignore'"),
    (tidy.glossary, "core.writing", "def write(txn, key): ..."),
    (tidy.glossary, "keys", "def f(value):\n    txn = value\nclass _Mgr:\n    db: str\ndef _cb(conn): ..."),
    (tidy.units, "keys", "def f(timeout_seconds: float, size_bytes: int, wait: bool, delays: list[str]): ..."),
    (tidy.no_loops_in_locks, "keys", "with state.lock:\n    x = [y for y in z]\nwith opened:\n    while x: ..."),
    (tidy.no_sleeps, "test_x", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\nclock.sleep(3)"),
]


@pytest.mark.parametrize(("rule", "name", "text", "said"), BREAKS)
def test_a_rule_can_fail(rule: Rule, name: str, text: str, said: str) -> None:
    found = list(rule(Source(name, text)))
    assert any(said in sentence for sentence in found), found


@pytest.mark.parametrize(("rule", "name", "text"), KEEPS)
def test_a_rule_can_hold(rule: Rule, name: str, text: str) -> None:
    assert list(rule(Source(name, text))) == []


def test_every_rule_has_a_snippet_that_breaks_it() -> None:
    assert {rule for rule, *_ in BREAKS} == {*LIBRARY_RULES, *TEST_RULES, tidy.no_sleeps}


def test_the_tables_name_what_exists() -> None:
    """A row for a module that is gone, or a driver that nobody imports, is a permission that nobody needs."""
    groups = {source.group for source in library_files()}
    assert not (gone := set(tidy.IMPORTS) - groups), f"no such module: {gone}"
    used = {name.partition(".")[0] for source in library_files() for _, name in tidy.imported(source)}
    assert not (unused := set(tidy.DRIVERS) - used), f"nobody imports {unused}"
    against = {
        (source.name, name.split(".")[1])
        for source in library_files()
        for _, name in tidy.imported(source)
        if name.startswith("interlock.")
    }
    assert not (unused := set(tidy.TYPE_ONLY) - against), f"needed no more: {unused}"


def test_undocumented_names_are_found() -> None:
    class Silent:
        def speak(self) -> None: ...

        @property
        def loud(self) -> bool:
            return False

        def _own(self) -> None: ...

    def mute() -> None: ...

    module = ModuleType("interlock_snippet")
    Silent.__module__ = mute.__module__ = module.__name__
    vars(module).update(Silent=Silent, mute=mute, __all__=["Silent", "mute"])
    assert [sentence.split()[0].removeprefix("interlock_snippet") for sentence in undocumented(module)] == [
        "", ".Silent", ".Silent.speak", ".Silent.loud", ".mute",
    ]  # fmt: skip


def test_misnamed_exports_are_found() -> None:
    class Store:
        pause: str

        def __init__(self, conn: object) -> None: ...

        @classmethod
        def make(cls, timeout: float) -> None: ...

    def begin(agent: str, wait_ms: int, _own: int = 0) -> None: ...

    module = ModuleType("interlock_snippet")
    Store.__module__ = begin.__module__ = module.__name__
    vars(module).update(Store=Store, begin=begin, db=3, __all__=["Store", "begin", "db"])
    assert [sentence.split("'")[1] for sentence in misnamed(module)] == ["conn", "timeout", "wait_ms", "wait_ms", "db"]


def test_a_changelog_can_be_behind() -> None:
    assert changelog("# Changelog\n", "1.0.0")
    assert changelog("## [0.9.0] - 2020-01-01\n", "1.0.0")
    assert not changelog("## [Unreleased]\n## [0.9.0]\n", "1.0.0")
    assert not changelog("## [1.0.0] - 2020-01-01\n", "1.0.0")


def test_fences_are_read() -> None:
    assert list(tidy.fences("```python\nx\n```\n\n  ```py\n  y\n  ```\n````text\n```python\n````\n")) == [
        "python", "py", "text",
    ]  # fmt: skip
    assert list(tidy.fences("```python\nx\n")) == ["python", "(unclosed)"]
