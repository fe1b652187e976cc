"""The commands about effects: listing, showing, resolving; reconciling and dispatching with a program's handlers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import interlock
from interlock import sync
from interlock.cli.app import app

HANDLERS = """\
import interlock
{module} as world

store = world.open({url!r}, agent="shop")
answers = {{"unsure": interlock.CANNOT_TELL, "paid": interlock.Happened({{"charge": "ch_1"}})}}


{colour}def send(payload, idempotency_key):
    if payload == "poison":
        raise ValueError("no such address")
    with open("sent.txt", "a") as out:
        out.write(f"{{payload}} {{idempotency_key}}\\n")


{colour}def verify(key):
    return answers.get(key, interlock.NOT_HAPPENED)


def register_effects(effects):
    effects.handler("sms", send)


store.effects.handler("mail", send, verify=verify, retry=interlock.RetryPolicy(max_attempts=1))
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture(params=["async", "sync"])
def handlers(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[str]:
    """A module with handlers, by its name."""
    name = f"shop_{request.param}_{abs(hash(url))}"
    asynchronous = request.param == "async"
    text = HANDLERS.format(
        module="import interlock" if asynchronous else "import interlock.sync",
        url=url,
        colour="async " if asynchronous else "",
    )
    (tmp_path / f"{name}.py").write_text(text)
    yield name
    sys.modules.pop(name, None)


def run(url: str, *words: str, status: int = 0) -> Result:
    result = CliRunner(env={"INTERLOCK_URL": url}).invoke(app, ["effects", *words], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def objects(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def fill(url: str) -> None:
    """Three effects that are staged, one that is unknown, one that has succeeded."""

    def lost() -> None:
        raise TimeoutError("no answer")

    with sync.open(url, agent="shop") as store:
        with store.session() as session:
            session.stage("mail", "hello", key="order-1")
            session.stage("sms", "hello", key="order-1")
            session.stage("mail", "poison", key="order-2")
        executor = sync.IdempotentExecutor(store)
        executor.execute("order-3", lambda: {"total": 5})
        for key in ("paid", "unsure"):
            with pytest.raises(TimeoutError):
                executor.execute(key, lost)


def test_list_and_show(url: str) -> None:
    fill(url)
    lines = [line.split("\t") for line in run(url, "list").stdout.splitlines()]
    assert [(line[0], line[1], line[2]) for line in lines] == [
        ("order-1", "mail", "pending"),
        ("order-1", "sms", "pending"),
        ("order-2", "mail", "pending"),
        ("order-3", "-", "succeeded"),
        ("paid", "-", "unknown"),
        ("unsure", "-", "unknown"),
    ]
    assert lines[4][5] == "TimeoutError: no answer"
    assert [each["key"] for each in objects(run(url, "list", "--status", "unknown", "--json"))] == ["paid", "unsure"]
    assert len(objects(run(url, "list", "--limit", "2", "--json"))) == 2
    shown = json.loads(run(url, "show", "order-3").stdout)
    assert (shown["status"], shown["result"], shown["effect"], shown["attempts"]) == (
        "succeeded",
        {"total": 5},
        None,
        1,
    )
    assert json.loads(run(url, "show", "order-1", "--effect", "sms", "--json").stdout)["payload"] == "hello"
    assert "several effects" in run(url, "show", "order-1", status=2).stderr
    assert "there is no effect" in run(url, "show", "order-9", status=1).stderr


def test_resolve(url: str) -> None:
    fill(url)
    assert run(url, "resolve", "paid", "succeeded", '{"charge": "ch_1"}').stdout == "paid is succeeded\n"
    assert json.loads(run(url, "show", "paid").stdout)["result"] == {"charge": "ch_1"}
    assert objects(run(url, "resolve", "unsure", "pending", "--json"))[0]["status"] == "pending"
    assert run(url, "resolve", "order-2", "failed", "--effect", "mail").stdout == "order-2 is failed\n"
    run(url, "resolve", "order-9", "failed", status=1)
    run(url, "resolve", "paid", "failed", status=2)
    run(url, "resolve", "paid", "executing", status=2)
    run(url, "resolve", "unsure", "succeeded", "{", status=2)


def test_dispatch_and_reconcile_with_the_handlers_of_a_program(url: str, handlers: str, tmp_path: Path) -> None:
    fill(url)
    done = objects(run(url, "dispatch", "--import", handlers, "--limit", "1", "--json"))
    assert done == [{"succeeded": 1, "failed": 0, "retrying": 0, "waiting": 0, "unknown": 0, "unhandled": 0}]
    assert run(url, "dispatch", "--import", handlers, status=1).stdout == "succeeded 1, failed 1\n"
    assert run(url, "dispatch", "--import", handlers).stdout == "nothing to do\n"
    assert (tmp_path / "sent.txt").read_text() == "hello order-1\n" * 2
    assert json.loads(run(url, "show", "order-2").stdout)["error"] == "ValueError: no such address"
    report = objects(run(url, "reconcile", "--json", status=1))[0]
    assert report["unknown"] == [{"key": "paid", "effect": ""}, {"key": "unsure", "effect": ""}]
    assert run(url, "reconcile", "unsure", status=1).stdout == "unknown 1\n"
    run(url, "reconcile", "order-9", status=1)


def test_reconcile_asks_the_probe_of_a_handler(url: str, handlers: str) -> None:
    async def fail(payload: str) -> None:
        raise TimeoutError

    async def stage() -> None:
        async with interlock.open(url, agent="shop") as store:
            async with store.session() as session:
                for key in ("paid", "unsure", "never sent"):
                    await session.stage("mail", key, key=key)
            store.effects.handler("mail", fail, verify=unsure)
            await store.effects.dispatch()

    async def unsure(key: str) -> Any:
        return interlock.CANNOT_TELL

    import asyncio

    asyncio.run(stage())
    report = objects(run(url, "reconcile", "--import", handlers, "--json", status=1))[0]
    assert [each["key"] for each in report["happened"]] == ["paid"]
    assert [each["key"] for each in report["not_happened"]] == ["never sent"]
    assert [each["key"] for each in report["unknown"]] == ["unsure"]
    assert run(url, "dispatch", "--import", handlers, status=1).stdout == "succeeded 1, unknown 1\n"


def test_what_is_wrong_is_said(url: str, tmp_path: Path) -> None:
    fill(url)
    assert "--import" in run(url, "dispatch", status=2).stderr
    assert "cannot be imported" in run(url, "dispatch", "--import", "no.such.module", status=2).stderr
    (tmp_path / "empty_shop.py").write_text("x = 1\n")
    assert "register_effects" in run(url, "dispatch", "--import", "empty_shop", status=2).stderr
    assert run(f"sqlite:///{tmp_path}/none.db", "list", status=4).stdout == ""


def test_follow_goes_on_until_it_is_interrupted(url: str, handlers: str, tmp_path: Path) -> None:
    fill(url)
    library = str(Path(interlock.__file__).parent.parent.absolute())
    with subprocess.Popen(
        [sys.executable, "-m", "interlock.cli", "effects", "dispatch", "--import", handlers, "--follow", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": library, "INTERLOCK_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["succeeded"] == 2
        with sync.open(url, agent="shop") as store, store.session() as session:
            session.stage("sms", "later", key="order-7")
        assert json.loads(process.stdout.readline())["succeeded"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert (tmp_path / "sent.txt").read_text().endswith("later order-7\n")
