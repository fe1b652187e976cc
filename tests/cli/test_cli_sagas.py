"""The commands about durable sagas: what they show, what they end, and how they exit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from interlock import sync
from interlock.cli.app import app

Run = Callable[..., Result]

SHOP = """
from interlock import compensable

LOG = []
OPEN = True


@compensable(outside="run")
def release(result):
    if not OPEN:
        raise OSError("closed")
    LOG.append(result)


@compensable(undo=release, outside="run")
def reserve(sku):
    return f"reservation of {sku}"
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
def run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, in a directory with a program's module."""
    (tmp_path / "shop_of_the_cli.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*words: str, status: int = 0) -> Result:
        result = CliRunner(env={"INTERLOCK_URL": url}).invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    return call


def leave_behind(url: str) -> None:
    """A saga whose coordinator is gone."""
    import shop_of_the_cli as shop  # type: ignore[import-not-found]

    with sync.open(url, agent="shop") as store, pytest.raises(LookupError), store.saga("order", id="o1") as saga:
        saga.step(shop.reserve, "sku-1")
        saga._frame.course.recorder.journal.lost = True
        raise LookupError


def objects(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_saga_is_listed_and_recovered(url: str, run: Run) -> None:
    leave_behind(url)
    (row,) = objects(run("sagas", "--json"))
    assert (row["name"], row["id"], row["status"], row["run"], row["agent"]) == ("order", "o1", "running", 1, "shop")
    assert run("sagas").stdout.startswith("order/o1\trunning\t1\tshop\t")
    assert run("recover").stdout == "live\torder/o1\n"
    result = run("recover", "--import", "shop_of_the_cli", "--older-than", "0")
    assert result.stdout == "undone\torder/o1\n"
    assert run("sagas").stdout == ""
    assert [row["status"] for row in objects(run("sagas", "--all", "--json"))] == ["undone"]


def test_dead_letters(url: str, run: Run) -> None:
    leave_behind(url)
    import shop_of_the_cli as shop

    shop.OPEN = False
    result = run("recover", "--import", "shop_of_the_cli", "--older-than", "0", "--json", status=1)
    (report,) = objects(result)
    assert report["dead_letters"] == ["order/o1/1/0"]
    (letter,) = objects(run("dead-letters", "list", "--json"))
    assert (letter["id"], letter["step"], letter["result"]) == ("order/o1/1/0", "reserve", "reservation of sku-1")
    assert "closed" in run("dead-letters", "list").stdout
    assert "still stands" in run("dead-letters", "retry", "order/o1/1/0", status=1).stdout
    shop.OPEN = True
    assert objects(run("dead-letters", "retry", "order/o1/1/0", "--json")) == [
        {"id": "order/o1/1/0", "status": "settled"}
    ]
    run("dead-letters", "retry", "order/o1/1/0", status=1)
    assert run("dead-letters", "list").stdout == ""


@pytest.mark.parametrize("words", [("skip", "--reason", "small"), ("done",)])
def test_dead_letters_by_hand(url: str, run: Run, words: tuple[str, ...]) -> None:
    leave_behind(url)
    run("recover", "--import", "json", "--older-than", "0", status=1)
    (letter,) = objects(run("dead-letters", "list", "--json"))
    run("dead-letters", words[0], letter["id"], *words[1:])
    assert run("dead-letters", "list").stdout == ""
    assert run("sagas").stdout == ""


def test_what_cannot_be_imported(url: str, run: Run) -> None:
    with sync.open(url):
        pass
    sync.open(url, agent="a").resource("r").run(lambda session: session.write("k", 1))
    assert "cannot be imported" in run("recover", "--import", "there.is.no.such", status=2).output


def move(session: sync.AgentSession[int]) -> None:
    """A transaction on another store."""
    session.add("k", 1)


def test_sagas_over_two_stores_and_by_name(url: str, run: Run, tmp_path: Path) -> None:
    bank_url = f"sqlite:///{tmp_path / 'bank.db'}"
    with sync.open(url, agent="shop") as store, sync.open(bank_url, agent="shop") as bank:
        for saga_id in ("o1", "o2"):
            with pytest.raises(LookupError), store.saga("order", id=saga_id) as saga:
                saga.transact(bank.resource("tills", int), move)
                saga._frame.course.recorder.journal.lost = True  # type: ignore[union-attr]
                raise LookupError
    assert run("recover", "other", "--older-than", "0").stdout == ""
    shown = run("recover", "order", "--older-than", "0", "--limit", "1", status=1).stdout
    assert shown == f"dead letters\torder/o1/1/0\nmissing stores\t{bank_url}\n"
    letter = ("dead-letters", "retry", "order/o1/1/0")
    assert "still stands" in run(*letter, status=1).stdout
    assert "no store" in run(*letter, "--store", "sqlite:///nowhere.db", status=4).output
    assert "settled" in run(*letter, "--store", bank_url).stdout
    assert run("recover", "order", "--older-than", "0", "--store", bank_url).stdout == "undone\torder/o2\n"
    with sync.open(bank_url) as bank:
        assert bank.resource("tills", int).read("k") == 0
