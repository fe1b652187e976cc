"""The house rules that a program can check, as functions from a source file to sentences of what is wrong with it.

Each rule looks at one file and knows no other; `test_tidy.py` runs them over the repository and shows of each that it
can fail. The tables at the top are the rules' data: whoever adds a module or a driver says here where it belongs.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOUNDATION = {"errors", "model", "codec", "keys", "merges", "ports", "runtime", "wording"}
"""What everybody may import, backends included."""

CORE = FOUNDATION - {"runtime"} | {"gates"}

IMPORTS: dict[str, set[str]] = {
    "errors": set(),
    "wording": set(),
    "model": {"errors"},
    "codec": {"errors", "model"},
    "keys": {"errors", "model"},
    "merges": {"errors", "model", "codec", "keys"},
    "ports": {"errors", "model"},
    "background": set(),
    "runtime": {"errors", "model", "ports", "background"},
    "gates": {"errors", "model", "ports"},
    "core": CORE,
    "layers": CORE | {"core"},
    "backends": FOUNDATION,
    "opening": FOUNDATION | {"backends"},
    "attempts": CORE | {"core"},
    "store": FOUNDATION | {"attempts", "core", "layers", "saga", "opening"},
    "stepping": CORE | {"core", "layers"},
    "saga": FOUNDATION | {"core", "layers", "stepping"},
    "sync": FOUNDATION | {"core", "layers", "saga", "backends", "opening", "stepping"},
    "cli": FOUNDATION | {"core", "layers", "backends", "saga", "stepping", "sync", "demo", ""},
    "demo": FOUNDATION | {"core", "backends", "sync", ""},
    "testing": FOUNDATION | {"core", "layers", "backends", "gates", "opening", "stepping", "sync", "cli", "demo", ""},
    "__main__": {"cli"},
    "": FOUNDATION | {"attempts", "core", "layers", "saga", "backends", "opening", "store", "sync"},
}
"""First name below `interlock` ("" is the package itself) -> the first names that its modules may import.

