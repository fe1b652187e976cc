"""Every example in the documentation runs.

The ``python`` blocks of a page are executed in order, in one namespace and one temporary directory, as a reader would
type them; a block may await at its top level, as in a notebook. A ``console`` block whose first line is
``$ interlock ...`` is run in the same directory, in its turn, and each command must exit with 0. Line numbers in a
traceback are the page's.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

import interlock
import zygote
from redis_servers import redis_server
from servers import postgresql_server

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ON_SERVERS = ROOT / "docs" / "how-to" / "run-on-a-server.md"
"""Its examples use the server that the environment names."""
CLI = ["-c", "import sys; from interlock.cli import main; sys.exit(main())"]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>python|console)[ \t]*\n(?P<body>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text without the fence's indentation, the page's line that it begins on."""

    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page that are executed: python, and console that begins with our own command."""
    for found in FENCE.finditer(page):
        indent = len(found["indent"])
        text = "".join(line[indent:] if line.strip() else "\n" for line in found["body"].splitlines(keepends=True))
        if found["language"] == "python" or text.startswith("$ interlock"):
            yield Block(found["language"], text, page.count("\n", 0, found.start("body")) + 1)


def compiled(block: Block, name: str) -> CodeType:
    """The block's code; it keeps the page's name and line numbers, and may await at its top level."""
    source = "\n" * (block.line - 1) + block.text
    return compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def commands(block: Block) -> list[list[str]]:
    """The commands of a console block; a line that ends in a backslash goes on in the next one."""
    text = block.text.replace("\\\n", " ")
    return [shlex.split(line[2:], comments=True) for line in text.splitlines() if line.startswith("$ ")]


def run_command(words: list[str], directory: Path) -> None:
    """Run one of our own commands as a user would. Raises `AssertionError` with what it said if it fails."""
    assert words[0] == "interlock", f"a block that begins with our command goes on with {words[0]!r}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("INTERLOCK_")}
    environment["PYTHONPATH"] = str(Path(interlock.__file__).parent.parent.absolute())  # the one that is tested
    process = zygote.start(*CLI, *words[1:], directory=directory, environment=environment, stderr=subprocess.PIPE)
    with process:
        said, complained = process.communicate(timeout=100)
    assert process.returncode == 0, f"{shlex.join(words)} exited with {process.returncode}:\n{said}{complained}"


def run_page(text: str, name: str, directory: Path) -> None:
    """Run a page's blocks in order. The namespace is a real module, so that dataclasses and annotations find it."""
    module = ModuleType("page_" + re.sub(r"\W", "_", name))
    sys.modules[module.__name__] = module
    try:
        with asyncio.Runner() as runner:
            for block in blocks(text):
                if block.language == "console":
                    for words in commands(block):
                        run_command(words, directory)
                    continue
                code = compiled(block, name)
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(eval(code, vars(module)))
                else:
                    exec(code, vars(module))
    finally:
        del sys.modules[module.__name__]


@pytest.mark.parametrize(
    "path", [page for page in PAGES if page != ON_SERVERS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_page(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path.read_text("utf-8"), str(path.relative_to(ROOT)), tmp_path)


@pytest.mark.parametrize("start", [postgresql_server, redis_server])
def test_the_page_about_servers_on_each_of_them(
    start: Callable[[], AbstractContextManager[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with start() as server:
        monkeypatch.setenv("INTERLOCK_URL", server.url)
        run_page(ON_SERVERS.read_text("utf-8"), ON_SERVERS.name, tmp_path)


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_links_lead_somewhere(path: Path) -> None:
    """Those to other files of this repository, and to headings in them."""
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        there = path.parent / target if target else path
        assert there.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, heading


def test_the_readme_has_examples() -> None:
    found = list(blocks((ROOT / "README.md").read_text("utf-8")))
    assert sum(block.language == "python" for block in found) >= 2


# --- the runner itself ------------------------------------------------------------------------------------------------

PAGE = """\
# A page

```python
import asyncio
from dataclasses import dataclass

@dataclass
class Seen:
    names: "list[str]"

seen = Seen([])
async def note(name):
    await asyncio.sleep(0)
    seen.names.append(name)
asyncio.run(note("first"))
```

- in a list:

  ```python
  await note("second")

  if seen:
      await note("third")
  ```

```console
$ pip install something-that-is-not-run
```

```text
this is not code
```

```python
from pathlib import Path

Path("names.txt").write_text(" ".join(seen.names))
```
"""


def test_blocks_run_in_order_in_one_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(PAGE, "page", tmp_path)
    assert (tmp_path / "names.txt").read_text() == "first second third"
    assert [block.line for block in blocks(PAGE)] == [4, 21, 36]


def test_a_failing_block_names_the_line_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("text\n\n```python\nx = 1\n1 / 0\n```\n", "docs/page.md", tmp_path)
    last = caught.traceback[-1]
    assert (str(last.path).endswith("docs/page.md"), last.lineno + 1) == (True, 5)


def test_a_failing_command_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exited with"):
        run_page("```console\n$ interlock no-such-command\n```\n", "page", tmp_path)
    with pytest.raises(AssertionError, match="goes on with 'rm'"):
        run_command(["rm", "-rf"], tmp_path)


def test_commands_are_read() -> None:
    block = Block("console", "$ interlock get a \\\n    --json  # why\noutput\n$ interlock put a 'b c'\n", 1)
    assert commands(block) == [["interlock", "get", "a", "--json"], ["interlock", "put", "a", "b c"]]
