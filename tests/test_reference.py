"""The tables of the reference that follow from the code: compared with it here, and written by running this file.

    python tests/test_reference.py

writes the tables anew, between the marks ``<!-- generated: name -->`` and ``<!-- end -->`` of the pages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import interlock
from interlock import codec, errors, keys
from interlock.cli.app import app
from interlock.cli.exits import Exit
from interlock.core.options import DEFAULTS
from interlock.layers.effects.dispatching import HANDLER_RETRY
from interlock.layers.effects.journal import CLAIM_SECONDS
from interlock.layers.effects.store import WAIT_SECONDS
from interlock.layers.locks import TTL_SECONDS as LOCK_SECONDS
from interlock.model import Limits

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def first_sentence(thing: type) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(thing) or "").split())
    found = re.match(r".*?[.](?= |$)", text)
    assert found, f"{thing.__name__} has no sentence to say"
    return found[0].replace("``", "`")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(cells) + " |" for cells in lines).replace("| ---", "|---").replace("--- |", "---|")
    )


ERRORS = (errors.__name__, "interlock.layers.errors")
"""The modules whose errors the page of errors names."""


def tree(kind: type[errors.InterlockError], depth: int = 0) -> Iterator[tuple[type[errors.InterlockError], int]]:
    """The library's error classes, each below its base."""
    yield kind, depth
    for below in kind.__subclasses__():
        if below.__module__ in ERRORS:
            yield from tree(below, depth + 1)


def error_table() -> str:
    """The error tree: indented by depth."""
    rows = []
    for kind, depth in tree(errors.InterlockError):
        facts = [name for name in inspect.signature(kind).parameters if name != "message"]
        retry = {(True, False): "retryable", (False, True): "maybe committed"}.get(
            (kind.retryable, kind.maybe_committed), ""
        )
        name = "&emsp;" * depth + f"`{kind.__name__}`"
        rows.append([name, f"`{kind.code}`", retry, ", ".join(f"`{fact}`" for fact in facts), first_sentence(kind)])
    return table(["error", "code", "", "facts", "meaning"], rows)


def limit_table() -> str:
    """Every bound with its size and the error of what exceeds it."""
    limits, policy = Limits(), interlock.RetryPolicy()
    opening = inspect.signature(interlock.open).parameters
    rows: list[tuple[str, Any, str]] = [
        ("one encoded key", f"{keys.KEY_BYTES:,} bytes", "LimitExceededError"),
        (
            "a resource's or agent's name, an idempotency key, a run id",
            f"{keys.NAME_BYTES:,} bytes",
            "LimitExceededError",
        ),
        ("one stored value", f"{codec.VALUE_BYTES:,} bytes", "LimitExceededError"),
        ("digits of an int, characters of a Decimal", f"{codec.DIGITS:,}", "ValueRefusedError"),
        ("nesting of a value", f"{codec.DEPTH:,} levels", "ValueRefusedError"),
        ("keys written by one transaction", f"{limits.writes:,}", "LimitExceededError"),
        ("keys read by one transaction", f"{limits.reads:,}", "LimitExceededError"),
        ("ranges read by one transaction", f"{limits.spans:,}", "LimitExceededError"),
        ("values written by one transaction", f"{limits.commit_bytes:,} bytes", "LimitExceededError"),
        ("attempts of one `run`", f"{policy.max_attempts} (`RetryPolicy.max_attempts`)", "RetriesExhaustedError"),
        ("time for attempts", f"{policy.max_seconds:,} s (`RetryPolicy.max_seconds`)", "RetriesExhaustedError"),
        ("pause between two attempts", f"{policy.cap_seconds:,} s (`RetryPolicy.cap_seconds`)", ""),
        (
            "locks of a process that has died",
            f"{LOCK_SECONDS:g} s (`ttl_seconds` of `lock`), renewed while it lives",
            "",
        ),
        ("waiting for a lock", f"{DEFAULTS.lock_timeout_seconds:g} s (`lock_timeout_seconds`)", "LockTimeoutError"),
        ("claim of an effect's execution", f"{CLAIM_SECONDS:,.0f} s (`claim_seconds`), renewed while the act runs", ""),
        ("waiting for an effect's result", f"{WAIT_SECONDS:,.0f} s (`wait_seconds`)", "EffectInProgressError"),
        ("attempts of an effect's handler", f"{HANDLER_RETRY.max_attempts} (`retry` of the handler)", ""),
        ("history", f"{opening['history_seconds'].default:,} s (`history_seconds`)", "SnapshotTooOldError"),
        (
            "memory of an idempotency key",
            f"{opening['idempotency_ttl_seconds'].default:,} s (`idempotency_ttl_seconds`)",
            "",
        ),
    ]
    return table(
        ["what", "bound", "error"], [[what, bound, f"`{error}`" if error else ""] for what, bound, error in rows]
    )


def status_table() -> str:
    """The exit statuses with what the code says of them."""
    source = inspect.getsource(Exit)
    rows = []
    for member in Exit:
        said = re.search(rf'{member.name} = {member.value}\n    """(.*?)"""', source, re.DOTALL)
        rows.append([f"{member.value}", " ".join(said[1].replace("``", "`").split()) if said else "Done."])
    return table(["status", "meaning"], rows)


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "errors": ("errors.md", error_table),
    "limits": ("limits.md", limit_table),
    "statuses": ("command-line.md", status_table),
}


def mark(name: str) -> re.Pattern[str]:
    """The place of a table in its page."""
    return re.compile(rf"(<!-- generated: {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("name", GENERATED)
def test_the_table_is_what_the_code_says(name: str) -> None:
    page, build = GENERATED[name]
    found = mark(name).search((REFERENCE / page).read_text("utf-8"))
    assert found, f"{page} has no place for the table {name!r}"
    assert found[2].strip() == build(), "run: python tests/test_reference.py"


def test_every_mark_has_a_table() -> None:
    marks = {
        name
        for page in REFERENCE.glob("*.md")
        for name in re.findall(r"<!-- generated: (\w+) -->", page.read_text("utf-8"))
    }
    assert marks == set(GENERATED)


def test_every_command_and_option_is_described() -> None:
    page = (REFERENCE / "command-line.md").read_text("utf-8")
    found: Any = get_command(app)
    commands = {
        f"{name} {below}".strip(): inner
        for name, command in found.commands.items()
        for below, inner in getattr(command, "commands", {"": command}).items()
    }
    for name, command in commands.items():
        assert f"| `{name}" in page, name
        flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
        if name != "demo":  # its options are about the demonstration, and in its help
            assert not (missing := [flag for flag in flags if f"{flag}" not in page]), (name, missing)


def test_every_error_is_exported() -> None:
    for kind, _ in tree(errors.InterlockError):
        assert getattr(interlock, kind.__name__) is kind


def write() -> None:
    """Write all tables into their pages."""
    for name, (page, build) in GENERATED.items():
        path, built = REFERENCE / page, build()
        text = path.read_text("utf-8")
        found = mark(name).search(text)
        assert found, f"{page} has no place for the table {name!r}"
        path.write_text(f"{text[: found.start(2)]}{built}\n{text[found.end(2) :]}", "utf-8")


if __name__ == "__main__":
    write()