Modules of one such group import each other freely, backends excepted: see `BACKEND_SHARED`."""

TYPE_ONLY: dict[tuple[str, str], str] = {
    ("core.session", "store"): "`on` takes a SharedResource and hands its type on to the session that it returns",
    ("stepping", "sync"): "the same in synchronous code",
    ("saga.scope", "store"): "`transact` takes a SharedResource and hands its type on to the function's session",
    ("saga.blocking", "sync"): "the same in synchronous code",
    ("saga.serving", "store"): "`recover` takes the other stores of a saga",
}
"""(module, what it imports against the direction) -> why. Under TYPE_CHECKING only, so not at run time."""

BACKEND_SHARED = {"backends.bridges", "backends.threads"}
"""What several backends stand on. Apart from these no backend imports another one."""

DRIVERS: dict[str, set[str]] = {
    "msgspec": {"model", "codec", "core", "layers", "saga", "backends", "cli", "demo", "testing"},
    "typing_extensions": {"core", "layers", "saga", "store", "stepping", "sync"},
    "asyncio": {"runtime", "background", "saga.worlds", "backends", "demo", "cli", "testing"},
    "trio": {"runtime", "testing"},
    "sqlite3": {"backends.sqlite", "demo", "testing"},
    "asyncpg": {f"backends.postgresql.{name}" for name in ("asynchronous", "connections", "types")},
    "psycopg": {"backends.postgresql.blocking", "backends.postgresql.heralds"},
    "redis": {"backends.redis.address"},
    "hiredis": {"backends.redis.blocking", "backends.redis.multiplexer"},
    "pydantic": {"core.typed"},
    "typer": {"cli", "demo", "testing.histories"},
    "rich": {"cli", "demo", "testing.histories"},
    "pytest": {"testing"},
    "hypothesis": {"testing"},
}
"""Drivers, frameworks and event loops -> the modules (or whole groups) that may import them. Other packages: nobody."""

CORE_NEVER = {
    "asyncio", "anyio", "concurrent", "multiprocessing", "random", "secrets", "selectors", "signal", "socket",
    "sqlite3", "subprocess", "threading", "time", "trio",
}  # fmt: skip
"""The core awaits its ports and has no world of its own, so that every failure replays from a seed."""

BANNED_WORDS: dict[str, str] = {
    "cb": "callback", "cfg": "options", "client": "session", "cnt": "count", "collision": "conflict",
    "conn": "connection", "connector": "backend", "ctx": "context", "db": "store or backend",
    "idx": "index", "manager": "store or session", "mgr": "store or session", "msg": "message", "mutex": "lock",
    "num": "count", "params": "parameters", "prev": "previous", "req": "request", "res": "result", "resp": "reply",
    "revision": "version", "saver": "backend", "sess": "session", "timestamp": "version, or at", "tmp": "what it holds",
    "tx": "transaction", "txn": "transaction", "val": "value", "ver": "version",
}  # fmt: skip
"""Words that the glossary gives up, or that nobody says aloud -> what we say."""

DURATION_WORDS = {"age", "backoff", "delay", "duration", "grace", "interval", "period", "timeout", "ttl", "wait"}
WRONG_UNITS = {"ms", "millis", "msec", "sec", "secs", "minutes", "hours", "us", "kb", "mb", "kib", "mib", "size"}

EXPORTED = {"attempts", "core", "layers", "saga", "store", "stepping", "sync"}
"""Where the exported names come from."""

MODULE_LINES = 400
FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file: ``name`` is dotted and relative to the package ("" for its own `__init__`)."""

    name: str
    text: str
    shown: str = "<snippet>"

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All of it, walked once for all rules."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def comments(self) -> list[tuple[int, str]]:
        """Comments with their lines, read once for all rules."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]

    @property
    def group(self) -> str:
        """The first part of the name, by which the tables are keyed."""
        return self.name.partition(".")[0]

    def at(self, node: ast.AST | int, what: str) -> str:
        """The sentence with its place."""
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.shown}:{line}: {what}"


def sources(package: Path, root: Path) -> list[Source]:
    """All modules of the package."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found.append(Source(name, path.read_text("utf-8"), str(path.relative_to(root))))
    return found


def imported(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every absolute name that the module imports, also inside functions and under TYPE_CHECKING.

    ``from a import b`` counts as both ``a`` and ``a.b``, since ``b`` may be a module."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node, "." * node.level
                continue
            module = node.module or ""
            yield from ((node, f"{module}.{alias.name}") for alias in node.names)


def import_directions(source: Source) -> Iterator[str]:
    """Imports go the way of the tables; third-party packages stay in their own modules; the core has no world."""
    if source.group not in IMPORTS:
        yield source.at(1, f"{source.group!r} has no row in IMPORTS: say what it may import")
        return
    type_only = {id(inner) for node in source.nodes if _for_types(node) for inner in ast.walk(node)}
    for node, name in imported(source):
        top, _, below = name.partition(".")
        if id(node) in type_only and top == "interlock" and (source.name, below.partition(".")[0]) in TYPE_ONLY:
            continue
        if name.startswith("."):
            yield source.at(node, "relative import; write the whole name")
        elif top == "interlock":
            yield from _inner_import(source, node, below)
        else:
            yield from _outer_import(source, node, top)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _inner_import(source: Source, node: ast.AST, below: str) -> Iterator[str]:
    target = below.partition(".")[0]
    if target not in IMPORTS or not below:
        target = ""  # a public name of the package itself
    if target == source.group == "backends":
        own = ".".join(source.name.split(".")[:2])
        other = ".".join(below.split(".")[:2])
        if other not in BACKEND_SHARED | {own, "backends"} and source.name != "backends":
            yield source.at(node, f"backend {own!r} imports backend {other!r}")
    elif target != source.group and target not in IMPORTS[source.group]:
        said = f"interlock.{target}" if target else "the package itself"
        yield source.at(node, f"{source.group or 'the package'!r} may not import {said}")


def _outer_import(source: Source, node: ast.AST, top: str) -> Iterator[str]:
    if source.group == "core" and top in CORE_NEVER:
        yield source.at(node, f"the core imports {top}; it awaits its ports instead")
    elif top in DRIVERS:
        allowed = DRIVERS[top]
        if not any(source.name == place or (place and source.name.startswith(place + ".")) for place in allowed):
            yield source.at(node, f"{top} is imported outside {sorted(allowed)}")
    elif top not in sys.stdlib_module_names:
        yield source.at(node, f"{top} has no row in DRIVERS: say whose it is, or do without")


def lengths(source: Source) -> Iterator[str]:
    """A module is one sitting, a function one screen."""
    lines = source.text.count("\n")
    if lines > MODULE_LINES:
        yield source.at(1, f"{lines} lines; a module has at most {MODULE_LINES}")
    for node in source.nodes:
        if isinstance(node, Function):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
            if length > FUNCTION_LINES:
                yield source.at(node, f"{node.name} has {length} lines; a function has at most {FUNCTION_LINES}")


def _docstring_lines(node: Function) -> int:
    if ast.get_docstring(node) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or first.lineno) - first.lineno + 1


