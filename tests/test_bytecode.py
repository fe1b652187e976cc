"""What the processes of a run compile for each other is what an import would compile, and it is not executed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from bytecode import compile_module

TEXT = "from __future__ import annotations\nfrom pathlib import Path\nPath('executed').touch()\n"


@pytest.mark.parametrize(("name", "is_rewritten"), [("helpers.py", False), ("test_helpers.py", True)])
def test_a_module_is_compiled_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_rewritten: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_text(TEXT)
    assert compile_module(path)
    assert not (tmp_path / "executed").exists()
    plain = Path(importlib.util.cache_from_source(str(path)))
    (left,) = plain.parent.iterdir()
    assert ("pytest" in left.name) == is_rewritten
    assert is_rewritten or left == plain


def test_what_was_compiled_is_what_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    path = tmp_path / "answers.py"
    path.write_text("import sys\nprint(6 * 7)\n")
    assert compile_module(path)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    said = subprocess.run(
        [sys.executable, "-v", "-c", "import answers"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout == "42\n"
    assert f"code object from '{importlib.util.cache_from_source(str(path))}'" in said.stderr