def module_docstring(source: Source) -> Iterator[str]:
    """A module opens with what it does and why."""
    if not (ast.get_docstring(source.tree) or "").strip():
        yield source.at(1, "no docstring: what does the module do, and why?")


def no_print(source: Source) -> Iterator[str]:
    """A library is silent; only the command line speaks."""
    for node in source.nodes:
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if called and source.group != "cli":
            yield source.at(node, "print() outside the command line")


def no_bare_except(source: Source) -> Iterator[str]:
    """Say what is caught."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield source.at(node, "bare except")


def finished(source: Source) -> Iterator[str]:
    """Nothing half done: no TODO, no stub."""
    for line, found in in_comments(source, r"\b(TODO|FIXME|XXX|HACK)\b"):
        yield source.at(line, f"{found[1]} in a comment")
    for node in source.nodes:
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield source.at(node, "NotImplementedError: a capability that is not there is UnsupportedError")


def ignores_have_codes(source: Source) -> Iterator[str]:
    """A silenced checker says which of its complaints is meant."""
    for line, _ in in_comments(source, r"#\s*(?:(?:type|pyright|mypy):\s*ignore(?!\[)|noqa(?!:))"):
        yield source.at(line, "an ignore without an error code")


def in_comments(source: Source, pattern: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Where a comment matches; a text that matches nowhere has no such comment, and its tokens need not be read."""
    if re.search(pattern, source.text):
        for line, comment in source.comments:
            if found := re.search(pattern, comment):
                yield line, found


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return [word for word in spaced.lower().split("_") if word]


def public_names(source: Source) -> Iterator[tuple[ast.AST, str, str | None]]:
    """Classes, functions, parameters, fields and constants without a leading underscore, each with its annotation.

    Locals are nobody's business; nor is anything inside a private module, class or function, nor parameters in
    `EXPORTED`, where many functions only call each other (what the package exports is checked as it is exported)."""
    if any(part.startswith("_") for part in source.name.split(".")):
        return
    for node, name, annotation in _public_names(source.tree.body):
        if not (isinstance(node, ast.arg) and source.group in EXPORTED):
            yield node, name, annotation


def _public_names(body: list[ast.stmt]) -> Iterator[tuple[ast.AST, str, str | None]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node, node.name, None
            yield from _public_names(node.body)
        elif isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__init__"):
            yield node, node.name, None
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield from ((arg, arg.arg, _said(arg.annotation)) for arg in every if not arg.arg.startswith("_"))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if not node.target.id.startswith("_"):
                yield node, node.target.id, _said(node.annotation)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from ((node, name, None) for name in names if not name.startswith("_"))


def _said(annotation: ast.expr | None) -> str | None:
    return None if annotation is None else ast.unparse(annotation)


def glossary(source: Source) -> Iterator[str]:
    """One word, one meaning, none abbreviated."""
    for node, name, _ in public_names(source):
        yield from (source.at(node, said) for said in banned_words(name))


def units(source: Source) -> Iterator[str]:
    """Durations are ``_seconds``, amounts of data ``_bytes``, and the unit comes last."""
    for node, name, annotation in public_names(source):
        yield from (source.at(node, said) for said in wrong_units(name, annotation))


def banned_words(name: str) -> Iterator[str]:
    """What the glossary has against a name."""
    for word in words(name):
        if word in BANNED_WORDS:
            yield f"{name!r}: not {word!r} but {BANNED_WORDS[word]}"


def wrong_units(name: str, annotation: str | None) -> Iterator[str]:
    """What is wrong with the unit in a name; only numbers have one."""
    parts = words(name)
    if WRONG_UNITS & set(parts) and len(parts) > 1 and parts[-1] not in ("seconds", "bytes"):
        yield f"{name!r}: durations end in _seconds, amounts of data in _bytes"
    number = annotation is not None and re.search(r"\b(int|float)\b", annotation)
    if number and DURATION_WORDS & set(parts) and parts[-1] != "seconds":
        yield f"{name!r} is a duration and does not end in _seconds"


def no_sleeps(source: Source) -> Iterator[str]:
    """A test waits for what it needs to see, never for time to pass; giving way once (``sleep(0)``) is allowed."""
    direct = {
        alias.asname or alias.name
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio", "trio", "anyio"}
        for alias in node.names
        if alias.name == "sleep"
    }
    for node in source.nodes:
        if not isinstance(node, ast.Call) or (node.args and ast.unparse(node.args[0]) == "0"):
            continue
        called = ast.unparse(node.func)
        if called in direct or re.fullmatch(r"(time|asyncio|trio|anyio)\.sleep", called):
            yield source.at(node, f"{called}: wait for the event instead, or give the file's reason in SLEEPS")


_MADE = re.compile(r"threading\.(R?Lock|Condition|(Bounded)?Semaphore)\(")
_LOCKS = re.compile(r"_?(lock|mutex)")


def no_loops_in_locks(source: Source) -> Iterator[str]:
    """What goes on under a lock in a loop is a function of its own.

    CPython 3.13 does not count the jump from the end of a loop to its begin as a part of what is around the loop: if
    Ctrl-C comes there, a lock is not released (https://github.com/python/cpython/issues/130279). What is a lock is seen
    by where it is made, or, in another file, by its name."""
    made = {
        _last_name(target)
        for node in source.nodes
        if isinstance(node, ast.Assign) and _MADE.match(ast.unparse(node.value))
        for target in node.targets
    }
    for node in source.nodes:
        names = [_last_name(item.context_expr) for item in node.items] if isinstance(node, ast.With) else []
        if isinstance(node, ast.With) and any(name in made or _LOCKS.fullmatch(name) for name in names):
            for loop in _loops(node.body):
                yield source.at(loop, "a loop directly within a lock: make it a function")


def _last_name(expression: ast.expr) -> str:
    name: str = expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
    return name


def _loops(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Loops, and comprehensions that leave something out, but not those of functions."""
    for node in body:
        filters = isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp) and any(
            generator.ifs for generator in node.generators
        )
        if filters or isinstance(node, ast.For | ast.While):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _loops(list(ast.iter_child_nodes(node)))


def fences(text: str) -> Iterator[str]:
    """The languages of all fenced blocks of a Markdown text, indented ones too; an unclosed one is reported as such."""
    opening = None
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})\s*(\S*)", line)
        if mark and opening is None:
            opening = mark[1]
            yield mark[2]
        elif mark and not mark[2] and mark[1].startswith(opening or ""):
            opening = None
    if opening is not None:
        yield "(unclosed)"
